"""The loss that `fit` and `evaluate` report."""

import keras
from keras import ops

from kzoo.training.losses import token_weights


class TokenWeightedLoss(keras.metrics.Mean):
    """Mean loss of the tokens of an epoch, padding left out.

    Keras adds each batch's mean loss to its tracker with the number of rows as weight,
    and rows differ in tokens; a row that only fills a batch has none. Here a batch's
    loss waits until `add_batch` adds it with its tokens' weights.

    Args:
        ignore_id: the target id that the loss leaves out.
        name: of the metric.
    """

    def __init__(self, ignore_id=0, name="loss"):
        super().__init__(name=name, dtype="float32")
        self.ignore_id = ignore_id
        self._batch_loss = None

    def update_state(self, values, sample_weight=None):
        """Keeps the batch's mean loss, a scalar; Keras's weight is dropped."""
        self._batch_loss = values

    def add_batch(self, y_true, sample_weight=None):
        """Adds the kept loss.

        Args:
            y_true: int (B, T).
            sample_weight: float (B,), (B, 1) or (B, T), or `None`.
        """
        if self._batch_loss is None:  # Keras tries `compute_metrics` before any step
            return
        weights = token_weights(y_true, self.ignore_id, sample_weight)
        super().update_state(self._batch_loss, ops.sum(weights))
        self._batch_loss = None  # a tensor of one step, which a trace may be
