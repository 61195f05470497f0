"""An artifact's files: which there are, and what its report says of them."""

import contextlib
import json
import os

from kzoo.exporters import onnx
from kzoo.exporters.errors import ExportError
from kzoo.files import sha256

REPORT, SAVED_MODEL = "report.json", "saved_model.pb"
# What holds a model itself; of variables TensorFlow knows when bits change.
_HASHED = ("*.onnx", onnx.WEIGHTS, SAVED_MODEL)


def is_file_name(path):
    """Whether a path names a single file, and no folder."""
    return path.suffix.lower() == ".onnx"


def sizes(path):
    """Name to bytes of the files of an artifact, a folder's or a file's."""
    folder, files = path, sorted(path.rglob("*"))
    if path.is_file():
        folder, files = path.parent, [path, path.with_suffix(onnx.BESIDE)]
    return {
        str(file.relative_to(folder)): file.stat().st_size
        for file in files
        if os.path.isfile(file) and file.name != REPORT  # False for a name too long
    }


def said_of(folder):
    """The report of an export to a folder, as a dict; empty where there is none."""
    file = folder / REPORT
    if not file.is_file():
        return {}
    with contextlib.suppress(ValueError):
        said = json.loads(file.read_text(encoding="utf-8"))
        parts = ("files", "functions", "sha256")
        whole = isinstance(said, dict) and {"files", "functions"} <= set(said)
        if whole and all(isinstance(said.get(part, {}), dict) for part in parts):
            return said
    raise ExportError(
        f"{file} was cut short, or is no report of kzoo. Export the model again, to a "
        "new folder."
    )


def hashes(folder):
    """Name to hexadecimal SHA-256 of the files that hold a folder's model."""
    names = (*_HASHED, "assets/*") if (folder / SAVED_MODEL).is_file() else _HASHED
    files = sorted(f for each in names for f in folder.glob(each) if f.is_file())
    return {file.relative_to(folder).as_posix(): sha256(file) for file in files}
