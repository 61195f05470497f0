"""The options of a search as a model's defaults, which are saved as JSON."""

import json

import numpy as np
import pytest

from kzoo.generation import as_defaults


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("banned_tokens", np.array([5, 3]), [5, 3]),
        ("banned_tokens", np.int64(5), 5),
        ("stop_tokens", {11, 3, 20}, [3, 11, 20]),
        ("stop_tokens", frozenset({np.int32(4), "a", 1}), [1, 4, "a"]),
        ("stop_tokens", range(2, 4), [2, 3]),
        ("forced_prefix", np.array([[5, 6], [7, 8]]), [[5, 6], [7, 8]]),
        ("forced_prefix", [np.array([5]), (np.int64(6), 7)], [[5], [6, 7]]),
        ("forced_tokens", {np.int64(0): np.int64(3), "-1": 2}, {0: 3, -1: 2}),
        ("top_p", np.float32(0.5), 0.5),
        ("early_stopping", np.bool_(False), False),
        ("max_new_tokens", np.array(3), 3),
    ],
)
def test_defaults_are_of_the_types_that_json_has(name, value, expected):
    needed = {"temperature": 1.0} if name == "top_p" else {}
    found = as_defaults({name: value, **needed})[name]
    assert found == expected and type(found) is type(expected)
    json.dumps(found)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop_tokens", iter([3])),
        ("stop_tokens", [b"a"]),
        ("banned_tokens", {3: 4}.keys()),
        ("banned_tokens", {3, None}),
        ("forced_prefix", np.array([1j])),
        ("length_penalty", np.longdouble(1)),
    ],
)
def test_what_json_has_not_is_no_default(name, value):
    with pytest.raises(ValueError, match=f"JSON, so {name} must be .* Received: "):
        as_defaults({name: value})
    with pytest.raises(ValueError, match="forced_tokens must be a dict"):
        as_defaults({"forced_tokens": [3]})
