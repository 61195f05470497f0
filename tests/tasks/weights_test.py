"""What counts how much: Keras's own losses and metrics, weights, held-out shares."""

import keras
import numpy as np
import pytest

import kzoo
from tests.harness import to_numpy
from tests.words import EAGER, TOKENIZER, WORDS

SMALL = dict(num_layers=1, hidden_dim=16, num_heads=2, intermediate_dim=16, dropout=0.0)
TEXTS, CLASSES = ["ab", "c", "abcd"], [1, 0, 1]  # no multiple of a batch
NAMES = ["no", "yes"]


def classifier(**changes):
    return kzoo.TextClassifier.from_size(
        "tiny", TOKENIZER, labels=NAMES, head_dropout=0.0, **{**SMALL, **changes}
    )


def cross_entropies(model, texts, classes):
    logits = model.predict(texts, verbose=0).astype("float64")
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -log_p[range(len(classes)), classes]


def test_losses_and_metrics_of_keras_see_no_filling_rows():
    model = classifier()
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="right")],
        run_eagerly=EAGER,
    )
    got = model.evaluate(TEXTS, CLASSES, verbose=0, return_dict=True)
    assert got["loss"] == pytest.approx(
        cross_entropies(model, TEXTS, CLASSES).mean(), rel=1e-5
    )
    best = model.predict(TEXTS, verbose=0).argmax(-1)
    assert got["right"] == pytest.approx((best == CLASSES).mean())
    model.fit(TEXTS, CLASSES, verbose=0)
    assert all(np.isfinite(to_numpy(v.value)).all() for v in model.weights)


def test_a_regressor_trains_with_a_loss_of_keras():
    model = kzoo.TextRegressor.from_size("tiny", TOKENIZER, **SMALL)
    model.compile(loss="mse", metrics=["mae"], run_eagerly=EAGER)
    history = model.fit(TEXTS, [1.0, 2.0, 3.0], verbose=0).history
    assert np.isfinite([*history["loss"], *history["mae"]]).all()
    assert all(np.isfinite(to_numpy(v.value)).all() for v in model.weights)


def test_weights_of_examples_and_classes_weigh_the_loss():
    model = classifier()
    model.compile()
    losses = cross_entropies(model, TEXTS, CLASSES)
    weights = np.array([1.0, 2.0, 0.5])
    got = model.evaluate(TEXTS, CLASSES, sample_weight=weights, verbose=0)[0]
    assert got == pytest.approx((weights * losses).sum() / weights.sum(), rel=1e-5)
    model.compile(keras.optimizers.SGD(0.0))
    by_class = np.array([3.0, 1.0])[CLASSES]
    for class_weight in ({0: 3.0}, {"no": 3.0, "yes": 1.0}):
        history = model.fit(TEXTS, CLASSES, class_weight=class_weight, verbose=0)
        expected = (by_class * losses).sum() / by_class.sum()
        assert history.history["loss"][0] == pytest.approx(expected, rel=1e-5)


def test_a_share_of_the_examples_is_held_out():
    model = classifier()
    model.compile(keras.optimizers.SGD(0.0), run_eagerly=EAGER)
    texts, classes = WORDS[:10], [0, 1] * 5
    losses = cross_entropies(model, texts, classes)
    history = model.fit(texts, classes, validation_split=0.3, verbose=0).history
    assert history["loss"][0] == pytest.approx(losses[:7].mean(), rel=1e-5)
    assert history["val_loss"][0] == pytest.approx(losses[7:].mean(), rel=1e-5)
    weights = np.array([0.0, 1.0, 1.0])
    held_out = (texts[7:], classes[7:], weights)
    history = model.fit(texts, classes, validation_data=held_out, verbose=0).history
    assert history["val_loss"][0] == pytest.approx(losses[8:].mean(), rel=1e-5)


@pytest.mark.tensorflow
def test_pipelines_of_strings_may_have_weights():
    import tensorflow as tf

    model = classifier()
    model.compile()
    losses = cross_entropies(model, TEXTS, CLASSES)
    columns = (TEXTS, CLASSES, [1.0, 2.0, 0.5])
    dataset = tf.data.Dataset.from_tensor_slices(columns).batch(3)
    expected = np.average(losses, weights=columns[2])
    assert model.evaluate(dataset, verbose=0)[0] == pytest.approx(expected, rel=1e-5)


def test_a_column_of_targets_is_as_good_as_a_row():
    model = classifier()
    model.compile(run_eagerly=EAGER)
    inputs, targets = model.encode_text(TEXTS, CLASSES)
    expected = model.evaluate(inputs, targets, verbose=0)
    got = model.evaluate(inputs, targets[:, None], verbose=0)
    assert got == pytest.approx(expected, rel=1e-6)
    numbers = kzoo.TextRegressor.from_size("tiny", TOKENIZER, **SMALL)
    numbers.compile(run_eagerly=EAGER)
    y = np.array([1.0, 2.0, 3.0])
    numbers.fit(inputs, y, verbose=0)
    assert numbers.evaluate(inputs, y[:, None], verbose=0) == pytest.approx(
        numbers.evaluate(inputs, y, verbose=0), rel=1e-6
    )


def test_a_mask_of_ints_is_one_of_bools():
    model = classifier(pooling="cls")
    inputs, _ = model.encode_text(TEXTS)
    mask = inputs["token_ids"] != 0
    expected = model.predict({**inputs, "padding_mask": mask}, verbose=0)
    for dtype in ("int32", "int64"):
        got = model.predict({**inputs, "padding_mask": mask.astype(dtype)}, verbose=0)
        np.testing.assert_allclose(got, expected, atol=1e-6)
    added = np.where(mask, 0.0, -1e9).astype("float32")
    with pytest.raises(ValueError, match="give mask == 0"):
        model.predict({**inputs, "padding_mask": added}, verbose=0)


def test_what_could_be_read_in_two_ways_is_refused():
    with pytest.raises(
        ValueError, match="labels are a list of names, strings.*num_classes"
    ):
        kzoo.TextClassifier.from_size("tiny", TOKENIZER, labels=[1, 2], **SMALL)
    stars = kzoo.TextClassifier.from_size("tiny", TOKENIZER, labels=["1", "2"], **SMALL)
    assert stars.encode_targets(["1", "2"]) == [0, 1]
    named = r"one of \['1', '2'\], as strings: an int might be a place. Received: 1"
    with pytest.raises(ValueError, match=named):
        stars.encode_targets([1])


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("ab", "yes"), {}, "needs a list of examples.*'ab'"),
        ((TEXTS, CLASSES), dict(sample_weight=[1.0]), "each of 3 rows.*(1,)"),
        ((TEXTS, CLASSES), dict(validation_split=0.9), "an example on both sides"),
        (
            (TEXTS, CLASSES),
            dict(validation_split=float("nan")),
            "an example on both sides. Received: validation_split=nan",
        ),
        (({"a": 1}, CLASSES), {}, "reads a as an array of numbers.* Received: a int"),
        ((TEXTS, CLASSES), dict(validation_data=(1, 2, 3, 4)), "a tuple of 4"),
    ],
)
def test_bad_arguments_of_fit_are_named(arguments, options, message):
    model = classifier()
    model.compile()
    with pytest.raises(ValueError, match=message):
        model.fit(*arguments, **options)


def test_targets_that_are_no_ids_are_refused():
    model = classifier()
    model.compile(run_eagerly=EAGER)
    inputs, _ = model.encode_text(TEXTS[:2])
    one_hot = np.eye(2, dtype="int32")
    with pytest.raises(ValueError, match=r"are classes, int \(batch\), or distrib"):
        model.evaluate(inputs, one_hot, verbose=0)
    with pytest.raises(ValueError, match="Targets are ids.*or distributions, floats"):
        model.loss(one_hot, np.zeros((2, 2), "float32"))  # as of a pipeline


def test_classes_weigh_only_where_there_are_classes():
    model = kzoo.TextRegressor.from_size("tiny", TOKENIZER, **SMALL)
    model.compile()
    with pytest.raises(ValueError, match="class_weight is of tasks with one class"):
        model.fit(TEXTS, [1.0, 2.0, 3.0], class_weight={0: 1.0})
    with pytest.raises(ValueError, match=r"must be a dict from a class.*\[1.0, 2.0\]"):
        classifier().fit(TEXTS, CLASSES, class_weight=[1.0, 2.0])


def test_a_question_may_begin_with_the_end_token():
    config = kzoo.ModelConfig.from_size(
        "tiny", "encoder", TOKENIZER.vocabulary_size, start_token_id=2, **SMALL
    )
    model = kzoo.QuestionAnswering(config)
    ids = np.array([[2, 5, 6, 2, 7, 4, 5, 2]])
    logits = to_numpy(model({"token_ids": ids}))[0]
    inside = (logits > -1e20).all(axis=0)
    assert inside.tolist() == [False] * 4 + [True] * 3 + [False]


def test_empty_texts_alone_teach_nothing_to_guess():
    tokenizer = kzoo.FastTokenizer.train(
        WORDS, 30, algorithm="character", mask_token=True
    )
    model = kzoo.MaskedLM.from_size("tiny", tokenizer, **SMALL)
    model.compile()
    with pytest.raises(ValueError, match="a text that is not empty. Received: 2"):
        model.fit(["", ""])


def test_classes_do_not_weigh_parts_of_a_sequence_of_arrays():
    model = kzoo.TokenClassifier.from_size(
        "tiny", TOKENIZER, labels=["X", "Y"], **SMALL
    )
    model.compile(run_eagerly=EAGER)
    ids = np.full((2, 3), 5)
    with pytest.raises(ValueError, match="class_weight is of tasks with one class"):
        model.fit({"token_ids": ids}, ids % 2, class_weight={0: 1.0, 1: 2.0}, verbose=0)


def test_weights_of_arrays_without_targets_count():
    model = kzoo.CausalLM.from_size("tiny", vocabulary_size=30, **SMALL)
    model.compile(run_eagerly=EAGER)
    ids = np.random.default_rng(0).integers(3, 30, (6, 8), dtype="int32")
    weights, own = np.eye(6, dtype="float32")[2], {"token_ids": ids[2:3]}
    expected = model.evaluate(own, verbose=0)[0]
    rows = {"token_ids": ids.astype("int64")}  # which JAX has not
    found = model.evaluate(rows, sample_weight=weights, verbose=0)[0]
    assert found == pytest.approx(expected, rel=1e-5)
    model.compile(keras.optimizers.SGD(0.0), run_eagerly=EAGER)
    history = model.fit(
        rows, sample_weight=weights, validation_data=(rows, None, weights), verbose=0
    ).history
    assert history["loss"] == history["val_loss"]
    assert history["loss"] == pytest.approx([expected], rel=1e-5)
