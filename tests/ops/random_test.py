"""Random numbers are those of the paper's generator, on every road."""

import keras
import numpy as np
import onnxruntime
import pytest

from kzoo.ops.onnx_file import write_model
from kzoo.ops.onnx_graph import PORTABLE_OPSET, OnnxGraph
from kzoo.ops.random import threefry, uniform
from tests.harness import to_numpy

# Random123's known answers (kat_vectors): rounds, key and counter, result.
KNOWN = [
    (20, (0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    (20, (-1, -1), (-1, -1), (0x1CB996FC, 0xBB002BE7)),
    (20, (0x13198A2E, 0x03707344), (0x243F6A88, -0x7A5CF72D), (0xC4923A9C, 0x483DF7A0)),
    (13, (0, 0), (0, 0), (0x9D1C5EC6, 0x8BD50731)),
]


def rotated(x, count):
    return ((x << count) | (x >> (32 - count))) & 0xFFFFFFFF


def by_hand(key, counter, rounds):
    """The paper's listing, on Python's own integers."""
    k = [key[0] & 0xFFFFFFFF, key[1] & 0xFFFFFFFF]
    k.append(0x1BD11BDA ^ k[0] ^ k[1])
    x, y = (counter[0] + k[0]) & 0xFFFFFFFF, (counter[1] + k[1]) & 0xFFFFFFFF
    for i in range(rounds):
        x = (x + y) & 0xFFFFFFFF
        y = rotated(y, (13, 15, 26, 6, 17, 29, 16, 24)[i % 8]) ^ x
        if i % 4 == 3:
            x = (x + k[(i // 4 + 1) % 3]) & 0xFFFFFFFF
            y = (y + k[(i // 4 + 2) % 3] + i // 4 + 1) & 0xFFFFFFFF
    return x, y


@pytest.mark.parametrize(("rounds", "key", "counter", "expected"), KNOWN)
def test_known_answers(rounds, key, counter, expected):
    words = threefry(key, [np.array(c, "int32") for c in counter], rounds)
    assert tuple(int(to_numpy(word)) for word in words) == expected


def counters():
    return np.arange(5, dtype="int32")[:, None], np.arange(7, dtype="int32")[None]


def test_every_counter_has_the_words_of_its_own():
    rows, places = counters()
    first, second = (to_numpy(w) for w in threefry((-5, 9), (rows, places)))
    for i in range(5):
        for j in range(7):
            assert (first[i, j], second[i, j]) == by_hand((-5, 9), (i, j), 13)


@pytest.mark.parametrize("opset", [PORTABLE_OPSET - 1, PORTABLE_OPSET])
def test_onnx_draws_the_same_numbers(tmp_path, opset):
    rows, places = counters()
    expected = [to_numpy(uniform(w)) for w in threefry((-5, 9), (rows, places))]
    graph = OnnxGraph(opset)
    with graph.building():
        seed = graph.input("seed", (), "int32", axes=[])
        row = graph.input("row", (None, 1), "int32", axes=["rows", 1])
        for i, words in enumerate(threefry((seed, 9), (row, places))):
            graph.output(uniform(words), f"u_{i}", axes=["rows", 7])
    write_model(graph, tmp_path / "model.onnx", metadata={})
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    got = session.run(None, {"seed": np.array(-5), "row": rows.astype("int64")})
    np.testing.assert_array_equal(got, expected)


def test_numbers_are_uniform_and_never_0_or_1():
    (words, _) = threefry((1, 2), (np.arange(200_000, dtype="int32"), np.int32(3)))
    u = to_numpy(uniform(words)).astype("float64")
    assert 0.0 < u.min() and u.max() < 1.0
    counts = np.bincount((u * 100).astype(int), minlength=100)
    chi_square = ((counts - 2000) ** 2 / 2000).sum()
    assert chi_square < 160.1  # the 99.99 % quantile with 99 degrees of freedom
    # The extremes are the first and last odd multiple of 2^-24, each a float32.
    edges = keras.ops.convert_to_tensor([0, 0xFFFFFFFF], words.dtype)
    np.testing.assert_array_equal(to_numpy(uniform(edges)), [2**-24, 1 - 2**-24])
