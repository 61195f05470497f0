"""Safetensors files of named weights: all of them, or adapters alone."""

import contextlib
import functools
from pathlib import Path

import keras

from kzoo.checkpoints import safetensors_file
from kzoo.checkpoints.stored import numpy_dtype


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


@contextlib.contextmanager
def open_safetensors(path):
    """The open file of `safetensors.safe_open`.

    Raises:
        FileNotFoundError: no such file.
        ValueError: it is damaged.
    """
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise FileNotFoundError(f"No weights at {path}.")
    try:
        with safe_open(path, "numpy") as file:
            yield file
    except SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from error


def check_shapes(file, expected, path, name, others=False):
    """Raises a `ValueError` that lists all that does not fit.

    Args:
        file: from `open_safetensors`.
        expected: name to shape.
        path: of the file, for the message.
        name: of the model, likewise.
        others: whether the file may hold more.
    """
    found = {
        key: tuple(file.get_slice(key).get_shape())
        for key in file.keys()  # noqa: SIM118  not a dict
    }
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
