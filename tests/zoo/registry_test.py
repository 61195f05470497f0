"""Presets: found by name, loaded as they were written, refused when they were not."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import kzoo
from kzoo.checkpoints.files import open_tensors
from kzoo.files import sha256
from kzoo.zoo import pretrained, registry, saving
from tests.harness import perturb, to_numpy

RECIPE = """
name = "moods"
title = "Moods"
task = "text_classifier"
[data]
name = "Small talk"
licence = "CC BY 2.0"
languages = ["en"]
"""
SIZE = dict(
    size="tiny", vocabulary_size=30, num_layers=1, hidden_dim=8, intermediate_dim=8
)


def make(**options):
    task = kzoo.TextClassifier.from_size(num_classes=3, **{**SIZE, **options})
    perturb(task.weights)
    return task


@pytest.fixture(scope="module")
def task():
    return make()


@pytest.fixture(scope="module")
def made(task, tmp_path_factory):
    """Folders of this module, to be copied."""
    folder = tmp_path_factory.mktemp("made")
    trained = folder / "trained"
    task.save_folder(trained)
    (trained / "recipe.toml").write_text(RECIPE)
    (trained / "history.json").write_text('[{"epoch": 1, "loss": 0.5}]')
    kzoo.save_preset(trained, folder / "moods")
    writer = kzoo.CausalLM(kzoo.ModelConfig.from_size("tiny", "decoder", 20))
    kzoo.save_preset(writer, folder / "tiny-writer")
    return folder


@pytest.fixture
def trained(made, tmp_path):
    """A folder as a training leaves it, with float32 weights and records."""
    return Path(shutil.copytree(made / "trained", tmp_path / "trained"))


@pytest.fixture
def preset(made, tmp_path):
    return Path(shutil.copytree(made / "moods", tmp_path / "moods"))


@pytest.fixture
def shipped(made, tmp_path, monkeypatch):
    """Two presets, as if kzoo shipped them, and one that is not trained yet."""
    folder = tmp_path / "presets"
    monkeypatch.setattr(registry, "SHIPPED", folder)
    for name in ("moods", "tiny-writer"):
        shutil.copytree(made / name, folder / name)
    (folder / "not-trained-yet").mkdir()
    (folder / "not-trained-yet" / "recipe.toml").write_text(RECIPE)


# Weights.


def test_weights_are_float16_in_the_file_and_load_as_float32(task, preset):
    with open_tensors(preset) as tensors:
        assert {tensors.dtype(name).name for name in tensors} == {"float16"}
    loaded = kzoo.from_preset(preset).named_variables()
    for name, variable in task.named_variables().items():
        assert loaded[name].dtype == "float32"
        rounded = to_numpy(variable).astype("float16").astype("float32")
        np.testing.assert_array_equal(to_numpy(loaded[name]), rounded)


def test_a_dtype_may_be_asked_for(preset, trained, tmp_path):
    assert kzoo.from_preset(preset, dtype="auto").variable_dtype == "float16"
    kzoo.save_preset(trained, tmp_path / "exact", dtype="float32")
    assert kzoo.from_preset(tmp_path / "exact", dtype="auto").variable_dtype == (
        "float32"
    )


def test_what_a_preset_cannot_hold_is_refused_by_name(tmp_path):
    task = make()
    with pytest.raises(ValueError, match="language must be a code.* Received: 3"):
        kzoo.save_preset(task, tmp_path / "unknown", language=3)
    name, variable = next(iter(task.named_variables().items()))
    variable.assign(keras.ops.full(variable.shape, 1e5))
    with pytest.raises(ValueError, match=f"{name} is too large for float16"):
        kzoo.save_preset(task, tmp_path / "large")
    variable.assign(keras.ops.full(variable.shape, np.nan))
    with pytest.raises(ValueError, match=f"weight {name} holds NaN or infinity"):
        kzoo.save_preset(task, tmp_path / "broken", dtype="float32")
    assert not list(tmp_path.iterdir())


# Verification.


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [flip, cut, lambda path: path.unlink()])
@pytest.mark.parametrize(
    "name", ["model.safetensors", "config.json", "recipe.toml", "history.json"]
)
def test_a_file_that_is_not_as_written_is_refused_by_name(preset, name, damage):
    registry.check_preset(preset)
    damage(preset / name)
    with pytest.raises(ValueError, match=name):
        registry.check_preset(preset)


def test_from_preset_checks_before_it_reads(preset):
    flip(preset / "model.safetensors")
    with pytest.raises(ValueError, match=r"model.safetensors was changed: its SHA-256"):
        kzoo.from_preset(preset)


def test_the_weights_of_another_preset_are_refused(preset, tmp_path):
    kzoo.save_preset(make(), tmp_path / "other", dtype="float32")
    (tmp_path / "other" / "model.safetensors").replace(preset / "model.safetensors")
    with pytest.raises(ValueError, match="model.safetensors was cut short or changed"):
        kzoo.from_preset(preset)


def test_a_file_to_be_loaded_has_to_be_in_the_manifest(preset):
    manifest = json.loads((preset / "preset.json").read_text())
    del manifest["files"]["model.safetensors"]
    (preset / "preset.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="model.safetensors is not in preset.json"):
        kzoo.from_preset(preset)


def test_a_tokenizer_that_came_later_is_refused(preset):
    tokenizer = kzoo.FastTokenizer.train(["ab"], 30, algorithm="character")
    tokenizer.save(preset)
    with pytest.raises(ValueError, match="tokenizer_config.json is not in preset.json"):
        kzoo.from_preset(preset)


@pytest.mark.parametrize("content", ["{", "[]", '{"files": {}}'])
def test_a_manifest_that_is_none_is_refused(preset, content):
    (preset / "preset.json").write_text(content)
    with pytest.raises(ValueError, match="preset.json"):
        kzoo.from_preset(preset)


@pytest.mark.parametrize("name", ["preset.json", "recipe.toml"])
def test_a_record_may_begin_with_a_byte_order_mark(preset, name):
    expected = registry.read_record(preset, name)
    (preset / name).write_bytes(b"\xef\xbb\xbf" + (preset / name).read_bytes())
    assert registry.read_record(preset, name) == expected


def test_a_score_may_be_undefined():
    row = {"value": None, "low": None, "high": None, "confidence": 0.95}
    tests = {"test": {"measures": {"pearson": row}}}
    score = registry.main_score({"tests": tests, "main": ["test", "pearson"]})
    assert score.value is None and str(score) == "pearson not defined on test"


def test_the_card_may_be_edited_and_other_files_may_lie_there(preset):
    (preset / "README.md").write_text("---\nlicense: mit\n---\n")
    (preset / ".gitattributes").write_text("*.safetensors filter=lfs\n")
    kzoo.from_preset(preset)


def test_a_repository_needs_only_what_is_downloaded_of_it(preset):
    (preset / "recipe.toml").unlink()
    (preset / "curve.png").unlink()
    registry.check_preset(preset, whole=False)
    (preset / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="model.safetensors is missing"):
        registry.check_preset(preset, whole=False)


def test_a_preset_comes_from_a_repository(preset, monkeypatch):
    for name in ("recipe.toml", "curve.png", "README.md"):
        (preset / name).unlink()
    given = []
    download = lambda source, **_: given.append(source) or preset  # noqa: E731
    monkeypatch.setattr(pretrained, "local_folder", download)
    assert kzoo.from_preset("hf://owner/moods").config.encoder.num_layers == 1
    assert given == ["hf://owner/moods"]
    flip(preset / "model.safetensors")
    with pytest.raises(ValueError, match="model.safetensors was changed"):
        kzoo.from_preset("hf://owner/moods")


# Names.


def test_a_shipped_preset_loads_by_its_name(task, shipped):
    loaded = kzoo.from_preset("moods")
    ids = {"token_ids": np.array([[4, 5, 6, 2]], "int32")}
    np.testing.assert_allclose(to_numpy(loaded(ids)), to_numpy(task(ids)), atol=0.02)


def test_a_folder_wins_over_a_preset_of_its_name(shipped, tmp_path, monkeypatch):
    make(num_layers=2).save_folder(tmp_path / "here" / "moods")
    monkeypatch.chdir(tmp_path / "here")
    assert kzoo.from_preset("moods").config.encoder.num_layers == 2


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mood", "preset: moods, tiny-writer. Did you mean moods?"),
        ("Tiny_Writer", "Did you mean tiny-writer?"),
        ("runs/unknown", "preset: moods, tiny-writer."),
        ("", "preset: moods, tiny-writer."),
        (None, "preset: moods, tiny-writer."),
        ("a" * 300, "preset: moods, tiny-writer."),
    ],
)
def test_an_unknown_name_is_refused_with_the_known_ones(shipped, name, said):
    with pytest.raises(FileNotFoundError) as caught:
        kzoo.from_preset(name)
    message = str(caught.value)
    assert message.startswith(f"{name or repr(name)} is not a folder.")
    assert message.endswith(said)


def test_presets_are_listed_by_task_and_architecture(shipped):
    def names(**options):
        return [preset.name for preset in kzoo.list_presets(**options)]

    assert names() == ["moods", "tiny-writer"]
    assert names(task="text_classifier") == ["moods"]
    assert names(architecture="decoder") == ["tiny-writer"]
    assert names(task="text_classifier", architecture="decoder") == []


def test_a_listed_preset_says_what_it_is(task, shipped):
    preset, writer = kzoo.list_presets()
    assert preset.parameters == task.count_params()
    assert preset.licence == "CC BY 2.0" and not preset.research_only
    assert (preset.title, preset.data, preset.language) == (
        "Moods",
        "Small talk",
        ("en",),
    )
    sizes = [f.stat().st_size for f in preset.folder.iterdir()]
    card, manifest = (preset.folder / n for n in ("README.md", "preset.json"))
    assert preset.bytes == sum(sizes) - card.stat().st_size - manifest.stat().st_size
    assert "text_classifier" in repr(preset) and "CC BY 2.0" in repr(preset)
    assert "licence not stated" in repr(writer)
    assert json.loads(json.dumps(preset.to_dict()))["name"] == "moods"


@pytest.mark.parametrize(
    ("options", "known"),
    [(dict(task="translation"), "seq2seq_lm"), (dict(architecture="rnn"), "decoder")],
)
def test_an_unknown_task_or_architecture_is_refused(options, known):
    with pytest.raises(ValueError, match=f"must be one of .*{known}.*Received"):
        kzoo.list_presets(**options)


def test_listing_imports_no_keras():
    code = (
        "import sys, kzoo; kzoo.list_presets(); "
        "assert not {'keras', 'tensorflow', 'jax', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# Writing.


def test_records_come_along_and_the_folder_is_whole(preset):
    names = {path.name for path in preset.iterdir()}
    assert names == {
        "README.md",
        "config.json",
        "curve.png",
        "history.json",
        "model.safetensors",
        "preset.json",
        "recipe.toml",
    }
    listed = json.loads((preset / "preset.json").read_text())["files"]
    assert set(listed) == names - {"README.md", "preset.json"}


SCORES = {
    "command": "kzoo evaluate moods --data DATA",
    "tests": {"test": {"rows": 9, "measures": {"accuracy": {"value": 0.75}}}},
    "main": ["test", "accuracy"],
}


def test_scores_of_other_weights_stay_behind(trained, tmp_path):
    (trained / "scores.json").write_text(json.dumps(SCORES))
    with pytest.warns(UserWarning, match="scores.json.*measured with other weights"):
        rounded = kzoo.save_preset(trained, tmp_path / "rounded")
    exact = kzoo.save_preset(trained, tmp_path / "exact", dtype="float32")
    assert rounded.score is None
    assert exact.score == registry.Score("test", "accuracy", 0.75)


def test_new_scores_are_taken_up(preset):
    (preset / "scores.json").write_text(json.dumps(SCORES))
    updated = saving.update_preset(preset)
    assert str(updated.score) == "accuracy 0.75 on test"
    assert updated.title == "Moods"
    registry.check_preset(preset)
    flip(preset / "scores.json")
    with pytest.raises(ValueError, match="scores.json was changed"):
        kzoo.from_preset(preset)


def test_new_records_take_their_place_at_once_or_not_at_all(preset, monkeypatch):
    before = {path.name: path.read_bytes() for path in preset.iterdir()}
    wrong = {"scores.json": {**SCORES, "main": ["other", "accuracy"]}}
    with pytest.raises(ValueError, match="main must name a test"):
        saving.update_preset(preset, wrong)
    assert {path.name: path.read_bytes() for path in preset.iterdir()} == before
    (preset / "notes.txt").write_text("mine")
    updated = saving.update_preset(preset, {"scores.json": SCORES})
    assert updated.score.value == 0.75 and updated.folder == preset
    assert "accuracy" in (preset / "README.md").read_text()
    assert {p.name for p in preset.iterdir()} == {*before, "scores.json", "notes.txt"}
    registry.check_preset(preset)
    # A kill between the card and the manifest is no edit by hand.
    (preset / "scores.json").unlink()
    monkeypatch.setattr(saving, "write_json", lambda *_: None)
    saving.update_preset(preset)
    monkeypatch.undo()
    saving.update_preset(preset)
    registry.check_preset(preset)


def test_scores_of_weights_that_are_no_more_say_nothing(preset):
    weights = sha256(preset / "model.safetensors")
    for noted, expected in ((weights, 0.75), ("0" * 64, None)):
        scores = {**SCORES, "weights": noted}
        (preset / "scores.json").write_text(json.dumps(scores))
        score = saving.update_preset(preset).score
        assert (score and score.value) == expected
        said = (preset / "README.md").read_text()
        assert ("0.75" in said) == (expected is not None)


@pytest.mark.parametrize("saved_again", [False, True])
def test_what_the_recipe_says_later_is_taken_up(preset, saved_again):
    if saved_again:  # which is no statement by hand of what nobody said
        preset = kzoo.save_preset(preset, preset.with_name("again")).folder
    assert not registry.read_preset(preset).research_only
    recipe = (preset / "recipe.toml").read_text()
    assert recipe.count("[data]\n") == 1
    changed = recipe.replace("[data]\n", "[data]\nresearch_only = true\n")
    (preset / "recipe.toml").write_text(changed)
    assert saving.update_preset(preset).research_only
    assert "For research only" in (preset / "README.md").read_text()


def test_a_card_that_was_edited_stays(preset):
    (preset / "README.md").write_text("by hand")
    (preset / "scores.json").write_text(json.dumps(SCORES))
    with pytest.warns(UserWarning, match="README.md was edited"):
        updated = saving.update_preset(preset)
    assert updated.score.value == 0.75
    assert (preset / "README.md").read_text() == "by hand"


@pytest.mark.parametrize("name", ["../x.txt", "/etc/hostname", "a\\b"])
def test_a_file_outside_the_folder_is_refused(preset, name):
    (preset.parent / "x.txt").write_text("x")
    manifest = json.loads((preset / "preset.json").read_text())
    manifest["files"][name] = {"bytes": 1, "sha256": "0" * 64}
    (preset / "preset.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="must be in the preset's folder"):
        registry.check_preset(preset)


def test_a_config_of_another_layout_is_checked_too(preset):
    config = json.loads((preset / "config.json").read_text())
    (preset / "config.json").write_text(json.dumps({**config, "model_type": "bert"}))
    with pytest.raises(ValueError, match="config.json was cut short or changed"):
        kzoo.from_preset(preset)


def test_nothing_is_written_where_the_main_score_was_not_measured(preset):
    before = (preset / "preset.json").read_bytes()
    scores = {**SCORES, "main": ["other", "accuracy"]}
    (preset / "scores.json").write_text(json.dumps(scores))
    with pytest.raises(ValueError, match="main must name a test"):
        saving.update_preset(preset)
    assert (preset / "preset.json").read_bytes() == before


def test_a_main_score_that_was_not_measured_is_refused(preset):
    scores = {**SCORES, "main": ["test", "bleu"]}
    (preset / "scores.json").write_text(json.dumps(scores))
    with pytest.raises(ValueError, match="main must name a test"):
        registry.read_preset(preset)


def test_a_preset_saved_again_keeps_what_is_said_of_its_data(preset, tmp_path):
    kzoo.save_preset(preset, tmp_path / "first", research_only=True, data="Talk")
    again = kzoo.save_preset(tmp_path / "first", tmp_path / "second")
    assert again.name == "second" and again.research_only
    assert (again.data, again.licence) == ("Talk", "CC BY 2.0")


def test_what_stands_there_is_replaced_only_if_asked_and_alone(preset):
    other = make()
    with pytest.raises(FileExistsError, match="overwrite=True"):
        kzoo.save_preset(other, preset)
    own = preset / "notes.txt"
    own.write_text("mine")
    with pytest.raises(FileExistsError, match="notes.txt"):
        kzoo.save_preset(other, preset, overwrite=True)
    own.unlink()
    replaced = kzoo.save_preset(other, preset, overwrite=True)
    assert replaced.licence is None  # of other weights nothing is known
    assert not (preset / "history.json").exists()
    registry.check_preset(preset)


def test_a_preset_is_replaced_from_inside_it(preset, tmp_path, monkeypatch):
    beside = set(tmp_path.iterdir())
    monkeypatch.chdir(preset)
    assert kzoo.save_preset(make(), f"../{preset.name}", overwrite=True).licence is None
    registry.check_preset(preset)
    assert set(tmp_path.iterdir()) == beside


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_link_is_neither_replaced_nor_followed(preset, tmp_path, overwrite):
    link = tmp_path / "current"
    link.symlink_to(preset)
    files = {path: path.read_bytes() for path in preset.rglob("*") if path.is_file()}
    with pytest.raises(FileExistsError, match="current is a symbolic link"):
        kzoo.save_preset(make(), link, overwrite=overwrite)
    assert link.is_symlink()
    assert {p: p.read_bytes() for p in preset.rglob("*") if p.is_file()} == files


def test_a_folder_with_a_recipe_alone_takes_its_model(trained, shipped):
    folder = registry.SHIPPED / "not-trained-yet"
    assert kzoo.save_preset(trained, folder, overwrite=True).title == "Moods"
    assert [p.name for p in kzoo.list_presets()][1] == "not-trained-yet"


def test_a_failure_leaves_what_stood_there(preset, tmp_path, monkeypatch):
    before = {path.name: path.read_bytes() for path in preset.iterdir()}
    beside = set(tmp_path.iterdir())

    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saving, "update_preset", fail)
    with pytest.raises(OSError, match="No space"):
        kzoo.save_preset(make(), preset, overwrite=True)
    assert {path.name: path.read_bytes() for path in preset.iterdir()} == before
    assert set(tmp_path.iterdir()) == beside


@pytest.mark.parametrize(
    "said, message",
    [
        ({"research_only": 1}, "research_only must be bool. Received: 1"),
        ({"title": 5}, "title must be str"),
        ({"title": "One\nTwo"}, "title must be a line"),
        ({"name": 'a"b\nc'}, "a preset's name is of letters"),
        ({"name": ""}, "a preset's name is of letters"),
        ({"language": [1]}, "language must be codes"),
    ],
)
def test_a_description_that_is_none_changes_nothing(preset, said, message):
    before = {path.name: path.read_bytes() for path in preset.iterdir()}
    with pytest.raises(ValueError, match=message):
        kzoo.save_preset(preset, preset, overwrite=True, **said)
    with pytest.raises(ValueError, match=message):
        saving.update_preset(preset, **said)
    assert {path.name: path.read_bytes() for path in preset.iterdir()} == before


def test_a_language_may_be_one_code(preset, tmp_path):
    assert kzoo.save_preset(preset, tmp_path / "en", language="en").language == ("en",)


def test_a_preset_whose_manifest_was_damaged_can_be_replaced(preset, task):
    manifest = json.loads((preset / "preset.json").read_text())
    (preset / "preset.json").write_text(json.dumps({**manifest, "research_only": 1}))
    with pytest.raises(ValueError, match="research_only must be bool"):
        kzoo.from_preset(preset)
    kzoo.save_preset(task, preset, overwrite=True)
    registry.check_preset(preset)


def test_only_tasks_are_presets(tmp_path):
    with pytest.raises(TypeError, match="takes a kzoo task.*Received: Sequential"):
        kzoo.save_preset(keras.Sequential(), tmp_path / "model")


@pytest.mark.parametrize("name", [".hidden", "two words", "n" * 101])
def test_a_name_that_no_hub_takes_is_refused(task, tmp_path, name):
    with pytest.raises(ValueError, match="A preset's name is of letters"):
        kzoo.save_preset(task, tmp_path / name)


def test_a_folder_of_another_layout_becomes_no_preset(tmp_path):
    for config in ({"model_type": "bert"}, None):
        if config:
            (tmp_path / "config.json").write_text(json.dumps(config))
        else:
            (tmp_path / "config.json").unlink()
        with pytest.raises(ValueError, match="A preset is a folder of kzoo's own"):
            saving.update_preset(tmp_path)
