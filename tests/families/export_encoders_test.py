"""A checkpoint of each family of encoders as an artifact, which `export` verifies."""

import pytest

import kzoo
from tests.parity.parity_test import written
from tests.parity.rows import ROWS

LOADED = [
    "bert_question_answering",
    "roberta_text_classifier",
    "xlmroberta_sentence_embedder",
    "distilbert_pair",
    "albert_masked_lm",
    "electra_token_classifier",
    "modernbert_text_classifier",
]


def check(name, format, tmp_path):
    row = "distilbert_text_regressor" if name == "distilbert_pair" else name
    written(row, tmp_path)
    kind = "pair_scorer" if name == "distilbert_pair" else ROWS[row]["task"]
    task = kzoo.from_preset(tmp_path, task=kind)
    report = task.export(tmp_path / "artifact", format=format)
    assert report.checks
    assert all(check["difference"] <= 1e-4 for check in report.checks)


@pytest.mark.parametrize("name", LOADED)
def test_onnx_computes_what_the_checkpoint_does(name, tmp_path):
    check(name, "onnx", tmp_path)


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", [LOADED[1], LOADED[-1]])
def test_a_saved_model_computes_what_the_checkpoint_does(name, tmp_path):
    check(name, "tf_saved_model", tmp_path)
