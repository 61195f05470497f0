"""Encoder-decoders of checkpoints in files: the search in them gives kzoo's tokens."""

import numpy as np
import pytest

import kzoo
from kzoo.exporters import onnx_session
from kzoo.tasks.exported_generation import ExportsGeneration
from kzoo.tokenizers import load_pretrained_tokenizer
from tests.golden import folders as golden
from tests.harness import perturb
from tests.parity.parity_test import written
from tests.strategies import few_of

cases = ExportsGeneration._generate_cases


@pytest.fixture(autouse=True)
def one_search(monkeypatch):
    """Exports verify one search, the one with most options."""

    def processed(self, generator):
        name = "2 beams, processed, batch 2"
        return {name: cases(self, generator)[name]}

    monkeypatch.setattr(ExportsGeneration, "_generate_cases", processed)


NAMES = ("flan_t5", "bart", "mbart", "marian_two_vocabularies", "pegasus", "m2m_100")


@pytest.mark.parametrize("name", few_of(NAMES))
def test_onnx_computes_and_generates_what_keras_does(name, tmp_path):
    written(name, tmp_path)
    check(kzoo.from_preset(tmp_path).export(tmp_path / "out", format="onnx"))


def test_a_file_has_the_language_and_all_ends_of_its_model(tmp_path):
    described = golden.unpack("nllb", tmp_path)
    tokenizer = load_pretrained_tokenizer(tmp_path, described["kind"])
    small = dict(num_layers=1, hidden_dim=16, intermediate_dim=16, num_heads=2)
    model = kzoo.Seq2SeqLM.from_size("tiny", tokenizer, positions="rotary", **small)
    perturb(model.named_variables().values())
    ids = described["ids"][:1]
    options = dict(max_new_tokens=8, no_repeat_ngram_size=1)
    (free,) = model.generate(ids, **options)
    stop = free[3]
    model.search_defaults = dict(stop_tokens=[stop, stop, 7])
    (expected,) = model.generate(ids, **options)
    assert expected == free[:3]
    assert expected[0] == tokenizer.conventions.target_prefix[0]
    report = model.export(tmp_path / "m", format="onnx", functions=["generate"])
    assert "search_defaults" not in str(report)  # the file has them
    session = onnx_session.open_session(tmp_path / "m" / "generate.onnx")
    inputs = {name: np.array(value) for name, value in options.items()}
    inputs["encoder_token_ids"] = np.array(ids)
    (sequences,) = session.run(["sequences"], inputs)
    row = sequences[0, 0].tolist()
    assert row[:4] == [*expected, stop]
    assert set(row[4:]) <= {model.config.pad_token_id}


def check(report):
    assert {case["function"] for case in report.checks} >= {"forward", "generate"}
    assert all(case.get("tokens_equal", True) for case in report.checks)


@pytest.mark.tensorflow
def test_a_saved_model_computes_and_generates_what_keras_does(tmp_path):
    written("t5", tmp_path)
    check(kzoo.from_preset(tmp_path).export(tmp_path / "out"))
