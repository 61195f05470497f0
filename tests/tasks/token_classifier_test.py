"""Words have labels: aligned, whole however long, and right under padding."""

import grain
import keras
import numpy as np
import pytest

import kzoo
from kzoo.tokenizers import FastTokenizer, SentencePieceTokenizer
from tests.harness import perturb
from tests.words import EAGER, TOKENIZER, WORDS, compiled

START, END, UNKNOWN = 1, 2, 3
SMALL = dict(num_layers=1, hidden_dim=16, intermediate_dim=16, num_heads=2, dropout=0.0)
LABELS = ["O", "B-X", "I-X"]
A, B, C, D = (TOKENIZER.encode([letter])[0][0] for letter in "abcd")
# A word's label is the place of its first letter.
SENTENCES = [WORDS[i : i + 1 + i % 5] for i in range(0, 60, 2)]
TAGS = [[LABELS["abc".find(word[0])] for word in words] for words in SENTENCES]


def task(tokenizer=TOKENIZER, **changes):
    options = {"labels": LABELS, **SMALL, **changes}
    return kzoo.TokenClassifier.from_size(
        "tiny",
        tokenizer,
        vocabulary_size=TOKENIZER.vocabulary_size if tokenizer is None else None,
        name="tagger",
        **options,
    )


def perturbed(model):
    perturb(model.named_variables().values())
    return model


# Alignment.


def test_the_first_piece_of_a_word_has_its_label():
    # The tokenizer writes a letter a piece, and a space is unknown to it.
    features = task().encode_examples([["ab", "c"], "d ab"], [["B-X", "O"], ["I-X", 1]])
    assert features == {
        "token_ids": [
            [START, A, B, UNKNOWN, C, END],
            [START, D, UNKNOWN, A, B, END],
        ],
        "targets": [[-1, 1, -1, 0, -1, -1], [-1, 2, 1, -1, -1, -1]],
    }
    segments = task(num_segments=2).encode_examples(["a b"])["segment_ids"]
    assert segments == [[0] * 5]
    assert task().encode_examples(["c"], ["I-X"])["targets"] == [[-1, 2, -1]]


@pytest.mark.parametrize(
    "tokenizer",
    [
        SentencePieceTokenizer.train(["a bike is wet"] * 3, 40),
        FastTokenizer.train(["a bike is wet"] * 3, 60, algorithm="wordpiece"),
        FastTokenizer.train(["a bike is wet"] * 3, 270),
    ],
    ids=["sentencepiece", "wordpiece", "bpe"],
)
def test_a_word_without_a_piece_shifts_no_label(tokenizer):
    words = ["a", "\u200b", "bike", " ", "", "is", "wet"]
    model = task(tokenizer)
    labels = [0, 1, 2, 0, 1, 2, 1]
    features = model.encode_examples([words], [labels])
    (targets,), (ids,) = features["targets"], features["token_ids"]
    assert [t for t in targets if t >= 0] == labels
    pieces = ["".join(tokenizer.tokens([i])).strip(" ▁#") for i in ids]
    first = {
        words[n]: pieces[i]
        for n, i in enumerate(np.flatnonzero(np.array(targets) >= 0))
    }
    for word in ("bike", "is", "wet"):
        # Its own piece, or the space in front of it.
        assert first[word] == "" or word.startswith(first[word])
    assert [row.shape for row in model.predict([words], verbose=0)] == [(7, 3)]


def test_pieces_are_those_of_the_word_in_its_sentence():
    texts = ["the bike is red", "a red bike, a wet street"]
    for tokenizer in (
        SentencePieceTokenizer.train(texts, 40),
        FastTokenizer.train(texts, 290),
        FastTokenizer.train(texts, 60, algorithm="wordpiece"),
        FastTokenizer.train(texts, 60, algorithm="character"),
    ):
        features = task(tokenizer).encode_examples(texts)
        for ids, text in zip(features["token_ids"], texts, strict=True):
            assert ids[1:-1] == tokenizer.encode([text])[0]


# Long sentences.


def test_a_long_sentence_is_learned_and_labelled_whole():
    words = [WORDS[i % 80] for i in range(37)]
    labels = [i % 3 for i in range(37)]
    model = perturbed(task(positions="learned", max_sequence_length=14))
    features = model.encode_examples([["ab"], words], [[2], labels])
    assert max(map(len, features["token_ids"])) <= 14
    assert all(row[0] == START and row[-1] == END for row in features["token_ids"])
    targets = [t for row in features["targets"][1:] for t in row if t >= 0]
    assert targets == labels  # each once, in order
    got = model.predict([words, ["ab"]], verbose=0)
    assert [row.shape for row in got] == [(37, 3), (1, 3)]
    # The first window ends where the tokens are full; its first word is its own.
    inputs = {"token_ids": np.array(features["token_ids"][1:2])}
    row = model.predict(inputs, verbose=0)[0]
    np.testing.assert_allclose(got[0][0], row[1], atol=1e-5)
    giant = model.tag([["a", "abcd" * 20, "b"]])
    assert len(giant[0]) == 3


# Training and predictions.


def test_it_learns_from_words_and_tags_them():
    model = compiled(task(positions="relative"), keras.optimizers.Adam(0.02))
    history = model.fit(
        SENTENCES, TAGS, epochs=15, batch_size=10, verbose=0,
        validation_data=(SENTENCES[:5], TAGS[:5]),
    ).history  # fmt: skip
    assert history["accuracy"][-1] > 0.95 and history["val_accuracy"][-1] > 0.95
    assert model.tag(["ab bcd", ["cab"]]) == [["O", "B-X"], ["I-X"]]
    labels, probabilities = model.tag(["ab bcd"], return_probabilities=True)
    assert [LABELS[i] for i in probabilities[0].argmax(-1)] == labels[0]
    np.testing.assert_allclose(probabilities[0].sum(-1), 1.0, rtol=1e-5)
    assert model.score(SENTENCES, TAGS)["accuracy"] > 0.95


def test_strings_ids_and_pipelines_have_the_same_loss():
    model = compiled(perturbed(task()), eager=True)
    sentences, tags = SENTENCES[:9], TAGS[:9]
    expected = model.evaluate(sentences, tags, batch_size=4, verbose=0)
    inputs, targets = model.encode_text(sentences, tags)
    got = model.evaluate(inputs, targets, batch_size=9, verbose=0)
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    rows = list(zip(map(" ".join, sentences), map(" ".join, tags), strict=True))
    dataset = grain.MapDataset.source(rows).batch(9)
    np.testing.assert_allclose(model.evaluate(dataset, verbose=0), expected, rtol=1e-5)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        dataset = tf.data.Dataset.from_tensor_slices(tuple(map(list, zip(*rows))))
        got = model.evaluate(dataset.batch(9), verbose=0)
        np.testing.assert_allclose(got, expected, rtol=1e-5)
    before = model.get_weights()
    model.fit(inputs, targets, verbose=0)
    assert any((a != b).any() for a, b in zip(before, model.get_weights()))


def test_accuracy_and_entities_are_counted_by_hand(monkeypatch):
    model = task()
    answers = [["B-X", "I-X", "O", "B-X"], ["O", "O"]]
    logits = [np.eye(3)[[LABELS.index(tag) for tag in row]] for row in answers]
    monkeypatch.setattr(model, "predict", lambda x, **options: logits)
    y = [["B-X", "I-X", "B-X", "O"], ["O", "B-X"]]
    # Right words: 3 of 6. Found 2 entities, 1 of them right; there are 3.
    scores = model.score(["a b c d", "a b"], y)
    assert scores == pytest.approx(
        dict(accuracy=0.5, precision=1 / 2, recall=1 / 3, f1=0.4)
    )
    plain = task(labels=["X", "Y", "Z"])
    monkeypatch.setattr(plain, "predict", lambda x, **options: logits)
    assert plain.score(["a b c d", "a b"], [[1, 2, 0, 1], [0, 0]]) == {"accuracy": 1.0}


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_missing_labels_are_named(missing):
    model = compiled(task(), eager=True)
    for verb in (model.score, model.fit):
        with pytest.raises(ValueError, match="labels are a list.*for sentence 1"):
            verb(["a b", "a"], [["O", "O"], missing])


@pytest.mark.parametrize("positions", ["learned", "relative"])
def test_padding_on_either_side_and_other_rows_change_nothing(positions):
    model = perturbed(task(positions=positions, max_sequence_length=40))
    ids = np.array([[START, A, B, UNKNOWN, C, END], [START, D, A, A, B, END]])
    expected = model.predict({"token_ids": ids}, verbose=0)
    for left, right in ((0, 3), (3, 0), (2, 5)):
        padded = np.pad(ids, ((0, 0), (left, right)))
        got = model.predict({"token_ids": padded}, verbose=0)[:, left : left + 6]
        assert np.abs(got - expected).max() <= 1e-5
    alone = model.predict({"token_ids": ids[1:]}, verbose=0)
    assert np.abs(alone - expected[1:]).max() <= 1e-5
    texts = [["ab", "cd"] * 3, ["d"], ["abc", "a", "b"]]
    together = model.predict(texts, verbose=0)
    for text, rows in zip(texts, together, strict=True):
        assert np.abs(model.predict([text], verbose=0)[0] - rows).max() <= 1e-5


# Files.


@pytest.mark.parametrize(
    "format", ["onnx", pytest.param("tf_saved_model", marks=pytest.mark.tensorflow)]
)
def test_artifacts_give_the_logits_of_every_token(tmp_path, format):
    model = perturbed(task(num_segments=2, hidden_activation="gelu"))
    report = model.export(tmp_path / "model", format)
    assert len(report.checks) >= 3
    assert all(check["difference"] <= 1e-4 for check in report.checks)
    assert list(report.functions["forward"]["outputs"]) == ["logits"]


def test_files_hold_the_task(tmp_path):
    model = compiled(perturbed(task(max_length=12, hidden_activation="tanh")))
    model.save_folder(tmp_path / "folder")
    model.save(tmp_path / "model.keras")
    expected = model.predict(SENTENCES[:5], verbose=0)
    for loaded in (
        kzoo.load_task(tmp_path / "folder"),
        kzoo.load_model(tmp_path / "model.keras"),
    ):
        assert type(loaded) is kzoo.TokenClassifier
        assert loaded.options == model.options and loaded.labels == LABELS
        for got, want in zip(loaded.predict(SENTENCES[:5], verbose=0), expected):
            np.testing.assert_allclose(got, want, atol=1e-6)


# Refusals.


def test_what_does_not_fit_is_named():
    model = compiled(task(), eager=True)
    with pytest.raises(ValueError, match="2 words and 1 labels in sentence 1, "):
        model.fit([["a"], ["a", "b"]], [["O"], ["O"]])
    with pytest.raises(ValueError, match="Received: 'NOUN' for sentence 0, word 1"):
        model.fit([["a", "b"]], [["O", "NOUN"]])
    with pytest.raises(ValueError, match="a target for each of 2 examples.*none"):
        model.fit([["a"], ["b"]])
    for sentences in ([["a"], []], [[], ["a"]], ["a", " "]):
        with pytest.raises(ValueError, match="at least one word.*none in sentence"):
            model.predict(sentences, verbose=0)
    with pytest.raises(ValueError, match="lists of words, or strings.*ndarray"):
        model.tag(np.array([[1, 2]]))
    with pytest.raises(ValueError, match="has no tokenizer"):
        task(None).predict([["a"]])
    with pytest.raises(ValueError, match="either labels"):
        task(labels=None)
    with pytest.raises(ValueError, match="at least 3. Received: 2"):
        task(positions="learned", max_sequence_length=2)
    with pytest.raises(
        TypeError, match="7 of type int as word 1 of the sentence at index 0"
    ):
        model.predict([["a", 7]])


def test_a_subclass_encodes_examples_and_weights_are_of_sentences():
    class Counting(kzoo.TokenClassifier):
        calls = 0

        def encode_examples(self, x, y=None):
            self.calls += 1
            return super().encode_examples(x, y)

    sizes = dict(num_layers=1, hidden_dim=16, intermediate_dim=16, dropout=0.0)
    model = Counting.from_size(
        "tiny", TOKENIZER, labels=["X", "Y"], max_length=6, head_dropout=0.0, **sizes
    )
    model.compile(keras.optimizers.SGD(0.0), run_eagerly=EAGER)
    long, short = ["ab"] * 6, ["cd"]
    x, y = [long, short], [["X"] * 6, ["Y"]]
    assert len(model.encode_examples(x)["token_ids"]) > 2
    calls = model.calls
    weighted = model.evaluate(x, y, sample_weight=[1.0, 0.0], verbose=0)
    assert model.calls == calls + 1
    alone = model.evaluate([long], [y[0]], verbose=0)
    assert weighted[0] == pytest.approx(alone[0])  # Keras's metrics have no weights


def test_targets_of_arrays_are_classes():
    """The loss of others would be NaN; -100 means none elsewhere, and here -1 does."""
    x = {"token_ids": np.array([[START, A, END]], "int32")}
    model = compiled(task(), eager=True)
    model.fit(x, np.array([[-1, 2, -1]]), verbose=0)
    for wrong in (-100, 3):
        y = np.array([[-1, wrong, 0]])
        message = rf"tagger are classes in \[0, 3\), or -1 .* Received: \[{wrong}\]"
        for given in (dict(y=y), dict(y=x["token_ids"] * 0, validation_data=(x, y))):
            with pytest.raises(ValueError, match=message):
                model.fit(x, **given, verbose=0)
        for array in (y, keras.ops.convert_to_tensor(y)):
            with pytest.raises(ValueError, match=message):
                model.evaluate(x, array, verbose=0)
    ignoring = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, ignore_class=-100
    )
    model.compile(loss=ignoring, run_eagerly=EAGER)
    found = model.evaluate(x, np.array([[-100, 2, 0]]), return_dict=True, verbose=0)
    assert np.isfinite(found["loss"])
    single = kzoo.TextClassifier.from_size(
        "tiny", vocabulary_size=9, num_classes=2, name="classes", **SMALL
    )
    single.compile(run_eagerly=EAGER)
    with pytest.raises(ValueError, match=r"classes in \[0, 2\), .* Received: \[2\]"):
        single.fit(x, np.array([2]), verbose=0)
