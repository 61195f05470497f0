"""A linear teacher of n-grams for text classifiers, and texts that it reads."""

import re

import numpy as np

from kzoo.data import DataError
from kzoo.training.scores import metrics_library

_FOLDS = 5
_STRENGTH = 0.05  # of the data against the penalty, scikit-learn's C
# Words, numbers, and punctuation, of which a "?!" says much.
_TOKENS = r"[^\W\d_][\w']*|\d+|[!?.,;:()]"
_SENTENCES = re.compile(r"(?<=[.!?])\s+")


class NGramTeacher:
    """Logistic regression over words and pairs, weighted as naive Bayes would.

    Paper: Baselines and Bigrams, Wang and Manning, 2012,
    https://aclanthology.org/P12-2018, section 2, with the penalty of scikit-learn's
    logistic regression; of more than two classes each is told from the others.

    Args:
        texts: strings.
        classes: int (N,), from 0 on; all occur.
    """

    def __init__(self, texts, classes):
        features = metrics_library("sklearn.feature_extraction.text")
        linear = metrics_library("sklearn.linear_model")
        self._counts = features.CountVectorizer(
            ngram_range=(1, 2), min_df=2, binary=True, token_pattern=_TOKENS
        )
        try:
            found = self._counts.fit_transform(texts).astype("float64")
        except ValueError as error:
            raise DataError(
                "A teacher of n-grams needs texts that have words in common. Received: "
                f"{len(texts)} without."
            ) from error
        self._models = []
        for label in range(max(classes) + 1):
            own = np.asarray(classes) == label
            inside, outside = (
                1 + np.asarray(found[rows].sum(0)) for rows in (own, ~own)
            )
            ratio = np.log((inside / inside.sum()) / (outside / outside.sum()))
            model = linear.LogisticRegression(C=_STRENGTH, solver="liblinear")
            model.fit(found.multiply(ratio).tocsr(), own)
            self._models.append((ratio, model))

    def probabilities(self, texts):
        """Of the classes: float64 (N, C)."""
        found = self._counts.transform(texts).astype("float64")
        scores = [
            model.predict_proba(found.multiply(ratio).tocsr())[:, 1]
            for ratio, model in self._models
        ]
        return np.transpose(scores / np.sum(scores, axis=0))


def taught(texts, classes, count, mixed, trust, seed=0):
    """More texts, and what a teacher takes them and the given ones for.

    The texts of each class are split in five parts, in their order, and a teacher that
    has not seen a part is asked about it (Wolpert, 1992), so that what it says is no
    memory. It is also asked about texts that nobody wrote, with the sentences of two
    texts of a part in any order, half of them, but for short ones, so that a student
    sees what it does with what is unsure.

    Args:
        texts: strings.
        classes: int (N,), from 0 on.
        count: C, how many classes there are.
        mixed: how many texts more.
        trust: share of the teacher in the distributions of the given texts, in [0, 1];
            the rest is their class.
        seed: of the draws.

    Returns:
        A list of strings, the given ones first; and float32 (N + mixed, C).

    Raises:
        DataError: a class has fewer than two texts, or the texts no words in common.
        ImportError: scikit-learn is not installed; the extra is named.
    """
    classes = np.asarray(classes)
    random, parts = np.random.default_rng(seed), np.zeros(len(texts), int)
    for label in range(count):
        own = np.flatnonzero(classes == label)
        if len(own) < 2:
            raise DataError(
                "A teacher needs two texts of each class at least, one to learn from "
                f"where the other is asked about. Received: {len(own)} of class "
                f"{label}."
            )
        parts[own] = np.arange(len(own)) * _FOLDS // len(own)
    distributions = np.eye(count)[classes] * (1 - trust)
    more, found = [], []
    for part in range(_FOLDS):
        inside, outside = np.flatnonzero(parts == part), np.flatnonzero(parts != part)
        if not len(inside):
            continue
        teacher = NGramTeacher([texts[i] for i in outside], classes[outside])
        distributions[inside] += trust * teacher.probabilities(
            [texts[i] for i in inside]
        )
        sentences = [_SENTENCES.split(texts[i]) for i in inside]
        own = mixed * (part + 1) // _FOLDS - mixed * part // _FOLDS
        mixes = [_mix(sentences, random) for _ in range(own)]
        if mixes:
            more += mixes
            found.append(teacher.probabilities(mixes))
    return [*texts, *more], np.concatenate([distributions, *found]).astype("float32")


def _mix(texts, random):
    """Half of two texts' sentences, three at least if there are some, in any order."""
    first = random.integers(len(texts))
    other = (first + random.integers(1, max(2, len(texts)))) % len(texts)
    sentences = [sentence for i in {first, other} for sentence in texts[i]]
    kept = random.permutation(len(sentences))[: max(3, len(sentences) // 2)]
    return " ".join(sentences[i] for i in kept)
