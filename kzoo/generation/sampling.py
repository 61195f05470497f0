"""Draws tokens from a distribution, with the same seed the same ones everywhere."""

import math

from kzoo import ops
from kzoo.ops.random import threefry, uniform


def sample(logits, temperature, seed, row, step):
    """Draws a token of each row from softmax(logits / temperature).

    By the Gumbel maximum: the largest of logits / temperature - log(-log(u)), with a
    uniform u for each token. Small differences of logits between runtimes then change
    a token only where two are level, which sums of probabilities would not give.
    Paper: Maddison et al., 2014, https://arxiv.org/abs/1411.0030, section 2.

    Args:
        logits: float32 (R, V).
        temperature: scalar, positive.
        seed: int scalar.
        row: int (R,), a number of its own for each row.
        step: int scalar, how many tokens were drawn before.

    Returns:
        int (R,).
    """
    size = ops.dim(logits, -1)
    half = (size + 1) // 2
    place = ops.expand_dims(ops.arange(half), 0)
    words = threefry((seed, step), (ops.expand_dims(row, 1), place))
    u = ops.concatenate([uniform(part) for part in words], axis=1)
    u = ops.slice_axis(u, None, size, axis=1)
    noise = ops.log(-ops.log(u))
    return ops.argmax(logits / ops.maximum(temperature, TINY) - noise)


TINY = math.ldexp(1.0, -20)  # a temperature so low that the largest logit wins
