"""On JAX: errors and threads leave a model its weights; no step is an old one."""

import contextlib
import functools
import itertools
import threading
import time

import keras
from keras.src.backend.common.stateless_scope import in_stateless_scope  # no public


def _named(state):
    """A state as Keras keeps it: `fit` has four parts, `predict` the first two."""
    names = ["trainable_variables", "non_trainable_variables", "metrics_variables"]
    if len(state) == 4:
        names.insert(2, "optimizer_variables")
    return dict(zip(names, state))


def _apart(state, kept):
    """A state without an array that stands in it twice, or is one of those `kept`.

    What a step is given is gone when it ends, and at the end of a `fit` Keras gives a
    weight the very array that is its average.
    """
    seen = set(map(id, kept))

    def own(value):
        if id(value) in seen:
            return keras.ops.copy(value)
        seen.add(id(value))
        return value

    return keras.tree.map_structure(own, state)


class _Turn:
    """A thread that reads a model's variables, or whose trainer has their values."""

    def __init__(self, model, fits=False):
        self.model, self.fits, self.thread = model, fits, threading.get_ident()
        self.variables = frozenset(map(id, [model, *model.variables]))
        self.idle_since = time.monotonic()  # `None` while a step runs

    def shares(self, other):
        return not self.variables.isdisjoint(other.variables)


_changed = threading.Condition()
_trainers, _readers = [], []  # those of now
_LONGEST_IDLE = 30.0  # seconds


def wait_for_values(model):
    """Waits while another thread's trainer has the values of a model's variables.

    What this thread's own trainer has, in a callback, it gives back.

    Raises:
        RuntimeError: the other thread trains, or waits for something itself: that may
            be this one, where data are made by asking the model.
    """
    if not in_stateless_scope():  # where a step is traced, which has values of its own
        with _changed:
            _wait(_Turn(model), _trainers)


@contextlib.contextmanager
def reading(model):
    """Inside, a model's variables have their values; see `wait_for_values`."""
    if in_stateless_scope():
        yield
    else:
        with _taking(_Turn(model), _readers, _trainers):
            yield


@contextlib.contextmanager
def _training(model, fits=False):
    """Inside, a trainer may take the values; `fits` says that it takes long.

    Two in two threads at once would lose them for good, as a step uses them up.
    """
    turn = _Turn(model, fits)
    with _taking(turn, _trainers, _trainers, _readers):
        yield


@contextlib.contextmanager
def _taking(turn, own, *others):
    with _changed:
        _wait(turn, *others)
        own.append(turn)
    try:
        yield
    finally:
        with _changed:
            own.remove(turn)
            _changed.notify_all()


def _wait(turn, *others):
    """Waits while another thread's turn is among `others`, of the same variables."""
    while before := [
        each
        for each in itertools.chain(*others)
        if each.thread != turn.thread and each.shares(turn)
    ]:
        for each in before:
            name, since = each.model.name, each.idle_since
            if each.fits:
                raise RuntimeError(
                    f"{name} is trained in another thread, and on JAX Keras has its "
                    "weights until fit ends. Ask it in a callback of that fit, or ask "
                    "a copy of it that was saved before."
                )
            if each in _trainers and since and time.monotonic() - since > _LONGEST_IDLE:
                raise RuntimeError(
                    f"{name} is asked in another thread, which has waited for data for "
                    f"{_LONGEST_IDLE:g} seconds, and on JAX Keras has its weights "
                    "meanwhile. Where this is what makes the data, ask a copy of it."
                )
        _changed.wait(1.0)
    for each in _trainers:
        if each.thread == turn.thread and each.shares(turn):
            each.model.jax_state_sync()


def _leaving_weights(method):
    """A method of Keras's trainer after which the variables have what there is."""

    @functools.wraps(method)
    def run(self, *args, **kwargs):
        with _training(self):
            self.jax_state_sync()  # of a `fit` that calls it by way of a callback
            try:
                return method(self, *args, **kwargs)
            finally:
                self.jax_state_sync()
                self._jax_state = None  # older than what is assigned from now on

    return run


def _within(turn, method):
    """A method inside `turn(model)`."""

    @functools.wraps(method)
    def run(self, *args, **kwargs):
        with turn(self):
            return method(self, *args, **kwargs)

    return run


@contextlib.contextmanager
def _anew(model, step):
    """Inside, a step of the model equals no other, for `jax.jit`.

    That takes equal functions for one, and a method equals itself after the model was
    compiled with another loss: as long as the former program lives, until it is
    collected, that one ran.
    """
    own = {step: vars(model)[step]} if step in vars(model) else {}
    vars(model)[step] = functools.partial(getattr(model, step))
    try:
        yield
    finally:
        del vars(model)[step]
        vars(model).update(own)


class KeepsState:
    """Mixin of models whose weights outlive what goes wrong while Keras has them.

    Keras's trainer on JAX takes the values out of the variables while it goes over the
    batches, and puts back what the last execution gave. Where one failed before any
    ended, the model had no weights any more. Here it knows them from the beginning, and
    after each step: what a compiled step is given is gone when it ends.

    One thread does so at a time, see `_training`; others wait, or are told why not.
    And a model that is compiled again computes what it was compiled for, see `_anew`;
    one whose weights are averages trains on, see `_apart`.
    """

    __call__ = _within(reading, keras.Model.__call__)
    get_weights = _within(reading, keras.Model.get_weights)
    save_weights = _within(reading, keras.Model.save_weights)
    save = _within(reading, keras.Model.save)
    fit = _within(functools.partial(_training, fits=True), keras.Model.fit)
    evaluate = _leaving_weights(keras.Model.evaluate)
    predict = _leaving_weights(keras.Model.predict)
    train_on_batch = _leaving_weights(keras.Model.train_on_batch)
    test_on_batch = _leaving_weights(keras.Model.test_on_batch)
    predict_on_batch = _leaving_weights(keras.Model.predict_on_batch)

    def make_train_function(self, force=False):
        """Keras's, of a function that no other compiled step has."""
        with _anew(self, "train_step"):
            return super().make_train_function(force)

    def make_test_function(self, force=False):
        """Keras's, of a function that no other compiled step has."""
        with _anew(self, "test_step"):
            return super().make_test_function(force)

    def _get_jax_state(self, **taken):
        own = getattr(self, "optimizer", None)
        kept = [] if own is None or taken.get("optimizer_variables") else own.variables
        state = super()._get_jax_state(**taken)
        state = _apart(state, [variable.value for variable in kept])
        self._jax_state = _named(state)
        return state

    def _make_function(self, step_function, **kwargs):
        def step(state, data):
            me = threading.get_ident()
            turns = [t for t in _trainers if t.model is self and t.thread == me]
            for turn in turns:
                turn.idle_since = None
            outputs, state = step_function(state, data)
            self._jax_state, self._jax_state_synced = _named(state), False
            for turn in turns:
                turn.idle_since = time.monotonic()
            return outputs, state

        return super()._make_function(step, **kwargs)
