"""The unit delay: what a decoder reads while it is taught."""

import keras

from kzoo import ops
from kzoo.layers.base import Configured


@keras.saving.register_keras_serializable("kzoo")
class ShiftRight(Configured):
    """y[j] -> y[j - 1]: the start token comes first, the last token is dropped.

    From a target it makes the decoder's input, so that every token is predicted from
    those before it (Vaswani et al., 2017, section 3.1: "offset by one position").

    Args:
        start_token_id: what stands at position 0.
    """

    def __init__(self, start_token_id, **kwargs):
        super().__init__(**kwargs)
        self.start_token_id = start_token_id

    def call(self, token_ids):
        """Int (B, T) to int (B, T)."""
        start = ops.full((ops.dim(token_ids, 0), 1), self.start_token_id, "int32")
        if not ops.is_onnx(token_ids):
            start = ops.cast(start, token_ids.dtype)
        return ops.slice_axis(ops.concatenate([start, token_ids], 1), None, -1, 1)
