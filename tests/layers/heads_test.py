"""The heads: of language models, own kernel or tied; and of predictions."""

import keras
import numpy as np
import pytest

from kzoo import StackConfig
from kzoo.layers import Embedding, LanguageModelHead
from kzoo.layers.heads import MaskedLanguageModelHead, PredictionHead
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


STACK = StackConfig(vocabulary_size=V, hidden_dim=D, num_heads=2, norm_epsilon=0.1)


@pytest.mark.parametrize("norm_bias", [True, False])
@pytest.mark.parametrize("hidden_bias", [True, False])
def test_a_norm_may_stand_behind_the_inner_layer(hidden_bias, norm_bias, tmp_path):
    config = STACK.replace(norm_bias=norm_bias)
    head, got = check_layer(
        lambda **kw: PredictionHead(
            C, D, "relu", hidden_bias=hidden_bias, hidden_norm=config, **kw
        ),
        dict(x=X),
        (B, T, C),
        tmp_path,
    )
    weights = {w.path.split("layer/")[-1]: to_numpy(w.value) for w in head.weights}
    inner = X.astype("float64") @ weights["hidden/kernel"]
    inner = np.maximum(inner + weights.pop("hidden/bias", 0.0), 0.0)
    mean, variance = inner.mean(-1, keepdims=True), inner.var(-1, keepdims=True)
    normed = (inner - mean) / np.sqrt(variance + 0.1) * weights["norm/gamma"]
    normed += weights.pop("norm/beta", 0.0)
    expected = normed @ weights["output/kernel"] + weights["output/bias"]
    assert difference(got, expected) <= 1e-6
    assert len(head.weights) == 4 + hidden_bias + norm_bias


def test_a_norm_without_an_inner_layer_is_refused():
    with pytest.raises(ValueError, match="hidden_norm.*hidden_activation"):
        PredictionHead(C, D, hidden_norm=STACK)


@pytest.mark.parametrize("output_bias", [True, False])
@pytest.mark.parametrize("hidden_bias", [None, True, False])
def test_a_masked_head_has_the_activation_and_biases_that_are_given(
    hidden_bias, output_bias
):
    head = MaskedLanguageModelHead(
        STACK.replace(use_bias=False),  # which None means
        activation="tanh",
        hidden_bias=hidden_bias,
        output_bias=output_bias,
    )
    head.build()
    perturb(head.weights)
    weights = {w.path.removeprefix(f"{head.name}/"): w for w in head.weights}
    weights = {name: to_numpy(w.value) for name, w in weights.items()}
    assert ("hidden/bias" in weights) == bool(hidden_bias)
    assert ("output/bias" in weights) == output_bias
    inner = X.astype("float64") @ weights["hidden/kernel"]
    inner = np.tanh(inner + weights.get("hidden/bias", 0.0))
    mean, variance = inner.mean(-1, keepdims=True), inner.var(-1, keepdims=True)
    normed = (inner - mean) / np.sqrt(variance + 0.1) * weights["norm/gamma"]
    normed += weights["norm/beta"]
    expected = normed @ weights["output/kernel"] + weights.get("output/bias", 0.0)
    assert difference(to_numpy(head(X)), expected) <= 1e-6


def test_an_unknown_activation_of_a_masked_head_is_named():
    with pytest.raises(ValueError, match="None or one of.*'tanh'.*'relu6'"):
        MaskedLanguageModelHead(STACK, activation="relu6")


def test_a_table_turned_for_a_loop_gives_the_same_logits():
    table = Embedding(V, D, name="table")
    table.build()
    x = np.random.default_rng(0).normal(size=(2, 1, D)).astype("float32")
    before = to_numpy(table.attend(x))
    with table.attending(keras.ops.convert_to_tensor(x)):
        inside = to_numpy(table.attend(x))
    np.testing.assert_allclose(inside, before, atol=1e-6)
    table.embeddings.assign(2.0 * to_numpy(table.embeddings))  # behind it, others count
    np.testing.assert_allclose(to_numpy(table.attend(x)), 2 * before, atol=1e-6)


def saved_and_loaded(model, path):
    """What a file of a functional model holds, which computes the same."""
    perturb(model.weights)
    model.save(path)
    loaded = keras.models.load_model(path)
    x = np.array([[1, 2, 3]])
    np.testing.assert_array_equal(to_numpy(loaded(x)), to_numpy(model(x)))
    return loaded


def test_a_tied_head_is_saved_in_a_functional_model(tmp_path):
    ids = keras.Input((None,), dtype="int32")
    table = Embedding(V, D)
    head = LanguageModelHead(V, D, tied_to=table, use_bias=True, soft_cap=5.0)
    model = keras.Model(ids, head(table(ids)))
    loaded = saved_and_loaded(model, tmp_path / "model.keras")
    assert len(loaded.weights) == 2  # the table, once, and the bias


@pytest.mark.parametrize("tied", [True, False])
def test_a_masked_head_is_saved_in_a_functional_model(tmp_path, tied):
    ids, table = keras.Input((None,), dtype="int32"), Embedding(V, D)
    head = MaskedLanguageModelHead(
        STACK,
        tied_to=table if tied else None,
        activation="tanh",
        hidden_bias=False,
        output_bias=False,
    )
    model = keras.Model(ids, head(table(ids)))
    loaded = saved_and_loaded(model, tmp_path / "model.keras")
    shapes = [[tuple(w.shape) for w in each.weights] for each in (loaded, model)]
    assert shapes[0] == shapes[1]
    assert loaded.layers[-1].get_config().keys() == head.get_config().keys()


def test_a_head_of_another_table_or_without_room_is_refused():
    table = Embedding(V, D)
    with pytest.raises(ValueError, match=f"of tied_to, {V}. Received: {V + 1}"):
        LanguageModelHead(V + 1, D, tied_to=table)
    with pytest.raises(ValueError, match="soft_cap must be positive"):
        LanguageModelHead(V, D, soft_cap=0.0)
