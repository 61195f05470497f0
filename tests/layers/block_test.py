"""Blocks and whole stacks by themselves: saving, graphs, and every export."""

import numpy as np
import pytest

from kzoo.config import StackConfig
from kzoo.layers import Block
from kzoo.models import Decoder, Encoder
from tests.harness import Wrapper, check_exports, check_layer, padding, perturb

B, T, S, D, M = 2, 5, 4, 16, 12
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(B, T, D)).astype("float32")
MEMORY = RANDOM.normal(size=(B, S, M)).astype("float32")
PADDED = padding([5, 3], T)[:, None, None]
MEMORY_PADDED = padding([0, 3], S)[:, None, None]
IDS = RANDOM.integers(0, 23, (3, T), dtype="int32")
MODERN = dict(
    norm="rms_norm",
    feed_forward="gated",
    activation="silu",
    use_bias=False,
    num_key_value_heads=2,
)


def config(**changes):
    return StackConfig(
        **{
            "vocabulary_size": 23,
            "num_layers": 1,
            "hidden_dim": D,
            "num_heads": 4,
            "intermediate_dim": 24,
            "relative_buckets": 8,
            "relative_max_distance": 6,
            **changes,
        }
    )


@pytest.mark.parametrize(
    "changes", [dict(norm_position="post"), MODERN], ids=["classic", "modern"]
)
def test_a_block_is_a_layer(changes, tmp_path):
    check_layer(
        lambda **kw: Block(config(**changes), **kw),
        dict(x=X, attention_mask=PADDED),
        ((B, T, D), [], []),
        tmp_path,
        [(None, None, D)],
    )


def test_a_block_with_cross_attention_is_a_layer(tmp_path):
    check_layer(
        lambda **kw: Block(config(causal=True, cross_attention=True), **kw),
        dict(
            x=X,
            attention_mask=PADDED,
            memory=MEMORY,
            cross_attention_mask=MEMORY_PADDED,
        ),
        ((B, T, D), [(B, 4, T, T)], [(B, 4, T, S)]),
        tmp_path,
        [(None, None, D), (None, None, M)],
        options=dict(return_weights=True),
    )


@pytest.mark.parametrize(
    ("kind", "positions"),
    [
        (Encoder, "none"),
        (Encoder, "learned"),
        (Decoder, "sinusoidal"),
        (Decoder, "rotary"),
        (Encoder, "relative"),
        (Decoder, "relative"),
        (Decoder, "alibi"),
    ],
)
def test_a_stack_is_exported_with_every_kind_of_positions(kind, positions, tmp_path):
    changes = MODERN if kind is Decoder else dict(embedding_norm=True)
    stack = kind(config(positions=positions, causal=kind is Decoder, **changes))
    model = Wrapper(stack)
    perturb(model.weights)
    inputs = dict(token_ids=IDS, padding_mask=padding([5, 3, 0], T, "left"))
    check_exports(model, inputs, tmp_path)


def test_a_stack_is_exported_with_weights_and_memory(tmp_path):
    stack = Decoder(config(causal=True, cross_attention=True), memory_dim=M)
    model = Wrapper(stack, options=dict(return_weights=True))
    perturb(model.weights)
    check_exports(
        model,
        dict(token_ids=IDS[:B], memory=MEMORY, memory_padding_mask=padding([0, 3], S)),
        tmp_path,
    )
