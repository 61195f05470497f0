"""On JAX: whose turn it is, for Keras's trainer has a model's weights while it runs.

It takes the values out of the variables, and a step uses them up: in two threads at
once they would be lost for good, and who reads them meanwhile finds none. What models
share counts, such as the encoder of a task. On other backends nothing waits.
"""

import contextlib
import contextvars
import functools
import itertools
import threading
import time

import keras
from keras.src.backend.common.stateless_scope import in_stateless_scope  # no public

_ON_JAX = keras.backend.backend() == "jax"
_LONGEST_FETCH = 30.0  # seconds that others wait for a trainer that waits for data
_END = object()

_changed = threading.Condition()
_held, _waiting = [], []  # turns, those that came first in front
# Those of this context: of a callback, and of threads that work for who has the turn.
_own = contextvars.ContextVar("turns", default=())


class _Turn:
    def __init__(self, model, trains=False, fits=False):
        self.model, self.trains, self.fits = model, trains, fits
        self.fetches_since = None

    def shares(self, other):
        """Whether a variable is of both; asked where both are there, for it takes long.

        Models may be built in between.
        """
        models = self.model, other.model
        mine, others = ({id(model), *map(id, model.variables)} for model in models)
        return not mine.isdisjoint(others)

    def check(self):
        """Raises `RuntimeError` where waiting for this one might take very long."""
        if self.fits:
            raise RuntimeError(
                f"{self.model.name} is trained in another thread, and on JAX Keras has "
                "its weights until fit ends. Ask it in a callback of that fit, or ask "
                "a copy of it that was saved before."
            )
        since = self.fetches_since
        if since is not None and time.monotonic() - since > _LONGEST_FETCH:
            raise RuntimeError(
                f"{self.model.name} is asked in another thread, which has waited for "
                f"data for {_LONGEST_FETCH:g} seconds, and on JAX Keras has its "
                "weights meanwhile. Where this is what makes the data, ask a copy."
            )


def wait_for_values(model):
    """Waits until the variables of a model have their values.

    What a trainer of this context has, as in a callback, it gives back.

    Raises:
        RuntimeError: another thread trains, or waits for data that may be made here.
    """
    with reading(model):
        pass


@contextlib.contextmanager
def reading(model):
    """Inside, the variables of a model have their values; see `wait_for_values`."""
    with _taken(_Turn(model)):
        yield


@contextlib.contextmanager
def training(model, fits=False):
    """Inside, no other thread takes, reads or sets the values; see `wait_for_values`.

    Args:
        model: whose variables they are.
        fits: whether it takes long, so that others are told instead of waiting.

    Yields:
        The turn.
    """
    turn = _Turn(model, trains=True, fits=fits)
    with _taken(turn):
        yield turn


def fetched(model, iterator):
    """What an iterator gives; meanwhile others see since when it is waited for."""
    turns = [turn for turn in _own.get() if turn.model is model]
    while True:
        for turn in turns:
            turn.fetches_since = time.monotonic()
        try:
            element = next(iterator, _END)
        finally:
            for turn in turns:
                turn.fetches_since = None
        if element is _END:
            return
        yield element


def with_own_turns(function):
    """A function that another thread may call for who has a turn and waits for it."""
    own = _own.get()

    @functools.wraps(function)
    def run(*args):
        token = _own.set(own)
        try:
            return function(*args)
        finally:
            _own.reset(token)

    return run


@contextlib.contextmanager
def _taken(turn):
    if not _ON_JAX or in_stateless_scope():  # a traced step has values of its own
        yield
        return
    with _changed:
        # Who has a turn waits for no one that waits, or both would for ever.
        first = [] if _own.get() else list(_waiting)
        _waiting.append(turn)
        try:
            _wait(turn, first)
            _held.append(turn)
        finally:
            _waiting.remove(turn)
            _changed.notify_all()
    _own.set((*_own.get(), turn))
    try:
        yield
    finally:
        _own.set(tuple(each for each in _own.get() if each is not turn))
        with _changed:
            _held.remove(turn)
            _changed.notify_all()


def _wait(turn, first):
    """Waits while others train where this one reads, or it would train where they read.

    Args:
        turn: that comes.
        first: those that have waited before.
    """
    own = _own.get()

    def in_the_way():
        waiting = (each for each in first if each in _waiting)
        for each in itertools.chain(waiting, _held):
            either = each.trains or turn.trains
            if either and each not in own and each.shares(turn):
                yield each

    while before := list(in_the_way()):
        for each in before:
            if each in _held:
                each.check()
        _changed.wait(1.0)
    for each in own:
        if each.trains and each.shares(turn):
            each.model.jax_state_sync()
