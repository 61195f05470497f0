"""Vectors seen from the side where they differ most."""

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg

from kzoo.plots.style import (
    COLORS,
    INK,
    PALE,
    add_title,
    new_figure,
    quiet_axes,
    token_fonts,
    visible,
)

_MARKERS = "os^Dv<>PX*"
_GAP = 4  # points between a point and its label


def embedding_projection(vectors, labels=None, classes=None, *, title=None):
    """Draws vectors by their first two principal components, classes by colour.

    The components are those of the centred vectors (by singular values); each is turned
    so that its largest entry is positive. The axes have one scale, so that distances
    are comparable, and say how much of the variance they show.

    Args:
        vectors: float (count, D), of tokens, words or sentences.
        labels: `count` strings beside the points. Where labels would overlap, the
            earlier one stays and the figure says how many are left out.
        classes: `count` names or numbers; each class has a colour and a marker, in the
            order of their first points.
        title: above the figure.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ValueError: fewer than 2 vectors, other axes, numbers that are not finite, a
            class NaN, or labels or classes that are not one a vector.
    """
    vectors = np.asarray(vectors, np.float64)
    if vectors.ndim != 2 or len(vectors) < 2 or not np.isfinite(vectors).all():
        raise ValueError(
            "embedding_projection needs 2 vectors at least, finite numbers of the axes "
            f"(count, width). Received: shape {vectors.shape}."
        )
    for name, values in (("labels", labels), ("classes", classes)):
        if values is not None and len(values) != len(vectors):
            raise ValueError(
                f"{name} must be one a vector, {len(vectors)}. Received: {len(values)}."
            )
    if classes is not None and any(value != value for value in classes):
        raise ValueError("NaN is no class. Received: NaN; leave those vectors out.")
    points, shares = _principal(vectors)
    figure = new_figure(6.4, 5.2)
    axes = figure.subplots()
    names = [None] * len(points) if classes is None else list(classes)
    kinds = list(dict.fromkeys(names))
    size = float(np.clip(400 / len(points) ** 0.7, 11, 36))
    drawn = []
    for number, kind in enumerate(kinds):
        chosen = points[[name == kind for name in names]]
        marks = axes.scatter(
            chosen[:, 0],
            chosen[:, 1],
            s=size,
            color=COLORS[number % len(COLORS)],
            marker=_MARKERS[number // len(COLORS) % len(_MARKERS)],
            edgecolors="white",
            linewidths=0.4,
            zorder=2,
        )
        drawn.append(marks)
    axes.axhline(0.0, color=PALE, linewidth=0.8, zorder=0)
    axes.axvline(0.0, color=PALE, linewidth=0.8, zorder=0)
    quiet_axes(axes)
    axes.margins(0.08)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_xlabel(
        f"component 1, {shares[0]:.1%} of the variance", fontsize=9, color=INK
    )
    axes.set_ylabel(
        f"component 2, {shares[1]:.1%} of the variance", fontsize=9, color=INK
    )
    if classes is not None:
        legend = figure.legend(
            drawn,
            [str(kind) for kind in kinds],  # matplotlib leaves out labels like "_"
            loc="outside right upper",
            frameon=False,
            fontsize=8,
            labelcolor=INK,
            markerscale=(30 / size) ** 0.5,
            ncols=1 + len(kinds) // 25,
        )
        for text in legend.get_texts():
            text.set_parse_math(False)
    add_title(figure, title)
    if labels is not None:
        _label_points(figure, axes, points, [visible(x, 24, 11) for x in labels])
    return figure


def _principal(vectors):
    """float (count, 2) and the two shares of the variance."""
    centred = vectors - vectors.mean(axis=0)
    _, singular, directions = np.linalg.svd(centred, full_matrices=False)
    directions = np.vstack([directions, np.zeros_like(directions[:1])])[:2]
    largest = np.abs(directions).argmax(axis=1)
    signs = np.where(directions[np.arange(2), largest] < 0, -1.0, 1.0)
    variance = np.append(singular**2, 0.0)
    shares = variance[:2] / max(variance.sum(), np.finfo(float).tiny)
    return centred @ (directions * signs[:, None]).T, shares


def _label_points(figure, axes, points, labels):
    """Puts each label on a free side of its point, or leaves it out."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    note = axes.set_title(" ", fontsize=7, color=INK, loc="right")
    figure.draw_without_rendering()  # where things are is known after the layout
    figure.set_layout_engine("none")  # and stays so
    inside = axes.get_window_extent(renderer)
    pixel = figure.dpi / 72
    centres = axes.transData.transform(points)
    taken = np.concatenate([centres - 2 * pixel, centres + 2 * pixel], axis=1)
    fonts, left_out = token_fonts(), 0
    for number, (centre, label) in enumerate(zip(centres, labels, strict=True)):
        text = axes.annotate(
            label,
            points[number],
            fontsize=7,
            color=INK,
            xytext=(0, 0),
            textcoords="offset points",
            fontfamily=fonts,
            parse_math=False,
        )
        box = text.get_window_extent(renderer)
        half = np.array([box.width, box.height]) / 2
        for right, up in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            middle = centre + np.array([right, up]) * (_GAP * pixel + half)
            here = np.concatenate([middle - half, middle + half])
            apart = (
                (taken[:, 0] >= here[2])
                | (taken[:, 2] <= here[0])
                | (taken[:, 1] >= here[3])
                | (taken[:, 3] <= here[1])
            )
            apart[number] = True
            fits = here[0] >= inside.x0 and here[2] <= inside.x1
            if apart.all() and fits:
                text.set(
                    position=(_GAP * right, _GAP * up),
                    ha=("center", "left", "right")[right],
                    va=("center", "bottom", "top")[up],
                )
                taken = np.vstack([taken, here])
                break
        else:
            text.remove()
            left_out += 1
    if left_out:
        note.set_text(
            f"{left_out} of {len(labels)} labels left out, where they would overlap"
        )
