"""The loss that `fit` and `evaluate` report."""

import threading

import keras
from keras import ops


class WeightedLoss(keras.metrics.Mean):
    """Mean loss of the targets of an epoch, those left out that the loss leaves out.

    Keras adds each batch's mean loss to its tracker with the number of rows as weight,
    and rows differ in tokens; a row that only fills a batch has none. Here a batch's
    loss has the weight of its targets, which `compute_loss` says just before.

    Args:
        weights: function (y_true, sample_weight) to the weight of each target.
        name: of the metric.
    """

    def __init__(self, weights, name="loss"):
        super().__init__(name=name, dtype="float32")
        self._weights_of = weights
        self._batch_weights = {}  # of each thread: TensorFlow has one a replica

    def expect(self, y_true, sample_weight=None):
        """Keeps the weight of the batch whose loss is added next.

        Args:
            y_true: the targets.
            sample_weight: as the loss takes it.
        """
        weights = self._weights_of(y_true, sample_weight)
        self._batch_weights[threading.get_ident()] = ops.sum(weights)

    def update_state(self, values, sample_weight=None):
        """Adds a batch's mean loss, a scalar; Keras's weight is for want of its own."""
        # Taken out: a tensor of one step, which a trace may be.
        weight = self._batch_weights.pop(threading.get_ident(), sample_weight)
        return super().update_state(values, weight)
