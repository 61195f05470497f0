"""Batches of few shapes from sequences of many lengths.

A compiled training step is compiled once a shape, and padding is computed like
anything else. So examples are grouped into buckets by their lengths; every batch of a
bucket has the bucket's shape; and the buckets are chosen to pad little. Which examples
batch i holds follows from the seed and i alone, so that training goes on exactly where
it stopped, without reading what came before.
"""

import dataclasses
import functools
import sys
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import numpy as np

TooLong = Literal["error", "truncate", "drop"]
Remainder = Literal["fill", "drop", "keep"]

_DEFAULT_FEATURE = "token_ids"
# More candidate boundaries than this change the padding by little and cost time.
_MOST_CANDIDATES = 256


def padded_batch(sequences, length=None, *, multiple=1, pad_id=0, side="right"):
    """Sequences as the rows of one array.

    Args:
        sequences: B sequences of ids, empty ones allowed.
        length: T; `None` means that of the longest.
        multiple: T is raised to a multiple of it.
        pad_id: fills the rows.
        side: where the filling is, `"right"` or `"left"`.

    Returns:
        int32 (B, T).

    Raises:
        ValueError: a sequence is longer than `length`, or an unknown side.
    """
    if side not in ("right", "left"):
        raise ValueError(f"side must be 'right' or 'left'. Received: {side!r}.")
    longest = max((len(sequence) for sequence in sequences), default=0)
    length = longest if length is None else length
    if longest > length:
        raise ValueError(
            f"length must hold the longest sequence, {longest} ids. "
            f"Received: length={length}. Truncate the sequences, or raise it."
        )
    batch = np.full((len(sequences), _round_up(length, multiple)), pad_id, np.int32)
    for row, sequence in zip(batch, sequences, strict=True):
        if len(sequence):
            if side == "right":
                row[: len(sequence)] = sequence
            else:
                row[-len(sequence) :] = sequence
    return batch


def packed_blocks(ids, length, *, overlap=0):
    """Running text cut into rows of equal length, without padding.

    With `overlap=1` the last id of a row is the first of the next: a language model
    that predicts a row's ids 1 to T-1 from those before then predicts every id of the
    text once, but the first.

    Args:
        ids: one flat sequence of ids, of at least `length`.
        length: T, ids a row.
        overlap: ids that a row shares with the next, less than `length`.

    Returns:
        int32 (N, T); up to `length - overlap - 1` ids at the end are left out.

    Raises:
        ValueError: too few ids, ids that are not flat, or an overlap out of range.
    """
    ids = np.asarray(ids, np.int32)
    if ids.ndim != 1:
        raise ValueError(
            "packed_blocks expects one flat sequence of ids. "
            f"Received: shape {ids.shape}."
        )
    if not 0 <= overlap < length:
        raise ValueError(
            "overlap must be at least 0 and less than length. "
            f"Received: overlap={overlap}, length={length}."
        )
    if len(ids) < length:
        raise ValueError(
            f"packed_blocks needs at least length={length} ids. Received: {len(ids)}."
        )
    windows = np.lib.stride_tricks.sliding_window_view(ids, length)
    return windows[:: length - overlap].copy()


@dataclasses.dataclass(frozen=True)
class BatchReport:
    """What bucketing did to the examples; prints as one line a bucket.

    Args:
        num_examples: that stand in the batches.
        num_truncated: of these, cut to the longest bucket or `max_length`.
        num_dropped: left out as too long.
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


class BucketedBatches:
    """An endless, random-access sequence of batches; `len` is one epoch of it.

    `batches[i]` for any `i >= 0` is batch `i % len(batches)` of epoch
    `i // len(batches)`, a dict of arrays; iteration gives the first epoch. Made by
    `bucketed_batches`.

    Args:
        columns: name to flat values and, for a sequence feature, offsets (N + 1,).
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
        return BatchReport(
            num_examples=sum(len(indices) for _, _, indices in self._buckets),
            num_truncated=self._num_truncated,
            num_dropped=self._num_dropped,
            padding=1.0 - used / places,
            buckets=tuple(rows_of_report),
        )

    def __len__(self):
        return sum(self._counts)

    def __iter__(self):
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index):
        if index < 0:
            raise IndexError(
                f"Batches are counted from 0 without end. Received: {index}."
            )
        epoch, place = divmod(int(index), len(self))
        buckets, parts, members = self._order(epoch)
        bucket, part = buckets[place], parts[place]
        shape, rows, _ = self._buckets[bucket]
        chosen = members[bucket][part * rows : (part + 1) * rows]
        if self._remainder == "keep":
            rows = len(chosen)
        batch, feature = {}, 0
        for name, (values, offsets) in self._columns.items():
            if offsets is None:
                batch[name] = np.full(rows, self._pads[name], values.dtype)
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
            `tf.data.Dataset` whose element specs leave every axis open.

        Raises:
            ValueError: `start` is outside.
        """
        import tensorflow as tf

        stop = self._stop(epochs, start)
        transform = transform or (lambda batch: batch)

        def generate():
            for index in range(start, stop):
                yield transform(self[index])

        dataset = open_tf_data(generate, transform(self[start]))
        if epochs is not None:
            length = tf.data.experimental.assert_cardinality(stop - start)
            dataset = dataset.apply(length)
        return dataset.prefetch(2)

    def _stop(self, epochs, start):
        stop = sys.maxsize if epochs is None else epochs * len(self)
        if not 0 <= start < stop:
            raise ValueError(
                f"start must be a batch in [0, {stop}) ({epochs} epochs of {len(self)} "
                f"batches). Received: {start}."
            )
        return stop

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
        # numpy promises the raw bits of a generator in every version, but not the
        # order that `permutation` makes of them.
        key = np.array([self._seed, stream], np.uint64)
        bits = np.random.Philox(key=key, counter=[0, 0, 0, epoch]).random_raw(size)
        return np.argsort(bits, kind="stable")


def bucketed_batches(
    examples,
    *,
    batch_size: int | None = None,
    tokens_per_batch: int | None = None,
    buckets: int | Sequence = 8,
    multiple: int = 4,
    max_length: int | Mapping[str, int] | None = None,
    too_long: TooLong = "error",
    pad_ids: int | Mapping[str, int] = 0,
    seed: int = 0,
    shuffle: bool = True,
    remainder: Remainder = "fill",
) -> BucketedBatches:
    """Groups examples of like lengths into batches of few shapes.

    Args:
        examples: dict from a feature's name to its values, one an example: sequences
            of ids, or numbers such as labels. A list of sequences is the feature
            `"token_ids"`.
        batch_size: rows of every batch; or
        tokens_per_batch: a budget of padded places of the last sequence feature (in
            an encoder-decoder the target): a bucket has `tokens_per_batch // length`
            rows, made a multiple of 8 when there are more, and at least 1.
        buckets: how many shapes at most, chosen by `choose_buckets` for these
            examples; or the shapes: an int pads every feature to it, a tuple has a
            length a sequence feature. Pass `shapes` on so that validation compiles
            nothing new.
        multiple: lengths of chosen buckets are multiples of it.
        max_length: ids that a sequence may have, for all features or by name; with
            given `buckets` the largest of them is a limit, too.
        too_long: what happens to longer examples: `"error"`; `"truncate"`, which
            cuts the end off, the end token too, so that a model does not learn to
            stop there; `"drop"`, which leaves the example out. `report` counts both.
        pad_ids: fills rows, for all features or by name.
        seed: of the order, in [0, 2**63).
        shuffle: a new order every epoch; without it buckets come one after another.
        remainder: a bucket's last batch, when examples do not fill it: `"fill"` adds
            rows of nothing but padding, which carry no loss when padding has none;
            `"drop"` leaves it out, other examples every epoch; `"keep"` has fewer
            rows, and so one more shape.

    Returns:
        `BucketedBatches`: int32 (B, T) a sequence feature, (B,) a number feature.

    Raises:
        TypeError: `examples` is neither a mapping nor a list of sequences.
        ValueError: features of different lengths, an empty sequence, an example that
            is too long, no example left, or options that do not fit.
    """
    _check_options(batch_size, tokens_per_batch, too_long, remainder, seed)
    columns = _columns(examples)
    sequences = [name for name, (_, offsets) in columns.items() if offsets is not None]
    lengths = np.stack([np.diff(columns[name][1]) for name in sequences], axis=1)
    limits = np.array(_limits(max_length, sequences))
    shapes = None if isinstance(buckets, int) else _shapes(buckets, sequences)
    lengths, kept, num_truncated = _fit(lengths, limits, shapes, too_long, sequences)
    rows_of = functools.partial(_rows, batch_size, tokens_per_batch)
    if shapes is None:
        shapes = choose_buckets(
            lengths[kept], buckets, multiple=multiple, rows_of=rows_of
        )
        # A learned position table may end at a limit that is no multiple.
        shapes = np.minimum(shapes, limits)
    batches = BucketedBatches(
        columns,
        lengths,
        [
            (tuple(shape.tolist()), rows_of(shape), indices)
            for shape, indices in _assign(lengths, kept, shapes)
        ],
        _by_name("pad_ids", pad_ids, list(columns), 0),
        seed=seed,
        shuffle=shuffle,
        remainder=remainder,
        num_truncated=num_truncated,
        num_dropped=len(lengths) - len(kept),
    )
    if not len(batches):
        raise ValueError(
            "remainder='drop' leaves no batch: no bucket has enough examples for one. "
            f"Received: {len(kept)} examples. Use fewer buckets, a smaller batch, or "
            "remainder='fill'."
        )
    return batches


def choose_buckets(lengths, count=8, *, multiple=4, rows_of=None):
    """Shapes that pad the given examples least.

    Examples are ordered by their longest feature and cut into at most `count` runs; a
    run's shape is the greatest length of each feature in it. The cuts minimise the
    places of all batches (dynamic programming), those of rows that fill a last batch
    included.

    Args:
        lengths: int (N, number of sequence features), or (N,) for one.
        count: the most shapes.
        multiple: lengths are raised to a multiple of it.
        rows_of: function from a shape to the rows of its batches; `None` means that
            batches are not filled up.

    Returns:
        list of tuples, a length a feature, the cheapest first.

    Raises:
        ValueError: no lengths, or `count` or `multiple` below 1.
    """
    lengths = np.asarray(lengths)
    lengths = lengths[:, None] if lengths.ndim == 1 else lengths
    if not len(lengths) or count < 1 or multiple < 1:
        raise ValueError(
            "choose_buckets needs lengths, and count and multiple of at least 1. "
            f"Received: {len(lengths)} lengths, count={count}, multiple={multiple}."
        )
    rounded = _round_up(lengths, multiple)
    longest = rounded.max(axis=1)
    ends = np.unique(longest)  # a run may end after each of these
    if len(ends) > _MOST_CANDIDATES:
        quantiles = np.linspace(0, 1, _MOST_CANDIDATES)
        ends = np.unique(np.quantile(longest, quantiles, method="higher"))
    group = np.searchsorted(ends, longest)
    numbers = np.bincount(group, minlength=len(ends))
    shapes = np.zeros((len(ends), lengths.shape[1]), int)
    np.maximum.at(shapes, group, rounded)

    # cost[i, j]: places of one bucket that holds the groups i to j.
    size = len(ends)
    cost = np.full((size, size), np.inf)
    for last in range(size):
        shape = np.zeros(lengths.shape[1], int)
        number = 0
        for first in range(last, -1, -1):
            shape = np.maximum(shape, shapes[first])
            number += numbers[first]
            rows = rows_of(shape) if rows_of else 1
            cost[first, last] = -(-number // rows) * rows * shape.sum()
    # best[j]: the least cost of groups 0 to j with the buckets so far.
    best = cost[0].copy()
    starts = [np.zeros(size, int)]
    costs = [best]
    for _ in range(min(count, size) - 1):
        before = np.concatenate([[0.0], costs[-1][:-1]])  # of the groups before first
        total = before[:, None] + cost
        starts.append(total.argmin(axis=0))
        costs.append(total.min(axis=0))
    used = int(np.argmin([each[-1] for each in costs]))
    chosen, last = [], size - 1
    while last >= 0:
        first = int(starts[used][last])
        chosen.append(tuple(shapes[first : last + 1].max(axis=0).tolist()))
        last, used = first - 1, max(used - 1, 0)
    return sorted(set(chosen), key=lambda shape: (sum(shape), shape))


def open_tf_data(generate, example):
    """What a generator gives, as a `tf.data.Dataset` that leaves every axis open.

    Args:
        generate: function without arguments to an iterator over structures of arrays.
        example: one such structure.

    Returns:
        `tf.data.Dataset`.
    """
    import tensorflow as tf

    signature = tf.nest.map_structure(
        lambda array: tf.TensorSpec([None] * np.ndim(array), np.asarray(array).dtype),
        example,
    )
    return tf.data.Dataset.from_generator(generate, output_signature=signature)


class _Stretch:
    """Batches `start` to `stop`, as the random-access source that grain wants."""

    def __init__(self, batches, start, stop):
        self._batches, self._start, self._stop = batches, start, stop

    def __len__(self):
        return self._stop - self._start

    def __getitem__(self, index):
        return self._batches[self._start + index]


def _check_options(batch_size, tokens_per_batch, too_long, remainder, seed):
    if (batch_size is None) == (tokens_per_batch is None):
        raise ValueError(
            "Give either batch_size or tokens_per_batch. Received: "
            f"batch_size={batch_size}, tokens_per_batch={tokens_per_batch}."
        )
    if (tokens_per_batch if batch_size is None else batch_size) < 1:
        raise ValueError(
            "batch_size and tokens_per_batch must be at least 1. Received: "
            f"batch_size={batch_size}, tokens_per_batch={tokens_per_batch}."
        )
    for name, value, kind in (
        ("too_long", too_long, TooLong),
        ("remainder", remainder, Remainder),
    ):
        if value not in get_args(kind):
            raise ValueError(
                f"{name} must be one of {list(get_args(kind))}. Received: {value!r}."
            )
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed must be in [0, 2**63). Received: {seed}.")


def _columns(examples):
    """Name to flat values and, for a sequence feature, offsets, else `None`."""
    if isinstance(examples, (list, tuple, np.ndarray)):
        examples = {_DEFAULT_FEATURE: examples}
    if not isinstance(examples, Mapping):
        raise TypeError(
            "examples must be a dict from feature names to values, or a list of id "
            f"sequences. Received: {type(examples).__name__}."
        )
    sizes = {name: len(values) for name, values in examples.items()}
    if len(set(sizes.values())) != 1 or 0 in sizes.values():
        raise ValueError(
            "Every feature needs one value an example, and at least one example. "
            f"Received: {sizes}."
        )
    columns = {
        name: _flatten(name, values) if np.ndim(values[0]) else _numbers(name, values)
        for name, values in examples.items()
    }
    if all(offsets is None for _, offsets in columns.values()):
        raise ValueError(
            f"At least one feature must hold sequences of ids. Received: {list(sizes)}."
        )
    return columns


def _flatten(name, sequences):
    for index, sequence in enumerate(sequences):
        if isinstance(sequence, (str, Mapping)) or not hasattr(sequence, "__len__"):
            raise TypeError(
                f"Example {index} of {name!r} must be a sequence of ids. "
                f"Received: {type(sequence).__name__}."
            )
        if not len(sequence):
            raise ValueError(
                f"Example {index} of {name!r} is empty; it would look like a row of "
                "padding. Leave the example out, or add an end token."
            )
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in sequences])])
    values = np.concatenate([np.asarray(each) for each in sequences])
    if values.ndim != 1 or not np.issubdtype(values.dtype, np.integer):
        raise TypeError(
            f"{name!r} must hold flat sequences of integer ids. "
            f"Received: dtype {values.dtype}, {values.ndim} axes."
        )
    return values.astype(np.int32), offsets.astype(np.int64)


def _numbers(name, values):
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iufb":
        raise TypeError(
            f"{name!r} must hold a sequence of ids or a number an example. "
            f"Received: dtype {array.dtype}, {array.ndim} axes."
        )
    return array.astype(np.float32 if array.dtype.kind == "f" else np.int32), None


def _shapes(buckets, sequences):
    """Given buckets as a length for each sequence feature, int (buckets, features)."""
    shapes = [
        (bucket,) * len(sequences) if np.ndim(bucket) == 0 else tuple(bucket)
        for bucket in buckets
    ]
    if not shapes or any(len(s) != len(sequences) or min(s) < 1 for s in shapes):
        raise ValueError(
            "buckets must be lengths of at least 1, or tuples with a length for each "
            f"of {sequences}. Received: {list(buckets)}."
        )
    return np.array(shapes)


def _limits(max_length, sequences):
    """The most ids of each sequence feature."""
    limits = _by_name("max_length", max_length, sequences, None).values()
    if any(limit is not None and limit < 1 for limit in limits):
        raise ValueError(f"max_length must be at least 1. Received: {max_length}.")
    return [np.iinfo(np.int64).max if limit is None else limit for limit in limits]


def _by_name(option, value, names, default):
    """One value for all names, or a mapping that leaves out those with the default."""
    if not isinstance(value, Mapping):
        return dict.fromkeys(names, value)
    unknown = sorted(set(value) - set(names))
    if unknown:
        raise ValueError(f"{option} names {unknown}, which are not among {names}.")
    return {name: value.get(name, default) for name in names}


def _fit(lengths, limits, shapes, too_long, sequences):
    """Lengths after truncation, indices of the examples kept, how many were cut."""
    fits = (lengths <= limits).all(axis=1)
    if shapes is not None:
        fits &= np.any([(lengths <= shape).all(axis=1) for shape in shapes], axis=0)
        limits = np.minimum(limits, max(shapes, key=sum))
    too_many = int((~fits).sum())
    if not too_many:
        return lengths, np.arange(len(lengths)), 0
    if too_long == "truncate":
        lengths = np.where(fits[:, None], lengths, np.minimum(lengths, limits))
        return lengths, np.arange(len(lengths)), too_many
    if too_long == "drop" and fits.any():
        return lengths, np.flatnonzero(fits), 0
    first = int(np.argmin(fits))
    raise ValueError(
        f"{too_many} of {len(lengths)} examples are too long: example {first} has the "
        f"lengths {dict(zip(sequences, lengths[first].tolist(), strict=True))}, and "
        f"the most is {dict(zip(sequences, limits.tolist(), strict=True))}. Raise the "
        "limit, or set too_long='truncate' or 'drop'."
    )


def _assign(lengths, kept, shapes):
    """(shape, example indices) of each bucket that has any, the cheapest first."""
    shapes = np.array(sorted(map(tuple, shapes), key=lambda shape: (sum(shape), shape)))
    bucket = np.zeros(len(kept), int)
    for number in reversed(range(len(shapes))):  # the cheapest that fits comes last
        bucket[(lengths[kept] <= shapes[number]).all(axis=1)] = number
    return [
        (shape, kept[bucket == number])
        for number, shape in enumerate(shapes)
        if (bucket == number).any()
    ]


def _rows(batch_size, tokens_per_batch, shape):
    if batch_size is not None:
        return batch_size
    rows = max(1, tokens_per_batch // int(shape[-1]))
    # Multiples of 8 divide among devices and fit tensor cores.
    return rows - rows % 8 if rows >= 8 else rows


def _round_up(number, multiple):
    return -(-number // multiple) * multiple
