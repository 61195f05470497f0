"""All figures show themselves in a notebook, at the size that they were made for."""

import struct

import numpy as np
import pytest

from kzoo import plots
from kzoo.plots.style import visible


def test_a_figure_is_a_png_of_its_own_where_pyplot_is_not_used():
    for figure in (
        plots.position_table(length=4, hidden_dim=4),
        plots.saliency(["a", "b"], [1.0, 2.0]),
    ):
        data, metadata = figure._repr_mimebundle_(include=None, exclude=None)
        png = data["image/png"]
        assert png.startswith(b"\x89PNG")
        dots = struct.unpack(">2I", png[16:24])  # of its first chunk, the header
        shown = metadata["image/png"]
        assert [2 * d for d in dots] == [3 * shown["width"], 3 * shown["height"]]


@pytest.mark.parametrize(
    "title",
    [
        "What the translator reads while it writes: cross-attention\nof one head",
        "W" * 60,
        "a\udc80 " * 20,
    ],
)
def test_a_long_title_is_within_its_figure(title):
    figure = plots.attention([np.eye(3)[None, None]], list("abc"), title=title)
    figure.draw_without_rendering()
    shown = figure._suptitle.get_text()
    assert "".join(shown.split()) == "".join(title.replace("\udc80", "?").split())
    assert title.count("\n") <= shown.count("\n") < 8
    box, whole = figure._suptitle.get_window_extent(), figure.bbox
    assert whole.x0 <= box.x0 < box.x1 <= whole.x1


def test_half_of_a_surrogate_pair_is_drawn_as_a_question_mark(tmp_path):
    assert visible("a\udc80") == "a?"
    plots.attention([np.eye(2)[None, None]], ["a\udc80", "b"]).savefig(
        tmp_path / "map.png"
    )
