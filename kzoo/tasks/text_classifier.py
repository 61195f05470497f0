"""Classes or numbers of a text, or of a pair of texts."""

import math
import numbers
from typing import Literal

import keras
import numpy as np

from kzoo import ops
from kzoo.arguments import check_count
from kzoo.layers.pooling import Pooling, PoolingKind
from kzoo.tasks.encoder_task import PredictionTask, softmax
from kzoo.tasks.forms import column
from kzoo.training import MaskedSquaredError
from kzoo.training.scores import classification_scores, regression_scores

TextPooling = Literal[PoolingKind, "max_logits"]


class TextTask(PredictionTask):
    """A stack, pooling, and a head: `units` numbers of each text."""

    target_per_example = True
    own_options = ("pooling",)

    def __init__(self, config, units, tokenizer=None, pooling=None, **kwargs):
        super().__init__(config, units, tokenizer, **kwargs)
        if pooling is None:
            pooling = "last" if self.sees_the_past_alone else "cls"
        self._check_pooling(pooling, TextPooling)
        self.pooling = pooling
        self.pool = Pooling(
            "max" if pooling == "max_logits" else pooling, dtype=self.dtype_policy
        )
        self.build()

    @property
    def output_axes(self):
        """Logits of the classes, or the numbers."""
        return {"logits": (self.head.units,)}

    def call(self, inputs, training=None):
        """float (B, C); `inputs` as `states` takes them."""
        states, mask = self.states(inputs, training)
        if self.pooling == "max_logits":
            return self.pool(self.head(states, training=training), mask)
        return self.head(self.pool(states, mask), training=training)

    def encode_examples(self, x, y=None):
        """Ids of texts, or pairs, and their targets.

        Args:
            x: strings, or pairs of strings.
            y: a target each, or `None`; a classifier takes distributions, too.

        Returns:
            dict of lists: `token_ids`, `targets` where `y` is given, and `segment_ids`
            where the model has segments.
        """
        features = self.encode_texts(x)
        if y is not None:
            self._check_targets(x, y)
            features["targets"] = self.encode_targets(y)
        return features


@keras.saving.register_keras_serializable("kzoo")
class TextClassifier(TextTask):
    """The class of a text, or of a pair of texts.

    Args:
        config: a `ModelConfig`.
        labels: names of the classes; or
        num_classes: how many there are, when they have no names.
        tokenizer: for strings.
        pooling: which vector the head reads: `"cls"`, `"last"`, `"mean"`, `"max"` (see
            `kzoo.layers.pooling`); or `"max_logits"`: the head reads every token, and
            a class has the largest of its logits. By default `"cls"`, but `"last"` of a
            decoder alone, whose first token sees nothing of the text.
        hidden_activation: of an inner layer of the head, such as `"tanh"` in BERT.
        head_dropout: rate on what the head's last layer reads.
        max_length: see `EncoderTask`.
        **kwargs: `hidden_bias`, `hidden_norm`, `head_use_bias`, see `PredictionTask`.

    Raises:
        ValueError: neither or both of `labels` and `num_classes`, or fewer than two.

    Example:
        >>> classifier = kzoo.TextClassifier.from_size(
        ...     "tiny", tokenizer, labels=["bad", "good"], num_layers=1)
        >>> classifier.compile()
        >>> texts, names = ["a fine film", "a dull film"], ["good", "bad"]
        >>> classifier.fit(texts, names, epochs=20)
        >>> classifier.classify(["a fine film"])
        ['good']
        >>> classifier.score(texts, names)
        {'accuracy': 1.0, 'macro_f1': 1.0, 'matthews': 1.0}
    """

    one_example = (["a"], [0])

    def __init__(self, config, labels=None, num_classes=None, tokenizer=None, **kwargs):
        labels, count = check_labels(labels, num_classes)
        super().__init__(config, count, tokenizer, **kwargs)
        self.labels, self.num_classes = labels, count

    @property
    def options(self):
        """What the task was given beside config and tokenizer."""
        name = "labels" if self.labels else "num_classes"
        return {**super().options, name: getattr(self, name)}

    @property
    def text_outputs(self):
        """What an artifact of text gives: axes by name, and how it comes of `forward`.

        That is a function of the outputs of `forward`, and of `picked`, which takes
        names and places and gives strings.
        """

        def answered(outputs, picked):
            logits = outputs["logits"]
            best = ops.argmax(logits)
            return {
                "label": picked(self.labels, best) if self.labels else best,
                "probabilities": ops.softmax(logits),
            }

        return {"label": (), "probabilities": (self.num_classes,)}, answered

    def encode_targets(self, y):
        """Classes as ints: names of `labels`, or ints in [0, C), in any mix.

        Or distributions over the classes, as a teacher gives them: float32 (B, C).
        """
        y = y.to_numpy() if getattr(y, "ndim", 1) > 1 and hasattr(y, "iloc") else y
        y = list(column(y))
        if not y or np.ndim(y[0]) == 0:
            return encode_labels(y, self.labels, self.num_classes)
        rows = [_distribution(row, self.num_classes) for row in y]
        wrong = next((i for i, row in enumerate(rows) if row is None), None)
        if wrong is not None:
            raise ValueError(
                f"Targets that are distributions must be {self.num_classes} numbers of "
                "at least 0 that sum to 1. Received: "
                f"{y[wrong]!r} for example {wrong}."
            )
        return np.stack(rows)

    def _class_weights(self, class_weight, of_ints=False):
        if class_weight is None:
            return None
        if not isinstance(class_weight, dict):
            raise ValueError(
                "class_weight must be a dict from a class to what its examples "
                f"count. Received: {class_weight!r}."
            )
        keys, labels = list(class_weight), self.labels
        if of_ints and all(isinstance(key, numbers.Integral) for key in keys):
            labels = None
        odd = {
            key: weight
            for key, weight in class_weight.items()
            if np.ndim(weight) or not _is_weight(weight)
        }
        if odd:
            raise ValueError(
                f"class_weight must have numbers, 0 or more. Received: {odd}."
            )
        classes = encode_labels(keys, labels, self.num_classes, "class_weight's key")
        # All classes: Keras looks up those of a tf.data pipeline in a table.
        others = dict.fromkeys(range(self.num_classes), 1.0)
        return others | dict(zip(classes, class_weight.values()))

    def classify(self, x, *, return_probabilities=False, **options):
        """The most probable class of each text.

        Args:
            x: what `predict` takes.
            return_probabilities: whether those of all classes are returned, too.
            **options: of `predict`.

        Returns:
            A list of labels, or of ints where classes have no names; with
            `return_probabilities` a pair with float32 (B, C).
        """
        logits = self.predict(x, **{"verbose": 0, **options}).astype("float32")
        best = logits.argmax(axis=-1).tolist()
        classes = [self.labels[i] for i in best] if self.labels else best
        if not return_probabilities:
            return classes
        return classes, softmax(logits)

    def score(self, x, y, **options):
        """Accuracy, macro F1 and Matthews correlation, by scikit-learn.

        Args:
            x: what `predict` takes.
            y: labels, or ints; of a distribution its most probable class.
            **options: of `predict`.

        Returns:
            dict of `accuracy`, `macro_f1` and `matthews`, floats.
        """
        self._check_targets(x, y)
        targets = np.asarray(self.encode_targets(y))
        targets = targets.argmax(axis=-1) if targets.ndim == 2 else targets
        logits = self.predict(x, **{"verbose": 0, **options})
        return classification_scores(targets, logits.argmax(axis=-1))


@keras.saving.register_keras_serializable("kzoo")
class TextRegressor(TextTask):
    """A number of a text, or of a pair of texts.

    Args:
        config: a `ModelConfig`.
        tokenizer: for strings.
        pooling: as in `TextClassifier`; so for the others.
        hidden_activation: of an inner layer of the head.
        head_dropout: rate on what the head's last layer reads.
        max_length: see `EncoderTask`.
        **kwargs: `hidden_bias` and `hidden_norm`, see `PredictionTask`.

    Example:
        >>> regressor = kzoo.TextRegressor.from_size("tiny", tokenizer)
        >>> regressor.compile()
        >>> regressor.fit(["a fine film", "a dull film"], [9.0, 2.5])
        >>> regressor.predict(["a fine film"]).shape
        (1, 1)
    """

    one_example = (["a"], [0.0])

    ignore_id = float("nan")

    def __init__(self, config, tokenizer=None, **kwargs):
        super().__init__(config, 1, tokenizer, **kwargs)

    def default_loss(self, label_smoothing):
        """Mean squared error."""
        if label_smoothing:
            raise ValueError(
                f"label_smoothing is of classes, and {self.name} predicts a number. "
                f"Received: label_smoothing={label_smoothing}."
            )
        return MaskedSquaredError()

    def default_metrics(self):
        """None: the loss says it."""
        return []

    @property
    def text_outputs(self):
        """What an artifact of text gives; see `TextClassifier.text_outputs`."""
        ((name, _),) = self.output_axes.items()
        value = "value" if name == "logits" else name

        def answered(outputs, picked):
            return {value: ops.reshape(outputs[name], (-1,))}

        return {value: ()}, answered

    def encode_targets(self, y):
        """Numbers as finite float32 (B,)."""
        return encode_numbers(y, self.name)

    def score(self, x, y, **options):
        """Pearson and Spearman correlation and mean squared error, by scipy.

        Args:
            x: what `predict` takes.
            y: numbers.
            **options: of `predict`.

        Returns:
            dict of `pearson`, `spearman` and `mean_squared_error`, floats.
        """
        self._check_targets(x, y)
        predicted = self.predict(x, **{"verbose": 0, **options})[:, 0]
        return regression_scores(self.encode_targets(y), predicted)


def _distribution(row, count):
    """A distribution as float32 (C,), or `None` where it is none."""
    try:
        row = np.asarray(row, "float32")
    except (TypeError, ValueError):
        return None
    fits = row.shape == (count,) and (row >= 0).all() and abs(row.sum() - 1) < 1e-3
    return row if fits else None


def _is_weight(x):
    try:
        return 0 <= float(x) < math.inf
    except (TypeError, ValueError):
        return False


def check_labels(labels, num_classes):
    """The labels as a list, or `None`, and how many classes there are.

    Raises:
        ValueError: neither or both are given, labels repeat, or there are fewer than 2.
    """
    if (labels is None) == (num_classes is None):
        raise ValueError(
            "Give either labels, the names of the classes, or num_classes. Received: "
            f"labels={labels!r}, num_classes={num_classes!r}."
        )
    if labels is not None:
        several = np.iterable(labels) and not isinstance(labels, str)
        if not several or not all(isinstance(name, str) for name in labels):
            raise ValueError(
                "labels are a list of names, strings; for classes that are ints from 0 "
                f"give num_classes. Received: {labels!r}."
            )
        labels = list(labels)
        if len(set(labels)) != len(labels):
            raise ValueError(f"labels must differ. Received: {labels}.")
    count = len(labels) if labels is not None else num_classes
    check_count("the number of classes", count, least=2)
    return labels, int(count)


def encode_labels(y, labels, count, where="example"):
    """Classes as ints.

    Args:
        y: names of `labels`, or ints in [0, count), of a list, array or tensor.
        labels: names, or `None`.
        count: how many classes there are.
        where: what an error counts.

    Returns:
        A list of int.

    Raises:
        ValueError: an unknown label, or an int out of range; it is named. Where labels
            are numerals, an int might mean a label or its place, and is refused.
    """
    ambiguous = any(label.strip().lstrip("+-").isdigit() for label in labels or ())
    kinds = [f"one of {labels}"] if labels else []
    kinds += [] if ambiguous else [f"ints in [0, {count})"]
    numbers = {label: i for i, label in enumerate(labels or ())}
    encoded = []
    for i, value in enumerate(column(y)):
        if isinstance(value, str) and value in numbers:
            encoded.append(numbers[value])
        elif (
            isinstance(value, (int, np.integer, np.bool_))
            and not ambiguous
            and 0 <= value < count
        ):
            encoded.append(int(value))
        else:
            raise ValueError(
                f"Targets must be {', or '.join(kinds)}"
                f"{', as strings: an int might be a place' if ambiguous else ''}. "
                f"Received: {value!r} for {where} {i}."
            )
    return encoded


def encode_numbers(y, name):
    """Targets that are numbers, as finite float32 (B,).

    Args:
        y: a number each.
        name: who needs them, for errors.

    Raises:
        ValueError: something else than a number, NaN or one that is infinite in
            float32; it is named.
    """
    y = column(y)
    try:
        values = np.asarray(y)
    except ValueError:  # rows of several lengths
        values = np.asarray(y, object)
    if values.dtype.kind not in "iufb":  # of a number and a text numpy makes texts
        values = np.asarray(y, object)
        others = [not isinstance(v, (numbers.Real, np.bool_)) for v in values.flat]
    needed = f"{name} needs a number for each example. Received"
    if values.ndim != 1:
        raise ValueError(f"{needed}: a shape of {values.shape}.")
    if values.dtype == object and any(others):
        i = others.index(True)
        raise ValueError(f"{needed}: {values[i]!r} for example {i}.")
    with np.errstate(over="ignore"):
        found = values.astype("float32")
    if not np.isfinite(found).all():
        i = int(np.argmin(np.isfinite(found)))
        raise ValueError(
            f"{needed}: {values[i]!s} for example {i}, which is not finite in float32."
        )
    return found
