"""A function of tensors, compiled once a shape on the backend in use."""

import functools

import keras

from kzoo import ops
from kzoo.layers.lora import merged_matrices
from kzoo.models.turns import reading


class CompiledFunction:
    """Calls `function(model's weights, *arrays)` compiled, where the backend compiles.

    TensorFlow makes one graph for all shapes, which XLA compiles for each inside
    `ops.fixed_buffers()`; JAX compiles for each shape; torch runs eagerly.

    Args:
        model: whose weights the function reads.
        function: of tensors, to a structure of tensors.
        signature: (shape, dtype) of every argument, `None` for a free axis; or `None`
            for arguments that are structures of tensors, see `tensors`.

    Attributes:
        traces: how often the function was traced.
    """

    def __init__(self, model, function, signature):
        self.model, self.function, self.signature = model, function, signature
        self.traces = 0
        self._run = getattr(self, f"_{keras.backend.backend()}", self._eager)()

    def __call__(self, *arrays):
        """The result, as numpy arrays."""
        arrays = [
            keras.ops.convert_to_tensor(array, dtype)
            for array, (_, dtype) in zip(arrays, self.signature, strict=True)
        ]
        return keras.tree.map_structure(keras.ops.convert_to_numpy, self._run(*arrays))

    def tensors(self, *structures):
        """The result for structures of tensors, left where it was computed."""
        return self._run(*structures)

    def _traced(self, *tensors):
        self.traces += 1
        return self.function(*tensors)

    def _eager(self):
        return self._traced

    def _torch(self):
        import torch

        def run(*tensors):
            with torch.no_grad():
                return self._traced(*tensors)

        return run

    def _tensorflow(self):
        import tensorflow as tf

        # TensorFlow counts traces by a function's code, and would warn of all of these
        # as of one that is traced too often; a partial has no code.
        traced = functools.partial(self._traced)
        how = dict(autograph=False, jit_compile=not ops.buffers_grow())
        if self.signature is None:
            return tf.function(traced, reduce_retracing=True, **how)
        specs = [tf.TensorSpec(shape, dtype) for shape, dtype in self.signature]
        return tf.function(traced, input_signature=specs, **how)

    def _jax(self):
        import jax

        def variables():  # what is none of them becomes a constant of the program
            return [*self.model.variables, *merged_matrices()]

        def pure(values, *tensors):
            mapping = zip(variables(), values, strict=True)
            with keras.StatelessScope(state_mapping=list(mapping)):
                return self._traced(*tensors)

        compiled = jax.jit(pure)

        def run(*tensors):
            with reading(self.model):
                return compiled([v.value for v in variables()], *tensors)

        return run


def shape_bucket(size):
    """The size that a batch or a length is padded to before it is compiled for.

    For XLA the next of 1, 2, 4, 8, 12, 16, 24, 32, 48, ...: at most half is padding and
    few sizes are compiled. Elsewhere shapes are free and nothing is padded.
    """
    if ops.buffers_grow():
        return size
    bucket = 1
    while bucket < size:
        if bucket >= 8 and size <= bucket * 3 // 2:
            return bucket * 3 // 2
        bucket *= 2
    return bucket
