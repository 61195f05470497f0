"""Tasks survive a file: .keras, weights, safetensors, and a folder."""

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import keras
import numpy as np
import pytest

import kzoo
from kzoo.exporters import ExportError
from kzoo.files import replacing, write_text
from kzoo.tasks import load_task
from kzoo.training import (
    BestEpoch,
    CheckpointAverage,
    EpochHistory,
    ResumableCheckpoint,
)
from kzoo.zoo.training_folder import _locked
from tests.harness import to_numpy
from tests.words import PAIRS, TOKENIZER, WORDS, causal, compiled, perturbed, seq2seq

REPOSITORY = Path(__file__).parents[2]


def test_a_keras_file_loads_in_a_fresh_process(tmp_path):
    model = compiled(seq2seq(dropout=0.1), eager=True, label_smoothing=0.1)
    model.fit(WORDS[:16], WORDS[:16], verbose=0)
    model.save(tmp_path / "model.keras")
    expected = {
        "loss": model.evaluate(PAIRS, verbose=0),
        "iterations": int(model.optimizer.iterations),
        "smoothing": 0.1,
    }
    code = (
        "import json, sys, kzoo\n"
        "model = kzoo.load_model(sys.argv[1])\n"
        "pairs = [tuple(pair) for pair in json.loads(sys.argv[2])]\n"
        "assert type(model) is kzoo.Seq2SeqLM\n"
        "print(json.dumps({'loss': model.evaluate(pairs, verbose=0),\n"
        "    'iterations': int(model.optimizer.iterations),\n"
        "    'smoothing': model.loss.label_smoothing}))\n"
        "model.fit(pairs, verbose=0)\n"
    )
    result = subprocess.run(
        [
            *(sys.executable, "-W", "error::UserWarning", "-c", code),
            *(str(tmp_path / "model.keras"), json.dumps(PAIRS)),
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    got = json.loads(result.stdout.splitlines()[-1])
    assert got.pop("loss") == pytest.approx(expected.pop("loss"), rel=1e-6)
    assert got == expected


def test_weights_files_are_complete(tmp_path):
    for make in (seq2seq, causal):
        model, other = perturbed(make()), make()
        model.save_weights(tmp_path / "model.weights.h5")
        other.load_weights(tmp_path / "model.weights.h5")
        model.save_safetensors(tmp_path / "model.safetensors")
        third = make()
        third.load_safetensors(tmp_path / "model.safetensors")
        for loaded in (other, third):
            for got, want in zip(
                loaded.get_weights(), model.get_weights(), strict=True
            ):
                np.testing.assert_array_equal(got, want)
        assert [p.name for p in tmp_path.glob("*.partial")] == []


LEARNED = dict(positions="learned", max_sequence_length=16)


@pytest.mark.parametrize(
    ("saved", "own", "message"),
    [
        (seq2seq, causal, "file: decoder/.*/cross_attention/"),
        (causal, seq2seq, "model: decoder/.*/cross_attention/"),
        (lambda: causal(**LEARNED), causal, "file: decoder/layers/embedding_1/vars/0"),
        (lambda: causal(positions="relative"), causal, "file: .*/relative_bias/vars/0"),
        (lambda: causal(tie_head=False), causal, "file: head/vars/0"),
        (lambda: causal(feed_forward="gated"), causal, "file: .*/gate/vars/0"),
        (
            lambda: seq2seq(share_embeddings=False),
            lambda: seq2seq(share_embeddings=True),
            "file: .*coder/layers/embedding/vars/0",
        ),
        (
            lambda: causal(intermediate_dim=24),
            causal,
            "Of other shapes: .*intermediate/vars/0",
        ),
    ],
)
def test_weights_of_another_architecture_are_refused(tmp_path, saved, own, message):
    path, model = tmp_path / "model.weights.h5", own()
    saved().save_weights(path)
    before = model.get_weights()
    with pytest.raises(ValueError, match=f"is of another model than .*{message}"):
        model.load_weights(path)
    for kept, weight in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(kept, weight)


def test_weights_fit_a_model_without_dropout_and_optimizer(tmp_path):
    path = tmp_path / "model.weights.h5"
    trained, model = compiled(causal(dropout=0.1), eager=True), causal(dropout=0.0)
    trained.fit(WORDS[:8], verbose=0)
    trained.save_weights(path)
    model.load_weights(path)
    for got, want in zip(model.get_weights(), trained.get_weights(), strict=True):
        np.testing.assert_array_equal(got, want)


def test_weights_of_a_larger_model_are_refused(tmp_path):
    path = tmp_path / "model.weights.h5"
    deep, shallow = causal(num_layers=3), causal(num_layers=2)
    deep.save_weights(path)
    before = shallow.get_weights()
    with pytest.raises(
        ValueError, match="is of another model.* Only in the file: .*block_2"
    ):
        shallow.load_weights(path)
    for kept, weight in zip(shallow.get_weights(), before, strict=True):
        np.testing.assert_array_equal(kept, weight)
    shallow.load_weights(path, skip_mismatch=True)
    last = shallow.named_variables()["decoder/layer_1/self_attention/query/kernel"]
    np.testing.assert_array_equal(
        last, deep.named_variables()["decoder/layer_1/self_attention/query/kernel"]
    )
    shallow.save_weights(path)
    with pytest.raises(ValueError, match="Only in the model: .*block_2/.* and "):
        deep.load_weights(path)


@pytest.mark.parametrize("name", ["task.keras", "task.weights.json"])
def test_files_of_every_kind_fill_a_whole_model_or_none(tmp_path, name):
    path = str(tmp_path / name)
    trained, own = compiled(causal(num_layers=1), eager=True), causal(num_layers=1)
    trained.fit(WORDS[:8], verbose=0)
    if name.endswith("json"):
        trained.save_weights(path, max_shard_size=1e-5)
        assert len(list(tmp_path.glob("*.h5"))) > 1
    else:
        trained.save(path)
    own.load_weights(path)
    for got, want in zip(own.get_weights(), trained.get_weights(), strict=True):
        np.testing.assert_array_equal(got, want)

    deep = causal(num_layers=2)
    before = deep.get_weights()
    with pytest.raises(ValueError, match="another model.* Only in the model: .*block_"):
        deep.load_weights(path)
    for kept, weight in zip(deep.get_weights(), before, strict=True):
        np.testing.assert_array_equal(kept, weight)
    if name.endswith("json"):  # of the other Keras takes no such list
        with pytest.raises(ValueError, match="Only in the model: .*block_"):
            deep.load_weights(path, objects_to_skip=[deep.decoder.blocks[0]])
        deep.load_weights(path, objects_to_skip=[deep.decoder.blocks[1]])
        np.testing.assert_array_equal(deep.get_weights()[0], trained.get_weights()[0])


def test_a_file_without_weights_is_of_another_model(tmp_path):
    import h5py

    path = tmp_path / "empty.weights.h5"
    h5py.File(path, "w").close()
    with pytest.raises(ValueError, match="another model.* Only in the model: "):
        causal().load_weights(path)


@pytest.mark.parametrize("content", ["{}", "[]", '{"weight_map": {"a": 5}}', "{"])
def test_a_damaged_map_of_weights_is_left_to_keras(tmp_path, content):
    path, model = tmp_path / "task.weights.json", causal()
    path.write_text(content)
    assert model._check_weights_file(path) is None


def test_safetensors_have_the_contract_names(tmp_path):
    from safetensors.numpy import load_file, save_file

    model = causal(tie_head=False)
    model.save_safetensors(tmp_path / "model.safetensors")
    arrays = load_file(tmp_path / "model.safetensors")
    assert set(arrays) == set(model.named_variables())
    assert arrays["decoder/layer_0/self_attention/query/kernel"].shape == (32, 32)
    assert arrays["head/kernel"].shape == (32, TOKENIZER.vocabulary_size)

    # All that does not fit is named, and nothing is loaded.
    before = model.get_weights()
    wrong = {path: array + 1 for path, array in arrays.items()}
    del wrong["head/kernel"]
    wrong["head/bias"] = np.zeros(3, "float32")
    wrong["decoder/final_norm/gamma"] = np.zeros(31, "float32")
    save_file(wrong, tmp_path / "wrong.safetensors")
    with pytest.raises(ValueError) as raised:
        model.load_safetensors(tmp_path / "wrong.safetensors")
    message = str(raised.value)
    assert "wrong.safetensors does not fit causal" in message
    assert "Missing: ['head/kernel']" in message
    assert "Unknown: ['head/bias']" in message
    assert "decoder/final_norm/gamma: (31,), expected (32,)" in message
    for got, want in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(got, want)

    whole = {path: array.astype("int32") for path, array in arrays.items()}
    save_file(whole, tmp_path / "whole.safetensors")
    with pytest.raises(ValueError, match="No floats: .*'head/kernel': 'int32'"):
        model.load_safetensors(tmp_path / "whole.safetensors")
    (tmp_path / "damaged.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ValueError, match="damaged.safetensors is no valid"):
        model.load_safetensors(tmp_path / "damaged.safetensors")
    with pytest.raises(FileNotFoundError, match="nowhere.safetensors"):
        model.load_safetensors(tmp_path / "nowhere.safetensors")


@pytest.mark.parametrize("make", [seq2seq, causal])
@pytest.mark.parametrize("tokenizer", [TOKENIZER, None], ids=["text", "ids"])
def test_a_folder_has_config_weights_and_tokenizer(make, tokenizer, tmp_path):
    model = perturbed(make(tokenizer, positions="relative"))
    model.save_folder(tmp_path / "model")
    loaded = load_task(tmp_path / "model")
    assert type(loaded) is type(model) and loaded.config == model.config
    for got, want in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(got, want)
    if tokenizer is None:
        assert loaded.tokenizer is None
    else:
        assert loaded.tokenizer.encode(WORDS) == tokenizer.encode(WORDS)


def test_a_tokenizer_that_lost_a_file_is_no_model_without_one(tmp_path):
    causal().save_folder(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    for load in (load_task, kzoo.from_preset):
        with pytest.raises(FileNotFoundError, match="tokenizer_config.json"):
            load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("of another's")
    kzoo.CausalLM(causal().config).save_folder(tmp_path)  # it has none
    assert load_task(tmp_path).tokenizer is None
    assert (tmp_path / "tokenizer.json").is_file()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "load_task"}, "load_task is no task"),
        ({"task": "Seq2SeqLM"}, "Seq2SeqLM has no 'decoder' model"),
        ({"options": [1]}, "options must be an object"),
        ({"options": {"foo": 1}}, r"has no options \['foo'\]"),
        ({"fine_tuning": {"foo": 1}}, "fine_tuning must be an object, with"),
        ({"loaded": {"family": "bert"}}, "loaded must be an object, with"),
    ],
)
def test_a_damaged_config_is_named(tmp_path, changes, message):
    causal().save_folder(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    for load in (load_task, kzoo.from_preset):
        with pytest.raises(ValueError, match=message) as error:
            load(tmp_path)
        assert "config.json" in str(error.value)


def test_a_folder_that_is_no_model_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="No config.json in"):
        load_task(tmp_path)
    (tmp_path / "config.json").write_text('{"task": "Odd", "model": {}}')
    with pytest.raises(ValueError, match="config.json does not describe a kzoo task"):
        load_task(tmp_path)


def test_a_class_of_ones_own_writes_no_folder_that_nothing_loads(tmp_path):
    class Own(kzoo.CausalLM):
        pass

    model = Own(causal().config)
    with pytest.raises(ValueError, match="one of kzoo's tasks. Received: Own"):
        model.save_folder(tmp_path / "own")
    assert not (tmp_path / "own").exists()


@keras.saving.register_keras_serializable(package="tests")
class Linear(keras.layers.Layer):
    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.dense = keras.layers.Dense(units, name="dense")

    def build(self, shape):
        self.dense.build(shape)

    def call(self, states, training=None):
        return self.dense(states)

    def get_config(self):
        return {**super().get_config(), "units": self.units}


@keras.saving.register_keras_serializable(package="tests")
class OwnFeedForward(kzoo.CausalLM):
    def build(self, *args):
        if not self.built:
            size = self.config.decoder.hidden_dim
            for block in self.decoder.blocks:
                block.feed_forward = Linear(size, name="feed_forward")
        super().build(*args)


def test_a_part_of_ones_own_in_a_blocks_place_is_saved_and_has_lora_beside(tmp_path):
    model = OwnFeedForward(causal().config, tokenizer=TOKENIZER)
    assert "decoder/layer_0/feed_forward/dense/kernel" in model.named_variables()
    assert not any("intermediate" in name for name in model.named_variables())
    model.compile()
    chosen = model.enable_lora(2)
    assert chosen and all("attention" in path for path in chosen)
    model.fit(WORDS[:4], verbose=0)
    model.save(tmp_path / "own.keras")
    again = keras.saving.load_model(tmp_path / "own.keras")
    ids = {"token_ids": np.array([[4, 5, 6, 7]])}
    np.testing.assert_allclose(*(to_numpy(m(ids)) for m in (model, again)), atol=1e-6)


def texts_classifier(**options):
    sizes = dict(num_layers=1, hidden_dim=16, intermediate_dim=16, num_heads=2)
    return kzoo.TextClassifier.from_size(
        "tiny", TOKENIZER, num_classes=2, **sizes, **options
    )


def test_options_may_be_numbers_of_numpy(tmp_path):
    task = texts_classifier(max_length=np.int64(9), head_dropout=np.float32(0.25))
    task.save_folder(tmp_path / "model")
    again = load_task(tmp_path / "model")
    assert again.options == task.options
    np.testing.assert_array_equal(again.predict(["ab"]), task.predict(["ab"]))


@pytest.mark.parametrize("failing", ["write_bytes", "write_text"])
def test_a_full_disk_leaves_the_folder_as_it_was(tmp_path, monkeypatch, failing):
    folder = tmp_path / "model"
    texts_classifier().save_folder(folder)
    (folder / "notes.txt").write_text("mine")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fails(path, *_, **__):
        raise OSError(*full.args, str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, failing, fails)
        for target in (folder, tmp_path / "new" / "one"):
            with pytest.raises(OSError, match="No space left") as caught:
                texts_classifier(pooling="mean").save_folder(target)
            assert Path(caught.value.filename).parent == target
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    load_task(folder)


def test_a_folder_without_a_tokenizer_loses_the_one_before(tmp_path):
    texts_classifier().save_folder(tmp_path)
    plain = kzoo.TextClassifier(texts_classifier().config, num_classes=2)
    plain.save_folder(tmp_path)
    assert load_task(tmp_path).tokenizer is None


def test_a_folder_is_no_keras_file(tmp_path):
    seq2seq().save_folder(tmp_path / "model")
    with pytest.raises(ValueError, match="a folder, which kzoo.load_task reads"):
        kzoo.load_model(tmp_path / "model")


def test_a_folder_of_another_layout_is_named(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ValueError, match="Hugging Face's layout, which from_preset re"):
        load_task(tmp_path)


def test_a_kill_while_a_folder_is_replaced_leaves_no_mix(tmp_path, monkeypatch):
    """Equal configs and other weights and tokenizers, which would load together."""
    folder, half, models = tmp_path / "model", tmp_path / "half", {}
    for name, letters in (("old", "abc"), ("new", "xyz")):
        tokenizer = kzoo.FastTokenizer.train([letters], 20, algorithm="character")
        models[name] = kzoo.CausalLM.from_size("tiny", tokenizer, num_layers=1)
    assert models["old"].config == models["new"].config
    models["old"].save_folder(folder)
    replace, found = Path.replace, []

    def whose():
        """Whose weights and whose tokenizer a folder has."""
        try:
            both = load_task(half)
        except FileNotFoundError as error:
            assert "No config.json" in str(error)
            return {"none"}
        weights = {
            name: np.array_equal(both.get_weights()[0], model.get_weights()[0])
            for name, model in models.items()
        }
        tokens = {
            name: both.tokenizer.encode(["abx"]) == model.tokenizer.encode(["abx"])
            for name, model in models.items()
        }
        return {name for each in (weights, tokens) for name in each if each[name]}

    def watched(path, target):
        result = replace(path, target)
        assert (folder / "model.safetensors").is_file()
        shutil.copytree(folder, half)
        found.append(whose())
        shutil.rmtree(half)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", watched)
        models["new"].save_folder(folder)
    assert all(len(each) == 1 for each in found)
    assert {"none"} in found and found[-1] == {"new"}
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_a_link_and_a_pipe_stay_what_they_are(tmp_path):
    target, link = tmp_path / "folder" / "file", tmp_path / "link"
    target.parent.mkdir()
    link.symlink_to(target)
    for text in ("new", "newer"):  # there is nothing behind it at first
        write_text(link, text)
        assert link.is_symlink() and target.read_text() == text
    assert [path.name for path in target.parent.iterdir()] == ["file"]
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    write_text(pipe, "through")
    reader.join(timeout=30)
    assert read == ["through"] and pipe.is_fifo()
    ends = os.pipe()
    write_text(Path(f"/dev/fd/{ends[1]}"), "through")
    assert os.read(ends[0], 100) == b"through"
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(OSError):
        write_text(tmp_path / "a", "in a circle")
    with pytest.raises(IsADirectoryError):
        write_text(tmp_path / "folder", "no file")


def test_no_path_leads_out_of_a_folder_that_is_missing(tmp_path):
    """Nothing is found there, and with that folder something else is replaced."""
    task, stands = causal(), tmp_path / "model"
    task.save_folder(stands)
    (stands / "model.onnx").write_text("an export")
    kept = {path.name: path.read_bytes() for path in stands.iterdir()}
    lost = tmp_path / "no" / ".." / "model"
    for write in (
        lambda: task.save_folder(lost),
        lambda: task.save_safetensors(lost / "model.safetensors"),
        lambda: task.export(lost / "model.onnx", format="onnx"),
        lambda: _locked(lost),
    ):
        with pytest.raises((OSError, ExportError), match=r"No such file.*no/\.\."):
            write()
    for callback in (
        ResumableCheckpoint(lost / "model.onnx"),
        CheckpointAverage(lost),
        BestEpoch(lost / "best.npz", "loss"),
        EpochHistory(lost / "config.json"),
    ):
        callback.set_model(task)
        with pytest.raises(OSError, match=r"No such file.*no/\.\."):
            callback.on_train_begin()
    assert {path.name: path.read_bytes() for path in stands.iterdir()} == kept
    assert [*tmp_path.iterdir()] == [stands]
    inside = stands / ".." / "new" / "model"  # a folder that is there
    task.save_folder(inside)
    assert (tmp_path / "new" / "model" / "config.json").is_file()


def test_an_error_keeps_its_words_and_has_a_name_where_it_lacks_one(tmp_path):
    path = tmp_path / "file"
    for error, said in (
        (OSError("only words"), "only words"),
        (OSError(errno.ENOSPC, "full"), f"full: '{path}'"),
    ):
        with pytest.raises(OSError) as caught:
            with replacing(path):
                raise error
        assert str(caught.value).endswith(said)
    with pytest.raises(OSError) as caught:
        with replacing(tmp_path / "nowhere" / "file") as partial:
            partial.write_text("")
    assert caught.value.filename == str(tmp_path / "nowhere" / "file")
    full = Path("/dev/full")
    if full.exists():
        with pytest.raises(OSError) as caught:
            write_text(full, "words")
        assert caught.value.filename == str(full)
