"""Texts in columns are lists; what a task cannot read it says before it trains."""

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
        compiled(classifier()).fit(strings(), verbose=0)
    with pytest.raises(ValueError, match=named):
        classifier().classify(strings())
    with pytest.raises(ValueError, match=named):
        compiled(seq2seq()).evaluate(strings(), verbose=0)
    with pytest.raises(ValueError, match=named):
        compiled(seq2seq()).fit(PAIRS, validation_data=strings(), verbose=0)
    with pytest.raises(ValueError, match=named):
        causal().energy(strings())


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
    model, ids = compiled(make(), eager=True), ids_of(WORDS[:4])
    for verb in (model, model.energy, model.predict, model.fit):
        with pytest.raises(ValueError, match="reads a dict with .*token_ids, int"):
            verb(ids)


@pytest.mark.parametrize("nothing", ["abc", [], ()])
def test_energy_and_score_need_a_list(nothing):
    for verb in (causal().energy, causal().score, seq2seq().energy):
        with pytest.raises(ValueError, match="needs a list of examples, one at least"):
            verb(nothing)


def test_a_score_is_of_strings():
    with pytest.raises(ValueError, match="reads a list of strings.*use energy"):
        causal().score({"token_ids": ids_of(WORDS[:4])})


@pytest.mark.parametrize("kind", [list, tuple])
def test_two_sides_in_a_tuple_are_not_taken_for_two_pairs(kind):
    sources, targets = kind(["ab", "cd"]), kind(["ba", "dc"])
    model = compiled(seq2seq(), eager=True)
    with pytest.raises(ValueError, match=r"Give fit\(sources, targets\), or a list of"):
        model.fit((sources, targets), verbose=0)
    model.fit([sources, targets], verbose=0)  # a list is one of pairs
