"""What differs where a GPU or TPU computes."""

import contextlib

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

        return not tf.config.list_physical_devices("GPU")
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
    setting is the whole process's.
    """
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        # What is compiled outside is not used inside, and a CPU has no other products.
        exact = None if xla_is_on_cpu() else "highest"
        with jax.default_matmul_precision(exact):
            yield
        return
    if backend == "tensorflow":
        import tensorflow as tf

        before = tf.config.experimental.tensor_float_32_execution_enabled()
        exact, change = False, tf.config.experimental.enable_tensor_float_32_execution
    else:
        import torch

        before = torch.get_float32_matmul_precision()
        exact, change = "highest", torch.set_float32_matmul_precision
    change(exact)
    try:
        yield
    finally:
        change(before)
