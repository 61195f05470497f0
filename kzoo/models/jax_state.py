"""On JAX: errors and threads leave a model its weights; no step is an old one."""

import contextlib
import functools
import threading

import keras


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


class Turns:
    """Whose turn it is: of one thread whose trainer has a model's weights, or of all.

    A trainer takes the values out of the variables, and the first step uses them up. In
    two threads at once they would be lost for good.
    """

    def __init__(self, name):
        self._name, self._changed = name, threading.Condition()
        self._readers, self._owner, self._fits = 0, None, False

    def wait(self):
        """Waits until the variables have their values.

        Raises:
            RuntimeError: another thread trains the model.
        """
        with self._changed:
            self._wait(lambda: self._owner in (None, threading.get_ident()))

    @contextlib.contextmanager
    def of_readers(self):
        """Inside, the variables have their values; see `wait`."""
        with self._changed:
            self.wait()
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def of_trainer(self, fits=False):
        """Inside, no other thread has or reads the values; `fits` says that it is long.

        Raises:
            RuntimeError: another thread trains the model.
        """
        if self._owner == threading.get_ident():  # a callback, or validation
            yield
            return
        with self._changed:
            self._wait(lambda: self._owner is None and not self._readers)
            self._owner, self._fits = threading.get_ident(), fits
        try:
            yield
        finally:
            with self._changed:
                self._owner, self._fits = None, False
                self._changed.notify_all()

    def _wait(self, is_free):
        while not is_free():
            if self._fits:
                raise RuntimeError(
                    f"{self._name} is trained in another thread, and on JAX Keras has "
                    "its weights until fit ends. Ask it in a callback of that fit, or "
                    "ask a copy of it that was saved before."
                )
            self._changed.wait()


def turns_of(model):
    """The `Turns` of a model."""
    return vars(model).setdefault("_turns", Turns(model.name))


def _leaving_weights(method):
    """A method of Keras's trainer after which the variables have what there is."""

    @functools.wraps(method)
    def run(self, *args, **kwargs):
        with turns_of(self).of_trainer():
            self.jax_state_sync()  # of a `fit` that calls it by way of a callback
            try:
                return method(self, *args, **kwargs)
            finally:
                self.jax_state_sync()
                self._jax_state = None  # older than what is assigned from now on

    return run


def _alone(fit):
    @functools.wraps(fit)
    def run(self, *args, **kwargs):
        with turns_of(self).of_trainer(fits=True):
            return fit(self, *args, **kwargs)

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

    One thread does so at a time, see `Turns`; others wait, or are told that it trains.
    And a model that is compiled again computes what it was compiled for, see `_anew`;
    one whose weights are averages trains on, see `_apart`.
    """

    fit = _alone(keras.Model.fit)
    evaluate = _leaving_weights(keras.Model.evaluate)
    predict = _leaving_weights(keras.Model.predict)
    train_on_batch = _leaving_weights(keras.Model.train_on_batch)
    test_on_batch = _leaving_weights(keras.Model.test_on_batch)
    predict_on_batch = _leaving_weights(keras.Model.predict_on_batch)

    def __call__(self, *args, **kwargs):
        """Keras's, when no other thread's trainer has the weights."""
        with turns_of(self).of_readers():
            return super().__call__(*args, **kwargs)

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
            outputs, state = step_function(state, data)
            self._jax_state, self._jax_state_synced = _named(state), False
            return outputs, state

        return super()._make_function(step, **kwargs)
