"""What `save_hf` leaves in a folder, and what it does not."""

import json

import numpy as np
import pytest

import kzoo
from tests.harness import perturb, to_numpy
from tests.parity.parity_test import written

IDS = {"token_ids": np.array([[4, 5, 6, 2]], "int32")}


def test_adapters_are_merged_into_what_is_written_and_stay_in_the_task(tmp_path):
    written("llama", tmp_path)
    task = kzoo.from_preset(tmp_path)
    plain = to_numpy(task(IDS))
    task.enable_lora(2, "*/query")
    perturb([v for v in task.trainable_variables if "lora" in v.name])
    adapted = to_numpy(task(IDS))
    assert np.abs(adapted - plain).max() > 1e-2
    kzoo.save_hf(task, tmp_path / "out")
    np.testing.assert_allclose(
        to_numpy(kzoo.from_preset(tmp_path / "out")(IDS)), adapted, atol=1e-4
    )
    np.testing.assert_array_equal(to_numpy(task(IDS)), adapted)


def test_adapters_stay_in_a_folder_of_kzoo_whatever_is_asked_for(tmp_path):
    written("llama", tmp_path)
    task = kzoo.from_preset(tmp_path)
    task.enable_lora(2, "*/query")
    perturb([v for v in task.trainable_variables if "lora" in v.name])
    task.save_folder(tmp_path / "own")
    again = kzoo.from_preset(tmp_path / "own", search_defaults={"beams": 2})
    np.testing.assert_array_equal(to_numpy(again(IDS)), to_numpy(task(IDS)))
    assert len(again.trainable_variables) == len(task.trainable_variables)


def test_files_of_a_former_model_go_and_others_stay(tmp_path):
    (tmp_path / "a").mkdir()
    written("bert_model", tmp_path / "a")
    out = tmp_path / "out"
    kzoo.save_hf(kzoo.from_preset(tmp_path / "a", task="sentence_embedder"), out)
    assert (out / "modules.json").is_file()
    (out / "notes.txt").write_text("mine")
    (tmp_path / "b").mkdir()
    written("bert_text_classifier", tmp_path / "b")
    kzoo.save_hf(kzoo.from_preset(tmp_path / "b"), out)
    assert not (out / "modules.json").exists() and (out / "notes.txt").is_file()
    assert isinstance(kzoo.from_preset(out), kzoo.TextClassifier)


def test_what_fails_leaves_the_former_model_as_it_was(tmp_path):
    (tmp_path / "in").mkdir()
    written("llama", tmp_path / "in")
    task = kzoo.from_preset(tmp_path / "in")
    out = tmp_path / "out"
    kzoo.save_hf(task, out)
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    task.tokenizer = kzoo.SentencePieceTokenizer.train(["a b c d e f"] * 9, 30)
    with pytest.raises(ValueError, match="no layout"):
        kzoo.save_hf(task, out)
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "out"]


def test_a_dtype_comes_back_with_a_folder_where_it_is_asked_for(tmp_path):
    (tmp_path / "in").mkdir()
    written("llama", tmp_path / "in")
    task = kzoo.from_preset(tmp_path / "in", dtype="bfloat16")
    kzoo.save_hf(task, tmp_path / "hf")
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["dtype"] == (
        "bfloat16"
    )
    task.save_folder(tmp_path / "own")
    for folder in ("hf", "own"):
        again = kzoo.from_preset(tmp_path / folder, dtype="auto")
        assert again.variable_dtype == "bfloat16"
        np.testing.assert_array_equal(
            to_numpy(again(IDS)).astype("float32"),
            to_numpy(task(IDS)).astype("float32"),
        )


def test_a_model_without_a_known_padding_says_so(tmp_path):
    _, described = written("gpt2", tmp_path)
    config = {**described["config"], "pad_token_id": None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.warns(UserWarning, match="names no padding.*id 96 stands for it"):
        task = kzoo.from_preset(tmp_path)
    kzoo.save_hf(task, tmp_path / "out")
    back = json.loads((tmp_path / "out" / "config.json").read_text())
    assert back["pad_token_id"] is None
