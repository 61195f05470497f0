"""The confusion matrix counts, and colours by the share of the true class."""

import numpy as np
import pytest

from kzoo import plots

TRUE = ["cat", "cat", "cat", "cat", "dog", "dog", "owl"]
PREDICTED = ["cat", "cat", "cat", "dog", "dog", "owl", "owl"]


def drawn(figure):
    return np.asarray(figure.axes[0].get_images()[0].get_array())


def cells(figure):
    return {
        tuple(int(x) for x in text.get_position()[::-1]): text.get_text()
        for text in figure.axes[0].texts
    }


def labels(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def test_names_may_be_an_array():
    for names in ([True, False], np.array([True, False])):
        figure = plots.confusion_matrix([True] * 9 + [False], [True] * 10, names)
        np.testing.assert_allclose(drawn(figure), [[1, 0], [1, 0]])
        ticks = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
        assert ticks == ["True  (9)", "False  (1)"]


def test_nan_is_no_class():
    with pytest.raises(ValueError, match="NaN is no class"):
        plots.confusion_matrix([np.nan, 0.0], [1.0, np.nan])


def test_counts_and_shares_are_in_the_cells():
    figure = plots.confusion_matrix(TRUE, PREDICTED, title="Animals")
    np.testing.assert_allclose(
        drawn(figure), [[0.75, 0.25, 0], [0, 0.5, 0.5], [0, 0, 1]]
    )
    assert cells(figure) == {
        (0, 0): "3\n75%",
        (0, 1): "1\n25%",
        (1, 1): "1\n50%",
        (1, 2): "1\n50%",
        (2, 2): "1\n100%",
    }
    axes = figure.axes[0]
    assert labels(axes.yaxis) == ["cat  (4)", "dog  (2)", "owl  (1)"]
    assert labels(axes.xaxis) == ["cat", "dog", "owl"]
    assert axes.get_title() == "accuracy 71.4% of 7 examples"  # 5 of 7
    assert figure.get_suptitle() == "Animals"


def test_a_long_name_is_cut_and_not_the_number_of_its_examples():
    names = ["a very long name of a class", " b "]
    axes = plots.confusion_matrix([0] * 1234 + [1], [0] * 1235, names).axes[0]
    assert labels(axes.yaxis) == ["a very long name…  (1,234)", "␣b␣  (1)"]
    assert labels(axes.xaxis) == ["a very long name of a cla…", "␣b␣"]


def test_indices_of_names_and_a_class_without_examples():
    names = ["owl", "cat", "dog"]
    figure = plots.confusion_matrix(np.array([1, 1, 2]), [1, 2, 2], names)
    np.testing.assert_allclose(drawn(figure), [[0, 0, 0], [0, 0.5, 0.5], [0, 0, 1]])
    assert labels(figure.axes[0].yaxis)[0] == "owl  (0)"
    by_name = plots.confusion_matrix(
        ["cat", "cat", "dog"], ["cat", "dog", "dog"], names
    )
    np.testing.assert_array_equal(drawn(by_name), drawn(figure))


def test_numbers_are_in_their_order_and_yes_and_no_are_classes():
    assert labels(plots.confusion_matrix([10, 9], [9, 10]).axes[0].xaxis) == ["9", "10"]
    figure = plots.confusion_matrix([True, False], [True, True])
    np.testing.assert_array_equal(drawn(figure), [[0, 1], [0, 1]])


@pytest.mark.parametrize(
    ("true", "predicted", "names"),
    [
        (np.array([0, 1], object), np.array([1, 1], object), ["a", "b"]),
        ([False, True], [True, True], ["no", "yes"]),
        ([3, 5], [5, 5], [3, 5]),
        ([0, 1], [1, 1], [0, 1]),
        (["3", "5"], ["5", "5"], ["3", "5"]),
        (np.array([0, 1], "int8"), [1, 1], ["a", "b"]),
    ],
)
def test_classes_are_names_or_else_indices(true, predicted, names):
    figure = plots.confusion_matrix(true, predicted, names)
    np.testing.assert_array_equal(drawn(figure), [[0, 1], [0, 1]])


def test_cells_of_many_classes_have_counts_alone_and_of_very_many_nothing():
    assert cells(plots.confusion_matrix(range(20), range(20)))[3, 3] == "1"
    assert not cells(plots.confusion_matrix(range(50), range(50)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], []), "0 true and 0 predicted"),
        ((["a"], ["a", "b"]), "1 true and 2 predicted"),
        ((["a"], ["b"], ["a"]), "one of the 1 names.*Received: b"),
        (([0], [3], ["x", "y"]), "one of the 2 names, or its index. Received: 3"),
        (([0], ["a"]), r"all names or all numbers. Received: \['int', 'str'\]"),
        (([0, 1], [0, 1], [1, 2]), "one of the 2 names, .* Received: 0"),
        (([0], [1], ["x", "x"]), r"names of the classes should differ. .*'x', 'x'"),
    ],
)
def test_what_cannot_be_counted_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        plots.confusion_matrix(*arguments)
