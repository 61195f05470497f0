"""Every form is exported, and scored by what the artifact itself answers."""

import numpy as np
import pytest

import kzoo
from kzoo.exporters import answers_from, export
from kzoo.exporters.answers import sessions_of
from kzoo.zoo.exports import FORMS, measure_exports
from tests.harness import op_by_op, perturb

TEXTS = ["abc", "de", "a b c d e"]


@pytest.fixture(scope="module")
def tokenizer():
    return kzoo.FastTokenizer.train(["abc de"], 30, algorithm="character")


@pytest.fixture(scope="module")
def classifier(tokenizer):
    task = kzoo.TextClassifier.from_size(
        "tiny", tokenizer, labels=["x", "y"], num_layers=1, hidden_dim=32
    )
    perturb(task.weights)
    return task


def margin(task):
    """A number of the logits, which rounded weights change a little."""
    logits = task.predict(TEXTS, verbose=0)
    return {"margin": np.mean(logits[:, 0] - logits[:, 1]), "signature": "v:1"}


def test_forms_are_scored_by_the_artifact(classifier):
    found = measure_exports(classifier, margin, ["ONNX", "ONNX int8"])
    exact, int8 = found["forms"]
    own = found["score"]["margin"]
    assert [exact["form"], int8["form"]] == ["ONNX", "ONNX int8"]
    assert found["score"] == {"margin": pytest.approx(margin(classifier)["margin"])}
    assert exact["score"]["margin"] == pytest.approx(own, abs=1e-5)
    # Another number is proof that the rounded weights have answered.
    assert 1e-5 < abs(int8["score"]["margin"] - own) < 0.5
    assert int8["bytes"] < exact["bytes"]
    assert exact["difference"] < 1e-4 < int8["difference"]
    assert "label_agreement" not in exact
    # And afterwards the task answers for itself.
    assert margin(classifier)["margin"] == pytest.approx(own)


def test_what_has_no_exact_form_says_why(tokenizer):
    tagger = kzoo.TokenClassifier.from_size(
        "tiny", tokenizer, labels=["x", "y"], num_layers=1, hidden_dim=8
    )
    found = measure_exports(tagger, lambda task: {}, ["ONNX, text"])
    (form,) = found["forms"]
    assert form["form"] == "ONNX, text" and "places in a text" in form["refused"]


def test_what_an_artifact_cannot_answer_says_why(tokenizer):
    writer = kzoo.CausalLM.from_size("tiny", tokenizer, num_layers=1, hidden_dim=8)
    (form,) = measure_exports(writer, lambda task: task.score(TEXTS), ["ONNX, text"])[
        "forms"
    ]
    assert "needs probabilities" in form["not_scored"] and form["bytes"] > 0


def test_unknown_forms_are_refused_with_the_known_ones(classifier):
    with pytest.raises(ValueError, match="ONNX int8.*Received.*'tflite'"):
        measure_exports(classifier, margin, ["tflite"])


def test_forms_have_all_that_is_exported():
    options = list(FORMS.values())
    assert {each.get("quantize") for each in options} == {
        None,
        "float16",
        "int8",
        "int8_weights",
        "int4",
    }
    assert {each["format"] for each in options} == {"onnx", "tf_saved_model"}


@pytest.mark.tensorflow
@pytest.mark.usefixtures("greedy")
def test_a_saved_model_answers_for_its_task(tokenizer, tmp_path):
    task = kzoo.Seq2SeqLM.from_size("tiny", tokenizer, num_layers=1, hidden_dim=16)
    perturb(task.weights)
    options = dict(beams=2, max_new_tokens=6, repetition_penalty=1.5)
    with op_by_op():
        own = task.generate(TEXTS, **options)
    report = export(task, tmp_path / "saved", functions="generate")
    for variable in task.weights:  # so that the task itself would answer otherwise
        variable.assign(0.0 * variable)
    with answers_from(task, sessions_of(task, tmp_path / "saved", report)):
        assert task.generate(TEXTS, **options) == own
    with op_by_op():
        assert task.generate(TEXTS, **options) != own
