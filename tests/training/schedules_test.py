"""The paper's learning rate."""

import keras
import numpy as np
import pytest

from kzoo.training import Restarts, WarmupInverseSquareRoot


@pytest.mark.parametrize("iterations", [0, 1, 99, 3998, 3999, 4000, 99_999, 10**7])
def test_equals_the_formula_of_section_5_3(iterations):
    step = iterations + 1  # the paper counts from 1
    want = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
    rate = WarmupInverseSquareRoot(hidden_dim=512, warmup_steps=4000)(iterations)
    assert float(rate) == pytest.approx(want, rel=1e-6)


def test_the_peak_is_at_the_end_of_the_warm_up():
    schedule = WarmupInverseSquareRoot(hidden_dim=64, warmup_steps=100, scale=2.0)
    rates = [float(schedule(i)) for i in range(300)]
    assert int(np.argmax(rates)) == 99
    assert max(rates) == pytest.approx(2.0 / 80.0)  # 2 * (64 * 100) ** -0.5
    assert schedule.peak == pytest.approx(2.0 / 80.0)


def test_from_peak_reaches_the_peak():
    schedule = WarmupInverseSquareRoot.from_peak(3e-3, warmup_steps=50)
    assert float(schedule(49)) == pytest.approx(3e-3)
    assert float(schedule(24)) == pytest.approx(1.5e-3)
    assert float(schedule(199)) == pytest.approx(1.5e-3)


def test_the_first_update_has_its_rate():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.layers[0].kernel.assign([[0.0]])
    schedule = WarmupInverseSquareRoot.from_peak(1.0, warmup_steps=4)
    model.compile(keras.optimizers.SGD(schedule), "mse")
    # Loss (w - 1)^2 has gradient -2 at 0; the first rate is 1 / 4.
    model.fit(np.ones((1, 1)), np.ones((1, 1)), verbose=0)
    kernel = keras.ops.convert_to_numpy(model.layers[0].kernel)
    assert kernel[0, 0] == pytest.approx(0.5)


@pytest.mark.parametrize("name", ["hidden_dim", "warmup_steps", "scale"])
def test_arguments_must_be_positive(name):
    with pytest.raises(ValueError, match=rf"{name} must be positive. Received: 0"):
        WarmupInverseSquareRoot(**{"hidden_dim": 8, name: 0})


def test_config_round_trip_inside_an_optimizer():
    optimizer = keras.optimizers.Adam(WarmupInverseSquareRoot(8, 10, 0.5, name="s"))
    again = keras.optimizers.Adam.from_config(optimizer.get_config())
    assert again._learning_rate.get_config() == {
        "hidden_dim": 8,
        "warmup_steps": 10,
        "scale": 0.5,
        "name": "s",
    }


def test_restarts_repeat_a_schedule_and_survive_serialization():
    schedule = Restarts(keras.optimizers.schedules.CosineDecay(0.1, 4), 4, name="s")
    config = keras.saving.serialize_keras_object(schedule)
    read = keras.saving.deserialize_keras_object(config)
    half = 0.1 * (1 + 2**-0.5) / 2  # a quarter of the way down the cosine
    for rate in (schedule, read):
        rates = [float(rate(keras.ops.convert_to_tensor(i))) for i in range(10)]
        assert rates[0] == rates[4] == rates[8] == pytest.approx(0.1)
        assert rates[1] == rates[5] == rates[9] == pytest.approx(half)
    assert read.name == "s"


def test_restarts_need_steps():
    cosine = keras.optimizers.schedules.CosineDecay(0.1, 4)
    for steps in (0, -2, 4.5, "4", True):
        with pytest.raises(ValueError, match=r"steps must be an integer of at least 1"):
            Restarts(cosine, steps)
    assert Restarts(cosine, np.int64(4)).get_config()["steps"] == 4
    for schedule in (0.1, abs, type(cosine)):
        with pytest.raises(TypeError, match=r"must be a schedule of Keras. Received"):
            Restarts(schedule, 4)
