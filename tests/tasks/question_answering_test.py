"""Answers are exact parts of their contexts, however long these are."""

import functools
import itertools

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kzoo
from kzoo.tasks.question_answering import best_span
from kzoo.tokenizers import FastTokenizer, SentencePieceTokenizer
from tests.harness import perturb, to_numpy
from tests.words import EAGER, TOKENIZER, WORDS, compiled

START, END, UNKNOWN = 1, 2, 3
SMALL = dict(num_layers=1, hidden_dim=16, intermediate_dim=16, num_heads=2, dropout=0.0)
A, B, C, D = (TOKENIZER.encode([letter])[0][0] for letter in "abcd")
LOW = -1e29


def task(tokenizer=TOKENIZER, **changes):
    return kzoo.QuestionAnswering.from_size(
        "tiny",
        tokenizer,
        vocabulary_size=TOKENIZER.vocabulary_size if tokenizer is None else None,
        name="reader",
        **{**SMALL, **changes},
    )


def perturbed(model):
    perturb(model.named_variables().values())
    return model


# Examples.


def test_answers_are_places_of_tokens():
    model = task(num_segments=2)
    pairs = [("ab", "cdab"), ("d", "aabb")]
    features = model.encode_examples(pairs, [("da", 1), ("b", 3)])
    assert features == {
        "token_ids": [
            [START, A, B, END, C, D, A, B, END],
            [START, D, END, A, A, B, B, END],
        ],
        "segment_ids": [[0] * 4 + [1] * 5, [0] * 3 + [1] * 5],
        "first": [5, 6],
        "last": [6, 6],
    }
    inputs, targets = model.encode_text(pairs, [("da", 1), ("b", 3)])
    np.testing.assert_array_equal(targets, [[5, 6], [6, 6]])
    assert inputs["token_ids"].shape == (2, 9)


TEXTS = [
    "naïve 🚲 riders in Zürich",
    "e\u0301te\u0301 ﬁne ½ mile  of road",
    "日本語 text",
]
TOKENIZERS = {
    "unigram": SentencePieceTokenizer.train(TEXTS, 60),
    "bytes": SentencePieceTokenizer.train(
        ["a mile of road"], 290, algorithm="bpe", byte_fallback=True
    ),
    "bpe": FastTokenizer.train(["a mile of road"] * 3, 270),
    "wordpiece": FastTokenizer.train(TEXTS, 60, algorithm="wordpiece"),
    "character": FastTokenizer.train(TEXTS, 60, algorithm="character"),
}
reader = functools.cache(lambda name: task(TOKENIZERS[name]))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_an_answers_tokens_hold_all_of_it(data):
    model = reader(data.draw(st.sampled_from(sorted(TOKENIZERS))))
    tokenizer = model.tokenizer
    alphabet = st.sampled_from("aé🚲 e\u0301ﬁ½日\u200d. ")
    context = data.draw(st.text(alphabet, min_size=1, max_size=12))
    start = data.draw(st.integers(0, len(context) - 1))
    stop = data.draw(st.integers(start + 1, len(context)))
    (ids,), (offsets,) = tokenizer.encode_with_offsets([context])
    answer = context[start:stop].strip()
    if not answer or not ids:
        return
    start += len(context[start:stop]) - len(context[start:stop].lstrip())
    try:
        features = model.encode_examples([("é", context)], [(answer, start)])
    except ValueError as error:  # nothing but characters that the tokenizer drops
        assert "in no token" in str(error)
        return
    place = len(tokenizer.encode(["é"])[0]) + 2
    first, last = (features[name][0] - place for name in ("first", "last"))
    assert offsets[first][0] <= start or all(
        a >= offsets[first][0] or b <= start for a, b in offsets
    )
    assert (
        offsets[last][1] >= start + len(answer)
        or last == len(ids) - 1
        or all(b <= offsets[last][1] or a >= start + len(answer) for a, b in offsets)
    )


def test_a_long_context_is_read_in_windows_that_hold_the_answer():
    context = "".join(WORDS)[:60]
    model = task(positions="learned", max_sequence_length=20)
    pairs = [("ab", context)] * 3
    answers = [(context[i : i + 4], i) for i in (0, 20, 56)]
    features = model.encode_examples(pairs, answers)
    assert max(map(len, features["token_ids"])) <= 20
    seen = set()
    for row, first, last in zip(*features.values(), strict=True):
        seen.add("".join(TOKENIZER.tokens(row[first : last + 1])))
        assert row[:4] == [START, A, B, END] and row[-1] == END
    assert seen == {text for text, _ in answers}
    assert model.predict(pairs[:1], verbose=0)[0].shape == (2, 60)
    with pytest.warns(UserWarning, match="1 of 2 answers are longer than a window"):
        model.encode_examples(pairs[:2], [answers[0], (context[:40], 0)])
    with pytest.raises(ValueError, match="No window of 20 tokens holds a whole"):
        model.encode_examples(pairs[:1], [(context[:40], 0)])
    # Of a question as long as a window the end goes, not the context.
    (logits,) = model.predict([(context, "abc")], verbose=0)
    assert logits.shape == (2, 3)


# Predictions.


def test_it_learns_to_find_what_is_asked_for():
    # Where the letter of the question is.
    contexts = ["".join(each) for each in itertools.permutations("abcd")]
    pairs = [(letter, context) for context in contexts for letter in "abcd"]
    answers = [(letter, context.index(letter)) for letter, context in pairs]
    model = compiled(task(num_segments=2), keras.optimizers.Adam(0.02))
    model.fit(pairs, answers, epochs=15, batch_size=16, verbose=0)
    found = model.answer([("a", "dbca"), ("c", "cab")])
    assert [(each.text, each.start) for each in found] == [("a", 3), ("c", 0)]
    assert all(0.5 < each.score <= 1.0 for each in found)
    assert model.score(pairs, answers) == {"exact_match": 1.0, "f1": 1.0}
    scores = model.evaluate(pairs, answers, verbose=0, return_dict=True)
    assert scores["accuracy"] > 0.95


@given(st.integers(1, 9), st.integers(1, 12), st.integers(0, 1000))
def test_the_best_span_is_the_best_of_all_spans(length, limit, seed):
    logits = np.random.default_rng(seed).normal(size=(2, length)) * 3
    p, q = (np.exp(row) / np.exp(row).sum() for row in logits)
    spans = {
        (i, j): p[i] * q[j]
        for i in range(length)
        for j in range(i, min(length, i + limit))
    }
    first, last, score = best_span(logits, limit)
    assert score == pytest.approx(max(spans.values()))
    assert spans[first, last] == pytest.approx(score)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_an_answer_is_a_part_of_its_context(name):
    model = perturbed(task(TOKENIZERS[name], max_length=12))
    contexts = [*TEXTS, " \u3000x ", "🚲🚲🚲", "ﬁ"]
    pairs = [("wo?", context) for context in contexts]
    for answer, context in zip(model.answer(pairs), contexts, strict=True):
        assert answer.text == context[answer.start : answer.start + len(answer.text)]
        assert answer.text == answer.text.strip()
        assert 0.0 < answer.score <= 1.0
    short = model.answer(pairs, max_answer_length=1)
    offsets = TOKENIZERS[name].encode_with_offsets(contexts)[1]
    for answer, spans in zip(short, offsets, strict=True):
        assert (answer.start, answer.start + len(answer.text)) in spans


def test_logits_stand_at_the_context_alone():
    ids = np.array([[START, A, B, END, C, D, END, 0], [0, START, A, END, C, D, A, END]])
    logits = to_numpy(perturbed(task())({"token_ids": ids}))
    real = np.array([[0, 0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1, 1, 0]], bool)
    assert logits.shape == (2, 2, 8)
    for side in range(2):
        assert (logits[:, side][~real] < LOW).all()
        assert (np.abs(logits[:, side][real]) < 100).all()


def test_the_loss_is_the_mean_over_first_and_last_tokens():
    model = compiled(perturbed(task()), eager=True)
    pairs, answers = [("a", "bcd"), ("ab", "dd"), ("", "abab")], [
        ("cd", 1), ("d", 0), ("a", 2),
    ]  # fmt: skip
    expected = []
    for logits, (text, start) in zip(model.predict(pairs, verbose=0), answers):
        for row, place in zip(logits, (start, start + len(text) - 1), strict=True):
            expected.append(np.log(np.exp(row).sum()) - row[place])
    got = model.evaluate(pairs, answers, batch_size=3, verbose=0)[0]
    assert got == pytest.approx(np.mean(expected), rel=1e-5)
    inputs, targets = model.encode_text(pairs, answers)
    got = model.evaluate(inputs, targets, batch_size=3, verbose=0)[0]
    assert got == pytest.approx(np.mean(expected), rel=1e-5)
    model.fit(inputs, targets, verbose=0)


@pytest.mark.tensorflow
def test_a_pipeline_of_strings_is_read():
    import tensorflow as tf

    model = compiled(perturbed(task()), eager=True)
    pairs, answers = [("a", "bcd"), ("ab", "dd")], [("cd", 1), ("d", 0)]
    columns = (tuple(map(list, zip(*pairs))), tuple(map(list, zip(*answers))))
    dataset = tf.data.Dataset.from_tensor_slices(columns).batch(2)
    np.testing.assert_allclose(
        model.evaluate(dataset, verbose=0),
        model.evaluate(pairs, answers, verbose=0),
        rtol=1e-5,
    )


@pytest.mark.parametrize("positions", ["learned", "relative"])
def test_padding_on_either_side_and_other_rows_change_nothing(positions):
    model = perturbed(task(positions=positions, max_sequence_length=40, num_segments=2))
    ids = np.array([[START, A, B, END, C, D, END], [START, D, END, A, A, B, END]])
    expected = model.predict({"token_ids": ids}, verbose=0)
    for left, right in ((0, 3), (3, 0), (2, 5)):
        padded = np.pad(ids, ((0, 0), (left, right)))
        got = model.predict({"token_ids": padded}, verbose=0)[..., left : left + 7]
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
    texts = [("ab", "cdcd"), ("a", "b"), ("abab", "ddabc")]
    for text, rows in zip(texts, model.predict(texts, verbose=0), strict=True):
        assert np.abs(model.predict([text], verbose=0)[0] - rows).max() <= 1e-5


# Scores.


def test_the_best_of_several_references_counts(monkeypatch):
    model = task()
    answers = [
        kzoo.tasks.Answer("The cat!", 0, 1.0),
        kzoo.tasks.Answer("two dogs", 0, 1.0),
    ]
    monkeypatch.setattr(model, "answer", lambda x, **options: answers)
    pairs = [("a", "b")] * 2
    # "two dogs" and "dogs": precision 1/2, recall 1.
    got = model.score(pairs, [["a dog", "cat"], ("dogs", 4)])
    assert got == pytest.approx(dict(exact_match=0.5, f1=(1 + 2 / 3) / 2))
    assert model.score(pairs, [["cat", 3], [("dogs", 4), ("two dogs", 0)]]) == {
        "exact_match": 1.0, "f1": 1.0,
    }  # fmt: skip
    with pytest.raises(ValueError, match="none for example 1"):
        model.score(pairs, ["cat", []])
    cat, dogs = {"text": "cat", "answer_start": 3}, {"text": ["dogs"]}
    for count in (1, 2, 3):  # as SQuAD's own files list them
        found = model.score(pairs, [[cat] * count, [dogs, cat][:count]])
        assert found == model.score(pairs, ["cat", ["dogs", "cat"][:count]])
    arrays = np.array("cat"), ("dogs", np.array(4))
    assert model.score(pairs, arrays) == model.score(pairs, ["cat", "dogs"])
    for wrong in (None, float("nan"), [["cat"], None], {"answer_start": 3}):
        with pytest.raises(ValueError, match="answer to compare .* for example 1"):
            model.score(pairs, ["cat", wrong])


@pytest.mark.parametrize("dtype", ["mixed_float16", "float16", "mixed_bfloat16"])
def test_half_precision_has_an_answer(dtype):
    model, pairs = task(dtype=dtype), [("ab", "cdabcdab"), ("a", "b")]
    (logits, _), answers = model.predict(pairs), model.answer(pairs)
    assert np.isfinite(logits).all()
    for (_, context), answer in zip(pairs, answers, strict=True):
        start = answer.start
        assert answer.text == context[start : start + len(answer.text)] != ""
        assert 0 < answer.score <= 1


# Files.


@pytest.mark.parametrize(
    "format", ["onnx", pytest.param("tf_saved_model", marks=pytest.mark.tensorflow)]
)
def test_artifacts_name_both_logits(tmp_path, format):
    report = perturbed(task(num_segments=2)).export(tmp_path / "model", format)
    outputs = report.functions["forward"]["outputs"]
    assert sorted(outputs) == ["end_logits", "start_logits"]
    assert len(report.checks) >= 3
    for check in report.checks:
        # The tolerance is that of the context's logits, not of the low ones.
        assert check["difference"] <= 1e-4 and check["tolerance"] < 1e-2


def test_files_hold_the_task(tmp_path):
    model = compiled(perturbed(task(max_length=12, hidden_activation="tanh")))
    model.save_folder(tmp_path / "folder")
    model.save(tmp_path / "model.keras")
    pairs = [("ab", "cdabcdabcd"), ("a", "b")]
    expected = model.answer(pairs)
    for loaded in (
        kzoo.load_task(tmp_path / "folder"),
        kzoo.load_model(tmp_path / "model.keras"),
    ):
        assert type(loaded) is kzoo.QuestionAnswering
        assert loaded.options == model.options
        for got, want in zip(loaded.answer(pairs), expected, strict=True):
            assert got[:2] == want[:2] and got.score == pytest.approx(want.score)


# Refusals.


def test_what_does_not_fit_is_named():
    model = compiled(task(), eager=True)
    pair = ("a", "abc")
    for answer, wrong in (
        (("bc", 0), "'bc' at 0 of example 1, where the context has 'ab'"),
        (("c", -1), "'c' at -1"),
        (("", 1), "'' at 1"),
        (None, "every question has one. Received: None for example 1"),
        ("bc", "Received: 'bc' for example 1"),
        (("bc", 1.9), r"Received: \('bc', 1.9\) for example 1"),
        ({"text": [], "answer_start": []}, r"Received: \[None, None\] for example 1"),
        ({"text": ["bc"]}, r"Received: \['bc', None\] for example 1"),
        ({"text": None, "answer_start": 1}, r"Received: \[None, 1\] for example 1"),
        (("bc", float("nan")), r"Received: \('bc', nan\) for example 1"),
    ):
        with pytest.raises(ValueError, match=wrong):
            model.fit([pair, pair], [("b", 1), answer], verbose=0)
    with pytest.raises(ValueError, match="a target for each of 1 examples.*none"):
        model.fit([pair])
    with pytest.raises(ValueError, match="reads pairs of texts.*'ab' as example 0"):
        model.predict(["ab"])
    with pytest.raises(ValueError, match="at least one token.*Received: ' ' for ex"):
        model.answer([("a", " ")])
    with pytest.raises(ValueError, match="label_smoothing=0.1"):
        model.compile(label_smoothing=0.1)
    with pytest.raises(
        ValueError, match="max_answer_length must be an integer .* Received: 0"
    ):
        model.answer([pair], max_answer_length=0)
    with pytest.raises(ValueError, match="must be at least 8.*Received: 7"):
        task(max_length=7)


def test_weights_are_of_examples_however_many_windows_hold_an_answer():
    model = task(max_length=9)
    # The first answer fits no window; the second stands where two overlap.
    long, twice = ("a", "abcdabcdabcd"), ("a", "abcdabcd")
    x, y = [long, twice], [("abcdabcdabcd", 0), ("d", 3)]
    with pytest.warns(UserWarning, match="1 of 2 answers are longer"):
        rows = len(model.encode_examples(x, y)["first"])
    assert model._examples_of_rows(x, y) == [1] * rows and rows > 1
    model.compile(keras.optimizers.SGD(0.0), run_eagerly=EAGER)
    with pytest.warns(UserWarning, match="1 of 2 answers"):
        heavy = model.evaluate(x, y, sample_weight=[7.0, 1.0], verbose=0)
    light = model.evaluate([twice], [y[1]], verbose=0)
    assert heavy == pytest.approx(light)
    with pytest.raises(ValueError, match="a number for each of 1 examples"):
        model.evaluate([twice], [y[1]], sample_weight=[1.0, 1.0])


def test_answers_may_be_as_squad_has_them():
    model = perturbed(task())
    x = [("a", "abcd"), ("b", "dcba")]
    found = [answer.text for answer in model.answer(x)]
    y = [{"text": ["no", text], "answer_start": [0, 0]} for text in found]
    assert model.score(x, y) == {"exact_match": 1.0, "f1": 1.0}
    y = [
        {"text": ["bc", "c"], "answer_start": [1, 2]},
        {"text": np.array(["a"]), "answer_start": np.array([3.0])},
    ]
    model.encode_examples(x[:1], [{"text": "bc", "answer_start": 1}])
    found, expected = (model.encode_examples(x, t) for t in (y, [("bc", 1), ("a", 3)]))
    assert found.keys() == expected.keys()
    for name, rows in expected.items():
        np.testing.assert_array_equal(found[name], rows)
