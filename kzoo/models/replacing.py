"""Methods replaced for a while, for the thread that asked for it alone."""

import contextlib
import contextvars
import functools
import threading

_active = contextvars.ContextVar("replacements", default=())
_lock = threading.Lock()


@contextlib.contextmanager
def replaced(thing, name, make):
    """Inside, `make(method)` is called in the place of a thing's method.

    Only where this context is: another thread calls the method as it is. What stands
    in its place goes past Keras's tracking of attributes, and is gone with the last of
    those who asked for it.

    Args:
        thing: an object, such as a layer.
        name: of its method.
        make: function from the method, or what is already called in its place, to
            another one.
    """
    own = (make,)  # one of its own, also of a function that is given twice
    with _lock:
        method = vars(thing).get(name)
        if not hasattr(method, "replacements"):
            method = vars(thing)[name] = _chosen(thing, name)
        method.replacements.append(own)
    _active.set((*_active.get(), own))
    try:
        yield
    finally:
        _active.set(tuple(each for each in _active.get() if each is not own))
        with _lock:
            method.replacements[:] = [r for r in method.replacements if r is not own]
            if not method.replacements and vars(thing).get(name) is method:
                del vars(thing)[name]
                vars(thing).update(method.before)


def _chosen(thing, name):
    """What calls a method, or what the context that calls it has in its place."""
    method = getattr(thing, name)

    @functools.wraps(method)
    def call(*args, **kwargs):
        active, function = _active.get(), method
        for own in call.replacements:
            if any(own is each for each in active):
                function = own[0](function)
        return function(*args, **kwargs)

    call.replacements = []
    call.before = {name: method} if name in vars(thing) else {}
    return call
