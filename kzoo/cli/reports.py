"""A verification's report, printed and kept: what `export` and `verify` share."""

from pathlib import Path
from typing import Annotated

import typer

from kzoo.cli.console import FAILED, Failure, note, out, progress

Report = Annotated[
    Path | None, typer.Option(help="Also write the report here, as JSON.")
]


def check_path(path, artifact):
    """Refuses a report that cannot be written, before anything is computed.

    Args:
        path: of the report, or `None`.
        artifact: the path of the files that it is about, which it must not replace.
    """
    if path is None:
        return
    if path.is_dir():
        raise Failure(f"--report {path} is a folder. Give the name of a file in it.")
    if not path.parent.is_dir():
        raise Failure(f"--report {path}: there is no folder {path.parent}.")
    report, artifact = path.resolve(), artifact.resolve()
    own = [artifact]
    if artifact.suffix.lower() == ".onnx":
        from kzoo.exporters.onnx import BESIDE

        own.append(artifact.with_suffix(BESIDE))
    if report in own or artifact in report.parents:
        raise Failure(f"--report {path} is the artifact's own. Give another file.")


def run(description, make, *arguments, **options):
    """The `ExportReport` that `make` gives; what differs ends the command.

    Args:
        description: of the progress bar.
        make: function to call with the arguments and options.
        *arguments: of `make`.
        **options: of `make`.
    """
    from kzoo.exporters import ExportError

    try:
        with progress(description):
            return make(*arguments, **options)
    except ExportError as error:
        raise Failure(" ".join(str(error).split()), FAILED) from error


def show(report, path):
    """Prints the report and, with a path, writes it."""
    out.print(str(report), markup=False, soft_wrap=True)
    if path is not None:
        report.save(path)
        note(f"Report: {path}")
