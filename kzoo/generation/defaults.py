"""Defaults of a model's search: what JSON holds of them, and where they give way."""

import json
import math
import numbers
from collections.abc import Mapping

import numpy as np

from kzoo.arguments import is_integer
from kzoo.generation.automaton import TokenAutomaton
from kzoo.generation.ids import as_ids, ids_in

SAMPLING = ("top_k", "top_p", "min_p")
# Defaults that do not hold where a caller gives one of the names, and with which value.
_GIVES_WAY = (
    ("beams", lambda value: value > 1, ("temperature", *SAMPLING)),
    ("beams", lambda value: True, ("num_return_sequences",)),
    ("temperature", lambda value: not value, SAMPLING),
    ("temperature", lambda value: value, ("beams", "num_return_sequences")),
    ("max_new_tokens", lambda value: True, ("max_length",)),
    ("max_length", lambda value: True, ("max_new_tokens",)),
)


def over(defaults, given):
    """What a caller gave, and defaults where none was given; see `SearchOptions.over`.

    Args:
        defaults: dict of options.
        given: dict of options.

    Returns:
        dict of options.
    """
    kept = {name: value for name, value in defaults.items() if name not in given}
    for name, holds, others in _GIVES_WAY:
        value = given.get(name)
        if isinstance(value, numbers.Real) and holds(value):
            kept = {n: value for n, value in kept.items() if n not in others}
    limit = given.get("max_new_tokens")
    if is_integer(limit) and "min_new_tokens" in kept:
        kept["min_new_tokens"] = min(kept["min_new_tokens"], max(limit, 0))
    kept = _without_contradiction(kept, given)
    least = given.get("min_new_tokens")
    if is_integer(least) and (kept.get("max_new_tokens") or math.inf) < least:
        del kept["max_new_tokens"]
    if "stop_tokens" in defaults and given.get("stop_tokens") is not None:
        both = defaults["stop_tokens"], given["stop_tokens"]
        kept["stop_tokens"] = [each for stops in both for each in as_ids(stops)]
        given = {n: value for n, value in given.items() if n != "stop_tokens"}
    return {**kept, **given}


def _without_contradiction(kept, given):
    """Defaults without what is forced, banned or stops otherwise than a caller says."""
    forced, prefix = given.get("forced_tokens"), given.get("forced_prefix")
    forced = forced if isinstance(forced, Mapping) else {}
    if set(forced) - {-1}:
        kept.pop("forced_prefix", None)
    if kept.get("forced_tokens"):
        limit, banned = given.get("max_new_tokens"), ids_in(given.get("banned_tokens"))
        places = 0 if prefix is not None else limit if is_integer(limit) else math.inf
        kept["forced_tokens"] = {
            place: token
            for place, token in kept["forced_tokens"].items()
            if place < places and token not in banned
        }
    if kept.get("banned_tokens") is not None:
        chosen = ids_in(forced.values()) | ids_in(prefix)
        kept["banned_tokens"] = [
            token
            for token in as_ids(kept["banned_tokens"], "banned_tokens")
            if token not in chosen
        ]
    if isinstance(given.get("constraint"), TokenAutomaton):
        kept.pop("stop", None)
    return kept


def as_json(name, value):
    """An option in JSON's types, but with the keys that it has."""
    try:
        plain = _plain(value)
        json.dumps(plain, allow_nan=False)
    except (TypeError, ValueError):
        raise ValueError(
            f"search_defaults are saved as JSON, so {name} must be of finite numbers, "
            f"strings and lists of them. Received: {value!r}. Give it to generate() "
            "instead, or as a list."
        ) from None
    return plain


def _plain(value):
    """Arrays, sets and numpy's numbers in lists and dicts as lists and numbers."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {_plain(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(
            map(_plain, value), key=lambda each: (isinstance(each, str), each)
        )
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, (list, tuple, range)):
        return [_plain(each) for each in value]
    return value
