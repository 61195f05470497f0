"""Token accuracy and perplexity, by hand."""

import keras
import numpy as np
import pytest

from kzoo.training import MaskedCrossEntropy, Perplexity, TokenAccuracy


def logits_of(probabilities):
    return np.log(np.array(probabilities, "float32"))


# Two batches of different token counts: 3 tokens, then 1.
FIRST = (
    np.array([[1, 2, 0], [1, 0, 0]]),
    logits_of(
        [
            [[0.25, 0.5, 0.25], [0.5, 0.25, 0.25], [0.1, 0.8, 0.1]],
            [[0.125, 0.75, 0.125], [0.1, 0.8, 0.1], [0.1, 0.8, 0.1]],
        ]
    ),
)
SECOND = (np.array([[2]]), logits_of([[[0.25, 0.25, 0.5]]]))


def test_accuracy_counts_tokens_over_batches():
    metric = TokenAccuracy()
    metric.update_state(*FIRST)
    assert float(metric.result()) == pytest.approx(2 / 3)
    metric.update_state(*SECOND)
    assert float(metric.result()) == pytest.approx(3 / 4)
    metric.reset_state()
    assert float(metric.result()) == 0.0


def test_perplexity_is_the_geometric_mean_over_tokens():
    metric = Perplexity()
    metric.update_state(*FIRST)
    metric.update_state(*SECOND)
    product = 0.5 * 0.25 * 0.75 * 0.5
    assert float(metric.result()) == pytest.approx(product**-0.25, rel=1e-6)


def test_only_padding_gives_accuracy_0_and_perplexity_1():
    nothing = np.zeros((2, 3), "int32"), FIRST[1]
    accuracy, perplexity = TokenAccuracy(), Perplexity()
    accuracy.update_state(*nothing)
    perplexity.update_state(*nothing)
    assert float(accuracy.result()) == 0.0
    assert float(perplexity.result()) == 1.0


@pytest.mark.parametrize(
    "weights", [[2.0, 1.0], [[2.0], [1.0]], [[2, 2, 9], [1, 9, 9]]]
)
def test_sample_weights_weigh_tokens(weights):
    # Row 0 counts twice: right (0.5) and wrong (0.25); row 1 once: right (0.75).
    accuracy, perplexity = TokenAccuracy(), Perplexity()
    weights = np.array(weights, "float32")
    accuracy.update_state(*FIRST, sample_weight=weights)
    perplexity.update_state(*FIRST, sample_weight=weights)
    assert float(accuracy.result()) == pytest.approx(3 / 5)
    product = 0.5**2 * 0.25**2 * 0.75
    assert float(perplexity.result()) == pytest.approx(product**-0.2, rel=1e-6)


def test_an_ignored_id_may_be_negative():
    y_true = np.where(FIRST[0] == 0, -100, FIRST[0])
    metric = Perplexity(ignore_id=-100)
    metric.update_state(y_true, FIRST[1])
    assert float(metric.result()) == pytest.approx((0.5 * 0.25 * 0.75) ** (-1 / 3))


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_fit_reports_them_under_every_policy(policy):
    # The model's output is uniform over 4 at the start, and rate 0 keeps it so.
    model = keras.Sequential(
        [
            keras.Input((3,), dtype="int32"),
            keras.layers.Embedding(4, 8, dtype=policy),
            keras.layers.Dense(4, kernel_initializer="zeros", dtype=policy),
        ]
    )
    model.compile(
        keras.optimizers.SGD(0.0),
        loss=MaskedCrossEntropy(0.1),
        metrics=[TokenAccuracy(), Perplexity()],
    )
    y = np.array([[1, 2, 0], [3, 0, 0], [1, 1, 1]], "int32")
    history = model.fit(y, y, batch_size=2, epochs=1, verbose=0).history
    assert history["loss"][0] == pytest.approx(np.log(4), rel=1e-5)
    assert history["perplexity"][0] == pytest.approx(4.0, rel=1e-5)
    assert history["token_accuracy"][0] == 0.0


def test_what_keras_masks_is_left_out_as_in_the_loss():
    ids = np.array([[3, 1, 2, 0, 0], [1, 0, 0, 0, 0]])
    y = np.array([[1, 0, 2, 0, 0], [3, 0, 0, 0, 0]])  # 0 is a class here
    inputs = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(4, 6, mask_zero=True)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(4)(x))
    model.compile(
        loss=MaskedCrossEntropy(ignore_id=-1),
        metrics=[TokenAccuracy(ignore_id=-1)],
        weighted_metrics=[Perplexity(ignore_id=-1)],
    )
    found = model.evaluate(ids, y, verbose=0, return_dict=True)
    logits = np.asarray(model.predict(ids, verbose=0), "float64")[ids > 0]
    targets = y[ids > 0]
    right = np.mean(logits.argmax(-1) == targets)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    loss = -np.mean(log_p[np.arange(4), targets])
    assert found["token_accuracy"] == pytest.approx(right)
    assert found["loss"] == pytest.approx(loss, rel=1e-5)
    assert found["perplexity"] == pytest.approx(np.exp(loss), rel=1e-5)


@pytest.mark.parametrize("cls", [TokenAccuracy, Perplexity])
def test_config_round_trip(cls):
    metric = cls(ignore_id=5, name="m")
    again = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(metric)
    )
    assert type(again) is cls
    assert again.get_config() == metric.get_config()
