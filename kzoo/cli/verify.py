"""`kzoo verify`."""

from pathlib import Path
from typing import Annotated

import typer

from kzoo.cli.console import (
    FAILED,
    Failure,
    help_text,
    load_model,
    note,
    one_line_errors,
    out,
    progress,
)

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
    report: Annotated[
        Path | None, typer.Option(help="Also write the report here, as JSON.")
    ] = None,
):
    """Runs the command."""
    if not artifact.exists():
        raise Failure(
            f"{artifact} does not exist. Expected files that `kzoo export` wrote."
        )
    if report is not None and not report.parent.is_dir():
        raise Failure(f"--report {report}: there is no folder {report.parent}.")
    task = load_model(against)
    from kzoo.exporters import ExportError
    from kzoo.exporters import verify as verify_files

    try:
        with progress(f"Verifying {artifact}"):
            result = verify_files(artifact, task)
    except ExportError as error:
        raise Failure(" ".join(str(error).split()), FAILED) from error
    out.print(str(result), markup=False, soft_wrap=True)
    if report is not None:
        result.save(report)
        note(f"Report: {report}")
