"""Pooling reads real tokens only, wherever padding stands."""

import keras
import numpy as np
import pytest

from kzoo import ops
from kzoo.layers.pooling import Pooling
from tests.harness import check_layer, difference, gradients, padding, to_numpy

B, T, D = 3, 5, 4
X = np.random.default_rng(0).normal(size=(B, T, D)).astype("float32")
LENGTHS = [5, 3, 1]


def expected(kind, x, mask):
    """Row by row, from the real tokens alone."""
    pooled = []
    for row, real in zip(x.astype("float64"), mask):
        real = row[real]
        pooled.append(
            {
                "cls": lambda r: r[0],
                "last": lambda r: r[-1],
                "mean": lambda r: r.sum(axis=0) / len(r),
                "max": lambda r: r.max(axis=0),
            }[kind](real)
        )
    return np.array(pooled)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", ["cls", "last", "mean", "max"])
def test_equals_the_definition_on_real_tokens(kind, side, tmp_path):
    mask = padding(LENGTHS, T, side)
    noise = np.where(mask[..., None], X, 1e3).astype("float32")
    got = to_numpy(Pooling(kind)(noise, padding_mask=mask))
    assert difference(got, expected(kind, noise, mask)) <= 1e-6
    if side == "left":
        check_layer(
            lambda **kw: Pooling(kind, **kw),
            dict(x=X, padding_mask=mask),
            (B, D),
            tmp_path,
        )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["cls", "last", "mean", "max"])
def test_a_row_of_padding_is_zeros(kind, dtype):
    mask = padding([0, 2, 5], T)
    got = to_numpy(Pooling(kind, dtype=dtype)(X, padding_mask=mask))
    assert np.isfinite(got).all() and not got[0].any() and got[1:].all()


def test_unit_length_divides_by_the_length_and_keeps_zeros():
    vectors = np.array([[3.0, 4.0], [0.0, 0.0], [-1e-6, 0.0]], "float32")
    np.testing.assert_allclose(
        to_numpy(ops.unit_length(keras.ops.convert_to_tensor(vectors))),
        [[0.6, 0.8], [0.0, 0.0], [-1.0, 0.0]],
        rtol=1e-6,
    )
    # 300 ** 2 is no float16.
    half = keras.ops.convert_to_tensor(np.array([[300.0, 400.0]]), "float16")
    got = ops.unit_length(half)
    assert keras.backend.standardize_dtype(got.dtype) == "float16"
    np.testing.assert_allclose(to_numpy(got), [[0.6, 0.8]], rtol=1e-3)


def test_unit_length_has_a_gradient_at_zero():
    start = keras.Variable(np.array([[0.0, 0.0], [3.0, 4.0]], "float32"), name="x")
    weights = keras.ops.convert_to_tensor([[1.0, 2.0], [1.0, 0.0]], "float32")
    (found,) = gradients(
        [start], lambda: keras.ops.sum(ops.unit_length(start.value) * weights)
    )
    # (I - u u.T) w / 5 for the second row.
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[1], [0.64 / 5, -0.48 / 5], rtol=1e-5)


def test_an_unknown_kind_is_named():
    with pytest.raises(ValueError, match="'cls', 'last', 'mean', 'max'.*'median'"):
        Pooling("median")
