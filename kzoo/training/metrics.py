"""Token metrics: means over the tokens of an epoch, padding left out.

A batch counts by its tokens, not as one: the mean over an epoch does not depend on
how the tokens were batched.
"""

import keras
from keras import ops
from keras.src.backend import get_keras_mask  # which has no public name

from kzoo.training.losses import KeepsArguments, token_cross_entropy
from kzoo.training.targets import rank_of, target_ids, token_weights


class TokenMean(KeepsArguments, keras.metrics.Mean):
    """Mean over tokens of what `_values` gives for each."""

    def __init__(self, ignore_id=0, name=None):
        # float32 whatever the policy: counts go beyond 256, where bfloat16 ends.
        super().__init__(name=name, dtype="float32")
        self.ignore_id = ignore_id

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Adds a batch.

        Args:
            y_true: int (B, T), or (B,) for classes; of distributions, float like
                `y_pred`, their most probable id counts.
            y_pred: logits, float (B, T, V), or (B, C); what Keras's mask on them leaves
                out does not count, as in Keras's metrics. In `fit` on JAX Keras hands
                metrics no mask: there give `sample_weight` as well.
            sample_weight: float (B,), (B, 1) or (B, T), or `None`.
        """
        y_true = ops.cast(target_ids(y_true, y_pred, self.ignore_id), "int32")
        weights = token_weights(y_true, self.ignore_id, sample_weight)
        mask = get_keras_mask(y_pred)  # Keras's losses read it, too
        if mask is not None and rank_of(mask) == rank_of(weights):
            weights *= ops.cast(mask, weights.dtype)
        values = self._values(y_true, y_pred)
        # Flat, because Mean would average the rows, whose token counts differ.
        super().update_state(ops.reshape(values, (-1,)), ops.reshape(weights, (-1,)))


@keras.saving.register_keras_serializable(package="kzoo")
class TokenAccuracy(TokenMean):
    """The share of target tokens whose logit is the largest, padding left out.

    Updated with `y_true` int (B, T), logits (B, T, V) and an optional `sample_weight`
    (B,), (B, 1) or (B, T). The result is a float32 scalar in [0, 1]; 0 without tokens.

    Args:
        ignore_id: the target id to leave out, usually the padding's.
        name: of the metric.
    """

    def __init__(self, ignore_id=0, name="token_accuracy"):
        super().__init__(ignore_id=ignore_id, name=name)
        self._direction = "up"

    def _values(self, y_true, y_pred):
        return ops.cast(y_true == ops.argmax(y_pred, axis=-1), "float32")


@keras.saving.register_keras_serializable(package="kzoo")
class Perplexity(TokenMean):
    """exp of the mean cross-entropy of the target tokens, padding left out.

    Without label smoothing, whatever the loss has: the number compares between
    trainings. Updated as `TokenAccuracy`. The result is a float32 scalar, at least 1;
    1 without tokens.

    Args:
        ignore_id: the target id to leave out, usually the padding's.
        name: of the metric.
    """

    def __init__(self, ignore_id=0, name="perplexity"):
        super().__init__(ignore_id=ignore_id, name=name)
        self._direction = "down"

    def _values(self, y_true, y_pred):
        return token_cross_entropy(y_true, y_pred, self.ignore_id)

    def result(self):
        """The perplexity so far."""
        return ops.exp(super().result())
