"""The recipe that the options of `kzoo train` describe."""

import os
from pathlib import Path
from typing import get_args

from kzoo.cli.console import Failure
from kzoo.config import SIZES, load_config

# Which key of a recipe an option is, for those that are one as they stand.
PLACES = {
    "seed": "seed",
    "vocabulary_size": "tokenizer.vocabulary_size",
    "dropout": "model.dropout",
    "size": "model.size",
    "epochs": "training.epochs",
    "tokens_per_batch": "training.tokens_per_batch",
    "learning_rate": "training.schedule.peak",
    "warmup": "training.schedule.warmup_steps",
    "label_smoothing": "training.label_smoothing",
    "average": "training.average",
    "precision": "training.precision",
}
TASKS = {"translation": "seq2seq_lm", "language-model": "causal_lm"}
# Enough to see whether a training generalises.
_MOST_HELD_OUT = 2000
_RUNNING = "whole=True"  # an argument of `load_texts`, in its messages


def recipe(options):
    """The `kzoo.zoo.recipes.Recipe` of the options.

    Args:
        options: those of `kzoo train`, by the names of its parameters.
    """
    from kzoo.zoo.recipes import Recipe
    from kzoo.zoo.tables import without_none

    _check(options)
    size, running = options["size"], options["running"]
    config = None if size in SIZES else load_config(size)
    sizes = config and (config.decoder or config.encoder)
    width = sizes.hidden_dim if sizes else SIZES[size]["hidden_dim"]
    values = {
        "name": options["out_path"].name,
        "task": TASKS[options["task"]],
        "data": _data(options),
        "tokenizer": _tokenizer(options),
        "model": {"config": without_none(config.to_dict())} if config else {},
        "training": {
            "schedule": {"kind": "inverse_square_root"},
            "optimizer": {"beta_2": 0.98, "epsilon": 1e-9, "global_clipnorm": 1.0},
            **({"length": options["length"] or 256} if running else {}),
        },
    }
    options = {
        **options,
        "size": None if config else size,
        "learning_rate": options["learning_rate"] or (1000 * width) ** -0.5,
        "average": options["average"] or max(1, min(5, options["epochs"] // 4)),
        "vocabulary_size": None
        if "folder" in values["tokenizer"]
        else options["vocabulary_size"],
    }
    for option, place in PLACES.items():
        *tables, key = place.split(".")
        table = values
        for name in tables:
            table = table[name]
        if options[option] is not None:
            table[key] = options[option]
    return Recipe.from_dict(values)


def as_keys(message):
    """A message about data, with the recipe's names for arguments."""
    return message.replace(_RUNNING, 'format = "running"')


def as_options(message):
    """A message about data or keys of a recipe, with the options' names for them."""
    others = (("tokenizer", "tokenizer.kind"), ("tokenizer", "tokenizer.folder"))
    for option, place in (*PLACES.items(), *others, ("length", "training.length")):
        flag = f"--{option.replace('_', '-')}"
        message = message.replace(f"{place} was", f"{flag} was")
    names = {
        "the texts of the training": "the texts of DATA",
        "[data] validation": "--validation",
        _RUNNING: "--running",
    }
    for name, option in names.items():
        message = message.replace(name, option)
    return message


def _check(options):
    """Refuses what no recipe would."""
    size, kind = options["size"], options["tokenizer"]
    if size not in SIZES and not os.path.isfile(size):
        raise Failure(
            f"--size: expected one of {', '.join(SIZES)}, or a JSON file of a "
            f"config. Received: {size!r}, which is no file."
        )
    if kind and kind not in _kinds() and not os.path.isdir(kind):
        raise Failure(
            f"--tokenizer: expected one of {', '.join(_kinds())}, or a folder that "
            f"holds a tokenizer. Received: {kind!r}."
        )
    given = [
        f"--{name.replace('_', '-')}"
        for name in ("validation", "validation_split", "validation_share")
        if options[name] not in (None, [])
    ]
    if len(given) > 1:
        raise Failure(f"Give one of {' and '.join(given)}, not both.")
    folder, sources = options["folder"], options["data"]
    files = [name for name in sources if os.path.isfile(folder / name)]
    for name, default in (("validation_split", None), ("split", "train")):
        if files and options[name] != default:
            raise Failure(
                f"--{name.replace('_', '-')} is of a folder or a TFDS data set. "
                f"Received it for the file {files[0]}. Parts of a file are held out by "
                "--validation-share; another is read by --validation."
            )
    if options["running"] and options["task"] != "language-model":
        raise Failure("--running is for --task language-model. Received: translation.")
    if options["length"] is not None and not options["running"]:
        raise Failure(
            "--length is of --running, where stretches of so many tokens are drawn. "
            f"Received: --length {options['length']} alone; leave it out."
        )
    if options["learning_rate"] is not None and not options["learning_rate"] > 0:
        raise Failure(
            f"--learning-rate must be positive. Received: {options['learning_rate']}."
        )


def _kinds():
    from kzoo.zoo.recipe_tables import TokenizerKind

    return get_args(TokenizerKind)


def _tokenizer(options):
    kind = options["tokenizer"] or ("bpe" if options["running"] else "unigram")
    return {"kind": kind} if kind in _kinds() else {"folder": kind}


def _data(options):
    from kzoo.data.tfds import is_tfds

    sources, columns = options["data"], _columns(options["columns"])
    translation, split = options["task"] == "translation", options["split"]
    if len(sources) > 1 + translation:
        takes = (
            "one data set or file, or two parallel files"
            if translation
            else "one file or data set: a language model learns from texts"
        )
        raise Failure(
            f"Expected {takes}. Received: {len(sources)}: {', '.join(sources)}."
        )
    wanted = 1 + translation
    if columns is not None and len(columns) != wanted:
        takes = "those of source and target" if translation else "one, of texts"
        raise Failure(f"--columns: expected {takes}. Received: {options['columns']}.")
    kind = "parallel" if len(sources) == 2 else "columns"
    if not translation:
        kind = "running" if options["running"] else "text"
    values = {"format": kind, "train": {"files": sources, "split": split}}
    if columns is not None:
        values["columns"] = columns
    if options["validation"]:
        _check_differ(options["folder"], sources, options["validation"])
        files = options["validation"]
        has_splits = is_tfds(files[0]) or os.path.isdir(options["folder"] / files[0])
        values["validation"] = {
            "files": files,
            "split": split if has_splits else "train",  # of a file all is read
        }
    elif options["validation_split"]:
        values["validation"] = {"files": sources, "split": options["validation_split"]}
    elif options["validation_share"] != 0:
        share = options["validation_share"]
        values["hold_out"] = {"validation": 0.05 if share is None else share}
        if options["running"]:
            values["hold_out"]["by"] = "end"
        else:
            own = {"at_most": _MOST_HELD_OUT, "seed": options["seed"]}
            values["hold_out"] |= own
    return values


def _check_differ(folder, sources, validation):
    """Raises `Failure` where validation is of the very files of the training."""
    from kzoo.data.tfds import is_tfds

    names = [name for own in (sources, validation) for name in own]
    files = {
        name: name if is_tfds(name) else (folder / name).resolve() for name in names
    }
    paths = [path for path in files.values() if isinstance(path, Path)]
    if not all(map(os.path.exists, paths)):
        return  # it will be named
    if {files[name] for name in sources} == {files[name] for name in validation}:
        splits = all(map(os.path.isdir, paths))
        raise Failure(
            f"--validation {' '.join(validation)} is what the model learns from. Give "
            f"{'--validation-split for another part, ' * splits}--validation-share to "
            "hold examples out, or other data."
        )


def _columns(columns):
    """`"0,1"` to [0, 1], `"en,de"` to ["en", "de"], `None` to `None`."""
    if columns is None:
        return None
    parts = [part.strip() for part in columns.split(",")]
    if not all(parts):
        raise Failure(
            "--columns: expected numbers from 0 or names, such as 0,1 or en,de. "
            f"Received: {columns!r}."
        )
    return [int(part) if part.isdecimal() else part for part in parts]
