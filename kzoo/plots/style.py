"""How all figures look, and what several of them draw."""

import io
import textwrap

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager

# Seen apart by colour-blind readers, too (Okabe and Ito, 2008).
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
INK = "#333333"
FAINT = "#aaaaaa"  # frames, ticks and grids
PALE = "#e6e6e6"
SEQUENTIAL, SIGNED = "Blues", "RdBu"  # white is 0, blue is positive in both

# White space that a reader could not see in a label.
_VISIBLE = str.maketrans({"\n": "⏎", "\t": "⇥", "▁": "␣", "Ġ": "␣", "Ċ": "⏎"})

# Of what systems have: letters and signs that matplotlib's own font lacks.
_MORE_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Source Han Sans SC",
    "PingFang SC",
    "Hiragino Sans",
    "Microsoft YaHei",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Arial Unicode MS",
    "Nirmala UI",
    "Noto Sans Devanagari",
    "Noto Sans Thai",
    "Noto Emoji",
    "Segoe UI Emoji",
    "Symbola",
)


class ShownFigure(Figure):
    """A figure that a notebook shows, which others need pyplot for."""

    def _repr_mimebundle_(self, **_):
        file = io.BytesIO()
        self.savefig(file, format="png")
        # Two thirds of the size in dots: sharp on fine screens, too.
        width, height = (round(100 * inches) for inches in self.get_size_inches())
        size = {"width": width, "height": height}
        return {"image/png": file.getvalue()}, {"image/png": size}


def new_figure(width, height):
    """An empty figure of `width` by `height` inches; its parts keep apart."""
    return ShownFigure(figsize=(width, height), dpi=150, layout="constrained")


def add_title(figure, title):
    """The title above a figure, where there is one, in lines that it has room for."""
    if not title:
        return
    lines = _written(title).split("\n")
    letters = max(map(len, lines))
    look = dict(fontsize=11, color=INK, parse_math=False, fontfamily=token_fonts())
    shown = figure.suptitle("\n".join(lines), **look)
    while shown.get_window_extent().width > 0.96 * figure.bbox.width and letters > 1:
        letters = max(1, int(0.9 * letters))
        shown.set_text("\n".join(textwrap.fill(line, letters) for line in lines))


def quiet_axes(axes):
    """Leaves of an axes' frame what is read."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(color=FAINT, labelcolor=INK, labelsize=8)


def draw_map(axes, values, *, limits, colors=SEQUENTIAL, aspect="auto"):
    """An array as a picture, the first row on top; its axes without ticks."""
    image = axes.imshow(
        values,
        vmin=limits[0],
        vmax=limits[1],
        cmap=colors,
        aspect=aspect,
        interpolation_stage="data",  # the mean of red and blue is 0, not purple
    )
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_color("#cccccc")
    return image


def color_bar(figure, image, axes, label):
    """The scale beside a picture."""
    bar = figure.colorbar(image, ax=axes, shrink=0.8, aspect=40, pad=0.01)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=7, color=FAINT, labelcolor=INK)
    bar.set_label(label, fontsize=8, color=INK, parse_math=False)
    return bar


def label_tokens(axis, tokens, inches, *, shown=True, rotate=False, longest=16):
    """Puts a label at every token, as large as the place allows; thinned when tiny.

    Args:
        axis: of a matplotlib `Axes`; token i is at i.
        tokens: strings.
        inches: the length of the axis.
        shown: whether there are labels, or the marks alone.
        rotate: whether labels of several letters stand upright.
        longest: letters of a label; longer ones are cut.
    """
    points = 72 * inches / len(tokens)
    step = max(1, int(np.ceil(5.0 / points)))
    axis.set_ticks(range(0, len(tokens), step))
    axis.set_tick_params(length=0, pad=2)
    if not shown:
        axis.set_ticklabels([])
        return
    texts = [visible(token, longest) for token in tokens[::step]]
    size = float(np.clip(0.72 * points * step, 4.5, 9.0))
    # Without parse_math=False a "$" would begin a formula.
    labels = axis.set_ticklabels(
        texts, fontsize=size, color=INK, parse_math=False, fontfamily=token_fonts()
    )
    for label in labels:
        if rotate and len(label.get_text()) > 1:
            label.set_rotation(90)


def number_axis(axis, inches, label):
    """Round numbers, from 0, along an axis of a picture."""
    low, high = sorted(axis.get_view_interval())
    count, most = round(high - low), max(2.0, 2.2 * inches)
    step = next(
        s * 10**p for p in range(9) for s in (1, 2, 5) if count <= most * s * 10**p
    )
    axis.set_ticks(range(0, count, step))
    axis.set_tick_params(length=2, color=FAINT, labelsize=8, labelcolor=INK)
    axis.set_label_text(label, fontsize=9, color=INK, parse_math=False)


def token_fonts():
    """Names of fonts for text in any language: the user's, then what is installed."""
    installed = set(fontManager.get_font_names())
    more = [name for name in _MORE_FONTS if name in installed]
    return [*matplotlib.rcParams["font.family"], *more]


def visible(token, longest=16, tail=0):
    """A token as a label: white space at its ends is seen, a long one cut.

    Args:
        token: a string.
        longest: letters of a label.
        tail: how many of them are the last of one that is cut.
    """
    text = _written(token).translate(_VISIBLE)
    inner = text.strip(" ")
    before = len(text) - len(text.lstrip(" ")) if inner else len(text)
    text = "␣" * before + inner + "␣" * (len(text) - before - len(inner))
    if len(text) <= longest:
        return text
    return text[: longest - 1 - tail] + "…" + text[len(text) - tail :]


def _written(text):
    """A text without halves of surrogate pairs, which matplotlib cannot draw."""
    return str(text).encode("utf-8", "replace").decode()
