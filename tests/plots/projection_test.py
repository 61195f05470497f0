"""The projection shows principal components, computed here by eigenvectors."""

import numpy as np
import pytest

from kzoo import plots

RANDOM = np.random.default_rng(0)
VECTORS = RANDOM.normal(size=(30, 5)) * [5.0, 3.0, 1.0, 0.5, 0.1] + 7.0


def points(figure):
    return [np.asarray(c.get_offsets()) for c in figure.axes[0].collections]


def test_points_and_shares_equal_those_of_the_covariance():
    figure = plots.embedding_projection(VECTORS, title="Words")
    values, directions = np.linalg.eigh(np.cov(VECTORS.T))
    (drawn,) = points(figure)
    for axis, label in enumerate(
        (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel())
    ):
        direction = directions[:, -1 - axis]
        direction = direction * np.sign(direction[np.abs(direction).argmax()])
        expected = (VECTORS - VECTORS.mean(axis=0)) @ direction
        np.testing.assert_allclose(drawn[:, axis], expected, rtol=1e-9)
        share = values[-1 - axis] / values.sum()
        assert label == f"component {axis + 1}, {share:.1%} of the variance"
    assert figure.axes[0].get_aspect() == 1.0
    assert figure.get_suptitle() == "Words"


def test_classes_have_colours_and_a_legend():
    classes = ["verb", "noun"] * 15
    figure = plots.embedding_projection(VECTORS, classes=classes)
    (every,) = points(plots.embedding_projection(VECTORS))
    verbs, nouns = points(figure)
    np.testing.assert_allclose(verbs, every[::2])
    np.testing.assert_allclose(nouns, every[1::2])
    (legend,) = figure.legends
    assert [t.get_text() for t in legend.get_texts()] == ["verb", "noun"]


def test_classes_may_have_any_name(tmp_path):
    classes = ["_", r"$\x$", "__a"] * 10
    figure = plots.embedding_projection(VECTORS, classes=classes)
    (legend,) = figure.legends
    assert [t.get_text() for t in legend.get_texts()] == classes[:3]
    figure.savefig(tmp_path / "x.png")  # where a formula would be read


def test_nan_is_no_class():
    with pytest.raises(ValueError, match="NaN is no class"):
        plots.embedding_projection(VECTORS, classes=[0.0, np.nan, 1.0] * 10)


def test_fifteen_classes_differ_in_colour_or_marker():
    figure = plots.embedding_projection(VECTORS, classes=[i % 15 for i in range(30)])
    looks = {
        (tuple(c.get_facecolor()[0]), c.get_paths()[0].vertices.tobytes())
        for c in figure.axes[0].collections
    }
    assert len(looks) == 15


def test_labels_stand_beside_their_points_and_do_not_overlap(tmp_path):
    labels = [f"word {i}" for i in range(30)]
    figure = plots.embedding_projection(VECTORS, labels)
    figure.savefig(tmp_path / "words.png")
    (drawn,) = points(figure)
    texts = figure.axes[0].texts
    for text in texts:
        index = labels.index(text.get_text())
        np.testing.assert_allclose(text.xy, drawn[index])
    boxes = [text.get_window_extent() for text in texts]
    for i, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:i])
    note = figure.axes[0].get_title(loc="right").strip()
    left_out = 30 - len(texts)
    assert note.startswith(f"{left_out} of 30 labels") if left_out else not note


def test_long_labels_with_one_beginning_differ():
    labels = [f"A sentence that is rather long and ends with {i:02}" for i in range(30)]
    texts = plots.embedding_projection(VECTORS, labels).axes[0].texts
    shown = [text.get_text() for text in texts]
    assert len(set(shown)) == len(shown) > 1
    for text in shown:
        assert len(text) == 24 and text.startswith("A sentence t…nds with ")


def test_labels_of_equal_points_are_left_out_and_counted():
    figure = plots.embedding_projection(
        np.zeros((9, 3)), [f"same {i}" for i in range(9)]
    )
    assert len(figure.axes[0].texts) < 9
    assert "of 9 labels left out" in figure.axes[0].get_title(loc="right")


def test_two_vectors_of_one_number_are_enough():
    figure = plots.embedding_projection([[1.0], [4.0]], ["$x", "b"])
    np.testing.assert_allclose(points(figure)[0], [[-1.5, 0.0], [1.5, 0.0]])
    assert "100.0%" in figure.axes[0].get_xlabel()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(vectors=np.ones((1, 3))), r"2 vectors at least.*shape \(1, 3\)"),
        (dict(vectors=np.ones(3)), "count, width"),
        (dict(vectors=[[np.inf], [0.0]]), "finite"),
        (dict(vectors=VECTORS, labels=["a"]), "labels must be one a vector, 30"),
        (dict(vectors=VECTORS, classes=["a"]), "classes must be one a vector, 30"),
    ],
)
def test_what_cannot_be_drawn_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        plots.embedding_projection(**arguments)
