"""On JAX: errors and threads leave a model its weights; no step is an old one."""

import contextlib
import functools
import time

import keras

from kzoo.models.turns import fetched, reading, training


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


@contextlib.contextmanager
def _leaving_weights(model):
    """Inside, a trainer may take the values; afterwards the variables have them."""
    with training(model) as turn:
        turn.fetches_since = time.monotonic()  # Keras looks at the first batch
        model.jax_state_sync()  # of a `fit` that calls it by way of a callback
        try:
            yield
        finally:
            model.jax_state_sync()
            model._jax_state = None  # older than what is assigned from now on


def _inside(around, name):
    """A method of Keras's, of which a user's base class may have its own."""

    @functools.wraps(getattr(keras.Model, name))
    def method(self, *args, **kwargs):
        with around(self):
            return getattr(super(KeepsState, self), name)(*args, **kwargs)

    return method


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

    One thread does so at a time, see `turns.py`; others wait, or are told why not.
    And a model that is compiled again computes what it was compiled for, see `_anew`;
    one whose weights are averages trains on, see `_apart`.
    """

    __call__ = _inside(reading, "__call__")
    get_weights = _inside(reading, "get_weights")
    save_weights = _inside(reading, "save_weights")
    save = _inside(reading, "save")
    set_weights = _inside(training, "set_weights")
    load_weights = _inside(training, "load_weights")
    fit = _inside(functools.partial(training, fits=True), "fit")
    evaluate = _inside(_leaving_weights, "evaluate")
    predict = _inside(_leaving_weights, "predict")
    train_on_batch = _inside(_leaving_weights, "train_on_batch")
    test_on_batch = _inside(_leaving_weights, "test_on_batch")
    predict_on_batch = _inside(_leaving_weights, "predict_on_batch")

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

        run = super()._make_function(step, **kwargs)
        return lambda state, iterator: run(state, fetched(self, iterator))
