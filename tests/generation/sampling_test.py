"""Drawn tokens have the model's distribution, and follow from seed, row and step."""

import keras
import numpy as np
import pytest

from kzoo.generation.sampling import sample
from tests.harness import to_numpy
from tests.words import causal, seq2seq

P = np.array([0.4, 0.25, 0.15, 0.1, 0.06, 0.03, 0.01])
DRAWS = 100_000


def draw(probabilities, temperature=1.0, seed=0, step=0, rows=DRAWS):
    logits = np.log(probabilities).astype("float32")
    logits = keras.ops.broadcast_to(logits, (rows, len(logits)))
    row = keras.ops.arange(rows, dtype="int32")
    return to_numpy(sample(logits, temperature, seed, row, step))


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_tokens_have_the_tempered_distribution(temperature):
    expected = P ** (1 / temperature)
    expected = expected / expected.sum() * DRAWS
    counts = np.bincount(draw(P, temperature), minlength=len(P))
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 27.9  # the 99.99 % quantile with 6 degrees of freedom


def test_steps_seeds_and_rows_are_independent():
    pairs = [
        (draw(P), draw(P, step=1)),
        (draw(P), draw(P, seed=1)),
        (draw(P)[:-1], draw(P)[1:]),
    ]
    for first, second in pairs:
        joint = np.zeros((7, 7))
        np.add.at(joint, (first, second), 1)
        expected = np.outer(P, P) * len(first)
        # 48 degrees of freedom; the rarest pair is expected ten times.
        assert ((joint - expected) ** 2 / expected).sum() < 94.0


def test_a_token_without_probability_is_never_drawn():
    assert set(draw(np.array([0.5, 1e-30, 0.5]))) == {0, 2}


def test_a_very_low_temperature_is_greedy():
    assert set(draw(P, temperature=1e-30, rows=1000)) == {0}


@pytest.mark.parametrize("make", [causal, seq2seq])
def test_draws_do_not_depend_on_the_batch(make):
    model = make()
    prompts = ["ab", "abca", "b", "ddd", "ca"]
    options = dict(temperature=1.0, seed=5, max_new_tokens=6)
    together = model.generate(prompts, **options)
    assert model.generate(prompts, batch_size=2, **options) == together
    assert model.generate(prompts[:2], **options) == together[:2]
    others = model.generate(prompts, **{**options, "seed": 6})
    assert others != together


def test_generation_stops_at_the_stop_token_and_at_the_limit():
    model = causal()
    end = model.config.end_token_id
    rows = model.generate([[3]] * 64, temperature=3.0, seed=1, max_new_tokens=5)
    assert {len(row) for row in rows} <= set(range(6)) and len(set(map(len, rows))) > 2
    assert all(end not in row for row in rows)
    assert any(len(row) == 5 for row in rows)


def test_scores_are_those_of_the_model():
    model = causal()
    row, score = model.generate(
        [[3, 4]], temperature=2.0, seed=6, max_new_tokens=4, return_scores=True
    )
    ids = [*row[0], model.config.end_token_id][:4]
    assert len(row[0]) > 1
    full = np.array([[3, 4, *ids]])
    logits = np.asarray(model.predict({"token_ids": full[:, :-1]}, verbose=0)[0, 1:])
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = log_p[range(len(ids)), ids].mean()
    assert score[0] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(temperature=-1.0), "temperature must be .*not negative. Received: -1.0"),
        (dict(temperature=float("nan")), "temperature must be a finite"),
        (dict(temperature=1.0, beams=2), "drawn with one beam.*beams=2"),
        (dict(seed=2**31), "seed must be an int32"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        causal().generate(["ab"], max_new_tokens=2, **options)
