"""Texts and pairs become ids as BERT reads them, and cutting leaves start and end."""

import doctest
import functools
import warnings

import numpy as np
import pytest

import kzoo
from kzoo.tasks import encoder_task
from kzoo.tokenizers import FastTokenizer
from tests.words import EAGER, TOKENIZER

START, END = 1, 2
SMALL = dict(num_layers=1, hidden_dim=16, intermediate_dim=16, num_heads=2, dropout=0.0)


def task(**changes):
    return kzoo.TextClassifier.from_size(
        "tiny", TOKENIZER, num_classes=2, name="task", **{**SMALL, **changes}
    )


def ids(text):
    return TOKENIZER.encode([text])[0]


def rows(features, name="token_ids"):
    return [row.tolist() for row in features[name]]


def test_a_text_stands_between_start_and_end():
    features = task().encode_texts(["abc", "d", ""])
    assert set(features) == {"token_ids"}
    assert rows(features) == [
        [START, *ids("abc"), END],
        [START, *ids("d"), END],
        [START, END],
    ]


def test_the_second_text_of_a_pair_and_its_end_are_segment_1():
    features = task(num_segments=2).encode_texts([("ab", "c"), ("", "d")])
    assert rows(features) == [
        [START, *ids("ab"), END, *ids("c"), END],
        [START, END, *ids("d"), END],
    ]
    assert rows(features, "segment_ids") == [[0, 0, 0, 0, 1, 1], [0, 0, 1, 1]]
    assert rows(task().encode_texts([("ab", "c")])) == rows(features)[:1]


def test_a_pair_has_no_segments_where_all_have_the_same():
    model = task(num_segments=1)  # as RoBERTa
    assert set(model.encode_texts([("ab", "c")])) == {"token_ids"}
    assert np.isfinite(model.predict([("ab", "c")], verbose=0)).all()


@pytest.mark.parametrize(
    ("pair", "limit", "expected"),
    [
        (("abcdab", "dc"), 8, ("abc", "dc")),  # 5 places: the longer gives way
        (("dc", "abcdab"), 8, ("dc", "abc")),
        (("abcdab", "dcba"), 8, ("abc", "dc")),  # both: the first keeps the odd one
        (("abcd", "dcba"), 7, ("ab", "dc")),
        (("abcd", "dcba"), 3, ("", "")),
        (("ab", "dc"), 7, ("ab", "dc")),
        ("abcdab", 5, ("abc",)),
        ("abc", 5, ("abc",)),
    ],
)
def test_the_longer_text_is_cut_first_and_start_and_ends_stay(pair, limit, expected):
    (row,) = rows(task(max_length=limit).encode_texts([pair]))
    wanted = [START]
    for text in expected:
        wanted += [*ids(text), END]
    assert row == wanted


def test_the_limit_is_max_length_or_the_learned_positions():
    learned = dict(positions="learned", max_sequence_length=6)
    with pytest.warns(UserWarning, match="2 of 3 examples were cut.* 6 tokens") as w:
        cut = task(**learned).encode_texts(["abcdab", "abcdabc", "ab"])
    assert len(w) == 1
    assert [len(row) for row in cut["token_ids"]] == [6, 6, 4]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asked = task(**learned, max_length=5).encode_texts(["abcdab"])
        free = task(positions="sinusoidal").encode_texts(["abcd" * 300])
    assert len(asked["token_ids"][0]) == 5
    assert len(free["token_ids"][0]) == 1202
    with pytest.raises(ValueError, match="learned positions.*max_length=7"):
        task(**learned, max_length=7)
    for wrong in (2, 8.5, "8", True, float("inf")):
        with pytest.raises(ValueError, match="max_length must be an integer of at le"):
            task(max_length=wrong)


def test_what_is_no_text_or_pair_is_named():
    model = task()
    for examples, wrong in (
        ([("a", "b"), "cd"], "'cd' as example 1"),
        (["cd", ("a", "b")], r"\('a', 'b'\) as example 1"),
        ([("a", "b", "c")], r"\('a', 'b', 'c'\) as example 0"),
        ([("a", "b"), ("a",)], r"\('a',\) as example 1"),
    ):
        with pytest.raises(ValueError, match=f"texts or pairs of texts.*{wrong}"):
            model.encode_texts(examples)
    array = model.encode_texts(np.array([["ab", "c"], ["d", "a"]]))
    assert rows(array)[0] == [START, *ids("ab"), END, *ids("c"), END]


def test_other_inputs_than_it_reads_are_refused():
    token_ids = np.array([[START, 5, END]])
    with pytest.raises(ValueError, match="reads token_ids.*'segment_ids'"):
        task()({"token_ids": token_ids, "segment_ids": token_ids * 0})
    with pytest.raises(ValueError, match=r"Received the keys \['padding_mask'\]"):
        task()({"padding_mask": token_ids > 0})
    with pytest.raises(ValueError, match="architecture 'encoder' or 'decoder'"):
        kzoo.SentenceEmbedder.from_size(
            "tiny", TOKENIZER, architecture="encoder_decoder"
        )


def test_predictions_come_in_the_order_of_the_texts(monkeypatch):
    model = task()
    texts = ["ab" * n for n in (3, 0, 2, 5, 1, 4)]
    inputs, _ = model.encode_text(texts)
    expected = model.predict(inputs, verbose=0)
    for batch_size in (1, 4, 32):
        got = model.predict(texts, batch_size=batch_size, verbose=0)
        np.testing.assert_allclose(got, expected, atol=1e-6)
    monkeypatch.setattr(encoder_task, "_PAIRS", 150)
    monkeypatch.setattr(encoder_task, "_TEXTS", 4)
    seen, function = [], model.forward_function(["token_ids"])
    monkeypatch.setattr(
        model,
        "forward_function",
        lambda names: lambda ids: seen.append(ids.shape) or function(ids),
    )
    got = model.predict(texts, verbose=0)
    np.testing.assert_allclose(got, expected, atol=1e-6)
    assert all(rows == 1 or rows * length**2 <= 150 for rows, length in seen)
    assert len(seen) > 2
    for nothing in ([], np.array([], dtype=str)):
        with pytest.raises(ValueError, match="a list of examples, one at least"):
            model.predict(nothing)


@pytest.mark.parametrize(
    ("kind", "options", "answer"),
    [
        (kzoo.TextClassifier, {"num_classes": 2}, lambda m: m.classify(["ab"])),
        (kzoo.TokenClassifier, {"num_classes": 2}, lambda m: m.tag([["ab", "c"]])),
        (kzoo.PairScorer, {}, lambda m: m.rank("ab", ["c"])),
        (kzoo.SentenceEmbedder, {}, lambda m: m.embed(["ab"])),
        (kzoo.QuestionAnswering, {}, lambda m: m.answer([("ab", "cd")])),
        (kzoo.MaskedLM, {}, lambda m: m.fill(["a<mask>"])),
    ],
)
def test_what_is_no_number_is_no_answer(kind, options, answer):
    texts = ["abcd"]
    tokenizer = FastTokenizer.train(texts, 20, algorithm="character", mask_token=True)
    model = kind.from_size("tiny", tokenizer, name="task", **options, **SMALL)
    answer(model)
    name, variable = list(model.named_variables().items())[-1]
    variable.assign(variable * np.nan)
    with pytest.raises(ValueError, match=f"{name} holds NaN .* nothing can be predict"):
        answer(model)


def test_what_grows_beyond_all_numbers_is_no_answer():
    model = task(head_dropout=0.0)
    largest = np.finfo("float32").max
    for name in ("head/output/kernel", "head/output/bias"):
        variable = model.named_variables()[name]
        variable.assign(np.full(variable.shape, largest))
    with pytest.raises(ValueError, match="of task are NaN or infinite, though all"):
        model.classify(["ab", "cd", "a"])


@pytest.mark.parametrize(
    ("kind", "run_eagerly"),  # faster where it is one step
    [
        (kzoo.TextClassifier, False),
        (kzoo.TextRegressor, EAGER),
        (kzoo.PairScorer, False),
        (kzoo.SentenceEmbedder, EAGER),
    ],
)
def test_the_example_of_a_docstring_runs(kind, run_eagerly, monkeypatch):
    chosen = functools.partialmethod(kind.compile, run_eagerly=run_eagerly)
    monkeypatch.setattr(kind, "compile", chosen)
    texts = ["a fine film", "a dull film", "a dog", "a movie?"]
    tokenizer = FastTokenizer.train(texts, 40, algorithm="character")
    names = {"kzoo": kzoo, "tokenizer": tokenizer}
    examples = doctest.DocTestParser().get_examples(kind.__doc__)
    for example in examples:
        if example.want:
            assert repr(eval(example.source, names)) == example.want.strip()
        else:
            exec(example.source, names)
    assert any(example.want for example in examples)


def both_stacks(kind=kzoo.TokenClassifier, **changes):
    fields = dict(num_layers=1, positions="learned", max_sequence_length=9)
    return kind.from_size(
        "tiny",
        vocabulary_size=30,
        architecture="encoder_decoder",
        num_classes=3,
        **{**fields, **changes},
    )


def test_two_stacks_read_a_text_twice_the_second_time_a_token_later():
    task = both_stacks()
    ids = np.array([[5, 6, 7, 2], [8, 9, 2, 0]], "int32")
    states, mask = task.states({"token_ids": ids})
    memory = task.encoder(ids, padding_mask=mask)
    start = task.config.start_token_id
    later = np.array([[start, 5, 6, 7], [start, 8, 9, 2]], "int32")
    expected = task.decoder(later, memory=memory, memory_padding_mask=mask)
    mask = np.array(mask)
    np.testing.assert_array_equal(mask, ids != 0)
    np.testing.assert_allclose(
        np.array(states)[mask], np.array(expected)[mask], atol=1e-6
    )


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_padding_on_the_left_changes_nothing_with_two_stacks(positions):
    task = both_stacks(positions=positions)
    text = [5, 6, 7, 2]
    right = np.array([[*text, 0, 0], [8, 2, 0, 0, 0, 0]], "int32")
    left = np.array([[0, 0, *text], [0, 0, 0, 0, 8, 2]], "int32")
    one, other = (np.array(task({"token_ids": ids}))[ids != 0] for ids in (right, left))
    np.testing.assert_allclose(one, other, atol=1e-5)


def test_two_stacks_that_cannot_read_the_same_ids_are_refused():
    config = kzoo.ModelConfig.from_size("tiny", "encoder_decoder", 30)
    config = config.replace(
        share_embeddings=False, decoder=config.decoder.replace(vocabulary_size=31)
    )
    with pytest.raises(ValueError, match="one vocabulary_size. Received: 30 and 31"):
        kzoo.TokenClassifier(config, num_classes=3)


def test_a_classifier_of_two_stacks_learns_what_a_text_says():
    texts = [f"{a} {b}" for a in "abcd" for b in "abcd"] * 8
    labels = ["yes" if "a" in text else "no" for text in texts]
    tokenizer = kzoo.FastTokenizer.train(texts, 40, algorithm="character")
    task = kzoo.TextClassifier.from_size(
        "tiny",
        tokenizer,
        architecture="encoder_decoder",
        labels=["no", "yes"],
        pooling="last",
        num_layers=1,
    )
    task.compile(kzoo.training.Adam(3e-3))
    task.fit(texts, labels, batch_size=16, epochs=6, verbose=0)
    assert task.score(texts[:16], labels[:16])["accuracy"] > 0.9
