"""Positions: a table of vectors, how they compare, and rotary angles."""

import numpy as np
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator, StrMethodFormatter

from kzoo.plots.style import (
    COLORS,
    FAINT,
    INK,
    PALE,
    SIGNED,
    add_title,
    color_bar,
    draw_map,
    new_figure,
    number_axis,
    quiet_axes,
)

_FINEST = 450  # places of a picture's side
_MEASURES = {
    "distance": "Euclidean distance",
    "dot": "dot product",
    "cosine": "cosine of the angle",
}


def position_table(table=None, *, length=100, hidden_dim=128, title=None):
    """Draws position vectors as a heat map: positions run down, the width across.

    Args:
        table: float (positions, D), such as the `position_embedding` of a model; by
            default the paper's sinusoids.
        length: positions of the default table.
        hidden_dim: D of the default table, even.
        title: above the figure.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ValueError: the table has other axes, or `hidden_dim` is odd.
    """
    table = _table("position_table", table, length, hidden_dim)
    height = float(np.clip(0.03 * len(table) + 1.4, 2.6, 7.0))
    figure = new_figure(6.4, height)
    axes = figure.subplots()
    image = _signed_map(axes, table)
    number_axis(axes.xaxis, 5.0, "dimension")
    number_axis(axes.yaxis, height - 1, "position")
    color_bar(figure, image, axes, "value")
    add_title(figure, title)
    return figure


def position_distance(
    table=None, *, measure="distance", length=100, hidden_dim=128, title=None
):
    """Draws how position vectors compare: every pair, and by how far apart they are.

    On the right the mean over all pairs that are k apart, from the smallest to the
    largest; for sinusoids all pairs are equal, since the dot product of two depends on
    k alone.

    Args:
        table: see `position_table`.
        measure: `"distance"` (Euclidean), `"dot"` or `"cosine"`.
        length: positions of the default table.
        hidden_dim: D of the default table, even.
        title: above the figure.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ValueError: the table has other axes, `hidden_dim` is odd, or the measure is
            not known.
    """
    if measure not in _MEASURES:
        raise ValueError(
            f"measure must be one of {', '.join(map(repr, _MEASURES))}. "
            f"Received: {measure!r}."
        )
    table = _table("position_distance", table, length, hidden_dim)
    if measure == "distance":  # which an offset of all would round away
        table = table - table.mean(axis=0)
    squares = np.sum(table**2, axis=1)
    values = table @ table.T
    if measure == "distance":
        squared = squares[:, None] + squares[None, :] - 2 * values
        values = np.sqrt(np.maximum(squared, 0.0))
        np.fill_diagonal(values, 0.0)
    if measure == "cosine":
        norms = np.sqrt(squares)
        values = values / np.maximum(np.outer(norms, norms), 1e-12)
    figure = new_figure(9.0, 4.0)
    left, right = figure.subplots(1, 2, width_ratios=[1.15, 1.0])
    if values.min() < 0:
        image = _signed_map(left, values, aspect="equal")
    else:
        image = draw_map(left, values, limits=(0.0, values.max()), aspect="equal")
    for axis in (left.xaxis, left.yaxis):
        number_axis(axis, 3.0, "position")
    color_bar(figure, image, left, _MEASURES[measure])

    offsets = np.arange(len(table))
    diagonals = [np.diagonal(values, k) for k in offsets]
    right.fill_between(
        offsets,
        [d.min() for d in diagonals],
        [d.max() for d in diagonals],
        color=COLORS[0],
        alpha=0.2,
        linewidth=0,
        label="all pairs",
    )
    right.plot(offsets, [d.mean() for d in diagonals], color=COLORS[0], label="mean")
    quiet_axes(right)
    right.set_xlabel("positions apart", fontsize=9, color=INK)
    right.set_ylabel(_MEASURES[measure], fontsize=9, color=INK)
    right.set_xlim(0, max(1, len(table) - 1))
    right.legend(frameon=False, fontsize=8, labelcolor=INK)
    add_title(figure, title)
    return figure


def rotary(head_dim=64, *, max_wavelength=10_000.0, length=512, title=None):
    """Draws rotary positions: the turns of each pair, their length, and the decay.

    Left the cosine of the angle by which each of the H/2 pairs of a head is turned at a
    position. In the middle how many tokens a full turn takes; above the dashed line it
    takes more than `length`. Right the score of a query with an equal key, all pairs
    alike, k tokens before it, as a share of that at 0: the mean of cos(k * frequency);
    and the paper's bound on the score, as a share of the bound at 0 (so the score's
    share may be above it).
    Paper: RoFormer, Su et al., 2021, https://arxiv.org/abs/2104.09864, sections 3.2
    and 3.4.3.

    Args:
        head_dim: H, even.
        max_wavelength: the base of the frequencies, 10 000 in the paper.
        length: tokens.
        title: above the figure.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ValueError: H is odd, there are fewer than 2 tokens, or the base is no positive
            number.
    """
    if not 0 < max_wavelength < np.inf:
        raise ValueError(
            f"max_wavelength must be a positive number. Received: {max_wavelength}."
        )
    if head_dim < 2 or head_dim % 2 or length < 2:
        raise ValueError(
            "rotary needs an even head_dim, turned in pairs, and 2 tokens at least. "
            f"Received: head_dim={head_dim}, length={length}."
        )
    pairs = np.arange(head_dim // 2)
    frequencies = float(max_wavelength) ** (-2.0 * pairs / head_dim)
    positions = np.arange(length)
    angles = positions[:, None] * frequencies
    turns = np.exp(1j * angles)
    # Section 3.4.3: sums of the first j turns, in absolute value, averaged over j.
    bound = np.abs(np.cumsum(turns, axis=1)).mean(axis=1)

    figure = new_figure(12.6, 3.9)
    left, middle, right = figure.subplots(1, 3, width_ratios=[1.1, 0.9, 1.1])
    image = _signed_map(left, np.cos(angles))
    number_axis(left.xaxis, 3.0, "pair of the head")
    number_axis(left.yaxis, 3.0, "position")
    color_bar(figure, image, left, "cosine of the angle")

    middle.plot(
        pairs, 2 * np.pi / frequencies, color=COLORS[0], marker="o", ms=2.5, lw=1
    )
    middle.axhline(length, color=FAINT, linestyle="--", linewidth=1)
    middle.annotate(
        f"length {length:,}",
        (0, length),
        xytext=(2, 3),
        textcoords="offset points",
        fontsize=8,
        color=INK,
    )
    middle.set_yscale("log")
    powers = 10.0 ** np.arange(0, 2 + np.ceil(np.log10(2 * np.pi * max_wavelength)))
    middle.set_ylim(3, max(2 * length, 2 * float(2 * np.pi / frequencies[-1])))
    middle.yaxis.set_major_locator(FixedLocator(powers))
    middle.yaxis.set_minor_locator(NullLocator())
    middle.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    middle.xaxis.set_major_locator(
        MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10])
    )
    middle.set_xlabel("pair of the head", fontsize=9, color=INK)
    middle.set_ylabel("tokens a turn", fontsize=9, color=INK)

    right.axhline(0.0, color=PALE, linewidth=1)
    right.plot(
        positions, bound / bound[0], color=COLORS[1], lw=1.2, label="paper's bound"
    )
    right.plot(
        positions,
        np.cos(angles).mean(axis=1),
        color=COLORS[0],
        lw=1.2,
        label="equal query and key",
    )
    right.set_xlim(0, length - 1)
    right.set_xlabel("tokens apart", fontsize=9, color=INK)
    right.set_ylabel("score, as a share of that at 0", fontsize=9, color=INK)
    right.legend(frameon=False, fontsize=8, labelcolor="linecolor")
    for axes in (middle, right):
        quiet_axes(axes)
    add_title(figure, title)
    return figure


def _table(who, table, length, hidden_dim):
    """The table as float64, or the paper's sinusoids (section 3.5)."""
    if table is None:
        if hidden_dim < 2 or hidden_dim % 2 or length < 1:
            raise ValueError(
                "Sinusoids need an even hidden_dim and a length of 1 at least. "
                f"Received: hidden_dim={hidden_dim}, length={length}."
            )
        angles = np.arange(length)[:, None] * 10_000.0 ** (
            -np.arange(0, hidden_dim, 2) / hidden_dim
        )
        both = np.stack([np.sin(angles), np.cos(angles)], axis=-1)
        return both.reshape(length, hidden_dim)
    table = np.asarray(table, np.float64)
    if table.ndim != 2 or not table.size or not np.isfinite(table).all():
        raise ValueError(
            f"{who} draws finite numbers of the axes (positions, hidden_dim). "
            f"Received: shape {table.shape}."
        )
    return table


def _signed_map(axes, values, aspect="auto"):
    highest = float(np.abs(values).max()) or 1.0
    rows, columns = values.shape
    image = draw_map(
        axes,
        _coarse(_coarse(values, 0), 1),
        limits=(-highest, highest),
        colors=SIGNED,
        aspect=aspect,
    )
    image.set_extent((-0.5, columns - 0.5, rows - 0.5, -0.5))
    image.set_interpolation("nearest")
    return image


def _coarse(values, axis):
    """Means of neighbours where there are more of them than a picture has places."""
    size = -(-values.shape[axis] // _FINEST)
    starts = np.arange(0, values.shape[axis], size)
    counts = np.diff(np.append(starts, values.shape[axis]))
    sums = np.add.reduceat(values, starts, axis=axis)
    return sums / np.expand_dims(counts, 1 - axis)
