"""Draws tokens from a distribution, with the same seed the same ones everywhere."""

from kzoo import ops
from kzoo.generation.processors import BANNED
from kzoo.ops.random import threefry, uniform


def sample(logits, seed, row, step):
    """Draws a token of each row from softmax(logits).

    By the Gumbel maximum: the largest of logits - log(-log(u)), with a uniform u for
    each token. Small differences of logits between runtimes then change
    a token only where two are level, which sums of probabilities would not give.
    Paper: Maddison et al., 2014, https://arxiv.org/abs/1411.0030, section 2.

    Args:
        logits: float32 (R, V).
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
    return ops.argmax(logits - noise)


def keep_probable(logits, top_k, top_p, min_p):
    """Bans the tokens that are too improbable to be drawn.

    Of all tokens the `top_k` most probable ones stay; of these, by their share among
    them, the fewest whose sum is at least `top_p` (Holtzman et al., 2019,
    https://arxiv.org/abs/1904.09751, section 3.1), unless they are less than `min_p`
    times as probable as the first (Nguyen et al., 2024,
    https://arxiv.org/abs/2407.01082, section 3). What is level with the last that
    stays, stays.

    Args:
        logits: float32 (R, V), the temperature applied.
        top_k: int scalar, 0 for all.
        top_p: float scalar in (0, 1], 1 for all.
        min_p: float scalar in [0, 1], 0 for all.

    Returns:
        float32 (R, V).
    """
    size = ops.dim(logits, -1)
    logits = ops.settled(logits)
    values, _ = ops.top_k(logits, size)
    place = ops.expand_dims(ops.arange(size), 0)
    stays = (place < top_k) | ops.equal(top_k, 0)
    p = ops.softmax(ops.where(stays, values, BANNED))
    stays = stays & ((ops.cumsum(p, axis=1) - p < top_p) | (top_p >= 1.0))
    stays = stays & (p >= min_p * ops.slice_axis(p, 0, 1, axis=1))
    stays = stays | ops.equal(place, 0)  # whatever a file is told
    last = ops.sum(ops.cast(stays, "int32"), axis=1, keepdims=True) - 1
    threshold = ops.take_along_axis(values, last, axis=1)
    return ops.where(logits >= threshold, logits, BANNED)
