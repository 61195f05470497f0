"""What users give to functions and things: how it is checked, and found again."""

import inspect
import math
import numbers
from collections.abc import Mapping
from typing import get_args


def is_integer(value):
    """Whether a value is an `int` or one of numpy's integers, and no bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value):
    """Whether a value is a real number of Python's or numpy's, and no bool."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_unicode(text):
    """Whether UTF-8 can write a string: not half of a surrogate pair."""
    return text == text.encode(errors="replace").decode()


def listed(name, kind, values):
    """What was given as several, as a list."""
    try:
        if isinstance(values, (bytes, Mapping)):
            raise TypeError
        return list(values)
    except TypeError:
        raise ValueError(f"{name} must be {kind}. Received: {values!r}.") from None


def check_count(name, value, least=1, most=None):
    """Raises `ValueError` where a number is no integer, or out of its range.

    Args:
        name: what it is called.
        value: the number, an `int` or one of numpy's integers.
        least: that it may be.
        most: that it may be; `None` for any.
    """
    if not is_integer(value) or value < least or (most is not None and value > most):
        end = "" if most is None else f" and at most {most}"
        raise ValueError(
            f"{name} must be an integer of at least {least}{end}. Received: {value!r}."
        )


def check_choice(name, value, choices):
    """Raises `ValueError` where a value is none of those that there are.

    Args:
        name: what it is called.
        value: the value.
        choices: all that it may be, in the order of the message.
    """
    if value not in choices:
        raise ValueError(f"{name} must be one of {list(choices)}. Received: {value!r}.")


def check_type(owner, name, value, hint):
    """Raises `ValueError` when `value` is not what the annotation `hint` says."""
    choices = get_args(hint)
    if choices and not isinstance(choices[0], type):  # a Literal
        check_choice(f"{owner}.{name}", value, choices)
        return
    kinds = choices or (hint,)
    if isinstance(value, bool) and bool not in kinds:
        kinds = ()
    if float in kinds:
        kinds = (*kinds, int)
    if not isinstance(value, kinds):
        raise ValueError(f"{owner}.{name} must be {hint}. Received: {value!r}.")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{owner}.{name} must be finite. Received: {value!r}.")


def arguments_of(thing):
    """The arguments of `__init__` that a thing of kzoo keeps as attributes, a dict."""
    kinds = (k for k in type(thing).__mro__ if k.__module__.startswith("kzoo."))
    inits = [vars(kind)["__init__"] for kind in kinds if "__init__" in vars(kind)]
    known = (
        argument
        for each in inits
        for argument in list(inspect.signature(each).parameters.values())[1:]
    )
    names = dict.fromkeys(
        a.name for a in known if a.kind not in (a.VAR_POSITIONAL, a.VAR_KEYWORD)
    )
    return {name: getattr(thing, name) for name in names}
