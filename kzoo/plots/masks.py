"""Masks: who may attend to whom."""

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from kzoo.plots.style import (
    COLORS,
    INK,
    PALE,
    add_title,
    draw_map,
    label_tokens,
    new_figure,
    number_axis,
)

_LARGEST_GRID = 64


def mask(
    masks,
    query_tokens=None,
    key_tokens=None,
    *,
    title=None,
    query_label=None,
    key_label="key",
):
    """Draws boolean masks: coloured where a query may attend to a key.

    Args:
        masks: bool (T, S), `True` = may attend; axes of size 1 before them are dropped,
            so that (1, 1, T, S) is drawn, too. A padding mask bool (B, S) is drawn a
            row each. Or a dict from a name to such a mask, a panel each.
        query_tokens: T strings beside the rows, or `None` for their numbers from 0.
        key_tokens: S strings below the columns; by default those of the query where
            T = S, else numbers.
        title: above the figure.
        query_label: what the rows are; by default "query" where T = S, else "row".
        key_label: what the columns are.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ValueError: a mask is not boolean or has other axes, or tokens do not fit.
    """
    named = masks if isinstance(masks, dict) else {"": masks}
    if not named:
        raise ValueError("mask needs one mask at least. Received: an empty dict.")
    panels = {name: _two_axes(name, value) for name, value in named.items()}
    # Cells are square and panels one size, unless one is a narrow strip.
    longest = max(max(panel.shape) for panel in panels.values())
    cell = min(0.3, float(np.clip(0.19 * longest, 2.4, 5.0)) / longest)
    sizes = [
        (max(1.0, cell * panel.shape[1]), max(0.3, cell * panel.shape[0]))
        for panel in panels.values()
    ]
    figure = new_figure(
        sum(width for width, _ in sizes) + 0.8 * len(sizes) + 0.2,
        max(height for _, height in sizes) + 1.2 + (0.3 if title else 0.0),
    )
    grid = figure.subplots(
        1, len(panels), squeeze=False, width_ratios=[width for width, _ in sizes]
    )[0]
    colors = ListedColormap([PALE, COLORS[0]])
    for axes, (name, values), (width, height) in zip(
        grid, panels.items(), sizes, strict=True
    ):
        draw_map(axes, values, limits=(0, 1), colors=colors, aspect="equal")
        axes.set_title(name, fontsize=9, color=INK, parse_math=False)
        rows, keys = values.shape
        if max(rows, keys) <= _LARGEST_GRID:
            axes.set_xticks(np.arange(1, keys) - 0.5, minor=True)
            axes.set_yticks(np.arange(1, rows) - 0.5, minor=True)
            axes.grid(which="minor", color="white", linewidth=0.8)
            axes.tick_params(which="minor", length=0)
        key_names = query_tokens if key_tokens is None and rows == keys else key_tokens
        for axis, names, count, inches, label in (
            (axes.yaxis, query_tokens, rows, height, query_label),
            (axes.xaxis, key_names, keys, width, key_label),
        ):
            if label is None:
                label = "query" if rows == keys else "row"
            number_axis(axis, 1.4 * inches, label)
            if names is not None:
                _name(axis, list(names), count, inches, what=name)
        axes.spines[:].set_visible(False)
    figure.legend(
        handles=[
            Patch(color=COLORS[0], label="may attend"),
            Patch(color=PALE, label="may not"),
        ],
        loc="outside lower center",
        ncols=2,
        frameon=False,
        fontsize=8,
        labelcolor=INK,
        handlelength=1,
        handleheight=1,
    )
    add_title(figure, title)
    return figure


def _name(axis, names, count, inches, what):
    if len(names) != count:
        raise ValueError(
            f"The mask {what + ' ' if what else ''}needs {count} tokens on its "
            f"{axis.axis_name} axis. Received: {len(names)}."
        )
    label_tokens(axis, names, inches, rotate=axis.axis_name == "x")


def _two_axes(name, value):
    array = np.asarray(value)
    shape = array.shape
    while array.ndim > 2 and len(array) == 1:
        array = array[0]
    if array.ndim == 1:
        array = array[None]
    if array.dtype != bool and not np.isin(array, (0, 1)).all():
        raise ValueError(
            f"A mask is boolean, True where a query may attend. Received: {name!r} of "
            f"{array.dtype}; a bias of large negative numbers is drawn as `bias > -1`."
        )
    if array.ndim != 2 or not array.size:
        raise ValueError(
            "A mask has the axes (queries, keys), after axes of size 1. Received: "
            f"{name!r} of shape {shape}; choose one of the batch, such as mask[0]."
        )
    return array.astype(bool)
