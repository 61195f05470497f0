"""The measures of answers, with confidence intervals.

An interval is that of a percentile bootstrap over examples (Efron and Tibshirani, 1993,
chapter 13): sentences, or windows of running text, are drawn with replacement, so many
as there are. BLEU and chrF have sacrebleu's own (Koehn, 2004,
https://aclanthology.org/W04-3250), with its seed.
"""

import importlib.metadata
import math

import numpy as np

from kzoo.training.scores import metrics_library, perplexity
from kzoo.zoo.examples import inputs_and_targets

CONFIDENCE, SAMPLES, SEED = 0.95, 1000, 12345  # as sacrebleu has them
_NUMBERS_AT_A_TIME = 2**22


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


def classes_of(recipe, examples):
    """The class of each example, by its name where the recipe names them."""
    _, y = inputs_and_targets(recipe, examples)
    labels = recipe.task_options.get("labels")
    return [labels[i] if labels and isinstance(i, int) else i for i in y]


def _classification(recipe, examples, classes):
    """Accuracy, and the mean F1 of the classes that occur."""
    y = classes_of(recipe, examples)
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
