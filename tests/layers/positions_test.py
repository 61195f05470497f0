"""Positions: exact angles, slopes and buckets by the papers' formulas."""

import keras
import numpy as np
import pytest

from kzoo.layers import RelativeBias
from kzoo.layers.positions import (
    alibi_bias,
    rotary_angles,
    sinusoidal_positions,
)
from tests import reference
from tests.harness import check_layer, perturb, to_numpy

FAR = np.arange(5001, dtype="int32")


def limits():
    """A table everywhere; computed where the backend has float64."""
    return [5001] if keras.backend.backend() == "jax" else [5001, None]


@pytest.mark.parametrize("limit", limits())
@pytest.mark.parametrize("hidden_dim", [2, 10, 64])
def test_sinusoids_are_exact_up_to_position_5000(hidden_dim, limit):
    got = to_numpy(sinusoidal_positions(FAR, hidden_dim, limit))
    expected = reference.sinusoidal(FAR.astype("float64"), hidden_dim)
    assert got.dtype == np.float32
    assert np.abs(got - expected).max() <= 6e-8  # half a unit of float32 at 1


@pytest.mark.parametrize("limit", limits())
@pytest.mark.parametrize("max_wavelength", [10_000.0, 500_000.0])
def test_rotary_angles_are_exact_up_to_position_5000(max_wavelength, limit):
    cosine, sine = rotary_angles(FAR, 8, max_wavelength, limit)
    for i in range(4):
        angle = FAR / max_wavelength ** (2 * i / 8)
        assert np.abs(to_numpy(cosine)[:, i] - np.cos(angle)).max() <= 6e-8
        assert np.abs(to_numpy(sine)[:, i] - np.sin(angle)).max() <= 6e-8


def test_sinusoids_take_positions_of_any_shape():
    positions = np.array([[3, 0, 4999], [7, 7, 1]], "int32")
    got = to_numpy(sinusoidal_positions(positions, 6, 5000))
    expected = reference.sinusoidal(positions, 6)
    np.testing.assert_allclose(got, expected, atol=6e-8)


@pytest.mark.parametrize("num_heads", [1, 2, 6, 8, 12])
def test_alibi_falls_with_the_distance_by_a_slope_a_head(num_heads):
    query, key = np.arange(3, 7, dtype="int32"), np.arange(9, dtype="int32")
    got = to_numpy(alibi_bias(query, key, num_heads))
    assert got.shape == (1, num_heads, 4, 9)
    slopes = reference.alibi_slopes(num_heads)
    for n, t, s in np.ndindex(num_heads, 4, 9):
        assert got[0, n, t, s] == pytest.approx(-slopes[n] * abs(t + 3 - s), rel=1e-6)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(
    "num_buckets, max_distance", [(32, 128), (8, 20), (4, 3), (16, 64), (32, 100)]
)
def test_relative_bias_looks_up_the_bucket_of_every_distance(
    num_buckets, max_distance, bidirectional
):
    layer = RelativeBias(3, num_buckets, max_distance, bidirectional)
    layer.build()
    perturb(layer.weights)
    table = to_numpy(layer.embeddings.value)
    query, key = np.array([0, 70, 150], "int32"), np.arange(151, dtype="int32")
    got = to_numpy(layer(query, key_index=key))
    for t, s in np.ndindex(3, 151):
        bucket = reference.relative_bucket(
            int(key[s] - query[t]), bidirectional, num_buckets, max_distance
        )
        np.testing.assert_array_equal(got[0, :, t, s], table[bucket])


@pytest.mark.parametrize("bidirectional", [True, False])
def test_relative_bias_is_a_layer(bidirectional, tmp_path):
    check_layer(
        lambda **kw: RelativeBias(3, 8, 20, bidirectional, **kw),
        dict(
            query_index=np.arange(2, 6, dtype="int32"),
            key_index=np.arange(6, dtype="int32"),
        ),
        (1, 3, 4, 6),
        tmp_path,
    )


@pytest.mark.parametrize("arguments", [(32, 8), (2, 16), (7, 64), (1, 9, False)])
def test_buckets_that_cannot_be_are_refused(arguments):
    with pytest.raises(ValueError, match="2 buckets or more for each direction"):
        RelativeBias(1, *arguments)
