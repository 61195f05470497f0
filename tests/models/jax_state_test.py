"""Threads that ask one model leave it its weights, on JAX, too."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import keras
import numpy as np
import pytest

import kzoo
from kzoo.models.jax_state import Turns, turns_of
from tests.harness import to_numpy

IDS = np.random.default_rng(0).integers(3, 20, (6, 5), dtype="int32")


def classifier():
    model = kzoo.TextClassifier.from_size(
        "tiny", vocabulary_size=20, num_classes=2, num_layers=1
    )
    model.compile()
    return model


def test_threads_predict_with_one_model():
    model, inputs = classifier(), {"token_ids": IDS}
    expected = model.predict(inputs, verbose=0)
    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(model.predict, inputs, verbose=0) for _ in range(12)]
        calls = [pool.submit(model, inputs) for _ in range(12)]
        asked = [pool.submit(model.named_variables) for _ in range(12)]
    for run in (*runs, *calls):
        np.testing.assert_allclose(to_numpy(run.result()), expected, atol=1e-6)
    assert all(np.isfinite(w).all() for w in asked[0].result().values())
    np.testing.assert_allclose(model.predict(inputs, verbose=0), expected, atol=1e-6)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="Keras takes them on JAX")
def test_a_thread_that_asks_while_another_trains_is_told():
    model, asked = classifier(), []

    class Asks(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            with ThreadPoolExecutor(1) as pool:
                asked.append(pool.submit(model.predict, {"token_ids": IDS}))

    model.fit({"token_ids": IDS}, np.arange(6) % 2, callbacks=[Asks()], verbose=0)
    with pytest.raises(RuntimeError, match="is trained in another thread, and on JAX"):
        asked[0].result()
    assert np.isfinite(model.predict({"token_ids": IDS}, verbose=0)).all()


def test_one_thread_has_the_weights_and_others_wait_for_it():
    turns, order, inside = Turns("model"), [], threading.Event()

    def reads():
        with turns.of_readers():
            order.append("read")

    def predicts():
        inside.wait(30)
        with turns.of_trainer():
            order.append("predicted")

    with ThreadPoolExecutor(2) as pool:
        with turns.of_trainer(), turns.of_trainer(), turns.of_readers():
            inside.set()
            waiting = [pool.submit(reads), pool.submit(predicts)]
            assert not any(each.done() for each in waiting)
            order.append("trained")
        for each in waiting:
            each.result(30)
    assert order[0] == "trained" and set(order[1:]) == {"read", "predicted"}


def test_who_waits_for_a_training_is_told_that_it_is_long():
    turns = Turns("model")
    with ThreadPoolExecutor(1) as pool:
        with turns.of_trainer(fits=True):
            turns.wait()  # the thread that trains may read
            with pytest.raises(RuntimeError, match="model is trained in another"):
                pool.submit(turns.wait).result(30)
        assert pool.submit(turns.wait).result(30) is None


def test_a_model_has_its_own_turns():
    first, second = SimpleNamespace(name="one"), SimpleNamespace(name="other")
    assert turns_of(first) is turns_of(first) is not turns_of(second)
