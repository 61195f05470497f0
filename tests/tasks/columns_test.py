"""Texts in columns are lists; what a task cannot read it says before it trains."""

import functools
import re

import keras
import numpy as np
import pytest

import kzoo
from tests.words import PAIRS, TOKENIZER, WORDS, causal, compiled, ids_of, seq2seq

SMALL = dict(num_layers=1, hidden_dim=16, intermediate_dim=16, num_heads=2, dropout=0.0)
TEXTS, NAMES = ["ab", "cd", "ad", "bc"], ["yes", "no", "yes", "no"]


class Column:
    """A column as pandas has it: not a list, with an index of its own."""

    dtype, ndim = np.dtype(object), 1

    def __init__(self, values):
        self.values = {f"row {i}": value for i, value in enumerate(values)}

    def __len__(self):
        return len(self.values)

    def __getitem__(self, name):
        return self.values[name]

    def __iter__(self):
        return iter(self.values.values())


class Batches(keras.utils.PyDataset):
    """Batches of strings."""

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return TEXTS, [0, 1, 0, 1]


def classifier():
    options = dict(labels=["no", "yes"], head_dropout=0.0, **SMALL)
    return kzoo.TextClassifier.from_size("tiny", TOKENIZER, **options)


@functools.cache
def refusing(make):
    """A task that has to refuse what it is given: one for all tests."""
    return compiled(make(), eager=True)


def test_columns_are_lists():
    one, two = (compiled(classifier(), eager=True) for _ in range(2))
    two.set_weights(one.get_weights())
    held_out = (TEXTS[:2], NAMES[:2])
    one.fit(TEXTS, NAMES, validation_data=held_out, verbose=0)
    held_out = tuple(map(Column, held_out))
    two.fit(Column(TEXTS), Column(NAMES), validation_data=held_out, verbose=0)
    for a, b in zip(one.get_weights(), two.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    texts, names = Column(TEXTS), Column(NAMES)
    assert two.classify(texts) == two.classify(TEXTS)
    assert two.score(texts, names) == two.score(TEXTS, NAMES)
    assert two.evaluate(texts, names, verbose=0) == two.evaluate(
        TEXTS, NAMES, verbose=0
    )
    model = causal()
    assert model.score(texts) == model.score(TEXTS)
    logits = model.predict(texts, verbose=0)
    np.testing.assert_array_equal(logits, model.predict(TEXTS, verbose=0))


@pytest.mark.parametrize(
    "name",
    ["numpy", "bytes", pytest.param("pyarrow", marks=pytest.mark.tensorflow)],  # TFDS's
)
def test_strings_of_other_libraries_are_lists(name):
    if name == "pyarrow":
        from pyarrow import array as column
    else:
        kind = "S" if name == "bytes" else np.dtypes.StringDType()
        column = functools.partial(np.array, dtype=kind)
    model, texts = refusing(classifier), column(TEXTS)
    expected = model.evaluate(TEXTS, NAMES, verbose=0)
    assert model.evaluate(texts, column(NAMES), verbose=0) == expected
    assert model.classify(texts) == model.classify(TEXTS)
    for make in (seq2seq, causal):
        writer = refusing(make)
        found = writer.generate(texts, max_new_tokens=3)
        assert found == writer.generate(TEXTS, max_new_tokens=3)
    translator = refusing(seq2seq)
    assert translator.score(texts, texts) == translator.score(TEXTS, TEXTS)
    embedder = kzoo.SentenceEmbedder.from_size("tiny", TOKENIZER, **SMALL)
    np.testing.assert_array_equal(embedder.embed(texts), embedder.embed(TEXTS))
    scorer = kzoo.PairScorer.from_size("tiny", TOKENIZER, **SMALL)
    assert scorer.rank("ab", texts) == scorer.rank("ab", TEXTS)
    with pytest.raises(ValueError, match="list of strings.* a ndarray of bytes"):
        model.classify(np.array([b"ab", b"cd"], object))


@pytest.mark.parametrize("missing", [None, float("nan")])
@pytest.mark.parametrize("place", [0, 2])
@pytest.mark.parametrize("column", [list, Column])
def test_a_missing_text_is_named_with_its_place(column, place, missing):
    texts = [missing if i == place else text for i, text in enumerate(TEXTS)]
    message = f"list of strings. Received: {missing} .* at index {place}"
    with pytest.raises(TypeError, match=message):
        classifier().evaluate(column(texts), NAMES, verbose=0)
    masked = kzoo.FastTokenizer.train(TEXTS, 40, algorithm="character", mask_token=True)
    for task in (causal(), kzoo.MaskedLM.from_size("tiny", masked, **SMALL)):
        with pytest.raises(TypeError, match=message):
            compiled(task, eager=True).fit(column(texts), verbose=0)


@pytest.mark.parametrize("column", [list, Column])
def test_a_wrong_number_is_named_with_its_place(column):
    texts, pairs, sigmoid = TEXTS[:3], [("ab", "c")] * 3, "sigmoid"
    for kind, options, x, wrong in (
        (kzoo.TextRegressor, {}, texts, "bad"),
        (kzoo.TextRegressor, {}, texts, None),
        (kzoo.TextRegressor, {}, texts, 1e39),
        (kzoo.TextRegressor, {}, texts, [1, 2]),
        (kzoo.PairScorer, dict(output_activation=sigmoid), pairs, 1.5),
        (kzoo.SentenceEmbedder, {}, pairs, 1.5),
        (kzoo.SentenceEmbedder, {}, pairs, "bad"),
    ):
        task = kind.from_size("tiny", TOKENIZER, **options, **SMALL)
        message = f"Received: {re.escape(repr(wrong))} for example 1"
        with pytest.raises(ValueError, match=message):
            compiled(task, eager=True).fit(x, column([0.5, wrong, 1.0]), verbose=0)


@pytest.mark.tensorflow
def test_tensors_of_strings_are_lists():
    import tensorflow as tf

    model = refusing(classifier)
    assert model.classify(tf.constant(TEXTS)) == model.classify(TEXTS)
    found = model.evaluate(tf.constant(TEXTS), tf.constant(NAMES), verbose=0)
    assert found == model.evaluate(TEXTS, NAMES, verbose=0)
    pairs = np.array(PAIRS[:2])
    words = tf.ragged.constant([["ab", "c"], ["d"]])
    tagger = kzoo.TokenClassifier.from_size("tiny", TOKENIZER, labels=["X", "Y"])
    assert tagger.tag(words) == tagger.tag([["ab", "c"], ["d"]])
    with pytest.raises(ValueError, match="a list of examples.* Received: 'ab'"):
        model.classify(tf.constant("ab"))
    with pytest.raises(ValueError, match=r"must be UTF-8. Received: b'\\xff'"):
        model.classify(tf.constant([b"ab", b"\xff"]))
    energies = refusing(seq2seq).energy(tf.constant(pairs))
    np.testing.assert_array_equal(energies, refusing(seq2seq).energy(pairs.tolist()))


def test_a_table_and_nothing_are_no_examples():
    class Table:  # as of pandas
        columns, ndim, shape = ["text"], 2, (1, 1)

        def __array__(self, dtype=None, copy=None):
            return np.array([["ab"]], object)

    for task in map(refusing, (classifier, seq2seq, causal)):
        for verb in (task.fit, task.evaluate, task.predict):
            with pytest.raises(ValueError, match="a list of .* a Table; give its col"):
                verb(Table(), verbose=0)
            with pytest.raises(ValueError, match="a list of examples.* Received: None"):
                verb(None, verbose=0)


def test_columns_of_words_are_lists():
    tagger = kzoo.TokenClassifier.from_size("tiny", TOKENIZER, labels=["X", "Y"])
    sentences = [["ab", "c"], ["d"]]
    assert tagger.tag(Column(sentences)) == tagger.tag(sentences)


@pytest.mark.parametrize(
    "strings",
    [
        lambda: zip(TEXTS, TEXTS, strict=True),
        lambda: (text for text in TEXTS),
        lambda: ((TEXTS, np.array([0, 1, 0, 1])) for _ in range(2)),
        lambda: ((np.array(TEXTS), np.zeros(4)) for _ in range(2)),
        Batches,
    ],
    ids=["zip", "texts", "batches", "arrays", "py_dataset"],
)
def test_strings_out_of_an_iterator_are_refused_with_the_accepted_forms(strings):
    named = "a list, an array or a column.*tf.data or grain. Received: a .* of strings"
    with pytest.raises(ValueError, match=f"classifier.* reads strings from {named}"):
        refusing(classifier).fit(strings(), verbose=0)
    with pytest.raises(ValueError, match=named):
        refusing(classifier).classify(strings())
    with pytest.raises(ValueError, match=named):
        refusing(seq2seq).evaluate(strings(), verbose=0)
    with pytest.raises(ValueError, match=named):
        refusing(seq2seq).fit(PAIRS, validation_data=strings(), verbose=0)
    with pytest.raises(ValueError, match=named):
        refusing(causal).energy(strings())


def test_cells_that_are_arrays_are_lists():
    """Parquet gives columns of lists so, to pandas and to others."""

    class Cell:  # as of polars
        def __init__(self, words):
            self.to_list = lambda: words

    sentences, tags = [["ab"], ["cd", "a"]], [["X"], ["Y", "X"]]
    model = kzoo.TokenClassifier.from_size(
        "tiny", TOKENIZER, labels=["X", "Y"], head_dropout=0.0, **SMALL
    )
    model, right = (
        compiled(model, eager=True),
        compiled(model, eager=True).tag(sentences),
    )
    expected = model.evaluate(sentences, tags, verbose=0)

    def objects(rows):
        column = np.empty(len(rows), object)
        column[:] = [np.array(row, object) for row in rows]
        return column

    for column in (
        objects,
        lambda rows: Column(objects(rows)),
        lambda rows: list(objects(rows)),
        lambda rows: Column(map(Cell, rows)),
    ):
        assert model.tag(column(sentences)) == right
        assert model.evaluate(column(sentences), column(tags), verbose=0) == expected
    for place in (0, 1):
        rows = [*sentences[:place], None, *sentences[place:]]
        with pytest.raises(TypeError, match=f"of type NoneType at index {place}"):
            model.tag(Column(rows))
    with pytest.raises(
        TypeError, match="NoneType as word 0 of the sentence at index 1"
    ):
        model.tag([["ab"], [None, "cd"]])


@pytest.mark.tensorflow
@pytest.mark.parametrize("make", [classifier, causal])
def test_columns_with_names_out_of_a_pipeline_are_refused(make):
    import tensorflow as tf

    rows = {"text": TEXTS, "label": NAMES}
    batches = tf.data.Dataset.from_tensor_slices(rows).batch(2)
    for verb in (refusing(make).fit, refusing(make).evaluate, refusing(make).predict):
        with pytest.raises(ValueError, match=r"names by dataset.map\(lambda row"):
            verb(batches)


def test_named_columns_out_of_grain_are_refused():
    import grain

    rows = [{"text": text, "label": name} for text, name in zip(TEXTS, NAMES)]
    with pytest.raises(ValueError, match=r"names by dataset.map\(lambda row"):
        refusing(classifier).fit(grain.MapDataset.source(rows).batch(2))


@pytest.mark.tensorflow
def test_ragged_ids_are_refused_by_name():
    import tensorflow as tf

    ids = tf.ragged.constant([[4, 5], [6]])
    with pytest.raises(ValueError, match=r"token_ids as arrays.* to_tensor\(0\)"):
        refusing(causal).predict({"token_ids": ids})
    batches = tf.data.Dataset.from_tensor_slices({"token_ids": ids}).batch(2)
    with pytest.raises(
        ValueError, match=r"reads a pipeline as arrays.* to_tensor\(0\)"
    ):
        refusing(causal).evaluate(batches)
    dense = tf.constant([[4, 5], [6, 0]])
    batches = tf.data.Dataset.from_tensor_slices(({"token_ids": dense}, ids)).batch(2)
    with pytest.raises(ValueError, match="reads a pipeline as arrays"):
        refusing(causal).fit(batches)


def test_targets_beside_arrays_are_numbers():
    ids, targets = ids_of(WORDS[:4]), [0, 1, 1, 0]
    model = compiled(classifier(), eager=True)
    for inputs in ({"token_ids": ids}, {"token_ids": ids.tolist()}):
        found = model.evaluate(inputs, targets, verbose=0)
        assert found == model.evaluate(inputs, np.array(targets), verbose=0)
        model.fit(inputs, targets, validation_data=(inputs, targets), verbose=0)
    for names in (NAMES, np.array(NAMES)):
        with pytest.raises(ValueError, match="reads targets as an array of numbers"):
            model.evaluate(inputs, names, verbose=0)


def test_arrays_without_targets_are_refused():
    inputs = {"token_ids": ids_of(WORDS[:4])}
    for verb in (refusing(classifier).fit, refusing(classifier).evaluate):
        with pytest.raises(ValueError, match="a target for each of 4 .* none"):
            verb(inputs)


def test_generators_of_ids_are_read_from_their_first_batch():
    ids = ids_of(WORDS[:8])
    model, seen = compiled(causal(), eager=True), []

    def batches():
        for first in (0, 4):
            seen.append(first)
            yield {"token_ids": ids[first : first + 4, :-1]}, ids[first : first + 4, 1:]

    history = model.fit(batches(), verbose=0).history
    assert np.isfinite(history["loss"]).all() and seen == [0, 4]


@pytest.mark.parametrize("make", [causal, seq2seq])
def test_a_language_model_asks_for_a_dict_of_ids(make):
    model, ids = refusing(make), ids_of(WORDS[:4])
    said = r"reads a dict with .*token_ids, int.* Received: an array"
    for verb in (model, model.energy, model.predict, model.fit):
        with pytest.raises(ValueError, match=said):
            verb(ids)


@pytest.mark.parametrize("nothing", ["abc", [], ()])
def test_energy_and_score_need_a_list(nothing):
    language_model = refusing(causal)
    for verb in (language_model.energy, language_model.score, refusing(seq2seq).energy):
        with pytest.raises(ValueError, match="needs a list of examples, one at least"):
            verb(nothing)


def test_a_score_is_of_strings():
    with pytest.raises(ValueError, match="reads a list of strings.*use energy"):
        refusing(causal).score({"token_ids": ids_of(WORDS[:4])})


@pytest.mark.parametrize("kind", [list, tuple])
def test_two_sides_in_a_tuple_are_not_taken_for_two_pairs(kind):
    sources, targets = kind(["ab", "cd"]), kind(["ba", "dc"])
    model = compiled(seq2seq(), eager=True)
    with pytest.raises(ValueError, match=r"Give fit\(sources, targets\), or a list of"):
        model.fit((sources, targets), verbose=0)
    model.fit([sources, targets], verbose=0)  # a list is one of pairs


# Ids in memory.


@pytest.mark.parametrize("wrong", [-1, TOKENIZER.vocabulary_size])
@pytest.mark.parametrize("make", [causal, seq2seq])
def test_ids_out_of_range_are_refused(make, wrong):
    model, ids = refusing(make), ids_of(WORDS[:4])
    for name in model._signature():
        good = dict.fromkeys(model._signature(), ids)
        bad = np.where(np.arange(ids.size).reshape(ids.shape) == 1, wrong, ids)
        bad = {**good, name: bad}
        match = rf"{name} must be in \[0, \d+\). Received: {wrong}"
        for verb in (model.fit, model.evaluate, model.predict, model.energy):
            with pytest.raises(ValueError, match=match):
                verb(bad)
        for held_out in (bad, (bad, ids), [bad, ids]):
            with pytest.raises(ValueError, match=match):
                model.fit(good, validation_data=held_out, verbose=0)
    with pytest.raises(ValueError, match=rf"token_ids must be .* Received: {wrong}"):
        model.energy(good, np.full_like(ids, wrong))


def test_segments_out_of_range_are_refused_and_targets_may_be_left_out():
    model = kzoo.TokenClassifier.from_size(
        "tiny", TOKENIZER, labels=["X", "Y"], num_segments=2, **SMALL
    )
    model, ids = compiled(model, eager=True), ids_of(WORDS[:4])
    with pytest.raises(ValueError, match=r"segment_ids must be in \[0, 2\). .*: 2"):
        model.predict({"token_ids": ids, "segment_ids": np.full_like(ids, 2)})
    inputs = {"token_ids": ids, "segment_ids": ids % 2, "padding_mask": ids > 0}
    assert np.isfinite(model.evaluate(inputs, ids % 3 - 1, verbose=0)).all()


def test_masked_lm_refuses_ids_out_of_range():
    ids = dict(vocabulary_size=9, mask_token_id=8)
    model = compiled(kzoo.MaskedLM.from_size("tiny", **ids, **SMALL), eager=True)
    for verb in (model.fit, model.predict):
        with pytest.raises(ValueError, match="token_ids must be in .* Received: -1"):
            verb({"token_ids": np.array([[4, -1]])})


@pytest.mark.parametrize("make", [causal, seq2seq, classifier])
@pytest.mark.parametrize("rows", [None, 0])
def test_dicts_without_a_row_are_refused(make, rows):
    model, match = refusing(make), "needs a list of examples, one at least"
    names = model._signature()
    empty = {} if rows is None else {n: np.zeros((rows, 5), int) for n in names}
    for verb in (model.fit, model.evaluate, model.predict):
        with pytest.raises(ValueError, match=match):
            verb(empty)
    good = dict.fromkeys(names, ids_of(TEXTS))
    targets = np.zeros(len(TEXTS), int) if make is classifier else None
    for held_out in (empty, (empty, np.zeros((0, 5)))):
        with pytest.raises(ValueError, match=match):
            model.fit(good, targets, validation_data=held_out, verbose=0)


def test_lists_in_a_dict_are_arrays():
    ids = ids_of(WORDS[:4])
    model = compiled(causal(), eager=True)
    inputs, lists = {"token_ids": ids}, {"token_ids": ids.tolist()}
    for verb in (model.evaluate, model.predict):
        np.testing.assert_array_equal(verb(lists, verbose=0), verb(inputs, verbose=0))
    np.testing.assert_array_equal(model.energy(lists), model.energy(inputs))
    targets = np.roll(ids, -1, axis=1)
    energy = model.energy(lists, targets.tolist())
    np.testing.assert_array_equal(energy, model.energy(inputs, targets))
    model.fit(lists, verbose=0)
    for wrong, said in (
        ([[4, 5, 6], [4, 5]], "a list of list of int"),
        (TEXTS, "a list of str"),
        (np.array(TEXTS), "an array of <U2"),
    ):
        match = f"token_ids as an array of numbers, with rows of one length.*{said}.*0;"
        for verb in (model.fit, model.energy):
            with pytest.raises(ValueError, match=match):
                verb({"token_ids": wrong})


@pytest.mark.parametrize(
    "ids", [[[4, 5, 6], [4, 5]], [4, 5], [np.array([4, 5])], ([4, 5], [4, 6])]
)
def test_lists_of_ids_are_refused_with_the_accepted_forms(ids):
    model = refusing(causal)
    match = r"a list of strings .* a dict with token_ids, .*grain.* a (list|tuple) of "
    for verb in (model.fit, model.evaluate, model.predict, model.energy):
        with pytest.raises(ValueError, match=match) as caught:
            verb(ids)
        assert "4" not in str(caught.value)


def test_arrays_of_pairs_are_lists_of_pairs():
    model = compiled(seq2seq(), keras.optimizers.SGD(0.0), eager=True)
    loss, energies = model.evaluate(PAIRS, verbose=0), model.energy(PAIRS)
    for dtype in (None, object):
        pairs = np.array(PAIRS, dtype)
        np.testing.assert_allclose(model.evaluate(pairs, verbose=0), loss, rtol=1e-6)
        np.testing.assert_array_equal(model.energy(pairs), energies)
        model.fit(pairs, validation_data=pairs, verbose=0)
