"""The examples of a recipe: read, cut to parts, and as a task takes them."""

import hashlib
import json
import math
import os
import re
from pathlib import Path

import numpy as np

from kzoo.data import (
    DataError,
    load_pairs,
    load_rows,
    load_tagged,
    load_texts,
    packed_blocks,
    split_examples,
)
from kzoo.data.sources import check_no_split
from kzoo.data.tfds import is_tfds
from kzoo.zoo.recipe_tables import HoldOut
from kzoo.zoo.recipes import NUMBERS, shipped
from kzoo.zoo.registry import did_you_mean

_LABELLED = ("text_classifier", "token_classifier")
_UNSUPERVISED = ("causal_lm", "masked_lm")


def read_training(recipe, folder):
    """What a recipe trains on.

    Args:
        recipe: a `kzoo.zoo.recipes.Recipe`.
        folder: that its files are relative to.

    Returns:
        list of training examples, and one of validation examples or `None`. An example
        is a text or a tuple of columns; running text is one example.

    Raises:
        DataError: a file is missing, with what was expected of it, or cannot be right;
            or too few examples to hold any out.
    """
    parts = _parts(recipe, folder)  # read once: the file may be a pipe
    if recipe.data.validation is not None:
        own = _read(recipe, folder, "validation", recipe.data.validation)
        return parts["train"], own
    validation = (recipe.data.hold_out or HoldOut()).validation
    return parts["train"], parts["validation"] if validation else None


def read_test(recipe, folder, name):
    """The examples of a test set, by one of the names in `recipe.data.tests`.

    Args:
        recipe: as in `read_training`; so for the next, the result and the errors.
        folder: that its files are relative to.
        name: of the test set.
    """
    if name not in recipe.data.tests:
        raise ValueError(
            f"The recipe {recipe.name} has the test sets {recipe.data.tests}. "
            f"Received: {name!r}."
        )
    if name in recipe.data.test:
        return _read(recipe, folder, name, recipe.data.test[name])
    if name == "validation" and recipe.data.validation is not None:
        return _read(recipe, folder, name, recipe.data.validation)
    return _parts(recipe, folder)[name]


def inputs_and_targets(recipe, examples):
    """x and y, as `fit` and `score` of the recipe's task take them.

    Args:
        recipe: as in `read_training`.
        examples: of one of the functions above.

    Returns:
        A list of inputs; and one of targets, or `None` where a task learns from its
        inputs.

    Raises:
        DataError: a target is no number where the task predicts one.
    """
    if recipe.task in _UNSUPERVISED:
        return examples, None
    *inputs, targets = map(list, zip(*examples, strict=True))
    x = inputs[0] if len(inputs) == 1 else list(zip(*inputs, strict=True))
    if recipe.task in NUMBERS:
        targets = [_number(target, i) for i, target in enumerate(targets)]
    elif recipe.task == "text_classifier":
        # Files number the classes that the recipe names, or counts.
        counted = "num_classes" in recipe.task_options
        names = recipe.task_options.get("labels", () if counted else set(targets))
        count = recipe.task_options.get("num_classes", len(names))
        targets = _class_targets(targets, names, count)
    return x, targets


def _class_targets(labels, names, count):
    """The classes of examples: all by their names, or all by their numbers.

    Names that look like numbers are names, so that none stands for another class.
    """
    numbers = {str(number): number for number in range(count)}
    by_name = {name: name for name in names}
    numbered = not by_name.keys() & {*labels}
    numbered &= not any(re.fullmatch("[0-9]+", str(name)) for name in names)
    places = numbers if numbered else by_name
    for i, label in enumerate(labels):
        if label not in places:
            known = ", ".join(map(repr, names)) or f"numbers below {count}"
            either = ", or their numbers from 0" if numbered and names else ""
            raise DataError(
                f"Example {i + 1} has a label that the recipe does not know. Expected: "
                f"{known}{either}. Received: {label!r}."
            )
    return [places[label] for label in labels]


def labels_of(recipe, examples):
    """The labels that occur, sorted, where the recipe names none and its task needs
    some; else `None`.
    """  # noqa: D205  one sentence
    options = recipe.task_options
    if recipe.task not in _LABELLED or {"labels", "num_classes"} & set(options):
        return None
    targets = [target for *_, target in examples]
    if recipe.task == "token_classifier":
        targets = [label for labels in targets for label in labels]
    return sorted(set(targets))


def texts_of(recipe, examples):
    """All texts of the examples, for a tokenizer to learn from."""
    if recipe.task in _UNSUPERVISED:
        return examples
    if recipe.task == "token_classifier":
        return [" ".join(words) for words, _ in examples]
    targets = recipe.task == "seq2seq_lm"
    sides = [example if targets else example[:-1] for example in examples]
    return [text for side in sides for text in side]


def stretches(task, examples, length):
    """Running text as features: rows of a start token and `length` others, each once.

    Args:
        task: whose tokenizer and start token it is.
        examples: of a recipe with `format = "running"`.
        length: in tokens.

    Returns:
        dict of `token_ids` int32 (N, 1 + length); an end of fewer is left out.
    """
    blocks = packed_blocks(task.tokenizer.encode(examples)[0], length)
    start = np.full((len(blocks), 1), task.config.start_token_id, "int32")
    return {"token_ids": np.concatenate([start, blocks], axis=1)}


def fingerprint(*parts):
    """A short digest of all examples, to notice that data changed."""
    digest = hashlib.blake2b(digest_size=8)
    for examples in parts:
        for example in examples or ():
            digest.update(json.dumps(example).encode() + b"\n")
        digest.update(b"\0")
    return digest.hexdigest()


def _parts(recipe, folder):
    """dict of the training file's parts: what is held out, and `"train"`, the rest."""
    examples = _read(recipe, folder, "train", recipe.data.train)
    out = recipe.data.hold_out
    if out is None:
        return {"train": examples}
    whole = examples[0] if recipe.data.is_running else examples
    shares = {"validation": out.validation, "test": out.test}
    most = len(whole) if out.at_most is None else out.at_most
    if out.by == "hash":
        shares = {name: min(share, most / len(whole)) for name, share in shares.items()}
        targets = recipe.task not in (*_UNSUPERVISED, "seq2seq_lm")  # no texts
        texts = 1 if isinstance(whole[0], str) else len(whole[0]) - targets
        if out.side >= texts:
            raise DataError(
                f"[data.hold_out] side: expected a number below {texts}, how many "
                f"texts an example has. Received: {out.side}."
            )
        options = dict(**shares, seed=out.seed, side=out.side)
        if recipe.data.format == "tagged":  # a sentence is a list of words
            texts = [(" ".join(words), i) for i, (words, _) in enumerate(whole)]
            parts = split_examples(texts, **options)
            parts = {n: [whole[i] for _, i in rows] for n, rows in parts.items()}
        else:
            parts = split_examples(whole, **options)
    else:
        begins = int(len(whole) * (1 - shares["test"]))
        ends = int(len(whole) * (1 - sum(shares.values())))
        last, begins = begins - ends, max(begins, len(whole) - most)
        ends = begins - min(last, most)
        parts = {
            "train": whole[:ends],
            "validation": whole[ends:begins],
            "test": whole[begins:],
        }
    for name in ("train", *(name for name, share in shares.items() if share)):
        if not parts[name]:
            raise DataError(
                f"{len(whole)} examples are too few to hold out "
                f"{sum(shares.values()):.0%} of them: none is left for {name}. Name "
                "files instead, or hold out none: a share of 0."
            )
    running = recipe.data.is_running
    return {name: [part] if running else part for name, part in parts.items()}


def _read(recipe, folder, part, source):
    data, columns = recipe.data, recipe.data.columns
    files = [
        file if is_tfds(file) else str(Path(folder) / file) for file in source.files
    ]
    for file, given in zip(files, source.files, strict=True):
        if not is_tfds(file) and not os.path.exists(file):
            raise DataError(_missing(recipe, folder, part, file, given))
    if data.format == "tagged":
        check_no_split(files[0], source.split)
        return load_tagged(files[0], columns=columns or (0, 1))
    options = dict(split=source.split, extra_columns=data.extra_columns)
    if data.format in ("text", "running"):
        column = columns[0] if columns else None
        whole = data.is_running
        examples = load_texts(files[0], column=column, whole=whole, **options)
        return [_prepared(data, *each) for each in enumerate(examples)]
    if data.format == "parallel":
        examples = load_pairs(tuple(files), split=source.split)
    elif len(columns or (0, 1)) == 2:
        examples = load_pairs(files[0], columns=columns, **options)
    else:
        count = len(columns)
        examples = load_rows(files[0], columns=columns, count=count, **options)
    return [_prepared(data, *each) for each in enumerate(examples)]


def _missing(recipe, folder, part, file, given):
    data = recipe.data
    columns = f", columns {list(data.columns)}" if data.columns else ""
    origin = f" Its data are {data.name or 'at'} {data.url}." if data.url else ""
    origin += f" Layout: {data.layout}." if data.layout else ""
    hint = f" For a data set of TensorFlow Datasets write tfds:{given}."
    hint += did_you_mean(given, list(shipped()))
    return (
        f"{file} does not exist. Expected in the folder {folder} for {part!r}, as "
        f"format {data.format!r}{columns}.{origin}"
        f"{'' if Path(given).suffix else hint}"
    )


def _prepared(data, number, example):
    """A text, or each of a tuple of them, as `data` says."""
    if not isinstance(example, str):
        return tuple(_prepared(data, number, text) for text in example)
    text = example
    for old, new in data.replace.items():
        text = text.replace(old, new)
    if data.last_words is not None:
        text = " ".join(text.split()[-data.last_words :])
    if example.strip() and not text.strip():
        raise DataError(
            f"[data] replace leaves nothing of a text. Received: {example!r:.80} in "
            f"example {number}."
        )
    return text


def _number(text, index):
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise DataError(
            f"Targets must be numbers. Received: {text!r} for example {index}. "
            "[data] columns names the texts first and the target last."
        )
    return number
