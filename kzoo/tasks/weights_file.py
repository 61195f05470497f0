"""Safetensors files of named weights: all of them, or adapters alone."""

import functools
from pathlib import Path

import keras

from kzoo.checkpoints import safetensors_file
from kzoo.checkpoints.stored import copy, numpy_dtype
from kzoo.layers.blank import fill


def write_safetensors(path, variables, metadata=None):
    """Writes variables by name, float as they are; beside `path`, then renamed.

    Args:
        path: the file; its folder is made.
        variables: name to variable.
        metadata: dict of strings that the file also holds.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {name: stored(variable) for name, variable in variables.items()}
    partial = path.with_name(path.name + ".partial")
    try:
        safetensors_file.write(partial, tensors, metadata or {})
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def stored(variable):
    """A variable as files take it: shape, dtype, a function that gives the array."""
    name = keras.backend.standardize_dtype(variable.dtype)
    dtype = numpy_dtype(name)
    return (
        tuple(variable.shape),
        dtype,
        functools.partial(keras.ops.convert_to_numpy, variable),
    )


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
    if missing or unknown or shapes:
        raise ValueError(
            f"{path} does not fit {name}. Missing: {missing}. Unknown: {unknown}. "
            f"Other shapes: {shapes}."
        )
