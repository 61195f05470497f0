"""Maps of attention weights, with the tokens on the axes."""

import numpy as np

from kzoo.plots.style import INK, new_figure

# White space that a reader could not see as a label.
_VISIBLE = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥", "▁": "␣", "Ġ": "␣", "Ċ": "⏎"})
_CELL = 0.19  # inches a token
_MOST_PANELS = 48


def attention(
    weights,
    query_tokens,
    key_tokens,
    *,
    layers=None,
    heads=None,
    example=0,
    title=None,
    query_label="output",
    key_label="input",
    columns=4,
):
    """Draws which keys each query attends to: a panel a layer and head.

    Query tokens run down, key tokens run across; a row sums to 1. All panels share one
    colour scale, white for 0.

    Args:
        weights: what `return_weights` gives under `"self_attention"` or
            `"cross_attention"`: a list, a layer each, of float (B, N, T, S); or an
            array of the last two, three (N, T, S) or four axes (layer, N, T, S).
        query_tokens: at most T strings; later places are padding and not drawn.
        key_tokens: at most S strings, likewise.
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
        ValueError: the weights' axes do not fit, there are more tokens than weights, a
            layer or head is not there, or there are too many panels to read.
    """
    layer_list = _by_layer(weights, example)
    query_tokens, key_tokens = list(query_tokens), list(key_tokens)
    rows, keys = layer_list[0].shape[1:]
    if not query_tokens or len(query_tokens) > rows:
        raise ValueError(
            f"attention expects 1 to {rows} query tokens, the third axis of the "
            f"weights. Received: {len(query_tokens)}."
        )
    if not key_tokens or len(key_tokens) > keys:
        raise ValueError(
            f"attention expects 1 to {keys} key tokens, the last axis of the weights. "
            f"Received: {len(key_tokens)}."
        )
    panels = _panels(layer_list, layers, heads)
    if len(panels) > _MOST_PANELS:
        raise ValueError(
            f"{len(panels)} panels are too many to read; at most {_MOST_PANELS}. "
            "Choose some with layers=[...] or heads=[...], or heads='mean'."
        )
    columns = min(columns, len(panels))
    lines = -(-len(panels) // columns)
    # A panel is as large as its tokens need, within what a page can show.
    width = np.clip(_CELL * len(key_tokens), 1.6, 16.0 / columns + 4)
    height = np.clip(_CELL * len(query_tokens), 1.2, 12.0)
    figure = new_figure(columns * (width + 0.25) + 1.3, lines * (height + 0.8) + 0.6)
    grid = figure.subplots(lines, columns, squeeze=False)
    used = (slice(len(query_tokens)), slice(len(key_tokens)))
    highest = max(float(values[used].max()) for _, values in panels) or 1.0
    for place, axes in enumerate(grid.flat):
        if place >= len(panels):
            axes.set_visible(False)
            continue
        name, values = panels[place]
        image = axes.imshow(
            values[used], vmin=0.0, vmax=highest, cmap="Blues", aspect="auto"
        )
        axes.set_title(name, fontsize=9, color=INK)
        first = place % columns == 0
        last = place + columns >= len(panels)
        _label(axes.xaxis, key_tokens, width, shown=last, rotate=True)
        _label(axes.yaxis, query_tokens, height, shown=first, rotate=False)
        axes.spines[:].set_color("#cccccc")
        if last:
            axes.set_xlabel(key_label, fontsize=9, color=INK)
        if first:
            axes.set_ylabel(query_label, fontsize=9, color=INK)
    bar = figure.colorbar(image, ax=grid, shrink=0.8, aspect=30, pad=0.01)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=7, color="#aaaaaa")
    bar.set_label("weight", fontsize=8, color=INK)
    if title:
        figure.suptitle(title, fontsize=11, color=INK)
    return figure


def _by_layer(weights, example):
    """A list of float (N, T, S), a layer each."""
    if isinstance(weights, (list, tuple)):
        if not weights:
            raise ValueError("attention needs the weights of one layer at least.")
        batch = [np.asarray(layer, np.float32) for layer in weights]
        if any(layer.ndim != 4 for layer in batch):
            raise ValueError(
                "A list of weights holds (batch, heads, queries, keys) a layer. "
                f"Received shapes: {[layer.shape for layer in batch]}."
            )
        if not -len(batch[0]) <= example < len(batch[0]):
            raise ValueError(
                f"example must be a row of the batch of {len(batch[0])}. "
                f"Received: {example}."
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


def _panels(layer_list, layers, heads):
    """(title, float (T, S)) of each panel."""
    chosen = range(len(layer_list)) if layers is None else layers
    panels = []
    for index in chosen:
        layer = _index("layer", index, len(layer_list))
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
        for number in range(len(values)) if heads is None else heads:
            head = _index("head", number, len(values))
            name = f"head {head + 1}" if len(values) > 1 else ""
            panels.append((", ".join(filter(None, (where, name))), values[head]))
    if not panels:
        raise ValueError("attention needs one layer and one head at least.")
    return panels


def _index(what, index, count):
    if not -count <= index < count:
        raise ValueError(
            f"There is no {what} {index}: the weights have {count}, counted from 0."
        )
    return index % count


def _label(axis, tokens, inches, *, shown, rotate):
    """Puts a label at every token, as large as the place allows; thinned when tiny."""
    points = 72 * inches / len(tokens)
    step = max(1, int(np.ceil(5.0 / points)))
    axis.set_ticks(range(0, len(tokens), step))
    axis.set_tick_params(length=0, pad=2)
    if not shown:
        axis.set_ticklabels([])
        return
    texts = [_shown(token) for token in tokens[::step]]
    size = float(np.clip(0.72 * points * step, 4.5, 9.0))
    # Without parse_math=False a "$" would begin a formula.
    labels = axis.set_ticklabels(texts, fontsize=size, color=INK, parse_math=False)
    for label in labels:
        if rotate and len(label.get_text()) > 1:
            label.set_rotation(90)


def _shown(token):
    text = str(token).translate(_VISIBLE)
    return text if len(text) <= 16 else text[:15] + "…"
