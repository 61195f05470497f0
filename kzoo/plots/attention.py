"""Maps of attention weights: with the tokens on the axes, or all heads at a glance."""

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import PowerNorm

from kzoo.arguments import check_count
from kzoo.plots.style import (
    INK,
    PALE,
    SEQUENTIAL,
    add_title,
    color_bar,
    draw_map,
    label_tokens,
    new_figure,
)

_CELL = 0.19  # inches a token
_MOST_PANELS = 48
_HEAD = 48  # the most cells of a head's side in the overview


def attention(
    weights,
    query_tokens,
    key_tokens=None,
    *,
    layers=None,
    heads=None,
    example=0,
    title=None,
    query_label=None,
    key_label=None,
    columns=4,
):
    """Draws which keys each query attends to: a panel a layer and head.

    Query tokens run down, key tokens run across; a row sums to 1. All panels share one
    colour scale, white for 0.

    Args:
        weights: what `AttentionRecorder.maps` gives: a list, a layer each, of float
            (B, N, T, S); or an array of the last two, three (N, T, S) or four axes
            (layer, N, T, S).
        query_tokens: at most T strings; later places are padding and not drawn.
        key_tokens: at most S strings, likewise; those of the query by default, for
            self-attention.
        layers: indices of the layers to draw; all by default. Negative ones count from
            the end.
        heads: indices of heads; all by default; `"mean"` draws the mean of a layer's
            heads.
        example: row of the batch, when `weights` is a list.
        title: above the figure.
        query_label: what the query tokens are.
        key_label: what the key tokens are.
        columns: the most panels side by side.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ValueError: the weights' axes do not fit or they are not from 0 to 1, there are
            more tokens than weights, a layer or head is not there, or there are too
            many panels to read, or none a line.
    """
    if query_label is None:
        query_label = "from" if key_tokens is None else "output"
    if key_label is None:
        key_label = "to" if key_tokens is None else "input"
    layer_list = by_layer(weights, example, "attention")
    query_tokens, key_tokens = check_tokens(
        "attention", layer_list, query_tokens, key_tokens
    )
    panels = _panels(layer_list, layers, heads)
    if len(panels) > _MOST_PANELS:
        raise ValueError(
            f"{len(panels)} panels are too many to read; at most {_MOST_PANELS}. "
            "Choose some with layers=[...] or heads=[...], or heads='mean'; "
            "attention_heads draws all, small."
        )
    check_count("columns", columns)
    columns = min(columns, len(panels))
    lines = -(-len(panels) // columns)
    # A panel is as large as its tokens need, within what a page can show.
    width = np.clip(_CELL * len(key_tokens), 1.6, 16.0 / columns + 4)
    height = np.clip(_CELL * len(query_tokens), 1.2, 12.0)
    figure = new_figure(columns * (width + 0.25) + 1.3, lines * (height + 0.8) + 0.6)
    grid = figure.subplots(lines, columns, squeeze=False)
    used = (slice(len(query_tokens)), slice(len(key_tokens)))
    check_weights("attention", [values[used] for _, values in panels])
    highest = max(float(values[used].max()) for _, values in panels) or 1.0
    for place, axes in enumerate(grid.flat):
        if place >= len(panels):
            axes.set_visible(False)
            continue
        name, values = panels[place]
        image = draw_map(axes, values[used], limits=(0.0, highest))
        axes.set_title(name, fontsize=9, color=INK)
        first = place % columns == 0
        last = place + columns >= len(panels)
        label_tokens(axes.xaxis, key_tokens, width, shown=last, rotate=True)
        label_tokens(axes.yaxis, query_tokens, height, shown=first)
        if last:
            axes.set_xlabel(key_label, fontsize=9, color=INK, parse_math=False)
        if first:
            axes.set_ylabel(query_label, fontsize=9, color=INK, parse_math=False)
    color_bar(figure, image, grid, "weight")
    add_title(figure, title)
    return figure


def attention_heads(weights, *, lengths=None, layers=None, example=0, title=None):
    """Draws all heads small: layers run down, heads run across.

    Each small map is as in `attention`, without labels. The colour follows the root of
    the weight, so that heads which spread their attention show their pattern, too. Of
    many tokens neighbours share a cell, which shows the largest of their weights.

    Args:
        weights: see `attention`.
        lengths: T and S, how many queries and keys are tokens; later places are padding
            and not drawn. All by default.
        layers: indices of the layers to draw; all by default.
        example: row of the batch, when `weights` is a list.
        title: above the figure.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ValueError: the weights' axes or the lengths do not fit, or a layer is not
            there.
    """
    layer_list = by_layer(weights, example, "attention_heads")
    names = list(_chosen("layer", layers, len(layer_list)))
    if not names:
        raise ValueError("attention_heads needs one layer at least.")
    rows, keys = layer_list[0].shape[1:]
    lengths = (rows, keys) if lengths is None else tuple(np.ravel(lengths).tolist())
    if len(lengths) != 2:
        raise ValueError(f"lengths must be two numbers. Received: {lengths}.")
    for length, most, of in zip(lengths, (rows, keys), ("queries", "keys")):
        check_count(f"lengths, of {of},", length, most=most)
    rows, keys = lengths
    check_weights("attention_heads", [layer_list[i][:, :rows, :keys] for i in names])
    maps = [
        [_pooled(head[:rows, :keys]) for head in layer_list[index]] for index in names
    ]
    count = max(len(line) for line in maps)
    # One picture, since hundreds of axes would take long.
    height, width = maps[0][0].shape
    gap = max(1, round(0.06 * max(height, width)))
    down, across = height + gap, width + gap
    mosaic = np.full((len(maps) * down - gap, count * across - gap), np.nan)
    for i, line in enumerate(maps):
        for j, values in enumerate(line):
            mosaic[i * down : i * down + height, j * across : j * across + width] = (
                values
            )
    side = float(np.clip(11.0 / max(count, len(maps)), 0.45, 1.3))  # inches a head
    shape = np.array([across, down]) / max(across, down) * side
    shape = np.maximum(shape, 0.3)
    inches = max(2.6, len(maps) * shape[1] + 0.8)  # that of the colour bar's label
    figure = new_figure(count * shape[0] + 1.5, inches)
    axes = figure.subplots()
    highest = float(np.nanmax(mosaic)) or 1.0
    image = axes.imshow(
        mosaic,
        norm=PowerNorm(0.5, vmin=0.0, vmax=highest),
        cmap=colormaps[SEQUENTIAL].with_extremes(bad=PALE),
        aspect="auto",
        interpolation="nearest",
    )
    axes.spines[:].set_color(PALE)
    axes.spines[:].set_linewidth(1.5)
    axes.set_xticks(np.arange(count) * across + (width - 1) / 2, range(1, count + 1))
    axes.set_yticks(
        np.arange(len(maps)) * down + (height - 1) / 2, [index + 1 for index in names]
    )
    axes.tick_params(length=0, labelsize=8, labelcolor=INK, pad=3)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("head", fontsize=9, color=INK)
    axes.set_ylabel("layer", fontsize=9, color=INK)
    color_bar(figure, image, axes, "weight (the colour follows its root)")
    add_title(figure, title)
    return figure


def _pooled(values):
    """At most `_HEAD` cells a side, each the largest of those it stands for."""
    for axis in (0, 1):
        length = values.shape[axis]
        size = -(-length // _HEAD)
        values = np.maximum.reduceat(values, np.arange(0, length, size), axis=axis)
    return values


def by_layer(weights, example, who):
    """A list of float (N, T, S), a layer each, of any form of weights."""
    if isinstance(weights, (list, tuple)):
        if not weights:
            raise ValueError(f"{who} needs the weights of one layer at least.")
        batch = [np.asarray(layer, np.float32) for layer in weights]
        if any(layer.ndim != 4 for layer in batch):
            raise ValueError(
                "A list of weights holds (batch, heads, queries, keys) a layer. "
                f"Received shapes: {[layer.shape for layer in batch]}."
            )
        if len({layer.shape[2:] for layer in batch}) > 1:
            raise ValueError(
                "The layers of one picture have the same queries and keys; draw "
                "encoder, decoder and cross-attention apart. "
                f"Received shapes: {[layer.shape for layer in batch]}."
            )
        rows = min(map(len, batch))
        if not -rows <= example < rows:
            raise ValueError(
                f"example must be a row of the batch of {rows}. Received: {example}."
            )
        return [layer[example] for layer in batch]
    weights = np.asarray(weights, np.float32)
    if weights.ndim not in (2, 3, 4):
        raise ValueError(
            "weights must have the axes (queries, keys), (heads, queries, keys) or "
            f"(layers, heads, queries, keys). Received: shape {weights.shape}."
        )
    while weights.ndim < 4:
        weights = weights[None]
    return list(weights)


def check_tokens(who, layer_list, query_tokens, key_tokens):
    """Lists of the tokens, which fit the weights; keys are the queries by default."""
    query_tokens = list(query_tokens)
    key_tokens = query_tokens if key_tokens is None else list(key_tokens)
    rows, keys = layer_list[0].shape[1:]
    for tokens, most, name, axis in (
        (query_tokens, rows, "query", "third"),
        (key_tokens, keys, "key", "last"),
    ):
        if not 1 <= len(tokens) <= most:
            raise ValueError(
                f"{who} expects 1 to {most} {name} tokens, the {axis} axis of the "
                f"weights. Received: {len(tokens)}."
            )
    return query_tokens, key_tokens


def check_weights(who, arrays):
    """Raises `ValueError` unless all numbers of arrays are attention weights."""
    for array in arrays:
        if not ((array >= 0) & (array <= 1.001)).all():  # NaN is neither
            raise ValueError(
                f"{who} draws attention weights, from 0 to 1; padding that holds others"
                " is left out by fewer tokens, or lengths. Received: "
                f"{array.min():.3g} to {array.max():.3g}."
            )


def _chosen(what, given, count):
    """Yields indices from 0: those given, of which one may stand alone, or all."""
    for index in range(count) if given is None else np.ravel(given).tolist():
        if not -count <= index < count:
            raise ValueError(
                f"There is no {what} {index}: the weights have {count}, counted from 0."
            )
        yield index % count


def _panels(layer_list, layers, heads):
    """(title, float (T, S)) of each panel."""
    panels = []
    for layer in _chosen("layer", layers, len(layer_list)):
        values = layer_list[layer]
        where = f"layer {layer + 1}" if len(layer_list) > 1 else ""
        if isinstance(heads, str):
            if heads != "mean":
                raise ValueError(
                    f"heads must be indices or 'mean'. Received: {heads!r}."
                )
            name = ", ".join(filter(None, (where, "mean of heads")))
            panels.append((name, values.mean(axis=0)))
            continue
        for head in _chosen("head", heads, len(values)):
            name = f"head {head + 1}" if len(values) > 1 else ""
            panels.append((", ".join(filter(None, (where, name))), values[head]))
    if not panels:
        raise ValueError("attention needs one layer and one head at least.")
    return panels
