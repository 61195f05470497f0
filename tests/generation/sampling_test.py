"""Drawn tokens have the model's distribution, and follow from seed, row and step."""

import keras
import numpy as np
import pytest

from kzoo.generation import BANNED
from kzoo.generation.sampling import keep_probable, sample
from tests.harness import to_numpy
from tests.words import causal, perturbed, seq2seq

P = np.array([0.4, 0.25, 0.15, 0.1, 0.06, 0.03, 0.01])
DRAWS = 100_000


def draw(probabilities, temperature=1.0, seed=0, step=0, rows=DRAWS):
    logits = np.log(probabilities).astype("float32") / np.float32(temperature)
    logits = keras.ops.broadcast_to(logits, (rows, len(logits)))
    row = keras.ops.arange(rows, dtype="int32")
    return to_numpy(sample(logits, seed, row, step))


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
    model = causal()
    options = dict(max_new_tokens=6)
    prompts = ["ab", "c", "dda"]
    greedy = model.generate(prompts, **options)
    assert model.generate(prompts, temperature=1e-30, seed=3, **options) == greedy


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
        (
            dict(temperature=-1.0),
            "temperature must be .* at least 0.0 .*Received: -1.0",
        ),
        (dict(temperature=float("nan")), "temperature must be a finite number"),
        (dict(temperature=1.0, beams=2), "drawn with one beam.*beams=2"),
        (dict(seed=2**31), "seed must be an integer, at least -2147483648"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        causal().generate(["ab"], max_new_tokens=2, **options)


# What is drawn from.


def kept(p, top_k=0, top_p=1.0, min_p=0.0):
    """Probabilities of the tokens that stay, by the definitions, in plain Python."""
    order = sorted(range(len(p)), key=lambda i: -p[i])
    order = order[: top_k or len(p)]
    total, chosen, share = sum(p[i] for i in order), [], 0.0
    for i in order:
        if share < top_p:
            chosen.append(i)
        share += p[i] / total
    chosen = [i for i in chosen if p[i] >= min_p * p[order[0]]]
    weights = np.zeros(len(p))
    weights[chosen] = p[chosen]
    return weights / weights.sum()


@pytest.mark.parametrize(
    "options",
    [
        dict(top_k=3),
        dict(top_k=1),
        dict(top_p=0.7),
        dict(top_p=0.01),
        dict(min_p=0.2),
        dict(top_k=5, top_p=0.8, min_p=0.3),
        dict(top_k=99, top_p=1.0),
    ],
)
def test_tokens_have_the_filtered_distribution(options):
    order = [3, 0, 6, 1, 5, 2, 4]  # tokens are not sorted by probability
    p = P[order]
    settings = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, **options}
    logits = np.log(p).astype("float32")[None]
    filtered = to_numpy(keep_probable(keras.ops.convert_to_tensor(logits), **settings))
    expected = kept(p, **options)
    assert ((filtered[0] > BANNED / 2) == (expected > 0)).all()
    rows = keras.ops.broadcast_to(filtered, (DRAWS, len(p)))
    drawn = to_numpy(sample(rows, 3, keras.ops.arange(DRAWS, dtype="int32"), 0))
    counts = np.bincount(drawn, minlength=len(p))
    assert not counts[expected == 0].any()
    counts, expected = counts[expected > 0], expected[expected > 0] * DRAWS
    assert ((counts - expected) ** 2 / expected).sum() < 27.9  # 6 degrees at the most


def test_a_task_draws_from_what_is_left():
    model = perturbed(causal())
    (ids,) = model.encode_prompts(["ab"])
    logits = np.asarray(model.predict({"token_ids": np.array([ids])}, verbose=0))[0, -1]
    options = dict(temperature=1.3, top_k=4, top_p=0.9, min_p=0.05, max_new_tokens=1)
    p = np.exp(logits.astype("float64") / 1.3)
    expected = kept(p / p.sum(), 4, 0.9, 0.05)
    drawn = model.generate([ids] * 4000, batch_size=4000, **options)
    end = model.config.end_token_id
    counts = np.bincount([row[0] if row else end for row in drawn], minlength=len(p))
    assert not counts[expected == 0].any()
    counts, expected = counts[expected > 0], expected[expected > 0] * 4000
    assert ((counts - expected) ** 2 / expected).sum() < 21.1  # 99.99 %, 3 degrees
