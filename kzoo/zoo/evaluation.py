"""The scores of a model on a recipe's test sets, with confidence intervals.

    examples ► `answers` (the task's own verb) ► `measures` ► scores.json

`answers` asks the task, or an artifact that stands behind its verbs
(`kzoo.exporters.answers.answers_from`); `measures` knows answers and references alone,
so that every form of a model is scored by the same code.

An interval is that of a percentile bootstrap over examples (Efron and Tibshirani, 1993,
chapter 13): sentences, or windows of running text, are drawn with replacement, so many
as there are. BLEU and chrF have sacrebleu's own (Koehn, 2004,
https://aclanthology.org/W04-3250), with its seed.
"""

import collections
import importlib.metadata
import math
import os
import platform
import time
import warnings
from pathlib import Path

import keras
import numpy as np

from kzoo.data import DataError, padded_batch
from kzoo.training.scores import metrics_library, perplexity
from kzoo.zoo.examples import inputs_and_targets, read_test, stretches
from kzoo.zoo.exports import measure_exports
from kzoo.zoo.recipes import OF_THE_TEXT

CONFIDENCE, SAMPLES, SEED = 0.95, 1000, 12345  # as sacrebleu has them
_NUMBERS_AT_A_TIME = 2**22


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
        found = collections.Counter(_classes(recipe, examples))
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


def measures(recipe, examples, found):
    """The task's measures of answers.

    Args:
        recipe: says the task, its labels and languages, and which measures.
        examples: as `kzoo.zoo.examples` reads them.
        found: of `answers`.

    Returns:
        dict from a measure's name to `value`, `low`, `high`, `confidence` and, where
        there is one, `signature`.

    Raises:
        ValueError: the recipe asks for a measure that the task has not.
    """
    scores = _MEASURES[recipe.task](recipe, examples, found)
    wanted = recipe.evaluation.measures or list(scores)
    unknown = sorted(set(wanted) - set(scores))
    if unknown:
        raise ValueError(
            f"[evaluation] measures must be of {list(scores)}. Received: {unknown}."
        )
    return {name: scores[name] for name in wanted}


def bootstrap(count, statistic, *, size=1):
    """The ends of a percentile bootstrap's interval.

    Args:
        count: of examples.
        statistic: function of int (R, count), the examples of R samples, to floats
            (R,) or a dict of such.
        size: numbers that the statistic holds of an example; it bounds the memory.

    Returns:
        (low, high), floats, or a dict of such pairs.
    """
    generator, drawn, left = np.random.default_rng(SEED), [], SAMPLES
    most = max(1, _NUMBERS_AT_A_TIME // (count * size))
    while left:
        rows = min(left, most)
        drawn.append(statistic(generator.integers(0, count, (rows, count))))
        left -= rows
    ends = [50 * (1 - CONFIDENCE), 50 * (1 + CONFIDENCE)]

    def interval(parts):
        values = np.concatenate(parts)
        defined = values[~np.isnan(values)]
        if not len(defined):
            return math.nan, math.nan
        return tuple(np.percentile(defined, ends).tolist())

    if isinstance(drawn[0], dict):
        return {name: interval([each[name] for each in drawn]) for name in drawn[0]}
    return interval(drawn)


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


# Translation.


def _translation(recipe, examples, translations):
    """Detokenised, cased BLEU and chrF; and BLEU as papers on Multi30k have it."""
    sacrebleu = metrics_library("sacrebleu")
    _, references = inputs_and_targets(recipe, examples)
    scores = {}
    for name, metric, texts, before in (
        ("bleu", sacrebleu.BLEU(), (translations, references), ""),
        ("chrf", _chrf(sacrebleu), (translations, references), ""),
        *_papers(sacrebleu, recipe, translations, references),
    ):
        score = metric.corpus_score(texts[0], [texts[1]], n_bootstrap=SAMPLES)
        signature = f"{before}{metric.get_signature()}"
        mean, half = score._mean, score._ci  # public only as text
        scores[name] = _row(score.score, (mean - half, mean + half), signature)
    return scores


def _chrf(sacrebleu):
    class CHRF(sacrebleu.CHRF):
        """As it is, but that a score is a float, also numpy's.

        Of resamples without any match it is Python's, and Python takes no mean of both.
        """

        def _compute_f_score(self, statistics):
            return float(super()._compute_f_score(statistics))

    return CHRF()


def _papers(sacrebleu, recipe, translations, references):
    """Lower-cased, punctuation normalised, tokenised: scripts/task1-tokenize.sh of
    https://github.com/multi30k/dataset; of recipes that name the target's language.
    """  # noqa: D205  one sentence
    if not recipe.data.languages:
        return
    moses = metrics_library("sacremoses")
    language = recipe.data.languages[-1]
    normalizer = moses.MosesPunctNormalizer(lang=language)
    tokenizer = moses.MosesTokenizer(lang=language)

    def tokenized(texts):
        return [
            tokenizer.tokenize(normalizer.normalize(text.lower()), return_str=True)
            for text in texts
        ]

    version = importlib.metadata.version("sacremoses")
    signature = f"moses:{version}|norm:{language}|tok:{language}|"
    metric = sacrebleu.BLEU(lowercase=True, tokenize="none", force=True)
    texts = tokenized(translations), tokenized(references)
    yield "bleu_lowercased", metric, texts, signature


# Classes, labels and numbers.


def _classes(recipe, examples):
    """The class of each example, by its name where the recipe names them."""
    _, y = inputs_and_targets(recipe, examples)
    labels = recipe.task_options.get("labels")
    return [labels[i] if labels and isinstance(i, int) else i for i in y]


def _classification(recipe, examples, classes):
    """Accuracy, and the mean F1 of the classes that occur."""
    y = _classes(recipe, examples)
    kinds = sorted({*y, *classes}, key=str)
    is_expected, is_got = (
        np.array([[each == kind for kind in kinds] for each in column])
        for column in (y, classes)
    )
    # Of each class: hits, answers and references, whose sums give every measure.
    counts = np.stack([is_expected & is_got, is_got, is_expected], axis=1)

    def scores(hits, answers, references):
        sums, occurs = answers + references, answers + references > 0
        f1 = 2 * hits / np.maximum(sums, 1)
        return {
            "accuracy": hits.sum(axis=-1) / references.sum(axis=-1),
            "macro_f1": (f1 * occurs).sum(axis=-1) / occurs.sum(axis=-1),
        }

    return _of_sums(counts, scores)


def _tagging(recipe, examples, found):
    """Accuracy of the words; for BIO labels also precision, recall and F1 of entities,
    as seqeval finds them.
    """  # noqa: D205  one sentence
    expected = [labels for _, labels in examples]
    pairs = list(zip(expected, found, strict=True))
    words = [(sum(map(str.__eq__, y, a)), len(y)) for y, a in pairs]
    scores = _of_sums(words, lambda right, all: {"accuracy": right / all})
    if not all(label[:2] in ("O", "B-", "I-") for row in expected for label in row):
        return scores
    metrics_library("seqeval")
    from seqeval.metrics.sequence_labeling import get_entities

    entities = [[set(get_entities(row)) for row in pair] for pair in pairs]
    counts = [(len(y & a), len(a), len(y)) for y, a in entities]

    def entity_scores(hits, answers, references):
        return {
            "precision": hits / np.maximum(answers, 1),
            "recall": hits / np.maximum(references, 1),
            "f1": 2 * hits / np.maximum(answers + references, 1),
        }

    return {**scores, **_of_sums(counts, entity_scores)}


def _correlation(recipe, examples, predicted):
    """Spearman and Pearson correlation."""
    stats = metrics_library("scipy.stats")
    _, y = inputs_and_targets(recipe, examples)
    columns = np.stack([y, predicted]).astype("float64")

    def pearson(pair):
        """Along the last axis of (2, ...); NaN where one side is constant."""
        first, second = pair - pair.mean(axis=-1, keepdims=True)
        # Not by the sums: the mean of equal numbers may be another one.
        varies = (np.ptp(pair, axis=-1) > 0).all(axis=0)
        squares = (first**2).sum(axis=-1) * (second**2).sum(axis=-1)
        products = (first * second).sum(axis=-1)
        return np.where(varies, products, np.nan) / np.sqrt(
            np.where(varies, squares, 1)
        )

    def scores(chosen):
        pair = columns[:, chosen]
        ranks = stats.rankdata(pair, axis=-1)
        return {"spearman": pearson(ranks), "pearson": pearson(pair)}

    values = scores(np.arange(len(y)))
    ends = bootstrap(len(y), scores, size=8)
    return {name: _row(values[name], ends[name]) for name in values}


# Language models.


def _language(recipe, examples, nats_and_tokens):
    """Nats a token; bits a character and perplexity a word of the original text, which
    do not depend on a tokenizer that keeps all of it. A line's end counts as a
    character and a word, the `<eos>` of Merity et al., 2016,
    https://arxiv.org/abs/1609.07843; other words are what white space separates.
    """  # noqa: D205  one sentence
    running = recipe.data.is_running
    nats, tokens = np.asarray(nats_and_tokens, "float64").T
    characters = sum(map(len, examples)) + (0 if running else len(examples))
    lines = examples[0].count("\n") if running else len(examples)
    words = sum(len(text.split()) for text in examples) + lines
    loss = nats.sum() / tokens.sum()
    ends = bootstrap(
        len(nats),
        lambda chosen: nats[chosen].sum(axis=1) / tokens[chosen].sum(axis=1),
        size=2,
    )

    def row(function):
        return _row(function(loss), tuple(map(function, ends)))

    per_character, per_word = tokens.sum() / characters, tokens.sum() / words
    return {
        "loss": row(float),
        "perplexity": row(perplexity),
        "bits_per_character": row(lambda nats: nats * per_character / math.log(2)),
        "word_perplexity": row(lambda nats: perplexity(nats * per_word)),
    }


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


def _masked(recipe, examples, guesses):
    """Accuracy and perplexity of the tokens that were chosen and masked."""

    def scores(right, nats, count):
        return {
            "accuracy": right / count,
            "perplexity": np.exp(np.minimum(nats / count, 700)),
        }

    return _of_sums(guesses, scores)


def _of_sums(counts, scores):
    """Measures that are functions of sums over examples.

    Args:
        counts: (N, K) or (N, K, C) numbers of each example.
        scores: function of K arrays (...) or (..., C), the sums, to a dict of (...).
    """
    counts = np.asarray(counts, "float64")
    size = counts[0].size

    def of_samples(chosen):
        # How often an example was drawn, times its counts: a product of matrices.
        drawn = np.stack([np.bincount(row, minlength=len(counts)) for row in chosen])
        sums = drawn @ counts.reshape(len(counts), size)
        return scores(*np.moveaxis(sums.reshape(-1, *counts.shape[1:]), 1, 0))

    values = scores(*counts.sum(axis=0))
    ends = bootstrap(len(counts), of_samples, size=2)
    return {name: _row(values[name], ends[name]) for name in values}


def _row(value, ends, signature=None):
    # What is not defined is null in JSON, which has no NaN.
    value, low, high = (
        None if math.isnan(number) else float(number) for number in (value, *ends)
    )
    row = {"value": value, "low": low, "high": high, "confidence": CONFIDENCE}
    return row if signature is None else {**row, "signature": signature}


# Of each task a function to its measures, some of `recipes.MEASURES`.
_MEASURES = {
    "causal_lm": _language,
    "masked_lm": _masked,
    "pair_scorer": _correlation,
    "sentence_embedder": _correlation,
    "seq2seq_lm": _translation,
    "text_classifier": _classification,
    "text_regressor": _correlation,
    "token_classifier": _tagging,
}
