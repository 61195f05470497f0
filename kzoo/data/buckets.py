"""Few shapes for sequences of many lengths, chosen to pad little."""

import numpy as np

from kzoo.arguments import check_count
from kzoo.data.padding import round_up

# More candidate boundaries than this change the padding by little and cost time.
_MOST_CANDIDATES = 256


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
    if not len(lengths):
        raise ValueError("choose_buckets needs one length at least. Received: none.")
    check_count("count", count)
    check_count("multiple", multiple)
    rounded = round_up(lengths, multiple)
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
    # costs[-1][j]: the least cost of groups 0 to j with the buckets so far.
    costs = [cost[0]]
    starts = [np.zeros(size, int)]
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


def assign(lengths, kept, shapes):
    """Puts each example into the cheapest bucket that holds it.

    Args:
        lengths: int (N, number of sequence features).
        kept: indices of the examples.
        shapes: the buckets' shapes, each with a length a feature.

    Returns:
        list of (shape, example indices), of buckets with any, the cheapest first.
    """
    shapes = np.array(sorted(map(tuple, shapes), key=lambda shape: (sum(shape), shape)))
    bucket = np.zeros(len(kept), int)
    for number in reversed(range(len(shapes))):  # the cheapest that fits comes last
        bucket[(lengths[kept] <= shapes[number]).all(axis=1)] = number
    return [
        (shape, kept[bucket == number])
        for number, shape in enumerate(shapes)
        if (bucket == number).any()
    ]
