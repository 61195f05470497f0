"""Losses against loops in float64."""

import math
import re

import keras
import numpy as np
import pytest
from keras import ops

from kzoo.training import (
    ContrastiveLoss,
    CosineSimilarityLoss,
    MaskedBinaryCrossEntropy,
    MaskedCrossEntropy,
    MaskedSquaredError,
    SimilarityLoss,
    TokenAccuracy,
)
from tests.harness import gradients


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


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_distributions_are_targets(label_smoothing):
    random = np.random.default_rng(1)
    logits = random.normal(0, 3, (5, 4)).astype("float32")
    q = random.dirichlet(np.ones(4), 5).astype("float32")
    q[3] = -1.0  # a row that only fills the batch
    weights = np.array([1, 2, 0.5, 1, 1], "float32")
    log_p = logits - np.log(np.exp(logits.astype("float64")).sum(-1, keepdims=True))
    smooth = (1 - label_smoothing) * q + label_smoothing / 4
    each = -(smooth * log_p).sum(-1) * (weights * (q[:, 0] >= 0))
    right = each.sum() / weights[[0, 1, 2, 4]].sum()
    loss = MaskedCrossEntropy(label_smoothing, ignore_id=-1)
    assert float(loss(q, logits, weights)) == pytest.approx(right, rel=1e-6)
    assert float(loss(q.tolist(), logits, weights)) == pytest.approx(right, rel=1e-6)
    with pytest.raises(ValueError, match="need a negative ignore_id.*ignore_id=0"):
        MaskedCrossEntropy()(q, logits)
    # Those of one class alone are that class, also where another is impossible.
    ids = np.array([2, 0, 1, 3, 3])
    hard = float(loss(ids, logits))
    assert float(loss(np.eye(4, dtype="float32")[ids], logits)) == pytest.approx(hard)
    logits[0, 1] = -np.inf
    if not label_smoothing:
        found = float(loss(np.eye(4, dtype="float32")[ids], logits))
        assert found == pytest.approx(float(loss(ids, logits)))


def test_consistency_compares_distributions_as_a_whole():
    logits = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
    q = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]] * 2, "float32")
    loss = MaskedCrossEntropy(ignore_id=-1, consistency=2.0)
    plain = float(MaskedCrossEntropy(ignore_id=-1)(q, logits))
    assert float(loss(q, logits)) > plain
    other = q.copy()
    other[0] = [0.5, 0.2, 0.3]
    assert math.isnan(float(loss(other, logits)))


def test_accuracy_of_distributions_is_of_their_most_probable_class():
    metric = TokenAccuracy(ignore_id=-1)
    targets = np.array([[0.2, 0.8], [0.6, 0.4], [-1, -1], [0.9, 0.1]], "float32")
    logits = np.array([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [2.0, 1.0]], "float32")
    metric.update_state(targets, logits)
    assert float(metric.result()) == pytest.approx(2 / 3)


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


@pytest.mark.parametrize("shape", [(2, 1), (2, 2), (2, 4), (3,), (6,), (2, 3, 2)])
def test_targets_of_another_shape_are_named(shape):
    """Backends would say what they were doing, or broadcast."""
    message = r"Targets are ids.* Received: targets of shape .* \(2, 3, 5\)"
    with pytest.raises(ValueError, match=message):
        MaskedCrossEntropy()(np.ones(shape, "int32"), np.zeros((2, 3, 5), "float32"))


def when_run(loss, dtype, targets, outputs, jit_compile):
    """A loss of targets and predictions as TensorFlow traces it, of such axes."""
    import tensorflow as tf

    given = tf.TensorSpec(targets, dtype), tf.TensorSpec(outputs, "float32")
    return tf.function(
        lambda y, x: loss(y, x), input_signature=given, jit_compile=jit_compile
    )


@pytest.mark.tensorflow
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("dtype", ["int32", "bool"])
@pytest.mark.parametrize(
    "traced, shape",
    [
        ((None, None), (2, 4)),
        ((None, None), (2, 1)),  # which would broadcast
        ((None, None), (3, 2)),
        ((None, None, None), (3, 2, 1)),
        ((None, None, None), (2, 3, 2)),
        (None, (2, 4)),
    ],
)
def test_targets_of_another_shape_are_named_when_run(traced, shape, dtype, jit_compile):
    """Which of its operations TensorFlow would name depends on their order."""
    outputs = (None, None, 5)
    run = when_run(MaskedCrossEntropy(), dtype, traced, outputs, jit_compile)
    logits = np.zeros((2, 3, 5), "float32")
    with pytest.raises(Exception, match="targets_are_ids_of_rows_of_logits"):
        run(np.ones(shape, dtype), logits)
    fits = (2, 3, 1) if traced and len(traced) == 3 else (2, 3)
    assert float(run(np.ones(fits, dtype), logits)) == pytest.approx(math.log(5))


@pytest.mark.tensorflow
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize(
    "traced, outputs, shape",
    [
        ((None, None), (2, 3), (3, 2)),
        ((None, None), (2, 3), (2, 1)),
        ((None,), (3, 1), (2,)),
        (None, (3, 1), (2,)),
    ],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_numbers_of_another_shape_are_named_when_run(
    traced, outputs, shape, jit_compile, weighted
):
    def loss(y_true, y_pred):
        weights = ops.reshape(y_pred, (-1,)) if len(shape) == 1 else y_pred
        return MaskedSquaredError()(y_true, y_pred, weights + 1 if weighted else None)

    run = when_run(loss, "float32", traced, (None, outputs[1]), jit_compile)
    y_pred, fits = np.zeros(outputs, "float32"), outputs[: len(shape)]
    rules = "(predictions_have|sample_weight_has)_the_shape_of_targets"
    with pytest.raises(Exception, match=rules):
        run(np.ones(shape, "float32"), y_pred)
    y_true = np.arange(math.prod(fits), dtype="float32").reshape(fits)
    expected = np.mean(y_true**2)
    assert float(run(y_true, y_pred)) == pytest.approx(expected)


@pytest.mark.tensorflow
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("shape", [(3, 2), (2, 2), (6, 1)])
def test_weights_of_another_shape_are_named_when_run(shape, jit_compile):
    def loss(weights, logits):
        return MaskedCrossEntropy()(np.ones((2, 3), "int32"), logits, weights)

    free = (None, None)
    run = when_run(loss, "float32", free, (*free, 5), jit_compile)
    logits = np.zeros((2, 3, 5), "float32")
    with pytest.raises(Exception, match="sample_weight_has_the_shape_of_targets"):
        run(np.ones(shape, "float32"), logits)
    for fits in ((2, 3), (2, 1)):
        weights = np.full(fits, 3, "float32")
        assert float(run(weights, logits)) == pytest.approx(math.log(5))


@pytest.mark.parametrize("traced", [(None, None), None])
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.tensorflow
def test_weights_of_rows_may_be_a_column_when_run(traced, jit_compile):
    """A model that was given weights (B,) and (B, 1) knows no more of them."""

    def loss(weights, y_pred):
        y_true = ops.convert_to_tensor([1.0, 2.0, 3.0])
        return MaskedSquaredError()(y_true, y_pred, weights)

    run = when_run(loss, "float32", traced, (None, 1), jit_compile)
    y_pred = np.zeros((3, 1), "float32")
    weights = np.array([[1.0], [2.0], [3.0]], "float32")
    assert float(run(weights, y_pred)) == pytest.approx((1 + 8 + 27) / 6)
    for shape in ((3, 3), (2, 1)):
        with pytest.raises(Exception, match="sample_weight_has_the_shape_of_targets"):
            run(np.ones(shape, "float32"), y_pred)


def test_weights_may_be_a_column_after_a_row():
    model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(loss=MaskedSquaredError())
    x, y = np.zeros((3, 2), "float32"), np.array([1.0, 2.0, 3.0])
    for weights in (y, y[:, None], y):
        for targets in (y, y[:, None]):
            found = model.evaluate(x, targets, sample_weight=weights, verbose=0)
            assert found == pytest.approx((1 + 8 + 27) / 6)


@pytest.mark.parametrize("shape", [(2, 1, 5), (1, 3, 5), (3, 3, 5)])
def test_distributions_of_another_shape_are_named(shape):
    """Of 1 they would broadcast, to a loss that is a multiple."""
    loss, logits = MaskedCrossEntropy(ignore_id=-1), np.zeros((2, 3, 5), "float32")
    with pytest.raises(ValueError, match=re.escape(f"targets of shape {shape}")):
        loss(np.full(shape, 0.2, "float32"), logits)


@pytest.mark.tensorflow
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("shape", [(2, 1, 5), (1, 3, 5), (3, 3, 5)])
def test_distributions_of_another_shape_are_named_when_run(shape, jit_compile):
    free, loss = (None, None, 5), MaskedCrossEntropy(ignore_id=-1)
    run = when_run(loss, "float32", free, free, jit_compile)
    logits = np.zeros((2, 3, 5), "float32")
    rules = "targets_(have_the_shape|are_ids_of_rows)_of_logits"
    with pytest.raises(Exception, match=rules):
        run(np.full(shape, 0.2, "float32"), logits)
    y_true = np.full((2, 3, 5), 0.2, "float32")
    assert float(run(y_true, logits)) == pytest.approx(math.log(5))


@pytest.mark.parametrize("loss", [CosineSimilarityLoss(), ContrastiveLoss()])
@pytest.mark.parametrize("shape", [(1,), (2,), (1, 1), (3, 2), (1, 3)])
def test_targets_of_embeddings_are_one_for_each_row(loss, shape):
    vectors = np.random.default_rng(0).normal(size=(3, 2, 4)).astype("float32")
    ones = np.ones(3, "float32")
    assert float(loss(ones[:, None], vectors)) == float(loss(ones, vectors))
    with pytest.raises(ValueError, match="one for each row of embeddings"):
        loss(np.ones(shape, "float32"), vectors)


@pytest.mark.tensorflow
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("loss", [CosineSimilarityLoss(), ContrastiveLoss()])
@pytest.mark.parametrize("traced", [(None,), None])
def test_targets_of_embeddings_are_one_for_each_row_when_run(loss, traced, jit_compile):
    run = when_run(loss, "float32", traced, (None, 2, 4), jit_compile)
    vectors = np.random.default_rng(0).normal(size=(3, 2, 4)).astype("float32")
    ones = np.ones(3, "float32")
    assert float(run(ones, vectors)) == pytest.approx(float(loss(ones, vectors)))
    for count in (1, 2):
        with pytest.raises(Exception, match="targets_are_one_for_each_row"):
            run(np.ones(count, "float32"), vectors)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [(MaskedSquaredError(), 1.0), (MaskedBinaryCrossEntropy(), math.log(2))],
)
def test_numbers_keep_keras_s_mask_in_mixed_precision(loss, expected):
    """A cast before Keras reads it would lose it."""
    dense = keras.layers.Dense(1, dtype="mixed_bfloat16")
    model = keras.Sequential([keras.layers.Masking(), dense])
    x = np.array([[[1.0], [0.0], [0.0]]], "float32")
    model(x)
    dense.set_weights([np.array([[-50.0]]), np.array([50.0])])
    model.compile(loss=loss)
    y_true = np.array([[1.0, 0.0, 0.0]], "float32")
    assert model.evaluate(x, y_true, verbose=0) == pytest.approx(expected)


def test_the_loss_of_each_number_has_the_targets_shape():
    y_true, y_pred = np.array([1.0, 2.0, 3.0]), np.array([[1.0], [1.0], [1.0]])
    each = ops.convert_to_numpy(MaskedSquaredError().call(y_true, y_pred))
    assert each.tolist() == [0.0, 1.0, 4.0]


@pytest.mark.parametrize(
    "shape", [(2, 2), (3,), (3, 3), (1, 4), (6, 1), (3, 2, 1), (2, 2, 3)]
)
def test_weights_of_another_shape_are_named(shape):
    loss, logits = MaskedCrossEntropy(), np.zeros((2, 3, 5), "float32")
    message = r"sample_weight is .* targets of shape \(2, 3\)"
    with pytest.raises(ValueError, match=message):
        loss(np.ones((2, 3), "int32"), logits, np.ones(shape, "float32"))


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


def test_consistency_adds_how_far_the_two_halves_of_a_batch_are_apart():
    y_true, logits = batch(rows=3)
    _, others = batch(seed=1, rows=3)
    both = np.concatenate([logits, others])
    twice = np.concatenate([y_true, y_true])
    divergences = []
    for index in zip(*np.nonzero(y_true), strict=True):
        p, q = (
            np.exp(row[index].astype("float64") - np.logaddexp.reduce(row[index]))
            for row in (logits, others)
        )
        divergences += [p @ np.log(p / q), q @ np.log(q / p)]
    # Twice the paper's: two cross-entropies, and alpha of the mean divergence.
    wanted = 2 * expected(twice, both, 0.1) + 3.0 * np.sum(divergences) / 2 / (
        len(divergences) / 2
    )
    loss = MaskedCrossEntropy(0.1, consistency=3.0)(twice, both)
    assert 2 * float(loss) == pytest.approx(wanted, rel=1e-5)
    plain = MaskedCrossEntropy(0.1)
    same = MaskedCrossEntropy(0.1, consistency=3.0)(twice, np.tile(logits, (2, 1, 1)))
    assert float(same) == pytest.approx(float(plain(y_true, logits)), rel=1e-6)
    other = np.concatenate([y_true, y_true[::-1]])
    assert math.isnan(MaskedCrossEntropy(consistency=3.0)(other, both))
    for wrong in (-1, math.nan, math.inf):
        with pytest.raises(ValueError, match="consistency must be finite, and 0 or"):
            MaskedCrossEntropy(consistency=wrong)
    with pytest.raises(ValueError, match="in both halves.* Received: 1 rows"):
        MaskedCrossEntropy(consistency=3.0)(twice[:1], both[:1])


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


@pytest.mark.parametrize("shape", [(4,), (4, 1), (2, 3), (2, 3, 2)])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.3])
def test_targets_may_have_any_axes(shape, label_smoothing):
    rng = np.random.default_rng(3)
    y_true = rng.integers(0, 5, shape)
    y_true.flat[0] = -1
    logits = rng.normal(size=(*shape, 5)).astype("float32")
    got = MaskedCrossEntropy(label_smoothing, ignore_id=-1)(y_true, logits)
    assert float(got) == pytest.approx(
        expected(y_true, logits, label_smoothing, ignore_id=-1), rel=1e-6
    )


# Numbers.


def softplus(x):
    return math.log1p(math.exp(x))


@pytest.mark.parametrize("axis", [(), (1,)], ids=["flat", "column"])
def test_squared_errors_are_those_of_numbers(axis):
    y_true = np.array([1.0, math.nan, -2.0, 0.5])
    y_pred = np.array([3.0, 7.0, -2.5, 0.5], "float32").reshape(4, *axis)
    loss = MaskedSquaredError()
    assert float(loss(y_true, y_pred)) == pytest.approx((4 + 0.25 + 0) / 3)
    weights = np.array([1.0, 5.0, 2.0, 1.0])
    for sample_weight in (weights, weights[:, None]):
        got = loss(y_true, y_pred, sample_weight=sample_weight)
        assert float(got) == pytest.approx((4 + 2 * 0.25) / 4)
    assert float(loss(np.full(4, math.nan), y_pred)) == 0.0


def test_binary_cross_entropy_is_of_the_logit():
    y_true = np.array([1.0, 0.0, 0.25, math.nan])
    logits = np.array([[2.0], [-1.0], [0.5], [3.0]], "float32")
    # -t log p - (1 - t) log(1 - p) with p = 1 / (1 + exp(-x)).
    parts = [softplus(-2.0), softplus(-1.0), 0.25 * softplus(-0.5)]
    parts[2] += 0.75 * softplus(0.5)
    loss = MaskedBinaryCrossEntropy()
    assert float(loss(y_true, logits)) == pytest.approx(sum(parts) / 3)
    assert float(loss([1.0], [[-1e4]])) == pytest.approx(1e4)  # no overflow
    assert math.isnan(float(loss([1.5], [[0.0]])))


def gradient(loss, y_true, start):
    variable = keras.Variable(start, name="y_pred")
    (found,) = gradients([variable], lambda: loss(y_true, variable.value))
    return found


def test_a_left_out_number_has_no_gradient():
    y_true = keras.ops.convert_to_tensor(np.array([1.0, math.nan], "float32"))
    start = np.array([0.5, 2.0], "float32")
    p = 1 / (1 + math.exp(-0.5))
    for loss, expected_gradient in (
        (MaskedSquaredError(), [2 * (0.5 - 1.0), 0.0]),
        (MaskedBinaryCrossEntropy(), [p - 1.0, 0.0]),
    ):
        np.testing.assert_allclose(
            gradient(loss, y_true, start), expected_gradient, rtol=1e-6
        )


# Embeddings.

# Cosines of the pairs: 0.6, 0, -1; of a pair with a vector of zeros: 0.
VECTORS = np.array(
    [
        [[1.0, 0.0], [3.0, 4.0]],
        [[0.0, 2.0], [5.0, 0.0]],
        [[1.0, 1.0], [-2.0, -2.0]],
        [[0.0, 0.0], [1.0, 0.0]],
    ],
    "float32",
)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (dict(score_range=(0, 5)), [1.0, 0.2, 0.0]),
        (dict(score_range=(0, 5), cosine_range=(-1, 1)), [1.0, -0.6, -1.0]),
        (dict(score_range=(-5, 5), cosine_range=(-1, 1)), [1.0, 0.2, 0.0]),
    ],
)
def test_the_cosine_loss_compares_with_the_scaled_score(options, wanted):
    y_true = np.array([5.0, 1.0, 0.0, math.nan])
    errors = np.array([0.6, 0.0, -1.0]) - wanted
    loss = CosineSimilarityLoss(**options)
    got = float(loss(y_true, VECTORS))
    assert got == pytest.approx(np.mean(errors**2), rel=1e-6)
    weights = np.array([1.0, 0.0, 3.0, 1.0])
    got = float(loss(y_true, VECTORS, sample_weight=weights))
    assert got == pytest.approx((errors[0] ** 2 + 3 * errors[2] ** 2) / 4, rel=1e-6)


def test_a_score_outside_the_range_gives_nan():
    assert math.isnan(float(CosineSimilarityLoss()([0.5, 4.0], VECTORS[:2])))


def contrastive(vectors, temperature, rows):
    """Minus the mean log chance of the right partner, loops over the rows that count.

    Candidates of an anchor: the positives and hard negatives of these rows.
    """

    def cosine(a, b):
        return a @ b / math.sqrt((a @ a) * (b @ b))

    vectors, total = vectors.astype("float64"), 0.0
    for i in rows:
        anchor = vectors[i, 0]
        powers = [
            math.exp(cosine(anchor, other) / temperature)
            for j in rows
            for other in vectors[j, 1:]
        ]
        right = math.exp(cosine(anchor, vectors[i, 1]) / temperature)
        total -= math.log(right / sum(powers))
    return total / len(rows)


@pytest.mark.parametrize("texts", [2, 3])
@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_the_contrastive_loss_finds_the_right_partner(texts, temperature):
    vectors = np.random.default_rng(0).normal(size=(5, texts, 8)).astype("float32")
    counts = np.array([True, True, False, True, False])
    vectors[4] = 0.0  # as a row of nothing but padding
    rows = [0, 1, 3]
    for y_true in (counts, counts.astype("int32"), counts.astype("float32")):
        got = float(ContrastiveLoss(temperature)(y_true, vectors))
        assert got == pytest.approx(contrastive(vectors, temperature, rows), rel=1e-5)
    # The other way each positive finds its anchor among the anchors.
    turned = contrastive(vectors[:, [1, 0]], temperature, rows)
    both = (contrastive(vectors, temperature, rows) + turned) / 2
    got = float(ContrastiveLoss(temperature, symmetric=True)(counts, vectors))
    assert got == pytest.approx(both, rel=1e-5)


def test_equal_vectors_are_told_apart_by_chance():
    got = float(ContrastiveLoss()(np.ones(8, bool), np.ones((8, 2, 4), "float32")))
    assert got == pytest.approx(math.log(8), rel=1e-6)


def test_a_row_that_fills_a_batch_has_no_gradient():
    marks = keras.ops.convert_to_tensor(np.array([True, True, True, False]))
    scores = np.array([5.0, 1.0, 0.0, math.nan], "float32")
    for loss, y_true in (
        (ContrastiveLoss(), marks),
        (CosineSimilarityLoss((0, 5)), keras.ops.convert_to_tensor(scores)),
    ):
        found = gradient(loss, y_true, VECTORS)
        alone = gradient(loss, y_true[:3], VECTORS[:3])
        assert np.isfinite(found).all() and not found[3].any() and alone.any()
        np.testing.assert_allclose(found[:3], alone, atol=1e-6)


def test_scores_or_marks_choose_the_loss():
    loss = SimilarityLoss()
    marks = keras.ops.convert_to_tensor(np.array([True, True, True, False]))
    scores = keras.ops.convert_to_tensor(np.array([1.0, 0.2, 0.0, math.nan]))
    for y_true, chosen in (
        (marks, ContrastiveLoss()),
        (scores, CosineSimilarityLoss()),
    ):
        assert float(loss(y_true, VECTORS)) == float(chosen(y_true, VECTORS))
        np.testing.assert_array_equal(
            keras.ops.convert_to_numpy(loss.weights(y_true)), [1, 1, 1, 0]
        )


@pytest.mark.parametrize(
    "loss",
    [
        MaskedSquaredError(name="mse"),
        MaskedBinaryCrossEntropy(),
        CosineSimilarityLoss((0, 5), (-1, 1)),
        ContrastiveLoss(0.1, symmetric=True),
        SimilarityLoss(),
    ],
)
def test_every_loss_has_a_config(loss):
    saved = keras.saving.serialize_keras_object(loss)
    assert saved["registered_name"] == f"kzoo>{type(loss).__name__}"
    again = keras.saving.deserialize_keras_object(saved)
    assert again.get_config() == loss.get_config()


def test_losses_of_embeddings_name_what_does_not_fit():
    with pytest.raises(ValueError, match=r"score_range.*Received: \(5, 0\)"):
        CosineSimilarityLoss(score_range=(5, 0))
    for wrong in ((0, np.inf), (-np.inf, 0), (0, np.nan)):
        with pytest.raises(ValueError, match="score_range must be .* finite number"):
            CosineSimilarityLoss(score_range=wrong)
    with pytest.raises(ValueError, match=r"cosine_range must lie in \[-1, 1\]"):
        CosineSimilarityLoss(cosine_range=(0, 2))
    with pytest.raises(ValueError, match="temperature must be positive.*0"):
        ContrastiveLoss(temperature=0)
    triples, single = np.ones((2, 3, 4)), np.ones((2, 4))
    with pytest.raises(ValueError, match=r"learns from pairs.*\(2, 3, 4\)"):
        CosineSimilarityLoss()([0.0, 1.0], triples)
    for vectors in (single, np.ones((2, 1, 4))):
        with pytest.raises(ValueError, match="pairs or triples"):
            ContrastiveLoss()([1, 1], vectors)


def test_predictions_of_another_shape_are_refused():
    y = keras.ops.ones((2, 3))
    with pytest.raises(ValueError, match=r"Received: \(3, 2\) for \(2, 3\)"):
        MaskedSquaredError()(y, keras.ops.ones((3, 2)))
    for right in ((2, 3), (2, 3, 1)):
        assert float(MaskedSquaredError()(y, keras.ops.ones(right))) == 0.0


def test_a_score_below_one_is_no_filling_row():
    vectors = np.random.default_rng(0).normal(size=(4, 2, 5)).astype("float32")
    losses = [
        float(ContrastiveLoss()(keras.ops.convert_to_tensor(y), vectors))
        for y in ([1.0] * 4, [0.9] * 4, [True] * 4, [1, 1, 1, 1])
    ]
    assert losses[0] > 0 and losses[1:] == losses[:1] * 3
