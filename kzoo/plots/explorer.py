"""A page for a browser: point at a token and see what it attends to."""

import html
import json
from importlib import resources
from pathlib import Path

import numpy as np

from kzoo.files import write_text
from kzoo.plots.attention import by_layer, check_tokens, check_weights

_UNIT = 1000  # weights are written in thousandths
_MOST_NUMBERS = 8_000_000  # about 20 MB


class ExplorerPage(str):
    """The page's HTML; a notebook shows it as the page."""

    def _repr_html_(self):
        return (
            f'<iframe srcdoc="{html.escape(self)}" title="attention explorer" '
            'style="width:100%;height:640px;border:0"></iframe>'
        )


def attention_explorer(views, *, example=0, title="Attention", path=None):
    """Makes a self-contained HTML page to explore attention with.

    Pointing at a token (or a tap, or the arrow keys) shades what it attends to, with
    the weights in percent; pointing at a token that is attended to shades those that
    attend to it. View, layer and head, or the mean of a layer's heads, are chosen on
    the page; a map of all heads helps. The page is one file, loads nothing and works
    without a network, in light and dark. Made for 5 to 200 tokens.

    Args:
        views: dict from a name, such as `"cross-attention"`, to a tuple of weights (see
            `attention`), query tokens and key tokens; for self-attention without the
            last. Tokens are strings; later places of the weights are padding.
        example: row of the batch, where weights are lists.
        title: of the page.
        path: a file to write the page to, replaced at once when complete; `None` for
            none.

    Returns:
        The HTML, a str; shown as the page in a notebook.

    Raises:
        ValueError: no view, weights and tokens that do not fit, weights outside 0 to 1,
            or more of them than a browser should load.

    Example:
        >>> kzoo.plots.attention_explorer(
        ...     {
        ...         "encoder": (recorder.maps("encoder"), read),
        ...         "cross": (recorder.maps("cross_attention"), written, read),
        ...     },
        ...     path="attention.html",
        ... )
    """
    if not isinstance(views, dict) or not views:
        raise ValueError(
            "attention_explorer needs a dict from a view's name to (weights, query "
            f"tokens) or (weights, query tokens, key tokens). Received: {views!r}."
        )
    made = [_view(str(name), parts, example) for name, parts in views.items()]
    count = sum(
        len(view["queries"]) * len(view["keys"]) * sum(map(len, view["layers"]))
        for view in made
    )
    if count > _MOST_NUMBERS:
        raise ValueError(
            f"The page would hold {count:,} weights, more than {_MOST_NUMBERS:,}. Give "
            "fewer layers (such as weights[-4:]), tokens or views."
        )
    data = json.dumps({"title": title, "unit": _UNIT, "views": made}, separators=",:")
    # Within <script> only these could end the data or begin markup.
    for character in "<>&":
        data = data.replace(character, f"\\u{ord(character):04x}")
    template = resources.files("kzoo.plots").joinpath("explorer.html")
    before, after = template.read_text(encoding="utf-8").split("{{DATA}}")
    page = before.replace("{{TITLE}}", html.escape(title or "")) + data + after
    if path is not None:
        write_text(Path(path), page)
    return ExplorerPage(page)


def _view(name, parts, example):
    """What the page needs of a view, for JSON."""
    if not isinstance(parts, (tuple, list)) or len(parts) not in (2, 3):
        raise ValueError(
            f"The view {name!r} must be (weights, query tokens) or (weights, query "
            f"tokens, key tokens). Received: {type(parts).__name__}."
        )
    weights, query_tokens, key_tokens = (*parts, None)[:3]
    layers = by_layer(weights, example, f"The view {name!r}")
    queries, keys = check_tokens(f"The view {name!r}", layers, query_tokens, key_tokens)
    rounded = []
    for layer in layers:
        used = layer[:, : len(queries), : len(keys)]
        check_weights(f"The view {name!r}", [used])
        thousandths = np.rint(used * _UNIT).astype(int)
        rounded.append(thousandths.reshape(len(used), -1).tolist())
    return {
        "name": name,
        "same": key_tokens is None,
        "queries": [str(token) for token in queries],
        "keys": [str(token) for token in keys],
        "layers": rounded,
    }
