"""Whether buffers in loops grow, or are fixed, as XLA needs them."""

import contextlib
import contextvars

import keras

from kzoo.ops.onnx_value import is_building

_fixed = contextvars.ContextVar("fixed_buffers", default=None)


@contextlib.contextmanager
def fixed_buffers(fixed=True):
    """Inside, buffers have their full capacity from the start, as XLA needs."""
    token = _fixed.set(fixed)
    try:
        yield
    finally:
        _fixed.reset(token)


def buffers_grow():
    """Whether a buffer is as long as its content.

    So it is wherever shapes may change inside a loop: the content is then copied at its
    own length rather than at the buffer's capacity. JAX, and XLA under TensorFlow,
    compile for one shape and use fixed buffers.
    """
    if is_building():
        return True
    fixed = _fixed.get()
    return keras.backend.backend() != "jax" if fixed is None else not fixed
