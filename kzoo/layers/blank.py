"""Variables that take over numpy's memory: a file's weights are in memory once."""

import contextlib
import contextvars
import math
import mmap

import keras
import ml_dtypes  # noqa: F401  gives numpy the name bfloat16
import numpy as np

_blank = contextvars.ContextVar("blank_weights", default=False)


@contextlib.contextmanager
def blank_weights():
    """Inside, models begin with zeros: a file's weights are to follow."""
    token = _blank.set(True)
    try:
        yield
    finally:
        _blank.reset(token)


def are_blank():
    """Whether this is inside of `blank_weights`."""
    return _blank.get()


@keras.saving.register_keras_serializable("kzoo")
class Blank(keras.initializers.Zeros):
    """Zeros whose memory the system gives when something is first written to it."""

    def __call__(self, shape, dtype=None):
        """A tensor of zeros."""
        dtype = keras.backend.standardize_dtype(dtype)
        return _tensor_over(_zeros(shape, dtype))


def fill(variable, write):
    """Sets a variable to what a function writes, without a copy of it where it can be.

    Args:
        variable: a Keras variable.
        write: function of a numpy array of zeros like the variable, which it fills and
            does not keep.
    """
    array = _zeros(variable.shape, keras.backend.standardize_dtype(variable.dtype))
    write(array)
    if keras.backend.backend() == "torch":
        variable.value.data = _tensor_over(array)  # `assign` would copy it
    else:
        variable.assign(_tensor_over(array))


def _zeros(shape, dtype):
    """Zeros in pages of their own, of which none is in memory yet."""
    dtype = np.dtype(dtype)
    nbytes = max(1, math.prod(shape) * dtype.itemsize)
    try:
        memory = mmap.mmap(-1, nbytes, access=mmap.ACCESS_COPY)  # this process's alone
    except (OSError, OverflowError) as error:
        raise MemoryError(
            f"A weight of shape {tuple(shape)} needs {nbytes / 1e9:,.0f} GB of memory, "
            "and the system has not so much."
        ) from error
    return np.ndarray(tuple(shape), dtype, memory)


def _tensor_over(array):
    """A tensor over an array's memory, which nobody changes any more.

    `convert_to_tensor` copies an array, up to twice.
    """
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        return jax.device_put(array)
    if backend == "torch":
        import torch

        bits = array.view(np.int16) if array.dtype.kind == "V" else array
        tensor = torch.from_numpy(bits)
        tensor = tensor if bits is array else tensor.view(torch.bfloat16)
        return keras.ops.convert_to_tensor(tensor)  # on its device
    if backend != "tensorflow" or not array.nbytes:
        return keras.ops.convert_to_tensor(array)
    import tensorflow as tf

    with tf.init_scope():
        if array.dtype.kind != "V":  # as numpy has it for bfloat16
            return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
        bits = tf.experimental.dlpack.from_dlpack(array.view(np.uint16).__dlpack__())
        return tf.bitcast(bits, array.dtype)
