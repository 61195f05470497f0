"""Safetensors files of named weights: all of them, or adapters alone."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np

from kzoo.checkpoints import safetensors_file
from kzoo.checkpoints.stored import copy, numpy_dtype
from kzoo.files import make_folder, replacing
from kzoo.layers.blank import fill

DTYPES = ("float32", "float16", "bfloat16")


def write_safetensors(path, variables, metadata=None, dtype=None):
    """Writes variables by name; beside `path`, then renamed.

    Args:
        path: the file; its folder is made.
        variables: name to variable.
        metadata: dict of strings that the file also holds.
        dtype: one of `DTYPES`, to which floats are rounded; by default they stay as
            they are.

    Raises:
        ValueError: another dtype, or a weight is too large for it; nothing is written.
    """
    if dtype not in (None, *DTYPES):
        raise ValueError(f"dtype must be None or one of {DTYPES}. Received: {dtype!r}.")
    path = Path(path)
    make_folder(path.parent)
    tensors = {name: stored(variable) for name, variable in variables.items()}
    if dtype is not None:
        tensors = {
            name: _rounded(name, tensor, numpy_dtype(dtype))
            for name, tensor in tensors.items()
        }
    with replacing(path) as partial:
        safetensors_file.write(partial, tensors, metadata or {})


def _rounded(name, tensor, dtype):
    """A tensor of `stored` in another float dtype."""

    def rounded():
        array = tensor.read()
        with np.errstate(over="ignore"):
            result = array.astype(dtype)
        if not np.array_equal(np.isfinite(result), np.isfinite(array)):
            raise ValueError(
                f"The weight {name} is too large for {dtype}. Received: values up to "
                f"{np.abs(array).max():.3g}. Save it with dtype='float32'."
            )
        return result

    is_float = tensor.dtype.name in DTYPES or tensor.dtype.kind == "f"
    return Stored(tensor.shape, dtype, rounded) if is_float else tensor


class Stored(NamedTuple):
    """A variable as files take it; `read` gives the array."""

    shape: tuple
    dtype: np.dtype
    read: Callable


def stored(variable):
    """A variable as files take it."""
    dtype = numpy_dtype(keras.backend.standardize_dtype(variable.dtype))
    read = functools.partial(keras.ops.convert_to_numpy, variable)
    return Stored(tuple(variable.shape), dtype, read)


def read_into(variable, file, name, fill=fill):
    """Sets a variable to a tensor of `kzoo.checkpoints.files.TensorFiles`."""
    fill(variable, functools.partial(copy, file.read(name)))


def check_shapes(file, expected, path, name, others=False):
    """Raises a `ValueError` that lists all that does not fit.

    Args:
        file: `kzoo.checkpoints.files.TensorFiles`.
        expected: name to shape.
        path: of the file, for the message.
        name: of the model, likewise.
        others: whether the file may hold more.
    """
    found = {key: file.shape(key) for key in file}
    missing = sorted(set(expected) - set(found))
    unknown = [] if others else sorted(set(found) - set(expected))
    shapes = [
        f"{key}: {found[key]}, expected {tuple(expected[key])}"
        for key in sorted(set(expected) & set(found))
        if found[key] != tuple(expected[key])
    ]
    kinds = {key: str(file.dtype(key)) for key in sorted(set(expected) & set(found))}
    kinds = {key: kind for key, kind in kinds.items() if "float" not in kind}
    if missing or unknown or shapes or kinds:
        raise ValueError(
            f"{path} does not fit {name}. Missing: {missing}. Unknown: {unknown}. "
            f"Other shapes: {shapes}." + f" No floats: {kinds}." * bool(kinds)
        )
