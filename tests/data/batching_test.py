"""Claims about batches: nothing lost, nothing twice, few shapes, exact resume."""

import itertools
import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kzoo.data import (
    RandomStretches,
    bucketed_batches,
    choose_buckets,
    packed_blocks,
    padded_batch,
)

PAIR_LENGTHS = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=80
)


def make_examples(lengths):
    """Two features; every id tells its example, feature and position apart."""
    return {
        name: [
            [1 + 10_000 * number + 100 * example + place for place in range(length)]
            for example, length in enumerate(column)
        ]
        for number, (name, column) in enumerate(
            zip(
                ("encoder_token_ids", "decoder_token_ids"),
                zip(*lengths, strict=True),
                strict=True,
            )
        )
    }


def rows_of(batches, pad=0):
    """Every row that is not all padding, as (source ids, target ids)."""
    rows = []
    for batch in batches:
        for source, target in zip(
            batch["encoder_token_ids"], batch["decoder_token_ids"], strict=True
        ):
            row = tuple(
                tuple(i for i in ids.tolist() if i != pad) for ids in (source, target)
            )
            if any(row):
                rows.append(row)
    return Counter(rows)


def expected_rows(examples):
    return Counter(zip(*(map(tuple, ids) for ids in examples.values()), strict=True))


def equal(one, other):
    return one.keys() == other.keys() and all(
        np.array_equal(one[name], other[name]) for name in one
    )


@given(
    PAIR_LENGTHS,
    st.integers(1, 9),
    st.integers(1, 6),
    st.integers(0, 2**63 - 1),
    st.booleans(),
    st.sampled_from(["fill", "keep"]),
)
def test_every_example_is_in_every_epoch_once(
    lengths, batch_size, buckets, seed, shuffle, remainder
):
    examples = make_examples(lengths)
    batches = bucketed_batches(
        examples,
        batch_size=batch_size,
        buckets=buckets,
        seed=seed,
        shuffle=shuffle,
        remainder=remainder,
    )
    size = len(batches)
    for epoch in (0, 1, 5):
        of_epoch = [batches[epoch * size + place] for place in range(size)]
        assert rows_of(of_epoch) == expected_rows(examples)
    assert rows_of(batches) == expected_rows(examples)


@pytest.mark.filterwarnings("ignore:remainder='drop' leaves out")
@given(PAIR_LENGTHS, st.integers(1, 9))
def test_dropped_remainders_are_less_than_a_batch_a_bucket(lengths, batch_size):
    examples = make_examples(lengths)
    try:
        batches = bucketed_batches(examples, batch_size=batch_size, remainder="drop")
    except ValueError as error:
        assert "no bucket has enough" in str(error)
        return
    rows = rows_of(batches)
    assert not rows - expected_rows(examples)
    assert rows.total() == len(batches) * batch_size
    missing = expected_rows(examples).total() - rows.total()
    assert missing <= len(batches.report.buckets) * (batch_size - 1)


def test_a_bucket_without_a_batch_is_counted_as_dropped_and_warned_of():
    examples = [[1]] * 10 + [[2] * 20] * 3
    options = dict(batch_size=4, buckets=2)
    with pytest.warns(UserWarning, match="leaves out in every epoch 3 of 13 ex"):
        batches = bucketed_batches(examples, remainder="drop", **options)
    assert {int(batch["token_ids"].max()) for batch in batches} == {1}
    assert (batches.report.num_examples, batches.report.num_dropped) == (10, 3)
    report = bucketed_batches(examples, remainder="keep", **options).report
    assert (report.num_examples, report.num_dropped) == (13, 0)


@given(PAIR_LENGTHS, st.integers(1, 9), st.integers(1, 6))
def test_shapes_are_few_and_known(lengths, batch_size, buckets):
    batches = bucketed_batches(
        make_examples(lengths), batch_size=batch_size, buckets=buckets, multiple=8
    )
    seen = {
        (batch["encoder_token_ids"].shape[1], batch["decoder_token_ids"].shape[1])
        for batch in batches
    }
    assert seen == set(batches.shapes)
    assert len(seen) <= buckets
    assert all(length % 8 == 0 for shape in seen for length in shape)
    assert {len(ids) for batch in batches for ids in batch.values()} == {batch_size}
    assert all(ids.dtype == np.int32 for batch in batches for ids in batch.values())


@given(PAIR_LENGTHS, st.integers(0, 400), st.integers(0, 99))
def test_a_batch_needs_none_before_it(lengths, index, seed):
    examples = make_examples(lengths)
    first = bucketed_batches(examples, batch_size=4, seed=seed)
    again = bucketed_batches(examples, batch_size=4, seed=seed)
    for earlier in range(min(index, 5)):
        first[earlier]
    assert equal(first[index], again[index])
    assert equal(pickle.loads(pickle.dumps(first))[index], first[index])


def test_training_resumes_exactly_within_and_between_epochs():
    examples = make_examples([(n % 17 + 1, n % 13 + 1) for n in range(90)])
    batches = bucketed_batches(examples, batch_size=8, seed=5)
    whole = list(batches.to_grain(epochs=3))
    assert len(whole) == 3 * len(batches)
    for start in (1, len(batches), 2 * len(batches) + 3):
        rest = list(batches.to_grain(epochs=3, start=start))
        assert len(rest) == len(whole) - start
        assert all(map(equal, rest, whole[start:]))


def test_orders_differ_between_epochs_and_seeds():
    examples = make_examples([(5, 5)] * 64)
    batches = bucketed_batches(examples, batch_size=8, seed=1)
    other = bucketed_batches(examples, batch_size=8, seed=2)
    assert not equal(batches[0], batches[len(batches)])
    assert not equal(batches[0], other[0])


def test_without_shuffle_examples_keep_their_order_in_a_bucket():
    batches = bucketed_batches(
        [[1], [2, 2], [3], [4]], batch_size=2, buckets=[1, 2], shuffle=False
    )
    rows = [batch["token_ids"].tolist() for batch in batches]
    assert rows == [[[1], [3]], [[4], [0]], [[2, 2], [0, 0]]]
    assert equal(batches[0], batches[3])


def test_an_example_goes_to_the_cheapest_bucket_that_it_fits():
    batches = bucketed_batches(
        {"source": [[1] * 3, [2] * 7, [3] * 3], "target": [[1] * 3, [2] * 3, [3] * 7]},
        batch_size=1,
        buckets=[(8, 8), (4, 4), (4, 8)],
        shuffle=False,
    )
    shapes = [(b["source"].shape[1], b["target"].shape[1]) for b in batches]
    assert shapes == [(4, 4), (4, 8), (8, 8)]
    assert [int(batch["source"].max()) for batch in batches] == [1, 3, 2]


def test_a_token_budget_bounds_the_targets_of_a_batch():
    examples = make_examples([(n % 39 + 1, n % 31 + 1) for n in range(600)])
    batches = bucketed_batches(examples, tokens_per_batch=256)
    for batch in batches:
        rows, length = batch["decoder_token_ids"].shape
        assert rows * length <= 256
        assert rows == 256 // length or rows % 8 == 0
        assert (rows + 8) * length > 256
    assert rows_of(batches) == expected_rows(examples)
    tiny = bucketed_batches(examples, tokens_per_batch=1)
    assert {len(batch["decoder_token_ids"]) for batch in tiny} == {1}


@pytest.mark.parametrize("size", [dict(batch_size=10**9), dict(tokens_per_batch=10**9)])
def test_a_batch_is_filled_up_to_what_there_is_at_most(size):
    for count, filled in ((65, 256), (257, 512)):
        examples = make_examples([(n % 30 + 1, n % 20 + 1) for n in range(count)])
        for remainder, most in (("fill", filled), ("keep", count)):
            batches = bucketed_batches(examples, **size, buckets=1, remainder=remainder)
            assert {len(ids) for batch in batches for ids in batch.values()} == {most}
            assert rows_of(batches) == expected_rows(examples)


def test_the_report_counts_what_the_batches_hold():
    examples = make_examples([(n % 30 + 1, n % 20 + 1) for n in range(200)])
    for remainder in ("fill", "keep"):
        batches = bucketed_batches(examples, batch_size=16, remainder=remainder)
        places = sum(ids.size for batch in batches for ids in batch.values())
        used = sum(int((ids != 0).sum()) for b in batches for ids in b.values())
        assert batches.report.padding == pytest.approx(1 - used / places)
        assert batches.report.num_examples == 200
        assert len(batches) == sum(bucket[3] for bucket in batches.report.buckets)
    assert str(batches.report).startswith("200 examples, ")


def test_padding_of_sentence_like_lengths_is_below_a_fifth():
    draw = np.random.default_rng(0)
    source = draw.gamma(6.0, 2.5, 4_000).astype(int) + 3
    target = np.maximum(2, source + draw.integers(-3, 4, 4_000))
    examples = {
        "encoder_token_ids": [[1] * n for n in source],
        "decoder_token_ids": [[1] * n for n in target],
    }
    batches = bucketed_batches(examples, batch_size=32)
    assert batches.report.padding < 0.2
    one = bucketed_batches(examples, batch_size=32, buckets=1)
    assert one.report.padding > 0.5


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=12),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_chosen_buckets_pad_least_of_all_cuts(lengths, count, rows):
    def places(shapes):
        total = 0
        left = list(lengths)
        for shape in shapes:  # by longest feature, as the cuts are
            inside = [each for each in left if max(each) <= max(shape)]
            left = [each for each in left if max(each) > max(shape)]
            total += -(-len(inside) // rows) * rows * sum(shape)
        return total

    ordered = sorted({max(each) for each in lengths})
    least = np.inf
    for number in range(min(count, len(ordered))):
        for cuts in itertools.combinations(ordered[:-1], number):
            shapes, below = [], 0
            for end in (*cuts, ordered[-1]):
                inside = [each for each in lengths if below < max(each) <= end]
                shapes.append(tuple(np.max(inside, axis=0)))
                below = end
            least = min(least, places(shapes))
    chosen = choose_buckets(
        np.array(lengths), count, multiple=1, rows_of=lambda shape: rows
    )
    assert places(sorted(chosen, key=max)) == least
    assert len(chosen) <= count


def test_many_lengths_are_bucketed_in_reasonable_time():
    lengths = np.arange(1, 20_000)
    shapes = choose_buckets(lengths, 4, multiple=1)
    assert len(shapes) == 4
    assert shapes[-1] == (19_999,)


def test_too_long_examples_are_an_error_that_counts_them():
    with pytest.raises(
        ValueError,
        match=r"2 of 3 examples are too long: example 1 .*'token_ids': 5.*: 4}",
    ):
        bucketed_batches([[1], [1] * 5, [1] * 6], batch_size=1, max_length=4)
    with pytest.raises(ValueError, match="1 of 1 examples are too long"):
        bucketed_batches([[1] * 9], batch_size=1, buckets=[4, 8], too_long="drop")


def test_too_long_examples_are_cut_or_left_out_when_asked():
    examples = {"source": [[1] * 3, [2] * 9], "target": [[3] * 3, [4, 5, 6, 7]]}
    options = dict(batch_size=1, shuffle=False, max_length={"source": 6})
    cut = bucketed_batches(examples, too_long="truncate", **options)
    assert cut.report.num_truncated == 1
    # The limit is no multiple of 4, and no row is longer than it.
    assert cut[1]["source"].tolist() == [[2] * 6]
    assert cut[1]["target"].tolist() == [[4, 5, 6, 7]]
    left = bucketed_batches(examples, too_long="drop", **options)
    assert (left.report.num_dropped, left.report.num_examples) == (1, 1)
    assert len(left) == 1


def test_truncation_to_given_buckets_keeps_the_limit():
    batches = bucketed_batches(
        [[1] * 9], batch_size=1, buckets=[8], max_length=5, too_long="truncate"
    )
    assert batches[0]["token_ids"].tolist() == [[1] * 5 + [0] * 3]


def test_validation_can_reuse_the_shapes_of_training():
    train = bucketed_batches(
        make_examples([(n % 30 + 1, n % 20 + 1) for n in range(99)]), batch_size=4
    )
    validation = bucketed_batches(
        make_examples([(7, 9), (30, 2), (1, 1)]), batch_size=4, buckets=train.shapes
    )
    assert set(validation.shapes) <= set(train.shapes)


def test_numbers_are_features_too():
    batches = bucketed_batches(
        {"token_ids": [[5], [6, 7], [8]], "label": [2, 0, 1], "score": [0.5, 1.5, 2.0]},
        batch_size=2,
        buckets=1,
        multiple=1,
        shuffle=False,
        pad_ids={"token_ids": 9, "label": -1},
    )
    assert batches[1]["token_ids"].tolist() == [[8, 9], [9, 9]]
    assert batches[1]["label"].tolist() == [1, -1]
    assert batches[1]["score"].tolist() == [2.0, 0.0]
    assert (batches[0]["label"].dtype, batches[0]["score"].dtype) == (
        np.int32,
        np.float32,
    )


def test_vectors_are_a_feature_and_filling_is_filled():
    vectors = np.array([[0.1, 0.9], [0.2, 0.8], [0.7, 0.3]])
    batches = bucketed_batches(
        {"ids": [[1], [2], [3]], "y": vectors},
        batch_size=2,
        shuffle=False,
        pad_ids={"y": -1},
    )
    found = np.concatenate([batch["y"] for batch in batches])
    assert found.dtype == "float32"
    np.testing.assert_allclose(found, [*vectors, [-1, -1]], rtol=1e-6)


@pytest.mark.tensorflow
def test_the_width_of_vectors_is_not_left_open():
    features = {"ids": [[1], [2, 3]], "y": np.array([[0.1, 0.9], [0.2, 0.8]])}
    batches = bucketed_batches(features, batch_size=2)
    spec = batches.to_tf_data().element_spec
    assert spec["y"].shape.as_list() == [None, 2]
    assert spec["ids"].shape.as_list() == [None, None]


@pytest.mark.parametrize(
    ("examples", "options", "error", "message"),
    [
        ([[1], []], {}, ValueError, "Example 1 of 'token_ids' is empty"),
        ([[1], 2], {}, TypeError, "Example 1 of 'token_ids' must be a sequence"),
        ([[1.5]], {}, TypeError, "dtype float64"),
        ([[], [1]], {}, ValueError, "Example 0 of 'token_ids' is empty"),
        (
            {"a": [[1]], "b": [[0.5, 0.5]]},
            {},
            TypeError,
            "'b' must hold flat sequences",
        ),
        (["text"], {}, TypeError, "'token_ids' must hold a sequence of ids, a number"),
        ([], {}, ValueError, "at least one example"),
        ({"a": [[1]], "b": []}, {}, ValueError, "{'a': 1, 'b': 0}"),
        ({"label": [1]}, {}, ValueError, "At least one feature must hold sequences"),
        (7, {}, TypeError, "Received: int"),
        ([[1]], {"tokens_per_batch": 8}, ValueError, "either batch_size or tokens"),
        ([[1]], {"batch_size": None}, ValueError, "either batch_size or tokens"),
        ([[1]], {"batch_size": 0}, ValueError, "at least 1"),
        ([[1]], {"too_long": "cut"}, ValueError, "too_long must be one of"),
        ([[1]], {"remainder": "no"}, ValueError, "remainder must be one of"),
        ([[1]], {"buckets": [(4, 4)]}, ValueError, "buckets must be lengths"),
        ([[1]], {"buckets": 0}, ValueError, "buckets must be an integer of at least 1"),
        ([[1]], {"max_length": {"a": 1}}, ValueError, r"max_length names \['a'\]"),
        ([[1]], {"max_length": 0}, ValueError, "max_length must be an integer"),
        ([[1]], {"max_length": 2.5}, ValueError, "Received: 2.5"),
        (
            [[1]],
            {"buckets": 2.5},
            ValueError,
            "buckets must be an integer .* Received: 2.5",
        ),
        ([[1]], {"buckets": [4.5]}, ValueError, "buckets must be lengths"),
        ([[1]], {"buckets": [(4, 8), (4,)]}, ValueError, "buckets must be lengths"),
        ([[1]], {"buckets": "8"}, ValueError, "buckets must be an integer"),
        ([[1]], {"batch_size": 2.0}, ValueError, "batch_size must be an integer"),
        ([[1]], {"batch_size": True}, ValueError, "batch_size must be an integer"),
        ([[1]], {"multiple": 2.5}, ValueError, "multiple must be an integer"),
        ([[1]], {"pad_ids": 2.5}, ValueError, "pad_ids of 'token_ids' .* -2147483648"),
        ([[1]], {"pad_ids": np.nan}, ValueError, "pad_ids of 'token_ids'"),
        (
            {"a": [[1]], "y": [1]},
            {"pad_ids": {"y": "no"}},
            ValueError,
            "pad_ids of 'y' must be a number",
        ),
        (
            [[1]],
            {"batch_size": None, "tokens_per_batch": 8, "tokens_of": lambda shape: 0},
            ValueError,
            r"What tokens_of gives for \(4,\) must be an integer of at least 1",
        ),
        ([[1]], {"seed": 1.5}, ValueError, "seed must be an integer"),
        ([[1]], {"pad_ids": {"a": 1}}, ValueError, r"pad_ids names \['a'\]"),
        ([[1]], {"seed": -1}, ValueError, "Received: -1"),
        ([[1]], {"batch_size": 2, "remainder": "drop"}, ValueError, "no batch"),
    ],
)
def test_wrong_arguments_are_named(examples, options, error, message):
    with pytest.raises(error, match=message):
        bucketed_batches(examples, **{"batch_size": 1, **options})


def test_given_buckets_may_be_of_both_kinds_and_in_any_collection():
    examples = {"a": [[1] * 3], "b": [[2] * 7]}
    for buckets in ([4, (4, 8)], iter([(4, 8)]), {(4, 8)}):
        batches = bucketed_batches(examples, batch_size=1, buckets=buckets)
        assert batches.shapes == ((4, 8),)
    assert bucketed_batches([[1]], batch_size=1, buckets=np.int64(1)).shapes == ((4,),)
    floats = dict(tokens_per_batch=10, tokens_of=lambda shape: shape[0] * 1.3)
    assert bucketed_batches([[1] * 4] * 2, **floats)[0]["token_ids"].shape == (2, 4)


def test_batches_outside_are_refused():
    batches = bucketed_batches([[1]], batch_size=1)
    with pytest.raises(IndexError, match="Received: -1"):
        batches[-1]
    with pytest.raises(TypeError, match="integer"):
        batches[0.5]
    with pytest.raises(ValueError, match=r"start must be a batch in \[0, 2\)"):
        batches.to_grain(epochs=2, start=2)
    for options, name in [(dict(epochs=1.5), "epochs"), (dict(start=0.5), "start")]:
        with pytest.raises(ValueError, match=f"{name} must be an integer"):
            batches.to_grain(**options)


def same_shape_first():
    """Batches whose first two have one shape, and later ones another."""
    batches = bucketed_batches(
        [[1]] * 4 + [[1] * 9], batch_size=2, buckets=[1, 9], shuffle=False
    )
    assert [b["token_ids"].shape for b in batches] == [(2, 1), (2, 1), (2, 9)]
    return batches


def to_fit(batch):
    return batch["token_ids"], np.ones((len(batch["token_ids"]), 1), np.float32)


def test_keras_fits_on_the_batches():
    keras = pytest.importorskip("keras")
    batches = same_shape_first()
    tensorflow = keras.backend.backend() == "tensorflow"
    make = batches.to_tf_data if tensorflow else batches.to_grain
    model = keras.Sequential(
        [
            keras.layers.Embedding(10, 4),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse")
    history = model.fit(
        make(transform=to_fit),
        epochs=2,
        steps_per_epoch=len(batches),
        shuffle=False,
        verbose=0,
    )
    assert len(history.history["loss"]) == 2


def test_no_thread_tunes_tf_data():
    """The end of its iterator can wait a minute for it, where cores are busy."""
    pytest.importorskip("tensorflow")
    pipeline = same_shape_first().to_tf_data(epochs=1)
    assert pipeline.options().autotune.enabled is False


def test_tf_data_gives_the_same_batches():
    pytest.importorskip("tensorflow")
    batches = same_shape_first()
    dataset = batches.to_tf_data(epochs=2, start=1)
    assert int(dataset.cardinality()) == 5
    spec = dataset.element_spec["token_ids"]
    assert (spec.shape.as_list(), spec.dtype.name) == ([None, None], "int32")
    expected = [batches[index] for index in range(1, 6)]
    assert all(map(equal, dataset.as_numpy_iterator(), expected))


@given(st.lists(st.lists(st.integers(1, 99), max_size=9), max_size=6))
def test_padded_rows_hold_their_sequence_at_the_chosen_side(sequences):
    right = padded_batch(sequences, 10, pad_id=0)
    left = padded_batch(sequences, 10, pad_id=0, side="left")
    assert right.shape == left.shape == (len(sequences), 10)
    for ids, on_right, on_left in zip(sequences, right, left, strict=True):
        assert on_right.tolist() == ids + [0] * (10 - len(ids))
        assert on_left.tolist() == [0] * (10 - len(ids)) + ids


def test_padded_length_is_that_of_the_longest_or_a_multiple():
    assert padded_batch([[1], [2, 3, 4]]).shape == (2, 3)
    assert padded_batch([[1], [2, 3, 4]], multiple=8).shape == (2, 8)
    assert padded_batch([[7]], 2, pad_id=5).tolist() == [[7, 5]]
    for pad_id in (1.7, np.nan, 2**40, None):
        with pytest.raises(ValueError, match="pad_id must be an integer"):
            padded_batch([[7]], 2, pad_id=pad_id)
    with pytest.raises(ValueError, match="longest sequence, 3 ids. Received: length=2"):
        padded_batch([[1, 2, 3]], 2)
    with pytest.raises(ValueError, match="side must be"):
        padded_batch([[1]], side="top")


def test_blocks_cut_running_text_with_and_without_overlap():
    ids = np.arange(10)
    assert packed_blocks(ids, 4).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert packed_blocks(ids, 4, overlap=1).tolist() == [
        [0, 1, 2, 3],
        [3, 4, 5, 6],
        [6, 7, 8, 9],
    ]
    for arguments, message in [
        (dict(length=11), "at least length=11 ids. Received: 10"),
        (
            dict(length=4, overlap=4),
            "overlap must be an integer .* at most 3. Received: 4",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            packed_blocks(ids, **arguments)
    with pytest.raises(ValueError, match=r"shape \(2, 2\)"):
        packed_blocks([[1, 2], [3, 4]], 2)


@given(st.integers(1, 60), st.integers(2, 9))
def test_with_overlap_one_every_id_but_the_first_is_predicted_once(size, length):
    size = max(size, length)
    blocks = packed_blocks(np.arange(size), length, overlap=1)
    predicted = blocks[:, 1:].ravel().tolist()
    assert predicted == list(range(1, len(predicted) + 1))
    assert size - 1 - len(predicted) < length - 1


def test_importing_data_imports_no_framework():
    import subprocess
    import sys
    from pathlib import Path

    code = (
        "import sys, kzoo.data; "
        "print({'keras', 'tensorflow', 'grain', 'jax'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "set()", done.stderr


def test_mapped_batches_follow_from_batch_and_index():
    batches = bucketed_batches([[1, 2], [3], [4, 5, 6]], batch_size=2, seed=1)
    mapped = batches.map(lambda batch, index: {**batch, "index": index}).map(
        lambda batch, index: {**batch, "token_ids": batch["token_ids"] * (index + 1)}
    )
    assert len(mapped) == len(batches) and mapped.shapes == batches.shapes
    for index in (0, 1, 5):  # the last one of a later epoch
        expected = batches[index]["token_ids"] * (index + 1)
        np.testing.assert_array_equal(mapped[index]["token_ids"], expected)
        assert mapped[index]["index"] == index
    assert all("index" not in batch for batch in batches)
    first = next(iter(mapped.to_grain(epochs=2, start=3)))
    assert first["index"] == 3


def test_random_stretches_are_of_the_text_and_follow_from_seed_and_index():
    text = np.arange(100, 200)
    batches = RandomStretches(text, 7, 4, before=[1], seed=3)
    assert len(batches) == 100 // 28
    ids = batches[5]["token_ids"]
    assert ids.shape == (4, 8) and ids.dtype == np.int32
    assert (ids[:, 0] == 1).all()
    assert (np.diff(ids[:, 1:], axis=1) == 1).all()
    same = RandomStretches(text, 7, 4, before=[1], seed=3)
    np.testing.assert_array_equal(same[5]["token_ids"], ids)
    other = RandomStretches(text, 7, 4, before=[1], seed=4)
    assert (other[5]["token_ids"] != ids).any()
    assert (batches[6]["token_ids"] != ids).any()
    assert pickle.loads(pickle.dumps(batches))[5]["token_ids"].tolist() == ids.tolist()


def test_random_stretches_begin_everywhere_alike():
    batches = RandomStretches(np.arange(12), 3, 50, num_batches=200)
    assert len(batches) == 200
    starts = Counter(i for batch in batches for i in batch["token_ids"][:, 0].tolist())
    assert sorted(starts) == [*range(10)]  # the last has 9, 10 and 11
    # 1,000 each on average; 6 standard deviations are 180.
    assert all(abs(count - 1000) < 180 for count in starts.values())


def test_a_text_shorter_than_a_stretch_is_refused():
    assert RandomStretches(np.arange(8), 8, 1)[0]["token_ids"].tolist() == [[*range(8)]]
    with pytest.raises(ValueError, match="7 ids, fewer than length=8"):
        RandomStretches(np.arange(7), 8, 1)
    for options in (
        dict(length=0),
        dict(length=2.5),
        dict(rows=-1),
        dict(num_batches=0),
        dict(seed=-1),
        dict(seed=1.5),
    ):
        (name,) = options
        with pytest.raises(ValueError, match=f"{name} must be an integer of at least"):
            RandomStretches(np.arange(9), **{"length": 2, "rows": 1, **options})
    for ids, error in (([0.5] * 9, TypeError), (np.zeros((9, 9), int), ValueError)):
        with pytest.raises(error, match="integers|one flat sequence"):
            RandomStretches(ids, 2, 1)


@pytest.mark.parametrize("wrong", [2**31, -(2**31) - 1, 2**32 + 5])
def test_what_int32_cannot_hold_is_refused(wrong):
    """It would wrap to another id, or to another class."""
    for examples in (
        {"token_ids": [[wrong, 1]]},
        {"token_ids": [[1]], "label": [wrong]},
    ):
        with pytest.raises(ValueError, match=f"must fit in int32. Received: {wrong}"):
            bucketed_batches(examples, batch_size=1)
    for verb in (
        lambda ids: packed_blocks(ids, 2),
        lambda ids: padded_batch([ids]),
    ):
        with pytest.raises(ValueError, match=f"must fit in int32. Received: {wrong}"):
            verb(np.array([wrong, 1]))
        with pytest.raises(TypeError, match="must be integers. Received: dtype float"):
            verb([1.9, 2.2])


def test_a_pad_that_is_no_integer_is_kept_beside_integers():
    examples = {"token_ids": [[1], [2], [3]], "y": [1, 2, 3]}
    (batch,) = bucketed_batches(
        examples, batch_size=4, pad_ids={"y": np.nan}, remainder="fill"
    )
    assert batch["y"].dtype == np.float32
    np.testing.assert_array_equal(np.sort(batch["y"]), [1, 2, 3, np.nan])
