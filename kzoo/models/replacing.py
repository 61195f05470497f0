"""Methods replaced for a while, for the context that asked for it alone."""

import contextlib
import contextvars
import functools
import threading

_active = contextvars.ContextVar("replacements", default=())
_lock = threading.Lock()


@contextlib.contextmanager
def replaced(thing, name, make, *, everywhere=False):
    """Inside, `make(method)` is called in the place of a thing's method.

    Only in this context: another thread calls the method as it is. What stands in its
    place goes past Keras's tracking of attributes, and is gone with the last of those
    who asked for it.

    Args:
        thing: an object, such as a layer.
        name: of its method.
        make: function from the method, or what is already called in its place, to
            another one.
        everywhere: in all threads.
    """
    own = (thing, name, make)
    with _lock:
        method = vars(thing).get(name)
        if not hasattr(method, "holders"):
            method = vars(thing)[name] = _chosen(thing, name)
        method.holders += 1
        method.everywhere += (own,) * everywhere
    _active.set(_active.get() + (own,) * (not everywhere))
    try:
        yield
    finally:
        _active.set(_without(_active.get(), own))
        with _lock:
            method.holders -= 1
            method.everywhere = _without(method.everywhere, own)
            if not method.holders and vars(thing).get(name) is method:
                if method.before is None:
                    del vars(thing)[name]
                else:
                    vars(thing)[name] = method.before


def _without(entries, own):
    return tuple(each for each in entries if each is not own)


def _chosen(thing, name):
    """What calls a method, or what the context that calls it has in its place."""
    method = getattr(thing, name)

    @functools.wraps(method)
    def call(*args, **kwargs):
        function = method
        for where, what, make in (*call.everywhere, *_active.get()):
            if where is thing and what == name:
                function = make(function)
        return function(*args, **kwargs)

    call.holders, call.everywhere, call.before = 0, (), vars(thing).get(name)
    return call
