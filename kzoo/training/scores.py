"""The field's metrics of predictions, from the libraries that define them.

`fit` shows what can be computed a batch at a time; these need all predictions.
"""

import importlib
import math
import re
import string
from collections import Counter

import numpy as np


def metrics_library(name):
    """A library of the extra `metrics`.

    Raises:
        ImportError: it is not installed; the extra is named.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"This score is computed by {name.split('.')[0]}, which is not installed. "
            'Run: pip install "kzoo[metrics]"'
        ) from error


def perplexity(nats):
    """exp of a mean of -log p; a number of JSON, however badly a model has diverged."""
    return math.exp(min(nats, 700))


def classification_scores(y_true, y_pred):
    """Accuracy, macro-averaged F1 and Matthews correlation (Matthews, 1975).

    Args:
        y_true: int (B,).
        y_pred: int (B,).

    Returns:
        dict of `accuracy`, `macro_f1`, `matthews`, floats.
    """
    metrics = metrics_library("sklearn.metrics")
    return {
        "accuracy": float(metrics.accuracy_score(y_true, y_pred)),
        "macro_f1": float(metrics.f1_score(y_true, y_pred, average="macro")),
        "matthews": float(metrics.matthews_corrcoef(y_true, y_pred)),
    }


def regression_scores(y_true, y_pred):
    """Pearson and Spearman correlation, and the mean squared error.

    Args:
        y_true: float (B,), B at least 2.
        y_pred: float (B,).

    Returns:
        dict of `pearson`, `spearman`, `mean_squared_error`, floats; a correlation is
        NaN where one side is constant.
    """
    error = np.asarray(y_true, "float64") - np.asarray(y_pred, "float64")
    return {
        **correlation_scores(y_true, y_pred),
        "mean_squared_error": float(np.mean(error**2)),
    }


def correlation_scores(y_true, y_pred):
    """Pearson and Spearman correlation.

    Args:
        y_true: float (B,), B at least 2.
        y_pred: float (B,).

    Returns:
        dict of `pearson`, `spearman`, floats; NaN where one side is constant.
    """
    stats = metrics_library("scipy.stats")
    y_true, y_pred = np.asarray(y_true, "float64"), np.asarray(y_pred, "float64")
    if min(np.ptp(y_true), np.ptp(y_pred)) == 0.0:  # of which scipy warns
        return {"pearson": float("nan"), "spearman": float("nan")}
    return {
        "pearson": float(stats.pearsonr(y_true, y_pred).statistic),
        "spearman": float(stats.spearmanr(y_true, y_pred).statistic),
    }


def binary_scores(y_true, probabilities):
    """Accuracy at one half, average precision, and the area under the ROC curve.

    Args:
        y_true: (B,) of 0 and 1.
        probabilities: float (B,), of 1.

    Returns:
        dict of `accuracy`, `average_precision`, `roc_auc`, floats; the latter two,
        which compare the 1 with the 0, are NaN without one of each.
    """
    metrics = metrics_library("sklearn.metrics")
    y_true = np.asarray(y_true).astype("int64")
    predicted = np.asarray(probabilities) >= 0.5
    ranking = {
        "average_precision": metrics.average_precision_score,
        "roc_auc": metrics.roc_auc_score,
    }
    both = len(set(y_true.tolist())) == 2
    return {"accuracy": float(metrics.accuracy_score(y_true, predicted))} | {
        name: float(score(y_true, probabilities)) if both else math.nan
        for name, score in ranking.items()
    }


def retrieval_scores(found, relevant, top_k=(1, 5, 10)):
    """Recall and mean reciprocal rank of what a search gave.

    Args:
        found: for each query the indices it was given, best first.
        relevant: for each query those that it should be given, at least one.
        top_k: where recall is looked at; the reciprocal rank at the last of them.

    Returns:
        dict of `recall@k` for each k, the mean share of the relevant ones among the
        first k; and `mrr@k` for the last k, the mean of 1 / rank of the first relevant
        one, 0 where it is not among the k.
    """
    found = [list(dict.fromkeys(ids)) for ids in found]  # one given twice counts once
    hits = [
        np.isin(ids, list(right)) for ids, right in zip(found, relevant, strict=True)
    ]
    scores = {
        f"recall@{k}": float(
            np.mean(
                [hit[:k].sum() / len(set(right)) for hit, right in zip(hits, relevant)]
            )
        )
        for k in top_k
    }
    ranks = [np.flatnonzero(hit[: top_k[-1]]) for hit in hits]
    first = [1.0 / (rank[0] + 1) if len(rank) else 0.0 for rank in ranks]
    return {**scores, f"mrr@{top_k[-1]}": float(np.mean(first))}


def entity_scores(y_true, y_pred):
    """Precision, recall and F1 of entities, as the CoNLL-2003 script counts them.

    An entity is right when its type, its first and its last word are (Tjong Kim Sang
    and De Meulder, 2003, https://aclanthology.org/W03-0419). Computed by seqeval; as
    that script does, it lets an entity begin with "I-", too.

    Args:
        y_true: lists of labels, "O" or with "B-" or "I-" before the type.
        y_pred: as many labels.

    Returns:
        dict of `precision`, `recall`, `f1`, floats; 0 where there is no entity.
    """
    metrics = metrics_library("seqeval.metrics")
    options = dict(average="micro", zero_division=0)
    return {
        "precision": float(metrics.precision_score(y_true, y_pred, **options)),
        "recall": float(metrics.recall_score(y_true, y_pred, **options)),
        "f1": float(metrics.f1_score(y_true, y_pred, **options)),
    }


def answer_scores(references, predictions):
    """Exact match and token F1 of answers, as SQuAD's evaluation defines them.

    Both sides are lower-cased and lose punctuation, the articles "a", "an", "the" and
    surplus white space. F1 is that of the two bags of words, and of several references
    the best counts (Rajpurkar et al., 2016, https://arxiv.org/abs/1606.05250,
    section 6.1). Two answers of which nothing is left are equal, as in the script of
    SQuAD 2.0; the F1 of that of 1.1 is 0 there.

    Args:
        references: a list of texts for each question, at least one.
        predictions: a text for each question.

    Returns:
        dict of `exact_match` and `f1`, means in [0, 1].
    """
    matches, overlaps = [], []
    for texts, prediction in zip(references, predictions, strict=True):
        words = _answer_words(prediction)
        expected = [_answer_words(text) for text in texts]
        matches.append(max(words == each for each in expected))
        overlaps.append(max(_overlap(words, each) for each in expected))
    return {"exact_match": float(np.mean(matches)), "f1": float(np.mean(overlaps))}


def _answer_words(text):
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def _overlap(words, expected):
    """F1 of two bags of words; where one is empty, whether both are."""
    if not words or not expected:
        return float(words == expected)
    common = sum((Counter(words) & Counter(expected)).values())
    return 2.0 * common / (len(words) + len(expected))


def translation_scores(references, translations):
    """BLEU (Papineni et al., 2002) and chrF (Popović, 2015) of a corpus, by sacrebleu.

    Args:
        references: strings, one a translation.
        translations: strings.

    Returns:
        dict of `bleu` and `chrf`, floats in [0, 100], and BLEU's `signature`.
    """
    sacrebleu = metrics_library("sacrebleu")
    bleu = sacrebleu.BLEU()
    return {
        "bleu": float(bleu.corpus_score(translations, [references]).score),
        "chrf": float(sacrebleu.corpus_chrf(translations, [references]).score),
        "signature": str(bleu.get_signature()),
    }
