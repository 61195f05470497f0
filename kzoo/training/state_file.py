"""Files of a training's variables: complete or not there, read without running code.

A file is a zip of `.npy` entries, `0.npy` and on, in the order of the variables, and
`meta.json`. Order and shapes identify a variable: its path has counters that differ
from one process to the next. No pickle: reading it runs no code.
"""

import json
import os
import zipfile
from contextlib import contextmanager

import keras
import numpy as np
from numpy.lib import format as npy_format

from kzoo.files import make_folder, replacing


def _described(variables):
    return [
        [v.path, list(v.shape), keras.backend.standardize_dtype(v.dtype)]
        for v in variables
    ]


def stored_dtype(variable):
    """The dtype in the file: .npy has no bfloat16."""
    dtype = keras.backend.standardize_dtype(variable.dtype)
    return "float32" if dtype == "bfloat16" else dtype


def _alike(there, here):
    """Whether two descriptions are of one variable.

    Counters and seeds are integers of a backend's own kind.
    """
    counts = ("int32", "int64", "uint32")
    kinds = {"int" if each[2] in counts else each[2] for each in (there, here)}
    return there[1] == here[1] and len(kinds) == 1


def write_variables(path, variables, meta):
    """Writes the file beside `path`, one variable in memory at a time, and renames."""
    make_folder(path.parent)
    meta = {**meta, "variables": _described(variables)}
    with replacing(path) as partial, partial.open("wb") as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr("meta.json", json.dumps(meta))
            for i, variable in enumerate(variables):
                array = keras.ops.convert_to_numpy(variable.value)
                array = array.astype(stored_dtype(variable), copy=False)
                with archive.open(f"{i}.npy", "w", force_zip64=True) as entry:
                    npy_format.write_array(entry, np.asarray(array), allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())  # the data before the name


@contextmanager
def open_variables(path):
    """Gives the file's meta and a function from an index to its array."""
    try:
        with zipfile.ZipFile(path) as archive:

            def read(i):
                with archive.open(f"{i}.npy") as entry:
                    return npy_format.read_array(entry, allow_pickle=False)

            yield json.loads(archive.read("meta.json")), read
    except (zipfile.BadZipFile, KeyError, EOFError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{path} is damaged ({error}). Remove it to start from the beginning."
        ) from error


def check_fits(path, meta, variables, stateful=()):
    """Raises `ValueError` when the file is of another model or optimizer."""
    saved, present = meta["variables"], _described(variables)
    problem = None
    if len(saved) != len(present):
        problem = f"it has {len(saved)} variables, the training has {len(present)}"
    for there, here in zip(saved, present, strict=False):
        if problem is None and not _alike(there, here):
            problem = f"it has {there}, the training has {here}"
    if problem is None and set(stateful) != set(meta.get("stateful", ())):
        problem = (
            f"it has the state of {sorted(meta.get('stateful', ()))}, the callback "
            f"has stateful={sorted(stateful)}"
        )
    refuse(path, problem)


def refuse(path, problem):
    """Raises `ValueError` where there is a problem: the file is another training's."""
    if problem:
        raise ValueError(
            f"{path} was written by another training: {problem}. Give another path, "
            "or remove the file to start from the beginning."
        )
