"""The presets that kzoo ships, and folders of presets: found, read and checked.

A preset is a folder: what `save_folder` writes, records of how it was made and
measured (`RECORDS`), a manifest (`preset.json`) with the size and SHA-256 of each of
these files, and a card (`README.md`) that `kzoo.zoo.cards` writes from them. Nothing
here needs Keras, so that the command answers at once; `kzoo.zoo.saving` writes presets.
"""

import dataclasses
import difflib
import json
import os
import re
import tomllib
from pathlib import Path, PurePosixPath
from typing import get_args

from kzoo.checkpoints import hub
from kzoo.checkpoints.files import SAFETENSORS
from kzoo.config import Architecture
from kzoo.files import sha256

SHIPPED = Path(__file__).with_name("presets")
MANIFEST, CARD = "preset.json", "README.md"
# How a preset was made and measured. The manifest lists them like the model's files.
RECIPE, HISTORY, EXAMPLES = "recipe.toml", "history.json", "examples.json"
SCORES, EXPORTS = "scores.json", "exports.json"
CURVE, ATTENTION = "curve.png", "attention.png"
RECORDS = (RECIPE, HISTORY, SCORES, EXPORTS, EXAMPLES, CURVE, ATTENTION)
# Of those, what is said of the weights as they are in the file.
MEASURED = (SCORES, EXPORTS, EXAMPLES, ATTENTION)
CONFIG, _TOKENIZER = "config.json", "tokenizer_config.json"
# What a manifest says of a preset beside its files.
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
DESCRIBED = ("title", "licence", "research_only", "data", "language")

# A task's short name, and its class.
TASKS = {
    "causal_lm": "CausalLM",
    "masked_lm": "MaskedLM",
    "pair_scorer": "PairScorer",
    "question_answering": "QuestionAnswering",
    "sentence_embedder": "SentenceEmbedder",
    "seq2seq_lm": "Seq2SeqLM",
    "text_classifier": "TextClassifier",
    "text_regressor": "TextRegressor",
    "token_classifier": "TokenClassifier",
}
# The command of `kzoo` for the tasks that write text.
COMMANDS = {"causal_lm": "generate", "seq2seq_lm": "translate"}


@dataclasses.dataclass(frozen=True)
class Score:
    """A measured number.

    Args:
        test: the name of what it was measured on.
        measure: such as `"bleu"`.
        value: what came out; `None` where the measure is not defined.
        low: of the confidence interval, or `None`.
        high: likewise.
        confidence: of the interval, such as 0.95.
        signature: how it was computed, in the words of the library that did.
    """

    test: str
    measure: str
    value: float | None
    low: float | None = None
    high: float | None = None
    confidence: float | None = None
    signature: str | None = None

    def __str__(self):
        return f"{self.measure} {shown(self.value)} on {self.test}"


def shown(value):
    """A measured number in four digits, which may be `None`."""
    return "not defined" if value is None else f"{value:.4g}"


@dataclasses.dataclass(frozen=True, repr=False)
class Preset:
    """What a preset's manifest says, and its main score.

    Args:
        name: what `from_preset` takes; the folder's name.
        title: for people.
        task: a key of `TASKS`.
        architecture: `"encoder"`, `"decoder"` or `"encoder_decoder"`.
        parameters: how many weights.
        bytes: of all files in the manifest.
        licence: of the data that the weights were trained on; `None` where unknown.
        research_only: whether that data, and so the preset, is for research alone.
        data: the name of the data, or `None`.
        language: codes of the languages, such as `("en", "de")`.
        score: the main `Score`, or `None` where nothing was measured.
        folder: `pathlib.Path`.
    """

    name: str
    title: str
    task: str
    architecture: str
    parameters: int
    bytes: int
    licence: str | None
    research_only: bool
    data: str | None
    language: tuple[str, ...]
    score: Score | None
    folder: Path

    def to_dict(self):
        """The fields, as JSON can hold them."""
        return {**dataclasses.asdict(self), "folder": str(self.folder)}

    def __repr__(self):
        parts = [
            self.task,
            f"{self.parameters:,} parameters",
            f"{self.bytes / 1e6:.1f} MB",
            str(self.score or "not measured"),
            self.licence or "licence not stated",
            "research only" if self.research_only else "",
        ]
        return f"<Preset {self.name}: {', '.join(part for part in parts if part)}>"


def list_presets(task=None, architecture=None):
    """The presets that kzoo ships.

    Args:
        task: only those of this task, a key of `TASKS` such as `"seq2seq_lm"`.
        architecture: only `"encoder"`, `"decoder"` or `"encoder_decoder"`.

    Returns:
        A list of `Preset`s, by name.

    Raises:
        ValueError: an unknown task or architecture; or a shipped preset is damaged.

    Example:
        >>> kzoo.list_presets(task="seq2seq_lm")
    """
    for name, value, known in (
        ("task", task, sorted(TASKS)),
        ("architecture", architecture, list(get_args(Architecture))),
    ):
        if value is not None and value not in known:
            raise ValueError(f"{name} must be one of {known}. Received: {value!r}.")
    presets = [read_preset(SHIPPED / name) for name in preset_names()]
    return [
        preset
        for preset in presets
        if task in (None, preset.task) and architecture in (None, preset.architecture)
    ]


def preset_names():
    """The names of the presets that kzoo ships, sorted."""
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{MANIFEST}"))


def located(source):
    """Where a model is: a shipped preset's folder for its name, else `source` itself.

    A folder of the user's wins over a preset of the same name.

    Raises:
        FileNotFoundError: neither a folder, nor a preset, nor an address of the Hub.
    """
    name = os.fspath(source) if isinstance(source, os.PathLike) else str(source)
    # An empty name would be the folder that one works in.
    if name.startswith("hf://") or (name and os.path.isdir(name)):
        return source
    names = preset_names()
    if name in names:
        return SHIPPED / name
    raise FileNotFoundError(
        f"{name or repr(name)} is not a folder. Expected one that save_folder, "
        "save_preset or `kzoo train` wrote, or one in Hugging Face's "
        "layout; hf://owner/name; or a preset: "
        + (", ".join(names) or "none is shipped with this installation")
        + "."
        + did_you_mean(name, names)
    )


def did_you_mean(name, names):
    """What an error says of names like one that is none; nothing without any."""
    near = [each for each in names if each.startswith(f"{name.lower()}-")]
    near += difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
    near = list(dict.fromkeys(near))[:3]
    return f" Did you mean {' or '.join(near)}?" if near else ""


def read_preset(folder):
    """The `Preset` in a folder; its files are not checked.

    Raises:
        FileNotFoundError: there is no manifest.
        ValueError: the manifest or the scores are not what they should be.
    """
    folder = Path(folder)
    return described_by(read_manifest(folder), folder)


def began_with(source):
    """The `Preset` whose weights a training began with, where it is still there."""
    try:
        folder = located(source)
    except FileNotFoundError:
        return None
    if str(folder).startswith("hf://") or not (Path(folder) / MANIFEST).is_file():
        return None
    return read_preset(folder)


def described_by(said, folder):
    """The `Preset` of a manifest."""
    fields = {f.name for f in dataclasses.fields(Preset)} & set(said)
    made = {name: said[name] for name in fields}
    made["language"] = tuple(said["language"])
    size = sum(file["bytes"] for file in said["files"].values())
    score = main_score(measured(folder, SCORES))
    return Preset(**made, bytes=size, score=score, folder=folder)


def main_score(scores):
    """The `Score` that `scores.json` calls the main one, or `None` without one.

    Raises:
        ValueError: it names none that was measured.
    """
    if not scores or not scores.get("main"):
        return None
    for score in all_scores(scores):
        if [score.test, score.measure] == list(scores["main"]):
            return score
    raise ValueError(
        f"{SCORES}: main must name a test and one of its measures. Received: "
        f"{scores['main']!r}."
    )


def all_scores(scores):
    """Every `Score` in what `scores.json` says, in its order."""
    fields = [field.name for field in dataclasses.fields(Score)]
    try:
        return [
            Score(test, measure, **{k: found[k] for k in fields if k in found})
            for test, measured in scores["tests"].items()
            for measure, found in measured["measures"].items()
        ]
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            f"{SCORES} must hold tests, with measures that have a value. Received: "
            f"{type(error).__name__}: {error}."
        ) from error


def read_record(folder, name):
    """What a preset's record says, a JSON or TOML file; `None` where there is none.

    Raises:
        ValueError: it is neither; the file is named.
    """
    path = Path(folder) / name
    if not path.is_file():
        return None
    parse = tomllib.loads if path.suffix == ".toml" else json.loads
    try:
        return parse(path.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        kind = path.suffix[1:].upper()
        raise ValueError(f"{path} is not {kind}: {error}") from error


def measured(folder, name):
    """What was measured of the weights in the folder: a record, or `None`.

    `kzoo evaluate` notes the SHA-256 of the weights that it measures; a record of
    others, as before more training, says nothing of these.

    Args:
        folder: of a preset, or of `kzoo train`.
        name: `SCORES` or `EXPORTS`.
    """
    record = read_record(folder, name)
    if record is None or "weights" not in record:
        return record
    return record if record["weights"] == sha256(Path(folder) / SAFETENSORS) else None


_KEYS = {
    "kzoo": str,
    "name": str,
    "title": str,
    "task": str,
    "architecture": str,
    "parameters": int,
    "licence": str | None,
    "research_only": bool,
    "data": str | None,
    "language": list,
    "by_hand": list,  # which of these win over the recipe
    "files": dict,
    "card": str,  # the SHA-256 of the card that was written
}


def read_manifest(folder):
    """What a manifest says, as JSON has it.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it lacks something, or has more.
    """
    path = folder / MANIFEST
    said = read_record(folder, MANIFEST)
    if said is None:
        raise FileNotFoundError(f"No {MANIFEST} in {folder}: it holds no preset.")
    return check_manifest(said, path)


def check_manifest(said, path):
    """What a manifest says, or is to say, where it can be read.

    Raises:
        ValueError: it lacks something, has more, or values that are none; `path` is
            named.
    """
    if not isinstance(said, dict) or set(said) != set(_KEYS):
        raise ValueError(
            f"{path} must hold the keys {sorted(_KEYS)}. Received: "
            f"{sorted(said) if isinstance(said, dict) else type(said).__name__}."
        )
    for name, kind in _KEYS.items():
        if not isinstance(said[name], kind):
            raise ValueError(
                f"{path}: {name} must be {getattr(kind, '__name__', kind)}. Received: "
                f"{said[name]!r}."
            )
    if not re.fullmatch(NAME, said["name"]):
        raise ValueError(
            f"{path}: a preset's name is of letters, digits, dots, underscores and "
            f"hyphens. Received: {said['name']!r}."
        )
    if not all(isinstance(code, str) for code in said["language"]):
        raise ValueError(
            f"{path}: language must be codes such as 'en'. "
            f"Received: {said['language']!r}."
        )
    if len(said["title"].splitlines()) != 1:
        raise ValueError(f"{path}: title must be a line. Received: {said['title']!r}.")
    for name, file in said["files"].items():
        parts = PurePosixPath(name)
        if parts.is_absolute() or ".." in parts.parts or "\\" in name:
            raise ValueError(
                f"{path}: files must be in the preset's folder. Received: {name!r}."
            )
        kinds = file if not isinstance(file, dict) else {k: type(file[k]) for k in file}
        if kinds != {"bytes": int, "sha256": str}:
            raise ValueError(
                f"{path}: {name} must have bytes, a number, and sha256. Received: "
                f"{file!r}."
            )
    return said


def check_preset(folder, whole=True):
    """Compares the files of a preset with its manifest; does nothing without one.

    Every file that the manifest lists must be there as it was written. The card is not
    listed: people edit it, and so do hubs. Other files are nobody's business, but for
    those that loading would read: these must be listed.

    Args:
        folder: the preset's.
        whole: whether all files must be there; else those that a repository's download
            brings along.

    Raises:
        ValueError: a file is missing, of another size or content, or not listed; it is
            named.
    """
    folder = Path(folder)
    if not (folder / MANIFEST).is_file():
        return
    files = read_manifest(folder)["files"]
    again = "Get the preset again, or write it again with kzoo.save_preset."
    needed = [CONFIG, SAFETENSORS]
    needed += [_TOKENIZER] * (folder / _TOKENIZER).is_file()
    for name in needed:
        if name not in files:
            raise ValueError(f"{folder / name} is not in {MANIFEST}. {again}")
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            if not whole and not _is_downloaded(path):
                continue
            raise ValueError(f"{path} is missing, and {MANIFEST} lists it. {again}")
        size = path.stat().st_size
        if size != expected["bytes"]:
            raise ValueError(
                f"{path} was cut short or changed: {MANIFEST} says "
                f"{expected['bytes']:,} bytes. Received: {size:,}. {again}"
            )
        if sha256(path) != expected["sha256"]:
            raise ValueError(
                f"{path} was changed: its SHA-256 is not the one in {MANIFEST}. {again}"
            )


def _is_downloaded(path):
    return any(path.match(pattern) for pattern in (*hub.PATTERNS, "*.safetensors"))
