"""Bounds: what a number says of the others."""

import numpy as np
import pytest

from kzoo.exporters.tolerances import is_far

DRAWN = np.random.default_rng(0).normal(size=1000)
CASES = {
    "one": ([0.3, 1e9, 1e9], [False, True, True]),
    "all alike": ([5e3, 6e3, 7e3], [False] * 3),
    "all large": ([1e9] * 3, [False] * 3),
    "zeros": ([*[0.0] * 997, 1e9, 5e8, 2e8], [*[False] * 997, True, True, True]),
    "most masked": (
        np.abs([*DRAWN[:300], *DRAWN[300:] * 100 - 1e9]),
        [*[False] * 300, *[True] * 700],
    ),
    "small ones": (np.abs(DRAWN), [False] * 1000),
    "nothing": ([np.inf, 1e30, 0.5], [True, True, False]),
    "none": ([], []),
    "a number": (2.0, False),
}


@pytest.mark.parametrize(("sizes", "far"), CASES.values(), ids=CASES)
def test_numbers_are_far_that_say_nothing_of_the_others(sizes, far):
    np.testing.assert_array_equal(is_far(np.array(sizes, "float32")), far)
