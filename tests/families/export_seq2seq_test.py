"""Encoder-decoders of checkpoints in files: the search in them gives kzoo's tokens."""

import pytest

import kzoo
from kzoo.tasks.exported import ExportsGeneration
from tests.parity.parity_test import written

cases = ExportsGeneration._generate_cases


@pytest.fixture(autouse=True)
def one_search(monkeypatch):
    """Exports verify one search, the one with most options."""

    def processed(self, generator):
        name = "2 beams, processed, batch 1"
        return {name: cases(self, generator)[name]}

    monkeypatch.setattr(ExportsGeneration, "_generate_cases", processed)


NAMES = ("flan_t5", "bart", "mbart", "marian_two_vocabularies", "pegasus", "m2m_100")


@pytest.mark.tensorflow  # JAX compiles each search, which takes long
@pytest.mark.parametrize("name", NAMES)
def test_onnx_computes_and_generates_what_keras_does(name, tmp_path):
    written(name, tmp_path)
    check(kzoo.from_preset(tmp_path).export(tmp_path / "out", format="onnx"))


def check(report):
    assert {case["function"] for case in report.checks} >= {"forward", "generate"}
    assert all(case.get("tokens_equal", True) for case in report.checks)


@pytest.mark.tensorflow
def test_a_saved_model_computes_and_generates_what_keras_does(tmp_path):
    written("t5", tmp_path)
    check(kzoo.from_preset(tmp_path).export(tmp_path / "out"))
