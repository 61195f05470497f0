"""The presets in the wheel: small, whole, and with cards that their records write."""

import json
import shutil

import pytest

import kzoo
from kzoo.files import write_json
from kzoo.zoo import registry, saving
from kzoo.zoo.cards import card

EACH, ALL = 25_000_000, 80_000_000  # bytes
NOISE, INT8 = 0.01, 0.005  # relative differences of exported forms' main score


def size_of(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def check(folder):
    """What is promised of every shipped preset."""
    registry.check_preset(folder)
    preset = registry.read_preset(folder)
    assert preset.name == folder.name
    assert size_of(folder) <= EACH
    listed = json.loads((folder / "preset.json").read_text("utf-8"))["files"]
    lie = {f.relative_to(folder).as_posix() for f in folder.rglob("*") if f.is_file()}
    assert lie == {*listed, "README.md", "preset.json"}
    said = (folder / "README.md").read_text("utf-8")
    assert said == card(folder)
    assert not [c for c in said if not c.isprintable() and c != "\n"]
    assert preset.licence and preset.data and preset.score
    exports = registry.read_record(folder, "exports.json")
    for form in exports["forms"] if exports else ():
        own, value = exports["score"], form.get("score", exports["score"])
        measure = preset.score.measure
        bound = INT8 if "int8" in form["form"] else NOISE
        if "int4" not in form["form"]:
            assert abs(value[measure] / own[measure] - 1) <= bound, form["form"]


@pytest.mark.parametrize("name", registry.preset_names())
def test_a_shipped_preset_is_as_promised(name):
    check(registry.SHIPPED / name)


def test_all_shipped_presets_are_small_together():
    assert sum(size_of(preset.folder) for preset in kzoo.list_presets()) <= ALL


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A preset of which all that holds."""
    folder = tmp_path_factory.mktemp("shipped") / "tiny-writer"
    writer = kzoo.CausalLM(kzoo.ModelConfig.from_size("tiny", "decoder", 20))
    kzoo.save_preset(writer, folder, licence="CC BY 2.0", data="Nothing")
    measured = {"rows": 1, "measures": {"loss": {"value": 2.0}}}
    scores = {"command": "kzoo evaluate tiny-writer", "tests": {"test": measured}}
    scores["main"] = ["test", "loss"]
    (folder / "scores.json").write_text(json.dumps(scores))
    one = {"bytes": 1, "difference": 0.0, "seconds": 1.0}
    forms = [
        {"form": "ONNX", "score": {"loss": 2.01}, **one},
        {"form": "ONNX int4", "score": {"loss": 3.0}, **one},
        {"form": "SavedModel", "refused": "needs TensorFlow"},
    ]
    exports = {"score": {"loss": 2.0}, "seconds": 1.0, "forms": forms}
    (folder / "exports.json").write_text(json.dumps(exports))
    saving.update_preset(folder)
    return folder


def test_the_check_passes_what_is_whole(whole):
    check(whole)


def worse_int8(folder):
    exports = registry.read_record(folder, "exports.json")
    exports["forms"][0]["form"] = "ONNX int8"
    write_json(folder / "exports.json", exports | {"score": {"loss": 2.05}})
    saving.update_preset(folder)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / "README.md").write_text("by hand"),
        lambda folder: (folder / "notes.txt").write_text("left over"),
        lambda folder: (folder / "scores.json").unlink(),
        lambda folder: folder.rename(folder.with_name("renamed")),
        lambda folder: saving.update_preset(folder, licence=""),
        worse_int8,
    ],
)
def test_the_check_notices(whole, tmp_path, spoil):
    copy = shutil.copytree(whole, tmp_path / "tiny-writer")
    spoil(copy)
    (folder,) = tmp_path.iterdir()
    with pytest.raises((AssertionError, ValueError)):
        check(folder)
