"""Attention: by hand, masked, biased, grouped, rotated; its weights and its dropout."""

import itertools

import keras
import numpy as np
import pytest

from kzoo.layers import Attention
from kzoo.layers.positions import rotary_angles
from kzoo.ops.onnx_graph import DEFAULT_OPSET, PORTABLE_OPSET
from tests.harness import (
    Wrapper,
    check_layer,
    difference,
    gradients,
    onnx_form,
    perturb,
    to_numpy,
)
from tests.reference import masked_softmax, rotate

B, T, S, D, M = 2, 5, 4, 12, 10
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(B, T, D)).astype("float32")
MEMORY = RANDOM.normal(size=(B, S, M)).astype("float32")
SELF_MASK = RANDOM.random((B, 1, T, T)) < 0.7
CROSS_MASK = np.array([[1, 1, 0, 1], [0, 1, 0, 0]], bool)[:, None, None]
BIAS = RANDOM.normal(size=(1, 4, T, T)).astype("float32")
HEADS = {"multi_head": 4, "grouped_query": 2, "multi_query": 1}


def built(memory_dim=None, **options):
    layer = Attention(D, 4, name="attention", **options)
    layer.build((None, None, D), memory_dim and (None, None, memory_dim))
    perturb(layer.weights)
    return layer


def by_formula(layer, query, memory, mask=None, bias=0.0, rotation_base=None):
    """Equations 1 and 2 of Vaswani et al. (2017), head by head, in float64."""
    kernels = {w.path.split("/", 1)[1]: to_numpy(w.value) for w in layer.weights}

    def project(name, x, heads):
        y = x.astype("float64") @ kernels[f"{name}/kernel"]
        if layer.use_bias:
            y = y + kernels[f"{name}/bias"]
        return y.reshape(*x.shape[:2], heads, layer.head_dim)

    q = project("query", query, layer.num_heads)
    k = project("key", memory, layer.num_key_value_heads)
    v = project("value", memory, layer.num_key_value_heads)
    if rotation_base:
        positions = np.tile(np.arange(query.shape[1]), (len(query), 1))
        q, k = (rotate(x, positions, rotation_base) for x in (q, k))
    group = layer.num_heads // layer.num_key_value_heads
    shape = (len(query), layer.num_heads, query.shape[1], memory.shape[1])
    mask = np.broadcast_to(True if mask is None else mask, shape)
    bias = np.broadcast_to(bias, shape)
    heads, weights = [], np.zeros(shape)
    for n in range(layer.num_heads):
        scores = q[:, :, n] @ k[:, :, n // group].transpose(0, 2, 1) * layer.scale
        weights[:, n] = masked_softmax(scores + bias[:, n], mask[:, n])
        heads.append(weights[:, n] @ v[:, :, n // group])
    output = np.concatenate(heads, axis=-1) @ kernels["output/kernel"]
    if layer.use_bias:
        output = output + kernels["output/bias"]
    return output, weights


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("heads", HEADS)
def test_self_attention_equals_the_formula(heads, use_bias):
    layer = built(num_key_value_heads=HEADS[heads], use_bias=use_bias)
    got = layer(X, attention_mask=SELF_MASK, bias=BIAS)
    expected, _ = by_formula(layer, X, X, SELF_MASK, BIAS)
    assert difference(to_numpy(got), expected) <= 1e-6


@pytest.mark.parametrize("heads", HEADS)
def test_cross_attention_equals_the_formula(heads):
    layer = built(memory_dim=M, num_key_value_heads=HEADS[heads], head_dim=5, scale=0.4)
    expected, expected_weights = by_formula(layer, X, MEMORY, CROSS_MASK)
    got, weights = layer(
        X, memory=MEMORY, attention_mask=CROSS_MASK, return_weights=True
    )
    assert difference(to_numpy(got), expected) <= 1e-6
    assert difference(to_numpy(weights), expected_weights) <= 1e-6
    got = layer(X, projected=layer.project_memory(MEMORY), attention_mask=CROSS_MASK)
    assert difference(to_numpy(got), expected) <= 1e-6


def test_memory_may_be_projected_first():
    layer = Attention(D, 4, name="first")
    projected = layer.project_memory(MEMORY)
    got = layer(X, projected=projected, attention_mask=CROSS_MASK)
    expected = layer(X, memory=MEMORY, attention_mask=CROSS_MASK)
    assert difference(to_numpy(got), to_numpy(expected)) <= 1e-6
    assert {w.path.split("/")[0] for w in layer.weights} == {"first"}


def test_rotary_attention_equals_the_formula():
    layer = built(num_key_value_heads=2, head_dim=6)
    rotation = rotary_angles(np.arange(T, dtype="int32"), 6, 100.0, T)
    got = layer(X, rotation=rotation)
    expected, _ = by_formula(layer, X, X, rotation_base=100.0)
    assert difference(to_numpy(got), expected) <= 1e-6


def test_rotary_scores_depend_on_distances_alone():
    layer = built(head_dim=6)
    angles = rotary_angles(np.arange(T + 90, dtype="int32"), 6, 10_000.0, T + 90)
    near = layer(X, rotation=[a[:T] for a in angles])
    far = layer(X, rotation=[a[90:] for a in angles])
    assert difference(to_numpy(far), to_numpy(near)) <= 1e-5


@pytest.mark.parametrize("bias", [None, BIAS], ids=["plain", "biased"])
@pytest.mark.parametrize("length", [T, 1])
def test_a_fully_masked_row_gives_zeros(bias, length):
    layer = built(use_bias=False)
    mask = np.ones((B, 1, length, T), bool)
    mask[0, :, 0] = False
    bias = bias if bias is None else bias[:, :, :length]
    got, weights = layer(
        X[:, :length], memory=X, attention_mask=mask, bias=bias, return_weights=True
    )
    got, weights = to_numpy(got), to_numpy(weights)
    assert (got[0, 0] == 0).all() and (weights[0, :, 0] == 0).all()
    expected, _ = by_formula(
        layer, X[:, :length], X, mask, 0.0 if bias is None else bias
    )
    assert difference(got, expected) <= 1e-6
    np.testing.assert_allclose(weights[1].sum(axis=-1), 1.0, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_nothing_to_attend_to_at_all_gives_zeros(dtype):
    layer = built(use_bias=False, dtype=dtype)
    got = layer(X, attention_mask=np.zeros((B, 1, 1, T), bool), bias=BIAS)
    assert (to_numpy(got) == 0).all()


ONE_ROW = np.ones((B, 1, T, T), bool)
ONE_ROW[0, :, 2] = False
IN_ONE_HEAD = np.ones((B, 4, T, T), bool)
IN_ONE_HEAD[0, 1, 2] = False
NO_MEMORY = np.array([[False] * S, [True, True, False, True]])[:, None, None]
CROSS_BIAS = BIAS[..., :S]
WITH_NOTHING_TO_SEE = {
    "self": dict(query=X, attention_mask=ONE_ROW),
    "self_with_bias": dict(query=X, attention_mask=ONE_ROW, bias=BIAS),
    "head": dict(query=X, attention_mask=IN_ONE_HEAD),
    "head_with_bias": dict(query=X, attention_mask=IN_ONE_HEAD, bias=BIAS),
    "cross": dict(query=X, memory=MEMORY, attention_mask=NO_MEMORY),
    "cross_with_bias": dict(
        query=X, memory=MEMORY, attention_mask=NO_MEMORY, bias=CROSS_BIAS
    ),
    "one_query": dict(query=X[:, :1], memory=MEMORY, attention_mask=NO_MEMORY),
    "one_query_with_bias": dict(
        query=X[:, :1],
        memory=MEMORY,
        attention_mask=NO_MEMORY,
        bias=CROSS_BIAS[:, :, :1],
    ),
}


@pytest.mark.parametrize("opset", [DEFAULT_OPSET, PORTABLE_OPSET])
@pytest.mark.parametrize("return_weights", [False, True])
@pytest.mark.parametrize("call", WITH_NOTHING_TO_SEE)
def test_a_fully_masked_row_gives_zeros_in_onnx(call, return_weights, opset, tmp_path):
    inputs = WITH_NOTHING_TO_SEE[call]
    shapes = [(None, None, D), *([(None, None, M)] if "memory" in inputs else [])]
    model = Wrapper(
        Attention(D, 4, 2, use_bias=False),
        shapes,
        dict(return_weights=return_weights),
    )
    perturb(model.weights)
    expected = keras.tree.flatten(to_numpy(model(inputs)))
    got = onnx_form(model, inputs, opset, tmp_path / "model.onnx")(inputs)
    for one, other in zip(got, expected, strict=True):
        assert difference(one, other) <= 1e-5
        nothing = ~inputs["attention_mask"].any(axis=-1)  # (B, N or 1, T or 1)
        if one.ndim == 3:  # one output for all heads
            nothing = nothing.all(axis=1)
        shape = one.shape[:-1]
        assert nothing.any() or call.startswith("head")
        assert (one[np.broadcast_to(nothing, shape)] == 0).all()
        assert (other[np.broadcast_to(nothing, shape)] == 0).all()


def test_gradients_of_a_fully_masked_row_are_finite():
    layer = built()
    mask = np.ones((B, 1, T, T), bool)
    mask[0, :, 2] = False

    def loss():
        return keras.ops.sum(layer(X, attention_mask=mask, bias=BIAS) ** 2)

    for gradient in gradients(layer.weights, loss):
        assert np.isfinite(gradient).all()


def test_a_large_score_does_not_overflow():
    layer = built()
    layer.query.kernel.assign(layer.query.kernel * 1e4)
    assert np.isfinite(to_numpy(layer(X, attention_mask=SELF_MASK))).all()


def test_dropout_drops_weights_at_its_rate_and_rescales():
    # One head that copies: the values are the rows of an identity matrix, so that the
    # output is the weights themselves, 1 / 64 each before dropout.
    size, rate = 64, 0.3
    layer = Attention(size, 1, use_bias=False, dropout=rate)
    layer.build((None, None, size))
    identity = np.eye(size, dtype="float32")
    for projection in (layer.query, layer.key, layer.value, layer.output_projection):
        projection.kernel.assign(identity)
    query = np.zeros((4, size, size), "float32")
    memory = np.tile(identity, (4, 1, 1))
    still = to_numpy(layer(query, memory=memory, training=False))
    np.testing.assert_allclose(still, 1 / size, rtol=1e-6)
    dropped = to_numpy(layer(query, memory=memory, training=True))
    np.testing.assert_allclose(
        np.unique(dropped.round(7)), [0.0, 1 / size / (1 - rate)], atol=1e-6
    )
    assert abs((dropped == 0).mean() - rate) < 0.02


CALLS = {
    "self": (dict(query=X, attention_mask=SELF_MASK), {}, (B, T, D)),
    "self_with_bias": (
        dict(query=X, attention_mask=SELF_MASK, bias=BIAS),
        {},
        (B, T, D),
    ),
    "without_mask": (dict(query=X), {}, (B, T, D)),
    "without_mask_with_bias": (dict(query=X, bias=BIAS), {}, (B, T, D)),
    "with_weights": (
        dict(query=X, attention_mask=SELF_MASK, bias=BIAS),
        dict(return_weights=True),
        ((B, T, D), (B, 4, T, T)),
    ),
}


# All calls of grouped heads; of the others one each of what ONNX emits otherwise.
AS_LAYERS = [
    *((call, "grouped_query") for call in CALLS),
    *itertools.product(["self_with_bias", "without_mask", "with_weights"], HEADS),
]


@pytest.mark.parametrize(("call", "heads"), dict.fromkeys(AS_LAYERS))
def test_self_attention_is_a_layer(call, heads, tmp_path):
    inputs, options, shape = CALLS[call]
    check_layer(
        lambda **kw: Attention(D, 4, HEADS[heads], **kw),
        inputs,
        shape,
        tmp_path,
        build_shapes=[(None, None, D)],
        options=options,
    )


@pytest.mark.parametrize("use_bias", [True, False])
def test_cross_attention_is_a_layer(use_bias, tmp_path):
    check_layer(
        lambda **kw: Attention(
            D,
            4,
            2,
            head_dim=5,
            scale=0.3,
            dropout=0.1,
            use_bias=use_bias,
            kernel_initializer="he_normal",
            **kw,
        ),
        dict(query=X, memory=MEMORY, attention_mask=CROSS_MASK),
        (B, T, D),
        tmp_path,
        build_shapes=[(None, None, D), (None, None, M)],
    )


VALUES = RANDOM.normal(size=(B, S, 7)).astype("float32")


def test_query_key_and_value_may_have_different_widths():
    """By heads of Vaswani et al. (2017), with the inputs of each projection."""
    layer = Attention(D, 4, 2, attention_bias=False, name="attention")
    layer.build((None, None, D), (None, None, M), (None, None, 7))
    perturb(layer.weights)
    kernels = {w.path.split("/", 1)[1]: to_numpy(w.value) for w in layer.weights}
    assert kernels["key/kernel"].shape == (M, 6)
    assert kernels["value/kernel"].shape == (7, 6)
    assert "query/bias" not in kernels and "output/bias" in kernels

    def project(name, x, heads):
        y = x.astype("float64") @ kernels[f"{name}/kernel"]
        return y.reshape(*x.shape[:2], heads, 3)

    q, k, v = (
        project("query", X, 4),
        project("key", MEMORY, 2),
        project("value", VALUES, 2),
    )
    heads = []
    for n in range(4):
        scores = q[:, :, n] @ k[:, :, n // 2].transpose(0, 2, 1) / np.sqrt(3)
        mask = np.broadcast_to(CROSS_MASK[:, 0], scores.shape)
        heads.append(masked_softmax(scores, mask) @ v[:, :, n // 2])
    expected = np.concatenate(heads, -1) @ kernels["output/kernel"]
    expected = expected + kernels["output/bias"]
    got = layer(X, memory=MEMORY, value=VALUES, attention_mask=CROSS_MASK)
    assert difference(to_numpy(got), expected) <= 1e-6
    projected = layer.project_memory(MEMORY, VALUES)
    got = layer(X, projected=projected, attention_mask=CROSS_MASK)
    assert difference(to_numpy(got), expected) <= 1e-6


def test_values_of_their_own_go_with_self_attention_too():
    layer = Attention(D, 4)
    layer.build((None, None, D), value_shape=(None, None, 7))
    perturb(layer.weights)
    values = RANDOM.normal(size=(B, T, 7)).astype("float32")
    np.testing.assert_allclose(
        to_numpy(layer(X, value=values)),
        to_numpy(layer(X, memory=X, value=values)),
        atol=1e-6,
    )


def test_inputs_of_different_widths_make_a_layer(tmp_path):
    check_layer(
        lambda **kw: Attention(
            D, 4, 2, attention_bias=False, query_key_norm="std_norm", **kw
        ),
        dict(query=X, memory=MEMORY, value=VALUES, attention_mask=CROSS_MASK),
        (B, T, D),
        tmp_path,
        build_shapes=[(None, None, D), (None, None, M), (None, None, 7)],
    )


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_normed_queries_and_keys_make_a_layer(norm, tmp_path):
    check_layer(
        lambda **kw: Attention(
            D, 4, 2, query_key_norm=norm, norm_epsilon=1e-3, use_bias=False, **kw
        ),
        dict(query=X, attention_mask=SELF_MASK),
        (B, T, D),
        tmp_path,
        build_shapes=[(None, None, D)],
    )


def test_normed_queries_make_scores_independent_of_their_size():
    layer = built(query_key_norm="rms_norm", norm_epsilon=1e-12, use_bias=False)
    _, weights = layer(X, return_weights=True)
    _, larger = layer(9 * X, return_weights=True)
    np.testing.assert_allclose(to_numpy(larger), to_numpy(weights), atol=1e-5)


def test_an_unknown_norm_names_the_known():
    with pytest.raises(
        ValueError, match="query_key_norm must be one of.*Received: 'l2"
    ):
        Attention(D, 4, query_key_norm="l2")


def test_impossible_heads_name_both_arguments():
    with pytest.raises(ValueError, match="hidden_dim=10, num_heads=4"):
        Attention(10, 4)
    with pytest.raises(ValueError, match="num_heads=4, num_key_value_heads=3"):
        Attention(12, 4, 3)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="it is JAX's kernel")
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
def test_a_fused_kernel_gives_what_the_parts_give(monkeypatch, heads):
    import jax

    from kzoo.ops import heads as module

    by_head = RANDOM.random((1, 4, 1, T)) < 0.7
    blind = SELF_MASK.copy()
    blind[0, 0, 2] = False  # its third query sees nothing
    layer = built(num_key_value_heads=heads)
    cross = built(memory_dim=M, num_key_value_heads=heads)
    calls = {
        "causal": lambda: layer(X, causal=True),
        "no mask": lambda: layer(X),
        "pairs": lambda: layer(X, attention_mask=blind),
        "one for all rows": lambda: layer(X, attention_mask=by_head),
        "two axes": lambda: layer(X, attention_mask=blind[0, 0]),
        "0 and 1": lambda: layer(X, attention_mask=blind.astype("int32")),
        "cross": lambda: cross(X, MEMORY, attention_mask=CROSS_MASK),
    }
    parts = {name: to_numpy(call()) for name, call in calls.items()}
    options = []

    def kernel(query, key, value, mask=None, **given):
        options.append(given)
        if mask is not None:  # as cuDNN asks for it
            batch, length = query.shape[:2]
            assert mask.shape[0] in (1, batch) and mask.shape[1] in (1, 4)
            assert mask.shape[2:] == (length, key.shape[1])
        # What cuDNN computes on a GPU, on any device.
        return jax.nn.dot_product_attention(
            query, key, value, mask=mask, implementation="xla", **given
        )

    monkeypatch.setattr(module, "fused_kernel", lambda query, key, is_masked: kernel)
    for name, call in calls.items():
        np.testing.assert_allclose(
            to_numpy(call()), parts[name], atol=1e-5, err_msg=name
        )
    scale = layer.scale
    assert options == [{"scale": scale, "is_causal": n == "causal"} for n in calls]
    # Weights and biases are of the parts alone.
    layer(X, causal=True, return_weights=True)
    layer(X, bias=BIAS, causal=True)
    assert len(options) == len(calls)


def test_causal_attention_needs_no_mask(tmp_path):
    layer = Attention(D, 4)
    layer.build((None, None, D))
    perturb(layer.weights)
    mask = np.tri(T, dtype=bool)[None, None]
    expected = to_numpy(layer(X, attention_mask=mask))
    assert difference(to_numpy(layer(X, causal=True)), expected) <= 1e-6
    changed = X.copy()
    changed[:, -1] += 3
    later = to_numpy(layer(changed, causal=True))
    np.testing.assert_array_equal(
        later[:, :-1], to_numpy(layer(X, causal=True))[:, :-1]
    )
    model = Wrapper(layer, options={"causal": True})
    for opset in (DEFAULT_OPSET, PORTABLE_OPSET):
        run = onnx_form(model, {"query": X}, opset, tmp_path / "causal.onnx")
        assert difference(run({"query": X})[0], expected) <= 1e-5
    keys = keras.ops.zeros((B, 4, 3, D // 4))
    with pytest.raises(ValueError, match="give the causal mask as attention_mask"):
        layer(X, causal=True, cache=(keys, keys), index=0)
    with pytest.raises(ValueError, match="give the causal mask as attention_mask"):
        layer(X, attention_mask=mask, causal=True, cache=(keys, keys), index=0)


@pytest.mark.parametrize("opset", [DEFAULT_OPSET, PORTABLE_OPSET])
def test_a_mask_and_causal_hold_together(opset, tmp_path):
    layer = built()
    seen = np.array([[1, 1, 0, 1, 1], [1, 1, 1, 1, 0]], bool)[:, None, None]
    both = seen & np.tri(T, dtype=bool)
    expected = to_numpy(layer(X, attention_mask=both))
    for mask in (seen, seen.astype("int32")):
        got = to_numpy(layer(X, attention_mask=mask, causal=True))
        assert difference(got, expected) <= 1e-6
    model = Wrapper(layer, options={"causal": True})
    inputs = {"query": X, "attention_mask": seen}
    run = onnx_form(model, inputs, opset, tmp_path / "causal.onnx")
    assert difference(run(inputs)[0], expected) <= 1e-5


def test_a_mask_without_an_axis_of_heads_is_refused():
    layer = Attention(D, B)  # as many heads as rows: it would broadcast
    with pytest.raises(ValueError, match=r"attention_mask\[:, None\].*\(2, 5, 5\)"):
        layer(X, attention_mask=SELF_MASK[:, 0])


def test_masks_are_truths_or_0_and_1_not_floats():
    layer = built()
    expected = to_numpy(layer(X, attention_mask=SELF_MASK))
    for kind in ("int32", "int64", "uint8"):
        np.testing.assert_array_equal(
            to_numpy(layer(X, attention_mask=SELF_MASK.astype(kind))), expected
        )
    added = np.where(SELF_MASK, 0.0, -1e9).astype("float32")
    with pytest.raises(ValueError, match="Received: float32. Of a mask that is added"):
        layer(X, attention_mask=added)


@pytest.mark.parametrize(
    "changes",
    [dict(num_heads=0), dict(num_key_value_heads=0), dict(head_dim=0),
     dict(soft_cap=0.0), dict(soft_cap=-1.0)],
)  # fmt: skip
def test_numbers_that_must_be_positive_are(changes):
    with pytest.raises(
        ValueError, match=f"Attention.{[*changes][0]} must be more than"
    ):
        Attention(**{"hidden_dim": 8, "num_heads": 2, **changes})
