"""From the states of a sequence to one vector."""

from typing import Literal, get_args

import keras

from kzoo import ops
from kzoo.arguments import check_choice
from kzoo.layers.base import Configured

PoolingKind = Literal["cls", "last", "mean", "max"]


@keras.saving.register_keras_serializable("kzoo")
class Pooling(Configured):
    """One vector of each sequence, whatever padding stands around its tokens.

    Papers: Devlin et al., 2019, https://arxiv.org/abs/1810.04805, section 3 (the first
    token, "[CLS]"); Reimers and Gurevych, 2019, https://arxiv.org/abs/1908.10084,
    section 3 (mean and maximum).

    Args:
        kind: `"cls"`, the first real token; `"last"`, the last one; `"mean"`; or
            `"max"`, over every dimension by itself.

    Raises:
        ValueError: an unknown kind.
    """

    def __init__(self, kind="mean", **kwargs):
        super().__init__(**kwargs)
        check_choice("Pooling.kind", kind, get_args(PoolingKind))
        self.kind = kind
        self.built = True  # there is nothing to build

    def call(self, x, padding_mask):
        """Pools.

        Args:
            x: float (B, T, D).
            padding_mask: bool (B, T), `True` at real tokens.

        Returns:
            float (B, D); zeros where no token is real.
        """
        if self.kind == "max":
            real = ops.expand_dims(padding_mask, -1)
            lowest = -3e4 if "16" in str(x.dtype) else -1e30  # no overflow
            highest = ops.max(ops.where(real, x, lowest), axis=1)
            return ops.where(ops.any(real, axis=1), highest, 0.0)
        weights = ops.expand_dims(ops.cast(self._weights(padding_mask), x.dtype), 1)
        return ops.reshape(ops.matmul(weights, x), (-1, x.shape[-1]))

    def _weights(self, mask):
        """What each token counts, float32 (B, T); a row sums to 1."""
        real = ops.cast(mask, "int32")
        count = ops.sum(real, axis=1, keepdims=True)
        if self.kind == "mean":
            return ops.cast(real, "float32") / ops.cast(
                ops.maximum(count, 1), "float32"
            )
        number = ops.cumsum(real, axis=1)
        return mask & ops.equal(number, 1 if self.kind == "cls" else count)
