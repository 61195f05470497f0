"""Orders of equal values, the same on every backend and in files."""

import numpy as np
import pytest

from kzoo import ops
from tests.harness import to_numpy


@pytest.mark.parametrize("k", [1, 3, 50, 400])
def test_of_equal_values_the_first_come_first(k):
    x = np.random.default_rng(k).integers(-2, 3, (5, 400)).astype("float32")
    x[1], x[2, -1], x[3, ::97] = 0, 7, 5
    x[4] = np.random.default_rng(0).permutation(400)  # all differ
    for batch in (x, x[4:], x[:, None], x[:0]):
        values, indices = map(to_numpy, ops.top_k(batch, k))
        order = np.argsort(-batch, axis=-1, kind="stable")[..., :k]
        assert indices.dtype == "int32"
        np.testing.assert_array_equal(indices, order)
        expected = np.take_along_axis(batch, order, axis=-1)
        np.testing.assert_array_equal(values, expected)


def test_none_of_the_largest_are_none():
    values, indices = map(to_numpy, ops.top_k(np.ones((2, 5), "float32"), 0))
    assert values.shape == indices.shape == (2, 0)


def test_more_than_there_are_is_refused():
    with pytest.raises(Exception, match=r"(?i)range|at least|at most|must|operand"):
        ops.top_k(np.ones((2, 5), "float32"), 6)
