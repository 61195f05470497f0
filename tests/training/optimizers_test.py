"""Adam against its definition in float64, and against Keras's."""

import keras
import numpy as np
import pytest

from kzoo.training import Adam


def definition(weights, gradients, rate, beta_1, beta_2, epsilon):
    """Algorithm 1 of Kingma and Ba, with the epsilon of its section 2's last line."""
    weights = weights.astype("float64")
    m, v = np.zeros_like(weights), np.zeros_like(weights)
    for t, g in enumerate(gradients, 1):
        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g**2
        alpha = rate * np.sqrt(1 - beta_2**t) / (1 - beta_1**t)
        weights = weights - alpha * m / (np.sqrt(v) + epsilon)
    return weights


def test_equals_the_definition():
    rng = np.random.default_rng(0)
    start = rng.normal(size=(5, 3)).astype("float32")
    gradients = rng.normal(size=(6, 5, 3)).astype("float32")
    variable = keras.Variable(start)
    optimizer = Adam(0.01, beta_1=0.8, beta_2=0.95, epsilon=1e-6)
    for gradient in gradients:
        optimizer.apply([keras.ops.convert_to_tensor(gradient)], [variable])
    want = definition(start, gradients, 0.01, 0.8, 0.95, 1e-6)
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(variable), want, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(global_clipnorm=0.1),
        dict(global_clipnorm=100.0),
        dict(clipnorm=0.1),
        dict(weight_decay=0.01),
        dict(amsgrad=True),
        dict(use_ema=True),
        dict(gradient_accumulation_steps=2),
    ],
)
def test_trains_as_keras_does(options):
    def train(kind):
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Embedding(9, 6), keras.layers.Dense(2)]
        )
        rate = keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.5)
        model.compile(kind(rate, **options), "mse")
        rng = np.random.default_rng(1)
        # No token twice in a batch: Keras squares the parts of its gradient one by one.
        x = np.stack([rng.permutation(8).reshape(2, 4) for _ in range(5)])
        x, y = x.reshape(10, 4), rng.normal(size=(10, 4, 2))
        model.fit(x, y, batch_size=2, epochs=2, shuffle=False, verbose=0)
        return model.get_weights(), model.optimizer

    ours, optimizer = train(Adam)
    theirs, keras_optimizer = train(keras.optimizers.Adam)
    for own, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-6)
    for own, other in zip(optimizer.variables, keras_optimizer.variables, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_shows_in_every_weight(bad):
    variables = [keras.Variable(np.ones(2, "float32")) for _ in range(2)]
    gradients = [np.array([bad, 1.0], "float32"), np.ones(2, "float32")]
    gradients = [keras.ops.convert_to_tensor(gradient) for gradient in gradients]
    Adam(0.1, global_clipnorm=1.0).apply(gradients, variables)
    for variable in variables:
        assert np.isnan(keras.ops.convert_to_numpy(variable)).all()


@pytest.mark.tensorflow
def test_a_token_twice_in_a_batch_has_one_gradient():
    import tensorflow as tf

    gradient = np.array([[1.0], [-3.0], [2.0]], "float32")
    dense = np.array([[-2.0], [0.0], [2.0], [0.0]])
    variable = keras.Variable(np.zeros((4, 1), "float32"))
    optimizer = Adam(0.1, epsilon=1e-3)
    for scale in (1.0, -0.5, 2.0):
        sparse = tf.IndexedSlices(
            gradient * np.float32(scale), tf.constant([0, 0, 2]), tf.constant([4, 1])
        )
        optimizer.apply([sparse], [variable])
    want = definition(
        np.zeros((4, 1)), [dense, -0.5 * dense, 2 * dense], 0.1, 0.9, 0.999, 1e-3
    )
    np.testing.assert_allclose(variable.numpy(), want, rtol=1e-5, atol=1e-6)


def test_config_round_trip():
    again = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(Adam(0.3, beta_2=0.98))
    )
    assert type(again) is Adam
    assert again.get_config()["beta_2"] == 0.98
