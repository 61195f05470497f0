"""Masked cross-entropy against a loop in float64."""

import math

import keras
import numpy as np
import pytest

from kzoo.training import MaskedCrossEntropy


def expected(y_true, logits, e=0.0, ignore_id=0, weights=None):
    """The paper's definition, token by token: minus the sum of q log p."""
    total = count = 0.0
    for index in np.ndindex(*y_true.shape):
        if y_true[index] == ignore_id:
            continue
        row = np.asarray(logits[index], np.float64)
        log_p = row - row.max() - math.log(np.exp(row - row.max()).sum())
        q = np.full(len(row), e / len(row))
        q[y_true[index]] += 1 - e
        weight = 1.0 if weights is None else weights[index]
        total -= weight * (q @ log_p)
        count += weight
    return total / count


def batch(seed=0, rows=3, length=5, vocabulary_size=7):
    rng = np.random.default_rng(seed)
    y_true = rng.integers(1, vocabulary_size, (rows, length)).astype("int32")
    y_true[0, 3:] = 0
    y_true[2, 1:] = 0
    logits = rng.normal(scale=3.0, size=(rows, length, vocabulary_size))
    return y_true, logits.astype("float32")


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 0.5])
def test_equals_the_definition(label_smoothing):
    y_true, logits = batch()
    loss = MaskedCrossEntropy(label_smoothing=label_smoothing)(y_true, logits)
    assert float(loss) == pytest.approx(
        expected(y_true, logits, label_smoothing), rel=1e-6
    )


def test_hand_computed_values():
    # p = (1/4, 3/4): loss of token 1 is log 4/3; smoothed by 0.2 it is
    # 0.9 log 4/3 + 0.1 log 4.
    logits = np.array([[[0.0, math.log(3.0)]]], "float32")
    y_true = np.array([[1]])
    assert float(MaskedCrossEntropy()(y_true, logits)) == pytest.approx(math.log(4 / 3))
    assert float(MaskedCrossEntropy(0.2)(y_true, logits)) == pytest.approx(
        0.9 * math.log(4 / 3) + 0.1 * math.log(4)
    )


def test_padding_changes_nothing():
    y_true, logits = batch()
    longer = np.pad(y_true, ((0, 2), (0, 3)))
    noise = np.full((5, 8, 7), 50.0, "float32")
    noise[:3, :5] = logits
    loss = MaskedCrossEntropy(0.1)
    np.testing.assert_allclose(
        float(loss(longer, noise)), float(loss(y_true, logits)), rtol=1e-6
    )


def test_only_padding_gives_zero():
    logits = np.ones((2, 3, 4), "float32")
    assert float(MaskedCrossEntropy(0.1)(np.zeros((2, 3), "int32"), logits)) == 0.0


def test_another_ignore_id_may_lie_outside_the_vocabulary():
    y_true, logits = batch()
    negative = np.where(y_true == 0, -100, y_true)
    assert float(MaskedCrossEntropy(ignore_id=-100)(negative, logits)) == pytest.approx(
        expected(negative, logits, ignore_id=-100), rel=1e-6
    )


def test_an_id_outside_the_vocabulary_gives_nan():
    y_true, logits = batch()
    y_true[1, 1] = 7
    assert math.isnan(float(MaskedCrossEntropy()(y_true, logits)))


@pytest.mark.parametrize("shape", [(3,), (3, 1), (3, 5)])
def test_sample_weights_weigh_tokens(shape):
    y_true, logits = batch()
    weights = np.random.default_rng(1).uniform(0.5, 2.0, shape).astype("float32")
    every = np.broadcast_to(weights.reshape(3, -1), (3, 5))
    loss = MaskedCrossEntropy(0.1)(y_true, logits, sample_weight=weights)
    assert float(loss) == pytest.approx(
        expected(y_true, logits, 0.1, weights=every), rel=1e-6
    )


def test_large_logits_do_not_overflow():
    logits = np.array([[[1e4, 0.0, -1e4], [3e38, 0.0, 0.0]]], "float32")
    loss = float(MaskedCrossEntropy()(np.array([[1, 0]]), logits))
    assert loss == pytest.approx(1e4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_logits_are_summed_in_float32(dtype):
    # 300 ids: bfloat16 would round the id 299 to 300, and the sum of 300 terms.
    logits = keras.ops.cast(np.zeros((1, 4, 300), "float32"), dtype)
    loss = MaskedCrossEntropy()(np.array([[299, 257, 1, 0]]), logits)
    assert keras.backend.standardize_dtype(loss.dtype) == "float32"
    assert float(loss) == pytest.approx(math.log(300), rel=1e-6)


def test_float_ids_count_as_ids():
    y_true, logits = batch()
    loss = MaskedCrossEntropy()
    assert float(loss(y_true.astype("float32"), logits)) == float(loss(y_true, logits))


def test_gradient_is_softmax_minus_the_smoothed_target():
    # One SGD step of rate 1 on a bias that is the logits moves it by the gradient.
    y_true = np.array([[2, 1, 0]], "int32")
    start = np.random.default_rng(2).normal(size=(3, 4)).astype("float32")

    class Logits(keras.layers.Layer):
        def build(self, input_shape):
            self.logits = self.add_weight(shape=(3, 4), initializer="zeros")

        def call(self, x):
            return self.logits[None] + 0.0 * x[..., None]

    model = keras.Sequential([keras.Input((3,)), Logits()])
    model.layers[0].logits.assign(start)
    model.compile(keras.optimizers.SGD(1.0), MaskedCrossEntropy(0.1))
    model.fit(np.zeros((1, 3), "float32"), y_true, verbose=0)
    gradient = start - keras.ops.convert_to_numpy(model.layers[0].logits)
    p = np.exp(start) / np.exp(start).sum(-1, keepdims=True)
    q = np.full((3, 4), 0.1 / 4)
    q[0, 2] += 0.9
    q[1, 1] += 0.9
    want = (p - q) / 2
    want[2] = 0.0
    np.testing.assert_allclose(gradient, want, atol=1e-6)


@pytest.mark.parametrize("label_smoothing", [-0.1, 1.0])
def test_an_impossible_smoothing_is_refused(label_smoothing):
    with pytest.raises(ValueError, match=r"in \[0, 1\)"):
        MaskedCrossEntropy(label_smoothing=label_smoothing)


def test_config_round_trip():
    loss = MaskedCrossEntropy(label_smoothing=0.1, ignore_id=3, name="ce")
    saved = keras.saving.serialize_keras_object(loss)
    assert saved["registered_name"] == "kzoo>MaskedCrossEntropy"
    again = keras.saving.deserialize_keras_object(saved)
    assert again.get_config() == loss.get_config()


@pytest.mark.tensorflow
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_gradient_is_softmax_minus_the_target_distribution(smoothing):
    import tensorflow as tf

    generator = np.random.default_rng(0)
    logits = generator.normal(size=(2, 3, 7), scale=3).astype("float32")
    y = np.array([[1, 6, 0], [3, 0, 0]])  # 0 is padding
    variable = tf.Variable(logits)
    with tf.GradientTape() as tape:
        loss = MaskedCrossEntropy(label_smoothing=smoothing)(y, variable)
    p = np.exp(logits.astype("float64"))
    p /= p.sum(axis=-1, keepdims=True)
    target = (1 - smoothing) * np.eye(7)[y] + smoothing / 7
    expected = (p - target) * (y != 0)[..., None] / 3
    found = tape.gradient(loss, variable).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-7)
