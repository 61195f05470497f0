"""Presets are written: the model, its records, a manifest and a card, at once.

    task or folder ► save_folder ► records, illustrations ► manifest, card ► install

What each file is, `kzoo.zoo.registry` says, which reads and checks them.
"""

import hashlib
import math
import re
import shutil
import warnings
from pathlib import Path

import kzoo
from kzoo.arguments import listed
from kzoo.checkpoints import hub, safetensors_file
from kzoo.checkpoints.files import SAFETENSORS
from kzoo.config import ModelConfig
from kzoo.files import (
    beside,
    install,
    refuse_link,
    settled,
    sha256,
    write_json,
    write_text,
)
from kzoo.zoo.registry import (
    CARD,
    CONFIG,
    DESCRIBED,
    EXPORTS,
    MANIFEST,
    MEASURED,
    NAME,
    RECIPE,
    RECORDS,
    SCORES,
    TASKS,
    check_manifest,
    described_by,
    located,
    read_manifest,
    read_preset,
    read_record,
)


def save_preset(
    model,
    folder,
    *,
    dtype="float16",
    records=None,
    overwrite=False,
    name=None,
    title=None,
    licence=None,
    research_only=None,
    data=None,
    language=None,
):
    """Writes a preset's folder: `from_preset` loads it, a hub takes it as it is.

    It holds the model, the records that come along, a manifest with the SHA-256 of
    each file, which `from_preset` checks, and a card. What a recipe's card shows, such
    as examples, is computed with the weights as they were written.

    Args:
        model: a task; or a folder of one, such as `kzoo train` wrote, or else what
            `from_preset` takes, whose records come along.
        folder: a new one.
        dtype: of the weights, as in `save_folder`. They load as float32 by default.
        records: a folder with `RECORDS` of this model: its recipe, history, scores,
            exports, pictures; where `model` is a folder, that one. What was measured
            comes along only from weights that are equal to those written, to the bit.
        overwrite: replace a preset that stands there, or the records of one to be.
        name: of the preset; so for the following, which win over the recipe. By default
            the folder's name.
        title: for people; by default the name.
        licence: of the data that the weights were trained on.
        research_only: whether that data is for research alone.
        data: its name.
        language: code of its language, or of several, such as `["en", "de"]`.

    Returns:
        The `Preset`.

    Raises:
        FileExistsError: something stands at `folder` that may not be replaced.
        TypeError: `model` is none of these.
        ValueError: a name or a description that is none, or a weight that `dtype`
            cannot hold or that is not finite. Nothing is written.
    """
    from kzoo.tasks import load_task
    from kzoo.tasks.task import Task
    from kzoo.zoo.illustrations import illustrate
    from kzoo.zoo.pretrained import from_preset

    folder = Path(folder)
    _check_place(folder, overwrite)
    if isinstance(model, str | Path):
        records = model if records is None else records
        model = from_preset(model)
    if not isinstance(model, Task):
        raise TypeError(
            "save_preset takes a kzoo task, or a folder or name of one. Received: "
            f"{type(model).__name__}."
        )
    for weight in model.broken_weights():
        raise ValueError(
            f"The weight {weight} holds NaN or infinity, and a preset is for others to "
            "use. Save one from before training diverged."
        )
    described = {}
    if records is not None:
        patterns = (*hub.PATTERNS, *RECORDS)
        records = hub.local_folder(located(records), patterns=patterns)
        if (records / MANIFEST).is_file():
            said = read_manifest(records)
            described = {k: said[k] for k in said["by_hand"] if k in DESCRIBED}
    codes = [language] if isinstance(language, str) else language
    if codes is not None:
        codes = listed("language", "a code, such as 'en', or several", codes)
    values = (title, licence, research_only, data, codes)
    given = dict(zip(DESCRIBED, values), name=name)
    described |= {key: value for key, value in given.items() if value is not None}
    folder = settled(folder)
    with beside(folder) as partial:
        made = partial / folder.name
        model.save_folder(made, dtype=dtype)
        if records is not None:
            _bring(records, made)
        illustrate(load_task(made), made)
        update_preset(made, **described)
        install(partial, [folder])
    return read_preset(folder)


def _check_place(folder, overwrite):
    """Refuses to replace what is no preset alone."""
    refuse_link(folder, FileExistsError)
    if not re.fullmatch(NAME, folder.name):
        raise ValueError(
            "A preset's name is of letters, digits, dots, underscores and hyphens, 100 "
            f"at most. Received: {folder.name!r:.120}."
        )
    if not folder.exists():
        return
    if not overwrite or not folder.is_dir():
        raise FileExistsError(
            f"{folder} exists. Choose another folder"
            + (", or overwrite=True." if folder.is_dir() else ".")
        )
    known = {CARD, MANIFEST, *RECORDS}
    said = read_record(folder, MANIFEST)  # a damaged one, too, can be replaced
    if isinstance(said, dict) and isinstance(said.get("files"), dict):
        known |= set(said["files"])
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.relative_to(folder).as_posix() not in known:
            raise FileExistsError(
                f"{folder} is no folder of a preset alone, and overwrite=True replaces "
                f"nothing else. Choose another folder, or remove it. It holds: {path}."
            )


def _bring(records, folder):
    """Copies records; what was measured of other weights stays where it is."""
    weights, left = sha256(folder / SAFETENSORS), []
    theirs = records / SAFETENSORS
    same = not theirs.is_file() or sha256(theirs) == weights
    for name in RECORDS:
        if not (records / name).is_file():
            continue
        fits = same or name not in MEASURED
        if name in (SCORES, EXPORTS):
            noted = read_record(records, name).get("weights")
            fits = fits if noted is None else noted == weights
        if fits:
            shutil.copyfile(records / name, folder / name)
        elif name in (SCORES, EXPORTS):
            left.append(name)
    if left:
        warnings.warn(
            f"{' and '.join(left)} of {records} were measured with other weights than "
            "those of the preset, which are rounded or trained on, and were left out. "
            "Measure the preset: kzoo evaluate.",
            stacklevel=3,
        )


def update_preset(folder, records=None, **described):
    """Writes manifest and card anew, from the files as they are, and records.

    After a file of a preset has changed. A card that somebody edited stays as it is,
    with a warning.

    Args:
        folder: of a preset, or one with the files of a preset to be.
        records: new contents of its JSON files by name, such as `SCORES`: all is made
            beside the folder, and takes its place at once.
        **described: `name`, `title`, `licence`, `research_only`, `data`, `language`;
            what is left out is as the recipe says, or else as before.

    Returns:
        The `Preset`.

    Raises:
        ValueError: a record is not what it should be, or there is no task of kzoo's;
            nothing is written.
    """
    from kzoo.zoo.cards import card

    folder = Path(folder)
    if records:
        return _update_at_once(folder, records, described)
    config = read_record(folder, CONFIG) or {}
    if not {"task", "model"} <= set(config):
        raise ValueError(
            f"A preset is a folder of kzoo's own, as save_folder writes it. Received: "
            f"{folder}, whose {CONFIG} describes no task."
        )
    recipes = _said_by(read_record(folder, RECIPE))
    before = read_manifest(folder) if (folder / MANIFEST).is_file() else {}

    given = {key: value for key, value in described.items() if value is not None}
    by_hand = {key: before[key] for key in before.get("by_hand", ())} | given

    def known(name, otherwise):
        said = (by_hand.get(name), recipes.get(name), before.get(name))
        return next((value for value in said if value is not None), otherwise)

    files = _files(folder, before)
    named = known("name", folder.name)
    with open(folder / SAFETENSORS, "rb") as file:
        tensors = safetensors_file.read_places(file, folder / SAFETENSORS).values()
    inverse = {kind: task for task, kind in TASKS.items()}
    manifest = {
        "kzoo": kzoo.__version__,
        "name": named,
        "title": known("title", named),
        "task": inverse[config["task"]],
        "architecture": ModelConfig.from_dict(config["model"]).architecture,
        "parameters": sum(math.prod(tensor.shape) for tensor in tensors),
        "licence": known("licence", None),
        "research_only": known("research_only", False),
        "data": known("data", None),
        "language": known("language", []),
        "by_hand": sorted(by_hand),
        "files": {
            path.relative_to(folder).as_posix(): {
                "bytes": path.stat().st_size,
                "sha256": sha256(path),
            }
            for path in files
        },
    }
    check_manifest({**manifest, "card": ""}, folder / MANIFEST)
    preset = described_by(manifest, folder)
    text, path = card(folder, preset), folder / CARD
    manifest["card"] = hashlib.sha256(text.encode()).hexdigest()
    found = sha256(path) if path.is_file() and before else None
    if found in (None, before.get("card"), manifest["card"]):
        write_text(path, text)
    else:
        warnings.warn(
            f"{path} was edited, and stays as it is. Remove it for one that is written "
            "from the records.",
            stacklevel=2,
        )
    write_json(folder / MANIFEST, manifest)
    return preset


def _update_at_once(folder, records, described):
    """`update_preset` in a copy, of which the folder gets what is new."""
    with beside(folder) as partial:
        copy = partial / folder.name
        copy.mkdir()
        before = read_manifest(folder) if (folder / MANIFEST).is_file() else {}
        for path in _files(folder, before, MANIFEST, CARD):
            place = copy / path.relative_to(folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, place)
        for name, content in records.items():
            write_json(copy / name, content)
        update_preset(copy, **described)
        install(copy, [folder / name for name in (*records, CARD, MANIFEST)])
    return read_preset(folder)


def _said_by(recipe):
    """What a recipe says of `DESCRIBED`; `None` of what it does not."""
    recipe = recipe or {}
    used = recipe.get("data", {})
    keys = ("licence", "research_only", "name", "languages")
    return dict(zip(DESCRIBED, [recipe.get("title"), *map(used.get, keys)]))


def _files(folder, manifest, *others):
    """Files of a preset that are there, sorted: listed, records, the model's."""
    found = [folder / name for name in (*manifest.get("files", ()), *RECORDS, *others)]
    for pattern in (CONFIG, SAFETENSORS, "tokenizer*"):
        found += folder.glob(pattern)
    return sorted({path for path in found if path.is_file()})
