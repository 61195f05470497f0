"""Dataclasses as tables of a TOML file: read with a check of each key, and written.

A class whose table has another form than its fields says so: `from_plain(values)` gives
a dict of its fields for what the file holds, and `to_plain()` what the file is to hold.
"""

import dataclasses
import datetime
import math
import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


class RecipeError(ValueError):
    """A recipe that cannot be followed; the message names the key."""


def refuse(key, expected, received):
    """Says what was expected of a key; raises a `RecipeError`."""
    raise RecipeError(f"{key}: expected {expected}. Received: {received}.")


def check(table, key, names, expected, fits):
    """Refuses numbers of a table; NaN fits nowhere, and `None` is left out."""
    for name in names.split():
        value = getattr(table, name)
        if value is not None and not fits(value):
            refuse(f"{key} {name}", expected, value)


def at_least_one(value):
    """For `check`."""
    return value >= 1


def positive(value):
    """For `check`: more than 0, and finite."""
    return 0 < value < math.inf


def from_table(cls, values, where):
    """A dataclass of a dict, checked; `where` is the dotted name of the table."""
    if hasattr(cls, "from_plain"):
        values = cls.from_plain(values)
    if not isinstance(values, dict):
        refuse(f"[{where}]", "a table", repr(values))
    hints = get_type_hints(cls)
    unknown = sorted(set(values) - set(hints))
    if unknown:
        refuse(_place(where, unknown[0]), f"one of {', '.join(hints)}", "no such key")
    needed = [
        field.name
        for field in dataclasses.fields(cls)
        if field.default is field.default_factory is dataclasses.MISSING
        and field.name not in values
    ]
    if needed:
        refuse(_place(where, needed[0]), "a value", "none")
    return cls(
        **{
            name: _checked(hints[name], value, _place(where, name))
            for name, value in values.items()
        }
    )


def _place(where, key):
    return f"[{where}] {key}" if where else key


def _checked(hint, value, where):
    """The value as its annotation has it.

    Raises:
        RecipeError: it is of another type.
    """
    kinds, arguments = get_origin(hint), get_args(hint)
    if kinds in (Union, types.UnionType):
        options = [each for each in arguments if each is not type(None)]
        if len(options) == 1:
            return _checked(options[0], value, where)
        if type(value) in options:
            return value
        names = " or ".join(each.__name__ for each in options)
        return refuse(where, names, repr(value))
    if hint is Any:
        dates = (datetime.date, datetime.time)
        if any(isinstance(each, dates) for each in _leaves(value)):
            refuse(where, "no date or time", str(value))
        return value
    if kinds is Literal:
        return value if value in arguments else refuse(where, arguments, repr(value))
    if kinds is tuple:
        if not isinstance(value, (list, tuple)):
            refuse(where, "a list", repr(value))
        return tuple(_checked(arguments[0], each, where) for each in value)
    if dataclasses.is_dataclass(hint):
        return from_table(hint, value, where.replace("[", "").replace("] ", "."))
    if kinds is dict:
        if not isinstance(value, dict):
            refuse(where, "a table", repr(value))
        dotted = where.replace("[", "").replace("] ", ".")
        return {
            key: _checked(arguments[1], each, f"[{dotted}] {key}")
            for key, each in value.items()
        }
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        refuse(where, hint.__name__, repr(value))
    return value


def _leaves(value):
    """What TOML's lists and tables hold at last."""
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return [value]
    return [leaf for each in value for leaf in _leaves(each)]


def to_table(value):
    """What TOML can hold of a dataclass, without what is a default."""
    if hasattr(value, "to_plain"):
        return without_none(value.to_plain())
    if dataclasses.is_dataclass(value):
        found = {}
        for field in dataclasses.fields(value):
            each, default = getattr(value, field.name), field.default
            if field.default_factory is not dataclasses.MISSING:
                default = field.default_factory()
            if each != default or default is dataclasses.MISSING:
                found[field.name] = to_table(each)
        return found
    if isinstance(value, dict):
        return {key: to_table(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_table(each) for each in value]
    return value


def without_none(value):
    """TOML has no null: what is `None` is left out, at any depth of dicts."""
    if isinstance(value, dict):
        return {k: without_none(v) for k, v in value.items() if v is not None}
    return list(value) if isinstance(value, tuple) else value
