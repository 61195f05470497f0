"""Similarities: by loops over heads and positions, in attention, in every export."""

import numpy as np
import pytest

from kzoo.layers import Attention
from kzoo.layers.similarity import SIMILARITIES
from tests.harness import check_layer, difference, perturb, to_numpy
from tests.reference import masked_softmax

B, T, S, D, M, N, K, H = 2, 5, 4, 12, 10, 4, 2, 3
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(B, T, D)).astype("float32")
MEMORY = RANDOM.normal(size=(B, S, M)).astype("float32")
MASK = np.array([[1, 1, 0, 1], [0, 0, 0, 0]], bool)[:, None, None]
BIAS = RANDOM.normal(size=(1, N, T, S)).astype("float32")
WITH_WEIGHTS = [name for name, layer in SIMILARITIES.items() if layer]

SCORES = {
    "scaled_dot": lambda q, k, w: q @ k / np.sqrt(len(q)),
    "dot": lambda q, k, w: q @ k,
    "general": lambda q, k, w: q @ w["kernel"] @ k,
    "additive": lambda q, k, w: (w["vector"].T @ q + w["vector"].T @ k).item(),
    "additive_tanh": lambda q, k, w: (
        w["vector"].T @ np.tanh(w["query_kernel"].T @ q + w["key_kernel"].T @ k)
    ).item(),
}


def by_loops(layer):
    """Attention from X to MEMORY with MASK and BIAS, in float64."""
    weights = {
        w.path.split("/", 1)[1]: to_numpy(w.value).astype("float64")
        for w in layer.weights
    }

    def project(name, x, heads):
        y = x @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]
        return y.reshape(*x.shape[:2], heads, H)

    q, k, v = (
        project(name, x.astype("float64"), heads)
        for name, x, heads in [
            ("query", X, N),
            ("key", MEMORY, K),
            ("value", MEMORY, K),
        ]
    )
    output = np.zeros((B, T, N, H))
    for b, n in np.ndindex(B, N):
        own = {
            path.removeprefix("similarity/"): w[n]
            for path, w in weights.items()
            if path.startswith("similarity/")
        }
        scores = np.zeros((T, S))
        for t, s in np.ndindex(T, S):
            pair = q[b, t, n], k[b, s, n // (N // K)]
            scores[t, s] = SCORES[layer.similarity](*pair, own)
        mask = np.broadcast_to(MASK[b, 0], scores.shape)
        output[b, :, n] = masked_softmax(scores + BIAS[0, n], mask) @ v[b, :, n // 2]
    return output.reshape(B, T, D) @ weights["output/kernel"] + weights["output/bias"]


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_it_equals_the_formula(similarity):
    layer = Attention(D, N, K, similarity=similarity, name="attention")
    layer.build((None, None, D), (None, None, M))
    perturb(layer.weights)
    expected = by_loops(layer)
    got = layer(X, memory=MEMORY, attention_mask=MASK, bias=BIAS)
    assert difference(to_numpy(got), expected) <= 1e-6
    projected = layer.project_memory(MEMORY)
    got = layer(X, projected=projected, attention_mask=MASK, bias=BIAS)
    assert difference(to_numpy(got), expected) <= 1e-6


@pytest.mark.parametrize("similarity", WITH_WEIGHTS)
def test_it_is_a_layer(similarity, tmp_path):
    check_layer(
        lambda **kw: Attention(D, N, K, similarity=similarity, dropout=0.1, **kw),
        dict(query=X, memory=MEMORY, attention_mask=MASK, bias=BIAS),
        ((B, T, D), (B, N, T, S)),
        tmp_path,
        build_shapes=[(None, None, D), (None, None, M)],
        options=dict(return_weights=True),
    )


def test_additive_weights_are_those_of_the_keys_alone():
    layer = Attention(D, N, similarity="additive")
    layer.build((None, None, D))
    perturb(layer.weights)
    _, weights = layer(X, return_weights=True)
    weights = to_numpy(weights)
    np.testing.assert_allclose(weights, weights[:, :, :1].repeat(T, 2), atol=1e-6)
    assert weights.std(axis=-1).min() > 1e-3


def test_every_head_is_drawn_by_its_own_fans():
    layer = Attention(96, 3, head_dim=64, similarity="additive_tanh")
    layer.build((None, None, 96))
    limit = np.sqrt(6 / (64 + 64))
    for kernel in (layer.scores.query_kernel, layer.scores.key_kernel):
        kernel = to_numpy(kernel.value)
        assert 0.99 * limit < np.abs(kernel).max() <= limit
        assert (kernel[0] != kernel[1]).mean() > 0.99


def test_a_scale_goes_with_the_scaled_dot_product_alone():
    with pytest.raises(ValueError, match="scale=0.5, similarity='dot'"):
        Attention(D, N, similarity="dot", scale=0.5)
    assert Attention(D, N, similarity="dot", scale=1.0).scale == 1.0
    assert Attention(D, N).scale == H**-0.5


def test_an_unknown_similarity_names_the_known():
    with pytest.raises(ValueError, match=r"similarity must be one of .*Received: 'cos"):
        Attention(D, N, similarity="cosine")
