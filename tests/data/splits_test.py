"""Claims about splitting by the source side."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kzoo.data import split_examples

PAIRS = st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)))


@given(PAIRS, st.integers(0, 9))
def test_every_example_is_in_one_split_and_no_source_in_two(pairs, seed):
    splits = split_examples(pairs, seed=seed, validation=0.3, test=0.3)
    assert sorted(sum(splits.values(), [])) == sorted(pairs)
    sources = [{source for source, _ in split} for split in splits.values()]
    assert sum(len(each) for each in sources) == len(set.union(*sources))


@given(PAIRS, PAIRS)
def test_a_grown_corpus_moves_no_example(pairs, more):
    small, large = split_examples(pairs), split_examples(pairs + more)
    for name, examples in small.items():
        assert large[name][: len(examples)] == examples


def test_shares_are_met():
    splits = split_examples([f"text {n}" for n in range(20_000)])
    assert len(splits["test"]) == pytest.approx(2_000, abs=150)
    assert len(splits["validation"]) == pytest.approx(2_000, abs=150)


def test_shares_that_leave_nothing_are_refused():
    with pytest.raises(ValueError, match="validation=0.5, test=0.5"):
        split_examples(["a"], validation=0.5, test=0.5)
    with pytest.raises(ValueError, match="Received: validation=nan, test=0.1"):
        split_examples(["a"], validation=float("nan"), test=0.1)


def test_no_text_of_the_side_that_is_hashed_is_in_two_parts():
    pairs = [(f"source {n}", f"target {n % 40}") for n in range(400)]
    parts = split_examples(pairs, validation=0.3, test=0.3, side=1)
    targets = [{target for _, target in part} for part in parts.values()]
    assert all(targets) and sum(map(len, targets)) == 40
    assert parts != split_examples(pairs, validation=0.3, test=0.3)


def test_rows_of_an_array_are_split_as_tuples():
    pairs = [(str(i), "x") for i in range(40)]
    rows = split_examples(np.array(pairs))
    for name, examples in split_examples(pairs).items():
        assert [tuple(row) for row in rows[name]] == examples


@pytest.mark.parametrize("example", [("a",), ("a", 1), (), 5, None, {"a": "b"}])
def test_an_example_without_the_side_is_named(example):
    with pytest.raises(ValueError, match="Example 1 .* string as side 1. Received"):
        split_examples([("a", "b"), example], side=1)


@pytest.mark.parametrize("side", [-1, 1.0, 1.5, "1", True, None])
def test_a_side_that_is_no_number_of_an_item_is_refused(side):
    with pytest.raises(ValueError, match="side must be an integer of at least 0"):
        split_examples([("a", "b")], side=side)
