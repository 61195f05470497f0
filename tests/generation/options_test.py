"""The options of a search as a model's defaults, which are saved as JSON."""

import json

import numpy as np
import pytest

from kzoo.generation import SearchOptions, TokenAutomaton, as_defaults


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
    ("defaults", "given", "kept"),
    [
        ({"forced_prefix": [5]}, {"forced_tokens": {0: 6}}, {"forced_prefix": None}),
        ({"forced_prefix": [5]}, {"forced_tokens": {-1: 6}}, {"forced_prefix": [5]}),
        (
            {"forced_tokens": {0: 4, -1: 2}},
            {"forced_prefix": [5]},
            {"forced_tokens": {-1: 2}},
        ),
        (
            {"forced_tokens": {1: 4, 3: 6}},
            {"max_new_tokens": 2},
            {"forced_tokens": {1: 4}},
        ),
        (
            {"forced_tokens": {0: 4, 1: 5}},
            {"banned_tokens": (5,)},
            {"forced_tokens": {0: 4}},
        ),
        (
            {"banned_tokens": [6, 7, "a"]},
            {"forced_prefix": [[6], [8]]},
            {"banned_tokens": [7, "a"]},
        ),
        ({"banned_tokens": 6}, {"forced_tokens": {2: 6}}, {"banned_tokens": []}),
        ({"forced_tokens": None}, {"banned_tokens": (3,)}, {"forced_tokens": None}),
        ({"banned_tokens": None}, {"forced_prefix": [3]}, {"banned_tokens": ()}),
        ({"stop": "a"}, {"constraint": TokenAutomaton([[0, 1]])}, {"stop": ()}),
    ],
)
def test_what_a_caller_says_wins_over_a_default_that_contradicts(defaults, given, kept):
    options = SearchOptions.over(as_defaults(defaults), given)
    for name, value in {**given, **kept}.items():
        assert getattr(options, name) == value, name


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
