"""Which classes are taken for which."""

import numbers

import numpy as np

from kzoo.plots.style import (
    INK,
    add_title,
    color_bar,
    draw_map,
    label_tokens,
    new_figure,
    visible,
)

_NUMBERS_UP_TO, _SHARES_UP_TO = 40, 14
_LONGEST_NAME = 26  # letters


def confusion_matrix(true, predicted, names=None, *, title=None):
    """Draws how often each true class (down) was predicted as each class (across).

    A cell has the count and, where there is room, its share of the true class, which is
    also its colour: the diagonal is the recall.

    Args:
        true: the class of each example, an int or a name.
        predicted: likewise, as many.
        names: of the classes, in the order of the axes; where none of them is an int or
            a bool, those in `true` and `predicted` are indices of it. By default what
            is there, sorted.
        title: above the figure.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ValueError: no examples, not as many predictions, a class that is not in
            `names`, NaN, or names that are equal or cannot be sorted.
    """
    true, predicted = np.asarray(true).tolist(), np.asarray(predicted).tolist()
    if not true or len(true) != len(predicted):
        raise ValueError(
            "confusion_matrix needs a prediction for each of 1 or more examples. "
            f"Received: {len(true)} true and {len(predicted)} predicted classes."
        )
    found = {*true, *predicted}
    if any(value != value for value in found):
        raise ValueError("NaN is no class. Received: NaN; leave those examples out.")
    if names is None:
        try:
            names = sorted(found)
        except TypeError as error:
            kinds = sorted({type(value).__name__ for value in found})
            raise ValueError(
                f"The classes should be all names or all numbers. Received: {kinds}."
            ) from error
    names = [bool(name) if isinstance(name, np.bool_) else name for name in names]
    places = {name: place for place, name in enumerate(names)}
    if len(places) < len(names):
        raise ValueError(f"The names of the classes should differ. Received: {names}.")
    if all(isinstance(value, numbers.Integral) for value in found) and not any(
        isinstance(name, numbers.Integral) for name in names
    ):
        places = {place: place for place in range(len(names))}
    unknown = sorted(str(value) for value in found - places.keys())
    if unknown:
        raise ValueError(
            f"Each class must be one of the {len(names)} names, or its index. "
            f"Received: {', '.join(unknown[:10])}."
        )
    counts = np.zeros((len(names), len(names)), int)
    for row, column in zip(true, predicted, strict=True):
        counts[places[row], places[column]] += 1
    totals = counts.sum(axis=1, keepdims=True)
    shares = counts / np.maximum(totals, 1)

    size = len(names)
    with_shares = size <= _SHARES_UP_TO
    cell = 0.62 if with_shares else float(np.clip(13.0 / size, 0.1, 0.4))
    side = max(1.6, cell * size)
    cell = side / size
    longest = 0.075 * min(_LONGEST_NAME, max(len(str(name)) for name in names))
    figure = new_figure(side + longest + 2.0, side + longest + 1.1)
    axes = figure.subplots()
    image = draw_map(axes, shares, limits=(0.0, 1.0), aspect="equal")
    ends = [f"  ({n:,})" for n in totals[:, 0]]
    # A long name is cut, and not the number after it.
    rows = [visible(n, _LONGEST_NAME - len(end)) + end for n, end in zip(names, ends)]
    rotate = size > 4 or longest > 0.6
    label_tokens(axes.yaxis, rows, side, longest=_LONGEST_NAME)
    label_tokens(axes.xaxis, names, side, rotate=rotate, longest=_LONGEST_NAME)
    axes.set_ylabel("true class (examples)", fontsize=9, color=INK)
    axes.set_xlabel("predicted class", fontsize=9, color=INK)
    if size <= _NUMBERS_UP_TO:
        widest = len(f"{counts.max():,}")
        font = min(8.5, 72 * cell / (0.72 * widest + 0.4))
        for row, column in np.ndindex(size, size):
            count, share = counts[row, column], shares[row, column]
            if not count:
                continue
            axes.text(
                column,
                row,
                f"{count:,}\n{share:.0%}" if with_shares else f"{count:,}",
                ha="center",
                va="center",
                fontsize=font,
                color="white" if share > 0.55 else INK,
            )
    accuracy = np.trace(counts) / counts.sum()
    axes.set_title(
        f"accuracy {accuracy:.1%} of {counts.sum():,} examples", fontsize=9, color=INK
    )
    bar = color_bar(figure, image, axes, "share of the true class")
    bar.ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    add_title(figure, title)
    return figure
