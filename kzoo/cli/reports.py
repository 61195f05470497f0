"""A verification's report, printed and kept: what `export` and `verify` share."""

import os
from pathlib import Path
from typing import Annotated

import typer

from kzoo.cli.console import FAILED, Failure, note, out, progress

Report = Annotated[
    Path | None, typer.Option(help="Also write the report here, as JSON.")
]


def check_path(path, artifact, *kept):
    """Refuses a report that cannot be written, before anything is computed.

    Args:
        path: of the report, or `None`.
        artifact: the path of the files that it is about, which it must not replace.
        *kept: see `check_kept`.
    """
    if path is None:
        return
    check_file("--report", path)
    report, artifact = path.resolve(), artifact.resolve()
    own = [artifact]
    if artifact.suffix.lower() == ".onnx":
        from kzoo.exporters.onnx import BESIDE

        own.append(artifact.with_suffix(BESIDE))
    if report in own or artifact in report.parents:
        raise Failure(f"--report {path} is the artifact's own. Give another file.")
    check_kept("--report", path, *kept)


def check_file(option, path):
    """Refuses a file that cannot be written.

    Args:
        option: that names the file.
        path: of the file.
    """
    if path.is_dir():
        raise Failure(f"{option} {path}: expected a file. Received: a folder.")
    if not path.parent.is_dir():  # also where ".." would lead out of it again
        raise Failure(f"{option} {path}: there is no folder {path.parent}.")
    stands = path.exists() and not path.is_file()  # a pipe or a device: written as such
    into = path if stands else path.resolve().parent
    if not (stands or into.is_dir()):  # a link may lead to one that is not there
        raise Failure(f"{option} {path}: there is no folder {into}.")
    if not os.access(into, os.W_OK):
        raise Failure(f"{option} {path}: {into} cannot be written to.")


def check_kept(option, path, *kept, known=()):
    """Refuses to replace a file that is read, or is one of a model's folder.

    Args:
        option: that names the file.
        path: of the file.
        *kept: files and folders, or names of presets, which are none; or `None`.
        known: names of files in such a folder that may be replaced.
    """
    if not path.exists():
        return
    file = path.resolve()
    for each in kept:
        other = Path(each).resolve() if each is not None else None
        own = other in file.parents and file.name not in known
        if file == other or own:
            what = f"is a file of {str(each)!r}" if own else "is read"
            raise Failure(f"{option} {path} {what}. Give another file.")


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
