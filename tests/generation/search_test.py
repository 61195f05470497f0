"""Search against plain Python: a chain whose next-token scores depend on all before."""

import keras
import numpy as np
import pytest

from kzoo import ops
from kzoo.ops.onnx_graph import OnnxGraph
from tests import reference
from tests.chains import (
    DEFAULTS,
    END,
    PAD,
    InOnnx,
    chain,
    reference_step,
    run,
    searched,
    without_padding,
)

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


def loops(graph, depth=0):
    """How deep every loop stands, in loops and branches."""
    for op_type, _, _, attributes in graph.live_nodes():
        if op_type == "Loop":
            yield depth
        for value in attributes.values():
            if isinstance(value, OnnxGraph):
                yield from loops(value, depth + 1)


@pytest.mark.parametrize("fixed", [False, True])
def test_what_is_not_scored_is_the_same(fixed):
    table = chain(6, seed=0)
    options = dict(max_new_tokens=9, beams=1, temperature=0.8, seed=3)
    with ops.fixed_buffers(fixed or keras.backend.backend() == "jax"):
        expected, _ = run(table, STARTS, PROMPT, **options)
        sequences, scores = run(table, STARTS, PROMPT, **options, return_scores=False)
    assert (sequences == expected).all()
    assert (scores == 0).all()


def test_one_graph_searches_with_any_number_of_beams(tmp_path):
    table = chain(7, seed=3)
    in_onnx = InOnnx(table, tmp_path / "search.onnx")
    # onnxruntime prepares the weights of a loop, but not those of a loop in a branch.
    # The others look for repeated n-grams.
    assert list(loops(in_onnx.graph)) == [0, 3, 3]
    for beams, count, penalty, early_stopping in (
        (1, 1, 1.0, True),
        (1, 1, 0.4, False),
        (2, 1, 0.0, True),
        (3, 3, 1.0, False),
        (8, 5, 0.7, True),
    ):
        options = dict(
            max_new_tokens=9,
            beams=beams,
            num_return_sequences=count,
            length_penalty=penalty,
            early_stopping=early_stopping,
        )
        got, scores = in_onnx(STARTS, PROMPT, **options)
        expected, expected_scores = run(table, STARTS, PROMPT, **options)
        length = got.shape[-1]  # a fixed buffer is as long as its capacity
        np.testing.assert_array_equal(got, expected[..., :length])
        assert (expected[..., length:] == PAD).all()
        np.testing.assert_allclose(scores, expected_scores, atol=1e-5)


@pytest.mark.parametrize(("beams", "count"), [(1, 2), (3, 4), (2, 4)])
def test_more_sequences_than_beams_are_refused(beams, count, tmp_path):
    table = chain(7, seed=3)
    options = dict(max_new_tokens=4, beams=beams, num_return_sequences=count)
    with pytest.raises(Exception, match=r"\bk\b"):  # each backend has its own
        run(table, STARTS, PROMPT, **options)
    in_onnx = InOnnx(table, tmp_path / "search.onnx")
    with pytest.raises(Exception, match="k argument"):
        in_onnx(STARTS, PROMPT, **options)


@pytest.mark.tensorflow
def test_a_graph_of_tensorflow_takes_any_number_of_beams():
    import tensorflow as tf

    table = chain(7, seed=3)

    @tf.function
    def function(beams, count):
        options = {"max_new_tokens": 9, "beams": beams, "num_return_sequences": count}
        dynamic = {**DEFAULTS, **options}
        return searched(table, tf.constant(STARTS), tf.constant(PROMPT), dynamic)

    for beams in (1, 3):
        got = function(tf.constant(beams), tf.constant(beams))
        options = dict(max_new_tokens=9, beams=beams, num_return_sequences=beams)
        expected = run(table, STARTS, PROMPT, **options)
        np.testing.assert_array_equal(got[0], expected[0])
        np.testing.assert_allclose(got[1], expected[1], atol=1e-5)
        with pytest.raises(tf.errors.InvalidArgumentError, match="k"):
            function(tf.constant(beams), tf.constant(beams + 1))
    assert function.experimental_get_tracing_count() == 1
