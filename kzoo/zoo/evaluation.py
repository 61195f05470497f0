"""A model on a recipe's test sets.

    examples ► `answers` (the task's own verb) ► `measures` ► scores.json

`answers` asks the task, or an artifact that stands behind its verbs
(`kzoo.exporters.answers.answers_from`); `kzoo.zoo.measures` knows answers and
references alone, so that every form of a model is scored by the same code.
"""

import collections
import importlib.metadata
import os
import platform
import time
import warnings
from pathlib import Path

import keras
import numpy as np

from kzoo.data import DataError, padded_batch
from kzoo.zoo.examples import inputs_and_targets, read_test, stretches
from kzoo.zoo.exports import measure_exports
from kzoo.zoo.measures import classes_of, measures
from kzoo.zoo.recipes import OF_THE_TEXT


def evaluate(task, recipe, folder, tests=None):
    """Scores a model on test sets of a recipe.

    Args:
        task: the model, a `kzoo.tasks` task.
        recipe: a `kzoo.zoo.recipes.Recipe` of the same task.
        folder: that its files are relative to.
        tests: names among `recipe.data.tests`; by default all but `"validation"`, or
            that where there is no other.

    Returns:
        dict as `scores.json` holds it: `machine`, `versions`, `main` where the recipe
        has one, and `tests`, name to `rows`, `options`, `seconds` and `measures`. A
        measure has `value`, `low`, `high`, `confidence`, and a `signature` where its
        field has one; the first three are `None` where it is not defined.

    Raises:
        DataError: a test set's file is missing, with what was expected, or wrong, or
            has none of the model's labels.
        ImportError: a library of the extra `metrics` is not installed.
        ValueError: an unknown test set, or measure in the recipe.
    """
    names = list(tests or recipe.data.tests)
    test, measure = recipe.evaluation.main or (None, None)
    if not tests and len(names) > 1:
        names = [name for name in names if name != "validation" or name == test]
    if not names:
        raise ValueError(
            f"The recipe {recipe.name} has no test set: [data] test names none."
        )
    # All are read first, so that a missing file is known before the work.
    examples = {name: read_test(recipe, folder, name) for name in names}
    for name, rows in examples.items():
        _check_labels(task, recipe, name, rows)
    scores = {"machine": machine(), "versions": versions(), "tests": {}}
    for name, rows in examples.items():
        kept = _kept_measures(task, recipe, rows)
        start = time.perf_counter()
        found = answers(task, recipe, rows)
        seconds = time.perf_counter() - start
        scores["tests"][name] = {
            "rows": len(found),
            "options": dict(recipe.evaluation.options),
            "seconds": round(seconds, 3),
            "measures": kept(measures(recipe, rows, found)),
        }
    if test in scores["tests"]:
        _check_main(recipe, scores["tests"][test]["measures"])
        scores["main"] = [test, measure]
    return scores


def evaluate_exports(task, recipe, folder, forms=None):
    """Scores every exported form on the main test set, by the artifact's own answers.

    Args:
        task: as in `evaluate`; so for the next two.
        recipe: its main test set, or else its first.
        folder: that its data files are relative to.
        forms: as `kzoo.zoo.exports.measure_exports` takes them.

    Returns:
        What `exports.json` holds: `machine`, `versions`, `test`, `rows`, and what
        `measure_exports` gives.

    Raises:
        DataError: the data are missing or cannot be right.
        ValueError: the recipe has no test set; an unknown form.
    """
    test = next(iter(recipe.evaluation.main or recipe.data.tests), None)
    if test is None:
        raise ValueError(f"The recipe {recipe.name} has no test set.")
    rows = read_test(recipe, folder, test)
    _check_labels(task, recipe, test, rows)

    kept, count = _kept_measures(task, recipe, rows), None

    def score(task):
        nonlocal count
        found = answers(task, recipe, rows)
        count = len(found)
        found = kept(measures(recipe, rows, found))
        if recipe.evaluation.main:
            _check_main(recipe, found)
        values = {name: row["value"] for name, row in found.items()}
        return {name: value for name, value in values.items() if value is not None}

    where = {"machine": machine(), "versions": versions()}
    found = measure_exports(task, score, forms)
    return {**where, "test": test, "rows": count, **found}


def _check_main(recipe, found):
    """Raises `ValueError` where the main measure is none that the data have."""
    test, measure = recipe.evaluation.main
    if measure not in found:
        raise ValueError(
            f"[evaluation] main: expected a measure that {test!r} has, of "
            f"{list(found)}. Received: {measure!r}."
        )


def _check_labels(task, recipe, name, examples):
    """Raises `DataError` where no label of a test set is the model's, else warns."""
    if recipe.task == "token_classifier":
        found = collections.Counter(label for _, labels in examples for label in labels)
    elif recipe.task == "text_classifier":
        found = collections.Counter(classes_of(recipe, examples))
    else:
        return
    known = list(task.labels or range(task.num_classes))
    others = {label: count for label, count in found.items() if label not in known}
    shown = sorted(others, key=str)[:20]
    if len(others) == len(found):
        raise DataError(
            f"{name}: none of its labels is the model's. Expected: {known}. Received: "
            f"{shown}. Is it the data of another task?"
        )
    if others:
        warnings.warn(
            f"{name}: {sum(others.values())} of {found.total()} labels are none of the "
            f"model's, and count as wrong. Expected: {known}. Received: {shown}.",
            stacklevel=2,
        )


def _kept_measures(task, recipe, examples):
    """A function of what `measures` gives: what can be said with this tokenizer.

    One that forgets case or white space has a model of other texts, whose nats say
    nothing about the characters and the words of these.

    Raises:
        ValueError: the recipe's main measure cannot be said.
    """
    tokenizer = task.tokenizer
    if recipe.task != "causal_lm" or all(
        tokenizer.decode([ids])[0] == text
        for ids, text in zip(tokenizer.encode(examples), examples, strict=True)
    ):
        return dict
    if (recipe.evaluation.main or (None, None))[1] in OF_THE_TEXT:
        raise ValueError(
            f"[evaluation] main: {' and '.join(OF_THE_TEXT)} need a tokenizer that "
            "gives back each text as it was, such as kind = 'bpe' or 'character'. "
            f"Received: a {type(tokenizer).__name__} that does not."
        )
    return lambda found: {k: row for k, row in found.items() if k not in OF_THE_TEXT}


def answers(task, recipe, examples):
    """What a model says to the examples: what `measures` compares.

    Args:
        task: the model; inside `answers_from` it is an artifact.
        recipe: says the options.
        examples: as `kzoo.zoo.examples` reads them.

    Returns:
        A translation, a class, a list of labels, a number or a cosine each; of a
        language model float64 (N, 2), nats and tokens of each text or window; of a
        masked one what `MaskedLM.guesses` gives.
    """
    options = dict(recipe.evaluation.options)
    x, y = inputs_and_targets(recipe, examples)
    if recipe.task == "seq2seq_lm":
        return task.generate(x, **options)
    if recipe.task == "causal_lm" and recipe.data.is_running:
        return _running_nats(task, recipe, x[0], **options)
    if recipe.task == "causal_lm":
        tokens = [len(row) - 1 for row in task.encode_examples(x)["token_ids"]]
        return np.stack([task.energy(x, **options), tokens], axis=1).astype("float64")
    if recipe.task == "masked_lm":
        if recipe.data.is_running:
            x = stretches(task, x, recipe.training.length)
        return task.guesses(x, **options)
    if recipe.task == "text_classifier":
        return task.classify(x, **options)
    if recipe.task == "token_classifier":
        return task.tag(x, **options)
    if recipe.task == "sentence_embedder":
        first, second = (
            task.embed(list(side), **options) for side in zip(*x, strict=True)
        )
        lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
        return (np.sum(first * second, axis=1) / np.maximum(lengths, 1e-12)).tolist()
    # A text_regressor or a pair_scorer: a recipe's task has measures.
    predicted = task.predict(x, **{"verbose": 0, **options})
    return predicted.reshape(len(x)).tolist()


def _running_nats(task, recipe, text, stride=None, batch_size=32):
    """-log p of running text in windows that overlap.

    A window has the start token and `[training] length` others, as in training, and is
    moved on by `stride`; those that it has beyond the one before are counted. So all
    tokens are, each once, and each but the first has at least `length - stride` before
    it.

    Returns:
        float64 (N, 2): nats, and tokens counted, of every window.
    """
    length = recipe.training.length
    stride = stride or max(1, length // 2)
    ids = task.tokenizer.encode([text])[0]
    pad, start = task.config.pad_token_id, task.config.start_token_id
    ends = [min(length, len(ids))]
    while ends[-1] < len(ids):
        ends.append(min(ends[-1] + stride, len(ids)))
    counted = np.diff([0, *ends])
    rows = [[start, *ids[max(0, end - length) : end]] for end in ends]
    rows = padded_batch(rows, pad_id=pad)
    targets = rows[:, 1:].copy()
    for row, end, count in zip(targets, ends, counted, strict=True):
        row[: min(length, end) - count] = pad  # counted by windows before
    nats = task.energy({"token_ids": rows[:, :-1]}, targets, batch_size=batch_size)
    return np.stack([nats, counted], axis=1).astype("float64")


def machine():
    """The machine in words: its processor, how many cores, and accelerators."""
    processor = platform.processor() or platform.machine()
    described = Path("/proc/cpuinfo")
    if described.is_file():
        lines = described.read_text(encoding="utf-8", errors="replace").split("\n")
        named = [line.split(":")[1].strip() for line in lines if "model name" in line]
        processor = next(iter(named), processor)
    devices = [d for d in keras.distribution.list_devices() if not d.startswith("cpu")]
    return ", ".join([processor, f"{os.cpu_count()} cores", *devices])


def versions():
    """Name to version of what computes a score."""
    names = ("keras", keras.backend.backend(), "sacrebleu", "sacremoses", "seqeval")
    found = {}
    for name in ("kzoo", *names, "scikit-learn", "scipy"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
