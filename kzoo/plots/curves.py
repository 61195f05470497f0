"""Curves of a training."""

import math
import numbers

import numpy as np
from matplotlib.ticker import MaxNLocator, ScalarFormatter

from kzoo.plots.style import COLORS, INK, add_title, new_figure, quiet_axes

# What a history also holds and nobody wants to see as a curve.
_NO_CURVE = ("epoch", "seconds")


def training_curve(history, *, title=None, validation_freq=None):
    """Draws every measure of a training over its epochs, validation beside it.

    Args:
        history: Keras's `History`; or a dict from name to a value an epoch; or a list
            of dicts, one an epoch, as `kzoo train` writes to `history.json`.
        title: above the figure.
        validation_freq: that of `fit`, where the number of values does not tell it: an
            int, or a list of epochs, from 1.

    Returns:
        `matplotlib.figure.Figure`, a panel a measure; one that is several numbers an
        epoch, as a metric of each class is, has none.

    Raises:
        ValueError: no epoch; or `validation_freq` is needed and not given, or gives
            another number of values.
    """
    epochs, series = _series(history)
    names = [name for name in series if not name.startswith("val_")]
    names += [n[4:] for n in series if n.startswith("val_") and n[4:] not in series]
    # The loss first, and whatever else in the order it came.
    names.sort(key=lambda name: name != "loss")
    figure = new_figure(4.8 * len(names), 3.4)
    for axes, name in zip(
        figure.subplots(1, len(names), squeeze=False)[0], names, strict=True
    ):
        drawn = []
        for key, label, color in (
            (name, "training", COLORS[0]),
            (f"val_{name}", "validation", COLORS[1]),
        ):
            values = series.get(key, ())
            places = epochs
            if values and len(values) != len(epochs):
                places = _validated(epochs, len(values), validation_freq)
            points = [each for each in zip(places, values) if each[1] is not None]
            # Where it is no number, the line has a gap.
            gaps = [(x, y if math.isfinite(y) else math.nan) for x, y in points]
            points = [(x, y) for x, y in gaps if not math.isnan(y)]
            if not points:
                continue
            x, y = zip(*points, strict=True)
            axes.plot(
                *zip(*gaps, strict=True),
                color=color,
                label=label,
                marker="o" if len(x) < 20 else None,
                ms=3,
            )
            drawn.append((label, x, y, color))
        quiet_axes(axes)
        axes.grid(axis="y", color="#eeeeee")
        axes.set_axisbelow(True)
        axes.set_xlabel("epoch", fontsize=9, color=INK)
        heading = dict(fontsize=10, color=INK, loc="left", parse_math=False)
        axes.set_title(name.replace("_", " "), **heading)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        numbers_of_ticks = ScalarFormatter(useOffset=False)
        numbers_of_ticks.set_powerlimits((-5, 9))  # others have a factor above the axis
        axes.yaxis.set_major_formatter(numbers_of_ticks)
        if len(drawn) > 1:
            axes.legend(frameon=False, fontsize=8, labelcolor="linecolor")
    add_title(figure, title)
    return figure


def _series(history):
    """Numbers of the epochs, from 1, and name to a value (or `None`) an epoch."""
    if hasattr(history, "history"):
        epochs = [epoch + 1 for epoch in history.epoch]
        series = dict(history.history)
    elif isinstance(history, dict):
        series = dict(history)
        epochs = None
    else:
        rows = list(history)
        names = dict.fromkeys(name for row in rows for name in row)
        series = {name: [row.get(name) for row in rows] for name in names}
        epochs = series.get("epoch")
    series = {
        name: list(values)
        for name, values in series.items()
        if name not in _NO_CURVE and not any(map(np.ndim, values))
    }
    longest = max((len(values) for values in series.values()), default=0)
    if not longest:
        raise ValueError(
            "training_curve needs one epoch at least, of a measure that is one number. "
            "Received: none."
        )
    return epochs or list(range(1, longest + 1)), series


def _validated(epochs, values, freq):
    """The epochs that so many values of a validation are of, as Keras counts them."""
    if freq is None:
        found = [
            places
            for every in range(2, max(epochs) + 1)
            if len(places := [e for e in epochs if e % every == 0]) == values
        ]
        if found and all(places == found[0] for places in found):
            return found[0]
    else:
        chosen = freq
        if isinstance(freq, numbers.Integral):  # 0 and less have no multiples
            chosen = range(freq, max(epochs) + 1, freq) if freq > 0 else ()
        places = [epoch for epoch in epochs if epoch in chosen]
        if len(places) == values:
            return places
    raise ValueError(
        f"There are {values} values of the validation in the epochs {epochs[0]} to "
        f"{epochs[-1]}: give validation_freq, as to fit. Received: {freq}."
    )
