"""The field's metrics of predictions, from the libraries that define them.

`fit` shows what can be computed a batch at a time; these need all predictions.
"""

import importlib

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
    stats = metrics_library("scipy.stats")
    y_true, y_pred = np.asarray(y_true, "float64"), np.asarray(y_pred, "float64")
    return {
        "pearson": float(stats.pearsonr(y_true, y_pred).statistic),
        "spearman": float(stats.spearmanr(y_true, y_pred).statistic),
        "mean_squared_error": float(np.mean((y_true - y_pred) ** 2)),
    }
