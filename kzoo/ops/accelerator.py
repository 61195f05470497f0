"""What differs where a GPU or TPU computes."""

import contextlib
import functools
import threading

import keras

from kzoo.ops.buffers import buffers_grow


def xla_is_on_cpu():
    """Whether XLA, of JAX or under TensorFlow, compiles for the CPU."""
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        return jax.default_backend() == "cpu"
    if backend == "tensorflow":
        import tensorflow as tf

        return {d.device_type for d in tf.config.list_physical_devices()} <= {"CPU"}
    return False


def settled(x):
    """x, with the same numbers for all that read it.

    XLA may compute a tensor once for each of its readers, and on a GPU round it
    otherwise each time: then even its largest element may be less than its maximum.
    """
    backend = keras.backend.backend()
    if backend == "jax" and not buffers_grow():
        import jax

        return jax.lax.optimization_barrier(x)
    if backend == "tensorflow" and not buffers_grow():  # then XLA compiles
        import tensorflow as tf
        from tensorflow.compiler.tf2xla.python import xla

        return x if tf.executing_eagerly() else xla.optimization_barrier(x)[0]
    return x


@contextlib.contextmanager
def full_float32():
    """Inside, what multiplies float32 matrices keeps all of their 24 bits.

    On a GPU, TensorFlow and JAX round them to the 11 bits of TF32, unasked, and torch
    where it is told to: right for training, too coarse to compare with. But for JAX the
    setting is the whole process's: blocks of several threads may overlap, and the last
    one gives it back.
    """
    if keras.backend.backend() == "jax":
        import jax

        # What is compiled outside is not used inside, and a CPU has no other products.
        exact = None if xla_is_on_cpu() else "highest"
        with jax.default_matmul_precision(exact):
            yield
        return
    with _LOCK:
        if not _give_back:
            _give_back[:] = [0, _set_full_float32()]
        _give_back[0] += 1
    try:
        yield
    finally:
        with _LOCK:
            _give_back[0] -= 1
            if not _give_back[0]:
                _give_back[1]()
                _give_back.clear()


_LOCK = threading.Lock()
_give_back = []  # how many blocks there are, and what gives the setting back


def _set_full_float32():
    """Changes the setting of TensorFlow or torch; returns what gives it back."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        config = tf.config.experimental
        before, exact = config.tensor_float_32_execution_enabled(), False
        change = config.enable_tensor_float_32_execution
    else:
        import torch

        exact, change = "highest", torch.set_float32_matmul_precision
        try:
            before = torch.get_float32_matmul_precision()
        except RuntimeError:  # it was set by the newer name, and is read by that alone
            settings = torch.backends.cuda.matmul
            before, exact = settings.fp32_precision, "ieee"
            change = functools.partial(setattr, settings, "fp32_precision")
    change(exact)
    return functools.partial(change, before)
