"""Strings as features, and features as batches."""

import warnings

import keras
import numpy as np

from kzoo.tasks.pipelines import element_of
from kzoo.tasks.task import Task, smallest_table

_WEIGHT = "sample_weight"
_LONG = 2**14  # tokens of an example that is rather a mistake than meant


class BatchesText(Task):
    """Strings in batches of like lengths; a subclass says how they become ids.

    It gives `encode_examples(x, y)`, from strings to features, which are a sequence of
    ids or a number an example; and `_inputs_and_targets(batch)`, which tells apart
    what `call` reads and what the loss compares.
    """

    _tokens_of = None  # see `kzoo.data.bucketed_batches`

    def encode_text(self, x, y=None):
        """Inputs and targets of a batch of strings, padded on the right.

        What learned positions have no room for is cut.

        Args:
            x: strings, as `encode_examples` takes them; so for `y`.
            y: targets.

        Returns:
            dict of int32 arrays as `call` takes it, and targets as the loss does.
        """
        return self._inputs_and_targets(self._batch(self.encode_examples(x, y)))

    def _batch(self, features):
        """Features as arrays: int32 (B, T) of a sequence, (B,) or (B, C) of numbers."""
        from kzoo.data import are_vectors, padded_batch

        pads, lengths = self._pad_ids(features), self._max_lengths() or {}
        return {
            name: padded_batch(
                [row[: lengths.get(name)] for row in values], pad_id=pads[name]
            )
            if np.ndim(values[0]) and not are_vectors(values)
            else np.asarray(values)
            for name, values in features.items()
        }

    def _pad_ids(self, features):
        """What fills rows of each feature."""
        return dict.fromkeys(features, self.config.pad_token_id)

    def _batches(self, x, y, sample_weight=None, class_weight=None, **options):
        """Batches of examples; the options are those of `batches`."""
        features = self._features(x, y, sample_weight, class_weight)
        return self.batches(features, **options)

    def _features(self, x, y, sample_weight, class_weight):
        """Features of strings, with what each row counts, where that differs."""
        features = self.encode_examples(x, y)
        if sample_weight is not None:
            _check_finite(sample_weight)
            numbers = self._examples_of_rows(x, y)
            if numbers is not None:
                sample_weight = _of_rows(sample_weight, numbers, len(x))
        weights = self._weights(features, sample_weight, class_weight)
        return features if weights is None else {**features, _WEIGHT: weights}

    def _examples_of_rows(self, x, y):
        """The example, a number, of each row of `encode_examples`; `None`: one each."""
        return None

    def batches(
        self, features, *, batch_size=None, tokens_per_batch=None, shuffle=True, seed=0
    ):
        """Batches as `fit` makes them of strings, for `pipeline`.

        Args:
            features: what `encode_examples` gives, of one text or of many splits of it.
            batch_size: as in `fit`; so for the others.
            tokens_per_batch: instead.
            shuffle: a new order every epoch.
            seed: of the order.

        Returns:
            `kzoo.data.BucketedBatches`.
        """
        from kzoo.data import bucketed_batches

        if batch_size is None and tokens_per_batch is None:
            batch_size = 32
        pads = self._pad_ids(features)
        pads |= {_WEIGHT: 0.0} if _WEIGHT in features else {}  # padding counts nothing
        batches = bucketed_batches(
            features,
            batch_size=batch_size,
            tokens_per_batch=tokens_per_batch,
            pad_ids=pads,
            tokens_of=self._tokens_of,
            # Others' losses, metrics and steps would count rows that fill a batch.
            remainder="fill" if self.leaves_out_filling else "keep",
            max_length=self._max_lengths(),
            too_long="truncate",
            shuffle=shuffle,
            seed=seed,
        )
        if batches.report.num_truncated:
            warnings.warn(
                f"{batches.report.num_truncated} of {batches.report.num_examples} "
                f"examples were cut to the learned positions, {self._max_lengths()} "
                "tokens. A model with a larger max_sequence_length keeps them.",
                stacklevel=3,
            )
        longest = max(map(max, batches.shapes))
        if longest > _LONG:
            warnings.warn(
                f"The longest example has about {longest} tokens: the attention of one "
                f"head to it takes {longest**2 * 4 / 1e9:.1f} GB. Cut it, by a "
                "max_length where the task has one, or leave it out.",
                stacklevel=3,
            )
        return batches

    def _weights(self, features, sample_weight, class_weight):
        """What each row counts, float32 (B,), or `None` where all count alike."""
        if sample_weight is None and class_weight is None:
            return None
        count = len(next(iter(features.values())))
        weights = np.ones(count, "float32")
        if sample_weight is not None:
            given = np.asarray(sample_weight, "float32")
            if given.shape != weights.shape:
                raise ValueError(
                    f"sample_weight must be a number for each of {count} rows; a text "
                    "that is read in several stretches has several. Received: a shape "
                    f"of {given.shape}."
                )
            weights = weights * given
        known = self._class_weights(class_weight)
        if known is not None:
            targets = np.asarray(features.get("targets", ()))
            if targets.shape != weights.shape or targets.dtype.kind != "i":
                raise ValueError(
                    "class_weight is of targets that are classes. Received: "
                    f"class_weight={class_weight} beside distributions."
                )
            weights = weights * [known.get(int(t), 1.0) for t in targets]
        return weights.astype("float32")

    def _class_weights(self, class_weight, of_ints=False):
        """`class_weight` by the classes' ints, or `None`.

        Args:
            class_weight: what `fit` was given.
            of_ints: whether targets are ints, so that ints among the classes are.

        Raises:
            ValueError: it is no dict of the classes of this task; or Keras would weigh
                a sequence by some of it.
        """
        if class_weight is None:
            return None
        raise ValueError(
            "class_weight is of tasks with one class an example. Received: "
            f"class_weight={class_weight} for {type(self).__name__}."
        )

    def _max_lengths(self):
        """The most ids of each feature that the learned positions allow."""
        return None

    def pipeline(self, batches, *, epochs=None, start=0):
        """Batches as inputs and targets, in what Keras iterates best on this backend.

        Args:
            batches: `kzoo.data.BucketedBatches` of ids under the names of the inputs.
            epochs: how many; `None` goes on without end.
            start: index of the first batch.

        Returns:
            `tf.data.Dataset` or `grain.MapDataset`, for `fit(shuffle=False)`.
        """
        on_tensorflow = keras.backend.backend() == "tensorflow"
        make = batches.to_tf_data if on_tensorflow else batches.to_grain
        return make(epochs=epochs, start=start, transform=self._batch_element)

    def _batch_element(self, batch):
        weights = batch.get(_WEIGHT)
        batch = {name: values for name, values in batch.items() if name != _WEIGHT}
        inputs, targets = self._inputs_and_targets(batch)
        return element_of(
            inputs, self._targets_beside(inputs, targets, weights), weights
        )

    def _encode(self, texts, before=(), behind=()):
        """Ids of each text, between others."""
        encoded = self.text_tokenizer.encode(list(texts))
        return self._in_table([[*before, *ids, *behind] for ids in encoded])

    def _in_table(self, rows):
        """Rows of ids; a pretrained tokenizer may have more than its model."""
        size = smallest_table(self.config)
        if self.tokenizer.vocabulary_size > size:
            wrong = sorted({i for row in rows for i in row if i >= size})
            if wrong:
                raise ValueError(
                    f"Texts must be of tokens that the model has, with ids below "
                    f"{size}. Received: {self.tokenizer.tokens(wrong)}, with the ids "
                    f"{wrong}."
                )
        return rows

    own_template = None

    @property
    def template(self):
        """What stands around texts: a pretrained tokenizer's, or the task's own."""
        tokenizer = self.tokenizer
        found = None if tokenizer is None else tokenizer.conventions.template
        return found or self.own_template

    @property
    def text_tokenizer(self):
        """The tokenizer, for strings; there must be one."""
        if self.tokenizer is None:
            raise ValueError(
                f"{self.name} has no tokenizer, so it cannot read strings. Build it "
                "with tokenizer=..., or give token ids."
            )
        return self.tokenizer


def _check_finite(weights):
    """Raises `ValueError` where an example counts no number of float32."""
    weights = np.atleast_1d(np.asarray(weights, "float64"))
    finite = np.abs(weights) <= np.finfo("float32").max  # no NaN is, either
    if not finite.all():
        place = tuple(np.argwhere(~finite)[0])
        raise ValueError(
            "sample_weight must be finite, in float32. Received: "
            f"{weights[place]} for example {place[0]}."
        )


def _of_rows(weights, numbers, size):
    """What each row counts: as the example that it is a window of."""
    weights = np.asarray(weights, "float32")
    if weights.shape != (size,):
        raise ValueError(
            f"sample_weight must be a number for each of {size} examples. Received: a "
            f"shape of {weights.shape}."
        )
    return weights[np.asarray(numbers, int)]
