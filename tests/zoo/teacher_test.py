"""A teacher of n-grams says what naive Bayes' weights and a linear model do."""

import re

import numpy as np
import pytest

from kzoo.data import DataError
from kzoo.zoo.teacher import NGramTeacher, taught

GOOD, BAD = ["good", "fine", "lovely"], ["bad", "dull", "awful"]


def reviews(count, seed=0):
    """Texts of three sentences, and their classes: two name a mood, one does not."""
    random = np.random.default_rng(seed)
    texts, classes = [], []
    for number in range(count):
        words = (BAD, GOOD)[number % 2]
        picked = random.choice(words, 2)
        texts.append(f"It was {picked[0]}. The plot is a plot! So {picked[1]}?")
        classes.append(number % 2)
    return texts, classes


def test_it_tells_classes_that_it_has_not_seen_the_texts_of():
    teacher = NGramTeacher(*reviews(100))
    texts, classes = reviews(40, seed=1)
    found = teacher.probabilities(texts)
    assert found.shape == (40, 2)
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    assert found.argmax(axis=1).tolist() == classes


def test_pairs_of_words_count():
    texts = ["not good", "good not", "x not good", "good not x"] * 10
    teacher = NGramTeacher(texts, [0, 1, 0, 1] * 10)
    assert teacher.probabilities(["y not good", "good not y"]).argmax(1).tolist() == [
        0,
        1,
    ]


def test_three_classes_are_told_apart():
    texts = ["red red", "green leaf", "blue sea"] * 10
    teacher = NGramTeacher(texts, [0, 1, 2] * 10)
    found = teacher.probabilities(["a red", "a leaf", "the sea"])
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    assert found.argmax(axis=1).tolist() == [0, 1, 2]


@pytest.mark.parametrize("trust", [0.0, 0.25, 1.0])
def test_targets_are_of_the_class_and_the_teacher(trust):
    texts, classes = reviews(50)
    (given, targets), (_, teachers) = (
        taught(texts, classes, 2, mixed=0, trust=share) for share in (trust, 1.0)
    )
    assert given == texts and targets.dtype == "float32"
    expected = (1 - trust) * np.eye(2)[classes] + trust * teachers
    np.testing.assert_allclose(targets, expected, atol=1e-6)


def test_a_text_is_asked_about_where_the_teacher_has_not_seen_it():
    # What only one text says is a memory of its class: who has not seen it, says 1/2.
    texts = [f"word{i} word{i} common" for i in range(40)]
    classes = np.arange(40) % 2
    for order in (np.arange(40), np.argsort(classes, kind="stable")):  # also sorted
        given = [texts[i] for i in order]
        _, targets = taught(given, classes[order], 2, mixed=0, trust=1.0)
        np.testing.assert_allclose(targets, 0.5, atol=0.05)


def test_mixed_texts_are_of_sentences_of_two_texts_of_a_part():
    texts, classes = reviews(50)
    texts = [f"{text} Number {i} ends." for i, text in enumerate(texts)]
    more, targets = taught(texts, classes, 2, mixed=21, trust=0.5, seed=3)
    assert len(more) == len(targets) == 71 and more[:50] == texts
    known = {s: i for i, text in enumerate(texts) for s in _sentences(text)}
    for text in more[50:]:
        sentences = _sentences(text)
        assert len(sentences) == 4 and set(sentences) <= set(known)  # of eight
        numbers = {int(word) for word in text.split() if word.isdigit()}
        assert len(numbers) <= 2 and len({number // 10 for number in numbers}) <= 1
    assert more[50:] != taught(texts, classes, 2, mixed=21, trust=0.5, seed=4)[0][50:]
    again = taught(texts, classes, 2, mixed=21, trust=0.5, seed=3)
    assert again[0] == more
    np.testing.assert_array_equal(again[1], targets)


def _sentences(text):
    return [s for s in re.split(r"(?<=[.!?]) ", text) if s]


def test_too_few_examples_are_an_error():
    with pytest.raises(DataError, match="two texts of each class.*1 of class 1"):
        taught(["a a", "a b", "a c", "a d"], [1, 0, 0, 0], 2, mixed=0, trust=0.5)
    with pytest.raises(DataError, match="0 of class 2"):
        taught(["a a", "a b", "a c", "a d"], [1, 0, 0, 1], 3, mixed=0, trust=0.5)
    with pytest.raises(DataError, match="words in common. Received: . without"):
        taught(list("abcd"), [0, 1, 0, 1], 2, mixed=0, trust=0.5)
