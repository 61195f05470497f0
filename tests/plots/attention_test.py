"""Attention maps show the weights given, where the tokens are."""

import subprocess
import sys

import numpy as np
import pytest

from kzoo import plots

LAYERS, HEADS, QUERIES, KEYS = 2, 3, 4, 5


@pytest.fixture
def weights():
    random = np.random.default_rng(0)
    return [random.dirichlet(np.ones(KEYS), (2, HEADS, QUERIES)) for _ in range(LAYERS)]


def panels(figure):
    """The axes with a map, in reading order; the colour bar's are left out."""
    return [
        axes for axes in figure.axes if axes.get_visible() and axes.get_title()
    ] or figure.axes[:1]


def drawn(axes):
    return np.asarray(axes.get_images()[0].get_array())


def test_every_head_of_every_layer_is_a_panel(weights):
    figure = plots.attention(weights, "abcd", "vwxyz", example=1)
    maps = panels(figure)
    assert [axes.get_title() for axes in maps][:4] == [
        "layer 1, head 1",
        "layer 1, head 2",
        "layer 1, head 3",
        "layer 2, head 1",
    ]
    for i, axes in enumerate(maps):
        np.testing.assert_allclose(
            drawn(axes), weights[i // HEADS][1, i % HEADS], rtol=1e-6
        )


def test_layers_and_heads_can_be_chosen(weights):
    figure = plots.attention(weights, "abcd", "vwxyz", layers=[-1], heads=[2, 0])
    assert [axes.get_title() for axes in panels(figure)] == [
        "layer 2, head 3",
        "layer 2, head 1",
    ]


def test_one_layer_and_one_head_may_stand_alone(weights):
    figure = plots.attention(weights, "abcd", "vwxyz", layers=1, heads=0)
    expected = plots.attention(weights, "abcd", "vwxyz", layers=[1], heads=[0])
    assert [axes.get_title() for axes in figure.axes] == [
        axes.get_title() for axes in expected.axes
    ]
    assert plots.attention_heads(weights, layers=0, lengths=(4, 5)).axes
    with pytest.raises(ValueError, match="lengths must be two numbers"):
        plots.attention_heads(weights, lengths=4)


def test_the_mean_of_heads_is_drawn_on_request(weights):
    figure = plots.attention(weights, "abcd", "vwxyz", heads="mean")
    first, second = panels(figure)
    assert first.get_title() == "layer 1, mean of heads"
    np.testing.assert_allclose(drawn(second), weights[1][0].mean(0), rtol=1e-6)


def test_queries_run_down_and_keys_run_across(weights):
    axes = plots.attention(weights[0][0, 0], "abcd", "vwxyz").axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == list("abcd")
    assert [label.get_text() for label in axes.get_xticklabels()] == list("vwxyz")
    top = axes.get_ylim()[1]
    assert top < 0.5, "the first query is the top row"


def test_keys_are_the_queries_in_self_attention(weights):
    axes = plots.attention(weights[0][0, 0, :, :4], "abcd").axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == list("abcd")
    assert [axes.get_ylabel(), axes.get_xlabel()] == ["from", "to"]


def test_padding_beyond_the_tokens_is_not_drawn(weights):
    axes = plots.attention(weights[0][0, 0], "abc", "vw").axes[0]
    np.testing.assert_allclose(drawn(axes), weights[0][0, 0, :3, :2], rtol=1e-6)


def test_white_space_in_tokens_is_visible_and_long_tokens_are_cut():
    tokens = [" a", "▁b", "\n", "x" * 40, "  ", "New York "]
    axes = plots.attention(np.eye(6), tokens, tokens).axes[0]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["␣a", "␣b", "⏎", "x" * 15 + "…", "␣␣", "New York␣"]


def test_all_panels_share_one_scale(weights):
    weights[0][0, 0, 0, 0] = 0.0
    weights[1][0, 2, 3, 4] = 1.0
    scales = {
        axes.get_images()[0].get_clim()
        for axes in panels(plots.attention(weights, "abcd", "vwxyz"))
    }
    assert scales == {(0.0, 1.0)}


def test_a_dollar_sign_and_many_tokens_are_written(tmp_path):
    tokens = ["$x", "a$b$"] * 40
    plots.attention(np.eye(80), tokens, tokens).savefig(tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(query_tokens="abcde"), "1 to 4 query tokens.*Received: 5"),
        (dict(key_tokens=""), "1 to 5 key tokens.*Received: 0"),
        (dict(layers=[2]), "no layer 2: the weights have 2"),
        (dict(heads=[-4]), "no head -4: the weights have 3"),
        (dict(heads="max"), "indices or 'mean'"),
        (dict(heads=[]), "one layer and one head"),
        (dict(example=2), "row of the batch of 2"),
        (dict(weights=np.full((4, 5), np.nan)), "from 0 to 1.* Received: nan to nan"),
        (dict(weights=np.full((4, 5), -0.5)), "weights, from 0 to 1.* Received: -0.5"),
        (dict(columns=2.5), "columns must be an integer of at least 1. Received: 2.5"),
        (dict(columns=0), "columns must be an integer of at least 1. Received: 0"),
        (
            dict(weights=[np.ones((3, 1, 4, 5)), np.ones((2, 1, 4, 5))], example=2),
            "row of the batch of 2",
        ),
        (dict(weights=np.ones(3)), "Received: shape"),
        (dict(weights=[np.ones((4, 5))]), "Received shapes"),
        (dict(weights=np.ones((7, 7, 4, 5))), "49 panels are.*attention_heads draws"),
        (
            dict(weights=[np.ones((1, 1, 4, 5)), np.ones((1, 1, 4, 4))]),
            "same queries and keys",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(weights, change, message):
    arguments = dict(weights=weights, query_tokens="abcd", key_tokens="vwxyz")
    with pytest.raises(ValueError, match=message):
        plots.attention(**arguments | change)


def test_drawing_touches_no_global_state_and_needs_no_display(tmp_path):
    code = (
        "import sys, numpy, kzoo.plots as p\n"
        "for figure in (\n"
        "    p.attention(numpy.eye(1), 'a', 'b'),\n"
        "    p.attention_heads(numpy.eye(2)),\n"
        "    p.confusion_matrix([0, 1], [0, 0]),\n"
        "    p.embedding_projection(numpy.eye(3), 'abc'),\n"
        "    p.mask(numpy.eye(2, dtype=bool)),\n"
        "    p.position_distance(length=4, hidden_dim=4),\n"
        "    p.position_table(length=4, hidden_dim=4),\n"
        "    p.rotary(4, length=4),\n"
        "    p.saliency('ab', [1.0, 2.0]),\n"
        "    p.training_curve({'loss': [1.0]}),\n"
        "):\n"
        "    figure.savefig(sys.argv[1])\n"
        "p.attention_explorer({'self': (numpy.eye(1), 'a')})\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
        "assert 'keras' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "map.png"], check=True)
