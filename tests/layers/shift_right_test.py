"""The unit delay."""

import numpy as np

from kzoo.layers import ShiftRight
from tests.harness import check_layer, to_numpy


def test_it_delays_by_one_token():
    target = np.array([[5, 6, 7], [8, 9, 0]], "int32")
    got = to_numpy(ShiftRight(1)(target))
    np.testing.assert_array_equal(got, [[1, 5, 6], [1, 8, 9]])
    assert got.dtype == "int32"


def test_a_single_token_and_none():
    np.testing.assert_array_equal(to_numpy(ShiftRight(4)(np.array([[9]]))), [[4]])
    assert to_numpy(ShiftRight(4)(np.zeros((2, 0), "int32"))).shape == (2, 0)


def test_it_is_a_layer(tmp_path):
    target = np.array([[5, 6, 7], [8, 9, 0]], "int32")
    check_layer(
        lambda **kw: ShiftRight(1, **kw),
        dict(token_ids=target),
        (2, 3),
        tmp_path,
        [(None, None)],
    )
