"""Classes and numbers of texts: right under padding, on every form of data, saved."""

import grain
import keras
import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kzoo
from kzoo.tasks import load_task
from kzoo.tokenizers import Template
from kzoo.training import ResumableCheckpoint
from tests.harness import KillBefore, Killed, difference, perturb, to_numpy
from tests.reference import Reference, log_softmax
from tests.words import EAGER, TOKENIZER, WORDS, compiled, ids_of

POOLINGS = ["cls", "last", "mean", "max", "max_logits"]
LABELS = ["no", "yes", "perhaps"]
SMALL = dict(num_layers=1, hidden_dim=16, intermediate_dim=16, num_heads=2, dropout=0.0)
# What a text with an "a" is called; and a number of it.
TEXTS = [word for word in WORDS if len(word) < 4][:48]
NAMES = ["yes" if "a" in text else "no" for text in TEXTS]
# Three of each.
MIXED = zip(*sorted(zip(NAMES, TEXTS))[:3], *sorted(zip(NAMES, TEXTS))[-3:])
MIXED = [list(column) for column in MIXED][::-1]
NUMBERS = [text.count("a") - 0.5 * text.count("b") for text in TEXTS]


def classifier(tokenizer=TOKENIZER, **changes):
    return kzoo.TextClassifier.from_size(
        "tiny",
        tokenizer,
        vocabulary_size=TOKENIZER.vocabulary_size,
        name="classifier",
        **{"labels": LABELS, "head_dropout": 0.0, **SMALL, **changes},
    )


def regressor(**changes):
    options = {"head_dropout": 0.0, **SMALL, **changes}
    return kzoo.TextRegressor.from_size("tiny", TOKENIZER, name="number", **options)


def perturbed(task):
    perturb(task.named_variables().values())
    table = task.stack.token_embedding.embeddings
    table.assign(table.value / task.stack.config.embedding_scale)
    return task


def expected_outputs(task, ids, mask=None, segments=None):
    """Pooling and head row by row in float64, over the reference's states."""
    weights = {k: to_numpy(w.value) for k, w in task.named_variables().items()}
    reference = Reference(task.config, weights)
    mask = ids != 0 if mask is None else mask
    stack = reference.encode if task.config.encoder else reference.decode
    options = {} if segments is None else {"segment_ids": segments}
    states = stack(ids, mask, **options)

    def head(x):
        if task.hidden_activation:
            x = np.tanh(x @ weights["head/hidden/kernel"] + weights["head/hidden/bias"])
        return x @ weights["head/output/kernel"] + weights["head/output/bias"]

    pool = {
        "cls": lambda x: head(x[0]),
        "last": lambda x: head(x[-1]),
        "mean": lambda x: head(x.mean(axis=0)),
        "max": lambda x: head(x.max(axis=0)),
        "max_logits": lambda x: head(x).max(axis=0),
    }[task.pooling]
    return np.stack([pool(row[real]) for row, real in zip(states, mask)])


# Predictions.


# Every pooling with both sides and both architectures, which it does not see.
@pytest.mark.parametrize(
    ("architecture", "pooling", "side"),
    [
        (architecture, pooling, ("right", "left")[(number + shift) % 2])
        for shift, architecture in enumerate(["encoder", "decoder"])
        for number, pooling in enumerate(POOLINGS)
        if (architecture, pooling) != ("decoder", "cls")  # which is a warning
    ],
)
def test_logits_equal_the_reference(architecture, pooling, side):
    task = perturbed(
        classifier(
            architecture=architecture,
            pooling=pooling,
            hidden_activation="tanh",
            num_segments=2 * (architecture == "encoder"),
            positions="learned" if side == "left" else "rotary",
            max_sequence_length=9,
        )
    )
    ids = ids_of(["abcd", "b", "ca"])
    ids = ids if side == "right" else ids[:, ::-1].copy()
    inputs, segments = {"token_ids": ids}, None
    if architecture == "encoder":
        segments = inputs["segment_ids"] = (np.arange(ids.size) % 2).reshape(ids.shape)
    got = to_numpy(task(inputs))
    assert difference(got, expected_outputs(task, ids, segments=segments)) <= 1e-5
    mask = ids != 0
    mask[0, 0 if side == "left" else -1] = False  # a mask of the user's own
    got = to_numpy(task({**inputs, "padding_mask": mask}))
    assert difference(got, expected_outputs(task, ids, mask, segments)) <= 1e-5


@pytest.fixture(scope="module")
def built():
    """Perturbed tasks, made once."""
    made = {}

    def get(**changes):
        key = tuple(changes.items())
        if key not in made:
            made[key] = perturbed(classifier(**changes))
        return made[key]

    return get


POSITIONS = ["learned", "sinusoidal", "rotary", "relative", "alibi", "none"]


@given(
    pooling_of=st.sampled_from(
        [("encoder", pooling) for pooling in POOLINGS]
        + [("decoder", pooling) for pooling in POOLINGS[1:]]
    ),
    positions=st.sampled_from(POSITIONS),
    words=st.lists(st.text("abcd", max_size=4), min_size=3, max_size=3),
    left=st.integers(0, 3),
)
@settings(max_examples=15, deadline=None)
def test_neither_padding_nor_batching_changes_a_prediction(
    built, pooling_of, positions, words, left
):
    architecture, pooling = pooling_of
    task = built(pooling=pooling, positions=positions, architecture=architecture)
    ids = ids_of(words)
    # Few shapes, for backends that compile for each.
    rows = np.zeros((3, 9), "int32")
    rows[:, : ids.shape[1]] = ids
    together = to_numpy(task({"token_ids": rows}))
    rows = np.roll(rows, left, axis=1)
    np.testing.assert_allclose(to_numpy(task({"token_ids": rows})), together, atol=1e-5)
    alone = to_numpy(task({"token_ids": ids_of(words[-1:])}))
    np.testing.assert_allclose(alone[0], together[-1], atol=1e-5)


def test_strings_give_what_their_ids_give():
    for changes, texts in (
        ({}, ["abcd", "", "b"]),
        (dict(num_segments=2), [("ab", "c"), ("", "dcba"), ("", "")]),
        (dict(architecture="decoder", pooling="last"), ["abcd", "", "b"]),
    ):
        task = perturbed(classifier(**changes))
        got = task.predict(texts, verbose=0)
        inputs, targets = task.encode_text(texts, ["yes", 0, "perhaps"])
        assert targets.tolist() == [1, 0, 2]
        expected = expected_outputs(
            task, inputs["token_ids"], segments=inputs.get("segment_ids")
        )
        assert difference(got, expected) <= 1e-5
        classes, p = task.classify(texts, return_probabilities=True)
        np.testing.assert_allclose(p, np.exp(log_softmax(expected)), atol=1e-5)
        assert classes == [LABELS[i] for i in expected.argmax(axis=1)]
    numbered = perturbed(classifier(labels=None, num_classes=2))
    assert set(numbered.classify(TEXTS)) <= {0, 1}


# Training.


def test_it_learns_strings_and_scores_them():
    task = classifier(pooling="mean", hidden_dim=32)
    task.compile(keras.optimizers.Adam(0.01))
    history = task.fit(TEXTS, NAMES, epochs=15, batch_size=16, verbose=0).history
    assert history["accuracy"][-1] > 0.95 > history["accuracy"][0]
    right = np.mean([a == b for a, b in zip(task.classify(TEXTS), NAMES)])
    scores = task.score(TEXTS, NAMES)
    assert scores["accuracy"] == pytest.approx(right)
    assert task.evaluate(TEXTS, NAMES, verbose=0)[1] == pytest.approx(right)


def test_a_regressor_learns_numbers():
    task = regressor(pooling="mean", hidden_dim=32)
    task.compile(keras.optimizers.Adam(0.01))
    loss = task.fit(TEXTS, NUMBERS, epochs=20, batch_size=16, verbose=0).history["loss"]
    assert loss[-1] < 0.1 < loss[0]
    predicted = task.predict(TEXTS, verbose=0)
    assert predicted.shape == (len(TEXTS), 1)
    scores = task.score(TEXTS, NUMBERS)
    error = np.mean((predicted[:, 0] - np.array(NUMBERS)) ** 2)
    assert scores["mean_squared_error"] == pytest.approx(error, rel=1e-5)
    assert scores["pearson"] > 0.9


@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
def test_rows_that_only_fill_a_batch_never_count(label_smoothing):
    task = perturbed(classifier())
    compiled(task, eager=True, label_smoothing=label_smoothing)
    texts, names = TEXTS[:7], NAMES[:6] + ["perhaps"]
    y = np.array([LABELS.index(name) for name in names])
    log_p = log_softmax(expected_outputs(task, ids_of(texts)))
    target = (1 - label_smoothing) * np.eye(3)[y] + label_smoothing / 3
    loss = -(target * log_p).sum(axis=1).mean()
    accuracy = np.mean(log_p.argmax(axis=1) == y)
    for batch_size in (3, 7, 32):
        got = task.evaluate(texts, names, batch_size=batch_size, verbose=0)
        assert got == pytest.approx([loss, accuracy], rel=1e-5)


def test_rows_that_only_fill_a_batch_of_numbers_never_count():
    texts = TEXTS[:7]
    number = compiled(perturbed(regressor()), eager=True)
    expected = expected_outputs(number, ids_of(texts))[:, 0]
    error = np.mean((expected - NUMBERS[:7]) ** 2)
    for batch_size in (3, 7, 32):
        got = number.evaluate(texts, NUMBERS[:7], batch_size=batch_size, verbose=0)
        assert got == pytest.approx(error, rel=1e-5)


def test_filling_rows_leave_no_trace_in_the_gradient():
    # One step on 5 texts, alone and in a batch of 8.
    for make, y in ((classifier, NAMES[:5]), (regressor, NUMBERS[:5])):
        steps = []
        for batch_size in (5, 8):
            task = compiled(perturbed(make()), eager=True)
            task.fit(TEXTS[:5], y, batch_size=batch_size, verbose=0)
            steps.append(task.get_weights())
        for one, other in zip(*steps):
            np.testing.assert_allclose(one, other, atol=1e-5)


# Pairs with names and, in some forms, with their numbers; single texts with numbers.
PAIRS = [(text, text[::-1]) for text in TEXTS[:8]]
FORMS = [
    (
        lambda: classifier(num_segments=2),
        PAIRS,
        NAMES[:8],
        [LABELS.index(name) for name in NAMES[:8]],
    ),
    (regressor, TEXTS[:8], NUMBERS[:8], NUMBERS[:8]),
]


@pytest.mark.parametrize(("make", "texts", "y", "ids"), FORMS)
def test_every_form_of_data_has_the_same_loss(make, texts, y, ids):
    task = compiled(perturbed(make()), eager=True)
    expected = task.evaluate(texts, y, batch_size=4, verbose=0)
    inputs, targets = task.encode_text(texts, y)
    elements = grain.MapDataset.source(list(zip(texts, y)))
    numbered = grain.MapDataset.source(list(zip(texts, ids)))
    for data in (
        (inputs, targets),
        (np.array(texts), np.array(y)),
        (elements.batch(4),),
        (numbered.to_iter_dataset().batch(4),),
    ):
        got = task.evaluate(*data, batch_size=4, verbose=0)
        np.testing.assert_allclose(got, expected, rtol=1e-5)
    history = task.fit(
        texts, y, batch_size=4, validation_data=(texts, y), verbose=0
    ).history
    assert {"loss", "val_loss"} <= set(history)
    alone = grain.MapDataset.source([(text,) for text in texts]).batch(4)
    got = task.predict(alone, verbose=0)
    np.testing.assert_allclose(got, task.predict(inputs, verbose=0), atol=1e-5)


@pytest.mark.tensorflow
@pytest.mark.parametrize(("make", "texts", "y", "ids"), FORMS)
def test_tf_data_of_strings(make, texts, y, ids):
    import tensorflow as tf

    task = compiled(perturbed(make()), keras.optimizers.SGD(0.01), eager=True)
    pairs = texts is PAIRS
    parts = tuple(map(list, zip(*texts))) if pairs else texts
    dataset = tf.data.Dataset.from_tensor_slices((parts, y)).batch(4)
    np.testing.assert_allclose(
        task.evaluate(dataset, verbose=0), task.evaluate(texts, y, verbose=0), rtol=1e-5
    )
    expected = task.predict(texts, verbose=0)
    alone = dataset.map(lambda x, y: (x,) if pairs else x)
    for data in (dataset, alone):
        got = task.predict(data, verbose=0)
        np.testing.assert_allclose(got, expected, atol=1e-5)
    numbered = tf.data.Dataset.from_tensor_slices((parts, ids)).batch(4)
    history = task.fit(numbered, epochs=2, verbose=0).history
    assert history["loss"][1] < history["loss"][0]


@pytest.mark.parametrize(
    ("dtype", "pooling"), [("mixed_bfloat16", "mean"), ("mixed_float16", "max_logits")]
)
def test_mixed_precision_trains(dtype, pooling):
    task = classifier(dtype=dtype, pooling=pooling, hidden_activation="tanh")
    task.compile(keras.optimizers.Adam(0.01), run_eagerly=EAGER)
    history = task.fit(TEXTS, NAMES, batch_size=24, epochs=2, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    assert history["loss"][-1] < history["loss"][0]
    assert {w.dtype for w in task.weights} == {"float32"}


def test_resuming_gives_the_same_weights_bit_by_bit(tmp_path):
    def fit(task, *callbacks):
        data = dict(x=TEXTS[:10], y=NAMES[:10], batch_size=4, epochs=2, verbose=0)
        task.fit(**data, callbacks=list(callbacks))

    options = dict(dropout=0.2, head_dropout=0.2)
    whole, first, second = (
        compiled(classifier(**options), eager=True) for _ in range(3)
    )
    for variable, source in zip(first.variables, whole.variables, strict=True):
        variable.assign(to_numpy(source.value))  # the seeds of dropout, too
    keras.utils.set_random_seed(1)  # torch draws from a generator for all
    fit(whole, ResumableCheckpoint(tmp_path / "whole.npz"))
    path = tmp_path / "resume.npz"
    keras.utils.set_random_seed(1)
    with pytest.raises(Killed):
        fit(first, ResumableCheckpoint(path), KillBefore(1))
    fit(second, ResumableCheckpoint(path))
    for got, want in zip(second.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_array_equal(got, want)


# Files.


@pytest.mark.parametrize(
    "make",
    [
        lambda: classifier(
            pooling="max_logits", hidden_activation="tanh", max_length=9
        ),
        lambda: classifier(tokenizer=None, labels=None, num_classes=4),
        lambda: classifier(
            hidden_activation="gelu", hidden_bias=False, hidden_norm=True
        ),
        lambda: regressor(num_segments=2, pooling="last", architecture="decoder"),
    ],
)
def test_a_folder_and_a_keras_file_hold_the_task(make, tmp_path):
    task = compiled(perturbed(make()))
    task.save_folder(tmp_path / "folder")
    task.save(tmp_path / "task.keras")
    inputs = {"token_ids": ids_of(TEXTS[:4])}
    for loaded in (
        load_task(tmp_path / "folder"),
        kzoo.load_model(tmp_path / "task.keras"),
    ):
        assert type(loaded) is type(task) and loaded.options == task.options
        np.testing.assert_array_equal(to_numpy(loaded(inputs)), to_numpy(task(inputs)))
        if task.tokenizer:
            assert loaded.encode_texts(["abcd" * 9])["token_ids"][0].tolist() == (
                task.encode_texts(["abcd" * 9])["token_ids"][0].tolist()
            )


EXPORTED = [
    lambda: classifier(num_segments=2, hidden_activation="tanh", positions="learned"),
    lambda: classifier(pooling="max_logits", positions="relative"),
    lambda: regressor(pooling="last", architecture="decoder", positions="rotary"),
    lambda: regressor(pooling="mean"),
    lambda: classifier(pooling="max"),
]


@pytest.mark.parametrize(
    ("make", "portable"),
    [*((make, False) for make in EXPORTED), *((make, True) for make in EXPORTED[:3])],
)
def test_onnx_gives_the_logits_of_the_reference(make, portable, tmp_path):
    task = perturbed(make())
    path = tmp_path / "task.onnx"
    report = task.export(path, format="onnx", portable=portable)
    assert all(check["difference"] <= 1e-4 for check in report.checks)
    session = onnxruntime.InferenceSession(path)
    ids = ids_of(["abcd", "b"])
    feed, segments = {"token_ids": ids.astype("int64")}, None
    if task.stack.config.num_segments:
        segments = feed["segment_ids"] = (ids % 2).astype("int64")
    (got,) = session.run(["logits"], feed)
    assert difference(got, expected_outputs(task, ids, segments=segments)) <= 1e-5


@pytest.mark.tensorflow
@pytest.mark.parametrize("make", EXPORTED[:1])
def test_a_saved_model_gives_the_logits(make, tmp_path):
    report = perturbed(make()).export(tmp_path / "saved")
    assert set(report.functions) == {"forward", "serving_default"}
    assert all(check["difference"] <= 1e-4 for check in report.checks)


# Refusals.


def test_what_cannot_be_learned_is_named():
    task = compiled(classifier(), eager=True)
    for y, message in (
        (["yes", "maybe"], r"one of \['no', 'yes', 'perhaps'\].*'maybe' for example 1"),
        ([0, 3], r"ints in \[0, 3\). Received: 3 for example 1"),
        ([0, -1], "Received: -1 for example 1"),
        ([0, 1.0], "Received: 1.0 for example 1"),
        ([0], "a target for each of 2 examples. Received: 1"),
        (None, "a target for each of 2 examples. Received: none"),
    ):
        with pytest.raises(ValueError, match=message):
            task.fit(["ab", "cd"], y, verbose=0)
    number = compiled(regressor(), eager=True)
    for y, message in (
        ([1.0, float("nan")], "nan for example 1"),
        ([1.0, float("inf")], "inf for example 1"),
        ([[1.0, 2.0], [1.0, 2.0]], r"a number for each example.*shape of \(2, 2\)"),
        (["1", "x"], "a number for each example. Received: '1' for example 0"),
    ):
        with pytest.raises(ValueError, match=message):
            number.fit(["ab", "cd"], y, verbose=0)
    with pytest.raises(ValueError, match="no tokenizer"):
        compiled(classifier(tokenizer=None)).fit(["ab"], [0])


def test_targets_of_texts_are_arrays_and_tensors_of_every_kind():
    texts, y = ["ab", "cd", "ad", "b"], np.array([1, 0, 1, 1])
    task, number = classifier(), regressor()
    asked = [y[:, None], keras.ops.convert_to_tensor(y), y.astype("uint8"), y == 1]
    for each in (*asked, keras.ops.convert_to_tensor(y[:, None])):
        assert task.encode_targets(each) == [1, 0, 1, 1]
        np.testing.assert_array_equal(number.encode_targets(each), y)
        task.encode_examples(texts, each)
    named, rows = classifier(labels=["a", "b", "c"]), np.array(["b", "a"], object)
    assert named.encode_targets(rows) == named.encode_targets(rows[:, None]) == [1, 0]
    with pytest.raises(ValueError, match=r"Received: np.int32\(3\) for example 0"):
        task.encode_targets(keras.ops.convert_to_tensor([[3], [0]], "int32"))


def test_a_step_of_a_subclass_predicts_strings_too():
    class Own(kzoo.TextClassifier):
        def predict_step(self, *data):
            logits = super().predict_step(*data)
            if isinstance(logits, tuple):  # JAX's, with its state
                return keras.ops.softmax(logits[0]), logits[1]
            return keras.ops.softmax(logits)

    task = Own.from_size("tiny", TOKENIZER, num_classes=3, num_layers=1, hidden_dim=16)
    texts = ["ab", "abcd", "d"]
    got = task.predict(texts, verbose=0)
    np.testing.assert_allclose(got.sum(-1), 1.0, rtol=1e-6)
    ids, _ = task.encode_text(texts)
    np.testing.assert_allclose(got, task.predict(ids, verbose=0), rtol=1e-6)
    assert task.classify(texts) == got.argmax(axis=-1).tolist()

    class Tagger(kzoo.TokenClassifier):
        def predict_step(self, *data):
            return super().predict_step(*data)

    # A sentence is no row of what Keras computes: it has a place for each word.
    tagger = Tagger.from_size("tiny", TOKENIZER, num_classes=3, num_layers=1)
    assert [len(tags) for tags in tagger.tag([["ab", "d"], ["c"]])] == [2, 1]


def test_arrays_that_cannot_be_learned_are_named_after_a_training_too():
    """By then Keras compiled a step for targets of any shape."""
    task = compiled(classifier())
    x, _ = task.encode_text(["ab", "cd", "ad"])
    for rows in (3, 2):
        task.fit({n: ids[:rows] for n, ids in x.items()}, np.arange(rows), verbose=0)
    one_hot = np.eye(3, dtype="int32")
    shape = r"are classes, int \(batch\), or distributions.* Received: int32 .*\(3, 3\)"
    for y in (one_hot, one_hot.tolist(), keras.ops.convert_to_tensor(one_hot)):
        with pytest.raises(ValueError, match=shape):
            task.fit(x, y, verbose=0)
    tensors = keras.tree.map_structure(keras.ops.convert_to_tensor, x)
    column = keras.ops.convert_to_tensor([[0], [1], [2]])
    found = task.evaluate(tensors, column, verbose=0)
    assert found == pytest.approx(task.evaluate(x, np.arange(3), verbose=0))
    tensors["token_ids"] += 100
    with pytest.raises(ValueError, match="token_ids must be in"):
        task.evaluate(tensors, column, verbose=0)


def test_options_that_do_not_fit_are_named():
    for changes, message in (
        (dict(labels=None), "either labels.*or num_classes"),
        (dict(num_classes=3), "either labels.*or num_classes"),
        (dict(labels=["a", "a"]), "labels must differ"),
        (
            dict(labels=["a"]),
            "number of classes must be .* at least 2. Received: 1",
        ),
        (dict(labels=3), "labels are a list of names.* Received: 3"),
        (dict(labels="abc"), "labels are a list of names.* Received: 'abc'"),
        (dict(labels=None, num_classes="2"), "of at least 2. Received: '2'"),
        (dict(labels=None, num_classes=2.0), "an integer of at least 2.* 2.0"),
        (dict(pooling="median"), "'max_logits'.*'median'"),
        (dict(hidden_activation="relu6"), "hidden_activation.*'relu6'"),
    ):
        with pytest.raises(ValueError, match=message):
            classifier(**changes)
    with pytest.raises(ValueError, match="label_smoothing is of classes"):
        regressor().compile(label_smoothing=0.1)


def test_distributions_are_targets_of_texts():
    classifier = kzoo.TextClassifier.from_size(
        "tiny", TOKENIZER, labels=["bad", "good"], num_layers=1
    )
    keras.utils.set_random_seed(0)
    texts = ["a man", "a dog"] * 8
    targets = np.array([[0.2, 0.8], [0.7, 0.3]] * 8, "float32")
    classifier.compile(keras.optimizers.Adam(0.01))
    classifier.fit(texts, targets, epochs=40, batch_size=16, verbose=0)
    _, found = classifier.classify(["a man", "a dog"], return_probabilities=True)
    np.testing.assert_allclose(found, targets[:2], atol=0.1)
    losses = classifier.evaluate(texts, targets, verbose=0)
    pairs = grain.MapDataset.source(list(zip(texts, targets, strict=True)))
    assert classifier.evaluate(pairs.batch(4), verbose=0) == pytest.approx(losses, 1e-4)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        data = tf.data.Dataset.from_tensor_slices((texts, targets)).batch(4)
        assert classifier.evaluate(data, verbose=0) == pytest.approx(losses, 1e-4)


def test_distributions_beside_labels_count_by_their_best_class():
    model = classifier()
    texts = ["a man", "a dog", "the man"]
    soft = [[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.6, 0.2, 0.2]]
    inputs, targets = model.encode_text(texts, soft)
    assert targets.dtype == "float32"
    np.testing.assert_allclose(targets, soft, rtol=1e-6)
    assert model.score(texts, soft) == model.score(texts, [0, 1, 0])
    model.compile(metrics=["accuracy"])
    first = model.evaluate(inputs, targets, verbose=0, return_dict=True)["accuracy"]
    hard = np.array([0, 1, 0])
    other = model.evaluate(inputs, hard, verbose=0, return_dict=True)["accuracy"]
    assert first == pytest.approx(other)
    assert model.encode_targets(iter([0, 1, 0])) == [0, 1, 0]


@pytest.mark.parametrize(
    "wrong",
    [
        [[0.5, 0.6]],
        [[0.5, 0.5], [-0.1, 1.1]],
        [[0.2, 0.3, 0.5]],
        [[np.nan, 1.0]],
        [[0.5, 0.5], [1.0]],
        [["bad", "good"]],
    ],
)
def test_what_is_no_distribution_is_refused(wrong):
    classifier = kzoo.TextClassifier.from_size(
        "tiny", TOKENIZER, labels=["bad", "good"], num_layers=1
    )
    expected = rf"must be 2 numbers of at least 0 .* for example {len(wrong) - 1}\."
    with pytest.raises(ValueError, match=expected):
        classifier.encode_examples(["a man"] * len(wrong), wrong)


def test_a_decoder_alone_reads_its_last_token():
    task = perturbed(classifier(architecture="decoder"))
    assert task.options["pooling"] == "last"
    assert np.ptp(task.predict(["a", "dddd", "bcda"]), axis=0).min() > 1e-3
    assert classifier().options["pooling"] == "cls"
    with pytest.warns(UserWarning, match="sees no more of a text. Give pooling='last'"):
        classifier(architecture="decoder", pooling="cls")


def test_class_weights_by_name_count_beside_arrays_too():
    task = compiled(perturbed(classifier()), keras.optimizers.SGD(0.0), eager=True)
    texts, names = MIXED
    x, y = task.encode_text(texts, names)
    weights = {"no": 5.0, "yes": 0.5}

    def loss(*data, **options):
        return task.fit(*data, batch_size=6, verbose=0, **options).history["loss"][0]

    expected = loss(texts, names, class_weight=weights)
    assert loss(x, y, class_weight=weights) == pytest.approx(expected, rel=1e-5)
    assert loss(x, y) != pytest.approx(expected, rel=1e-2)
    with pytest.raises(ValueError, match="Received: 'nope' for class_weight's key 0"):
        task.fit(x, y, class_weight={"nope": 2.0})
    for odd in ("x", float("nan"), -1.0, None):
        with pytest.raises(ValueError, match="must have numbers, 0 or more. Received"):
            task.fit(x, y, class_weight={names[0]: odd})
    if keras.backend.backend() == "tensorflow":  # Keras looks weights up in a table
        import tensorflow as tf

        first = {min(names, key=task.labels.index): 5.0}
        expected = loss(texts, names, class_weight=first)
        pipeline = tf.data.Dataset.from_tensor_slices((x, y)).batch(6)
        found = task.fit(pipeline, class_weight=first, verbose=0).history["loss"][0]
        assert found == pytest.approx(expected, rel=1e-5)
    numerals = compiled(perturbed(classifier(labels=["1", "5", "9"])), eager=True)
    numerals.fit(x, y, class_weight={0: 1.0, 1: 2.0}, verbose=0)
    with pytest.raises(ValueError, match="Received: 3 for class_weight's key 0"):
        numerals.fit(x, y, class_weight={3: 2.0})


def test_options_that_no_verb_has_are_refused():
    task = classifier()
    with pytest.raises(TypeError, match=r"alone. Received: \['return_probabilites'\]"):
        task.classify(["a"], return_probabilites=True)
    with pytest.raises(TypeError, match=r"Received: \['steps'\]"):
        task.predict(["a"], steps=1)
    with pytest.raises(ValueError, match="batch_size must be .* Received: 0"):
        task.predict(["a"], batch_size=0)


def test_arrays_have_a_score():
    task = perturbed(classifier())
    texts, names = MIXED
    x, y = task.encode_text(texts, names)
    expected = task.score(texts, names)
    assert task.score(x, y) == expected
    assert task.score({**x, "padding_mask": x["token_ids"] != 0}, y) == expected
    with pytest.raises(ValueError, match="target for each of 6 examples. Received: 5"):
        task.score(x, y[:5])


def test_a_template_leaves_room_or_is_refused():
    template = Template.of([1], [2], [2, 2, 2])
    own = TOKENIZER.with_conventions(template=template)
    with pytest.raises(ValueError, match="reads 4 tokens, and 5 stand around 2 texts"):
        classifier(own, max_length=4).predict([("ab", "cd")])


@pytest.mark.parametrize(
    "changes", [dict(labels=LABELS[::-1]), dict(pooling="mean")], ids=str
)
def test_a_training_does_not_go_on_with_other_options(tmp_path, changes):
    callbacks = [ResumableCheckpoint(tmp_path / "state.npz")]
    task = compiled(classifier(head_dropout=0.1), eager=True)
    task.fit(TEXTS[:4], NAMES[:4], callbacks=callbacks, verbose=0)
    other = compiled(classifier(head_dropout=0.1, **changes), eager=True)
    with pytest.raises(ValueError, match=f"options.{next(iter(changes))}="):
        other.fit(TEXTS[:4], NAMES[:4], epochs=2, callbacks=callbacks, verbose=0)
    other = compiled(classifier(head_dropout=0.5), eager=True)
    other.fit(TEXTS[:4], NAMES[:4], epochs=2, callbacks=callbacks, verbose=0)
