"""The layers. Shapes everywhere: B batch, T query length, S key length, D hidden_dim,
N num_heads, K num_key_value_heads, H head_dim, F intermediate_dim, V vocabulary_size.
"""  # noqa: D205  the legend needs two lines

from kzoo.layers.attention import Attention
from kzoo.layers.base import (
    Dense,
    Dropout,
    Embedding,
    Layer,
    LayerNormalization,
    RMSNormalization,
    StdNormalization,
)
from kzoo.layers.block import Block
from kzoo.layers.feed_forward import FeedForward
from kzoo.layers.heads import LanguageModelHead
from kzoo.layers.positions import RelativeBias
from kzoo.layers.shift_right import ShiftRight

__all__ = [
    "Attention",
    "Block",
    "Dense",
    "Dropout",
    "Embedding",
    "FeedForward",
    "LanguageModelHead",
    "Layer",
    "LayerNormalization",
    "RMSNormalization",
    "RelativeBias",
    "ShiftRight",
    "StdNormalization",
]
