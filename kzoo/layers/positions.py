"""Positions: sinusoidal, rotary, T5-relative and ALiBi, as functions of integers.

All angles are exact to float32: they are formed in float64, since float32 loses a
digit of sin(pos * frequency) for every digit of pos.
"""

import keras
import numpy as np

from kzoo import ops
from kzoo.layers.base import Configured


def sinusoids(positions, frequencies, phases, limit):
    """sin(positions * frequencies + phases).

    Args:
        positions: int (...).
        frequencies: numpy float64 (E,), in radians a token.
        phases: numpy float64 (E,), in radians.
        limit: positions are below it; where it is a static int a table is used (JAX has
            no float64), else they are computed. `None` where nothing is known of them.

    Returns:
        float32 (..., E).
    """
    if isinstance(limit, int) and not ops.is_onnx(positions):
        angles = np.arange(limit)[:, None] * frequencies + phases
        return ops.take(np.sin(angles).astype("float32"), positions)
    axes = len(positions.shape), positions.shape[0], positions.shape[-1]
    if limit is not None and 1 not in axes:
        # The rows of a batch share positions.
        table = sinusoids(ops.arange(limit), frequencies, phases, limit)
        return ops.take(table, positions)
    # Where JAX comes here it asks for shapes alone, of a model of `keras.Input`.
    shapes = keras.backend.backend() == "jax" and not ops.is_onnx(positions)
    wide = "float32" if shapes else "float64"
    positions = ops.expand_dims(ops.cast(positions, wide), -1)
    frequencies, phases = (_constant(x, positions) for x in (frequencies, phases))
    return ops.cast(ops.sin(positions * frequencies + phases), "float32")


def _constant(array, like):
    """`array` as a tensor where `like` is one: torch multiplies no numpy arrays."""
    if ops.is_onnx(like):
        return array
    return keras.ops.convert_to_tensor(array, like.dtype)


def sinusoidal_positions(positions, hidden_dim, limit, layout="interleaved"):
    """The paper's encoding: PE[2i] = sin(pos / 10000^(2i/D)), PE[2i+1] = cos(same).

    Paper: Vaswani et al., 2017, section 3.5.

    Args:
        positions: int (...), first token 0.
        hidden_dim: D, even.
        limit: see `sinusoids`.
        layout: see `StackConfig.sinusoidal_layout`.

    Returns:
        float32 (..., D).
    """
    half = hidden_dim // 2
    last = half - (layout == "tensor2tensor")
    frequencies = 10_000.0 ** -(np.arange(half) / last)
    phases = [0.0, np.pi / 2]
    if layout == "interleaved":
        frequencies, phases = np.repeat(frequencies, 2), np.tile(phases, half)
    else:
        frequencies, phases = np.tile(frequencies, 2), np.repeat(phases, half)
    return sinusoids(positions, frequencies, phases, limit)


def rotary_frequencies(rotary_dim, max_wavelength, scaling=None):
    """What a rotary position turns by, in radians a token.

    Args:
        rotary_dim: R, how many dimensions of a head rotate; even.
        max_wavelength: the base, 10 000 in RoFormer.
        scaling: a `RopeScaling`, whose papers say how it stretches; or `None`.

    Returns:
        numpy float64 (R/2,).
    """
    pair = np.arange(rotary_dim // 2)
    frequencies = max_wavelength ** (-2.0 * pair / rotary_dim)
    if scaling is None:
        return frequencies
    stretched = frequencies / scaling.factor
    if scaling.kind == "linear":
        return stretched
    turns = scaling.original_length * frequencies / (2 * np.pi)
    if scaling.kind == "bands":
        low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
        kept = (turns - low) / (high - low)
    else:  # the ramp is over dimensions, not turns

        def pair_of(turns):  # that turns so many times; not a whole number
            ratio = np.log(scaling.original_length / (turns * 2 * np.pi))
            return rotary_dim * ratio / (2 * np.log(max_wavelength))

        first, last = pair_of(scaling.beta_fast), pair_of(scaling.beta_slow)
        if scaling.truncate:
            first, last = np.floor(first), np.ceil(last)
        first, last = max(first, 0), min(last, rotary_dim - 1)
        kept = 1 - (pair - first) / ((last - first) or 0.001)
    kept = np.clip(kept, 0, 1)
    return kept * frequencies + (1 - kept) * stretched


def rotary_angles(positions, rotary_dim, max_wavelength, limit, scaling=None):
    """Cosine and sine of the rotary angles, for `ops.rotate`.

    Paper: RoFormer, Su et al., 2021, https://arxiv.org/abs/2104.09864, section 3.4.2.

    Args:
        positions: int (T,) or (B, T).
        rotary_dim: R, how many dimensions of a head rotate; even.
        max_wavelength: the base, 10 000 in the paper.
        limit: see `sinusoids`.
        scaling: a `RopeScaling` or `None`; YaRN's multiplies both by its
            `attention_factor`.

    Returns:
        Two float32 (T, R/2) or (B, T, R/2).
    """
    frequencies = rotary_frequencies(rotary_dim, max_wavelength, scaling)
    zero = np.zeros_like(frequencies)
    cosine, sine = (
        sinusoids(positions, frequencies, zero + phase, limit)
        for phase in (np.pi / 2, 0.0)
    )
    factor = scaling and scaling.attention_factor
    if factor in (None, 1.0):
        return cosine, sine
    return cosine * factor, sine * factor


def alibi_slopes(num_heads):
    """The slope of each head: 2^(-8/N), 2^(-16/N), ...

    For N that is no power of two, those of the next smaller power come first, then
    every second one of its double (the paper's code).
    Paper: Press et al., 2022, https://arxiv.org/abs/2108.12409, section 3.

    Returns:
        numpy float32 (N,).
    """
    power = 2 ** int(np.log2(num_heads))
    slopes = 2.0 ** (-8.0 / power * np.arange(1, power + 1))
    more = 2.0 ** (-4.0 / power * np.arange(1, 2 * power + 1, 2))
    return np.concatenate([slopes, more])[:num_heads].astype("float32")


def alibi_bias(query_index, key_index, num_heads):
    """-slope * |query - key|.

    Args:
        query_index: int (T,) or (B, T).
        key_index: int (S,) or (B, S).
        num_heads: N.

    Returns:
        float32 (1 or B, N, T, S).
    """
    distance = ops.expand_dims(query_index, -1) - ops.expand_dims(key_index, -2)
    distance = ops.expand_dims(ops.cast(ops.absolute(distance), "float32"), -3)
    slopes = alibi_slopes(num_heads)[None, :, None, None]
    return distance * _constant(-slopes, distance)


def relative_buckets(num_buckets, max_distance):
    """T5's bucket of every distance 0 ... max_distance (one direction).

    Half of the buckets are exact; the others widen with the logarithm.
    Paper: Raffel et al., 2020, https://arxiv.org/abs/1910.10683, section 2.1.

    Returns:
        numpy int32 (max_distance + 1,), each below `num_buckets`.
    """
    exact = num_buckets // 2
    distance = np.arange(max_distance + 1)
    # T5 takes these logarithms in float32, which decides the last place of a bucket.
    ratio = np.log(np.maximum(distance, 1).astype("float32") / np.float32(exact))
    ratio = (
        ratio
        / np.float32(np.log(max_distance / exact))
        * np.float32(num_buckets - exact)
    )
    far = np.minimum(exact + ratio.astype("int32"), num_buckets - 1)
    return np.where(distance < exact, distance, far).astype("int32")


@keras.saving.register_keras_serializable("kzoo")
class RelativeBias(Configured):
    """T5's learned bias of an attention score by relative position, per head.

    Paper: Raffel et al., 2020, https://arxiv.org/abs/1910.10683, section 2.1.

    Args:
        num_heads: N.
        num_buckets: rows of the table.
        max_distance: in tokens; farther ones share the last bucket.
        bidirectional: half of the buckets are for keys after the query.
        embeddings_initializer: of the table.
    """

    def __init__(
        self,
        num_heads,
        num_buckets=32,
        max_distance=128,
        bidirectional=True,
        embeddings_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        half = num_buckets // 2 if bidirectional else num_buckets
        if half < 2 or (bidirectional and num_buckets % 2) or max_distance <= half // 2:
            raise ValueError(
                "RelativeBias needs 2 buckets or more for each direction, as many for "
                "both, and a max_distance beyond those of one distance, half of them. "
                f"Received: num_buckets={num_buckets}, max_distance={max_distance}, "
                f"bidirectional={bidirectional}."
            )
        self.num_heads, self.num_buckets = num_heads, num_buckets
        self.max_distance, self.bidirectional = max_distance, bidirectional
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    def build(self, *_):
        """Creates the table (num_buckets, N)."""
        self.embeddings = self.add_weight(
            shape=(self.num_buckets, self.num_heads),
            initializer=self.embeddings_initializer,
            name="embeddings",
        )
        self.built = True

    def call(self, query_index, key_index):
        """The bias of every pair.

        Args:
            query_index: int (T,) or (B, T).
            key_index: int (S,) or (B, S).

        Returns:
            float (1 or B, N, T, S).
        """
        half = self.num_buckets // 2 if self.bidirectional else self.num_buckets
        table = relative_buckets(half, self.max_distance)
        relative = ops.expand_dims(key_index, -2) - ops.expand_dims(query_index, -1)
        if self.bidirectional:
            offset = ops.cast(relative > 0, "int32") * half
            distance = ops.absolute(relative)
        else:
            offset = 0
            distance = ops.maximum(-relative, 0)
        bucket = ops.take(table, ops.minimum(distance, self.max_distance)) + offset
        bias = ops.take(self.embeddings, bucket)
        if len(bias.shape) == 4:
            return ops.transpose(bias, (0, 3, 1, 2))
        return ops.expand_dims(ops.transpose(bias, (2, 0, 1)), 0)
