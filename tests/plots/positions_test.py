"""Positions are drawn with the values of the papers' formulas."""

import math

import numpy as np
import pytest

from kzoo import plots

LEARNED = np.array([[3.0, 0.0], [0.0, 4.0], [3.0, 4.0]])


def drawn(axes):
    return np.asarray(axes.get_images()[0].get_array())


def curve(axes, label):
    (line,) = [line for line in axes.get_lines() if line.get_label() == label]
    return np.asarray(line.get_xdata()), np.asarray(line.get_ydata())


def sinusoid(position, i, width):
    angle = position / 10_000 ** (2 * (i // 2) / width)
    return math.cos(angle) if i % 2 else math.sin(angle)


def test_the_default_table_is_the_papers():
    figure = plots.position_table(length=9, hidden_dim=6, title="Positions")
    expected = [[sinusoid(p, i, 6) for i in range(6)] for p in range(9)]
    np.testing.assert_allclose(drawn(figure.axes[0]), expected, atol=1e-12)
    assert figure.axes[0].get_ylim() == (8.5, -0.5), "position 0 is on top"
    assert figure.axes[0].get_xlabel() == "dimension"
    assert figure.get_suptitle() == "Positions"


def test_a_learned_table_is_drawn_with_zero_in_the_middle_of_the_colours():
    image = plots.position_table(LEARNED - 1.0).axes[0].get_images()[0]
    np.testing.assert_array_equal(image.get_array(), LEARNED - 1.0)
    assert image.get_clim() == (-3.0, 3.0)


def test_of_many_positions_neighbours_are_averaged_and_axes_keep_their_numbers():
    table = np.arange(900.0)[:, None] * [1.0, -1.0]
    axes = plots.position_table(table).axes[0]
    np.testing.assert_array_equal(drawn(axes)[:2], [[0.5, -0.5], [2.5, -2.5]])
    assert axes.get_ylim() == (899.5, -0.5)


def test_what_all_positions_share_changes_no_distance():
    table = np.random.default_rng(0).normal(size=(6, 4)) * 1e-3
    expected = np.linalg.norm(table[:, None] - table[None], axis=-1)
    left = plots.position_distance(table + 1e5).axes[0]
    np.testing.assert_allclose(drawn(left), expected, atol=1e-9)


@pytest.mark.parametrize(
    ("measure", "expected"),
    [
        ("distance", [[0, 5, 4], [5, 0, 3], [4, 3, 0]]),
        ("dot", [[9, 0, 9], [0, 16, 16], [9, 16, 25]]),
        ("cosine", [[1, 0, 0.6], [0, 1, 0.8], [0.6, 0.8, 1]]),
    ],
)
def test_pairs_are_compared(measure, expected):
    left, right = plots.position_distance(LEARNED, measure=measure).axes[:2]
    np.testing.assert_allclose(drawn(left), expected, atol=1e-12)
    apart, means = curve(right, "mean")
    np.testing.assert_array_equal(apart, [0, 1, 2])
    by_hand = [np.mean([row[i] for i, row in enumerate(expected)])]
    by_hand += [(expected[0][1] + expected[1][2]) / 2, expected[0][2]]
    np.testing.assert_allclose(means, by_hand)


def test_sinusoids_that_are_k_apart_compare_alike():
    right = plots.position_distance(length=20, hidden_dim=8, measure="dot").axes[1]
    _, means = curve(right, "mean")
    frequencies = [10_000 ** (-2 * i / 8) for i in range(4)]
    expected = [sum(math.cos(k * f) for f in frequencies) for k in range(20)]
    np.testing.assert_allclose(means, expected, atol=1e-12)
    band = right.collections[0].get_paths()[0].vertices
    for k, mean in enumerate(means):
        np.testing.assert_allclose(band[band[:, 0] == k][:, 1], mean, atol=1e-9)


@pytest.mark.parametrize("base", [0, -1.0, float("nan"), float("inf")])
def test_a_base_that_is_no_positive_number_is_refused(base):
    with pytest.raises(ValueError, match="max_wavelength must be a positive number"):
        plots.rotary(8, max_wavelength=base)


def test_rotary_angles_wavelengths_and_scores_are_drawn():
    left, middle, right = plots.rotary(8, max_wavelength=100.0, length=30).axes[:3]
    frequencies = [100.0 ** (-2 * i / 8) for i in range(4)]
    expected = [[math.cos(p * f) for f in frequencies] for p in range(30)]
    np.testing.assert_allclose(drawn(left), expected, atol=1e-12)
    turns = middle.get_lines()[0].get_ydata()
    np.testing.assert_allclose(turns, [2 * math.pi / f for f in frequencies])
    apart, scores = curve(right, "equal query and key")
    np.testing.assert_allclose(scores, np.mean(expected, axis=1), atol=1e-12)
    # The bound by hand at distance 7: |sums| of 1 to 4 turns, over 1 to 4 at 0.
    turned = [complex(math.cos(7 * f), math.sin(7 * f)) for f in frequencies]
    sums = [abs(sum(turned[: j + 1])) for j in range(4)]
    assert curve(right, "paper's bound")[1][7] == pytest.approx(sum(sums) / 10)


def test_the_score_of_rotated_vectors_is_what_the_curve_says():
    """By the definition: rotate query and key by their positions, multiply."""
    _, scores = curve(plots.rotary(8, length=6).axes[2], "equal query and key")

    def rotated(position):
        found = []
        for i in range(4):
            angle = position * 10_000 ** (-2 * i / 8)
            found += [math.cos(angle) - math.sin(angle)]
            found += [math.sin(angle) + math.cos(angle)]
        return np.array(found)  # of the vector of ones

    for start in (0, 11):
        for apart in range(6):
            product = rotated(start + apart) @ rotated(start)
            assert product / 8 == pytest.approx(scores[apart])


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (plots.position_table, dict(hidden_dim=5), "even hidden_dim.*hidden_dim=5"),
        (plots.position_table, dict(table=np.ones(3)), r"shape \(3,\)"),
        (plots.position_table, dict(table=[[np.nan]]), "finite numbers"),
        (plots.position_distance, dict(measure="angle"), "'distance', 'dot', 'cosine'"),
        (plots.rotary, dict(head_dim=7), "even head_dim.*head_dim=7"),
        (plots.rotary, dict(length=1), "2 tokens at least"),
    ],
)
def test_what_cannot_be_drawn_is_refused(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        function(**arguments)
