"""Texts that are longer than a model reads at once, in overlapping windows."""

from itertools import accumulate


def windows(lengths, room):
    """Windows over units, such as words, that overlap by up to half.

    Every unit is owned by one window: that in which it stands farther from the edge,
    so that it is learned once and predicted once, with context on both sides.

    Args:
        lengths: of each unit in tokens, none above `room`.
        room: tokens of a window, or `None` for any number.

    Returns:
        list of ((first, last), (begin, end)): a window holds the units first to
        last - 1, and owns of these begin to end - 1.
    """
    before = list(accumulate(lengths, initial=0))  # tokens before each unit
    count = len(lengths)
    if room is None or before[-1] <= room:
        return [((0, count), (0, count))]
    spans, first, last = [], 0, 0
    while last < count:
        # As much of the window before as leaves room for the next unit, at most half.
        kept = min(room // 2, room - lengths[last])
        while before[last] - before[first] > kept:
            first += 1
        last += 1
        while last < count and before[last + 1] - before[first] <= room:
            last += 1
        spans.append((first, last))
    owned = [0]
    for (_, last), (first, _) in zip(spans, spans[1:]):
        middle = (before[first] + before[last]) / 2
        owned.append(next(i for i in range(first, last + 1) if before[i] >= middle))
    return list(zip(spans, zip(owned, [*owned[1:], count]), strict=True))
