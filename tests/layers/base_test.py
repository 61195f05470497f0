"""Keras's own layers, as kzoo uses them: by themselves, and in every export."""

import keras
import numpy as np
import pytest

from kzoo.layers import (
    Dense,
    Dropout,
    Embedding,
    LayerNormalization,
    RMSNormalization,
)
from tests.harness import check_layer, to_numpy

B, T, D, V = 2, 5, 12, 17
X = np.random.default_rng(0).normal(size=(B, T, D)).astype("float32")
IDS = np.random.default_rng(0).integers(0, V, (B, T), dtype="int32")

LAYERS = {
    "dense": (lambda **kw: Dense(7, **kw), X, (B, T, 7)),
    "dense_without_bias": (lambda **kw: Dense(7, use_bias=False, **kw), X, (B, T, 7)),
    "dropout": (lambda **kw: Dropout(0.5, **kw), X, (B, T, D)),
    "embedding": (lambda **kw: Embedding(V, D, **kw), IDS, (B, T, D)),
    "layer_norm": (lambda **kw: LayerNormalization(epsilon=1e-5, **kw), X, (B, T, D)),
    "rms_norm": (lambda **kw: RMSNormalization(epsilon=0.1, **kw), X, (B, T, D)),
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


def test_a_dense_layer_multiplies_integers():
    dense = Dense(2, kernel_initializer=keras.initializers.Constant(0.5))
    got = to_numpy(dense(np.array([[1, 2, 3]])))
    np.testing.assert_array_equal(got, [[3.0, 3.0]])
