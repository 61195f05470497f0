"""Tokens on a coloured background: what each says for or against an answer."""

import re
import unicodedata

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.font_manager import FontProperties
from matplotlib.patches import FancyBboxPatch

from kzoo.plots.style import (
    FAINT,
    INK,
    SEQUENTIAL,
    SIGNED,
    ShownFigure,
    token_fonts,
    visible,
)

_SIZE, _LINE, _MARGIN = 10.0, 0.27, 0.15  # points; inches
_SPACES = ("▁", "Ġ", " ")  # how tokenizers write the space before a word
_INNER = "##"  # how WordPiece writes that there is none


def saliency(tokens, values, *, signed=None, title=None, label="saliency", width=7.0):
    """Draws a text with each token on the colour of its value.

    Blue is for, red is against where values are signed, white is 0; the largest
    absolute value has the full colour. Lines are broken between tokens and after
    newlines. Tokens of one word stand close: those without a mark of a space before
    them, where tokens have such marks. Lines of a text in a script that is written from
    right to left begin on the right.

    Args:
        tokens: strings.
        values: float, one a token, such as a row of `token_saliency`; later ones are
            padding.
        signed: whether the scale reaches from -m to m or from 0 to m; by default
            whether a value is negative.
        title: above the figure.
        label: what the values are.
        width: of the figure, in inches.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ValueError: no token, fewer values than tokens, a value that is not finite, or
            negative values with `signed=False`.
    """
    tokens = [str(token) for token in tokens]
    values = np.asarray(values, np.float64)
    if not tokens or values.ndim != 1 or len(values) < len(tokens):
        raise ValueError(
            "saliency needs one token at least and a value for each, of one axis. "
            f"Received: {len(tokens)} tokens and values of shape {values.shape}."
        )
    values = values[: len(tokens)]
    if not np.isfinite(values).all():
        raise ValueError("saliency draws finite values. Received: inf or nan.")
    if signed is None:
        signed = bool((values < 0).any())
    if not signed and (values < 0).any():
        raise ValueError(
            "With signed=False values must not be negative. Received: "
            f"{values.min():.3g} as the smallest; give signed=True or absolute values."
        )
    highest = float(np.abs(values).max()) or 1.0
    scale = ScalarMappable(
        Normalize(-highest if signed else 0.0, highest),
        SIGNED if signed else SEQUENTIAL,
    )

    # Without a layout engine: all places are computed here, in inches from the top.
    figure = ShownFigure(figsize=(width, 1.0), dpi=150)
    boxes, lines = _lines(figure, tokens, width - 2 * _MARGIN)
    from_the_right = _from_the_right(tokens)
    head = 0.42 if title else 0.12
    height = head + lines * _LINE + 0.75
    figure.set_size_inches(width, height)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    fonts = token_fonts()
    for (text, x, line, length), value in zip(boxes, values, strict=True):
        if from_the_right:
            x = width - 2 * _MARGIN - x - length
        color = scale.to_rgba(value)
        top = head + line * _LINE
        axes.add_patch(
            FancyBboxPatch(
                (_MARGIN + x, top + 0.025),
                length,
                _LINE - 0.05,
                boxstyle="round,pad=0,rounding_size=0.03",
                facecolor=color,
                linewidth=0,
            )
        )
        luminance = np.dot(color[:3], (0.299, 0.587, 0.114))
        axes.text(
            _MARGIN + x + length / 2,
            top + 0.72 * _LINE,
            text,
            fontsize=_SIZE,
            fontfamily=fonts,
            ha="center",
            va="baseline",
            color=INK if luminance > 0.5 else "white",
            parse_math=False,
        )
    if title:
        axes.text(
            _MARGIN,
            0.27,
            title,
            fontsize=11,
            fontfamily=fonts,
            color=INK,
            parse_math=False,
        )
    bar_axes = figure.add_axes(
        (_MARGIN / width, 0.36 / height, min(2.6, width / 2) / width, 0.1 / height)
    )
    bar = figure.colorbar(
        scale,
        cax=bar_axes,
        orientation="horizontal",
        ticks=[-highest if signed else 0.0, 0.0 if signed else highest / 2, highest],
    )
    bar.outline.set_visible(False)
    bar_axes.xaxis.set_major_formatter(lambda value, _: f"{value:.3g}")
    bar_axes.tick_params(labelsize=7, color=FAINT, labelcolor=INK)
    first, *_, last = bar_axes.xaxis.get_ticklabels()
    first.set_horizontalalignment("left")
    last.set_horizontalalignment("right")
    # Beside the bar, where its numbers are not.
    bar_axes.text(
        1.08,
        0.5,
        label,
        parse_math=False,
        transform=bar_axes.transAxes,
        fontsize=8,
        color=INK,
        va="center",
    )
    return figure


def _from_the_right(tokens):
    """Whether most letters, but those of special tokens, are written so."""
    words = [each for each in tokens if not re.fullmatch(r"<.*>|\[.*\]", each)]
    kinds = [unicodedata.bidirectional(letter) for letter in "".join(words)]
    return sum(kind in ("R", "AL") for kind in kinds) > kinds.count("L")


def _lines(figure, tokens, width):
    """(text, x, line, width) of each token, in inches; and how many lines."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    font = FontProperties(family=token_fonts(), size=_SIZE)
    marked = any(token.startswith((*_SPACES, _INNER)) for token in tokens)
    letters = all(len(token) == 1 for token in tokens)
    inner = any(token.startswith(_INNER) for token in tokens)
    boxes, x, line = [], 0.0, 0
    for token in tokens:
        begins = not token.startswith(_INNER) if inner else token.startswith(_SPACES)
        text = token
        if marked and len(token) > 1:
            text = token.removeprefix(_INNER) if inner else token.lstrip("▁Ġ ") or token
        length, longest = width + 1, 40
        while length > width and longest:  # a token longer than a line is cut
            text = visible(text, longest)
            pixels, _, _ = renderer.get_text_width_height_descent(text, font, False)
            length, longest = pixels / figure.dpi + 0.07, len(text) - 1
        # A word's own tokens stand close, and so do letters.
        gap = 0.015 if letters or (marked and not begins) else 0.07
        start = x + gap if x else 0.0
        if start + length > width and x:
            line, start = line + 1, 0.0
        boxes.append((text, start, line, length))
        x = start + length
        if token.endswith(("\n", "Ċ")):
            line, x = line + 1, 0.0
    return boxes, boxes[-1][2] + 1
