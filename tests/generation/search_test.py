"""Search against plain Python: a chain whose next-token scores depend on all before."""

import keras
import numpy as np
import pytest

from kzoo import ops
from kzoo.generation import search
from tests import reference

END, PAD, STATES = 1, 0, 31


def chain(vocabulary_size, seed):
    """A table (STATES, V) of logits; state' = (7 * state + token + 1) % STATES."""
    generator = np.random.default_rng(seed)
    table = generator.normal(scale=1.5, size=(STATES, vocabulary_size))
    table[:, PAD] = -30.0  # padding is never generated
    return table.astype("float32")


def advance(state, token):
    return (7 * state + token + 1) % STATES


def reference_step(table, start):
    def step(tokens):
        state = start
        for token in tokens:
            state = advance(state, token)
        return reference.log_softmax(table[state].astype("float64"))

    return step


def run(table, starts, prompt, **options):
    """kzoo's search; the state of the chain is the cache, so beams must reorder it."""
    options = {
        "length_penalty": 1.0,
        "early_stopping": True,
        "num_return_sequences": 1,
        **options,
    }

    def step(tokens, cache, index):
        state = advance(cache["state"], tokens)
        return ops.take(table, state, axis=0), {"state": state}

    sequences, scores = search(
        step,
        keras.ops.convert_to_tensor(prompt, "int32"),
        {"state": keras.ops.convert_to_tensor(starts, "int32")},
        0,
        options,
        end_token_id=END,
        pad_token_id=PAD,
        capacity=options["max_new_tokens"],
    )
    return keras.ops.convert_to_numpy(sequences), keras.ops.convert_to_numpy(scores)


def without_padding(sequence):
    ids = list(sequence)
    return tuple(ids[: ids.index(END) + 1]) if END in ids else tuple(ids)


STARTS, PROMPT = [0, 5, 11, 17], [2, 3, 2, 4]


@pytest.mark.parametrize("fixed", [False, True])
def test_greedy_takes_the_most_probable_token(fixed):
    table = chain(6, seed=0)
    with ops.fixed_buffers(fixed or keras.backend.backend() == "jax"):
        options = dict(max_new_tokens=9, beams=1, length_penalty=0.0)
        sequences, scores = run(table, STARTS, PROMPT, **options)
    for row, (start, first) in enumerate(zip(STARTS, PROMPT, strict=True)):
        best = reference.greedy(reference_step(table, start), (first,), END, 9)
        assert without_padding(sequences[row, 0])[: len(best.tokens)] == best.tokens
        assert scores[row, 0] == pytest.approx(best.score, abs=1e-5)


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("early_stopping", [True, False])
@pytest.mark.parametrize(
    ("beams", "penalty", "size"),
    [(2, 1.0, 7), (4, 0.6, 7), (3, 0.0, 5), (5, -0.5, 4), (4, 2.0, 9)],
)
def test_beam_search_equals_plain_python(beams, penalty, size, early_stopping, fixed):
    table = chain(size, seed=beams)
    with ops.fixed_buffers(fixed or keras.backend.backend() == "jax"):
        sequences, scores = run(
            table,
            STARTS,
            PROMPT,
            max_new_tokens=8,
            beams=beams,
            length_penalty=penalty,
            early_stopping=early_stopping,
            num_return_sequences=beams,
        )
    for row, (start, first) in enumerate(zip(STARTS, PROMPT, strict=True)):
        best = reference.beam_search(
            reference_step(table, start),
            (first,),
            END,
            8,
            beams,
            alpha=penalty,
            early_stopping=early_stopping,
        )
        found = [without_padding(s) for s in sequences[row]]
        assert found[: len(best)] == [hypothesis.tokens for hypothesis in best]
        np.testing.assert_allclose(
            scores[row, : len(best)], [h.score for h in best], atol=1e-5
        )


@pytest.mark.parametrize("penalty", [0.0, 0.7, 1.5])
def test_a_wide_beam_is_an_exhaustive_search(penalty):
    table = chain(4, seed=7)
    sequences, scores = run(
        table,
        [3],
        [2],
        max_new_tokens=4,
        beams=120,
        length_penalty=penalty,
        early_stopping=False,
        num_return_sequences=10,
    )
    every = reference.exhaustive(reference_step(table, 3), (2,), END, 4, alpha=penalty)
    assert [without_padding(s) for s in sequences[0]] == [h.tokens for h in every[:10]]
    np.testing.assert_allclose(scores[0], [h.score for h in every[:10]], atol=1e-5)


@pytest.mark.parametrize("beams", [1, 3])
def test_a_row_does_not_depend_on_the_others_of_its_batch(beams):
    table = chain(6, seed=2)
    together, scores = run(table, STARTS, PROMPT, max_new_tokens=12, beams=beams)
    for row in range(len(STARTS)):
        alone, score = run(
            table, STARTS[row:][:1], PROMPT[row:][:1], max_new_tokens=12, beams=beams
        )
        expected = without_padding(alone[0, 0])
        assert without_padding(together[row, 0])[: len(expected)] == expected
        assert scores[row, 0] == pytest.approx(float(score[0, 0]), abs=1e-6)


def test_more_beams_than_the_vocabulary_has_tokens():
    table = chain(3, seed=4)
    sequences, _ = run(table, [1], [2], max_new_tokens=3, beams=8, early_stopping=False)
    best = reference.exhaustive(reference_step(table, 1), (2,), END, 3, alpha=1.0)[0]
    assert without_padding(sequences[0, 0]) == best.tokens


def test_greedy_and_one_beam_score_alike():
    table = chain(6, seed=5)
    for penalty in (0.0, 0.7, 1.0):
        _, scores = run(
            table, STARTS, PROMPT, max_new_tokens=7, beams=1, length_penalty=penalty
        )
        for row, (start, first) in enumerate(zip(STARTS, PROMPT, strict=True)):
            best = reference.greedy(reference_step(table, start), (first,), END, 7)
            expected = best.log_probability / len(best.tokens) ** penalty
            assert scores[row, 0] == pytest.approx(expected, abs=1e-5)
