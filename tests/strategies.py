"""Hypothesis draws configs over all fields, small enough to run.

The width and the inner width are fixed, so that a backend which compiles for shapes
meets few of them.
"""

from typing import get_args, get_type_hints

import keras
from hypothesis import strategies as st

from kzoo.config import (
    Activation,
    Architecture,
    Initializer,
    ModelConfig,
    Norm,
    NormPosition,
    Positions,
    RopeScaling,
    Similarity,
    SinusoidalLayout,
    StackConfig,
)

HIDDEN_DIM, INTERMEDIATE_DIM, VOCABULARY_SIZE = 24, 40, 19
COMPILES = keras.backend.backend() == "jax"  # every op, for every shape


def few(count):
    """How many configs a test draws; each takes long where ops are compiled."""
    return max(2, count // 4) if COMPILES else count


def few_of(items):
    """Which of some like cases a test has; some, where ops are compiled."""
    return list(items)[:: 5 if COMPILES else 1]


rates = st.sampled_from([0.0, 0.1, 0.5])


def rope_scalings(draw):
    """Any kind, so that a few positions are stretched, too."""
    kind = draw(st.sampled_from([None, *get_args(get_type_hints(RopeScaling)["kind"])]))
    if kind is None:
        return None
    if kind == "linear":
        return RopeScaling(kind=kind, factor=2.0)
    if kind == "bands":
        return RopeScaling(
            kind=kind,
            factor=draw(st.sampled_from([4.0, 8.0])),
            original_length=draw(st.sampled_from([16, 40])),
            low_frequency_factor=draw(st.sampled_from([0.5, 1.0])),
        )
    return RopeScaling(
        kind=kind,
        factor=4.0,
        original_length=draw(st.sampled_from([64, 512])),
        beta_fast=draw(st.sampled_from([8.0, 32.0])),
        attention_factor=draw(st.sampled_from([None, 1.3])),
        truncate=draw(st.booleans()),
    )


def stack_fields(draw, *, causal, cross_attention, reads_as=None):
    """A value for every field of a `StackConfig`; it reads the ids of another one."""

    def drawn(name, values):
        return (
            draw(st.sampled_from(values)) if not reads_as else getattr(reads_as, name)
        )

    key_value_heads = draw(st.sampled_from([1, 2]))
    heads = key_value_heads * draw(st.sampled_from([1, 2, 3]))
    positions = drawn("positions", get_args(Positions))
    rotary_dim = draw(st.sampled_from([None, 2, 4])) if positions == "rotary" else None
    even = positions == "rotary" and not rotary_dim
    head_dims = [None, 4, 10] if even else [None, 4, 7]
    similarity = draw(
        st.sampled_from(
            ["scaled_dot", "dot"] if positions == "rotary" else get_args(Similarity)
        )
    )
    norm = draw(st.sampled_from(get_args(Norm)))
    norm_position = draw(st.sampled_from(get_args(NormPosition)))
    num_layers = draw(st.integers(1, 2))
    layer_groups = draw(st.sampled_from([None, None, 1]))
    pre = norm_position == "pre"
    window = draw(st.sampled_from([None, 1, 3]))
    return dict(
        vocabulary_size=VOCABULARY_SIZE,
        num_layers=num_layers,
        hidden_dim=HIDDEN_DIM,
        embedding_dim=draw(st.sampled_from([None, None, 8, HIDDEN_DIM])),
        layer_groups=layer_groups,
        num_heads=heads,
        intermediate_dim=INTERMEDIATE_DIM,
        num_key_value_heads=key_value_heads,
        head_dim=draw(st.sampled_from(head_dims)),
        max_sequence_length=drawn("max_sequence_length", [9, 30]),
        positions=positions,
        first_position=draw(st.sampled_from([0, 2])),
        sinusoidal_layout=draw(st.sampled_from(get_args(SinusoidalLayout))),
        rope_max_wavelength=draw(st.sampled_from([10_000.0, 100.0])),
        rope_scaling=rope_scalings(draw) if positions == "rotary" else None,
        window_rope_max_wavelength=draw(st.sampled_from([None, 50.0]))
        if positions == "rotary" and window
        else None,
        rotary_dim=rotary_dim,
        relative_buckets=draw(st.sampled_from([4, 6, 32])),
        relative_max_distance=draw(st.sampled_from([17, 128])),
        num_segments=drawn("num_segments", [0, 2]),
        norm=norm,
        norm_bias=norm != "layer_norm" or draw(st.booleans()),
        norm_position=norm_position,
        first_norm=not pre or bool(layer_groups) or draw(st.booleans()),
        parallel_residual=pre and not cross_attention and draw(st.booleans()),
        norm_epsilon=draw(st.sampled_from([1e-6, 1e-5, 1e-3])),
        final_norm=draw(st.sampled_from([None, False, True])),
        embedding_norm=draw(st.booleans()),
        embedding_scale=draw(st.sampled_from([1.0, 0.5, HIDDEN_DIM**0.5])),
        feed_forward=draw(st.sampled_from(["plain", "gated"])),
        activation=draw(st.sampled_from(get_args(Activation))),
        use_bias=draw(st.booleans()),
        attention_bias=draw(st.sampled_from([None, False, True])),
        attention_output_bias=draw(st.sampled_from([None, False, True])),
        similarity=similarity,
        attention_scale=draw(st.sampled_from([None, 0.3, 0.1]))
        if similarity == "scaled_dot"
        else None,
        attention_soft_cap=draw(st.sampled_from([None, 2.0]))
        if similarity == "scaled_dot"
        else None,
        attention_window=window,
        windowed_layers=draw(st.sampled_from([None, (), (0,)])) if window else None,
        query_key_norm=draw(st.booleans()),
        dropout=draw(rates),
        attention_dropout=draw(rates),
        feed_forward_dropout=draw(rates),
        causal=causal,
        cross_attention=cross_attention,
        initializer=draw(st.sampled_from(get_args(Initializer))),
        initializer_range=draw(st.sampled_from([0.02, 0.1])),
    )


def model_fields(draw):
    """A value for every field of a `ModelConfig`."""
    architecture = draw(st.sampled_from(get_args(Architecture)))
    both = architecture == "encoder_decoder"
    stack = {"encoder": None, "decoder": None}
    alike = both and draw(st.booleans())
    for name in stack if both else [architecture]:
        decoder = name == "decoder"
        fields = stack_fields(
            draw,
            causal=decoder,
            cross_attention=decoder and both,
            reads_as=stack["encoder"] if alike else None,
        )
        stack[name] = StackConfig(**fields)
    pad, start, end = draw(st.sampled_from([(0, 1, 2), (3, 3, 5), (18, 0, 4)]))
    return dict(
        **stack,
        share_embeddings=both
        and stack["encoder"].embedding_width == stack["decoder"].embedding_width
        and draw(st.booleans()),
        tie_head=not (stack["decoder"] or stack["encoder"]).embedding_dim
        and draw(st.booleans()),
        head_soft_cap=draw(st.sampled_from([None, 5.0])),
        head_bias=draw(st.booleans()),
        head_scale=draw(st.sampled_from([1.0, HIDDEN_DIM**-0.5])),
        pad_token_id=pad,
        start_token_id=start,
        end_token_id=end,
        mask_token_id=draw(st.sampled_from([None, 7])),
    )


@st.composite
def stack_configs(draw, causal=False, cross_attention=False):
    """Any possible `StackConfig`."""
    return StackConfig(
        **stack_fields(draw, causal=causal, cross_attention=cross_attention)
    )


@st.composite
def model_configs(draw):
    """Any possible `ModelConfig`."""
    return ModelConfig(**model_fields(draw))
