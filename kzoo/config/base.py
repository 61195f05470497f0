"""Frozen dataclasses that check their fields and go through JSON."""

import dataclasses
from typing import get_args, get_type_hints

from kzoo.arguments import check_type


class Config:
    """Type checks, copies and a dictionary round trip."""

    def __post_init__(self):
        hints = get_type_hints(type(self))
        for field in dataclasses.fields(self):
            check_type(
                type(self).__name__,
                field.name,
                getattr(self, field.name),
                hints[field.name],
            )

    def _check_positive(self, *names, optional=False):
        """Raises `ValueError` where a field is 0 or less; `None` is let through."""
        for name in names:
            value = getattr(self, name)
            if not (optional and value is None) and not value > 0:
                raise ValueError(
                    f"{type(self).__name__}.{name} must be positive"
                    f"{', or None' if optional else ''}. Received: {value!r}."
                )

    def to_dict(self):
        """A JSON-serialisable dict; `from_dict` gives an equal config back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values):
        """Builds the config from `to_dict`'s result, or what JSON makes of it.

        Raises:
            ValueError: not a dict, or a key is unknown; it is named, with the known
                ones.
        """
        if not isinstance(values, dict):
            raise ValueError(
                f"{cls.__name__}.from_dict expects a dict. Received: {values!r}."
            )
        values = dict(values)
        for name, hint in get_type_hints(cls).items():
            if name in values:
                values[name] = _of_json(values[name], hint)
        known = [field.name for field in dataclasses.fields(cls)]
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise ValueError(
                f"{cls.__name__} has no field {unknown}. Known fields: {known}."
            )
        return cls(**values)

    def replace(self, **changes):
        """A copy with some fields changed, validated again.

        What is as it follows from other fields follows from the new ones, also where
        it was given: equal configs give equal ones.
        """
        following = {
            field.name: None
            for field in dataclasses.fields(self)
            if field.default is None and self._follows(field.name)
        }
        return dataclasses.replace(self, **following | changes)

    def _follows(self, name):
        """Whether a field is what it would be if it were left out."""
        if getattr(self, name) is None:
            return True
        try:
            return dataclasses.replace(self, **{name: None}) == self
        except (TypeError, ValueError):
            return False


def _of_json(value, hint):
    """A field's value, of what JSON has for it: dicts for configs, lists for tuples."""
    for kind in get_args(hint):  # such as those of `StackConfig | None`
        if isinstance(value, list) and kind is tuple:
            return tuple(value)
        is_config = isinstance(kind, type) and issubclass(kind, Config)
        if isinstance(value, dict) and is_config:
            return kind.from_dict(value)
    return value
