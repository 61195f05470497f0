"""All figures show themselves in a notebook, at the size that they were made for."""

import struct

from kzoo import plots


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
