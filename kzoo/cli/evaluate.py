"""`kzoo evaluate`."""

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from kzoo.cli.console import (
    FAILED,
    Failure,
    load_keras,
    load_model,
    note,
    out,
    print_table,
    progress,
)
from kzoo.cli.reports import check_file, check_kept
from kzoo.files import sha256, write_json

HELP = """
Score a model on the test sets of its recipe.

Every measure comes with a 95 % confidence interval of a bootstrap; BLEU and chrF are
sacrebleu's, with its signatures. The scores are printed, and written as scores.json
into the model's folder. The status is 1 where the main score lies outside of the
interval that the recipe states.

[bold]Examples[/bold]

  kzoo evaluate en-de --data multi30k
  kzoo evaluate en-de --data multi30k --tests test_2016_flickr
  kzoo evaluate ewt-pos --data ud_ewt
  kzoo evaluate translator --recipe recipe.toml --data multi30k --out scores.json
  kzoo evaluate en-de --data multi30k --exports
"""


def evaluate(
    preset: Annotated[
        str,
        typer.Argument(
            help="A folder of `kzoo train`, the name of a preset, or hf://owner/name.",
            show_default=False,
        ),
    ],
    folder: Annotated[
        Path,
        typer.Option(
            "--data", metavar="FOLDER", help="What the recipe's files are relative to."
        ),
    ] = Path("."),
    tests: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Test sets, with commas between.",
            show_default="all of the recipe",
        ),
    ] = None,
    recipe_path: Annotated[
        Path | None,
        typer.Option(
            "--recipe", help="Another recipe.", show_default="the preset's recipe.toml"
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Write the scores here.",
            show_default="scores.json in the folder, without --tests and --recipe",
        ),
    ] = None,
    exports: Annotated[
        bool,
        typer.Option(
            "--exports",
            help="Score every exported form, too; exports.json in the folder.",
        ),
    ] = False,
):
    """Runs the command."""
    from kzoo.zoo.registry import EXPORTS, SCORES

    own = Path(preset)
    writable = own.is_dir() and os.access(own, os.W_OK)
    if exports and not writable:
        raise Failure(f"--exports needs a folder to write into. Received: {preset}.")
    # The folder keeps what its own recipe says, whole.
    if exports and recipe_path:
        raise Failure(
            "--exports measures what the folder's own recipe says. "
            f"Received: --recipe {recipe_path}."
        )
    keeps = own.is_dir() and tests is None and recipe_path is None
    if output is None and keeps and writable:
        output = own / SCORES
    if output is not None:
        check_file("--out", output)
        check_kept("--out", output, recipe_path)
        check_kept("--out", output, preset, known=(SCORES, EXPORTS))
    load_keras()
    from kzoo.zoo.evaluation import evaluate as scores_of
    from kzoo.zoo.evaluation import evaluate_exports
    from kzoo.zoo.recipes import Recipe
    from kzoo.zoo.registry import TASKS

    recipe = Recipe.load(recipe_path or _recipe_path(preset))
    if output is not None:
        check_kept("--out", output, *(Path(folder) / f for f in recipe.data.files))
    task = load_model(preset)
    if type(task).__name__ != TASKS[recipe.task]:
        raise Failure(
            f"The recipe is of a {TASKS[recipe.task]}, and {preset} is a "
            f"{type(task).__name__}. Give its own with --recipe."
        )
    names = None if tests is None else [name.strip() for name in tests.split(",")]
    with progress(f"Scoring {preset}"):
        scores = scores_of(task, recipe, folder, names)
    scores = {"command": _command(recipe, folder, tests, recipe_path), **scores}
    print_table(_table(preset, recipe, scores))
    for name, signature in _signatures(scores).items():
        out.print(f"{name}: {signature}", markup=False, soft_wrap=True)
    if output is not None:
        _write(own, output, scores)
    elif keeps:
        note(f"Not kept: {own} cannot be written to. Give --out a file for the scores.")
    if exports:
        with progress("Exporting and scoring every form"):
            found = evaluate_exports(task, recipe, folder)
        _write(own, own / EXPORTS, found)
    if recipe.evaluation.interval:
        _check(recipe, scores)


def _write(own, path, record):
    """Writes a record, with the weights that it is of; into a preset with its card."""
    from kzoo.checkpoints.files import SAFETENSORS
    from kzoo.zoo.registry import MANIFEST, RECORDS
    from kzoo.zoo.saving import update_preset

    if (own / SAFETENSORS).is_file():
        record = {**record, "weights": sha256(own / SAFETENSORS)}
    inside = path.resolve().parent == own.resolve() and path.name in RECORDS
    if inside and (own / MANIFEST).is_file():
        update_preset(own, {path.name: record})
    else:
        write_json(path, record)
    note(f"Scores: {path}")


def _recipe_path(preset):
    """The preset's own recipe."""
    from kzoo.checkpoints.hub import local_folder
    from kzoo.zoo.recipes import shipped
    from kzoo.zoo.registry import RECIPE

    if not Path(preset).is_dir() and preset in shipped():
        return shipped()[preset]
    folder = preset
    if preset.startswith("hf://"):
        folder = local_folder(preset, patterns=(RECIPE,), weights=False)
    path = Path(folder) / RECIPE
    if not path.is_file():
        raise Failure(
            f"{preset} has no {RECIPE}, which names the test sets. Expected a "
            f"folder of `kzoo train`, or one of {', '.join(shipped())}; or give "
            "--recipe."
        )
    return path


def _command(recipe, folder, tests, recipe_path):
    """What repeats the scores where the preset and the data have their names."""
    words = ["kzoo", "evaluate", recipe.name, "--data", folder.resolve().name]
    words += ["--tests", tests] if tests else []
    words += ["--recipe", recipe_path.name] if recipe_path else []
    return shlex.join(words)


def _table(preset, recipe, scores):
    table = Table(title=f"{preset}", title_justify="left", title_style="bold")
    for name, justify in (
        ("test", "left"),
        ("rows", "right"),
        ("measure", "left"),
        ("value", "right"),
        ("95 % interval", "right"),
    ):
        table.add_column(name, justify=justify, overflow="fold")
    for test, found in scores["tests"].items():
        for number, (name, row) in enumerate(found["measures"].items()):
            main = recipe.evaluation.main == (test, name)
            ends = [_number(row[end]) for end in ("low", "high")]
            table.add_row(
                "" if number else test,
                "" if number else f"{found['rows']:,}",
                name,
                _number(row["value"]),
                " to ".join(ends) if row["value"] is not None else "",
                style="bold" if main else None,
            )
    return table


def _signatures(scores):
    """Measure to signature, which is that of every test set."""
    return {
        name: row["signature"]
        for found in scores["tests"].values()
        for name, row in found["measures"].items()
        if "signature" in row
    }


def _number(value):
    """Percentages and perplexities with two digits, rates and losses with four."""
    if value is None:
        return "not defined"
    if abs(value) >= 1e6:  # of a model that has learned nothing
        return f"{value:.3e}"
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.4f}"


def _check(recipe, scores):
    """Ends with status 1 where the main score is not what the recipe says."""
    if "main" not in scores:  # --tests named others
        return
    test, measure = scores["main"]
    low, high = recipe.evaluation.interval
    value = scores["tests"][test]["measures"][measure]["value"]
    said = f"the recipe's interval, {low} to {high}."
    if value is None:
        raise Failure(
            f"{measure} on {test} is not defined: all targets are equal, or all "
            f"answers. Expected {said}",
            FAILED,
        )
    if not low <= value <= high:
        raise Failure(f"{measure} on {test} is {value:.4g}, outside {said}", FAILED)
    note(f"{measure} on {test} is inside {said}")
