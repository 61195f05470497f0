"""`kzoo verify`."""

from pathlib import Path
from typing import Annotated

import typer

from kzoo.cli import reports
from kzoo.cli.console import Failure, help_text, load_model, one_line_errors

HELP = help_text("""
Compare exported files with the model that they came from.

The files are loaded in their own runtime (onnxruntime, TensorFlow) and run at several
shapes: numbers must agree and generated tokens be equal. The exit status is 0 when they
do and 1 when not.

[bold]Examples[/bold]

  kzoo verify translator.onnx --against translator
  kzoo verify saved_model --against translator --report report.json
""")


@one_line_errors
def verify(
    artifact: Annotated[
        Path,
        typer.Argument(
            help="An ONNX file, or a folder that `kzoo export` wrote.",
            show_default=False,
        ),
    ],
    against: Annotated[
        Path,
        typer.Option(help="The model: a folder of `kzoo train`.", show_default=False),
    ],
    report: reports.Report = None,
):
    """Runs the command."""
    if not artifact.exists():
        raise Failure(
            f"{artifact} does not exist. Expected files that `kzoo export` wrote."
        )
    reports.check_path(report)
    task = load_model(against)
    from kzoo.exporters import verify as verify_files

    result = reports.run(f"Verifying {artifact}", verify_files, artifact, task)
    reports.show(result, report)
