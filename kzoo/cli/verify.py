"""`kzoo verify`."""

from pathlib import Path
from typing import Annotated

import typer

from kzoo.cli import reports
from kzoo.cli.console import Failure, load_model

HELP = """
Compare exported files with the model that they came from.

The files are loaded in their own runtime (onnxruntime, TensorFlow) and run at several
shapes: numbers must agree and generated tokens be equal. With --input they are compared
on your own texts, too, and the first that differs is named. The exit status is 0 when
they agree and 1 when not.

[bold]Examples[/bold]

  kzoo verify translator.onnx --against translator
  kzoo verify saved_model --against translator --report report.json
  kzoo verify translator.onnx --against translator --input sentences.txt
  kzoo verify scorer.onnx --against scorer --input pairs.tsv
  kzoo verify model.onnx --against model_without_tokenizer --input ids.jsonl
"""

_SAVED_MODEL = "saved_model.pb"


def verify(
    artifact: Annotated[
        Path,
        typer.Argument(
            help="An ONNX file, or a folder that `kzoo export` wrote.",
            show_default=False,
        ),
    ],
    against: Annotated[
        str,
        typer.Option(
            help="The model: a preset, a folder of `kzoo train` or Hugging Face, or "
            "hf://...",
            show_default=False,
        ),
    ],
    input: Annotated[
        Path | None,
        typer.Option(
            "--input",
            "-i",
            help="Compare on these, too: a text file (or .gz), a text a line; a .tsv "
            "of pairs; or token ids, as .jsonl or .json (a list of them an example, "
            "or lists by input) or .npz (arrays by input).",
        ),
    ] = None,
    report: reports.Report = None,
):
    """Runs the command."""
    if not artifact.exists():
        raise Failure(
            f"{artifact} does not exist. Expected files that `kzoo export` wrote."
        )
    files = [artifact] if artifact.is_file() else [*artifact.iterdir()]
    if not any(f.suffix.lower() == ".onnx" or f.name == _SAVED_MODEL for f in files):
        raise Failure(
            f"{artifact} holds no model. Expected an ONNX file, or a folder that "
            "`kzoo export` wrote."
        )
    reports.check_path(report, artifact, against, input)
    task = load_model(against)
    from kzoo.cli.inputs import read
    from kzoo.exporters import verify as verify_files

    own = None if input is None else read(input, task)
    result = reports.run(f"Verifying {artifact}", verify_files, artifact, task, own)
    reports.show(result, report)
