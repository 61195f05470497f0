"""What targets and their weights are beside logits: shapes are checked, never guessed.

TensorFlow may know axes, or how many there are, only while a step runs.
"""

import keras
import numpy as np
from keras import ops


def are_distributions(y_true, logits):
    """Whether targets are floats (..., V), V at least 2, as logits are."""
    if not hasattr(y_true, "dtype") or rank_of(y_true) != len(logits.shape):
        return False
    is_float = "float" in keras.backend.standardize_dtype(y_true.dtype)
    return is_float and y_true.shape[-1] == logits.shape[-1] not in (1, None)


def target_ids(y_true, logits, ignore_id):
    """Targets with the axes of the logits but the last: int (...), float (..., V).

    Of a distribution it is the most probable id, or what stands in all its places
    where that is negative, as `ignore_id` has to be.

    Raises:
        ValueError: one-hot targets that are no floats, or a shape that does not fit; or
            distributions where `ignore_id` is one of their ids.
    """
    y_true = ops.convert_to_tensor(y_true) if isinstance(y_true, list) else y_true
    ids = y_true
    if are_distributions(y_true, logits):
        if ignore_id >= 0:
            raise ValueError(
                "Distributions as targets need a negative ignore_id, which is none of "
                f"their ids. Received: ignore_id={ignore_id}."
            )
        first = ops.cast(y_true[..., 0], "int32")
        best = ops.cast(ops.argmax(y_true, axis=-1), "int32")
        ids = ops.where(y_true[..., 0] < 0, first, best)
    rank, axes = rank_of(ids), len(logits.shape) - 1
    in_column = rank == axes + 1 and ids.shape[-1] in (1, None)
    if rank is not None and not (
        (rank == axes or in_column)
        and _may_equal(ids.shape[:axes], logits.shape[:axes])
    ):
        raise ValueError(
            "Targets are ids, one for each row of logits, or distributions, floats "
            "with one for each logit. "
            f"Received: targets of shape {tuple(y_true.shape)} for logits of shape "
            f"{tuple(logits.shape)}."
        )
    return shaped(ids, ops.shape(logits)[:-1], "targets_are_ids_of_rows_of_logits")


def token_weights(y_true, ignore_id, sample_weight=None):
    """The weight of each token: `sample_weight` or 1, and 0 at `ignore_id`.

    Args:
        y_true: int (B, T).
        ignore_id: tokens of this id get 0.
        sample_weight: float (B,), (B, 1) or (B, T), or `None`.

    Returns:
        float32 (B, T).

    Raises:
        ValueError: `sample_weight` has another shape.
    """
    if rank_of(y_true) is None:  # TensorFlow, once a model was given (B,) and (B, 1)
        y_true = ops.reshape(y_true, (-1,))
    # Through an integer dtype: `fit` may hand over ids as floats.
    weights = ops.cast(ops.cast(y_true, "int32") != ignore_id, "float32")
    if sample_weight is not None:
        rule = "sample_weight_has_the_shape_of_targets"
        sample_weight = ops.convert_to_tensor(sample_weight, dtype="float32")
        if getattr(sample_weight.shape, "rank", 0) is None:
            # TensorFlow, once a model was given both weights of rows and of tokens.
            sample_weight = shaped(sample_weight, (ops.shape(weights)[0], -1), rule)
        given, axes = tuple(sample_weight.shape), len(weights.shape)
        if len(given) > axes and not {*given[axes:]} - {1, None}:  # (B, 1) for (B,)
            shape = ops.shape(sample_weight)[:axes]
            sample_weight = shaped(sample_weight, shape, rule)
        while len(sample_weight.shape) < len(weights.shape):
            sample_weight = ops.expand_dims(sample_weight, -1)
        if not _spreads(sample_weight.shape, weights.shape):
            raise ValueError(
                "sample_weight is of the targets' shape, with fewer axes or some of 1. "
                f"Received: shape {given} for targets of shape {tuple(weights.shape)}."
            )
        if keras.backend.backend() == "tensorflow":  # which may learn shapes late
            import tensorflow as tf

            shape = ops.shape(weights)
            sample_weight = tf.broadcast_to(sample_weight, shape, name=rule)
        weights = weights * sample_weight
    return weights


def of_rows(y_true, y_pred):
    """Targets (B,), as they are or of (B, 1), one for each row of embeddings."""
    shape, rows = y_true.shape, y_pred.shape[0]
    if rank_of(y_true) is not None and not (
        len(shape) in (1, 2) and _may_equal(shape, (rows, 1)[: len(shape)])
    ):
        raise ValueError(
            "Targets are numbers, one for each row of embeddings. "
            f"Received: shape {tuple(shape)} for embeddings of shape "
            f"{tuple(y_pred.shape)}."
        )
    return shaped(y_true, ops.shape(y_pred)[:1], "targets_are_one_for_each_row")


def shaped(x, shape, rule):
    """`x` in this shape, which it has but for axes of 1 at the end.

    TensorFlow compares what it does not know while it traces when it runs, with XLA,
    too, and names the operation after the rule: others would say what they were doing,
    or broadcast. Of a tensor whose rank it does not know the size is compared.
    """
    rank = rank_of(x)
    if keras.backend.backend() != "tensorflow":
        return x if rank == len(shape) else ops.reshape(x, shape)
    import tensorflow as tf

    if rank is not None:
        axes = [*shape[:rank], *[1] * (rank - len(shape))]
        if not all(isinstance(axis, int) for axis in (*axes, *x.shape)):
            x = tf.cast(x, "int32") if x.dtype == "bool" else x
            x = tf.add_n([x, tf.zeros(axes, x.dtype)], name=rule)
    return x if rank == len(shape) else tf.reshape(x, shape, name=rule)


def rank_of(x):
    """How many axes there are; `None` where TensorFlow does not know."""
    shape = x.shape if hasattr(x, "shape") else np.shape(x)
    return shape.rank if hasattr(shape, "rank") else len(shape)


def _may_equal(shape, other):
    """Whether two shapes of one length are the same, as far as they are known."""
    return all(a == b or None in (a, b) for a, b in zip(shape, other, strict=True))


def _spreads(shape, other):
    """Whether a shape is another one, but for axes of 1, as far as they are known."""
    return len(shape) == len(other) and all(
        a in (1, b) or None in (a, b) for a, b in zip(shape, other, strict=True)
    )
