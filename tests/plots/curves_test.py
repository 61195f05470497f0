"""Training curves show every measure of a history."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from kzoo import plots

ROWS = [
    {"epoch": 3, "seconds": 9.0, "loss": 2.0, "val_loss": 2.5, "token_accuracy": 0.5},
    {"epoch": 4, "seconds": 8.0, "loss": 1.0, "val_loss": 2.0, "token_accuracy": 0.7},
]


def lines(figure):
    return {
        (axes.get_title(loc="left"), line.get_label()): (
            list(line.get_xdata()),
            list(line.get_ydata()),
        )
        for axes in figure.axes
        for line in axes.get_lines()
    }


def test_validation_is_drawn_beside_training_and_measures_apart():
    drawn = lines(plots.training_curve(ROWS))
    assert drawn == {
        ("loss", "training"): ([3, 4], [2.0, 1.0]),
        ("loss", "validation"): ([3, 4], [2.5, 2.0]),
        ("token accuracy", "training"): ([3, 4], [0.5, 0.7]),
    }


@pytest.mark.parametrize("middle, step", [(2.3, 1e-8), (1234567.0, 1.0), (0.01, 1e-4)])
def test_a_plateau_s_labels_tell_its_values_apart(middle, step):
    figure = plots.training_curve({"loss": [middle, middle - step, middle + step]})
    figure.draw_without_rendering()
    axes = figure.axes[0]
    for label in axes.get_yticklabels():
        text = label.get_text().replace("\N{MINUS SIGN}", "-")
        assert float(text) == pytest.approx(label.get_position()[1], rel=1e-12)
    assert len({label.get_text() for label in axes.get_yticklabels()}) > 3


def test_keras_history_and_a_dict_are_drawn_alike():
    series = {"loss": [2.0, 1.0], "val_loss": [2.5, 2.0]}
    of_keras = SimpleNamespace(history=series, epoch=[0, 1])
    assert lines(plots.training_curve(of_keras)) == lines(plots.training_curve(series))


def test_a_measure_of_several_numbers_has_no_curve():
    series = {"loss": [2.0, 1.0]}
    classes = [np.array([0.1, 0.2])] * 2
    for several in (classes, [each.tolist() for each in classes]):
        drawn = plots.training_curve(series | {"f1": several, "val_f1": several})
        assert lines(drawn) == {("loss", "training"): ([1, 2], [2.0, 1.0])}


def test_an_epoch_without_a_number_is_a_gap():
    rows = [dict(ROWS[0], loss=math.nan), {"epoch": 5, "loss": 0.5}]
    drawn = lines(plots.training_curve(rows))
    np.testing.assert_array_equal(drawn["loss", "training"], ([3, 5], [math.nan, 0.5]))
    assert drawn["loss", "validation"] == ([3], [2.5])


def test_validation_of_every_third_epoch_stands_at_its_own():
    series = {"loss": [6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.5], "val_loss": [4.5, 1.5]}
    of_keras = SimpleNamespace(history=series, epoch=list(range(7)))
    drawn = lines(plots.training_curve(of_keras))
    assert drawn["loss", "validation"] == ([3, 6], [4.5, 1.5])
    few = {"loss": series["loss"], "val_loss": [1.0]}
    with pytest.raises(
        ValueError, match="1 values .* the epochs 1 to 7: give validation_freq"
    ):
        plots.training_curve(few)
    drawn = lines(plots.training_curve(few, validation_freq=np.int64(5)))
    assert drawn["loss", "validation"] == ([5], [1.0])
    for wrong in (3, 8, 0, -1, [2, 3], [9]):
        with pytest.raises(ValueError, match="1 values .* give validation_freq"):
            plots.training_curve(few, validation_freq=wrong)


def test_a_measure_s_name_is_no_formula(tmp_path):
    figure = plots.training_curve({"loss": [1.0], "$\\b{$": [1.0]})
    figure.savefig(tmp_path / "curve.png")


def test_validation_stands_where_keras_validates():
    """By the number of the epoch, wherever `fit` begins; or at those of a list."""
    import keras

    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones((4, 2), "float32")
    given = dict(y=x[:, :1], validation_data=(x, x[:, :1]), verbose=0)
    asked = dict(initial_epoch=5, epochs=10, validation_freq=2)
    history = model.fit(x, **given, **asked)
    for options in ({}, dict(validation_freq=2)):
        drawn = lines(plots.training_curve(history, **options))
        assert drawn["loss", "validation"][0] == [6, 8, 10]
    history = model.fit(x, **given, epochs=6, validation_freq=[2, 5])
    drawn = lines(plots.training_curve(history, validation_freq=[2, 5]))
    assert drawn["loss", "validation"][0] == [2, 5]


@pytest.mark.parametrize("history", [[], {}, {"loss": []}])
def test_a_history_without_an_epoch_is_refused(history):
    with pytest.raises(ValueError, match="one epoch at least"):
        plots.training_curve(history)
