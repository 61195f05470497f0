"""Batches of few shapes from sequences of many lengths.

A compiled training step is compiled once a shape, and padding is computed like
anything else. So examples are grouped into buckets by their lengths; every batch of a
bucket has the bucket's shape; and the buckets are chosen to pad little. Which examples
batch i holds follows from the seed and i alone, so that training goes on exactly where
it stopped, without reading what came before.
"""

import functools
import math
import numbers
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, get_args

import numpy as np

from kzoo.arguments import check_choice, check_count, is_integer
from kzoo.data.batches import LARGEST_SEED, BucketedBatches
from kzoo.data.buckets import assign, choose_buckets
from kzoo.data.padding import int32

TooLong = Literal["error", "truncate", "drop"]
Remainder = Literal["fill", "drop", "keep"]

_DEFAULT_FEATURE = "token_ids"
# Rows that are filled up, however few examples there are: evaluations of several sizes
# share a shape, and rows divide among devices. More would be computed for nothing.
_FILLED = 256


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
    tokens_of: Callable | None = None,
    seed: int = 0,
    shuffle: bool = True,
    remainder: Remainder = "fill",
) -> BucketedBatches:
    """Groups examples of like lengths into batches of few shapes.

    Args:
        examples: dict from a feature's name to its values, one an example: sequences
            of ids, or numbers such as labels, or an array float (N, C) of vectors. A
            list of sequences is the feature `"token_ids"`.
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
        tokens_of: function from a shape, a length a sequence feature, to what a row of
            it counts of `tokens_per_batch`; by default the last length.
        seed: of the order, in [0, 2**63).
        shuffle: a new order every epoch; without it buckets come one after another.
        remainder: a bucket's last batch, when examples do not fill it: `"fill"` adds
            rows of nothing but padding, which carry no loss when padding has none; no
            batch has more than 256 of them, or the power of two from the number of
            examples on where that is more;
            `"drop"` leaves it out, other examples every epoch if they are shuffled,
            and a bucket with fewer than a batch always, which is a warning and in the
            report; `"keep"` has fewer rows, and so one more shape.

    Returns:
        `BucketedBatches`: int32 (B, T) a sequence feature, (B,) a number feature, or
        float32 (B, C) one of vectors.

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
    if isinstance(buckets, Iterable) and not isinstance(buckets, str):
        shapes = _shapes(list(buckets), sequences)
    else:
        check_count("buckets", buckets)
        shapes = None
    lengths, kept, num_truncated = _fit(lengths, limits, shapes, too_long, sequences)
    most = math.inf
    if remainder == "fill":
        most = max(_FILLED, 1 << (len(kept) - 1).bit_length())
    rows_of = functools.partial(_rows, batch_size, tokens_per_batch, tokens_of, most)
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
            for shape, indices in assign(lengths, kept, shapes)
        ],
        _pads(pad_ids, columns),
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
    if batches.num_never:
        warnings.warn(
            f"remainder='drop' leaves out in every epoch {batches.num_never} of "
            f"{len(kept)} examples, whose buckets have fewer than a batch. Use fewer "
            "buckets, a smaller batch, or remainder='fill'.",
            stacklevel=2,
        )
    return batches


def _check_options(batch_size, tokens_per_batch, too_long, remainder, seed):
    if (batch_size is None) == (tokens_per_batch is None):
        raise ValueError(
            "Give either batch_size or tokens_per_batch. Received: "
            f"batch_size={batch_size}, tokens_per_batch={tokens_per_batch}."
        )
    for name, number in (
        ("batch_size", batch_size),
        ("tokens_per_batch", tokens_per_batch),
    ):
        if number is not None:
            check_count(name, number)
    check_choice("too_long", too_long, get_args(TooLong))
    check_choice("remainder", remainder, get_args(Remainder))
    check_count("seed", seed, 0, LARGEST_SEED)


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
        name: _flatten(name, values)
        if np.ndim(values[0]) and not are_vectors(values)
        else _numbers(name, values)
        for name, values in examples.items()
    }
    if all(offsets is None for _, offsets in columns.values()):
        raise ValueError(
            f"At least one feature must hold sequences of ids. Received: {list(sizes)}."
        )
    return columns


def are_vectors(values):
    """Whether a feature has a vector an example, no id, number or sequence of ids."""
    is_matrix = isinstance(values, np.ndarray) and values.ndim == 2
    return is_matrix and values.dtype.kind == "f" and values.shape[1] > 0


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
    return int32(repr(name), values), offsets.astype(np.int64)


def _numbers(name, values):
    array = np.asarray(values)
    if array.ndim not in (1, 2) or array.dtype.kind not in "iufb":
        raise TypeError(
            f"{name!r} must hold a sequence of ids, a number or a vector an example. "
            f"Received: dtype {array.dtype}, {array.ndim} axes."
        )
    if array.dtype.kind == "f":
        return array.astype(np.float32), None
    return int32(repr(name), array), None


def _shapes(buckets, sequences):
    """Given buckets as a length for each sequence feature, int (buckets, features)."""
    shapes = [
        (bucket,) * len(sequences) if np.ndim(bucket) == 0 else tuple(bucket)
        for bucket in buckets
    ]
    sizes = [size for shape in shapes for size in shape]
    whole = all(map(is_integer, sizes))
    fit = all(len(shape) == len(sequences) for shape in shapes)
    if not (sizes and whole and fit and min(sizes) > 0):
        raise ValueError(
            "buckets must be lengths of at least 1, or tuples with a length for each "
            f"of {sequences}. Received: {buckets}."
        )
    return np.array(shapes)


def _limits(max_length, sequences):
    """The most ids of each sequence feature."""
    limits = _by_name("max_length", max_length, sequences, None).values()
    for limit in limits:
        if limit is not None:
            check_count("max_length", limit)
    return [np.iinfo(np.int64).max if limit is None else limit for limit in limits]


def _by_name(option, value, names, default):
    """One value for all names, or a mapping that leaves out those with the default."""
    if not isinstance(value, Mapping):
        return dict.fromkeys(names, value)
    unknown = sorted(set(value) - set(names))
    if unknown:
        raise ValueError(f"{option} names {unknown}, which are not among {names}.")
    return {name: value.get(name, default) for name in names}


def _pads(pad_ids, columns):
    """What fills the rows of each feature."""
    pads = _by_name("pad_ids", pad_ids, list(columns), 0)
    limits = np.iinfo(np.int32)
    for name, (_, offsets) in columns.items():
        if offsets is not None:
            check_count(f"pad_ids of {name!r}", pads[name], limits.min, limits.max)
        elif not isinstance(pads[name], numbers.Real):  # bools are, too
            raise ValueError(
                f"pad_ids of {name!r} must be a number. Received: {pads[name]!r}."
            )
    return pads


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


def _rows(batch_size, tokens_per_batch, tokens_of, most, shape):
    if batch_size is not None:
        return min(batch_size, most)
    tokens = shape[-1] if tokens_of is None else tokens_of(shape)
    check_count(f"What tokens_of gives for {tuple(map(int, shape))}", int(tokens))
    rows = max(1, tokens_per_batch // int(tokens))
    # Multiples of 8 divide among devices and fit tensor cores.
    return min(rows - rows % 8 if rows >= 8 else rows, most)
