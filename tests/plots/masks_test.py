"""Masks are drawn as they are, may-attend coloured."""

import numpy as np
import pytest

from kzoo import plots

CAUSAL = np.array([[1, 0, 0], [1, 1, 0], [1, 1, 1]], bool)


def drawn(axes):
    return np.asarray(axes.get_images()[0].get_array())


def color(axes, row, column):
    image = axes.get_images()[0]
    return image.to_rgba(drawn(axes))[row, column][:3]


def labels(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def test_a_mask_is_drawn_query_by_query_with_its_tokens():
    figure = plots.mask(CAUSAL, "abc")
    (axes,) = figure.axes
    np.testing.assert_array_equal(drawn(axes), CAUSAL)
    assert labels(axes.yaxis) == labels(axes.xaxis) == ["a", "b", "c"]
    assert axes.get_ylim() == (2.5, -0.5), "the first query is the top row"
    (legend,) = figure.legends
    assert [t.get_text() for t in legend.get_texts()] == ["may attend", "may not"]


def test_the_legend_has_the_colours_of_the_mask():
    figure = plots.mask(CAUSAL)
    may, may_not = (
        patch.get_facecolor()[:3] for patch in figure.legends[0].legend_handles
    )
    np.testing.assert_allclose(color(figure.axes[0], 1, 0), may)
    np.testing.assert_allclose(color(figure.axes[0], 0, 1), may_not)


def test_masks_of_models_padding_and_zeros_and_ones_are_drawn():
    for given, expected in [
        (CAUSAL[None, None], CAUSAL),
        (CAUSAL.astype("int32"), CAUSAL),
        (np.array([True, False]), [[True, False]]),
        (np.ones((4, 2), bool), np.ones((4, 2), bool)),
    ]:
        np.testing.assert_array_equal(drawn(plots.mask(given).axes[0]), expected)


def test_several_masks_are_panels_with_names():
    padding = np.array([[True, True, False, False], [True, True, True, True]])
    figure = plots.mask({"causal": CAUSAL, "padding": padding}, title="Masks")
    first, second = figure.axes
    assert [first.get_title(), second.get_title()] == ["causal", "padding"]
    assert [first.get_ylabel(), second.get_ylabel()] == ["query", "row"]
    np.testing.assert_array_equal(drawn(second), padding)
    assert figure.get_suptitle() == "Masks"


def test_a_large_mask_has_round_numbers():
    axes = plots.mask(np.tri(300, dtype=bool)).axes[0]
    assert labels(axes.xaxis)[:3] == ["0", "20", "40"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(masks=np.array([[0.0, -1e9]])), "boolean.*drawn as `bias > -1`"),
        (dict(masks=np.ones((2, 3, 3), bool)), r"shape \(2, 3, 3\); choose one"),
        (dict(masks=np.ones((0, 3), bool)), "axes"),
        (dict(masks={}), "one mask at least"),
        (dict(masks=CAUSAL, query_tokens="ab"), "3 tokens on its y axis. Received: 2"),
        (dict(masks=CAUSAL, key_tokens="abcd"), "3 tokens on its x axis. Received: 4"),
    ],
)
def test_what_is_no_mask_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        plots.mask(**arguments)
