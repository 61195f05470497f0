"""Saliency draws each token, in order, on the colour of its value."""

import matplotlib
import numpy as np
import pytest

from kzoo import plots


def tokens(figure):
    """(text, colour behind it, left, top, right) of each token, in inches."""
    axes = figure.axes[0]
    found = []
    for text, box in zip(axes.texts, axes.patches, strict=False):
        left, top = box.get_x(), box.get_y()
        found.append(
            (
                text.get_text(),
                box.get_facecolor(),
                left,
                top,
                left + box.get_width(),
            )
        )
    return found


def ticks(figure):
    return list(figure.axes[1].get_xticks())


def test_signed_values_have_the_colours_of_their_scale():
    figure = plots.saliency(["good", "bad", "and"], [0.5, -1.0, 0.0], title="pos")
    colors = matplotlib.colormaps["RdBu"]
    for (text, color, *_), token, value in zip(
        tokens(figure), ["good", "bad", "and"], [0.75, 0.0, 0.5], strict=True
    ):
        assert text == token
        np.testing.assert_allclose(color, colors(value))
    assert ticks(figure) == [-1.0, 0.0, 1.0], "the scale is stated"
    assert figure.axes[0].texts[-1].get_text() == "pos"


def test_unsigned_values_begin_at_white():
    figure = plots.saliency("ab", [0.0, 2.0])
    colors = matplotlib.colormaps["Blues"]
    np.testing.assert_allclose(tokens(figure)[0][1], colors(0.0))
    np.testing.assert_allclose(tokens(figure)[1][1], colors(1.0))
    assert ticks(figure) == [0.0, 1.0, 2.0]
    assert ticks(plots.saliency("ab", [0.0, 2.0], signed=True)) == [-2.0, 0.0, 2.0]


def test_a_text_from_right_to_left_begins_on_the_right():
    words = ["[CLS]", "שלום", "AI"]
    first, second, third = tokens(plots.saliency(words, [1.0, 2.0, 3.0], width=5.0))
    assert [first[0], second[0], third[0]] == words
    assert first[4] == pytest.approx(5.0 - 0.15)
    assert first[2] > second[4] > second[2] > third[4] > 0.15
    other = tokens(plots.saliency(["AI", "is", "ש"], [1.0, 2.0, 3.0]))
    assert 0.15 == pytest.approx(other[0][2]) and other[0][4] < other[1][2]


def test_a_label_is_no_formula(tmp_path):
    figure = plots.saliency("ab", [0.0, 2.0], label="$\\b{$")
    figure.savefig(tmp_path / "saliency.png")


def test_lines_are_broken_within_the_width_and_keep_the_order(tmp_path):
    words = [f"word{i}" for i in range(60)]
    figure = plots.saliency(words, np.ones(60), width=4.0)
    figure.savefig(tmp_path / "text.png")
    found = tokens(figure)
    assert [text for text, *_ in found] == words
    places = [(top, left) for _, _, left, top, _ in found]
    assert places == sorted(places), "reading order"
    assert all(left >= 0.1 and right <= 3.9 for _, _, left, _, right in found)
    for before, after in zip(found, found[1:]):
        assert after[3] > before[3] or after[2] > before[4], "no overlap"
    _, height = figure.get_size_inches()
    assert places[-1][0] < height - 0.5, "the last line is above the scale"


def test_letters_lie_inside_their_boxes():
    figure = plots.saliency(["wide", "i", "Qqy"], [1.0, 2.0, 3.0])
    for text, box in zip(figure.axes[0].texts, figure.axes[0].patches, strict=True):
        inner, outer = text.get_window_extent(), box.get_window_extent()
        assert outer.x0 <= inner.x0 and inner.x1 <= outer.x1
        assert outer.y0 <= inner.y0 + 1 and inner.y1 <= outer.y1 + 1


@pytest.mark.parametrize(
    "pieces",
    [["▁un", "believ", "able", "▁film"], ["un", "##believ", "##able", "film"]],
)
def test_pieces_of_a_word_stand_close_without_their_marks(pieces):
    found = tokens(plots.saliency(pieces, np.ones(4)))
    assert [text for text, *_ in found] == ["un", "believ", "able", "film"]
    gaps = [b[2] - a[4] for a, b in zip(found, found[1:])]
    assert gaps[0] == pytest.approx(gaps[1]) and gaps[2] > 3 * gaps[0]


def test_a_newline_ends_a_line_and_a_long_token_is_cut_to_it():
    found = tokens(plots.saliency(["a\n", "\n", "b", "x" * 300], np.ones(4), width=3))
    assert [text for text, *_ in found][:3] == ["a⏎", "⏎", "b"]
    assert found[2][3] > found[1][3] > found[0][3]
    assert found[3][0].endswith("x…") and found[3][4] <= 2.9


def test_a_width_for_no_letter_ends_too():
    found = tokens(plots.saliency(["hello", "x"], [1.0, 2.0], width=0.35))
    assert found[0][0] == "…"


def test_values_of_padding_are_not_drawn():
    figure = plots.saliency(["a", "b"], [1.0, 2.0, 50.0])
    assert ticks(figure)[-1] == 2.0 and len(tokens(figure)) == 2


def test_zeros_and_formula_signs_are_drawn(tmp_path):
    plots.saliency(["$", "a$b"], [0.0, 0.0]).savefig(tmp_path / "text.png")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(tokens=[], values=[]), "one token at least"),
        (dict(tokens="ab", values=[1.0]), "2 tokens and values of shape"),
        (dict(tokens="ab", values=[[1.0, 2.0]]), r"shape \(1, 2\)"),
        (dict(tokens="ab", values=[1.0, np.nan]), "finite"),
        (dict(tokens="ab", values=[1.0, -2.0], signed=False), "-2 as the smallest"),
    ],
)
def test_what_cannot_be_drawn_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        plots.saliency(**arguments)
