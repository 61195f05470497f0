"""`kzoo demo`."""

import importlib.util
import json
import shutil
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from kzoo.cli import reports
from kzoo.cli.console import (
    Failure,
    err,
    file_size,
    load_keras,
    note,
    out,
    progress,
    quoted,
)
from kzoo.files import make_folder, remove_partial, write_json

HELP = """
See all of kzoo at work in two to three minutes, without a network.

The presets that kzoo ships each answer an example: they translate, classify, tag and
write. Then the translator of captions learns something new: to write dates ("le 3 mars
1998", in five languages) in ISO 8601. It is scored on dates that it has not seen, its
attention is drawn, and it is exported as ONNX and as SavedModel, which take and give
text where kzoo\\[text] is installed; both are verified against it.

[bold]Examples[/bold]

  kzoo demo
  kzoo demo --out /tmp/demo --seconds 40
  kzoo translate kzoo-demo/model "le 3 mars 1998"
"""

BASE = "multi30k-en-de"
PAIRS, EPOCHS, BATCH_SIZE, PEAK, HELD_OUT = 8_000, 3, 16, 3e-3, 500
LENGTH = 16  # the most tokens of a date, twice what most have
EXPECTED = 0.97
_SHOWN = "Wednesday, 27 March 1985"  # a date that is held out for good
_SUMMARY = "demo.json"


def demo(
    out_path: Annotated[
        Path, typer.Option("--out", "-o", help="A folder for all files.")
    ] = Path("kzoo-demo"),
    seconds: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="The most for the fine-tuning, by the clock; a slow machine ends it.",
        ),
    ] = 75,
    seed: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, max=2**32 - 1, help="Of data, weights and order."
        ),
    ] = 0,
):
    """Runs the command."""
    start = time.perf_counter()
    _prepare(out_path)
    keras = load_keras(trains=True)
    from kzoo.data import date_pairs
    from kzoo.plots import attention, training_curve
    from kzoo.zoo.illustrations import attention_of

    answers = _zoo()
    keras.utils.set_random_seed(seed)
    with progress("Writing dates"):
        pairs = date_pairs(PAIRS, seed=seed)
        held_out = date_pairs(HELD_OUT, seed=seed, split="test")
    began = time.perf_counter()
    model, history, epochs = _fine_tune(pairs, seconds, seed)
    trained = time.perf_counter() - began
    model.save_folder(out_path / "model")
    training_curve(history, title="kzoo demo").savefig(out_path / "curve.png")

    sources = [source for source, _ in held_out]
    with progress("Reading held-out dates", total=len(sources)) as advance:
        found = model.generate(
            sources, max_new_tokens=LENGTH, batch_size=250, progress=advance
        )
    wrong = [
        (source, target, result)
        for (source, target), result in zip(held_out, found, strict=True)
        if target != result
    ]
    exact = 1 - len(wrong) / len(held_out)

    with progress("Drawing the attention"):
        weights, query_tokens, key_tokens = attention_of(
            model, _SHOWN, max_new_tokens=LENGTH
        )
        (result,) = model.generate([_SHOWN], max_new_tokens=LENGTH)
        title = f"{_SHOWN}  →  {result}"
        attention(weights, query_tokens, key_tokens, heads="mean", title=title).savefig(
            out_path / "attention.png"
        )

    exports = _export(model, out_path)
    summary = {
        "finished": True,
        "presets": answers,
        "exact_match": exact,
        "held_out": len(held_out),
        "wrong": wrong[:20],
        "training_seconds": trained,
        "epochs": epochs,
        "training_complete": epochs == EPOCHS,
        "exports": {name: report.to_dict() for name, report, *_ in exports},
        "seconds": time.perf_counter() - start,
    }
    write_json(out_path / _SUMMARY, summary)
    _print(out_path, summary, exports, result)


def _prepare(out_path):
    """An empty folder, or one of a demo before, which is replaced."""
    if out_path.exists() and not out_path.is_dir():
        raise Failure(f"--out {out_path} is a file. Give a folder.")
    if out_path.is_dir() and any(out_path.iterdir()):
        if not _is_of_a_demo(out_path / _SUMMARY):
            raise Failure(
                f"--out {out_path} is not empty and is no folder of `kzoo demo`. Give "
                "a new folder."
            )
        for name in ("model", "saved_model", "onnx"):
            shutil.rmtree(out_path / name, ignore_errors=True)
        remove_partial(out_path)  # of an export that was killed
        for name in ("attention.png", "curve.png"):
            (out_path / name).unlink(missing_ok=True)
    make_folder(out_path)
    write_json(out_path / _SUMMARY, {"finished": False})


def _is_of_a_demo(summary):
    """Whether a file is one of these, and so what is beside it a demo's."""
    try:
        said = json.loads(summary.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(said, dict) and isinstance(said.get("finished"), bool)


def _zoo():
    """What each shipped preset makes of an example; dicts, also printed as a table."""
    from kzoo.zoo.illustrations import outputs_of
    from kzoo.zoo.pretrained import from_preset
    from kzoo.zoo.registry import EXAMPLES, list_presets, read_record

    answers = []
    for preset in list_presets():
        shown = read_record(preset.folder, EXAMPLES)
        if shown is None:
            continue
        start = time.perf_counter()
        given = [each["input"] for each in shown["examples"]]
        with progress(f"Asking {preset.name}"):
            task = from_preset(preset.folder)
            answer = outputs_of(task, given, **shown["options"])[0]
        took = time.perf_counter() - start
        answers.append(
            dict(name=preset.name, input=given[0], output=answer, seconds=took)
        )
    if answers:
        table = Table(title="presets", title_justify="left", title_style="bold")
        for name in ("preset", "reads", "gives", "seconds"):
            table.add_column(name, overflow="fold")
        for row in answers:
            read = row["input"]
            read = read if isinstance(read, str) else "\n".join(read)
            seconds = f"{row['seconds']:.1f}"
            table.add_row(row["name"], *map(escape, (read, row["output"])), seconds)
        out.print(table)
    return answers


def _fine_tune(pairs, seconds, seed):
    """The fine-tuned preset, Keras's history, and how many whole epochs it had."""
    from kzoo.cli.epochs import CosineWithinTime, EpochLines
    from kzoo.data import bucketed_batches
    from kzoo.training import Adam
    from kzoo.zoo.pretrained import from_preset

    model = from_preset(BASE)
    batches = bucketed_batches(
        model.encode_examples(pairs),
        batch_size=BATCH_SIZE,
        buckets=2,  # each is compiled, for seconds
        pad_ids=model.config.pad_token_id,
        seed=seed,
    )
    note(f"Fine-tuning {BASE} on {len(pairs):,} dates")
    model.compile(
        optimizer=Adam(PEAK, beta_2=0.98, global_clipnorm=1.0),
        metrics=None,
    )
    rate = CosineWithinTime(PEAK, EPOCHS * len(batches), seconds)
    lines = EpochLines(EPOCHS)
    try:
        history = model.fit(
            model.pipeline(batches, epochs=EPOCHS),
            steps_per_epoch=len(batches),
            epochs=EPOCHS,
            shuffle=False,
            callbacks=[rate, lines],
            verbose=0,
        )
    finally:
        lines.stop()
    return model, history, int(model.optimizer.iterations) // len(batches)


def _export(model, out_path):
    """(format, report, seconds, whether it takes text) of each export."""
    import keras

    exports = []
    for name, folder, library in (
        ("onnx", "onnx", "onnxruntime_extensions"),
        ("tf_saved_model", "saved_model", "tensorflow_text"),
    ):
        if name == "tf_saved_model" and keras.backend.backend() != "tensorflow":
            note(f"SavedModel needs TensorFlow; left out on {keras.backend.backend()}.")
            continue
        text = importlib.util.find_spec(library) is not None
        if not text:
            note(f'{folder} takes ids: pip install "kzoo[text]" for one of text.')
        start = time.perf_counter()
        report = reports.run(
            f"Exporting and verifying {folder}",
            model.export,
            out_path / folder,
            format=name,
            text=text,
            overwrite=True,
        )
        exports.append((name, report, time.perf_counter() - start, text))
    return exports


def _print(out_path, summary, exports, result):
    table = Table(title="kzoo demo", title_justify="left", title_style="bold")
    table.add_column("what")
    table.add_column("outcome")
    table.add_column("where", overflow="fold")
    table.add_row(
        "fine-tuned",
        f"{BASE} on {PAIRS:,} dates, {summary['epochs']} of {EPOCHS} epochs"
        f"{'' if summary['training_complete'] else ' and a part (time was up)'}, "
        f"{summary['training_seconds']:.0f} s",
        str(out_path / "model"),
    )
    table.add_row("", "loss over the epochs", str(out_path / "curve.png"))
    good = summary["exact_match"] >= EXPECTED
    table.add_row(
        "scored",
        f"[{'green' if good else 'yellow'}]{summary['exact_match']:.1%}[/] of "
        f"{summary['held_out']:,} unseen dates exactly right",
        str(out_path / _SUMMARY),
    )
    table.add_row("", f'"{_SHOWN}" is {result}', "")
    table.add_row("drawn", "its cross-attention", str(out_path / "attention.png"))
    for name, report, seconds, text in exports:
        differences = [
            check["difference"]
            for check in report.checks
            if check.get("difference") is not None
        ]
        what = "texts" if text else "tokens"
        generated = sum(f"{what}_equal" in check for check in report.checks)
        table.add_row(
            f"{name} of {'text' if text else 'ids'}",
            f"[green]verified[/] in {len(report.checks)} runs: equal {what} in all "
            f"{generated} that generate, numbers at most "
            f"{max(differences, default=0):.0e} apart; {file_size(report.path)}, "
            f"{seconds:.0f} s",
            str(report.path),
        )
    out.print(table)
    if not good:
        err.print(
            f"[yellow]Below the {EXPECTED:.0%} that the demo is made for:[/] "
            + (
                "give --seconds more."
                if not summary["training_complete"]
                else "try another --seed."
            )
        )
    out.print(
        f"{summary['seconds']:.0f} s in all. Now try: "
        f'kzoo translate {quoted(out_path / "model")} "den 3. Mai 2031"',
        markup=False,
        soft_wrap=True,
    )
