"""The loss that `fit` and `evaluate` report."""

import threading

import keras
from keras import ops


class WeightedLoss(keras.metrics.Mean):
    """Mean loss of the targets of an epoch, those left out that the loss leaves out.

    Keras adds each batch's mean loss to its tracker with the number of rows as weight,
    and rows differ in tokens; a row that only fills a batch has none. Here a batch's
    loss waits until `add_batch` adds it with its targets' weights.

    Args:
        weights: function (y_true, sample_weight) to the weight of each target.
        name: of the metric.
    """

    def __init__(self, weights, name="loss"):
        super().__init__(name=name, dtype="float32")
        self._weights_of = weights
        self._batch_losses = {}  # of each thread: TensorFlow has one a replica

    def update_state(self, values, sample_weight=None):
        """Keeps the batch's mean loss, a scalar; Keras's weight is dropped."""
        self._batch_losses[threading.get_ident()] = values

    def add_batch(self, y_true, sample_weight=None):
        """Adds the kept loss.

        Args:
            y_true: the targets.
            sample_weight: as the loss takes it.
        """
        # Taken out: a tensor of one step, which a trace may be.
        loss = self._batch_losses.pop(threading.get_ident(), None)
        if loss is None:  # Keras tries `compute_metrics` before any step
            return
        weights = self._weights_of(y_true, sample_weight)
        super().update_state(loss, ops.sum(weights))
