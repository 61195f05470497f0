"""A tokenizer as operators of a graph: text to ids and back, exactly or not at all.

But for ties: where two splits of a text are exactly as probable, a unigram model in the
graph may take the other one than sentencepiece does (`Codec.is_tie`).
"""

import abc
import contextlib
import functools
import importlib.util
import itertools
import json
import textwrap

import numpy as np
import tokenizers
from sentencepiece import sentencepiece_model_pb2

from kzoo import ops
from kzoo.exporters.errors import ExportError
from kzoo.exporters.text import strings

# Of what is normalised one by one, this stands between: no normaliser changes it, and
# to none a neighbour of its matters.
_BETWEEN, _CHUNK = "1", 1024

# Of the sums of scores, float32, of two splits that are a tie; a share where they are
# large.
_TIE = 1e-5

_EXTENSIONS = "onnxruntime-extensions"
_TENSORFLOW_TEXT = "tensorflow-text"


class Codec(abc.ABC):
    """How a graph reads and writes text.

    Args:
        tokenizer: what it equals.
    """

    # Package that each format needs beside its runtime.
    needs = {"onnx": None, "tf_saved_model": None}
    # The graph's format; `codec_of` knows it.
    format = None
    # Characters that end the run of an ONNX file in an error where a text has one.
    refused = ""
    # Whether two splits of a text may be right; see `is_tie`.
    has_ties = False
    # The id at which such a run ends, too, where there is one.
    null = None

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self._special = np.zeros(tokenizer.vocabulary_size, "int32")
        self._special[list(tokenizer.special_ids)] = 1

    def resources(self):
        """What a SavedModel has to keep."""
        return []

    def takes(self, text):
        """Whether a text, a `str`, has none of what is refused."""
        return not set(self.refused) & set(text)

    def is_tie(self, ids, others):
        """Whether two lists of ids are splits of one text that are as probable."""
        return False

    @abc.abstractmethod
    def encode(self, text):
        """Ids as `tokenizer.encode` gives them: string (B,) to int and bool (B, T)."""

    @abc.abstractmethod
    def _text(self, ids, kept):
        """What ids (N, T) write together where they are kept, bool (N, T)."""

    def decode(self, ids):
        """Text as `tokenizer.decode` gives it: int (N, T), new tokens, to string (N,).

        The end token and what follows is left out, and so is what is special, or what
        a model's table has beyond the tokenizer's.
        """
        known = ids < self.tokenizer.vocabulary_size
        place = ops.where(known, ids, 0)
        kept = known & ops.equal(ops.take(self._special, place), 0)
        if self.tokenizer.end_token_id is not None:
            ended = ops.cast(ops.equal(ids, self.tokenizer.end_token_id), "int32")
            kept = kept & ops.equal(ops.cumsum(ended, axis=1), 0)
        return self._text(place, kept)


class _Pieces(Codec):
    """Text that is made of a string an id; the first one may be another."""

    def _text(self, ids, kept):
        size = self.tokenizer.vocabulary_size
        texts = strings.picked(self._strings, ids + _numbers(~_first(kept)) * size)
        return strings.joined(strings.only(texts, kept))

    @functools.cached_property
    def _strings(self):
        """What each id writes at the start of a text, and then what it writes later."""
        first, later = self.tokenizer.token_bytes()
        return [(text or b"").decode() for text in (*first, *later)]


class CharacterCodec(_Pieces):
    """An id a character."""

    def __init__(self, tokenizer, model, lowercase):
        super().__init__(tokenizer)
        self._table = {k: i for k, i in model["vocab"].items() if len(k) == 1}
        self._unknown = model["vocab"][model["unk_token"]]
        self._lowercase = lowercase

    def encode(self, text):
        """See `Codec.encode`."""
        if self._lowercase:
            text = strings.replaced(text, lowercase_table())
        return strings.character_ids(text, self._table, self._unknown)


class WordPieceCodec(_Pieces):
    """Words that BERT splits, and the longest pieces that fit from their left."""

    needs = {"onnx": _EXTENSIONS, "tf_saved_model": _TENSORFLOW_TEXT}

    def __init__(self, tokenizer, model, normalizer, pre_tokenizer):
        super().__init__(tokenizer)
        self._model = model
        alphabet = {character for piece in model["vocab"] for character in piece}
        letters = map(chr, range(0x4E00, 0x9FFF))
        self._other = next(letter for letter in letters if letter not in alphabet)
        words = word_table(json.dumps(normalizer), json.dumps(pre_tokenizer))
        unknown = {c for text in words.values() for c in text} - alphabet - {" "}
        others = str.maketrans(dict.fromkeys(unknown, self._other))
        self._table = {c: c for c in sorted(alphabet | {" "})} | {
            c: text.translate(others) for c, text in words.items()
        }

    def encode(self, text):
        """See `Codec.encode`."""
        model = self._model
        return strings.word_pieces(
            strings.replaced(text, self._table, self._other),
            model["vocab"],
            model["unk_token"],
            model["continuing_subword_prefix"],
            model["max_input_chars_per_word"],
        )


class BytePairCodec(Codec):
    """Byte-level byte-pair encoding, as GPT-2 has it."""

    needs = {"onnx": _EXTENSIONS, "tf_saved_model": None}
    refused = "\0\x85"

    def __init__(self, tokenizer, model, lowercase):
        super().__init__(tokenizer)
        self._vocabulary, self._lowercase = model["vocab"], lowercase
        self._merges = [
            pair.split(" ") if isinstance(pair, str) else pair
            for pair in model["merges"]
        ]
        self._byte_of = dict(sorted(tokenizer.byte_of.items()))

    def encode(self, text):
        """See `Codec.encode`."""
        if self._lowercase:
            text = strings.replaced(text, lowercase_table())
        return strings.byte_pairs(text, self._vocabulary, self._merges, self.refused)

    def _text(self, ids, kept):
        texts = strings.only(strings.picked(self._strings, ids), kept)
        return strings.text_of_bytes(strings.joined(texts), self._byte_of)

    @functools.cached_property
    def _strings(self):
        """Each piece with a character for every byte of it."""
        characters = {byte: character for character, byte in self._byte_of.items()}
        pieces, _ = self.tokenizer.token_bytes()
        return ["".join(characters[b] for b in piece or b"") for piece in pieces]


class SentencePieceCodec(Codec):
    """A SentencePiece model, in the library itself."""

    needs = {"onnx": _EXTENSIONS, "tf_saved_model": _TENSORFLOW_TEXT}
    refused = "\0"

    def __init__(self, tokenizer):
        super().__init__(tokenizer)
        self.content, self._tensorflow = tokenizer._model_bytes(), None
        # The byte piece at which onnxruntime-extensions would end a text.
        null = tokenizer._processor.piece_to_id("<0x00>")
        self.null = null if tokenizer._processor.is_byte(null) else None

    @property
    def tensorflow(self):
        """The model as TensorFlow Text holds it."""
        import tensorflow as tf
        import tensorflow_text

        with tf.init_scope():  # not in the function that is being traced
            if self._tensorflow is not None:
                # Where a seed was set, the kernel that owned the model is gone.
                with contextlib.suppress(tf.errors.NotFoundError):
                    self._tensorflow.tokenize([""])
                    return self._tensorflow
            self._tensorflow = tensorflow_text.SentencepieceTokenizer(self.content)
            return self._tensorflow

    def resources(self):
        """What a SavedModel has to keep."""
        return [self.tensorflow]

    @functools.cached_property
    def has_ties(self):
        """Whether two splits of a text may be as probable: the model is unigram."""
        proto = sentencepiece_model_pb2.ModelProto.FromString(self.content)
        return proto.trainer_spec.model_type == proto.trainer_spec.UNIGRAM

    def is_tie(self, ids, others):
        """See `Codec.is_tie`.

        From 0.2.2 on sentencepiece takes the other one of two than before, and than
        the operators do.
        """
        pieces = self.tokenizer.tokens  # of special tokens, too, which no text shows
        written = {"".join(pieces(each)) for each in (ids, others)}
        if not self.has_ties or len(written) > 1:
            return False
        score = self.tokenizer._processor.get_score
        mine, theirs = (sum(map(score, each)) for each in (ids, others))
        return abs(mine - theirs) <= _TIE * max(1.0, abs(theirs))

    def encode(self, text):
        """See `Codec.encode`."""
        return strings.sentence_pieces(text, self)

    def _text(self, ids, kept):
        return strings.text_of_sentence_pieces(ids, kept, self)


def codec_of(tokenizer, format):
    """The codec of a tokenizer.

    Args:
        tokenizer: `kzoo.tokenizers.Tokenizer`.
        format: `"onnx"` or `"tf_saved_model"`.

    Raises:
        ExportError: no graph of the format does exactly what it does; it is said what.
            Or the package of the graph's operators is not installed.
    """
    codec = _codec_of(tokenizer, format)
    codec.format = format
    package = codec.needs[format]
    if package and importlib.util.find_spec(package.replace("-", "_")) is None:
        raise ExportError(
            f"Text in {format} needs {package}, which is not installed: pip install "
            '"kzoo[text]".'
        )
    return codec


@functools.lru_cache(maxsize=2)  # a table of all characters takes a second
def _codec_of(tokenizer, format):
    if tokenizer is None:
        raise ExportError(
            "text=True needs a task with a tokenizer. Build it with tokenizer=..., or "
            "export token ids."
        )
    if tokenizer.kind == "sentencepiece":
        if tokenizer.pieces is not None:
            raise _refusal(tokenizer, "ids that are not those of its model")
        return SentencePieceCodec(tokenizer)
    if tokenizer.kind != "fast":
        raise _refusal(tokenizer, f"tokenizers of the kind {tokenizer.kind!r}")
    described = json.loads(tokenizer._model_text())
    model = described["model"]
    normalizer, splitter, decoder = (
        described[name] or {} for name in ("normalizer", "pre_tokenizer", "decoder")
    )
    expect = functools.partial(_expect, tokenizer)
    added = [t["content"] for t in described["added_tokens"] if not t["special"]]
    expect("added tokens", added, [])
    kind = model["type"]
    if kind == "WordPiece":
        expect("the normalizer", normalizer.get("type"), None, "BertNormalizer")
        expect("the pre-tokenizer", splitter, {"type": "BertPreTokenizer"})
        expect("the decoder", decoder.get("type"), "WordPiece")
        return WordPieceCodec(tokenizer, model, normalizer, splitter)
    expect("the normalizer", normalizer, {}, {"type": "Lowercase"})
    if kind == "WordLevel":
        character = dict(type="Split", behavior="Isolated", invert=False)
        character["pattern"] = {"String": ""}
        expect("the pre-tokenizer", splitter, character)
        expect("the decoder", decoder, {"type": "Fuse"})
        return CharacterCodec(tokenizer, model, bool(normalizer))
    if kind != "BPE":
        raise _refusal(tokenizer, f"models of the type {kind!r}")
    for name, right in (
        ("dropout", None),
        ("continuing_subword_prefix", ""),
        ("end_of_word_suffix", ""),
        ("byte_fallback", False),
        ("ignore_merges", False),
    ):
        expect(name, model.get(name) or right, right)
    options = {k: splitter.get(k) for k in ("type", "add_prefix_space", "use_regex")}
    byte_level = dict(type="ByteLevel", add_prefix_space=False, use_regex=True)
    expect("the pre-tokenizer", options, byte_level)
    expect("the decoder", decoder.get("type"), "ByteLevel")
    missing = sorted(set(tokenizer.byte_of) - set(model["vocab"]))
    expect("bytes without a piece", missing, [])
    if format != "onnx":
        raise _refusal(
            tokenizer,
            "byte-level byte-pair encoding: TensorFlow Text has no operator for it. "
            "Use format='onnx', which has one",
        )
    return BytePairCodec(tokenizer, model, bool(normalizer))


def _expect(tokenizer, name, value, *allowed):
    """Raises `ExportError` where a tokenizer's part is none of those allowed."""
    if value not in allowed:
        value = json.dumps(value, ensure_ascii=False)  # which may hold a long table
        raise _refusal(tokenizer, f"{name} {textwrap.shorten(value, 200)}")


def _refusal(tokenizer, what):
    return ExportError(
        f"text=True cannot write {tokenizer!r} into the graph, since no operator does "
        f"exactly what it does: {what}. Or leave text out: the artifact then takes "
        "token ids, and the tokenizer's file is beside it."
    )


@functools.cache
def lowercase_table():
    """What the tokenizers library makes of each character that it lower-cases."""
    normalizer = tokenizers.normalizers.Lowercase()
    table = dict(_normalized(normalizer))
    return {character: text for character, text in table.items() if text != character}


@functools.lru_cache(maxsize=4)
def word_table(normalizer, pre_tokenizer):
    """What words are made of: each character, normalised and split from others.

    Args:
        normalizer: its JSON; so for the next.
        pre_tokenizer: which splits at white space, and isolates single characters.

    Returns:
        dict from a character to a string; spaces are where words end. Characters that
        stay themselves, and part no words, are left out.
    """
    described = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": json.loads(normalizer) or None,
        "pre_tokenizer": json.loads(pre_tokenizer),
        "model": {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"},
    }
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(described))
    table = dict(_normalized(tokenizer.normalizer))
    written = {c for text in table.values() for c in text}
    written = sorted(c for c in written if not c.isalnum())
    words = {}
    for first in range(0, len(written), _CHUNK):
        some = written[first : first + _CHUNK]
        text = _BETWEEN + "".join(c + _BETWEEN for c in some)
        found = tokenizer.pre_tokenizer.pre_tokenize_str(text)
        alone = {word for word, _ in found if len(word) == 1}
        inside = {c for word, _ in found for c in word}
        for c in some:
            words[ord(c)] = f" {c} " if c in alone else c if c in inside else " "
    table = {c: text.translate(words) for c, text in table.items()}
    return {c: text for c, text in table.items() if text != c}


def _normalized(normalizer):
    """Characters and what each becomes by itself; all that are assigned, or changed."""

    def normalized(some):
        text = "".join(_BETWEEN + character for character in some)
        if normalizer is not None:
            text = normalizer.normalize_str(text)
        return zip(some, text.split(_BETWEEN)[1:], strict=True)

    yield _BETWEEN, _BETWEEN
    for first in (*range(0, 0x40000, _CHUNK), *range(0xE0000, 0xF0000, _CHUNK)):
        some = map(chr, range(first, first + _CHUNK))
        some = [c for c in some if c != _BETWEEN and not "\ud800" <= c <= "\udfff"]
        yield from normalized(some)
    # Nothing is assigned in planes 4 to 13, and 15 and 16 are for private use: all but
    # the last two of each, which are no characters, are as their first.
    for plane in (*range(4, 14), 15, 16):
        start, last = plane << 16, (plane << 16) + 0xFFFE
        ((_, text),) = normalized([chr(start)])
        if text != chr(start):
            yield from zip(map(chr, range(start, last)), itertools.repeat(text))
        yield from normalized([chr(last), chr(last + 1)])


def _first(kept):
    """Where the first of those that are kept is: bool (N, T)."""
    return kept & ops.equal(ops.cumsum(_numbers(kept), axis=1), 1)


def _numbers(condition):
    return ops.cast(condition, "int32")
