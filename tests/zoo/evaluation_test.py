"""Scores: each against the library or the loop that defines it; intervals."""

import dataclasses
import json
import math

import numpy as np
import pytest
import sacrebleu
from scipy import stats
from sklearn import metrics

import kzoo
from kzoo.data import DataError
from kzoo.training.scores import entity_scores
from kzoo.zoo import evaluation, training
from kzoo.zoo.examples import inputs_and_targets
from kzoo.zoo.recipe_tables import Evaluation
from kzoo.zoo.recipes import MEASURES, Recipe, shipped
from tests.harness import to_numpy


def recipe_of(name, **evaluation):
    recipe = Recipe.load(shipped()[name])
    return dataclasses.replace(recipe, evaluation=Evaluation(**evaluation))


def test_an_interval_of_a_mean_is_that_of_theory():
    values = np.random.default_rng(0).normal(size=400)
    low, high = evaluation.bootstrap(400, lambda chosen: values[chosen].mean(axis=1))
    error = 1.96 * values.std() / math.sqrt(400)
    assert low == pytest.approx(values.mean() - error, abs=0.02)
    assert high == pytest.approx(values.mean() + error, abs=0.02)


def test_an_interval_does_not_depend_on_how_many_are_drawn_at_a_time(monkeypatch):
    values = np.random.default_rng(0).normal(size=50)

    def interval():
        return evaluation.bootstrap(50, lambda chosen: values[chosen].mean(axis=1))

    whole = interval()
    monkeypatch.setattr(evaluation, "_NUMBERS_AT_A_TIME", 350)
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
    scores = evaluation.measures(recipe, examples, answers)
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
    scores = evaluation.measures(recipe, examples, ["negative", "positive", "negative"])
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
            evaluation.measures(recipe, examples, ["negative"] * 3)


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
    scores = evaluation.measures(recipe_of("ewt-entities"), examples, found)
    expected = entity_scores(truth, found)
    right = np.mean(np.array(truth) == np.array(found))
    assert scores["accuracy"]["value"] == pytest.approx(right)
    for name in ("precision", "recall", "f1"):
        assert scores[name]["value"] == pytest.approx(expected[name])
        assert scores[name]["low"] < expected[name] < scores[name]["high"]


def test_parts_of_speech_have_no_entities():
    examples = [(["a", "dog"], ["DET", "NOUN"])]
    found = [["DET", "VERB"]]
    scores = evaluation.measures(recipe_of("ewt-pos"), examples, found)
    assert list(scores) == ["accuracy"] and scores["accuracy"]["value"] == 0.5


def test_correlations_are_scipy_s_ties_among_them():
    generator = np.random.default_rng(0)
    truth = generator.integers(0, 5, 300).astype(float)
    found = truth + generator.normal(0, 2, 300)
    examples = [("a", "b", str(score)) for score in truth]
    scores = evaluation.measures(recipe_of("stsb-embedder"), examples, found.tolist())
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
    scores = evaluation.measures(recipe_of("stsb-embedder"), examples, found)
    for row in scores.values():
        assert [row["value"], row["low"], row["high"]] == [None, None, None]
    json.dumps(scores, allow_nan=False)


@pytest.mark.filterwarnings("error")
def test_draws_whose_correlation_is_not_defined_do_not_count():
    examples = [("a", "b", score) for score in ("1", "2", "3")]
    scores = evaluation.measures(recipe_of("stsb-embedder"), examples, [2.0, 4.0, 6.0])
    for row in scores.values():  # a ninth of the draws has one example, thrice
        assert [row["value"], row["low"], row["high"]] == pytest.approx([1, 1, 1])


@pytest.mark.parametrize("target", ["nan", "-inf", "five"])
def test_a_target_that_is_no_number_is_refused(target):
    examples = [("a", "b", "1"), ("a", "b", target)]
    with pytest.raises(DataError, match=f"must be numbers. .*'{target}' for example 1"):
        evaluation.measures(recipe_of("stsb-embedder"), examples, [1.0, 2.0])


def test_bleu_is_given_as_sacrebleu_and_as_papers_have_it():
    pytest.importorskip("sacremoses")
    references = [f"Ein Mann sieht {i} Hunde, und sie „bellen“." for i in range(20)]
    found = [text.lower().replace("„", '"').replace("“", '"') for text in references]
    found[0] = "Eine Frau geht ."
    recipe = recipe_of("multi30k-en-de")
    examples = [("source", text) for text in references]
    scores = evaluation.measures(recipe, examples, found)
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
    scores = evaluation.measures(recipe_of("multi30k-en-de"), examples, found)
    references = [text for _, text in examples]
    expected = sacrebleu.corpus_chrf(found, [references])
    assert scores["chrf"]["value"] == pytest.approx(expected.score)
    assert "nc:6" in scores["chrf"]["signature"]
    assert scores["chrf"]["low"] < expected.score < scores["chrf"]["high"]


def test_measures_are_those_that_the_recipe_asks_for():
    examples = [(["a"], ["O"]), (["b"], ["B-PER"])]
    found = [["O"], ["B-PER"]]
    wanted = recipe_of("ewt-entities", measures=["f1"])
    assert list(evaluation.measures(wanted, examples, found)) == ["f1"]
    wanted = recipe_of("ewt-entities", measures=["f1", "accuracy"])
    untagged = [(["a"], ["X"])]  # no entities, so no f1
    with pytest.raises(ValueError, match=r"measures must be of \['acc.*'f1'"):
        evaluation.measures(wanted, untagged, [["X"]])


TEXT = "the cat sat\non the mat .\n" * 3


@pytest.fixture(scope="module")
def writer():
    tokenizer = kzoo.FastTokenizer.train([TEXT], 100, algorithm="character")
    return kzoo.CausalLM.from_size(
        "tiny", tokenizer, num_layers=1, hidden_dim=16, num_heads=2, positions="rotary"
    )


@pytest.mark.parametrize("stride", [3, 8])
def test_running_text_is_scored_in_windows_each_token_once(writer, stride):
    recipe = Recipe.load(shipped()["shakespeare-char"])
    recipe = dataclasses.replace(
        recipe,
        training=dataclasses.replace(recipe.training, length=8),
        evaluation=Evaluation(options={"stride": stride}),
    )
    nats, counted = evaluation.answers(writer, recipe, [TEXT]).T
    (ids,) = writer.tokenizer.encode([TEXT])
    assert counted.sum() == len(ids) and len(counted) == 1 + -(
        -(len(ids) - 8) // stride
    )

    def nats_by_hand(first, begin, end):
        """Of tokens begin to end, in a window that begins at `first`."""
        row = np.array([[writer.config.start_token_id, *ids[first:end]]])
        logits = np.asarray(writer({"token_ids": row[:, :-1]}))[0].astype("float64")
        log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        chosen = log_p[np.arange(end - first), ids[first:end]]
        return -chosen[begin - first :].sum()

    expected, done = [], 0
    while done < len(ids):
        end = min(len(ids), done + stride if done else 8)
        expected.append(nats_by_hand(max(0, end - 8), done, end))
        done = end
    np.testing.assert_allclose(nats, expected, rtol=1e-4)

    scores = evaluation.measures(recipe, [TEXT], np.stack([nats, counted], axis=1))
    loss = sum(expected) / len(ids)
    assert scores["loss"]["value"] == pytest.approx(loss, rel=1e-4)
    # A token is a character here; 21 words and 6 ends of lines in 75 characters.
    bits = loss / math.log(2)
    assert scores["bits_per_character"]["value"] == pytest.approx(bits, rel=1e-4)
    assert len(ids) == len(TEXT) and TEXT.count("\n") == 6 and len(TEXT.split()) == 21
    words = math.exp(loss * len(TEXT) / 27)
    assert scores["word_perplexity"]["value"] == pytest.approx(words, rel=1e-3)


MASKED = """
name = "guesser"
title = "Guesses letters"
task = "masked_lm"
[data]
format = "running"
train = "text.txt"
[data.hold_out]
by = "end"
validation = 0.3
[tokenizer]
kind = "character"
vocabulary_size = 60
[model]
size = "tiny"
num_layers = 1
hidden_dim = 16
num_heads = 2
[training]
epochs = 2
batch_size = 4
length = 8
[training.schedule]
peak = 0.01
[evaluation]
main = ["validation", "accuracy"]
options = { batch_size = 8 }
"""


def test_a_masked_language_model_of_running_text_is_trained_and_scored(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT * 3)
    (tmp_path / "recipe.toml").write_text(MASKED)
    recipe = Recipe.load(tmp_path / "recipe.toml")
    model = training.train(recipe, tmp_path, tmp_path / "out")
    scores = evaluation.evaluate(model, recipe, tmp_path)["tests"]["validation"]
    text = (TEXT * 3)[int(0.7 * len(TEXT) * 3) :]
    (ids,) = model.tokenizer.encode([text])
    rows = len(ids) // 8
    assert scores["rows"] == rows == 8  # one batch
    start = model.config.start_token_id
    batch = np.array([[start, *ids[8 * i : 8 * i + 8]] for i in range(rows)])
    batch = np.pad(batch, ((0, 0), (0, 3)))  # to a bucket's length
    inputs, targets = model.masked({"token_ids": batch}, 0)
    assert (inputs["token_ids"][:, 0] == start).all()
    logits, chosen = to_numpy(model(inputs)).astype("float64"), targets != -1
    logits, targets = logits[chosen], targets[chosen]
    own = logits[np.arange(len(targets)), targets]
    right = logits.argmax(axis=-1) == targets
    nats = np.log(np.exp(logits).sum(axis=-1)) - own
    found = {name: row["value"] for name, row in scores["measures"].items()}
    assert found["accuracy"] == pytest.approx(np.mean(right))
    assert found["perplexity"] == pytest.approx(np.exp(np.mean(nats)), rel=1e-5)
    # Its exported forms are asked for all places, and scored alike.
    (form,) = evaluation.evaluate_exports(model, recipe, tmp_path, ["ONNX"])["forms"]
    assert form["score"] == pytest.approx(found, rel=1e-4)


def test_a_tokenizer_that_forgets_says_nothing_of_words(tmp_path):
    import gzip

    recipe = Recipe.load(shipped()["shakespeare-char"])
    recipe = dataclasses.replace(
        recipe,
        training=dataclasses.replace(recipe.training, length=8),
        evaluation=Evaluation(),
    )
    with gzip.open(tmp_path / "input.txt.gz", "wt") as file:
        file.write("The cat\n\n\n\nsat on the mat .\n" * 12)
    tokenizer = kzoo.FastTokenizer.train([TEXT], 60, algorithm="wordpiece")
    forgets = kzoo.CausalLM.from_size(
        "tiny", tokenizer, num_layers=1, hidden_dim=16, num_heads=2, positions="rotary"
    )
    tests = {}
    for measure in ("loss", "word_perplexity"):
        asked = Evaluation(main=("validation", measure))
        asked = dataclasses.replace(recipe, evaluation=asked)
        if measure == "word_perplexity":
            with pytest.raises(ValueError, match="gives back each text as it was"):
                evaluation.evaluate(forgets, asked, tmp_path, ["validation"])
        else:
            scores = evaluation.evaluate(forgets, asked, tmp_path, ["validation"])
            tests = scores["tests"]["validation"]
    assert set(tests["measures"]) == {"loss", "perplexity"}
    assert tests["rows"] > 1  # windows


@pytest.mark.parametrize("stride", [500, 0, "x", 1.5])
def test_a_stride_beyond_the_window_is_refused(stride):
    with pytest.raises(ValueError, match=r"stride: expected a number in \[1, 128\]"):
        recipe_of("shakespeare-char", options={"stride": stride})


@pytest.fixture
def of_lines():
    """A recipe of a language model that reads a text a line."""
    recipe = Recipe.load(shipped()["shakespeare-char"])
    return dataclasses.replace(
        recipe,
        data=dataclasses.replace(recipe.data, format="text"),
        training=dataclasses.replace(recipe.training, length=None, steps=None),
        evaluation=Evaluation(),
    )


def test_a_line_that_would_be_cut_is_not_scored(writer, of_lines):
    small = kzoo.CausalLM.from_size(
        "tiny", writer.tokenizer, positions="learned", max_sequence_length=8
    )
    assert len(evaluation.answers(small, of_lines, ["the cat"])) == 1  # and its end
    with pytest.raises(ValueError, match="hold 8 tokens.*9 tokens in token_ids"):
        evaluation.answers(small, of_lines, ["the cats"])


def test_lines_are_scored_as_the_task_scores_them(writer, of_lines):
    recipe = of_lines
    lines = ["the cat", "sat on the mat", "."]
    found = evaluation.answers(writer, recipe, lines)
    scores = evaluation.measures(recipe, lines, found)
    expected = writer.score(lines)
    assert scores["perplexity"]["value"] == pytest.approx(expected["perplexity"])
    assert scores["bits_per_character"]["value"] == pytest.approx(
        expected["bits_per_character"]
    )


def test_an_artifact_is_scored_by_the_same_code(writer, tmp_path):
    import onnxruntime

    from kzoo.exporters.answers import answers_from

    recipe = Recipe.load(shipped()["shakespeare-char"])
    recipe = dataclasses.replace(
        recipe,
        training=dataclasses.replace(recipe.training, length=8),
        evaluation=Evaluation(options={"stride": 8}),
    )
    writer.export(tmp_path / "onnx", format="onnx")
    session = onnxruntime.InferenceSession(tmp_path / "onnx" / "forward.onnx")
    expected = evaluation.answers(writer, recipe, [TEXT])
    asked = []

    class Counted:
        """The session, and how often it was asked."""

        def __getattr__(self, name):
            return getattr(session, name)

        def run(self, *arguments):
            asked.append(arguments)
            return session.run(*arguments)

    with answers_from(writer, {"forward": Counted()}):
        found = evaluation.answers(writer, recipe, [TEXT])
    assert asked
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_data_of_another_task_are_refused_before_the_work(tmp_path):
    tokenizer = kzoo.FastTokenizer.train(["a b"], 30, algorithm="character")
    tagger = kzoo.TokenClassifier.from_size(
        "tiny", tokenizer, labels=["O", "B-X"], num_layers=1
    )
    recipe = dataclasses.replace(recipe_of("ewt-entities"), task_options={})
    (tmp_path / "test.tsv.gz").write_text("a\tNOUN\n")
    with pytest.raises(DataError, match=r"test: none of its.*'B-X'.*\['NOUN'\]"):
        evaluation.evaluate(tagger, recipe, tmp_path, ["test"])
    with pytest.raises(DataError, match="none of its labels is the model's"):
        evaluation.evaluate_exports(tagger, recipe, tmp_path)
    (tmp_path / "test.tsv.gz").write_text("a\tNOUN\nb\tO\n")  # some may be new
    recipe = dataclasses.replace(recipe, evaluation=Evaluation(main=("test", "f1")))
    with (
        pytest.raises(ValueError, match=r"main: .* 'test' has, of \['accuracy'\]"),
        pytest.warns(UserWarning, match=r"1 of 2 labels .* as wrong.*\['NOUN'\]"),
    ):
        evaluation.evaluate(tagger, recipe, tmp_path, ["test"])


@pytest.mark.parametrize(
    ("options", "label", "right"),
    [
        ({"labels": ["neg", "pos"]}, "1", True),
        ({"labels": ["neg", "pos"]}, "pos", True),
        ({"labels": ["bad", "good"]}, "1", False),  # the recipe knows, the model not
        ({"num_classes": 2}, "1", False),
        ({}, "1", False),
        ({}, "pos", True),
    ],
)
def test_classes_have_to_be_the_model_s(tmp_path, options, label, right):
    tokenizer = kzoo.FastTokenizer.train(["a b"], 30, algorithm="character")
    model = kzoo.TextClassifier.from_size(
        "tiny", tokenizer, labels=["neg", "pos"], num_layers=1, hidden_dim=8
    )
    recipe = dataclasses.replace(recipe_of("imdb-sentiment"), task_options=options)
    assert recipe.data.columns == (4, 0)
    (file,) = recipe.data.test["test"].files
    (tmp_path / file).write_text(f"{label}\t-\t-\t-\tb\n")
    if right:
        scores = evaluation.evaluate(model, recipe, tmp_path)
        (answer,) = model.classify(["b"])
        measures = scores["tests"]["test"]["measures"]
        assert measures["accuracy"]["value"] == float(answer == "pos")
    else:
        with pytest.raises(DataError, match=r"Expected: \['neg', 'pos'\]. Received"):
            evaluation.evaluate(model, recipe, tmp_path)


@pytest.mark.parametrize("where", [{"main": ("test", "accurcy")}, {"measures": ["x"]}])
def test_a_measure_that_the_task_has_not_is_refused_before_the_work(where):
    with pytest.raises(ValueError, match="expected measures of .*'macro_f1'"):
        recipe_of("imdb-sentiment", **where)


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
    computed = evaluation.measures(recipe, examples, found)
    assert set(computed) == set(MEASURES[recipe.task])
    assert set(evaluation._MEASURES) == set(MEASURES)
