"""Compiled functions are told apart by the backend, too."""

import dataclasses
import logging

import keras
import numpy as np
import pytest

import kzoo
from kzoo.exporters.checks import reference
from kzoo.generation import CompiledFunction
from kzoo.layers.lora import lora_merged, merged_matrices
from tests.harness import perturb, small_task, to_numpy

IDS = np.array([[3, 4, 5]], "int32")


@pytest.mark.tensorflow
def test_many_functions_are_not_taken_for_one_that_is_traced_too_often(caplog):
    logger = logging.getLogger("tensorflow")
    logger.addHandler(caplog.handler)  # it does not propagate
    try:
        for n in range(8):
            function = CompiledFunction(
                None, lambda x, n=n: x + n, [((None,), "int32")]
            )
            assert function(np.array([1]))[0] == 1 + n
            assert function.traces == 1
    finally:
        logger.removeHandler(caplog.handler)
    assert not caplog.records


def test_merged_matrices_are_read_as_they_are():
    """As arguments of a compiled program: else each would hold a copy of its own."""
    model = small_task(kzoo.CausalLM, num_layers=1)
    model.enable_lora(2)
    perturb(model.weights)
    expected = to_numpy(model({"token_ids": IDS}))
    with lora_merged(model):
        specs = [((None, None), "int32")]
        function = CompiledFunction(model, lambda x: model({"token_ids": x}), specs)
        np.testing.assert_allclose(function(IDS), expected, atol=1e-5)
        for matrix in merged_matrices():
            matrix.assign(matrix + 0.1)
        found = function(IDS)
        np.testing.assert_allclose(
            found, to_numpy(model({"token_ids": IDS})), atol=1e-5
        )
        assert np.abs(found - expected).max() > 0.1
        assert function.traces == (2 if keras.backend.backend() == "torch" else 1)


@pytest.mark.parametrize("low_memory", [False, True])
def test_a_search_is_exported_on_every_backend(tmp_path, low_memory):
    """`export` itself runs the file and compares; no other test of torch does."""
    model = small_task(kzoo.CausalLM, num_layers=1)
    perturb(model.weights)
    options = dict(format="onnx", functions="generate", low_memory=low_memory)
    report = model.export(tmp_path / "model.onnx", **options)
    assert {check["function"] for check in report.checks} == {"generate"}


def test_a_text_s_label_is_exported_on_every_backend(tmp_path):
    pytest.importorskip("onnxruntime_extensions", reason="kzoo[text]")
    tokenizer = kzoo.FastTokenizer.train(["ab cd"], 40, algorithm="wordpiece")
    options = dict(labels=["no", "yes"], num_layers=1, hidden_dim=16, num_heads=2)
    model = kzoo.TextClassifier.from_size("tiny", tokenizer, **options)
    report = model.export(tmp_path / "model.onnx", format="onnx", text=True)
    assert report.checks and report.text


def test_jax_compiles_a_case_of_a_verification_at_once():
    """With the weights that the model has then; other backends run op by op."""
    model = small_task(kzoo.CausalLM, num_layers=1)
    functions = [*model.export_functions(), *model.stepwise_functions()]
    assert [function.task for function in functions] == [model] * 4
    forward, inputs = functions[0], {"token_ids": IDS}
    read = []

    def call(inputs):
        read.append(type(inputs["token_ids"]).__name__)
        return forward.call(inputs)

    function = dataclasses.replace(forward, call=call)
    for seed in (0, 1):
        perturb(model.weights, seed)
        found, expected = reference(function, inputs)["logits"], to_numpy(model(inputs))
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert np.abs(expected).max() > 0.1
    compiled = keras.backend.backend() == "jax"
    assert [name.endswith("Tracer") for name in read] == [compiled, compiled]
