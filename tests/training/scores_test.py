"""Scores equal what is counted by hand."""

import math

import pytest

from kzoo.training.scores import (
    answer_scores,
    binary_scores,
    classification_scores,
    entity_scores,
    regression_scores,
    retrieval_scores,
)


def test_entities_are_right_when_type_and_both_ends_are():
    y_true = [["B-PER", "I-PER", "O", "B-LOC"], ["B-ORG", "O", "O", "O"]]
    y_pred = [["B-PER", "I-PER", "O", "B-ORG"], ["B-ORG", "I-ORG", "O", "B-LOC"]]
    # Found: PER right, ORG of a wrong type, ORG too long, LOC out of nothing; 3 exist.
    got = entity_scores(y_true, y_pred)
    assert got == pytest.approx(dict(precision=1 / 4, recall=1 / 3, f1=2 / 7))
    # As in conlleval an entity may begin with "I-", and another type begins a new one.
    got = entity_scores([["B-X", "B-Y"]], [["I-X", "I-Y"]])
    assert got == dict(precision=1.0, recall=1.0, f1=1.0)
    nothing = entity_scores([["O", "O"]], [["O", "O"]])
    assert nothing == dict(precision=0.0, recall=0.0, f1=0.0)


@pytest.mark.parametrize(
    ("prediction", "references", "exact", "f1"),
    [
        ("The  Eiffel tower!", ["eiffel Tower"], 1, 1),
        ("an apple a day", ["apple day"], 1, 1),
        ("U.S.", ["US"], 1, 1),
        ("in the year 1990", ["1990"], 0, 2 * (1 / 3) * 1 / (1 / 3 + 1)),
        ("red red car", ["red car car"], 0, 2 / 3),  # bags: one "red", one "car"
        ("blue", ["red", "blue sky", "dark blue sea"], 0, 2 / 3),
        ("theatre", ["atre"], 0, 0),  # articles are whole words
        ("the", ["a"], 1, 1),  # nothing is left of both
        ("", ["cat"], 0, 0),
    ],
)
def test_answers_are_compared_as_squad_does(prediction, references, exact, f1):
    got = answer_scores([references], [prediction])
    assert got == {"exact_match": exact, "f1": pytest.approx(f1)}


def test_answers_have_the_mean_over_questions():
    got = answer_scores([["cat"], ["two dogs"], ["cow"]], ["cat", "dogs", "pig"])
    expected = {"exact_match": 1 / 3, "f1": (1 + 2 / 3 + 0) / 3}
    assert got == pytest.approx(expected)


def test_classes_are_counted():
    y_true, y_pred = [0, 0, 1, 2], [0, 1, 0, 2]
    got = classification_scores(y_true, y_pred)
    # Class 0: one right, one missed, one wrong: F1 1/2. Class 1: none. Class 2: all.
    assert got["accuracy"] == 2 / 4
    assert got["macro_f1"] == pytest.approx((1 / 2 + 0 + 1) / 3)
    # Gorodkin's form: right 2, n 4, sums of products of the margins 2*2 + 1*1 + 1*1.
    assert got["matthews"] == pytest.approx((2 * 4 - 6) / (4**2 - 6))


def test_correlations_and_errors_of_numbers():
    y_true, y_pred = [1.0, 2.0, 3.0, 4.0], [2.0, 4.0, 1.0, 9.0]
    got = regression_scores(y_true, y_pred)
    # Deviations -1.5 -0.5 0.5 1.5 and -2 0 -3 5: products 9, squares 5 and 38.
    # Ranks 1 2 3 4 and 2 3 1 4: squared differences 1 + 1 + 4 + 0.
    assert got == pytest.approx(
        {
            "pearson": 9 / (5 * 38) ** 0.5,
            "spearman": 1 - 6 * 6 / (4 * 15),
            "mean_squared_error": (1 + 4 + 4 + 25) / 4,
        }
    )
    constant = regression_scores(y_true, [3.0] * 4)
    assert math.isnan(constant["pearson"]) and math.isnan(constant["spearman"])
    assert constant["mean_squared_error"] == pytest.approx((4 + 1 + 0 + 1) / 4)


def test_probabilities_are_scored_by_their_order():
    got = binary_scores([1, 0, 1, 0], [0.9, 0.6, 0.5, 0.1])
    # The ones are at ranks 1 and 3; of the 4 pairs of a one and a zero 3 are in order.
    assert got == pytest.approx(
        dict(accuracy=3 / 4, average_precision=(1 + 2 / 3) / 2, roc_auc=3 / 4)
    )


def test_recall_and_reciprocal_rank():
    found = [[4, 7, 1], [2, 0, 3], [9, 8, 6]]
    got = retrieval_scores(found, [{7, 5}, [2], [1]], top_k=(1, 3))
    assert got == pytest.approx(
        {
            "recall@1": (0 + 1 + 0) / 3,
            "recall@3": (1 / 2 + 1 + 0) / 3,
            "mrr@3": (1 / 2 + 1 + 0) / 3,
        }
    )
    got = retrieval_scores([[3, 3, 5, 1]], [[3, 1]], top_k=(2, 3))  # one given twice
    assert got == {"recall@2": 0.5, "recall@3": 1.0, "mrr@3": 1.0}
