"""Blocks and whole stacks by themselves: saving, graphs, and every export."""

import keras
import numpy as np
import pytest

from kzoo import ops
from kzoo.config import StackConfig
from kzoo.layers import Attention, Block, FeedForward
from kzoo.models import Decoder, Encoder
from tests.harness import (
    MODERN,
    Wrapper,
    check_exports,
    check_layer,
    difference,
    padding,
    perturb,
    to_numpy,
)

B, T, S, D, M = 2, 5, 4, 16, 12
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(B, T, D)).astype("float32")
MEMORY = RANDOM.normal(size=(B, S, M)).astype("float32")
PADDED = padding([5, 3], T)[:, None, None]
MEMORY_PADDED = padding([0, 3], S)[:, None, None]
IDS = RANDOM.integers(0, 23, (3, T), dtype="int32")


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


OPTIONS = {
    "window": (Encoder, dict(attention_window=2, num_segments=2, norm="std_norm")),
    "causal_window": (
        Decoder,
        dict(attention_window=2, positions="rotary", rotary_dim=2, query_key_norm=True),
    ),
    "similarity": (
        Decoder,
        dict(similarity="additive_tanh", num_key_value_heads=2, attention_bias=False),
    ),
}


@keras.saving.register_keras_serializable("tests")
class InSteps(keras.Model):
    """A decoder that reads all tokens but one, then that one, through a cache."""

    def __init__(self, stack, **kwargs):
        super().__init__(**kwargs)
        self.stack = stack
        stack.build()
        self.built = True

    def build(self, *_):
        pass

    def call(self, inputs):
        ids, mask = inputs["token_ids"], inputs["padding_mask"]
        cache = self.stack.empty_cache(ops.dim(ids, 0), 8)
        length = ops.dim(ids, 1)
        head = ops.slice_axis(mask, None, -1, 1)
        if not ops.buffers_grow():  # a mask for the whole capacity
            rest = ops.full((ops.dim(ids, 0), 8 - length), True, "bool")
            mask = ops.concatenate([mask, rest], 1)
            head = ops.concatenate([head, rest, rest[:, :1]], 1)
        first, cache = self.stack(
            ops.slice_axis(ids, None, -1, 1), padding_mask=head, cache=cache
        )
        last, _ = self.stack(
            ops.slice_axis(ids, -1, None, 1),
            padding_mask=mask,
            cache=cache,
            index=length - 1,
        )
        return ops.concatenate([first, last], 1)


@pytest.mark.parametrize("option", OPTIONS)
def test_a_stack_is_exported_with_every_option(option, tmp_path):
    kind, changes = OPTIONS[option]
    stack = kind(config(causal=kind is Decoder, **changes))
    model = Wrapper(stack) if kind is Encoder else InSteps(stack)
    perturb(model.weights)
    inputs = dict(token_ids=IDS, padding_mask=padding([5, 3, 2], T, "left"))
    if kind is Encoder:
        inputs["segment_ids"] = IDS % 2
    else:
        got, full = model(inputs), stack(**inputs)
        real = inputs["padding_mask"]
        assert difference(to_numpy(got)[real], to_numpy(full)[real]) <= 1e-5
    check_exports(model, inputs, tmp_path)


def test_a_block_is_a_predictor_and_a_decoder():
    block = Block(config(causal=True, cross_attention=True))
    block.build((None, None, D), (None, None, M))
    perturb(block.weights)
    hidden, own, cross = block.predictor(
        ops.cast(X, "float32"),
        own=dict(attention_mask=PADDED),
        cross=dict(memory=MEMORY, attention_mask=MEMORY_PADDED, return_weights=True),
    )
    expected, *_ = block(
        X, attention_mask=PADDED, memory=MEMORY, cross_attention_mask=MEMORY_PADDED
    )
    assert difference(to_numpy(block.decoder(hidden)), to_numpy(expected)) == 0
    assert own == [] and cross[0].shape == (B, 4, T, S)
    # The decoder is position-wise: a position alone gives the same.
    alone = to_numpy(block.decoder(hidden[:, 2:3]))
    np.testing.assert_allclose(alone, to_numpy(expected)[:, 2:3], atol=1e-6)


def test_a_stack_is_exported_with_weights_and_memory(tmp_path):
    stack = Decoder(config(causal=True, cross_attention=True), memory_dim=M)
    model = Wrapper(stack, options=dict(return_weights=True))
    perturb(model.weights)
    check_exports(
        model,
        dict(token_ids=IDS[:B], memory=MEMORY, memory_padding_mask=padding([0, 3], S)),
        tmp_path,
    )


def test_a_block_stands_in_a_functional_model():
    config = StackConfig(vocabulary_size=9, hidden_dim=D, num_heads=2)
    inputs = keras.Input((None, D))
    states, *_ = Block(config)(inputs)
    model = keras.Model(inputs, states)
    assert model(X).shape == X.shape and len(model.weights) == 16


@pytest.mark.parametrize(
    "layer",
    [
        lambda: FeedForward(D, 32),
        lambda: Attention(D, 4),
    ],
    ids=["feed_forward", "attention"],
)
def test_layers_stand_in_wrappers_of_a_functional_model(layer):
    layer = layer()
    inputs = keras.Input((3, 5, M))
    model = keras.Model(inputs, keras.layers.TimeDistributed(layer)(inputs))
    assert model.output_shape == (None, 3, 5, D)
    x = RANDOM.normal(size=(2, 3, 5, M)).astype("float32")
    found = to_numpy(model(x))
    for i in range(3):
        np.testing.assert_allclose(found[:, i], to_numpy(layer(x[:, i])), atol=1e-5)


def test_a_summary_has_layers_within_layers(capsys):
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.attention = Attention(D, 4)
            self.encoder = Encoder(config())

        def call(self, ids):
            x = self.encoder(ids)
            return self.attention(x, x)

    model = Model()
    model(IDS)
    model.summary(expand_nested=True, line_length=120)
    assert "attention" in capsys.readouterr().out
