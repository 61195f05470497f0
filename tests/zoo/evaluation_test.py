"""A model's answers to a recipe's test sets, and what is refused before the work."""

import dataclasses
import math

import numpy as np
import pytest

import kzoo
from kzoo.data import DataError
from kzoo.zoo import evaluation, training
from kzoo.zoo.measures import measures
from kzoo.zoo.recipe_tables import Evaluation
from kzoo.zoo.recipes import Recipe, shipped
from tests.harness import to_numpy
from tests.recipes import recipe_of

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

    scores = measures(recipe, [TEXT], np.stack([nats, counted], axis=1))
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
        recipe_of("shakespeare-char", evaluation={"options": {"stride": stride}})


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
    scores = measures(recipe, lines, found)
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
    recipe = recipe_of("imdb-sentiment")
    with pytest.raises(ValueError, match="expected measures of .*'macro_f1'"):
        dataclasses.replace(recipe, evaluation=Evaluation(**where))
