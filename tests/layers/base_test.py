"""Keras's own layers, as kzoo uses them: by themselves, and in every export."""

import keras
import numpy as np
import pytest

from kzoo import ops
from kzoo.layers import (
    Dense,
    Dropout,
    Embedding,
    FeedForward,
    LayerNormalization,
    RMSNormalization,
    StdNormalization,
)
from kzoo.layers.base import OffsetRMSNormalization
from kzoo.ops.onnx_file import graph_proto
from kzoo.ops.onnx_graph import OnnxGraph
from tests.harness import check_layer, difference, gradients, perturb, to_numpy

B, T, D, V = 2, 5, 12, 17
X = np.random.default_rng(0).normal(size=(B, T, D)).astype("float32")
IDS = np.random.default_rng(0).integers(0, V, (B, T), dtype="int32")

LAYERS = {
    "dense": (lambda **kw: Dense(7, **kw), X, (B, T, 7)),
    "dense_without_bias": (lambda **kw: Dense(7, use_bias=False, **kw), X, (B, T, 7)),
    **{
        f"dense_{name}": (lambda by=name, **kw: Dense(7, by, **kw), X, (B, T, 7))
        for name in "relu gelu silu sigmoid tanh softmax log_softmax".split()
    },
    "dropout": (lambda **kw: Dropout(0.5, **kw), X, (B, T, D)),
    "embedding": (lambda **kw: Embedding(V, D, **kw), IDS, (B, T, D)),
    "layer_norm": (lambda **kw: LayerNormalization(epsilon=1e-5, **kw), X, (B, T, D)),
    "rms_norm": (lambda **kw: RMSNormalization(epsilon=0.1, **kw), X, (B, T, D)),
    "std_norm": (lambda **kw: StdNormalization(epsilon=0.1, **kw), X, (B, T, D)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_it_is_a_layer(name, tmp_path):
    make, inputs, shape = LAYERS[name]
    build_shape = (None, None, D) if inputs is X else (None, None)
    check_layer(make, dict(inputs=inputs), shape, tmp_path, [build_shape])


@pytest.mark.parametrize(
    "options", [{"axis": (1, 2)}, {"center": False}, {"scale": False}]
)
def test_options_of_keras_do_what_they_do_there(options):
    ours = LayerNormalization(epsilon=1e-5, **options)
    theirs = keras.layers.LayerNormalization(epsilon=1e-5, **options)
    np.testing.assert_allclose(
        to_numpy(ours(X, training=True)), to_numpy(theirs(X)), atol=1e-6
    )


def gelu(x):
    return ops.ACTIVATIONS["relu"](x)


@pytest.mark.parametrize(
    "activation, operator",
    [(gelu, "Relu"), (lambda x: x * 2.0, "Mul"), (ops.ACTIVATIONS["tanh"], "Tanh")],
)
def test_an_activation_of_the_users_own_is_emitted_as_it_is(activation, operator):
    layer = Dense(7, activation)
    layer.build((None, D))
    graph = OnnxGraph()
    x = graph.input("x", (None, D), "float32", ("batch", D))
    with graph.building():
        graph.output(layer(x), "y", axes=("batch", 7))
    operators = [node.op_type for node in graph_proto(graph, "g").node]
    assert operator in operators and "Gelu" not in operators


@pytest.mark.parametrize(
    "layer", [FeedForward(D, 8), StdNormalization(), OffsetRMSNormalization()]
)
def test_what_works_on_each_position_passes_a_mask_on(layer):
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(V, D, mask_zero=True)(ids)
    pooled = keras.layers.GlobalAveragePooling1D()
    model = keras.Model(ids, pooled(layer(x)))
    longer = np.pad(IDS + 1, ((0, 0), (0, 3)))
    assert difference(to_numpy(model(longer)), to_numpy(model(IDS + 1))) <= 1e-6


def test_std_norm_divides_by_the_unbiased_deviation_plus_epsilon():
    layer = StdNormalization(epsilon=0.1)
    layer.build((None, D))
    perturb(layer.weights)
    x = X.astype("float64")
    deviation = x.std(axis=-1, ddof=1, keepdims=True)
    expected = (x - x.mean(axis=-1, keepdims=True)) / (deviation + 0.1)
    expected = expected * to_numpy(layer.gamma.value) + to_numpy(layer.beta.value)
    assert difference(to_numpy(layer(X)), expected) <= 1e-6


def test_std_norm_has_a_gradient_where_all_numbers_are_equal():
    layer = StdNormalization(name="norm")
    layer.build((None, D))
    dense = Dense(D, name="dense")
    dense.build((None, D))
    dense.kernel.assign(np.zeros((D, D)))

    def loss():
        return keras.ops.sum(layer(dense(X)) ** 2)

    for gradient in gradients([dense.kernel, layer.gamma], loss):
        assert np.isfinite(gradient).all()


def test_std_norm_needs_two_numbers():
    with pytest.raises(ValueError, match="2 or more.*Received.*1"):
        StdNormalization().build((None, 1))


def test_a_dense_layer_multiplies_integers():
    dense = Dense(2, kernel_initializer=keras.initializers.Constant(0.5))
    got = to_numpy(dense(np.array([[1, 2, 3]])))
    np.testing.assert_array_equal(got, [[3.0, 3.0]])


def test_dropout_has_the_noise_of_its_shape():
    layer = Dropout(0.5, noise_shape=(None, 1, None), seed=1)
    y = to_numpy(layer(np.ones((4, T, 64), "float32"), training=True))
    np.testing.assert_array_equal(y, np.repeat(y[:, :1], T, axis=1))
    assert 0.3 < (y == 0).mean() < 0.7


@pytest.mark.parametrize("make", [lambda: Dense(3), lambda: Embedding(9, 3)])
def test_a_compiled_model_of_keras_computes_the_same_when_merged(make):
    """A function that was traced before goes on with the adapters."""
    layer = make()
    ids = isinstance(layer, Embedding)
    inputs = keras.Input((4,), dtype="int32" if ids else "float32")
    model = keras.Model(inputs, layer(inputs))
    layer.enable_lora(2)
    model.compile("sgd", "mse")
    x = np.arange(4)[None] if ids else np.ones((1, 4))
    model.fit(x, np.ones((1, *model.output_shape[1:])), epochs=5, verbose=0)
    before = model.predict(x, verbose=0)
    layer.merge_lora()
    np.testing.assert_allclose(model.predict(x, verbose=0), before, atol=1e-6)
    with pytest.raises(ValueError, match="no adapters to merge"):
        layer.merge_lora()
