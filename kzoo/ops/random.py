"""Random numbers from counters: the same in every backend and in ONNX.

A number follows from a key and a counter alone, so nothing is carried from one step to
the next, no row depends on another, and any of them can be computed again.
Paper: Salmon et al., 2011, "Parallel Random Numbers: As Easy as 1, 2, 3",
https://doi.org/10.1145/2063384.2063405, section 4 (Threefry).

A word is 32 bits: uint32 on JAX, which has no 64-bit integers, else the low half of an
int64.
"""

import keras
import numpy as np

from kzoo.ops import array as ops
from kzoo.ops.control import as_scalar
from kzoo.ops.dispatch import op
from kzoo.ops.onnx_value import ONNX_CODES

_MASK = 0xFFFFFFFF
_BITWISE = 18  # the first opset with bitwise operators
_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
_PARITY = 0x1BD11BDA
# The fewest with which the generator passes every test of TestU01 (table 2).
_ROUNDS = 13


def _wraps():
    return keras.backend.backend() == "jax"


@op
def word(x):
    """The low 32 bits of ints."""
    if _wraps():
        return keras.ops.cast(x, "uint32")
    return keras.ops.bitwise_and(keras.ops.cast(x, "int64"), _MASK)


@word.emits
def _(graph, x):
    x = ops.cast(x, "int64")
    if graph.root.opset < _BITWISE:
        return x % (_MASK + 1)
    return graph.node("BitwiseAnd", x, graph.lift(_MASK, "int64"))


@op
def xor(x, y):
    """Bitwise exclusive or of words."""
    return keras.ops.bitwise_xor(x, y)


@xor.emits
def _(graph, x, y):
    if graph.root.opset >= _BITWISE:
        return graph.binary("BitwiseXor", x, y)
    # From a table of what two hexadecimal digits give.
    places = 16 ** np.arange(8)
    x, y = (ops.expand_dims(part, -1) // places % 16 for part in (x, y))
    digits = np.arange(16)
    table = (digits[:, None] ^ digits).reshape(-1)
    return ops.sum(ops.take(table, x * 16 + y) * places, axis=-1)


@op
def rotate_left(x, count):
    """Words with their bits moved up by `count`, in a circle."""
    high = keras.ops.left_shift(x, count)
    low = keras.ops.right_shift(x, 32 - count)
    return word(keras.ops.bitwise_or(high, low))


@rotate_left.emits
def _(graph, x, count):
    def unsigned(value):  # the one kind that ONNX shifts
        return graph.node("Cast", value, dtype="uint64", to=ONNX_CODES["uint64"])

    def shift(number, direction):
        number = unsigned(graph.lift(number, "int64"))
        return graph.node("BitShift", wide, number, direction=direction)

    wide = unsigned(x)
    high, low = shift(count, "LEFT"), shift(32 - count, "RIGHT")
    # No bit is set in both, so their sum is as good as their union.
    return word(ops.cast(high, "int64") + ops.cast(low, "int64"))


@op
def add(x, y):
    """The sum of words, modulo 2^32."""
    return x + y if _wraps() else word(x + y)


@add.emits
def _(graph, x, y):
    return word(x + y)


def threefry(key, counter, rounds=_ROUNDS):
    """Threefry-2x32: two random words for each pair of counters.

    Args:
        key: two ints or int tensors that broadcast with the counter.
        counter: likewise.
        rounds: of mixing; 20 is the paper's default, 13 its fewest.

    Returns:
        Two words of the arguments' common shape.
    """
    first, second = (word(as_scalar(part)) for part in key)
    keys = [first, second, xor(xor(first, second), word(as_scalar(_PARITY)))]
    x, y = (add(word(part), part_key) for part, part_key in zip(counter, keys))
    for number in range(rounds):
        x = add(x, y)
        y = xor(rotate_left(y, _ROTATIONS[number % 8]), x)
        if number % 4 == 3:
            step = number // 4 + 1
            x = add(x, keys[step % 3])
            y = add(add(y, keys[(step + 1) % 3]), word(as_scalar(step)))
    return x, y


@op
def uniform(words):
    """Random words as numbers in (0, 1), odd multiples of 2^-24: float32 holds each."""
    high = keras.ops.right_shift(words, 9)
    return (keras.ops.cast(high, "float32") + 0.5) * 2.0**-23


@uniform.emits
def _(graph, words):
    return (ops.cast(words // 512, "float32") + 0.5) * 2.0**-23
