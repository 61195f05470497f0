"""Measures: each against the library or the loop that defines it; intervals."""

import dataclasses
import json
import math

import numpy as np
import pytest
import sacrebleu
from scipy import stats
from sklearn import metrics

from kzoo.data import DataError
from kzoo.training.scores import entity_scores
from kzoo.zoo import measures as module
from kzoo.zoo.examples import inputs_and_targets
from kzoo.zoo.measures import bootstrap, measures
from kzoo.zoo.recipes import MEASURES
from tests.recipes import recipe_of


def test_an_interval_of_a_mean_is_that_of_theory():
    values = np.random.default_rng(0).normal(size=400)
    low, high = bootstrap(400, lambda chosen: values[chosen].mean(axis=1))
    error = 1.96 * values.std() / math.sqrt(400)
    assert low == pytest.approx(values.mean() - error, abs=0.02)
    assert high == pytest.approx(values.mean() + error, abs=0.02)


def test_an_interval_does_not_depend_on_how_many_are_drawn_at_a_time(monkeypatch):
    values = np.random.default_rng(0).normal(size=50)

    def interval():
        return bootstrap(50, lambda chosen: values[chosen].mean(axis=1))

    whole = interval()
    monkeypatch.setattr(module, "_NUMBERS_AT_A_TIME", 350)
    assert interval() == whole


def test_classes_are_scored_as_scikit_learn_does():
    generator = np.random.default_rng(0)
    truth, found = generator.integers(0, 3, 200), generator.integers(0, 3, 200)
    labels = ["a", "b", "c"]
    recipe = dataclasses.replace(
        recipe_of("imdb-sentiment"), task_options={"labels": labels}
    )
    examples = [("text", labels[i]) for i in truth]
    answers = [labels[i] for i in found]
    scores = measures(recipe, examples, answers)
    assert scores["accuracy"]["value"] == pytest.approx(
        metrics.accuracy_score(truth, found)
    )
    f1 = metrics.f1_score(truth, found, average="macro")
    assert scores["macro_f1"]["value"] == pytest.approx(f1)
    for row in scores.values():
        assert row["low"] < row["value"] < row["high"] and row["confidence"] == 0.95


def test_numbers_of_a_file_are_the_classes_that_a_recipe_names():
    recipe = recipe_of("imdb-sentiment")
    examples = [("a", "0"), ("b", "1"), ("c", "1")]
    scores = measures(recipe, examples, ["negative", "positive", "negative"])
    assert scores["accuracy"]["value"] == pytest.approx(2 / 3)
    # F1 of each is 2/3: one hit, and one wrong answer or missed reference.
    assert scores["macro_f1"]["value"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("label", ["2", "-1", "pos", ""])
def test_a_label_that_the_recipe_does_not_know_is_refused(label):
    recipe = recipe_of("imdb-sentiment")
    for known, expected in (
        (["0", "1"], "'negative', 'positive', or their numbers from 0. Rec"),
        (["negative", "positive"], "'negative', 'positive'. Rec"),
    ):
        examples = [("a", known[0]), ("b", known[1]), ("c", label)]
        with pytest.raises(DataError, match=f"Example 3 .* Expected: {expected}"):
            measures(recipe, examples, ["negative"] * 3)


@pytest.mark.parametrize(
    ("names", "labels", "classes"),
    [
        (["1", "2", "3", "4"], ["2", "1", "4"], ["2", "1", "4"]),
        (["1", "2", "3", "4"], ["0", "1", "2", "3"], "Example 1 .*Received: '0'"),
        (["1", "2", "3", "4"], ["0", "0"], "Example 1 .*'3', '4'. Received: '0'"),
        (["no", "yes"], ["1", "0", "1"], [1, 0, 1]),
        (["no", "yes"], ["yes", "0"], "Example 2 .*'no', 'yes'. Received: '0'"),
        (["no", "yes"], ["1", "01"], "Example 2 .*Received: '01'"),
        (["no", "yes"], ["²"], "Example 1 .*Received: '²'"),
        (["no", "yes"], ["١"], "Example 1 .*Received: '١'"),
    ],
)
def test_classes_are_all_names_or_all_numbers(names, labels, classes):
    """So that no label stands for another class, as "1" would for the second."""
    recipe = recipe_of("imdb-sentiment")
    recipe = dataclasses.replace(recipe, task_options={"labels": names})
    examples = [("a", label) for label in labels]
    if isinstance(classes, list):
        assert inputs_and_targets(recipe, examples) == (["a"] * len(labels), classes)
        return
    with pytest.raises(DataError, match=classes):
        inputs_and_targets(recipe, examples)


def test_entities_are_scored_as_seqeval_does_over_all_sentences():
    generator = np.random.default_rng(0)
    names = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]

    def labels():
        return [[names[i] for i in generator.integers(0, 5, 9)] for _ in range(60)]

    truth, found = labels(), labels()
    examples = [(["w"] * 9, row) for row in truth]
    scores = measures(recipe_of("ewt-entities"), examples, found)
    expected = entity_scores(truth, found)
    right = np.mean(np.array(truth) == np.array(found))
    assert scores["accuracy"]["value"] == pytest.approx(right)
    for name in ("precision", "recall", "f1"):
        assert scores[name]["value"] == pytest.approx(expected[name])
        assert scores[name]["low"] < expected[name] < scores[name]["high"]


def test_parts_of_speech_have_no_entities():
    examples = [(["a", "dog"], ["DET", "NOUN"])]
    found = [["DET", "VERB"]]
    scores = measures(recipe_of("ewt-pos"), examples, found)
    assert list(scores) == ["accuracy"] and scores["accuracy"]["value"] == 0.5


def test_correlations_are_scipy_s_ties_among_them():
    generator = np.random.default_rng(0)
    truth = generator.integers(0, 5, 300).astype(float)
    found = truth + generator.normal(0, 2, 300)
    examples = [("a", "b", str(score)) for score in truth]
    scores = measures(recipe_of("stsb-embedder"), examples, found.tolist())
    expected = stats.spearmanr(truth, found).statistic
    assert scores["spearman"]["value"] == pytest.approx(expected)
    assert scores["pearson"]["value"] == pytest.approx(
        stats.pearsonr(truth, found).statistic
    )
    # Fisher's transformation gives the interval of a Pearson correlation.
    middle, error = np.arctanh(scores["pearson"]["value"]), 1.96 / math.sqrt(297)
    assert scores["pearson"]["low"] == pytest.approx(np.tanh(middle - error), abs=0.02)
    assert scores["pearson"]["high"] == pytest.approx(np.tanh(middle + error), abs=0.02)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("truth", "found"), [("0.1 0.1 0.1", [1.0, 2.0, 3.0]), ("1 2 3", [0.1, 0.1, 0.1])]
)
def test_a_correlation_with_equal_numbers_is_not_defined(truth, found):
    examples = [("a", "b", score) for score in truth.split()]
    scores = measures(recipe_of("stsb-embedder"), examples, found)
    for row in scores.values():
        assert [row["value"], row["low"], row["high"]] == [None, None, None]
    json.dumps(scores, allow_nan=False)


@pytest.mark.filterwarnings("error")
def test_draws_whose_correlation_is_not_defined_do_not_count():
    examples = [("a", "b", score) for score in ("1", "2", "3")]
    scores = measures(recipe_of("stsb-embedder"), examples, [2.0, 4.0, 6.0])
    for row in scores.values():  # a ninth of the draws has one example, thrice
        assert [row["value"], row["low"], row["high"]] == pytest.approx([1, 1, 1])


@pytest.mark.parametrize("target", ["nan", "-inf", "five"])
def test_a_target_that_is_no_number_is_refused(target):
    examples = [("a", "b", "1"), ("a", "b", target)]
    with pytest.raises(DataError, match=f"must be numbers. .*'{target}' for example 1"):
        measures(recipe_of("stsb-embedder"), examples, [1.0, 2.0])


def test_bleu_is_given_as_sacrebleu_and_as_papers_have_it():
    pytest.importorskip("sacremoses")
    references = [f"Ein Mann sieht {i} Hunde, und sie „bellen“." for i in range(20)]
    found = [text.lower().replace("„", '"').replace("“", '"') for text in references]
    found[0] = "Eine Frau geht ."
    recipe = recipe_of("multi30k-en-de")
    examples = [("source", text) for text in references]
    scores = measures(recipe, examples, found)
    cased = sacrebleu.corpus_bleu(found, [references]).score
    assert scores["bleu"]["value"] == pytest.approx(cased)
    assert scores["chrf"]["value"] == pytest.approx(
        sacrebleu.corpus_chrf(found, [references]).score
    )
    # Case and kinds of quotes count in the one and not in the other.
    papers = scores["bleu_lowercased"]
    assert papers["value"] > 90 > cased + 10
    tokens = "ein mann sieht {} hunde , und sie &quot; bellen &quot; ."
    lines = [tokens.format(i) for i in range(20)]
    expected = sacrebleu.corpus_bleu(
        ["eine frau geht .", *lines[1:]], [lines], tokenize="none", force=True
    )
    assert papers["value"] == pytest.approx(expected.score)
    assert "norm:de|tok:de|nrefs:1|bs:1000" in papers["signature"]
    assert "case:lc" in papers["signature"] and "tok:none" in papers["signature"]
    assert "case:mixed" in scores["bleu"]["signature"]
    for row in scores.values():
        assert row["low"] < row["value"] < row["high"]


def test_a_translator_that_has_learned_next_to_nothing_has_scores():
    # In some draws nothing is right at all, in others something is.
    pytest.importorskip("sacremoses")
    examples = [("source", text) for text in ("abc def", "qqq", "qqq")]
    found = ["abc def", "x", "x"]
    scores = measures(recipe_of("multi30k-en-de"), examples, found)
    references = [text for _, text in examples]
    expected = sacrebleu.corpus_chrf(found, [references])
    assert scores["chrf"]["value"] == pytest.approx(expected.score)
    assert "nc:6" in scores["chrf"]["signature"]
    assert scores["chrf"]["low"] < expected.score < scores["chrf"]["high"]


def test_measures_are_those_that_the_recipe_asks_for():
    examples = [(["a"], ["O"]), (["b"], ["B-PER"])]
    found = [["O"], ["B-PER"]]
    wanted = recipe_of("ewt-entities", evaluation={"measures": ["f1"]})
    assert list(measures(wanted, examples, found)) == ["f1"]
    wanted = recipe_of("ewt-entities", evaluation={"measures": ["f1", "accuracy"]})
    untagged = [(["a"], ["X"])]  # no entities, so no f1
    with pytest.raises(ValueError, match=r"measures must be of \['acc.*'f1'"):
        measures(wanted, untagged, [["X"]])


@pytest.mark.parametrize(
    ("name", "examples", "found"),
    [
        ("ewt-entities", [(["a"], ["B-PER"])], [["B-PER"]]),
        ("imdb-sentiment", [("a", "negative"), ("b", "positive")], ["negative"] * 2),
        ("multi30k-en-de", [("a dog", "ein Hund")], ["ein Hund"]),
        ("stsb-embedder", [("a", "b", "1"), ("a", "c", "2")], [0.1, 0.2]),
        ("wikitext2-lm", ["a b"], np.array([[3.0, 2]])),
    ],
)
def test_the_names_of_measures_are_those_that_are_computed(name, examples, found):
    recipe = recipe_of(name)
    computed = measures(recipe, examples, found)
    assert set(computed) == set(MEASURES[recipe.task])
    assert set(module._MEASURES) == set(MEASURES)
