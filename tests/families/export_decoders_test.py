"""Checkpoints of decoders leave as verified files, whole loop included."""

import keras
import pytest

import kzoo
from tests.parity.parity_test import written

ROWS = [
    "gpt2",
    "gpt_neox",
    "opt_post",
    "llama_yarn",
    "mistral",
    "qwen2_windows",
    "qwen3_windows",
    "gemma2_caps",
    "gemma3",
    "phi3",
]
# JAX compiles each search, which takes ten times as long as all else.
SLOW = keras.backend.backend() != "tensorflow"

pytestmark = pytest.mark.usefixtures("greedy")


def check(name, folder, format, functions):
    golden, _ = written(name, folder)
    task = kzoo.from_preset(folder)
    report = task.export(folder / "model", format=format, functions=functions)
    assert set(report.functions) >= set(functions)
    checks = {c["function"]: c for c in report.checks}
    assert all(c["difference"] <= 1e-4 for c in report.checks)
    assert "generate" not in functions or checks["generate"]["tokens_equal"]


@pytest.mark.parametrize("name", ROWS)
def test_onnx_computes_what_the_checkpoint_does(name, tmp_path):
    check(name, tmp_path, "onnx", ["forward"] if SLOW else ["forward", "generate"])


@pytest.mark.parametrize("name", ["gpt2_classifier", "gemma3_classifier"])
def test_onnx_classifies_as_the_checkpoint_does(name, tmp_path):
    check(name, tmp_path, "onnx", ["forward"])


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", ["gpt_neox", "gemma3"])
def test_a_saved_model_computes_what_the_checkpoint_does(name, tmp_path):
    check(name, tmp_path, "tf_saved_model", ["forward", "generate"])
