"""Sequences as the rows of one array."""

import numpy as np

from kzoo.arguments import check_count


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
        ValueError: a sequence is longer than `length`, an unknown side, or a `pad_id`
            that is no int32.
    """
    if side not in ("right", "left"):
        raise ValueError(f"side must be 'right' or 'left'. Received: {side!r}.")
    check_count("multiple", multiple)
    limits = np.iinfo(np.int32)
    check_count("pad_id", pad_id, limits.min, limits.max)
    longest = max((len(sequence) for sequence in sequences), default=0)
    length = longest if length is None else length
    check_count("length", length, 0)
    if longest > length:
        raise ValueError(
            f"length must hold the longest sequence, {longest} ids. "
            f"Received: length={length}. Truncate the sequences, or raise it."
        )
    batch = np.full((len(sequences), round_up(length, multiple)), pad_id, np.int32)
    for row, sequence in zip(batch, sequences, strict=True):
        if len(sequence):
            sequence = int32("ids", sequence)
            if side == "right":
                row[: len(sequence)] = sequence
            else:
                row[-len(sequence) :] = sequence
    return batch


def int32(name, values):
    """Integers as int32.

    Args:
        name: that an error gives them.
        values: an array, or what becomes one.

    Raises:
        TypeError: they are no integers.
        ValueError: one is beyond int32, where it would become another.
    """
    values = np.asarray(values)
    if values.size and values.dtype.kind not in "iub":
        raise TypeError(f"{name} must be integers. Received: dtype {values.dtype}.")
    if values.dtype.itemsize >= 4 and values.dtype != np.int32 and values.size:
        limits = np.iinfo(np.int32)
        for value in (values.min(), values.max()):
            if not limits.min <= value <= limits.max:
                raise ValueError(f"{name} must fit in int32. Received: {value}.")
    return values.astype(np.int32)


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
    ids = int32("ids", ids)
    if ids.ndim != 1:
        raise ValueError(
            "packed_blocks expects one flat sequence of ids. "
            f"Received: shape {ids.shape}."
        )
    check_count("length", length)
    check_count("overlap", overlap, 0, length - 1)
    if len(ids) < length:
        raise ValueError(
            f"packed_blocks needs at least length={length} ids. Received: {len(ids)}. "
            "Give a longer text, a larger share of it, or a smaller length."
        )
    windows = np.lib.stride_tricks.sliding_window_view(ids, length)
    return windows[:: length - overlap].copy()


def round_up(number, multiple):
    """The least multiple that is not below the number, or the numbers of an array."""
    return -(-number // multiple) * multiple
