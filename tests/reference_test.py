"""The reference itself, against values computed by hand."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from tests.reference import (
    Reference,
    alibi_slopes,
    beam_search,
    exhaustive,
    gelu,
    gelu_tanh,
    greedy,
    layer_norm,
    length_penalty,
    masked_softmax,
    relative_bucket,
    rms_norm,
    rotate,
    sinusoidal,
    std_norm,
)


def test_std_norm_uses_the_unbiased_deviation():
    # mean 2, deviation sqrt(((-1)^2 + 0 + 1^2) / 2) = 1, plus epsilon 3 behind it: 4.
    result = std_norm(np.array([1.0, 2.0, 3.0]), np.array([4.0, 4.0, 8.0]), 1.0, 3.0)
    np.testing.assert_allclose(result, [0.0, 1.0, 3.0])


def test_layer_norm_uses_the_biased_variance():
    # mean 2, variance ((-1)^2 + 1^2) / 2 = 1, plus epsilon 3 under the root: 2.
    result = layer_norm(np.array([1.0, 3.0]), np.array([2.0, 4.0]), 1.0, 3.0)
    np.testing.assert_allclose(result, [0.0, 3.0])


def test_rms_norm_divides_by_the_root_mean_square():
    # mean square (9 + 49) / 2 = 29, plus epsilon 7: root 6.
    np.testing.assert_allclose(rms_norm(np.array([3.0, 7.0]), 6.0, 7.0), [3.0, 7.0])


def test_gelu_is_exact_and_its_tanh_form_is_close():
    # 1 * Phi(1) = 0.8413447460685429.
    np.testing.assert_allclose(gelu(np.array([1.0])), [0.8413447460685429])
    np.testing.assert_allclose(gelu_tanh(np.array([1.0])), [0.8411919906082768])


def test_a_fully_masked_row_is_zeros():
    scores = np.array([[0.0, math.log(3.0), 9.0], [1.0, 1.0, 1.0]])
    mask = np.array([[True, True, False], [False, False, False]])
    np.testing.assert_allclose(
        masked_softmax(scores, mask), [[0.25, 0.75, 0.0], [0.0, 0.0, 0.0]]
    )


def test_sinusoids_are_interleaved():
    # D = 4: wavelengths 1 and 100.
    expected = [math.sin(3), math.cos(3), math.sin(0.03), math.cos(0.03)]
    np.testing.assert_allclose(sinusoidal(np.array([3]), 4)[0], expected)


def test_rotary_pairs_the_halves():
    # At position 1, pair (0, 2) turns by 1 and pair (1, 3) by 1 / 100 ** 0.5 = 0.1.
    x = np.array([1.0, 1.0, 0.0, 0.0]).reshape(1, 1, 1, 4)
    expected = [math.cos(1), math.cos(0.1), math.sin(1), math.sin(0.1)]
    np.testing.assert_allclose(rotate(x, np.array([[1]]), 100.0).ravel(), expected)


@pytest.mark.parametrize(
    "relative_position, bidirectional, bucket",
    [
        (0, True, 0),
        (-1, True, 1),
        (1, True, 17),
        (8, True, 24),
        (-16, True, 10),
        (128, True, 31),
        (-1000, True, 15),
        (5, False, 0),
        (-15, False, 15),
        (-16, False, 16),
        # 16 exact buckets, then 16 for a factor 8: 32 is a third of the way.
        (-32, False, 21),
        (-128, False, 31),
    ],
)
def test_relative_buckets_of_t5(relative_position, bidirectional, bucket):
    assert relative_bucket(relative_position, bidirectional, 32, 128) == bucket


def test_alibi_slopes_of_the_paper():
    np.testing.assert_allclose(alibi_slopes(8), [2.0**-n for n in range(1, 9)])
    # Six heads: the four of the power of two below, then every other one of eight.
    np.testing.assert_allclose(
        alibi_slopes(6), [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]
    )


def one_layer_config(**changes):
    values = dict(
        vocabulary_size=3,
        num_layers=1,
        hidden_dim=2,
        num_heads=1,
        num_key_value_heads=1,
        head_dim=2,
        intermediate_dim=2,
        max_sequence_length=4,
        positions="none",
        norm="rms_norm",
        norm_position="pre",
        norm_epsilon=0.0,
        final_norm=False,
        embedding_norm=False,
        embedding_scale=1.0,
        feed_forward="plain",
        activation="relu",
        use_bias=False,
        attention_bias=None,
        similarity="dot",
        attention_scale=1.0,
        attention_window=None,
        query_key_norm=False,
        num_segments=0,
        first_position=0,
        sinusoidal_layout="interleaved",
        embedding_dim=None,
        layer_groups=None,
        rope_max_wavelength=10_000.0,
        rope_scaling=None,
        first_norm=True,
        parallel_residual=False,
        attention_output_bias=None,
        attention_soft_cap=None,
        causal=True,
        cross_attention=False,
    )
    stack = SimpleNamespace(**{**values, **changes})
    return SimpleNamespace(
        encoder=None,
        decoder=stack,
        share_embeddings=False,
        tie_head=True,
        head_bias=False,
        head_scale=0.5,
        head_soft_cap=None,
    )


def one_layer_weights(value=1.0):
    eye = np.eye(2)
    return {
        "decoder/token_embedding/embeddings": np.array([[3.0, 3.0], [1, 1], [2, 0]]),
        "decoder/layer_0/self_attention/query/kernel": 0 * eye,
        "decoder/layer_0/self_attention/key/kernel": eye,
        "decoder/layer_0/self_attention/value/kernel": value * eye,
        "decoder/layer_0/self_attention/output/kernel": eye,
        "decoder/layer_0/feed_forward/intermediate/kernel": eye,
        "decoder/layer_0/feed_forward/output/kernel": -eye,
        "decoder/layer_0/self_attention_norm/scale": np.ones(2),
        "decoder/layer_0/feed_forward_norm/scale": np.ones(2),
    }


def test_a_block_of_hand_computed_numbers():
    # Queries are zero, so attention averages the normed past. Token 0 (3, 3) is
    # normed to (1, 1); token 2 (2, 0) to (sqrt 2, 0).
    model = Reference(one_layer_config(), one_layer_weights())
    hidden = model.decode([[0, 2]])
    # Position 0: (3,3) + (1,1) = (4,4), minus relu(norm) = (1,1): (3, 3).
    np.testing.assert_allclose(hidden[0, 0], [3.0, 3.0])
    # Position 1: (2,0) + ((1 + sqrt 2) / 2, 1 / 2), minus its own norm.
    x = np.array([2 + (1 + math.sqrt(2)) / 2, 0.5])
    np.testing.assert_allclose(hidden[0, 1], x - x / math.sqrt((x @ x) / 2))
    # The head is tied and halved: (3, 3) with (3, 3), (1, 1), (2, 0).
    np.testing.assert_allclose(model.logits([[0, 2]])[0, 0], [9.0, 3.0, 3.0])


def test_attention_weights_are_causal_and_skip_padding():
    model = Reference(one_layer_config(), one_layer_weights())
    weights = model.attention_weights([[1, 0, 2]], [[False, True, True]])
    np.testing.assert_allclose(
        weights["decoder/layer_0/self_attention"][0, 0],
        [[0, 0, 0], [0, 1, 0], [0, 0.5, 0.5]],
    )


def test_positions_count_from_the_first_real_token():
    model = Reference(one_layer_config(positions="sinusoidal"), one_layer_weights())
    alone = model.decode([[0, 2]])
    padded = model.decode([[1, 1, 0, 2]], [[False, False, True, True]])
    np.testing.assert_allclose(padded[0, 2:], alone[0])


def table(probabilities):
    """A step function from prefix -> probabilities; the prompt is (9,)."""

    def step(prefix):
        with np.errstate(divide="ignore"):  # p = 0 is log p = -inf
            return np.log(probabilities[prefix[1:]])

    return step


# Ids: 0 ends, 1 and 2 are words. Greedy takes 1 (0.6), then 0.4 at best: 0.24.
# The better sequence is 2 then the end: 0.4 * 0.9 = 0.36.
GARDEN = {
    (): np.array([0.0, 0.6, 0.4]),
    (1,): np.array([0.3, 0.4, 0.3]),
    (2,): np.array([0.9, 0.05, 0.05]),
}


def test_greedy_takes_the_best_token_of_each_step():
    best = greedy(table(GARDEN), (9,), end_token_id=0, max_new_tokens=2)
    assert best.tokens == (1, 1)
    assert best.log_probability == pytest.approx(math.log(0.24))


def test_beam_search_finds_what_greedy_misses():
    first, second = beam_search(table(GARDEN), (9,), 0, 2, beams=2)
    assert first.tokens == (2, 0)
    assert first.log_probability == pytest.approx(math.log(0.36))
    assert second.tokens == (1, 1)


def test_an_ended_hypothesis_keeps_its_log_probability():
    # Ending at once has p = 0.6, log -0.511: nothing after the end is added to it.
    step = table({(): np.array([0.6, 0.4, 0.0]), (1,): np.array([0.5, 0.5, 0.0])})
    for early_stopping in (True, False):
        best = beam_search(step, (9,), 0, 2, beams=2, early_stopping=early_stopping)[0]
        assert best.tokens == (0,)
        assert best.score == pytest.approx(math.log(0.6))


def test_length_penalty_prefers_the_longer_sequence():
    # log 0.5 = -0.693 after one token; log 0.45 = -0.799 after two, over 2: -0.399.
    step = table({(): np.array([0.5, 0.5, 0.0]), (1,): np.array([0.9, 0.1, 0.0])})
    assert length_penalty(2, 3.0) == 8.0
    assert beam_search(step, (9,), 0, 2, beams=2, alpha=0.0)[0].tokens == (0,)
    best = beam_search(step, (9,), 0, 2, beams=2, alpha=1.0)[0]
    assert best.tokens == (1, 0)
    assert best.score == pytest.approx(math.log(0.45) / 2)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0, -1.0])
@pytest.mark.parametrize("seed", range(3))
def test_wide_beam_search_is_exhaustive(seed, alpha):
    rng = np.random.default_rng(seed)
    steps = {}

    def step(prefix):
        if prefix not in steps:
            steps[prefix] = np.log(rng.dirichlet(np.ones(4)))
        return steps[prefix]

    every = exhaustive(step, (9,), 0, 4, alpha=alpha)
    assert len(every) == 1 + 3 + 9 + 27 * 4
    found = beam_search(step, (9,), 0, 4, beams=200, alpha=alpha)
    assert [h.tokens for h in found] == [h.tokens for h in every]
    np.testing.assert_allclose([h.score for h in found], [h.score for h in every])


def test_early_stopping_stops_at_the_first_full_pool():
    # One beam: the end ranks first at once, so the search is over; without early
    # stopping the alive beam (0.4) could still grow past it under a strong penalty.
    step = table(
        {(): np.array([0.6, 0.4, 0.0]), (1,): np.array([0.0, 1.0, 0.0])}
        | {(1,) * n: np.array([0.0, 1.0, 0.0]) for n in range(1, 9)}
    )
    early = beam_search(step, (9,), 0, 8, beams=1, alpha=2.0, early_stopping=True)
    late = beam_search(step, (9,), 0, 8, beams=1, alpha=2.0, early_stopping=False)
    assert early[0].tokens == (0,)
    assert late[0].tokens == (1,) * 8
