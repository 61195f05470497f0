"""A checkpoint's whole road: the ways into a task, and back into files."""

import keras
import numpy as np
import pytest
from huggingface_hub import constants
from safetensors.numpy import load_file, save_file

import kzoo
from tests.harness import perturb, to_numpy
from tests.parity.parity_test import FIRST, assert_same_weights, logits, written
from tests.parity.rows import ROWS

COMMIT = "0123456789abcdef0123456789abcdef01234567"
# Tied tables, a fused projection, shared layers, an encoder-decoder.
ADAPTED = ["llama", "phi3", "albert", "t5"]


def answers(task, name, golden):
    return to_numpy(logits(task, ROWS[name], golden, "right")[0])


def weights(task):
    return {path: to_numpy(v) for path, v in task.named_variables().items()}


@pytest.mark.parametrize("model_type", ["llama", "t5", "gpt2"])
def test_shards_are_written_and_load_as_one_file_does(model_type, tmp_path):
    written(FIRST[model_type], tmp_path)
    task = kzoo.from_preset(tmp_path)
    kzoo.save_hf(task, tmp_path / "out", max_shard_bytes=4000)
    shards = [*(tmp_path / "out").glob("model-*-of-*.safetensors")]
    assert len(shards) > 3
    assert not (tmp_path / "out" / "model.safetensors").exists()
    assert_same_weights(kzoo.from_preset(tmp_path / "out"), task)
    shards[0].unlink()
    with pytest.raises((OSError, ValueError), match=shards[0].name):
        kzoo.from_preset(tmp_path / "out")


def test_a_torch_file_loads_as_safetensors_do(tmp_path):
    torch = pytest.importorskip("torch", reason="writes the file")
    written("llama", tmp_path)
    task = kzoo.from_preset(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = {name: torch.from_numpy(a) for name, a in load_file(path).items()}
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    path.unlink()
    assert_same_weights(kzoo.from_preset(tmp_path), task)


@pytest.mark.parametrize("how", ["address", "argument"])
def test_the_revision_that_is_asked_for_is_loaded_offline(how, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    repository = tmp_path / "models--owner--name"
    (repository / "refs").mkdir(parents=True)
    for revision, factor in (("main", 1.0), ("v1", 0.5)):
        commit = COMMIT if revision == "main" else COMMIT[::-1]
        (repository / "refs" / revision).write_text(commit)
        snapshot = repository / "snapshots" / commit
        snapshot.mkdir(parents=True)
        written("llama", snapshot)
        path = snapshot / "model.safetensors"
        save_file({n: a * factor for n, a in load_file(path).items()}, path)
    task = kzoo.from_preset("hf://owner/name")
    if how == "address":
        older = kzoo.from_preset("hf://owner/name@v1")
    else:
        older = kzoo.from_preset("hf://owner/name", revision="v1")
    older = weights(older)
    for path, array in weights(task).items():
        np.testing.assert_allclose(older[path], array * 0.5, rtol=1e-6)


@pytest.mark.parametrize("model_type", ADAPTED)
def test_adapters_of_all_layers_are_in_what_is_given_back(model_type, tmp_path):
    name = FIRST[model_type]
    golden, _ = written(name, tmp_path)
    task = kzoo.from_preset(tmp_path, task=ROWS[name]["task"])
    plain = answers(task, name, golden)
    task.enable_lora(2, "*")
    perturb([v for v in task.trainable_variables if "lora" in v.name])
    adapted = answers(task, name, golden)
    assert np.abs(adapted - plain).max() > 1e-2
    kzoo.save_hf(task, tmp_path / "out")
    again = kzoo.from_preset(tmp_path / "out", task=ROWS[name]["task"])
    np.testing.assert_allclose(answers(again, name, golden), adapted, atol=2e-4)
    task.save_lora(tmp_path / "adapters")
    fresh = kzoo.from_preset(tmp_path, task=ROWS[name]["task"])
    fresh.load_lora(tmp_path / "adapters")
    np.testing.assert_array_equal(answers(fresh, name, golden), adapted)


def test_a_loaded_model_learns_in_less_memory(tmp_path):
    written("llama", tmp_path)
    ids = np.random.default_rng(0).integers(3, 20, (8, 6)).astype("int32")
    losses = []
    for mode in (None, "full"):
        keras.utils.set_random_seed(0)
        with keras.RematScope(mode=mode):
            task = kzoo.from_preset(tmp_path)
            task.compile(keras.optimizers.SGD(0.1))
            fit = task.fit({"token_ids": ids}, batch_size=4, epochs=2, verbose=0)
        losses.append(fit.history["loss"])
    assert losses[0][1] < losses[0][0]
    np.testing.assert_allclose(*losses, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["int32", "bool", "uint8", "complex64"])
def test_what_is_no_float_is_no_weight(dtype, tmp_path):
    written("gpt2", tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("attn.weight"))
    tensors[name] = tensors[name].astype(dtype)
    save_file(tensors, path)
    with pytest.raises(ValueError, match=rf"{name}: {dtype}, expected numbers of a"):
        kzoo.from_preset(tmp_path)


def test_sizes_that_no_memory_holds_are_an_error_that_names_the_config(tmp_path):
    _, described = written("gpt2", tmp_path)
    text = (tmp_path / "config.json").read_text()
    key = f'"n_positions": {described["config"]["n_positions"]}'
    assert key in text
    changed = text.replace(key, '"n_positions": 1000000000000000')
    (tmp_path / "config.json").write_text(changed)
    with pytest.raises(ValueError, match=r"config\.json is too large: A weight of"):
        kzoo.from_preset(tmp_path)
