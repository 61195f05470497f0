"""The batches: an endless sequence with random access, for `fit` as a pipeline."""

import copy
import dataclasses
import functools
import operator
import sys

import numpy as np

from kzoo.arguments import check_count
from kzoo.data.padding import int32

# Of seeds: the generator takes 64 bits, JSON and numpy one less.
LARGEST_SEED = 2**63 - 1


@dataclasses.dataclass(frozen=True)
class BatchReport:
    """What bucketing did to the examples; prints as one line a bucket.

    Args:
        num_examples: that stand in the batches.
        num_truncated: of all but those left out as too long, cut to the longest bucket
            or `max_length`.
        num_dropped: left out as too long, or with `remainder="drop"` of a bucket that
            has fewer than a batch.
        padding: share of the places of an epoch's sequence features that hold no id
            of an example, rows of nothing but padding included.
        buckets: (shape, rows a batch, examples, batches an epoch) of each bucket; a
            shape has a length a sequence feature.
    """

    num_examples: int
    num_truncated: int
    num_dropped: int
    padding: float
    buckets: tuple

    def __str__(self):
        lines = [
            f"{self.num_examples} examples, {self.padding:.1%} padding, "
            f"{self.num_truncated} truncated, {self.num_dropped} dropped"
        ]
        lines += [
            f"  {rows} x {shape}: {examples} examples in {batches} batches"
            for shape, rows, examples, batches in self.buckets
        ]
        return "\n".join(lines)


class Batches:
    """An endless, random-access sequence of batches; `len` is one epoch of it.

    `batches[i]` for any `i >= 0` is a dict of arrays that follows from the seed and i;
    iteration gives the first epoch. A subclass says `__len__` and `_batch(index)`.
    """

    _functions, _widths = (), ()

    def __getitem__(self, index):
        index = operator.index(index)
        if index < 0:
            raise IndexError(
                f"Batches are counted from 0 without end. Received: {index}."
            )
        batch = self._batch(index)
        for function in self._functions:
            batch = function(batch, index)
        return batch

    def __iter__(self):
        return (self[index] for index in range(len(self)))

    def map(self, function):
        """These batches with each put through a function.

        Args:
            function: of (batch, index) to a batch. What is random in it should follow
                from the index, so that a training resumes with the same batches.

        Returns:
            Batches of the same kind.
        """
        mapped = copy.copy(self)
        mapped._functions = (*self._functions, function)
        return mapped

    def to_grain(self, *, epochs=None, start=0, transform=None):
        """The batches as a `grain.MapDataset`, which `fit` takes.

        `fit` wants `shuffle=False` with it, or warns. With the TensorFlow backend use
        `to_tf_data`: Keras takes the lengths of the first two batches for those of
        all, and TensorFlow stops at the first that differs.

        Args:
            epochs: how many; `None` goes on without end (then tell `fit` its
                `steps_per_epoch=len(batches)`).
            start: index of the first batch; training that stopped after n batches
                goes on with `start=n`.
            transform: applied to each batch, such as `lambda batch: (x, y, weights)`.

        Returns:
            `grain.MapDataset` of `epochs * len(batches) - start` batches.

        Raises:
            ValueError: `start` is outside.
        """
        import grain

        source = _Stretch(self, start, self._stop(epochs, start))
        dataset = grain.MapDataset.source(source)
        return dataset if transform is None else dataset.map(transform)

    def to_tf_data(self, *, epochs=None, start=0, transform=None):
        """The batches as a `tf.data.Dataset`; TensorFlow is imported here.

        Args:
            epochs: as in `to_grain`.
            start: as in `to_grain`.
            transform: as in `to_grain`; works on numpy arrays.

        Returns:
            `tf.data.Dataset` whose element specs leave every axis open, but that of
            vectors.

        Raises:
            ValueError: `start` is outside.
        """
        import tensorflow as tf

        stop = self._stop(epochs, start)
        transform = transform or (lambda batch: batch)

        def generate():
            for index in range(start, stop):
                yield transform(self[index])

        dataset = open_tf_data(generate, transform(self[start]), self._widths)
        if epochs is not None:
            length = tf.data.experimental.assert_cardinality(stop - start)
            dataset = dataset.apply(length)
        return dataset.prefetch(2)

    def _stop(self, epochs, start):
        if epochs is not None:
            check_count("epochs", epochs)
        stop = sys.maxsize if epochs is None else epochs * len(self)
        check_count("start", start, 0)
        if start >= stop:
            raise ValueError(
                f"start must be a batch in [0, {stop}) ({epochs} epochs of {len(self)} "
                f"batches). Received: {start}."
            )
        return stop


class RandomStretches(Batches):
    """Batches of stretches of one running text, drawn with replacement.

    Args:
        ids: the text's, one flat sequence.
        length: ids of a stretch.
        rows: stretches a batch.
        num_batches: an epoch; by default as many as hold the text once.
        before: ids that stand before every stretch.
        seed: of the draws, in [0, 2**63).

    Raises:
        TypeError: ids that are no integers.
        ValueError: the text is shorter than a stretch, or not flat; a number that is no
            integer or out of range.
    """

    def __init__(self, ids, length, rows, *, num_batches=None, before=(), seed=0):
        for name, number in (("length", length), ("rows", rows)):
            check_count(name, number)
        if num_batches is not None:
            check_count("num_batches", num_batches)
        check_count("seed", seed, 0, LARGEST_SEED)
        self._ids = int32("ids", ids)
        self._before = np.tile(int32("before", before), (rows, 1))
        self._length, self._rows, self._seed = length, rows, seed
        if self._ids.ndim != 1:
            raise ValueError(
                "RandomStretches expects one flat sequence of ids. Received: shape "
                f"{self._ids.shape}."
            )
        if len(self._ids) < length:
            raise ValueError(
                f"The text has {len(self._ids)} ids, fewer than length={length}. "
                "Give more text or a smaller length."
            )
        self._num_batches = num_batches or max(1, len(self._ids) // (rows * length))

    def __len__(self):
        return self._num_batches

    def _batch(self, index):
        places = len(self._ids) - self._length + 1
        # The remainder of 64 random bits: numpy keeps the bits alike in all versions.
        starts = _random_bits(self._seed, 0, index, self._rows) % np.uint64(places)
        chosen = starts.astype(np.int64)[:, None] + np.arange(self._length)
        return {"token_ids": np.concatenate([self._before, self._ids[chosen]], axis=1)}


class BucketedBatches(Batches):
    """Batches of examples of like lengths, made by `bucketed_batches`.

    `batches[i]` is batch `i % len(batches)` of epoch `i // len(batches)`.

    Args:
        columns: name to flat values and, for a sequence feature, offsets (N + 1,);
            values (N, C) are vectors.
        lengths: int (N, number of sequence features), after truncation.
        buckets: list of (lengths a sequence feature, rows, example indices).
        pads: name to what fills rows.
        seed: as in `bucketed_batches`; so for the next two.
        shuffle: a new order every epoch.
        remainder: what happens to a bucket's last batch.
        num_truncated: for the report.
        num_dropped: for the report.
    """

    def __init__(
        self,
        columns,
        lengths,
        buckets,
        pads,
        *,
        seed,
        shuffle,
        remainder,
        num_truncated,
        num_dropped,
    ):
        self._columns = columns
        flat = [values for values, offsets in columns.values() if offsets is None]
        self._widths = {values.shape[1] for values in flat if values.ndim == 2}
        self._lengths = lengths
        self._buckets = buckets
        self._pads = pads
        self._seed = seed
        self._shuffle = shuffle
        self._remainder = remainder
        self._num_truncated = num_truncated
        self._num_dropped = num_dropped
        self._counts = [
            len(indices) // rows if remainder == "drop" else -(-len(indices) // rows)
            for _, rows, indices in buckets
        ]
        # Of buckets that have fewer than a batch, where the rest is dropped.
        self.num_never = sum(
            len(indices)
            for (*_, indices), count in zip(buckets, self._counts, strict=True)
            if not count
        )
        self._order = functools.lru_cache(maxsize=2)(self._epoch_order)

    @property
    def shapes(self):
        """The buckets: tuples with a length for each sequence feature."""
        return tuple(shape for shape, _, _ in self._buckets)

    @property
    def report(self):
        """A `BatchReport`: what stands in the batches, and how much is padding."""
        places, used, rows_of_report = 0, 0.0, []
        for (shape, rows, indices), count in zip(
            self._buckets, self._counts, strict=True
        ):
            filled = len(indices) if self._remainder == "keep" else count * rows
            places += filled * sum(shape)
            share = min(1.0, filled / len(indices))  # of examples that "drop" leaves
            used += share * float(self._lengths[indices].sum())
            rows_of_report.append((shape, rows, len(indices), count))
        given = sum(len(indices) for _, _, indices in self._buckets)
        return BatchReport(
            num_examples=given - self.num_never,
            num_truncated=self._num_truncated,
            num_dropped=self._num_dropped + self.num_never,
            padding=1.0 - used / places,
            buckets=tuple(rows_of_report),
        )

    def __len__(self):
        return sum(self._counts)

    def _batch(self, index):
        epoch, place = divmod(index, len(self))
        buckets, parts, members = self._order(epoch)
        bucket, part = buckets[place], parts[place]
        shape, rows, _ = self._buckets[bucket]
        chosen = members[bucket][part * rows : (part + 1) * rows]
        if self._remainder == "keep":
            rows = len(chosen)
        batch, feature = {}, 0
        for name, (values, offsets) in self._columns.items():
            if offsets is None:
                size = (rows, *values.shape[1:])
                pad = self._pads[name]
                whole = float(pad).is_integer()  # else no integer says what is left out
                kind = values.dtype if whole else np.float32
                batch[name] = np.full(size, pad, kind)
                batch[name][: len(chosen)] = values[chosen]
                continue
            batch[name] = np.full((rows, shape[feature]), self._pads[name], np.int32)
            for row, example in enumerate(chosen):
                length, offset = self._lengths[example, feature], offsets[example]
                batch[name][row, :length] = values[offset : offset + length]
            feature += 1
        return batch

    def __getstate__(self):
        # The cache cannot be pickled, and the worker that unpickles fills its own.
        return {**self.__dict__, "_order": None}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._order = functools.lru_cache(maxsize=2)(self._epoch_order)

    def _epoch_order(self, epoch):
        """Each place's bucket and part of it, and each bucket's examples in order."""
        members = [
            indices[self._permutation(len(indices), epoch, number + 1)]
            for number, (_, _, indices) in enumerate(self._buckets)
        ]
        buckets = np.repeat(np.arange(len(self._counts)), self._counts)
        parts = np.concatenate([np.arange(count) for count in self._counts])
        order = self._permutation(len(buckets), epoch, 0)
        return buckets[order], parts[order], members

    def _permutation(self, size, epoch, stream):
        if not self._shuffle:
            return np.arange(size)
        return np.argsort(_random_bits(self._seed, stream, epoch, size), kind="stable")


def _random_bits(seed, stream, index, size):
    """uint64 (size,) that follow from the three numbers.

    numpy promises the raw bits of a generator in every version, but not what
    `permutation` or `integers` make of them.
    """
    key = np.array([seed, stream], np.uint64)
    return np.random.Philox(key=key, counter=[0, 0, 0, index]).random_raw(size)


def open_tf_data(generate, example, widths=()):
    """What a generator gives, as a `tf.data.Dataset` that leaves every axis open.

    Args:
        generate: function without arguments to an iterator over structures of arrays.
        example: one such structure.
        widths: of vectors, float (B, C): C is not left open.

    Returns:
        `tf.data.Dataset`.
    """
    import tensorflow as tf

    def spec(array):
        array = np.asarray(array)
        shape = [None] * array.ndim
        if array.ndim == 2 and array.dtype.kind == "f" and array.shape[1] in widths:
            shape[1] = array.shape[1]
        return tf.TensorSpec(shape, array.dtype)

    signature = tf.nest.map_structure(spec, example)
    dataset = tf.data.Dataset.from_generator(generate, output_signature=signature)
    # There is nothing to tune, and where cores are busy, the end of an iterator can
    # miss the thread that tunes, and waits for it: up to a minute in TensorFlow 2.21.
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


class _Stretch:
    """Batches `start` to `stop`, as the random-access source that grain wants."""

    def __init__(self, batches, start, stop):
        self._batches, self._start, self._stop = batches, start, stop

    def __len__(self):
        return self._stop - self._start

    def __getitem__(self, index):
        return self._batches[self._start + index]
