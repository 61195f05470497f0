"""Claims about every tokenizer; what only one of them does is at the end."""

import copy
import hashlib
import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from kzoo.tokenizers import (
    Conventions,
    FastTokenizer,
    SentencePieceTokenizer,
    Tokenizer,
    load_tokenizer,
)

REPOSITORY = Path(__file__).parents[2]
TEXTS = [
    "A man rides a bike down the street.",
    "Ein Mann fährt mit dem Fahrrad die Straße hinunter.",
    "The bike is red, the street is wet.",
    "Das Fahrrad ist rot, die Straße ist nass.",
    "Two men ride two bikes: one is red, one is wet.",
]
TRAINERS = {
    "sentencepiece-unigram": lambda: SentencePieceTokenizer.train(TEXTS, 60),
    "sentencepiece-bpe": lambda: SentencePieceTokenizer.train(
        TEXTS, 90, algorithm="bpe"
    ),
    "sentencepiece-bytes": lambda: SentencePieceTokenizer.train(
        TEXTS, 340, algorithm="bpe", byte_fallback=True
    ),
    "bpe": lambda: FastTokenizer.train(TEXTS, 300),
    "wordpiece": lambda: FastTokenizer.train(TEXTS, 90, algorithm="wordpiece"),
    "character": lambda: FastTokenizer.train(TEXTS, 90, algorithm="character"),
}
BUILT = {name: train() for name, train in TRAINERS.items()}


@pytest.fixture(params=BUILT)
def tokenizer(request):
    return BUILT[request.param]


def test_trained_special_ids_are_those_of_the_model_config(tokenizer):
    ids = (
        tokenizer.pad_token_id,
        tokenizer.start_token_id,
        tokenizer.end_token_id,
        tokenizer.unknown_token_id,
    )
    assert ids == (0, 1, 2, 3)
    assert tokenizer.tokens([0, 1, 2, 3]) == ["<pad>", "<s>", "</s>", "<unk>"]


def test_training_text_round_trips_and_ids_are_in_the_vocabulary(tokenizer):
    encoded = tokenizer.encode(TEXTS)
    assert tokenizer.decode(encoded)[0].replace(" ", "") == TEXTS[0].replace(" ", "")
    assert all(3 < i < tokenizer.vocabulary_size for ids in encoded for i in ids)


def test_a_special_tokens_name_in_a_text_is_text(tokenizer):
    (ids,) = tokenizer.encode(["a </s> <pad> <s> man"])
    assert not {0, 1, 2} & set(ids)


def test_decode_drops_padding_start_and_all_after_the_end(tokenizer):
    (ids,) = tokenizer.encode(["the street is wet."])
    rest = [2, ids[0], 0, 0]
    expected = tokenizer.decode([ids])
    assert tokenizer.decode([[0, 0, 1, *ids, *rest]]) == expected
    assert tokenizer.decode(np.array([[1, *ids, *rest]], np.int64)) == expected
    assert tokenizer.decode([[], [1, 2], np.zeros(3, np.int32)]) == ["", "", ""]


def test_an_unknown_token_leaves_a_trace(tokenizer):
    (ids,) = tokenizer.encode(["street"])
    assert tokenizer.decode([[*ids, 3]]) != tokenizer.decode([ids])


def test_empty_inputs_give_empty_outputs(tokenizer):
    assert tokenizer.encode([]) == []
    assert tokenizer.encode([""]) == [[]]
    assert tokenizer.decode([]) == []
    assert tokenizer.tokens([]) == []


def test_copies_are_equal(tokenizer, tmp_path):
    config = json.loads(json.dumps(tokenizer.get_config()))
    tokenizer.save(tmp_path / "new" / "folder")
    for twin in (
        pickle.loads(pickle.dumps(tokenizer)),
        copy.deepcopy(tokenizer),
        Tokenizer.from_config(config),
        type(tokenizer).from_config(config),
        load_tokenizer(tmp_path / "new" / "folder"),
    ):
        assert type(twin) is type(tokenizer)
        assert twin.get_config() == tokenizer.get_config()
        assert twin.encode(TEXTS) == tokenizer.encode(TEXTS)
        assert twin.encode(["</s>"]) == tokenizer.encode(["</s>"])


def test_saved_folder_has_the_librarys_own_file(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == sorted([tokenizer.file_name, "tokenizer_config.json"])


def test_training_gives_the_same_bytes_in_another_process():
    code = (
        "import hashlib; from tests.tokenizers.tokenizers_test import BUILT; "
        "print(*(hashlib.sha256(str(t.get_config()).encode()).hexdigest() "
        "for t in BUILT.values()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True
    )
    here = [
        hashlib.sha256(str(t.get_config()).encode()).hexdigest() for t in BUILT.values()
    ]
    assert done.stdout.split() == here, done.stderr


def test_importing_tokenizers_imports_no_framework():
    code = (
        "import sys, kzoo.tokenizers; "
        "print({'keras', 'tensorflow', 'jax', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.stdout.strip() == "set()", done.stderr


@pytest.mark.parametrize(
    ("texts", "received"),
    [
        ("a man", "'a man' of type str"),
        (["a", 7], "7 of type int at index 1"),
        (b"a", "of type bytes"),
        (None, "None of type NoneType"),
    ],
)
def test_encode_names_what_is_not_a_list_of_strings(tokenizer, texts, received):
    with pytest.raises(TypeError, match="expects a list of strings") as caught:
        tokenizer.encode(texts)
    assert received in str(caught.value)


def test_encode_names_a_lone_surrogate(tokenizer):
    with pytest.raises(ValueError, match="index 1 has no UTF-8 form.*character 2"):
        tokenizer.encode(["fine", "ab\ud800"])


def test_decode_refuses_what_is_not_rows_of_ids(tokenizer):
    with pytest.raises(TypeError, match="wrap a single one in a list"):
        tokenizer.decode([5, 6])
    with pytest.raises(TypeError, match="dtype float64"):
        tokenizer.decode([[5.0, 6.0]])
    with pytest.raises(ValueError, match=r"Received: -1"):
        tokenizer.decode([[5, -1]])
    with pytest.raises(ValueError, match="Received: 9999; the model's vocabulary"):
        tokenizer.tokens([9999])


def test_loading_names_the_file_that_is_missing_or_broken(tokenizer, tmp_path):
    model, config = tmp_path / tokenizer.file_name, tmp_path / "tokenizer_config.json"
    with pytest.raises(FileNotFoundError, match="tokenizer_config.json"):
        load_tokenizer(tmp_path)
    tokenizer.save(tmp_path)
    model.write_bytes(b"\xff broken")
    with pytest.raises(ValueError, match=tokenizer.file_name):
        load_tokenizer(tmp_path)
    model.unlink()
    with pytest.raises(FileNotFoundError, match=tokenizer.file_name):
        load_tokenizer(tmp_path)
    for broken in ("{", "[]", '{"tokenizer_class": "BertTokenizer"}'):
        config.write_text(broken)
        with pytest.raises(ValueError, match="tokenizer_config.json"):
            load_tokenizer(tmp_path)


def test_from_config_refuses_what_it_does_not_know(tokenizer):
    config = tokenizer.get_config()
    with pytest.raises(ValueError, match="Unknown kind of tokenizer 'word'"):
        Tokenizer.from_config({**config, "kind": "word"})
    with pytest.raises(ValueError, match=r"Unknown kind of tokenizer \['word'\]"):
        Tokenizer.from_config({**config, "kind": ["word"]})
    with pytest.raises(ValueError, match="'lowercase'"):
        Tokenizer.from_config({**config, "lowercase": True})
    with pytest.raises(ValueError, match=r"pad_token_id must be in \[0, "):
        Tokenizer.from_config({**config, "pad_token_id": 10**6})
    other = (
        FastTokenizer
        if isinstance(tokenizer, SentencePieceTokenizer)
        else SentencePieceTokenizer
    )
    with pytest.raises(ValueError, match=f"use {type(tokenizer).__name__}.from"):
        other.from_config(config)


# Offsets and words.


def test_offsets_name_the_characters_of_each_piece(tokenizer):
    text = "  The bike,\tis wet. "
    (ids,), (offsets,) = tokenizer.encode_with_offsets([text])
    assert [ids] == tokenizer.encode([text])
    seen = [i for start, end in offsets for i in range(start, end)]
    assert seen == [i for i, character in enumerate(text) if not character.isspace()]
    assert tokenizer.encode_with_offsets([]) == ([], [])
    assert tokenizer.encode_with_offsets([""]) == ([[]], [[]])


@given(st.lists(st.text(st.sampled_from("abß é木🚲e\u0301ﬁ½ \t.\u200d"))))
@pytest.mark.parametrize("name", BUILT)
def test_offsets_are_of_the_text_as_it_was_given(name, texts):
    ids, offsets = BUILT[name].encode_with_offsets(texts)
    assert ids == BUILT[name].encode(texts)
    for text, row, spans in zip(texts, ids, offsets, strict=True):
        assert len(row) == len(spans)
        for start, end in spans:
            assert 0 <= start <= end <= len(text)
            assert text[start:end] == text[start:end].strip()
        assert spans == sorted(spans, key=lambda span: span[0])


def test_pieces_of_one_character_share_its_offsets():
    text = "a 🚲 e\u0301 ﬁn"
    bicycle, accented = (2, 3), (4, 6)
    for name in ("bpe", "sentencepiece-bytes"):
        (ids,), (offsets,) = BUILT[name].encode_with_offsets([text])
        assert offsets.count(bicycle) == 4  # its bytes in UTF-8
    _, (offsets,) = BUILT["sentencepiece-bytes"].encode_with_offsets([text])
    assert offsets.count(accented) == 2  # composed to one character of two bytes
    _, (offsets,) = BUILT["sentencepiece-unigram"].encode_with_offsets([text])
    assert offsets[-2:] == [(7, 9), (7, 9)]  # "f" and "in": both write the ligature


def test_words_have_the_pieces_that_they_have_in_their_sentence(tokenizer):
    sentences = [["The", "bike", ",", "is", "wet."], ["Two", "men"], []]
    words = tokenizer.encode_words(sentences)
    assert [len(row) for row in words] == [5, 2, 0]
    for row, sentence in zip(words, sentences, strict=True):
        joined = [token_id for word in row for token_id in word]
        assert [joined] == tokenizer.encode([" ".join(sentence)])
    for word, ids in zip(sentences[0], words[0], strict=True):
        assert tokenizer.decode([ids])[0].strip() == word


def test_a_word_without_pieces_is_unknown(tokenizer):
    (row,) = tokenizer.encode_words([["bike", "\u200b", " ", "", "wet", "\u200b"]])
    assert len(row) == 6 and all(row)
    decoded = tokenizer.decode([row[0]]), tokenizer.decode([row[4]])
    assert [text.strip() for (text,) in decoded] == ["bike", "wet"]
    no_unknown = FastTokenizer(
        BUILT["wordpiece"].get_config()["model"], pad_token_id=0, end_token_id=2
    )
    assert no_unknown.encode_words([["", "wet"]])[0][0] == [2]


# The mask token.

MASKED = {
    "sentencepiece": SentencePieceTokenizer.train(TEXTS, 60, mask_token=True),
    "bpe": FastTokenizer.train(TEXTS, 300, mask_token=True),
    "wordpiece": FastTokenizer.train(TEXTS, 90, algorithm="wordpiece", mask_token=True),
    "character": FastTokenizer.train(TEXTS, 90, algorithm="character", mask_token=True),
}


def joined(tokenizer, ids):
    return "|".join(tokenizer.tokens(ids))


@pytest.mark.parametrize("name", MASKED)
def test_a_mask_token_is_special_and_is_kept(name, tmp_path):
    tokenizer = MASKED[name]
    assert tokenizer.mask_token_id == 4 and tokenizer.tokens([4]) == ["<mask>"]
    assert tokenizer.special_ids == {0, 1, 2, 4}
    assert 4 not in tokenizer.encode(["a <mask> bike"])[0]  # text like any other
    (ids,) = tokenizer.encode(["bike"])
    assert tokenizer.decode([[*ids, 4]]) == tokenizer.decode([ids])
    tokenizer.save(tmp_path)
    for twin in (load_tokenizer(tmp_path), pickle.loads(pickle.dumps(tokenizer))):
        assert twin.mask_token_id == 4
        assert twin.get_config() == tokenizer.get_config()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sentencepiece", "<mask>|▁is|.|<mask>"),
        ("bpe", "<mask>| is|.|<mask>"),
        ("wordpiece", "<mask>|is|.|<mask>"),
        ("character", " |<mask>| |i|s|.| |<mask>"),
    ],
)
def test_a_mask_stands_for_a_piece_of_the_text(name, expected):
    tokenizer = MASKED[name]
    street, masked = tokenizer.encode_with_masks(["street", "street <mask> is. <mask>"])
    assert masked[: len(street)] == street
    assert joined(tokenizer, masked[len(street) :]) == expected
    plain = ["the street is wet.", ""]
    assert tokenizer.encode_with_masks(plain) == tokenizer.encode(plain)
    (ids,) = tokenizer.encode_with_masks(["<mask>."])
    assert joined(tokenizer, ids) == "<mask>|."  # no space before the full stop


@pytest.mark.parametrize("lstrip", [False, True])
def test_a_mask_takes_the_space_before_it_where_its_file_says_so(lstrip, tmp_path):
    trained = MASKED["bpe"]
    trained.save(tmp_path / "trained")
    described = json.loads((tmp_path / "trained" / "tokenizer.json").read_text())
    (mask,) = [t for t in described["added_tokens"] if t["content"] == "<mask>"]
    assert mask["lstrip"]  # other libraries read a trained tokenizer so, too
    mask["lstrip"] = lstrip
    settings = {"tokenizer_class": "RobertaTokenizer"}
    pretrained = Conventions(layout="fast", settings=settings)
    library = tokenizers.Tokenizer.from_str(json.dumps(described))
    tokenizer = FastTokenizer(
        json.dumps(described), mask_token_id=mask["id"], conventions=pretrained
    )
    tokenizer.save(tmp_path / "saved")
    loaded = load_tokenizer(tmp_path / "saved")
    for text in ("the street <mask> is", "<mask> <mask>", "a<mask>b", "  <mask>"):
        wanted = [library.encode(text).ids]
        assert tokenizer.encode_with_masks([text]) == wanted
        assert loaded.encode_with_masks([text]) == wanted
    # A file that an older kzoo trained.
    own = FastTokenizer(json.dumps(described), mask_token_id=mask["id"])
    text = ["the street <mask> is"]
    told = own.with_conventions(settings={"model_max_length": 8})
    for each in (own, told, pickle.loads(pickle.dumps(told))):
        assert each.encode_with_masks(text) == trained.encode_with_masks(text)


def test_without_a_mask_token_there_is_none(tokenizer, tmp_path):
    assert tokenizer.mask_token_id is None
    with pytest.raises(ValueError, match="has no mask token.*mask_token=True"):
        tokenizer.encode_with_masks(["a <mask>"])
    # Folders and configs of before there were masks.
    tokenizer.save(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    config = json.loads(path.read_text())
    del config["mask_token_id"]
    path.write_text(json.dumps(config))
    assert load_tokenizer(tmp_path).encode(TEXTS) == tokenizer.encode(TEXTS)
    config = tokenizer.get_config()
    del config["mask_token_id"]
    assert Tokenizer.from_config(config).get_config() == tokenizer.get_config()


@given(st.lists(st.text()))
def test_byte_level_bpe_round_trips_any_text(texts):
    tokenizer = BUILT["bpe"]
    assert tokenizer.decode(tokenizer.encode(texts)) == texts


ALPHABET = sorted(set("".join(TEXTS)))


@given(st.text(st.sampled_from(ALPHABET)))
def test_character_ids_are_one_a_character_and_round_trip(text):
    tokenizer = BUILT["character"]
    (ids,) = tokenizer.encode([text])
    assert tokenizer.tokens(ids) == list(text)
    assert tokenizer.decode([ids]) == [text]


def test_character_tokenizer_keeps_spaces_and_line_ends():
    text = " a\n\n  b\r\n\tc\u0085\u2028d\N{BICYCLE}"
    tokenizer = FastTokenizer.train([text], 100, algorithm="character")
    assert tokenizer.vocabulary_size == 4 + len(set(text))
    assert tokenizer.decode(tokenizer.encode([text])) == [text]


def test_character_ids_are_by_frequency_then_by_code_point():
    tokenizer = FastTokenizer.train(["cabbab"], 6, algorithm="character")
    # b 3, a 2, c 1, and there is room for two.
    assert tokenizer.encode(["abc"]) == [[5, 4, 3]]


@given(st.lists(st.text(st.sampled_from("abßé木🚲"), min_size=1), max_size=5))
def test_sentencepiece_bytes_round_trip_words_outside_the_corpus(words):
    tokenizer = BUILT["sentencepiece-bytes"]
    (ids,) = tokenizer.encode([" ".join(words)])
    assert 3 not in ids
    assert tokenizer.decode([ids]) == [" ".join(words)]


def test_sentencepiece_learns_from_texts_longer_than_its_own_limit():
    text = " ".join(["zebra"] * 2000)  # the library's limit is 4192 bytes
    tokenizer = SentencePieceTokenizer.train([text, "a dog"], 40)
    assert 3 not in tokenizer.encode(["zebra"])[0]


def test_sentencepiece_lower_cases_when_asked():
    tokenizer = SentencePieceTokenizer.train(TEXTS, 60, normalization="nmt_nfkc_cf")
    assert tokenizer.encode(["THE BIKE"]) == tokenizer.encode(["the bike"])


def test_pieces_hold_several_words_when_asked():
    texts = ["it is not very good", "not very good at all", "a very good day"] * 9
    words, across = (
        SentencePieceTokenizer.train(
            texts, 60, across_words=across, max_piece_length=14
        )
        for across in (False, True)
    )
    (one,), (other,) = (t.encode(["not very good"]) for t in (words, across))
    assert len(other) < 3 <= len(one)
    assert all(len(piece) <= 14 for piece in across.tokens(other))
    assert across.decode([other]) == ["not very good"]


def test_wordpiece_pieces_spell_each_word():
    tokenizer = BUILT["wordpiece"]
    (ids,) = tokenizer.encode(["the streets, wettest"])
    words, pieces = [], tokenizer.tokens(ids)
    for piece in pieces:
        if piece.startswith("##"):
            words[-1] += piece[2:]
        else:
            words.append(piece)
    assert words == ["the", "streets", ",", "wettest"]
    assert any(piece.startswith("##") for piece in pieces)


def test_byte_level_pieces_are_readable():
    tokenizer = FastTokenizer.train(["ä bike"] * 5, 280)
    (ids,) = tokenizer.encode(["ä bike"])
    assert "".join(tokenizer.tokens(ids)) == "ä bike"


def test_decode_when_start_is_end_or_padding():
    model = BUILT["character"].get_config()["model"]
    (ids,) = BUILT["character"].encode(["wet"])
    bart = FastTokenizer(model, pad_token_id=0, start_token_id=2, end_token_id=2)
    assert bart.decode([[2, *ids, 2, 2], [2, 2, *ids]]) == ["wet", ""]
    t5 = FastTokenizer(model, pad_token_id=0, start_token_id=0, end_token_id=2)
    assert t5.decode([[0, *ids, 2, 0]]) == ["wet"]
    assert t5.unknown_token_id is None


def test_a_vocabulary_too_small_for_the_alphabet_says_what_it_needs():
    alphabet = len(set("".join(TEXTS)))
    with pytest.raises(ValueError, match=r"at least \d+. Received: 10"):
        SentencePieceTokenizer.train(TEXTS, 10)
    with pytest.raises(ValueError, match="at least 260. Received: 100"):
        FastTokenizer.train(TEXTS, 100)
    with pytest.raises(ValueError, match="at least"):
        FastTokenizer.train(TEXTS, 20, algorithm="wordpiece")
    # The number that the message gives is enough: letters, "▁" for " ", and four.
    assert SentencePieceTokenizer.train(TEXTS, alphabet + 4).vocabulary_size


def test_a_vocabulary_too_large_for_the_corpus_is_made_smaller():
    for train in (SentencePieceTokenizer.train, FastTokenizer.train):
        tokenizer = train(["a bike"], 5000)
        assert 0 < tokenizer.vocabulary_size < 5000


def test_training_refuses_no_text_and_unknown_algorithms():
    for train in (SentencePieceTokenizer.train, FastTokenizer.train):
        with pytest.raises(ValueError, match="at least one text"):
            train([], 300)
        with pytest.raises(ValueError, match="algorithm must be one of"):
            train(TEXTS, 300, algorithm="words")
        with pytest.raises(TypeError, match="expects a list of strings"):
            train("one text", 300)
    with pytest.raises(ValueError, match="SentencePieceTokenizer"):
        FastTokenizer.train(TEXTS, 300, algorithm="unigram")
    with pytest.raises(TypeError, match="bytes of a .model"):
        SentencePieceTokenizer("model")


@pytest.mark.parametrize("name", ["sentencepiece-unigram", "sentencepiece-bpe"])
def test_sampled_splits_write_the_same_text_in_other_pieces(name):
    tokenizer = BUILT[name]
    drawn = tokenizer.sampled(alpha=0.2, seed=3)
    rows = [drawn.encode(TEXTS) for _ in range(4)]
    assert len({str(row) for row in rows}) == 4
    for row in rows:
        assert tokenizer.decode(row) == tokenizer.decode(tokenizer.encode(TEXTS))
    again = tokenizer.sampled(alpha=0.2, seed=3)
    assert [again.encode(TEXTS) for _ in range(4)] == rows
    (words,) = drawn.encode_words([TEXTS[2].split()])
    texts = [text.strip() for text in tokenizer.decode(words)]
    assert texts == TEXTS[2].split()
    assert drawn.get_config() == tokenizer.get_config()
    assert pickle.loads(pickle.dumps(drawn)).encode(TEXTS) == tokenizer.encode(TEXTS)
    for wrong in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="alpha must be 0 or more"):
            tokenizer.sampled(wrong)
    last = tokenizer.sampled(seed=2**32 - 1)
    assert len({str(last.encode(TEXTS)) for _ in range(8)}) > 1
    for wrong in (-1, 2**32, 0.5, True):
        with pytest.raises(ValueError, match="seed must be an integer of at least 0"):
            tokenizer.sampled(seed=wrong)
    for wrong in (0.97, 1.1, True, float("nan")):
        with pytest.raises(ValueError, match="character_coverage must be a number"):
            SentencePieceTokenizer.train(TEXTS, 50, character_coverage=wrong)
