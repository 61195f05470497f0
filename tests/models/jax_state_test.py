"""Threads that ask one model leave it its weights, on JAX, too."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import keras
import numpy as np
import pytest

import kzoo
from kzoo.models import jax_state
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


def test_threads_predict_with_a_model_and_with_a_part_of_it():
    model, inputs = classifier(), {"token_ids": IDS}
    expected = model.predict(inputs, verbose=0), model.encoder.predict(IDS, verbose=0)
    with ThreadPoolExecutor(4) as pool:
        runs = [
            (
                pool.submit(model.predict, inputs, batch_size=2, verbose=0),
                pool.submit(model.encoder.predict, IDS, batch_size=2, verbose=0),
            )
            for _ in range(6)
        ]
    for pair in runs:
        for run, array in zip(pair, expected, strict=True):
            np.testing.assert_allclose(run.result(), array, atol=1e-6)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="Keras takes them on JAX")
def test_data_that_are_made_by_asking_the_model_are_an_error(monkeypatch):
    monkeypatch.setattr(jax_state, "_LONGEST_IDLE", 0.2)
    model = classifier()

    class Asking(keras.utils.PyDataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            model.predict_on_batch({"token_ids": IDS})
            return {"token_ids": IDS}

    with pytest.raises(RuntimeError, match="is what makes the data, ask a copy"):
        model.predict(Asking(workers=2), verbose=0)
    assert np.isfinite(model.predict({"token_ids": IDS}, verbose=0)).all()


def test_a_callback_asks_the_model_between_two_steps(tmp_path):
    model, found = classifier(), []

    class Asks(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            found.append(model.predict({"token_ids": IDS}, verbose=0))
            found.append(to_numpy(model({"token_ids": IDS})))
            model.save_safetensors(tmp_path / "weights.safetensors")
            found.append(model.encoder.get_weights()[0])

    options = dict(batch_size=3, callbacks=[Asks()], verbose=0)
    model.fit({"token_ids": IDS}, np.arange(6) % 2, **options)
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)
    assert len(found) == 6 and np.abs(found[2] - found[5]).max() > 0


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


def thing(*variables, synced=None):
    """What a turn asks of a model."""
    sync = (synced if synced is not None else []).append
    return SimpleNamespace(
        name="thing", variables=variables, jax_state_sync=lambda: sync("synced")
    )


def test_one_thread_has_the_weights_and_others_wait_for_it():
    shared = object()
    model, part, other = thing(shared, object()), thing(shared), thing(object())
    order, begun = [], threading.Barrier(3, timeout=30)

    def asks(turn):
        begun.wait()
        with turn(part):  # another model, with one of the variables
            order.append(turn)

    with ThreadPoolExecutor(2) as pool:
        with jax_state._training(model):
            waiting = [pool.submit(asks, jax_state.reading)]
            waiting += [pool.submit(asks, jax_state._training)]
            begun.wait()
            with jax_state._training(other), jax_state.reading(model):
                time.sleep(0.1)
                order.append("first")
        for each in waiting:
            each.result(30)
    assert order[0] == "first" and len(order) == 3
    assert not jax_state._trainers and not jax_state._readers


def test_what_a_callback_asks_is_given_back_before():
    synced, shared = [], object()
    with jax_state._training(thing(shared, synced=synced), fits=True):
        jax_state.wait_for_values(thing(object()))
        assert not synced
        jax_state.wait_for_values(thing(shared))
        assert synced


def test_who_waits_for_a_training_or_for_data_of_its_own_is_told(monkeypatch):
    model = thing(object())
    with ThreadPoolExecutor(1) as pool:
        with jax_state._training(model, fits=True):
            with pytest.raises(RuntimeError, match="is trained in another thread"):
                pool.submit(jax_state.wait_for_values, model).result(30)
        monkeypatch.setattr(jax_state, "_LONGEST_IDLE", 0.05)
        with jax_state._training(model):
            with pytest.raises(RuntimeError, match="has waited for data for 0.05 sec"):
                pool.submit(jax_state.wait_for_values, model).result(30)
        assert pool.submit(jax_state.wait_for_values, model).result(30) is None
