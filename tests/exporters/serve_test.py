"""The service recipe answers as the file that it serves."""

import importlib.util
from pathlib import Path

import onnx
import pytest

from tests.words import perturbed, seq2seq

RECIPE = Path(__file__).parents[2] / "export" / "recipes" / "serve.py"


@pytest.fixture(scope="module")
def recipe():
    """The script as a module."""
    pytest.importorskip("fastapi.testclient", reason="kzoo[serve]")
    spec = importlib.util.spec_from_file_location("serve", RECIPE)
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    return recipe


@pytest.fixture(scope="module")
def client(recipe, tmp_path_factory):
    """A translator behind HTTP, and the task itself."""
    from fastapi import testclient

    task = perturbed(seq2seq())
    folder = tmp_path_factory.mktemp("served")
    task.export(folder / "model", format="onnx", text=True, functions=["generate"])
    with pytest.raises(FileNotFoundError, match="has no .onnx file. Expected what"):
        recipe.service(folder)
    return testclient.TestClient(recipe.service(folder / "model", threads=1)), task


def test_json_is_answered_as_keras_does(client):
    client, task = client
    options = dict(beams=3, max_new_tokens=6)
    given = {"text": ["abc", "d"], "num_return_sequences": 2, **options}
    found = client.post("/generate", json=given).json()
    texts, scores = task.generate(
        ["abc", "d"], num_return_sequences=2, return_scores=True, **options
    )
    assert found["generated_text"] == texts
    assert found["scores"] == [pytest.approx(row, abs=1e-4) for row in scores.tolist()]
    one = client.post("/generate", json={"text": "abc", "max_new_tokens": 6}).json()
    assert one["generated_text"] == [[task.generate("abc", max_new_tokens=6)]]
    said = client.get("/").json()["generate"]
    assert said["needed"] == ["text"] and said["inputs"]["beams"] == "tensor(int64)"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "missing: ['text']"),
        ({"text": "a", "beam": 2}, "Unknown: ['beam']"),
        ({"text": [3]}, "text must be strings. Received: [3]"),
        ({"text": "a", "beams": "two"}, "beams must be whole numbers. Received: 'two'"),
        ({"text": "a", "beams": [2]}, "whole numbers with the axes [], all"),
        ({"text": "a", "beams": 2.7}, "beams must be whole numbers. Received: 2.7"),
        ({"text": "a", "beams": True}, "beams must be whole numbers. Received: True"),
        ({"text": "a", "beams": 10**30}, "beams: "),
        ({"text": "a", "beams": None}, "beams must be whole numbers. Received: None"),
        ({"text": "a", "early_stopping": 5}, "early_stopping must be true or false"),
        ({"text": "a", "length_penalty": "x"}, "length_penalty must be numbers"),
        ({"text": [["a"], ["b", "c"]]}, "text must be strings with the axes"),
        ({"text": eval("[" * 40 + "'a'" + "]" * 40)}, "text"),
        ({"text": "a", "beams": 0}, "beams must be at least 1"),
        ({"text": "a", "beams": 33}, "beams must be at most 32 here. Received: 33."),
        ({"text": ["a" * 5001, "b"]}, "at most 10000 characters or ids, all rows as"),
        ({"text": [""] * 65}, "['text'] must have at most 64 rows"),
        ({"text": "a", "max_new_tokens": 1025}, "max_new_tokens must be at most 1024"),
        (
            {"text": "a", "max_new_tokens": 1024, "beams": 17},
            "At most 16384 tokens are",
        ),
        ({"text": ["a"] * 64, "beams": 3}, "'beams': 3}, which are 24576."),
    ],
)
def test_a_wrong_input_is_named(client, given, message):
    answer = client[0].post("/generate", json=given)
    assert answer.status_code == 422 and message in answer.json()["detail"]


def test_another_address_is_not_found(client):
    answer = client[0].post("/translate", json={})
    assert answer.status_code == 404
    assert answer.json()["detail"] == "Expected one of ['generate']."


def test_needed_inputs_are_counted_together_and_may_be_scalars(recipe, tmp_path):
    from fastapi.testclient import TestClient

    shapes = dict(x=[None], y=[None], z=[])
    inputs = [
        onnx.helper.make_tensor_value_info(name, 1, shape)
        for name, shape in shapes.items()
    ]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Sum", list(shapes), ["sum"])],
        "sum",
        inputs,
        [onnx.helper.make_tensor_value_info("sum", 1, [None])],
    )
    opsets = [onnx.helper.make_opsetid("", 18)]
    model = onnx.helper.make_model(graph, ir_version=9, opset_imports=opsets)
    onnx.save(model, tmp_path / "sum.onnx")
    client = TestClient(recipe.service(tmp_path, most_input=7))
    answer = client.post("/sum", json={"x": [1, 2, 3], "y": [4, 5, 6], "z": 2})
    assert answer.json() == {"sum": [7.0, 9.0, 11.0]}
    answer = client.post("/sum", json={"x": [1.0] * 4, "y": [1.0] * 4, "z": 2.0})
    assert answer.status_code == 422
    assert answer.json()["detail"].endswith("Received: 9.")


def test_infinity_is_a_number_of_json_and_nan_is_no_answer(recipe, tmp_path):
    from fastapi.testclient import TestClient

    x, y = (onnx.helper.make_tensor_value_info(n, 1, [None]) for n in ("x", "y"))
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Log", ["x"], ["y"])], "log", [x], [y]
    )
    opsets = [onnx.helper.make_opsetid("", 18)]
    model = onnx.helper.make_model(graph, ir_version=9, opset_imports=opsets)
    onnx.save(model, tmp_path / "log.onnx")
    client = TestClient(recipe.service(tmp_path))
    answer = client.post("/log", json={"x": [1.0, 0.0]}).json()
    assert answer == {"y": [0.0, -1e30]}
    answer = client.post("/log", json={"x": [1.0, -1.0]})
    assert answer.status_code == 500
    said = "The file's y is NaN with this input, as where numbers overflow."
    assert answer.json()["detail"] == said
    json = {"Content-Type": "application/json"}
    answer = client.post("/log", content='{"x": [1.0, NaN]}', headers=json)
    assert answer.status_code == 422
    assert answer.json()["detail"] == "x must be finite. Received: [1.0, nan]"
