"""The loss that `fit` and `evaluate` report."""

import threading

import keras
from keras import ops


class WeightedLoss(keras.metrics.Mean):
    """Mean loss of the targets of an epoch, those left out that the loss leaves out.

    Keras adds each batch's mean loss to its tracker with the number of rows as weight,
    and rows differ in tokens; a row that only fills a batch has none. Keras's steps
    call `compute_metrics` next, where the loss gets the weight of its targets. That of
    a step of one's own, which does not, stays a mean as in Keras.

    Args:
        weights: function (y_true, sample_weight) to the weight of each target.
        name: of the metric.
    """

    def __init__(self, weights, name="loss"):
        super().__init__(name=name, dtype="float32")
        self._weights_of = weights
        self._added = {}  # of each thread: TensorFlow has one a replica

    def update_state(self, values, sample_weight=None):
        """Adds a batch's mean loss, a scalar."""
        weight = ops.cast(1 if sample_weight is None else sample_weight, "float32")
        self._added[threading.get_ident()] = values, weight
        return super().update_state(values, weight)

    def reweigh(self, y_true, sample_weight=None):
        """Gives the loss that was just added the weight of its targets.

        Args:
            y_true: the targets.
            sample_weight: as the loss takes it.
        """
        # Taken out: tensors of one step, which a trace may be.
        added = self._added.pop(threading.get_ident(), None)
        if added is not None:  # Keras tries `compute_metrics` before any step
            loss, weight = added
            right = ops.sum(self._weights_of(y_true, sample_weight))
            super().update_state(loss, right - weight)

    def forget(self):
        """Leaves the loss that was just added as it is."""
        self._added.pop(threading.get_ident(), None)
