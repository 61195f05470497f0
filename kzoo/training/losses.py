"""Losses over what is there: padding and rows that only fill a batch are left out."""

import math

import keras
import numpy as np
from keras import ops

from kzoo.arguments import arguments_of
from kzoo.ops import tensorflow
from kzoo.ops.nn import unit_length
from kzoo.training.targets import (
    are_distributions,
    of_rows,
    rank_of,
    shaped,
    target_ids,
    token_weights,
)


class MaskedLoss(keras.losses.Loss):
    """A weighted mean; a subclass says what each target weighs.

    It gives `weights(y_true, sample_weight)` and `call(y_true, y_pred)`, of one shape.
    """

    def __init__(self, name):
        # float32 whatever the policy: ids go through this dtype, and bfloat16 holds
        # integers up to 256 only.
        super().__init__(
            name=name, reduction="mean_with_sample_weight", dtype="float32"
        )

    def __call__(self, y_true, y_pred, sample_weight=None):
        """The mean loss; see the class."""
        weights = self.weights(y_true, sample_weight)
        return super().__call__(y_true, y_pred, sample_weight=weights)


class KeepsArguments:
    """Mixin of what keeps the arguments of `__init__` as attributes of their names."""

    def get_config(self):
        """The arguments of `__init__`."""
        found = arguments_of(self).items()
        return {n: list(v) if isinstance(v, tuple) else v for n, v in found}


@keras.saving.register_keras_serializable(package="kzoo")
class MaskedCrossEntropy(KeepsArguments, MaskedLoss):
    """Mean cross-entropy of the targets, padding left out.

    With label smoothing e the target distribution is 1 - e on the target plus e / V
    on every token (Vaswani et al., 2017, section 5.4; Szegedy et al., 2016,
    https://arxiv.org/abs/1512.00567, section 7).

    With consistency a every example is in the batch twice, in rows i and B / 2 + i,
    which dropout makes two; a / 4 times the sum of both divergences of their
    distributions is added (R-Drop: Liang et al., 2021,
    https://arxiv.org/abs/2106.14448, equation 4, halved, as this is a mean).

    Called with `y_true` int (B, T), `y_pred` logits (B, T, V) of any float dtype, and
    `sample_weight`, float (B,), (B, 1) or (B, T), or `None`; or with targets (B,) and
    logits (B, C) of classes; or with distributions as targets, float like the logits,
    as a teacher gives them (Hinton et al., 2015, https://arxiv.org/abs/1503.02531): in
    a row that is left out all are `ignore_id`, which has to be negative then. The
    result is a float32 scalar in nats a target: sum(weight * loss) / sum(weight) over
    targets whose id is not `ignore_id`, where the weight is `sample_weight` or 1. It is
    0 when none counts, and NaN when a counted id is outside [0, V), or with consistency
    is not that of the other row.

    Args:
        label_smoothing: e, in [0, 1).
        ignore_id: the target id to leave out, usually the padding's.
        name: of the loss.
        consistency: a, 0 or more.

    Raises:
        ValueError: `label_smoothing` is not in [0, 1), or `consistency` is negative.
    """

    def __init__(
        self,
        label_smoothing=0.0,
        ignore_id=0,
        name="masked_cross_entropy",
        consistency=0.0,
    ):
        super().__init__(name)
        if not 0.0 <= consistency < float("inf"):
            raise ValueError(
                "MaskedCrossEntropy.consistency must be finite, and 0 or more. "
                f"Received: {consistency!r}."
            )
        if not 0.0 <= label_smoothing < 1.0:
            raise ValueError(
                "MaskedCrossEntropy.label_smoothing must be in [0, 1). "
                f"Received: {label_smoothing!r}."
            )
        self.label_smoothing = label_smoothing
        self.ignore_id = ignore_id
        self.consistency = consistency

    def __call__(self, y_true, y_pred, sample_weight=None):
        """The mean loss; see the class."""
        if isinstance(y_true, (list, tuple)):
            y_true = ops.convert_to_tensor(np.asarray(y_true))
        ids = target_ids(y_true, y_pred, self.ignore_id)
        if not are_distributions(y_true, y_pred):
            return super().__call__(ids, y_pred, sample_weight)
        weights = self.weights(ids, sample_weight)
        return super(MaskedLoss, self).__call__(y_true, y_pred, sample_weight=weights)

    def weights(self, y_true, sample_weight=None):
        """The weight of each target; see `token_weights`."""
        return token_weights(y_true, self.ignore_id, sample_weight)

    def call(self, y_true, y_pred):
        """The loss of each token, float32 (B, T); 0 where the id is `ignore_id`."""
        smoothing = self.label_smoothing
        ids, spread = y_true, are_distributions(y_true, y_pred)
        if spread:
            ids = target_ids(y_true, y_pred, self.ignore_id)
            rule = "targets_have_the_shape_of_logits"
            y_true = shaped(y_true, ops.shape(y_pred), rule)
            logits = ops.log_softmax(ops.cast(y_pred, "float32"), axis=-1)
            q = ops.cast(y_true, "float32")
            each = ops.where(q == 0, 0.0, q * logits)  # no 0 times infinity
            loss = (smoothing - 1) * ops.sum(each, axis=-1)
            if smoothing:
                loss -= smoothing * ops.mean(logits, axis=-1)
            loss = ops.where(ids == self.ignore_id, 0.0, loss)
        else:
            loss = token_cross_entropy(y_true, y_pred, self.ignore_id, smoothing)
        if not self.consistency:
            return loss
        if y_true.shape[0] is not None and y_true.shape[0] % 2:
            raise ValueError(
                "consistency needs each example twice, in both halves of a batch. "
                f"Received: {y_true.shape[0]} rows."
            )
        first, second = ops.split(y_true, 2, axis=0)
        same = ops.all(first == second, axis=-1) if spread else first == second
        same = ops.tile(same, (2,) + (1,) * (len(ids.shape) - 1))
        added = ops.where(same, _divergences(y_pred), float("nan"))
        added = ops.where(ids == self.ignore_id, 0.0, added)
        return loss + self.consistency / 4 * added


def _divergences(logits):
    """How far the two halves of a batch are from one another: (B, ..., V) to (B, ...).

    Both Kullback-Leibler divergences summed, in nats: sum((p - q) * (log p - log q)).
    """
    logits = ops.cast(logits, "float32")
    p, q = ops.split(ops.log_softmax(logits, axis=-1), 2, axis=0)
    found = ops.sum((ops.exp(p) - ops.exp(q)) * (p - q), axis=-1)
    return ops.concatenate([found, found], axis=0)


def token_cross_entropy(y_true, logits, ignore_id, label_smoothing=0.0):
    """The cross-entropy of each token, in nats.

    Args:
        y_true: int (B, T), or with any axes (...).
        logits: float (B, T, V), (..., V).
        ignore_id: tokens of this id get 0.
        label_smoothing: see `MaskedCrossEntropy`.

    Returns:
        float32 (B, T), (...).
    """
    y_true = ops.cast(y_true, "int32")
    logits = ops.cast(logits, "float32")
    in_range = ops.logical_and(y_true >= 0, y_true < ops.shape(logits)[-1])
    compute = _cross_entropy
    if keras.backend.backend() == "tensorflow":
        compute = tensorflow.cross_entropy
    y = ops.where(in_range, y_true, 0)
    loss = compute(y, logits, label_smoothing=float(label_smoothing))
    loss = ops.where(in_range, loss, float("nan"))
    return ops.where(y_true == ignore_id, 0.0, loss)


def _cross_entropy(y_true, logits, label_smoothing):
    # A comparison under a sum, instead of a gather: XLA fuses it into one pass over
    # the logits with no (B, T, V) array of its own, and the gradient needs no scatter.
    is_target = ops.arange(logits.shape[-1], dtype="int32") == y_true[..., None]
    target = ops.sum(ops.where(is_target, logits, 0.0), axis=-1)
    loss = ops.logsumexp(logits, axis=-1) - target
    if label_smoothing:
        # logsumexp - (1 - e) * target - e * mean, regrouped.
        loss = loss + label_smoothing * (target - ops.mean(logits, axis=-1))
    return loss


class _NumberLoss(KeepsArguments, MaskedLoss):
    """Over targets that are numbers; NaN is left out."""

    def weights(self, y_true, sample_weight=None):
        """The weight of each target: `sample_weight` or 1, and 0 at NaN."""
        missing = ops.cast(ops.isnan(ops.cast(y_true, "float32")), "int32")
        return token_weights(missing, 1, sample_weight)


@keras.saving.register_keras_serializable(package="kzoo")
class MaskedSquaredError(_NumberLoss):
    """Mean squared error of the targets that are numbers; NaN is left out.

    Called with `y_true` float (...), `y_pred` float (...) or (..., 1), and
    `sample_weight` of the first axes, or `None`. The result is a float32 scalar in
    squared units of the target.

    Args:
        name: of the loss.
    """

    def __init__(self, name="masked_squared_error"):
        super().__init__(name)

    def call(self, y_true, y_pred):
        """The squared error of each target, float32; 0 at NaN."""
        y_true, y_pred = _numbers(y_true, y_pred)
        error = y_pred - y_true
        return ops.square(ops.where(ops.isnan(y_true), 0.0, error))


@keras.saving.register_keras_serializable(package="kzoo")
class MaskedBinaryCrossEntropy(_NumberLoss):
    """Mean cross-entropy of a probability and its logit; NaN is left out.

    Called with `y_true` float (...) in [0, 1], `y_pred` logits (...) or (..., 1), and
    `sample_weight` of the first axes, or `None`. The result is a float32 scalar in
    nats a target, and NaN when a target is outside [0, 1].

    Args:
        name: of the loss.
    """

    def __init__(self, name="masked_binary_cross_entropy"):
        super().__init__(name)

    def call(self, y_true, y_pred):
        """The loss of each target, float32; 0 at NaN."""
        y_true, logits = _numbers(y_true, y_pred)
        fits = _within(y_true, (0.0, 1.0))
        # Before the product, whose gradient is the target.
        loss = ops.softplus(logits) - ops.where(fits, y_true, 0.0) * logits
        loss = ops.where(fits, loss, float("nan"))
        return ops.where(ops.isnan(y_true), 0.0, loss)


@keras.saving.register_keras_serializable(package="kzoo")
class CosineSimilarityLoss(_NumberLoss):
    """Mean squared error of the cosine of two embeddings and what it should be.

    Paper: Reimers and Gurevych, 2019, https://arxiv.org/abs/1908.10084, section 3
    (regression objective).

    Called with `y_true` float (B,), scores; `y_pred` float (B, 2, D), the embeddings
    of two texts, of any length; and `sample_weight` (B,) or (B, 1), or `None`. The
    result is a float32 scalar. A NaN score is left out; the result is NaN when
    another is outside `score_range`.

    Args:
        score_range: the lowest and the highest score, such as `(0, 5)` in the STS
            tasks. They become
        cosine_range: these cosines, and scores between them those between. With
            `score_range=(-1, 1)` and `cosine_range=(-1, 1)` scores are cosines.
        name: of the loss.

    Raises:
        ValueError: a range whose second number is not the larger, or cosines outside
            [-1, 1].
    """

    def __init__(
        self,
        score_range=(0.0, 1.0),
        cosine_range=(0.0, 1.0),
        name="cosine_similarity_loss",
    ):
        super().__init__(name)
        self.score_range, self.cosine_range = tuple(score_range), tuple(cosine_range)
        for option, ends in (
            ("score_range", self.score_range),
            ("cosine_range", self.cosine_range),
        ):
            if len(ends) != 2 or not -math.inf < ends[0] < ends[1] < math.inf:
                raise ValueError(
                    f"CosineSimilarityLoss.{option} must be a lower and a higher "
                    f"finite number. Received: {ends}."
                )
        if not -1 <= self.cosine_range[0] < self.cosine_range[1] <= 1:
            raise ValueError(
                "CosineSimilarityLoss.cosine_range must lie in [-1, 1]. "
                f"Received: {self.cosine_range}."
            )

    def call(self, y_true, y_pred):
        """The squared error of each pair, float32 (B,); 0 at NaN."""
        _check_texts(y_pred, {2}, "CosineSimilarityLoss learns from pairs")
        (lowest, highest), (low, high) = self.score_range, self.cosine_range
        y_true = of_rows(ops.cast(y_true, "float32"), y_pred)
        wanted = low + (y_true - lowest) * ((high - low) / (highest - lowest))
        vectors = unit_length(ops.cast(y_pred, "float32"))
        cosine = ops.sum(vectors[:, 0] * vectors[:, 1], axis=-1)
        error = ops.where(
            _within(y_true, self.score_range), cosine - wanted, float("nan")
        )
        return ops.square(ops.where(ops.isnan(y_true), 0.0, error))


@keras.saving.register_keras_serializable(package="kzoo")
class ContrastiveLoss(KeepsArguments, MaskedLoss):
    """Cross-entropy of finding a text's partner among those of the whole batch.

    Row i has an anchor, its positive, and optionally hard negatives. The anchor's
    scores are its cosines with every positive and hard negative of the batch, over
    the temperature; the right one is positive i.

    Papers: Henderson et al., 2017, https://arxiv.org/abs/1705.00652, section 4.4 (the
    negatives are the other rows'); van den Oord et al., 2018,
    https://arxiv.org/abs/1807.03748, equation 4 (InfoNCE).

    Called with `y_true` (B,), 0 or `False` in rows that only fill the batch: they are
    neither anchors nor negatives; `y_pred` float (B, P, D), embeddings of any length
    of P texts; and `sample_weight` (B,) or (B, 1), or `None`, which weighs anchors and
    leaves negatives as they are. The result is a float32 scalar in nats an anchor;
    log(B * (P - 1)), of pairs log(B), where nothing is told apart.

    Two equal texts in a batch are each other's negatives: keep duplicates out of what
    is trained on, as far as that matters.

    Args:
        temperature: cosines are divided by it.
        symmetric: the mean with the loss of finding each positive's anchor among all
            anchors (Radford et al., 2021, https://arxiv.org/abs/2103.00020, figure 3).
        name: of the loss.

    Raises:
        ValueError: `temperature` is not positive.
    """

    def __init__(self, temperature=0.05, symmetric=False, name="contrastive_loss"):
        super().__init__(name)
        if not temperature > 0:
            raise ValueError(
                "ContrastiveLoss.temperature must be positive. "
                f"Received: {temperature!r}."
            )
        self.temperature, self.symmetric = temperature, symmetric

    def weights(self, y_true, sample_weight=None):
        """The weight of each anchor: `sample_weight` or 1, and 0 in a filling row."""
        real = ops.cast(ops.cast(y_true, "float32") != 0, "int32")
        return token_weights(real, 0, sample_weight)

    def call(self, y_true, y_pred):
        """The loss of each anchor, float32 (B,); 0 in a filling row."""
        _check_texts(y_pred, None, "ContrastiveLoss learns from pairs or triples")
        counts = of_rows(ops.cast(y_true, "float32"), y_pred) != 0
        vectors = unit_length(ops.cast(y_pred, "float32"))
        anchors, others = vectors[:, 0], vectors[:, 1:]
        right = ops.sum(anchors * others[:, 0], axis=-1) / self.temperature

        def missed(queries, keys):
            """The loss of (B, D) among (B, P, D), those of filling rows left out."""
            scores = ops.einsum("bd,cpd->bcp", queries, keys) / self.temperature
            scores = ops.where(counts[None, :, None], scores, -1e9)
            return ops.logsumexp(scores, axis=(1, 2)) - right

        loss = missed(anchors, others)
        if self.symmetric:
            loss = (loss + missed(others[:, 0], anchors[:, None])) / 2
        return ops.where(counts, loss, 0.0)


@keras.saving.register_keras_serializable(package="kzoo")
class SimilarityLoss(KeepsArguments, MaskedLoss):
    """`CosineSimilarityLoss` of scores, `ContrastiveLoss` of pairs without.

    Called as these two; bool `y_true` only says which rows are pairs, other numbers
    are scores.

    Args:
        name: of the loss.
    """

    def __init__(self, name="similarity_loss"):
        super().__init__(name)

    def __call__(self, y_true, y_pred, sample_weight=None):
        """The mean loss; see the class."""
        return self._chosen(y_true)(y_true, y_pred, sample_weight)

    def weights(self, y_true, sample_weight=None):
        """The weight of each row."""
        return self._chosen(y_true).weights(y_true, sample_weight)

    def _chosen(self, y_true):
        dtype = keras.backend.standardize_dtype(y_true.dtype)
        return ContrastiveLoss() if dtype == "bool" else CosineSimilarityLoss()


def _numbers(y_true, y_pred):
    """Both in float32 and of the shape of `y_true`; flat where its rank is unknown."""
    y_true, y_pred = ops.cast(y_true, "float32"), ops.cast(y_pred, "float32")
    rule = "predictions_have_the_shape_of_targets"
    if rank_of(y_true) is None:  # TensorFlow, once a model was given (B,) and (B, 1)
        y_pred = ops.reshape(y_pred, (-1,))  # as its weights are
        return shaped(y_true, ops.shape(y_pred), rule), y_pred
    if rank_of(y_pred) is not None:
        shapes = sorted((tuple(y_true.shape), tuple(y_pred.shape)), key=len)
        short, long = shapes[0] + (1,) * (len(shapes[1]) - len(shapes[0])), shapes[1]
        if any(None not in pair and pair[0] != pair[1] for pair in zip(short, long)):
            raise ValueError(
                "Predictions must have the shape of their targets, or one axis of 1 "
                f"more. Received: {tuple(y_pred.shape)} for {tuple(y_true.shape)}."
            )
    return y_true, shaped(y_pred, ops.shape(y_true), rule)


def _within(values, ends):
    return ops.logical_and(values >= ends[0], values <= ends[1])


def _check_texts(y_pred, allowed, rule):
    """Refuses embeddings that are not (B, P, D) with an allowed number P, 2 or more."""
    shape = tuple(y_pred.shape)
    texts = shape[1] if len(shape) == 3 else 1
    if texts is not None and not (texts in allowed if allowed else texts > 1):
        raise ValueError(
            f"{rule}, so y_pred must be (batch, texts, hidden_dim). "
            f"Received: a shape of {shape}."
        )
