"""Threads that ask one model leave it its weights, on JAX, too."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import keras
import numpy as np
import pytest

import kzoo
from kzoo.models import turns
from tests.harness import to_numpy

IDS = np.random.default_rng(0).integers(3, 20, (6, 5), dtype="int32")
INPUTS = {"token_ids": IDS}
on_jax = pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="Keras takes the values on JAX alone"
)


def classifier(kind=kzoo.TextClassifier):
    model = kind.from_size("tiny", vocabulary_size=20, num_classes=2, num_layers=1)
    model.compile()
    return model


class Callback(keras.callbacks.Callback):
    """Runs a function behind each step of a training."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def on_train_batch_end(self, batch, logs=None):
        self.function()


def train(model, function):
    options = dict(batch_size=3, callbacks=[Callback(function)], verbose=0)
    model.fit(INPUTS, np.arange(6) % 2, **options)


# A model.


def test_threads_predict_with_one_model():
    model = classifier()
    expected = model.predict(INPUTS, verbose=0)
    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(model.predict, INPUTS, verbose=0) for _ in range(12)]
        calls = [pool.submit(model, INPUTS) for _ in range(12)]
        asked = [pool.submit(model.named_variables) for _ in range(12)]
    for run in (*runs, *calls):
        np.testing.assert_allclose(to_numpy(run.result()), expected, atol=1e-6)
    assert all(np.isfinite(w).all() for w in asked[0].result().values())
    np.testing.assert_allclose(model.predict(INPUTS, verbose=0), expected, atol=1e-6)


def test_threads_predict_with_a_model_and_with_a_part_of_it():
    model = classifier()
    expected = model.predict(INPUTS, verbose=0), model.encoder.predict(IDS, verbose=0)
    options = dict(batch_size=2, verbose=0)
    with ThreadPoolExecutor(4) as pool:
        runs = [
            (
                pool.submit(model.predict, INPUTS, **options),
                pool.submit(model.encoder.predict, IDS, **options),
            )
            for _ in range(6)
        ]
    for pair in runs:
        for run, array in zip(pair, expected, strict=True):
            np.testing.assert_allclose(run.result(), array, atol=1e-6)


def test_weights_that_are_set_while_another_thread_predicts_stay():
    model, stop = classifier(), threading.Event()
    wanted = [np.full_like(w, 0.125) for w in model.get_weights()]

    def predicts():
        while not stop.is_set():
            model.predict(INPUTS, batch_size=1, verbose=0)

    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(predicts)
        try:
            for _ in range(5):
                model.set_weights([np.zeros_like(w) for w in wanted])
                model.set_weights(wanted)
                for found, want in zip(model.get_weights(), wanted, strict=True):
                    np.testing.assert_array_equal(found, want)
        finally:
            stop.set()
        run.result()
    for found, want in zip(model.get_weights(), wanted, strict=True):
        np.testing.assert_array_equal(found, want)


def test_a_callback_asks_the_model_between_two_steps(tmp_path):
    model, found = classifier(), []

    def asks():
        found.append(model.predict(INPUTS, verbose=0))
        found.append(to_numpy(model(INPUTS)))
        model.save_safetensors(tmp_path / "weights.safetensors")
        model.export(tmp_path / "model.onnx", format="onnx", overwrite=True)
        found.append(model.encoder.get_weights()[0])

    train(model, asks)
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)
    assert len(found) == 6 and np.abs(found[2] - found[5]).max() > 0


def test_a_base_class_of_the_user_s_has_its_methods_called():
    said = []

    class Says(keras.Model):
        def fit(self, *args, **kwargs):
            said.append("fit")
            return super().fit(*args, **kwargs)

        def predict(self, *args, **kwargs):
            said.append("predict")
            return super().predict(*args, **kwargs)

    class Mine(kzoo.TextClassifier, Says):
        pass

    model = classifier(Mine)
    train(model, lambda: None)
    model.predict(INPUTS, verbose=0)
    assert said == ["fit", "predict"]


@on_jax
def test_a_thread_that_asks_while_another_trains_is_told():
    model, asked = classifier(), []

    def asks():
        with ThreadPoolExecutor(1) as pool:
            asked.append(pool.submit(model.predict, INPUTS))

    train(model, asks)
    with pytest.raises(RuntimeError, match="is trained in another thread, and on JAX"):
        asked[0].result()
    assert np.isfinite(model.predict(INPUTS, verbose=0)).all()


@on_jax
def test_data_that_are_made_by_asking_the_model_are_an_error(monkeypatch):
    monkeypatch.setattr(turns, "_LONGEST_FETCH", 0.2)
    model = classifier()

    class Asking(keras.utils.PyDataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            model.predict_on_batch(INPUTS)
            return INPUTS

    with pytest.raises(RuntimeError, match="is what makes the data, ask a copy"):
        model.predict(Asking(workers=2), verbose=0)
    assert np.isfinite(model.predict(INPUTS, verbose=0)).all()


# Turns by themselves, as on JAX.


@pytest.fixture
def used(monkeypatch):
    monkeypatch.setattr(turns, "_ON_JAX", True)
    yield
    assert not (turns._held or turns._waiting)


def thing(*variables, synced=None):
    """What a turn asks of a model."""
    sync = (synced if synced is not None else []).append
    return SimpleNamespace(
        name="thing", variables=variables, jax_state_sync=lambda: sync("synced")
    )


def test_one_thread_has_the_weights_and_others_wait_for_it(used):
    shared = object()
    model, part, other = thing(shared, object()), thing(shared), thing(object())
    order, begun = [], threading.Barrier(3, timeout=30)

    def asks(turn):
        begun.wait()
        with turn(part):  # another model, with one of the variables
            order.append(turn)

    with ThreadPoolExecutor(2) as pool:
        with turns.training(model):
            waiting = [pool.submit(asks, turns.reading)]
            waiting += [pool.submit(asks, turns.training)]
            begun.wait()
            with turns.training(other), turns.reading(model):
                time.sleep(0.1)
                order.append("first")
        for each in waiting:
            each.result(30)
    assert order[0] == "first" and len(order) == 3


def test_threads_that_read_without_end_let_a_trainer_come(used):
    model, stop = thing(object()), threading.Event()

    def reads():
        while not stop.is_set():
            with turns.reading(model), turns.reading(model):
                time.sleep(0.01)

    def trains():
        with turns.training(model):
            return True

    with ThreadPoolExecutor(4) as pool:
        try:
            readers = [pool.submit(reads) for _ in range(3)]
            time.sleep(0.05)
            assert pool.submit(trains).result(30)
        finally:
            stop.set()
        assert [each.result(30) for each in readers] == [None] * 3


def test_what_a_callback_asks_is_given_back_before(used):
    synced, shared = [], object()
    with turns.training(thing(shared, synced=synced), fits=True):
        turns.wait_for_values(thing(object()))
        assert not synced
        turns.wait_for_values(thing(shared))
        assert len(synced) == 1
        with ThreadPoolExecutor(1) as pool:  # one that works for the callback
            ask = turns.with_own_turns(turns.wait_for_values)
            pool.submit(ask, thing(shared)).result(30)
        assert len(synced) == 2


def test_who_waits_for_a_training_or_for_data_of_its_own_is_told(used, monkeypatch):
    monkeypatch.setattr(turns, "_LONGEST_FETCH", 0.05)
    model = thing(object())

    def asks(pool):
        return pool.submit(turns.wait_for_values, model)

    with ThreadPoolExecutor(1) as pool:
        with turns.training(model, fits=True):
            with pytest.raises(RuntimeError, match="is trained in another thread"):
                asks(pool).result(30)

        def data():
            yield "fast"
            with pytest.raises(RuntimeError, match="has waited for data for 0.05 sec"):
                asks(pool).result(30)
            yield "slow"

        with turns.training(model):
            given = turns.fetched(model, data())
            assert next(given) == "fast"
            time.sleep(0.1)  # it computes, and does not fetch
            long = asks(pool)
            time.sleep(0.1)
            assert not long.done()
            given = turns.fetched(model, iter(["more"]))
            assert list(given) == ["more"]
        assert long.result(30) is None
        with turns.training(model):
            assert list(turns.fetched(model, data())) == ["fast", "slow"]
        assert asks(pool).result(30) is None
