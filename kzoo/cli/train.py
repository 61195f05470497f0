"""`kzoo train`."""

import functools
import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from kzoo.cli.console import (
    INTERRUPTED,
    Failure,
    file_size,
    load_keras,
    note,
    out,
    progress,
    quoted,
)

HELP = """
Train a translator or a language model on your texts, or another model by its recipe.

DATA is one of: a tab-separated file; two parallel files, source first; a folder of
files <language>.<split>.txt; a text file, for a language model; tfds:NAME, a data set
of TensorFlow Datasets. Files may be .gz. Or DATA is a recipe, a .toml file or the name
of one that kzoo brings along: it says all but where its files are, --data, and --out.

The model's folder is --out. Training that was stopped, however, goes on when the same
command is run again; with a larger --epochs it goes on for longer.

[bold]Examples[/bold]

  kzoo train pairs.tsv --out translator
  kzoo train train.en.gz train.de.gz --out en-de --epochs 30 --dropout 0.3
    --validation val.en.gz --validation val.de.gz --vocabulary-size 6000
  kzoo train tfds:ted_hrlr_translate/pt_to_en --out pt-en
    --validation-split validation
  kzoo train sentences.txt --task language-model --out writer
  kzoo train book.txt --task language-model --running --out writer
  kzoo train recipe.toml --data multi30k --out en-de
"""


def _option(panel, name, help, **limits):
    """An option in a panel of --help."""
    return typer.Option(metavar=name, help=help, rich_help_panel=panel, **limits)


_data, _model, _run = (
    functools.partial(_option, panel) for panel in ("Data", "Model", "Training")
)
# What goes with a recipe.
_WITH_RECIPE = ("data", "folder", "out_path")


def train(
    context: typer.Context,
    data: Annotated[
        list[str],
        typer.Argument(metavar="DATA", help="See above.", show_default=False),
    ],
    out_path: Annotated[
        Path,
        typer.Option("--out", "-o", help="The model's folder.", show_default=False),
    ],
    folder: Annotated[
        Path,
        typer.Option(
            "--data",
            metavar="FOLDER",
            help="What files are relative to.",
            show_default="the working folder",
        ),
    ] = Path("."),
    task: Annotated[
        Literal["translation", "language-model"],
        typer.Option(metavar="TASK", help="translation, or language-model."),
    ] = "translation",
    columns: Annotated[
        str | None,
        _data(
            "A,B",
            "Which columns (0,1), languages (en,de) or features of DATA, source first.",
        ),
    ] = None,
    split: Annotated[str, _data("NAME", "Of a folder or a TFDS data set.")] = "train",
    validation: Annotated[
        list[str] | None, _data("DATA", "Data as DATA; twice for two parallel files.")
    ] = None,
    validation_split: Annotated[
        str | None, _data("NAME", "Instead: a split of the same folder or data set.")
    ] = None,
    validation_share: Annotated[
        float | None,
        _data(
            "SHARE",
            "Instead: a share of DATA that is held out; 0 for none.",
            min=0.0,
            max=0.5,
            show_default="0.05, or about 2000 examples if that is less",
        ),
    ] = None,
    running: Annotated[
        bool,
        typer.Option(
            "--running",
            help="The file is one running text; stretches of --length tokens are drawn "
            "from it.",
            rich_help_panel="Data",
        ),
    ] = False,
    length: Annotated[
        int | None,
        _data("N", "Tokens a stretch of --running.", min=2, show_default="256"),
    ] = None,
    size: Annotated[
        str,
        _model(
            "SIZE", "tiny, mini, small, base or big; or a kzoo.ModelConfig in JSON."
        ),
    ] = "mini",
    tokenizer: Annotated[
        str,
        _model(
            "KIND",
            "unigram, bpe, sentencepiece-bpe, wordpiece or character, learned "
            "from DATA; or a folder with one.",
            show_default="unigram; bpe for --running",
        ),
    ] = "",
    vocabulary_size: Annotated[
        int, _model("N", "The most tokens of the tokenizer.", min=5)
    ] = 8000,
    dropout: Annotated[
        float | None,
        _model(
            "RATE",
            "Share of units.",
            min=0.0,
            max=0.99,
            show_default="0.1, or the file's",
        ),
    ] = None,
    precision: Annotated[
        Literal["float32", "mixed_bfloat16", "mixed_float16"],
        _model(
            "TYPE", "float32, mixed_bfloat16 or mixed_float16; weights are float32."
        ),
    ] = "float32",
    epochs: Annotated[int, _run("N", "Passes over DATA.", min=1)] = 20,
    tokens_per_batch: Annotated[
        int, _run("N", "Target tokens of a batch, padding counted.", min=1)
    ] = 4096,
    learning_rate: Annotated[
        float | None,
        _run(
            "RATE",
            "The largest, after the warm-up; then it falls as 1/sqrt(step).",
            show_default="(1000 * width) ** -0.5",
        ),
    ] = None,
    warmup: Annotated[int, _run("N", "Steps of the warm-up.", min=1)] = 1000,
    label_smoothing: Annotated[
        float, _run("SHARE", "Of the loss.", min=0.0, max=0.99)
    ] = 0.1,
    average: Annotated[
        int | None,
        _run(
            "N",
            "The model is the mean of its last N epochs.",
            min=1,
            show_default="a quarter of --epochs, at most 5",
        ),
    ] = None,
    seed: Annotated[
        int, _run("N", "Of weights, order and dropout.", min=0, max=2**32 - 1)
    ] = 0,
):
    """Runs the command."""
    options = dict(locals())
    del options["context"]
    load_keras(trains=True)
    from kzoo.cli import settings
    from kzoo.data import DataError
    from kzoo.zoo.recipes import Recipe
    from kzoo.zoo.tables import RecipeError
    from kzoo.zoo.training_folder import OtherTraining

    path = _recipe_file(options, context)
    in_words_of_the_user = settings.as_keys if path else settings.as_options
    try:
        recipe = Recipe.load(path) if path else settings.recipe(options)
        _train(recipe, folder, out_path, "epochs = {}" if path else "--epochs {}")
    except (DataError, OtherTraining, RecipeError) as error:
        raise Failure(in_words_of_the_user(str(error))) from error


def _recipe_file(options, context):
    """The recipe that is named as data; `None` where the options are one."""
    from kzoo.zoo.recipes import shipped

    (first, *others) = options["data"]
    path = Path(first) if first.endswith(".toml") else None
    # The folder of a training that was stopped may have the recipe's name.
    written = Path(first).resolve() == options["out_path"].resolve()
    if path is None and (written or not os.path.exists(first)):
        path = shipped().get(first)
    if path is None:
        return None
    given = [
        f"--{name.replace('_', '-')}"
        for name in options
        if name not in _WITH_RECIPE
        and context.get_parameter_source(name).name != "DEFAULT"
    ]
    if given or others:
        raise Failure(
            f"{first} says all but --data and --out. Received besides: "
            f"{', '.join([*others, *given])}. Change it in a copy of the recipe."
        )
    return path


def _train(recipe, folder, out_path, epochs_are):
    from kzoo.cli.epochs import EpochLines
    from kzoo.zoo import training
    from kzoo.zoo.examples import read_training
    from kzoo.zoo.training_folder import check_folder

    check_folder(out_path)
    with progress("Reading the data"):
        examples, held_out = read_training(recipe, folder)
    with progress("Learning the tokenizer"):
        run = training.Run(recipe, examples, held_out, out_path)
    if run.resumed:
        note(f"Going on with the training in {out_path}.")
    counted = f"{len(examples):,} training and {len(held_out or ()):,} validation "
    counted += "texts" if recipe.data.is_running else "examples"
    note(
        f"{counted}, {run.tokenizer.vocabulary_size:,} tokens, "
        f"{run.task.count_params():,} parameters"
    )
    lines = EpochLines(recipe.training.epochs)
    try:
        run.fit([lines])
    except KeyboardInterrupt:
        done = run.epochs_done
        goes_on = "The same command goes on from there" if done else "It begins anew"
        if done and recipe.training.schedule.kind != "cosine":
            goes_on += f"; with {epochs_are.format(done)} it makes a model of them"
        epochs = "epoch" if done == 1 else "epochs"
        stopped = f"Stopped after {done} whole {epochs}. {goes_on}."
        raise Failure(stopped, INTERRUPTED) from None
    finally:
        lines.stop()
    run.finish()
    _show(recipe, run.history[-1], out_path)


def _show(recipe, last, out_path):
    """Says what the folder is."""
    from kzoo.zoo.registry import COMMANDS

    measures = [
        f"{name.replace('_', ' ')} {last[name]:.4f}"
        for name in ("loss", "val_loss", "val_token_accuracy", "val_accuracy")
        if name in last
    ]
    out.print(
        f"{out_path}: {last['epoch']} epochs, {', '.join(measures)}; weights "
        f"{file_size(out_path / 'model.safetensors')}, curve {out_path / 'curve.png'}",
        markup=False,
        soft_wrap=True,
    )
    command = COMMANDS.get(recipe.task)
    if command:
        note(f'Try it: kzoo {command} {quoted(out_path)} "..."')
    if recipe.data.tests:
        note(f"Score it: kzoo evaluate {quoted(out_path)} --data FOLDER")
