"""What `fit` and `evaluate` report is per token, and right."""

import keras
import numpy as np
import pytest

from kzoo.training import MaskedCrossEntropy
from tests.harness import to_numpy
from tests.reference import log_softmax
from tests.words import (
    EAGER,
    WORDS,
    causal,
    compiled,
    ids_of,
    perturbed,
    seq2seq,
    seq2seq_ids,
)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
def test_loss_accuracy_and_perplexity_ignore_padding(label_smoothing):
    model = perturbed(seq2seq())
    compiled(model, eager=True, label_smoothing=label_smoothing)
    sources, targets = WORDS[:7], WORDS[-7:]
    inputs, y = seq2seq_ids(sources, targets)
    log_p = log_softmax(to_numpy(model(inputs)).astype("float64"))
    losses, hits, smooth = [], [], []
    for row, column in zip(*np.nonzero(y), strict=True):
        token = log_p[row, column]
        losses.append(-token[y[row, column]])
        smooth.append(-token.mean())
        hits.append(token.argmax() == y[row, column])
    e = label_smoothing
    smoothed = (1 - e) * np.array(losses) + e * np.array(smooth)
    for data, batch_size in (
        ((inputs, y), 1),
        ((sources, targets), 3),  # the last batch is filled with rows of padding
        ((sources, targets), 8),
    ):
        got = model.evaluate(*data, batch_size=batch_size, verbose=0, return_dict=True)
        assert got["loss"] == pytest.approx(smoothed.mean(), rel=1e-5)
        assert got["token_accuracy"] == pytest.approx(np.mean(hits), rel=1e-6)
        assert got["perplexity"] == pytest.approx(np.exp(np.mean(losses)), rel=1e-5)


def test_the_loss_is_a_mean_over_weighted_tokens():
    model, ids = perturbed(causal()), ids_of(WORDS[::4])
    inputs, y = {"token_ids": ids[:, :-1]}, ids[:, 1:]
    weight = np.linspace(0.0, 2.0, len(y), dtype="float32")
    log_p = log_softmax(to_numpy(model(inputs)).astype("float64"))
    losses = -np.take_along_axis(log_p, y[..., None], axis=-1)[..., 0]
    for sample_weight in (None, weight, weight[:, None] * np.ones(y.shape, "float32")):
        weights = (y != 0).astype("float64")
        if sample_weight is not None:
            weights *= sample_weight.reshape((len(y), -1))
        expected = pytest.approx((losses * weights).sum() / weights.sum(), rel=1e-5)
        compiled(model, keras.optimizers.SGD(0.0), eager=True)
        options = dict(sample_weight=sample_weight, batch_size=7, verbose=0)
        assert model.fit(inputs, y, **options).history["loss"][0] == expected
        assert model.evaluate(inputs, y, **options)[0] == expected
    assert model.metrics_names.count("loss") == 1


def test_weights_of_rows_and_of_tokens_on_one_compiled_model():
    model = compiled(perturbed(causal()), keras.optimizers.SGD(0.0))
    inputs, y = {"token_ids": ids_of(WORDS)[:, :-1]}, ids_of(WORDS)[:, 1:]
    rows = np.linspace(0.0, 2.0, len(y), dtype="float32")
    tokens = rows[:, None] * np.ones(y.shape, "float32")
    losses = [
        model.evaluate(inputs, y, sample_weight=weight, batch_size=16, verbose=0)[0]
        for weight in (rows, tokens, rows, rows[:, None])
    ]
    np.testing.assert_allclose(losses, losses[0], rtol=1e-6)


def test_a_loss_of_the_user_is_reported_as_keras_does():
    model = causal()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with pytest.warns(UserWarning, match="loss of Keras counts them"):
        compiled(model, keras.optimizers.SGD(0.0), loss=loss)
    inputs, y = {"token_ids": ids_of(WORDS[:8])[:, :-1]}, ids_of(WORDS[:8])[:, 1:]
    expected = to_numpy(loss(y, model(inputs)))
    got = model.evaluate(inputs, y, batch_size=4, verbose=0)[0]
    assert got == pytest.approx(expected, rel=1e-5)


class FirstTokenAccuracy(keras.metrics.Mean):
    """Looks at one position of ids (B, T) and logits (B, T, V)."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        hits = keras.ops.equal(
            keras.ops.cast(y_true[:, 0], "int32"),
            keras.ops.cast(keras.ops.argmax(y_pred[:, 0], axis=-1), "int32"),
        )
        super().update_state(keras.ops.cast(hits, "float32"))


def test_metrics_of_the_user_see_positions():
    model = perturbed(seq2seq())
    metrics = [FirstTokenAccuracy(name="first")]
    compiled(model, keras.optimizers.SGD(0.0), eager=True, metrics=metrics)
    inputs, y = seq2seq_ids(WORDS[:8], WORDS[:8])
    expected = np.mean(to_numpy(model(inputs))[:, 0].argmax(axis=-1) == y[:, 0])
    for data in ((inputs, y), (WORDS[:8], WORDS[:8])):
        history = model.fit(*data, batch_size=8, verbose=0).history
        assert history["first"][0] == pytest.approx(expected)


def test_compile_has_the_defaults_of_the_paper():
    model = seq2seq()
    model.compile(run_eagerly=EAGER)
    optimizer = model.optimizer
    assert (optimizer.beta_2, optimizer.epsilon) == (0.98, 1e-9)
    assert isinstance(model.loss, MaskedCrossEntropy)
    # Section 5.3: width ** -0.5 * min(step ** -0.5, step * 4000 ** -1.5), steps from 1.
    model.fit(WORDS[:4], WORDS[:4], verbose=0)
    rate = float(keras.ops.convert_to_numpy(optimizer.learning_rate))
    steps = [32**-0.5 * step * 4000**-1.5 for step in (1, 2)]
    assert any(rate == pytest.approx(step, rel=1e-5) for step in steps)


def test_smoothing_a_loss_of_the_user_is_refused():
    loss = MaskedCrossEntropy(ignore_id=0)
    with pytest.raises(ValueError, match="label_smoothing=0.1 is of the default loss"):
        causal().compile(loss=loss, label_smoothing=0.1)
    causal().compile(loss=loss)
