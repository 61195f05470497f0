"""The overview shows every head of every layer, each in its place."""

import numpy as np
import pytest

from kzoo import plots


def tiles(figure, layers, heads, shape):
    """float (layers, heads, T, S) as drawn, cut along the gaps between the maps."""
    drawn = np.ma.filled(figure.axes[0].get_images()[0].get_array(), np.nan)
    columns = np.isnan(drawn).all(axis=0)
    rows = np.isnan(drawn).all(axis=1)
    cells = drawn[~rows][:, ~columns]
    rows, columns = shape
    assert cells.shape == (layers * rows, heads * columns)
    return cells.reshape(layers, rows, heads, columns).swapaxes(1, 2)


def weights(layers, heads, queries, keys):
    random = np.random.default_rng(0)
    return random.dirichlet(np.ones(keys), (layers, heads, queries)).astype("float32")


def test_layers_run_down_and_heads_across():
    values = weights(3, 2, 4, 5)
    figure = plots.attention_heads(values)
    np.testing.assert_array_equal(tiles(figure, 3, 2, (4, 5)), values)
    axes = figure.axes[0]
    assert [t.get_text() for t in axes.get_yticklabels()] == ["1", "2", "3"]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["1", "2"]
    # Layer 1 is on top, and each label stands at the middle of its maps.
    assert axes.get_ylim() == (13.5, -0.5)
    assert list(axes.get_yticks()) == [1.5, 1.5 + 4 + 1, 1.5 + 2 * (4 + 1)]
    assert list(axes.get_xticks()) == [2.0, 2.0 + 5 + 1]


def test_layers_the_example_and_the_lengths_can_be_chosen():
    batch = [weights(2, 3, 4, 5) for _ in range(4)]  # (B, N, T, S) each
    batch[3] = batch[3][::-1]
    figure = plots.attention_heads(batch, layers=[-1], lengths=(3, 2), example=1)
    np.testing.assert_array_equal(
        tiles(figure, 1, 3, (3, 2))[0], batch[3][1][:, :3, :2]
    )
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["4"]


def test_of_many_tokens_the_largest_weight_of_a_cell_is_drawn():
    values = weights(1, 2, 96, 7)
    figure = plots.attention_heads(values)
    expected = values.reshape(1, 2, 48, 2, 7).max(axis=3)
    np.testing.assert_array_equal(tiles(figure, 1, 2, (48, 7)), expected)


def test_one_scale_from_zero_to_the_largest_weight():
    values = weights(2, 2, 3, 3)
    assert plots.attention_heads(values).axes[0].get_images()[0].get_clim() == (
        0.0,
        values.max(),
    )


def test_384_heads_are_drawn(tmp_path):
    values = np.tile(np.eye(12), (24, 16, 1, 1))
    plots.attention_heads(values).savefig(tmp_path / "heads.png")
    assert (tmp_path / "heads.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(weights=np.ones(3)), "Received: shape"),
        (dict(weights=np.ones((2, 2, 3, 3)), layers=[2]), "no layer 2: the weights"),
        (dict(weights=np.ones((2, 2, 3, 3)), layers=[]), "one layer at least"),
        (
            dict(weights=np.ones((2, 2, 3, 3)), lengths=(4, 1)),
            "lengths, of queries, must.*at most 3. Received: 4",
        ),
        (
            dict(weights=np.ones((2, 2, 3, 3)), lengths=(3.5, 2)),
            "lengths, of queries, must be an integer.* Received: 3.5",
        ),
        (
            dict(weights=[np.ones((1, 2, 3, 3)), np.ones((1, 2, 3, 4))]),
            "same queries and keys; draw encoder, decoder and cross-attention apart",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        plots.attention_heads(**arguments)
