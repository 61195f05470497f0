"""The settings of a training: checked, kept beside it, compared when it goes on."""

import json
from pathlib import Path

from kzoo.cli.console import Failure, note

TOKENIZERS = ("unigram", "bpe", "sentencepiece-bpe", "wordpiece", "character")

# A training may go on with a new value of these.
_MAY_CHANGE = ("epochs", "average")


def check(options):
    """Refuses what can be refused before anything is read.

    Args:
        options: those of `kzoo train`, by the names of its parameters.
    """
    from kzoo.config import SIZES, load_config

    size, kind = options["size"], options["tokenizer"]
    if size not in SIZES:
        if not Path(size).is_file():
            raise Failure(
                f"--size: expected one of {', '.join(SIZES)}, or a JSON file of a "
                f"config. Received: {size!r}, which is no file."
            )
        config = load_config(size)
        expected = architecture(options["task"])
        if config.architecture != expected:
            raise Failure(
                f"--task {options['task']} needs a config of architecture {expected}. "
                f"Received: {size}, {config.architecture}."
            )
    if kind and kind not in TOKENIZERS and not Path(kind).is_dir():
        raise Failure(
            f"--tokenizer: expected one of {', '.join(TOKENIZERS)}, or a folder that "
            f"holds a tokenizer. Received: {kind!r}."
        )
    given = [
        f"--{name.replace('_', '-')}"
        for name in ("validation", "validation_split", "validation_share")
        if options[name] not in (None, [])
    ]
    if len(given) > 1:
        raise Failure(f"Give one of {' and '.join(given)}, not both.")
    if options["running"] and options["task"] != "language-model":
        raise Failure("--running is for --task language-model. Received: translation.")
    if options["learning_rate"] is not None and not options["learning_rate"] > 0:
        raise Failure(
            f"--learning-rate must be positive. Received: {options['learning_rate']}."
        )
    out_path = options["out_path"]
    if out_path.exists() and not out_path.is_dir():
        raise Failure(f"--out {out_path} is a file. Give a new folder.")
    if out_path.is_dir() and any(out_path.iterdir()):
        if not _path(out_path).is_file():
            raise Failure(
                f"--out {out_path} is not empty and has no training to go on with. "
                "Give a new folder."
            )


def architecture(task):
    """The config's architecture for a `--task`."""
    return "encoder_decoder" if task == "translation" else "decoder"


def of(options, train_examples, held_out):
    """What decides the weights, as a dict; a training goes on with the same only."""
    from kzoo.cli.examples import fingerprint
    from kzoo.config import SIZES

    settings = {
        name: value
        for name, value in options.items()
        if name not in ("out_path", "validation", "data")
    }
    if options["size"] not in SIZES:
        settings["size"] = json.loads(Path(options["size"]).read_text(encoding="utf-8"))
    # The texts themselves, so that a file may move but not change.
    settings["data"] = fingerprint(train_examples, held_out)
    return settings


def begin_or_resume(out_path, settings):
    """Writes the settings, or compares them with those of the training before."""
    path = _path(out_path)
    if path.is_file():
        before = json.loads(path.read_text(encoding="utf-8"))
        changed = [
            "the texts of DATA or of the validation"
            if name == "data"
            else f"--{name.replace('_', '-')} was {before.get(name)}, now {value}"
            for name, value in settings.items()
            if name not in _MAY_CHANGE and before.get(name) != value
        ]
        if changed:
            raise Failure(
                f"{out_path} has a training with other settings: {'; '.join(changed)}. "
                "Run it with the same settings to go on, or give another --out."
            )
        note(f"Going on with the training in {out_path}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)


def _path(out_path):
    return out_path / "training" / "settings.json"
