"""Weights that follow from their names, so that no file has to hold them."""

import zlib

import numpy as np


def weight(name, shape):
    """Numbers of a tensor, float32: around 1 for a norm's scale, else around 0.

    Perturbed well away from any initial values, with which swapped norms or a missing
    bias would go unnoticed.
    """
    bits = np.random.Philox(key=zlib.crc32(name.encode()))
    count = int(np.prod(shape))
    raw = bits.random_raw(2 * count).reshape(2, count) >> 11
    uniform = (raw + 1.0) / (2.0**53 + 1)
    normal = np.sqrt(-2 * np.log(uniform[0])) * np.cos(2 * np.pi * uniform[1])
    is_scale = len(shape) == 1 and name.endswith("weight")
    values = 1 + 0.2 * normal if is_scale else 0.25 * normal
    return values.astype("float32").reshape(shape)


def sines(shape):
    """The table of sines that transformers fills, float32 (T, D), sines before cosines.

    Entry j of position t, before they are sorted, is of t / 10000^(2 (j // 2) / D).
    """
    length, width = shape
    table = np.array(
        [
            [t / np.power(10_000, 2 * (j // 2) / width) for j in range(width)]
            for t in range(length)
        ]
    )
    columns = [np.sin(table[:, 0::2]), np.cos(table[:, 1::2])]
    return np.concatenate(columns, -1).astype("float32")
