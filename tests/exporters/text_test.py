"""Artifacts that take and give text: the tokenizer is in the graph, and exact."""

import json
import subprocess
import sys
from concurrent.futures import Future

import keras
import numpy as np
import onnx
import pytest
import tokenizers

import kzoo
from kzoo.exporters import (
    ExportError,
    ExportReport,
    agreement,
    answers_from,
    checks,
    onnx_session,
    verify,
)
from kzoo.exporters import onnx as onnx_export
from kzoo.exporters import text as text_export
from kzoo.exporters.quantize import Matrices
from kzoo.exporters.text import check, functions
from kzoo.exporters.text.codecs import (
    BytePairCodec,
    SentencePieceCodec,
    codec_of,
    word_table,
)
from kzoo.generation import REQUIRED
from kzoo.tokenizers import FastTokenizer, SentencePieceTokenizer, Template
from tests.harness import perturb

SMALL = dict(num_layers=1, hidden_dim=16, intermediate_dim=32, num_heads=4)
pytestmark = pytest.mark.usefixtures("remembered")
CORPUS = [
    "A man rides a bike on the road.",
    "the quick brown fox jumps over the lazy dog, isn't it?",
    "Ein Mann fährt auf der Straße über Größe.",
    "日本語 テスト 中文 です",
    "i'm here; you're there: 1234 5678 90",
    "Zwei Männer stehen am Herd und bereiten Essen zu.",
    "emoji 😀 and é à ü ñ",
]
TRAINED = {
    "character": (FastTokenizer, 150, dict(algorithm="character")),
    "character, lower": (
        FastTokenizer,
        150,
        dict(algorithm="character", lowercase=True),
    ),
    "bpe": (FastTokenizer, 350, {}),
    "bpe, lower": (FastTokenizer, 350, dict(lowercase=True, mask_token=True)),
    "wordpiece": (FastTokenizer, 300, dict(algorithm="wordpiece")),
    "wordpiece, lower": (
        FastTokenizer,
        300,
        dict(algorithm="wordpiece", lowercase=True),
    ),
    "unigram": (SentencePieceTokenizer, 200, {}),
    "unigram, bytes": (SentencePieceTokenizer, 400, dict(byte_fallback=True)),
    "sentencepiece bpe": (SentencePieceTokenizer, 200, dict(algorithm="bpe")),
    "case-folded": (
        SentencePieceTokenizer,
        200,
        dict(normalization="nmt_nfkc_cf", mask_token=True),
    ),
    "not normalized": (SentencePieceTokenizer, 200, dict(normalization="identity")),
}


@pytest.fixture(scope="module")
def trained():
    """A tokenizer by its name in `TRAINED`, trained once."""
    made = {}

    def train(name):
        if name not in made:
            kind, size, options = TRAINED[name]
            made[name] = kind.train(CORPUS * 3, size, **options)
        return made[name]

    return train


def make(kind, tokenizer, **changes):
    model = kind.from_size("tiny", tokenizer, **SMALL | changes)
    perturb(model.named_variables().values())
    return model


def session_of(path):
    return onnx_session.open_session(path)


@pytest.mark.parametrize("name", TRAINED)
def test_onnx_reads_and_writes_as_the_tokenizer(trained, name):
    tokenizer = trained(name)
    codec = codec_of(tokenizer, "onnx")
    check.check_codec(codec, writes=True)


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    "name", ["character, lower", "wordpiece, lower", "unigram, bytes", "case-folded"]
)
def test_tensorflow_reads_and_writes_as_the_tokenizer(trained, name):
    codec = codec_of(trained(name), "tf_saved_model")
    check.check_codec(codec, writes=True)


def test_ids_beyond_the_tokenizer_write_nothing(tmp_path, quick, trained):
    """Published checkpoints pad their tables of ids."""
    tokenizer, path = trained("character"), tmp_path / "model.onnx"
    size = tokenizer.vocabulary_size
    model = make(kzoo.CausalLM, tokenizer, vocabulary_size=size + 13, tie_head=False)
    model.export(path, format="onnx", text=True)
    known = tokenizer.encode(["man"])[0][1]
    forced = np.array([[known, size + 12, size, known]])
    feed = {"max_new_tokens": np.array(4), "forced_token_ids": forced}
    (text, _) = session_of(path).run(None, {"text": ["a"], **feed})
    assert text.tolist() == [["aa"]]


@pytest.mark.tensorflow
def test_tensorflow_has_no_byte_level_pairs(tmp_path, trained):
    model = make(kzoo.CausalLM, trained("bpe"))
    with pytest.raises(ExportError, match="byte-pair encoding: TensorFlow Text has no"):
        model.export(tmp_path / "x", text=True)


def test_every_character_is_normalized_as_bert_does():
    tokenizer = FastTokenizer.train(
        CORPUS, 300, algorithm="wordpiece", lowercase=True
    )._tokenizer
    described = json.loads(tokenizer.to_str())
    table = word_table(
        json.dumps(described["normalizer"]), json.dumps(described["pre_tokenizer"])
    )
    codes = np.random.default_rng(0).integers(0, 0x110000, 3000)
    for character in map(chr, [*range(0x3100), *codes]):
        if "\ud800" <= character <= "\udfff":
            continue
        text = tokenizer.normalizer.normalize_str(f"x{character}y")
        split = tokenizer.pre_tokenizer.pre_tokenize_str(text)
        expected = [word for word, _ in split]
        assert f"x{table.get(character, character)}y".split(" ") != [""]
        found = f"x{table.get(character, character)}y".split()
        assert found == expected, hex(ord(character))


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    ("kind", "name", "changes"),
    [
        (kzoo.Seq2SeqLM, "unigram, bytes", {}),
        (kzoo.CausalLM, "bpe", dict(positions="learned")),
    ],
)
def test_onnx_generates_the_text_that_keras_generates(
    tmp_path, quick, trained, kind, name, changes
):
    model = make(kind, trained(name), **changes)
    path = tmp_path / "model.onnx"
    report = model.export(path, format="onnx", text=True)
    assert report.text and all(c["texts_equal"] for c in report.checks)
    assert "needs onnxruntime-extensions" in str(report)
    session = session_of(path)
    (text,) = session.get_inputs()
    assert (text.name, text.type, text.shape) == ("text", "tensor(string)", ["batch"])
    prompts = ["A man rides", "", "  über  the 日本 😀 dog", "isn't it?"]
    for options in (
        dict(max_new_tokens=6),
        dict(max_new_tokens=5, beams=3, num_return_sequences=2, length_penalty=0.6),
        dict(max_new_tokens=5, temperature=1.2, seed=4),
    ):
        expected, scores = model.generate(prompts, return_scores=True, **options)
        dtypes = dict(length_penalty="f", temperature="f")
        feed = {k: np.array(v, dtypes.get(k, "i8")) for k, v in options.items()}
        feed["text"] = np.array(prompts, object)
        got, got_scores = session.run(None, feed)
        if "num_return_sequences" not in options:
            got, got_scores = got[:, 0], got_scores[:, 0]
        assert got.tolist() == expected
        np.testing.assert_allclose(got_scores, scores, atol=1e-4)
        one = session.run(None, {**feed, "text": feed["text"][:1]})[0]
        assert one.ravel().tolist() == got[:1].ravel().tolist()


def test_a_classifier_gives_labels(tmp_path, quick, trained):
    model = make(
        kzoo.TextClassifier,
        trained("wordpiece, lower"),
        labels=["bad", "gut", "日本"],
        num_segments=2,
        max_length=12,
    )
    report = model.export(tmp_path / "model", format="onnx", text=True)
    assert set(report.functions) == {"forward", "forward_pairs"}
    metadata = {
        p.key: p.value
        for p in onnx.load(tmp_path / "model" / "forward.onnx").metadata_props
    }
    assert json.loads(metadata["labels"]) == ["bad", "gut", "日本"]
    assert metadata["needs"].startswith("onnxruntime-extensions ")
    first = ["A man rides a bike on the road and rides and rides", "", "Größe", "x y"]
    second = ["the dog", "a " * 30, "", "QUICK brown fox; " * 5]
    for name, feed, inputs in (
        ("forward", dict(text=first), first),
        ("forward_pairs", dict(first=first, second=second), list(zip(first, second))),
    ):
        session = session_of(tmp_path / "model" / f"{name}.onnx")
        feed = {key: np.array(value, object) for key, value in feed.items()}
        label, probabilities = session.run(["label", "probabilities"], feed)
        expected, values = model.classify(inputs, return_probabilities=True)
        assert label.tolist() == expected
        np.testing.assert_allclose(probabilities, values, atol=1e-5)
    again = verify(tmp_path / "model", model)
    assert [c["case"] for c in again.checks] == [c["case"] for c in report.checks]
    assert again.text and again.needs == report.needs
    perturb(model.named_variables().values(), seed=9)
    with pytest.raises(ExportError, match="differs|in Keras"):
        verify(tmp_path / "model", model)


QUANTISED = dict(hidden_dim=48, intermediate_dim=192)


@pytest.mark.parametrize("mode", ["int8", "float16"])
def test_a_quantised_generator_of_text(tmp_path, quick, trained, mode):
    model = make(kzoo.Seq2SeqLM, trained("unigram"), **QUANTISED)
    path, texts = tmp_path / "model", ["A man rides", "the dog"]
    report = model.export(
        path,
        format="onnx",
        text=True,
        quantize=mode,
        evaluate=(texts, texts) if mode == "int8" else None,
    )
    assert report.text and report.quantize == mode and report.needs
    assert report.weight_bytes < report.float32_weight_bytes
    assert 0.5 <= report.token_agreement <= 1 and report.label_agreement is None
    assert set(report.latency["generate"]) == {"float32", mode}
    assert report.functions["generate"]["inputs"]["text"][0] == "tensor(string)"
    assert set(report.metric) == ({"model", "artifact"} if mode == "int8" else set())
    if mode != "int8":
        return
    with answers_from(model, {"generate": session_of(path / "generate.onnx")}):
        written = model.generate(texts, max_new_tokens=4, stop="e")
    assert len(written) == 2 and not any("e" in text for text in written)
    again = verify(path, model, ["isn't it?", "Größe"])
    assert again.text and again.quantize == mode and again.needs == report.needs
    assert [c["rows"] for c in again.checks if "rows" in c] == [2]


@pytest.mark.usefixtures("eager")
def test_an_artifact_of_text_answers_in_batches_as_keras_does(tmp_path, quick, trained):
    positions = dict(positions="learned", max_sequence_length=48)
    model = make(kzoo.CausalLM, trained("wordpiece"), **positions)
    model.export(tmp_path / "m.onnx", format="onnx", text=True)
    onnx.checker.check_model(tmp_path / "m.onnx", full_check=True)
    sessions = {"generate": session_of(tmp_path / "m.onnx")}
    texts = ["A man", "the dog", "", "a bike on the road"]
    every = dict(temperature=3.0, seed=5), dict(forced_prefix=["a", "the", "", "man"])
    for options in (*every, dict(beams=3, num_return_sequences=2), every[0] | every[1]):
        options |= dict(max_new_tokens=5)
        expected = model.generate(texts, **options)
        with answers_from(model, sessions):
            for size in (2, 3, 9):
                assert model.generate(texts, batch_size=size, **options) == expected
    expected = model.generate("A man")  # as many tokens as the positions leave
    with answers_from(model, sessions):
        assert model.generate("A man") == expected
        with pytest.raises(ValueError, match="one for each of 3 prompts. Received: 2"):
            model.generate(texts[:3], forced_prefix=["a", "the"])
        with pytest.raises(ValueError, match="needs at least one prompt"):
            model.generate([])


def test_a_quantised_classifier_of_text(tmp_path, quick, trained, monkeypatch):
    labels = ["bad", "gut", "日本"]
    model = make(kzoo.TextClassifier, trained("wordpiece"), labels=labels, **QUANTISED)
    texts = [*CORPUS, "a man", "the fox", "road"]
    path, y = tmp_path / "model", [*labels, *model.classify(texts)[3:]]
    report = model.export(
        path, format="onnx", text=True, quantize="int4", evaluate=(texts, y)
    )
    assert set(report.functions) == {"forward", "forward_pairs"}
    assert 0.3 <= report.label_agreement <= 1 and report.token_agreement is None
    assert "of the labels are the model's" in str(report)
    assert report.metric["model"]["accuracy"] >= 0.7
    session = session_of(path / "forward.onnx")
    (found,) = session.run(["label"], {"text": np.array(texts, object)})
    right = np.mean(found == np.array(y, object))
    assert report.metric["artifact"]["accuracy"] == pytest.approx(right)
    assert verify(path, model).label_agreement == report.label_agreement
    each = iter(([True] * 3, [False]))
    monkeypatch.setattr(agreement, "_verify_text", lambda *_: next(each))
    assert verify(path, model).label_agreement == 0.75  # of the texts of both functions


def test_a_quantised_file_of_text_that_computes_another_thing_is_refused(
    tmp_path, quick, trained, monkeypatch
):
    right = Matrices.quantize

    def broken(self, graph):
        right(self, graph)
        # The graph of ids, which is judged by itself, stays right.
        if graph.inputs[0][0].name == "text":
            name = "encoder/layer_0/self_attention/output/kernel/int8_scale"
            dtype, shape, read = graph.initializers[name]
            graph.initializers[name] = dtype, shape, lambda: read() * 0.5

    monkeypatch.setattr(Matrices, "quantize", broken)
    model = make(kzoo.SentenceEmbedder, trained("unigram"), **QUANTISED)
    with pytest.raises(ExportError, match="embedding differs by"):
        model.export(tmp_path / "m", format="onnx", text=True, quantize="int8")
    assert list(tmp_path.iterdir()) == []


def test_a_score_that_needs_ids_is_refused_by_name(tmp_path, trained):
    model = make(kzoo.CausalLM, trained("unigram"))
    with pytest.raises(ExportError, match="score asks for 'forward'.*Export ids, or"):
        model.export(tmp_path / "m", format="onnx", text=True, evaluate=(["a man"],))
    assert list(tmp_path.iterdir()) == []


def test_labels_are_in_the_metadata_of_files_that_take_ids(tmp_path):
    model = make(kzoo.TokenClassifier, None, labels=["O", "B"], vocabulary_size=20)
    model.export(tmp_path / "model.onnx", format="onnx")
    metadata = session_of(tmp_path / "model.onnx").get_modelmeta().custom_metadata_map
    assert json.loads(metadata["labels"]) == ["O", "B"]


def test_numbers_vectors_and_scores(tmp_path, quick, trained):
    tokenizer, pairs = trained("unigram"), [("A man", "a dog"), ("", "über")]
    embedder = make(kzoo.SentenceEmbedder, tokenizer)
    scorer = make(kzoo.PairScorer, tokenizer, output_activation="sigmoid")
    regressor = make(kzoo.TextRegressor, tokenizer)
    first, second = map(list, zip(*pairs))
    for model, feed, name, expected in (
        (embedder, dict(text=first), "embedding", embedder.embed(first)),
        (
            scorer,
            dict(first=first, second=second),
            "scores",
            scorer.predict(pairs)[:, 0],
        ),
        (regressor, dict(text=first), "value", regressor.predict(first)[:, 0]),
    ):
        path = tmp_path / f"{name}.onnx"
        model.export(path, format="onnx", text=True, functions="forward")
        feed = {key: np.array(value, object) for key, value in feed.items()}
        (got,) = session_of(path).run([name], feed)
        np.testing.assert_allclose(got, expected, atol=1e-5)


@pytest.mark.tensorflow
def test_a_saved_model_takes_and_gives_text(tmp_path, quick, trained):
    import tensorflow as tf

    positions = dict(positions="learned", max_sequence_length=64)
    model = make(kzoo.CausalLM, trained("unigram, bytes"), **positions)
    report = model.export(tmp_path / "model", text=True)
    assert "fresh process" in report.runtime  # of TensorFlow, and of what it needs
    assert report.needs[0].startswith("tensorflow-text ")
    assert report.functions["serving_default"]["inputs"] == {"text": ["string", [None]]}
    assert all(c["texts_equal"] for c in report.checks)
    prompts = ["A man rides", "", "  über 日本 😀\0 dog"]
    served = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
    found = served(text=tf.constant(prompts))["generated_text"].numpy().tolist()
    limit = model.room(128)
    expected = model.generate(prompts, max_new_tokens=limit)
    assert [[text.decode() for text in row] for row in found] == [
        [text] for text in expected
    ]


@pytest.mark.parametrize("mode", [None, "int8"])
def test_a_null_ends_no_text_silently(tmp_path, quick, trained, mode):
    model = make(kzoo.SentenceEmbedder, trained("unigram"))
    model.export(tmp_path / "model.onnx", format="onnx", text=True, quantize=mode)
    session = session_of(tmp_path / "model.onnx")
    with pytest.raises(Exception, match="Name:'text must have no NUL character"):
        session.run(None, {"text": np.array(["fine", "a\0b"], object)})
    with pytest.raises(ExportError, match=r"^second, 'a\\x00b': .*NUL character"):
        verify(tmp_path / "model.onnx", model, {"first": "fine", "second": "a\0b"})


def test_a_name_that_the_operator_knows_is_text(tmp_path, quick, trained):
    """GPT-2's end of a text: in what a user writes it ends and begins nothing."""
    model = make(kzoo.TextClassifier, trained("bpe"), labels=["a", "b"], max_length=24)
    name, path = "<|endoftext|>", tmp_path / "model.onnx"
    report = model.export(path, format="onnx", text=True)
    assert any("functions='forward_pairs' takes two" in note for note in report.notes)
    texts = ["man {} rides", "{}", "", "{0}{0} a{0}", "a" + " {0}" * 9]
    texts = [text.format(name) for text in texts]
    expected = model.classify(texts, return_probabilities=True)
    label, found = session_of(path).run(None, {"text": np.array(texts, object)})
    assert label.tolist() == expected[0]
    np.testing.assert_allclose(found, expected[1], atol=1e-5)


@pytest.mark.parametrize("name", ["bpe", "character", "wordpiece", "unigram"])
def test_a_pair_may_have_an_empty_side(tmp_path, quick, trained, name):
    """In all of a batch: no row of it has a token of that side."""
    model = make(kzoo.TextClassifier, trained(name), labels=["a", "b"], max_length=12)
    report = model.export(tmp_path / "model", format="onnx", text=True)
    cases = {c["case"] for c in report.checks if c["function"] == "forward_pairs"}
    assert {"first is empty", "second is empty"} <= cases
    session = session_of(tmp_path / "model" / "forward_pairs.onnx")
    long = "A man rides a bike on the road and rides and rides"
    for first, second in (([long], [""]), (["", ""], [long, "a"]), ([""], [""])):
        feed = {"first": np.array(first, object), "second": np.array(second, object)}
        label, found = session.run(["label", "probabilities"], feed)
        pairs = list(zip(first, second))
        expected, values = model.classify(pairs, return_probabilities=True)
        assert label.tolist() == expected
        np.testing.assert_allclose(found, values, atol=1e-5)


@pytest.mark.parametrize("text", ["a\x85b", " \x85a", "a\0b"])
def test_what_byte_level_pairs_would_read_otherwise_is_refused(
    tmp_path, quick, trained, text
):
    """U+0085 is white space to the tokenizer, and none to the operator."""
    tokenizer = trained("bpe")
    model = make(kzoo.SentenceEmbedder, tokenizer)
    model.export(tmp_path / "model.onnx", format="onnx", text=True)
    session = session_of(tmp_path / "model.onnx")
    message = r"Name:'text must have no NUL or U\+0085 character"
    with pytest.raises(Exception, match=message):
        session.run(None, {"text": np.array(["fine", text], object)})
    others = ["fine", " \u0185\u2028Å…\n", "\xa0é", "😀"]  # whose bytes hold 85, too
    (found,) = session.run(["embedding"], {"text": np.array(others, object)})
    np.testing.assert_allclose(found, model.embed(others), atol=1e-5)


@pytest.fixture(scope="module")
def tied():
    """A tokenizer of which sentencepiece and the operators split texts differently."""
    texts = ["aab abb ccc b aa bb cab", "aabb ab aaa bbb"]
    return SentencePieceTokenizer.train(texts * 20, 24)


TIED = ["bbbbbb", "aaabbbb", "bbbbbba", "ab cab", ""]
FORMATS = ["onnx", pytest.param("tf_saved_model", marks=pytest.mark.tensorflow)]


def ties(tokenizer, format):
    """Texts of which the graph takes the other split; none where both agree."""
    codec = codec_of(tokenizer, format)
    right = tokenizer.encode(TIED)
    found = check.reader(codec)(TIED)
    differ = {
        text: ids for text, ids in zip(TIED, right, strict=True) if ids != found[text]
    }
    for text, ids in differ.items():
        assert sorted(ids) == sorted(found[text])  # the same pieces in another order
        assert codec.is_tie(found[text], ids) and codec.is_tie(ids, found[text])
        start, end = tokenizer.start_token_id, tokenizer.end_token_id
        pad = tokenizer.pad_token_id
        for wrong in (ids[:-1], [start, *ids], [*ids, end], [*ids[:1], pad, *ids[1:]]):
            assert not codec.is_tie(wrong, ids)  # special tokens write nothing
    assert not set(differ) & {"ab cab", ""}
    return list(differ)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("kind", [kzoo.TextClassifier, kzoo.Seq2SeqLM])
def test_of_two_splits_as_probable_the_graph_may_take_either(
    tmp_path, quick, tied, monkeypatch, format, kind
):
    labels = dict(labels=["a", "b"]) if kind is kzoo.TextClassifier else {}
    model, path = make(kind, tied, **labels), tmp_path / "model"
    report = model.export(path, format=format, text=True)
    own = TIED
    if labels:
        own = [*own, (TIED[0], TIED[1])]
    again = verify(path, model, own)
    rows = [c["rows"] for c in again.checks if "rows" in c]
    assert sum(rows) == len(own) and "encode" not in vars(tied)
    said = [note for note in again.notes if "exactly as probable" in note]
    assert said == [note for note in report.notes if "exactly as probable" in note]
    some = ties(tied, format)
    if not some:  # the operators have learned the new rule
        assert not said
        return
    assert "as of 'bbbbbb'" in said[0] and report.needs[0] in said[0]
    monkeypatch.setattr(SentencePieceCodec, "is_tie", lambda *both: False)
    with pytest.raises(ExportError, match="differs|in Keras"):
        verify(path, model, some)
    if labels:
        monkeypatch.setattr(check, "HARD", ("a", *some))
        with pytest.raises(ExportError, match="reads 'b+' as .* and in Python as"):
            model.export(tmp_path / "other", format=format, text=True)


def test_a_quantised_file_may_take_either_of_two_splits(tmp_path, quick, tied):
    labels = ["a", "b"]
    model = make(kzoo.TextClassifier, tied, labels=labels, **QUANTISED)
    model.export(tmp_path / "m", format="onnx", text=True, quantize="int8")
    again = verify(tmp_path / "m", model, TIED)
    assert sum(c.get("rows", 0) for c in again.checks) == len(TIED)


def test_a_tokenizer_reads_as_the_graph_in_the_block_alone(tied):
    codec, right = codec_of(tied, "onnx"), tied.encode(TIED)
    found = check.reader(codec)(TIED)
    with check.read_as_the_graph(tied, codec, [*TIED, "a\0b"]):
        assert tied.encode(TIED) == [found[text] for text in TIED]
        assert tied.encode(["a\0b"]) == [tied._encode(["a\0b"])[0]]
    assert tied.encode(TIED) == right


@pytest.mark.tensorflow
def test_a_seed_that_is_set_takes_no_tokenizer_away(tied):
    """TensorFlow clears its kernels then, and a kernel owns the model."""
    codec = codec_of(tied, "tf_saved_model")
    found = check.reader(codec)(TIED)
    keras.utils.set_random_seed(0)
    assert check.reader(codec)(TIED) == found
    check.check_codec(codec, writes=True)


def test_byte_pairs_have_no_ties(trained):
    """Their merges are in an order."""
    for name, has in (("sentencepiece bpe", False), ("unigram", True)):
        codec = codec_of(trained(name), "onnx")
        assert codec.has_ties is has and codec.is_tie([5, 6], [5, 6]) is has
    assert not codec.is_tie([5, 6], [5, 7])


@pytest.mark.parametrize("name", ["character", "bpe", "wordpiece", "unigram"])
def test_no_string_at_all_is_refused(tmp_path, quick, trained, name):
    model = make(kzoo.PairScorer, trained(name))
    model.export(tmp_path / "model", format="onnx", text=True)
    none, one = np.array([], object), np.array(["a"], object)
    session = session_of(tmp_path / "model" / "forward.onnx")
    for side, feed in (
        ("first", {"first": none, "second": none}),
        ("second", {"first": one, "second": none}),
    ):
        message = f"{side} must have one string at least"
        with pytest.raises(Exception, match=message if feed["first"].size else "must"):
            session.run(None, feed)


def test_a_null_that_is_written_is_named(tmp_path, quick, trained):
    tokenizer = trained("unigram, bytes")
    model = make(kzoo.CausalLM, tokenizer)
    model.export(tmp_path / "model.onnx", format="onnx", text=True)
    null = codec_of(tokenizer, "onnx").null
    feed = {"max_new_tokens": np.array(1), "forced_token_ids": np.array([[null]])}
    message = "Name:'ids that are written must have no NUL character"
    with pytest.raises(Exception, match=message):
        session_of(tmp_path / "model.onnx").run(None, {"text": ["a"], **feed})


@pytest.mark.tensorflow
def test_no_string_at_all_is_refused_by_a_saved_model(tmp_path, quick, trained):
    import tensorflow as tf

    make(kzoo.SentenceEmbedder, trained("wordpiece")).export(tmp_path / "m", text=True)
    run = tf.saved_model.load(str(tmp_path / "m")).signatures["serving_default"]
    assert run(text=tf.constant(["a"]))["embedding"].shape == (1, 16)
    with pytest.raises(tf.errors.InvalidArgumentError, match="one string at least"):
        run(text=tf.constant([], "string"))
    for wrong in (b"a\xffb", b"\xed\xa0\x80", b"\xc0\x80", b"a\xe2\x82"):
        with pytest.raises(tf.errors.InvalidArgumentError, match="text_must_be_UTF_8"):
            run(text=tf.constant(["a", wrong]))


@pytest.mark.tensorflow
def test_text_is_read_in_a_process_that_has_imported_tensorflow(
    tmp_path, quick, trained
):
    """Where onnxruntime-extensions, registered by itself, ends the process."""
    model, path = make(kzoo.SentenceEmbedder, trained("unigram")), tmp_path / "m.onnx"
    model.export(path, format="onnx", text=True)
    code = (
        "import sys, tensorflow, numpy as np, onnxruntime, kzoo.exporters\n"
        "options = onnxruntime.SessionOptions()\n"
        "options.register_custom_ops_library(kzoo.exporters.text_operators())\n"
        "session = onnxruntime.InferenceSession(sys.argv[1], options)\n"
        "print(*session.run(None, {'text': ['a man']})[0][0])"
    )
    command = [sys.executable, "-c", code, path]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = np.array(said.split(), "float32")
    np.testing.assert_allclose(found, model.embed(["a man"])[0], atol=1e-6)


def changed(tokenizer, **parts):
    """A tokenizer with other parts of the library."""
    inner = tokenizers.Tokenizer.from_str(tokenizer._model_text())
    for name, part in parts.items():
        setattr(inner, name, part)
    return FastTokenizer(inner.to_str(), **tokenizer._ids)


@pytest.mark.parametrize(
    ("name", "parts", "message"),
    [
        (
            "bpe",
            dict(normalizer=tokenizers.normalizers.NFKC()),
            'the normalizer {"type": "NFKC"}',
        ),
        (
            "bpe",
            dict(pre_tokenizer=tokenizers.pre_tokenizers.Whitespace()),
            'the pre-tokenizer {"type": "Whitespace"',
        ),
        (
            "bpe",
            dict(
                pre_tokenizer=tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)
            ),
            '"add_prefix_space": true',
        ),
        (
            "wordpiece",
            dict(decoder=tokenizers.decoders.Metaspace()),
            'the decoder "Metaspace"',
        ),
    ],
)
def test_what_no_operator_does_is_refused_by_name(trained, name, parts, message):
    model = make(kzoo.CausalLM, changed(trained(name), **parts))
    with pytest.raises(ExportError) as error:
        model.export("nowhere", format="onnx", text=True)
    assert message in str(error.value)


def test_tasks_and_options_that_have_no_text_are_refused(tmp_path, trained):
    tokenizer = trained("character")
    tagger = make(kzoo.TokenClassifier, tokenizer, labels=["O", "B"])
    with pytest.raises(ExportError, match="TokenClassifier answers with places"):
        tagger.export(tmp_path / "x", format="onnx", text=True)
    with pytest.raises(ExportError, match="needs a task with a tokenizer"):
        make(kzoo.CausalLM, None, vocabulary_size=9).export(
            tmp_path / "x", format="onnx", text=True
        )
    model = make(kzoo.CausalLM, tokenizer)
    for options in (dict(portable=True), dict(opset=19)):
        with pytest.raises(ExportError, match="needs ONNX opset 20"):
            model.export(tmp_path / "x", format="onnx", text=True, **options)
    with pytest.raises(ExportError, match=r"must be among \['generate'\]"):
        model.export(tmp_path / "x", format="onnx", text=True, functions="forward")
    assert not list(tmp_path.iterdir())


def test_a_tokenizer_that_differs_is_refused_with_the_text(
    tmp_path, trained, monkeypatch
):
    encode = BytePairCodec.encode

    def wrong(self, text):
        ids, mask = encode(self, text)
        return ids, mask & (ids != 4 + trained("bpe").encode(["!"])[0][0] - 4)

    monkeypatch.setattr(BytePairCodec, "encode", wrong)
    monkeypatch.setattr(check, "_reader", check._reader.__wrapped__)
    model = make(kzoo.CausalLM, trained("bpe"))
    with pytest.raises(ExportError, match="reads '.*!.*' as .* and in Python as"):
        model.export(tmp_path / "x", format="onnx", text=True)
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_named_with_its_extra(tmp_path, trained, monkeypatch):
    model = make(kzoo.SentenceEmbedder, trained("bpe"))
    model.export(tmp_path / "model.onnx", format="onnx", text=True)
    monkeypatch.setitem(sys.modules, "onnxruntime_extensions", None)
    with pytest.raises(ExportError, match=r'pip install "kzoo\[text\]"'):
        onnx_session.open_session(tmp_path / "model.onnx")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ExportError, match=r'pip install "kzoo\[text\]"'):
        model.export(tmp_path / "other.onnx", format="onnx", text=True)


def test_functions_are_those_with_a_form_of_text(trained):
    tokenizer = trained("character")
    model = make(kzoo.Seq2SeqLM, tokenizer)
    (generate,) = functions.text_functions(model, codec_of(tokenizer, "onnx"))
    own = {f.name: f for f in model.export_functions()}["generate"]
    described = [
        [(a.name, a.dtype, a.axes) for a in function.arguments[1:]]
        for function in (generate, own)
    ]
    assert described[0] == described[1]
    assert [a.name for a in generate.arguments][:1] == ["text"]


def test_a_single_file_of_text_is_verified_again(tmp_path, quick, trained):
    model = make(kzoo.TextClassifier, trained("character"), labels=["a", "b"])
    for name in ("forward", "forward_pairs"):
        path = tmp_path / f"{name}.onnx"
        model.export(path, format="onnx", text=True, functions=name)
        assert {check["function"] for check in verify(path, model).checks} == {name}


def test_a_model_ends_texts_whose_tokenizer_names_no_end(tmp_path, quick, trained):
    described = json.loads(trained("bpe")._model_text()) | {"added_tokens": []}
    tokenizer = FastTokenizer(json.dumps(described))
    assert tokenizer.end_token_id is None
    model = make(kzoo.CausalLM, tokenizer, end_token_id=2)
    path = tmp_path / "model.onnx"
    model.export(path, format="onnx", text=True)
    end = model.config.end_token_id
    forced = np.array([[40, 41, end, -1], [40, 41, 42, 43]])
    feed = {"text": ["a", "b"], "max_new_tokens": np.array(4)}
    texts, _ = session_of(path).run(None, {**feed, "forced_token_ids": forced})
    wanted = tokenizer.decode([[40, 41], [40, 41, 42, 43]])
    assert texts[:, 0].tolist() == wanted


@pytest.mark.parametrize("kind", [kzoo.TextClassifier, kzoo.SentenceEmbedder])
def test_an_empty_text_is_read_as_keras_does_where_nothing_stands_around(
    tmp_path, quick, trained, kind
):
    options = dict(num_classes=2) if kind is kzoo.TextClassifier else {}
    for template in (Template.of(between=()), Template.of((), ())):  # as GPT-2 has it
        model = make(
            kind, trained("bpe").with_conventions(template=template), **options
        )
        path = tmp_path / "model"
        report = model.export(path, format="onnx", text=True, overwrite=True)
        assert "forward" in report.functions and verify(path, model).checks


def test_a_template_of_one_text_reads_no_pairs(tmp_path, quick, trained):
    template = Template.of([1], [2])
    assert template.pair is None
    tokenizer = trained("bpe").with_conventions(template=template)
    model = make(kzoo.TextClassifier, tokenizer, num_classes=2)
    report = model.export(tmp_path / "model", format="onnx", text=True)
    assert list(report.functions) == ["forward"]


def test_ties_are_ties_in_texts_too(quick, trained):
    """A runtime may take either of two sequences of one score; texts do not say so."""
    model = make(kzoo.CausalLM, trained("character"), positions="rotary")
    (function,) = text_export.offered(model, "onnx")
    (ids,) = [f for f in model.export_functions() if f.name == "generate"]
    given = model.search_inputs(max_new_tokens=2, beams=2, num_return_sequences=2)
    inputs = {
        "text": np.array(["a man"], object),
        **{k: given[k].item() for k in REQUIRED},
    }
    expected = checks.reference(function, inputs)
    # Two sequences that Keras scores alike, the other way round.
    order = [1, 0]
    swapped = {name: x[:, order] for name, x in expected.items()}
    future = Future()
    alike = dict(expected, scores=np.full_like(expected["scores"], -1.0))
    future.set_result(alike)
    case = checks.Case(function, "tie", inputs, future)
    got = function.text.write(inputs, dict(swapped, scores=alike["scores"]))
    asked = []

    def of_ids(function, given):
        asked.append((function, sorted(given)))
        return dict(swapped, scores=alike["scores"])

    def scored(function, inputs):  # every sequence alike
        return dict(alike, scores=np.full((1, 1), -1.0, "float32"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "reference", scored)
        report = ExportReport("model", "onnx")
        checks.verify([case], [got], report, of_ids)
        assert report.checks[0]["ties"] == 2
        assert asked == [
            (function.text.function, sorted({*inputs} - {"text"} | {"token_ids"}))
        ]
        with pytest.raises(ExportError, match="generated_text differs"):
            checks.verify([case], [got], report)


def test_a_file_of_ids_gives_what_keras_gives(trained):
    model = make(kzoo.CausalLM, trained("character"))
    (function,) = [f for f in model.export_functions() if f.name == "generate"]
    given = model.search_inputs(max_new_tokens=3)
    inputs = {
        "token_ids": np.array([[5, 6, 7]]),
        **{k: given[k].item() for k in REQUIRED},
    }
    run = onnx_export.of_ids(onnx_export.names_of(model), onnx_export.DEFAULT_OPSET)
    both = (run(function, inputs), checks.reference(function, inputs))
    mine, theirs = (checks.trimmed(function, each)["sequences"] for each in both)
    np.testing.assert_array_equal(mine, theirs)


def test_what_an_artifact_does_not_answer_is_said(tmp_path, quick, trained):
    model = make(kzoo.TextClassifier, trained("bpe"), labels=["a", "b"])
    evaluate = (["a\0b", "c"], ["a", "b"])
    with pytest.raises(ExportError, match="does not answer 'forward' of 2 texts"):
        model.export(tmp_path / "m", format="onnx", text=True, evaluate=evaluate)
    assert not (tmp_path / "m").exists()
