"""The heads: of language models, own kernel or tied; and of predictions."""

import numpy as np
import pytest

from kzoo.layers import Embedding, LanguageModelHead
from kzoo.layers.heads import PredictionHead
from tests.harness import check_layer, difference, perturb, to_numpy

B, T, D, V, C = 2, 3, 12, 17, 5
X = np.random.default_rng(0).normal(size=(B, T, D)).astype("float32")


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("scale", [1.0, 0.25])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "own"])
def test_logits_are_products_with_every_row(tied, scale, use_bias):
    table = Embedding(V, D)
    table.build()
    head = LanguageModelHead(
        V, D, tied_to=table if tied else None, use_bias=use_bias, scale=scale
    )
    head.build()
    perturb([*table.weights, *(w for w in head.weights if w is not table.embeddings)])
    rows = to_numpy(table.embeddings.value) if tied else to_numpy(head.kernel.value).T
    bias = to_numpy(head.bias.value) if use_bias else np.zeros(V)
    expected = np.zeros((B, T, V))
    for b, t, v in np.ndindex(B, T, V):
        expected[b, t, v] = scale * float(X[b, t] @ rows[v].astype("float64")) + bias[v]
    assert difference(to_numpy(head(X)), expected) <= 1e-6
    assert (head.kernel is None) == tied


@pytest.mark.parametrize("use_bias", [True, False])
def test_an_own_head_is_a_layer(use_bias, tmp_path):
    check_layer(
        lambda **kw: LanguageModelHead(V, D, use_bias=use_bias, scale=0.5, **kw),
        dict(x=X),
        (B, T, V),
        tmp_path,
    )


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("hidden_activation", [None, "tanh"])
def test_a_prediction_head_is_one_linear_layer_or_two(
    hidden_activation, use_bias, tmp_path
):
    options = dict(dropout=0.5, use_bias=use_bias)
    head, got = check_layer(
        lambda **kw: PredictionHead(C, D, hidden_activation, **options, **kw),
        dict(x=X),
        (B, T, C),
        tmp_path,
    )
    weights = {w.path.split("layer/")[-1]: to_numpy(w.value) for w in head.weights}
    inner = X.astype("float64")
    if hidden_activation:
        inner = np.tanh(inner @ weights["hidden/kernel"] + weights["hidden/bias"])
    expected = inner @ weights["output/kernel"] + weights.get("output/bias", 0)
    assert difference(got, expected) <= 1e-6
    assert len(weights) == (3 if hidden_activation else 1) + use_bias


def test_a_prediction_head_drops_only_while_it_trains():
    head = PredictionHead(C, D, dropout=0.5)
    head.build()
    plain, again = to_numpy(head(X)), to_numpy(head(X, training=False))
    np.testing.assert_array_equal(plain, again)
    assert np.abs(to_numpy(head(X, training=True)) - plain).max() > 1e-3


def test_an_unknown_activation_of_a_prediction_head_is_named():
    with pytest.raises(ValueError, match="None or one of.*'tanh'.*'relu6'"):
        PredictionHead(C, D, "relu6")
