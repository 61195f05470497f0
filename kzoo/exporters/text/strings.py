"""Ops on strings: TensorFlow's on tensors, ONNX nodes on an `OnnxValue`.

Shapes: B texts, T their longest in what is counted, N rows, V entries of a table. In
ONNX the operators are the standard's, onnxruntime's own `Tokenizer` (one string a
character) and those of onnxruntime-extensions, the domain `ai.onnx.contrib`.
"""

import json

import numpy as np

from kzoo import ops
from kzoo.exporters.onnx_session import EXTENSIONS
from kzoo.ops.dispatch import op
from kzoo.ops.onnx_value import current_graph

MINIMUM_OPSET = 20  # StringConcat, StringSplit and RegexFullMatch

_LOST = "\N{REPLACEMENT CHARACTER}"
_SOME = "{} must have one string at least"


# Characters and tables.


@op
def replaced(text, table, default=None):
    """The text with each character replaced.

    Args:
        text: string (B,).
        table: dict from a character to a string.
        default: what characters not in the table become; themselves by default.

    Returns:
        string (B,).
    """
    import tensorflow as tf

    codes = tf.strings.unicode_decode(text, "UTF-8")
    found, place = _search(codes.values, table)
    own = tf.strings.unicode_encode(codes.values[:, None], "UTF-8")
    values = sorted(set(table.values()))  # most are alike
    which = {value: i for i, value in enumerate(values)}
    new = np.array([which[value] for value in _sorted(table).values()], "int32")
    new = tf.gather(tf.constant(values), tf.gather(new, place))
    new = tf.where(found, new, own if default is None else tf.constant(default))
    return tf.strings.reduce_join(codes.with_values(new), axis=-1)


@replaced.emits
def _(graph, text, table, default=None):
    characters = _characters(graph, text)
    own = f"{_LOST} itself"  # no value of a table
    table = {**table, "": ""}  # what fills short rows
    new = _looked_up(graph, characters, table, own if default is None else default)
    if default is None:
        same = graph.node("Equal", new, _strings(graph, own), dtype="bool")
        new = graph.node("Where", same, characters, new, shape=new.shape)
    return joined(new)


@op
def character_ids(text, table, default):
    """The id of each character.

    Args:
        text: string (B,).
        table: dict from a character to an int.
        default: the id of characters that are not in it.

    Returns:
        int (B, T), and bool (B, T) where a character is.
    """
    import tensorflow as tf

    codes = tf.strings.unicode_decode(text, "UTF-8")
    found, place = _search(codes.values, table)
    ids = tf.gather(tf.constant(list(_sorted(table).values()), "int32"), place)
    return _from_ragged(codes.with_values(tf.where(found, ids, default)))


@character_ids.emits
def _(graph, text, table, default):
    ids = _looked_up(graph, _characters(graph, text), {**table, "": -1}, default)
    return ids, ids >= 0


@op
def picked(strings, index):
    """Strings by their place.

    Args:
        strings: a list of V `str` or bytes.
        index: int (...), in [0, V).

    Returns:
        string (...).
    """
    import tensorflow as tf

    return tf.gather(tf.constant(strings), index)


@picked.emits
def _(graph, strings, index):
    return graph.node("Gather", _strings(graph, *strings), index, shape=index.shape)


@op
def only(strings, kept):
    """The strings where `kept`, bool of their shape, and else none: ""."""
    import tensorflow as tf

    return tf.where(kept, strings, "")


@only.emits
def _(graph, strings, kept):
    return graph.node("Where", kept, strings, _strings(graph, ""), shape=kept.shape)


@op
def joined(strings):
    """The strings of each row as one: (N, T) to (N,)."""
    import tensorflow as tf

    return tf.strings.reduce_join(strings, axis=-1)


@joined.emits
def _(graph, strings):
    def append(state):
        text, column = state
        new = ops.take(strings, column, axis=1)
        text = current_graph().node("StringConcat", text, new, shape=text.shape)
        return text, column + 1

    length = ops.dim(strings, 1)
    rows = ops.full((ops.dim(strings, 0),), 0, "int32")
    start = graph.node("Gather", _strings(graph, ""), rows, shape=rows.shape)
    text, _ = ops.while_loop(_always, append, (start, ops.as_scalar(0)), length)
    return text


@op
def checked(text, name):
    """The text, string (B,); a run ends in an error where there is none.

    On TensorFlow, whose strings may hold any bytes, also where one is no UTF-8.
    """
    import tensorflow as tf

    rule = f"{name}_must_be_UTF_8"
    text = tf.strings.unicode_transcode(
        text, "UTF-8", "UTF-8", errors="strict", name=rule
    )
    return ops.required(text, tf.size(text) > 0, _SOME.format(name))


@checked.emits
def _(graph, text, name):
    return _required(text, ops.dim(text, 0) > 0, _SOME.format(name))


# Tokenizers.


@op
def sentence_pieces(text, model):
    """Ids of a SentencePiece model.

    Args:
        text: string (B,).
        model: `kzoo.exporters.text.codecs.SentencePieceCodec`.

    Returns:
        int (B, T), and bool (B, T) where an id is.
    """
    return _from_ragged(model.tensorflow.tokenize(text))


@sentence_pieces.emits
def _(graph, text, model):
    flat, splits, _ = graph.node(
        "SentencepieceTokenizer",
        _without(graph, text, model.refused),
        np.array([0]),  # no sampling
        np.array([0.0], "float32"),
        np.array([False]),  # no start token
        np.array([False]),  # no end token
        np.array([False]),  # not reversed
        np.array([False]),  # ids are the model's own
        domain=EXTENSIONS,
        model=model.content,
        shape=[(None,)] * 3,
        dtype=["int32", "int64", "int32"],
    )
    return _from_flat(ops.cast(flat, "int64"), splits)


@op
def text_of_sentence_pieces(ids, kept, model):
    """Texts of the ids that are kept.

    Args:
        ids: int (N, T).
        kept: bool (N, T).
        model: `kzoo.exporters.text.codecs.SentencePieceCodec`.

    Returns:
        string (N,).
    """
    import tensorflow as tf

    return model.tensorflow.detokenize(tf.ragged.boolean_mask(ids, kept))


@text_of_sentence_pieces.emits
def _(graph, ids, kept, model):
    if model.null is not None:
        none = ~ops.any(kept & ops.equal(ids, model.null))
        ids = _required(ids, none, "ids that are written must have no NUL character")

    def append(state):
        texts, row = state
        own = current_graph()
        chosen = own.node(
            "Compress", ops.take(ids, row), ops.take(kept, row), shape=(None,)
        )
        text = own.node(
            "SentencepieceDecoder",
            chosen,
            np.array([False]),
            domain=EXTENSIONS,
            model=model.content,
            shape=(1,),
            dtype="string",
        )
        return ops.concatenate([texts, text], axis=0), row + 1

    first = (_strings(graph, ""), ops.as_scalar(0))
    texts, _ = ops.while_loop(_always, append, first, ops.dim(ids, 0))
    return ops.slice_axis(texts, 1, None, axis=0)


@op
def word_pieces(text, vocabulary, unknown, prefix, longest):
    """Ids of WordPiece: of each word the longest pieces that fit, from the left.

    Args:
        text: string (B,); words stand between spaces.
        vocabulary: dict from a piece to its id.
        unknown: the piece of a word that no pieces fit.
        prefix: of a piece within a word.
        longest: in characters; longer words are unknown.

    Returns:
        int (B, T), and bool (B, T) where an id is.
    """
    import tensorflow as tf
    import tensorflow_text

    pieces = {token_id: piece for piece, token_id in vocabulary.items()}
    # A gap in the ids is a piece that no word is.
    ordered = [pieces.get(i, f" {i}") for i in range(max(pieces) + 1)]
    tokenizer = tensorflow_text.FastWordpieceTokenizer(
        vocab=ordered,
        suffix_indicator=prefix,
        max_bytes_per_word=4 * longest,
        unknown_token=unknown,
        no_pretokenization=True,
        token_out_type=tf.int32,
    )
    words = tf.strings.split(text, " ")
    flat = tf.ragged.boolean_mask(words, words != "")
    lengths = tf.strings.length(flat.values, unit="UTF8_CHAR")
    flat = flat.with_values(tf.where(lengths > longest, " ", flat.values))
    return _from_ragged(tokenizer.tokenize(flat).merge_dims(1, 2))


@word_pieces.emits
def _(graph, text, vocabulary, unknown, prefix, longest):
    words, _ = _split(graph, _without(graph, text, "\0"), " ")
    # One column more, so that there is one; an empty word has no pieces.
    empty = graph.node(
        "Gather", _strings(graph, ""), ops.full((ops.dim(text, 0), 1), 0, "int32")
    )
    empty.shape = (text.shape[0], 1)
    words = ops.concatenate([words, empty], axis=1)
    width = ops.dim(words, 1)
    words = ops.reshape(words, (-1,))
    count = ops.dim(words, 0)
    pieces, splits, _, _ = graph.node(
        "WordpieceTokenizer",
        words,
        ops.arange(count + 1),  # each word is a row
        domain=EXTENSIONS,
        vocab=json.dumps(vocabulary),
        suffix_indicator=prefix,
        max_input_chars_per_word=longest,
        unknown_token=unknown,
        shape=[(None,)] * 4,
        dtype=["string", "int64", "int64", "int64"],
    )
    ids = _looked_up(graph, pieces, vocabulary, vocabulary[unknown])
    # The operator writes the pieces of a word up to where none fits, and then that it
    # is unknown; of such a word only this stays.
    starts = ops.slice_axis(splits, 0, -1, axis=0)
    ends = ops.slice_axis(splits, 1, None, axis=0)
    is_unknown = ops.cast(ops.equal(ids, vocabulary[unknown]), "int32")
    before = _running(is_unknown)
    bad = ops.take(before, ends) - ops.take(before, starts)
    steps = ops.full((ops.dim(ids, 0) + 1,), 0, "int32")
    for places, change in ((starts, bad), (ends, -bad)):
        steps = graph.node(
            "ScatterElements", steps, places, change, axis=0, reduction="add"
        )
    inside = ops.slice_axis(ops.cumsum(steps, axis=0), 0, -1, axis=0) > 0
    kept = (is_unknown > 0) | ~inside
    ids = graph.node("Compress", ids, kept, shape=(None,), axis=0)
    kept_before = _running(ops.cast(kept, "int32"))
    of_texts = ops.arange(ops.dim(text, 0) + 1) * width
    return _from_flat(ids, ops.take(kept_before, ops.take(splits, of_texts)))


@op
def byte_pairs(text, vocabulary, merges, refused):
    """Ids of GPT-2's byte-level byte-pair encoding, in ONNX.

    Args:
        text: string (B,).
        vocabulary: dict from a piece to its id.
        merges: a list of pairs of pieces.
        refused: the characters that end the run in an error.

    Returns:
        int (B, T), and bool (B, T) where an id is.
    """
    raise NotImplementedError("TensorFlow has no operator for it.")  # see `codec_of`


@byte_pairs.emits
def _(graph, text, vocabulary, merges, refused):
    # The operator takes this name for a special token, which in a text it is not. Two
    # words meet within it, so that what stands around that place is read by itself.
    first, second = "<|", "endoftext|>"
    parts, count = _split(graph, _without(graph, text, refused), first + second)
    merges = "\n".join(" ".join(pair) for pair in merges)

    def append(state):
        """The ids of one part of each text, padded to the longest."""
        (ids, kept), column = state
        own, part = current_graph(), ops.take(parts, column, axis=1)
        follows, goes_on = (column > 0) & (column < count), column + 1 < count
        before = picked(["", second], ops.cast(follows, "int32"))
        part = own.node("StringConcat", before, part, shape=text.shape)
        behind = picked(["", first], ops.cast(goes_on, "int32"))
        more, mask = own.node(
            "GPT2Tokenizer",
            own.node("StringConcat", part, behind, shape=text.shape),
            domain=EXTENSIONS,
            vocab=json.dumps(vocabulary),
            merges=merges,
            padding_length=-1,  # to the longest
            shape=[(text.shape[0], None)] * 2,
            dtype=["int64", "int64"],
        )
        ids = ops.concatenate([ids, more], axis=1)
        return (ids, ops.concatenate([kept, mask > 0], axis=1)), column + 1

    none = ops.full((ops.dim(text, 0), 0), 0, "int64")
    none.shape = (text.shape[0], None)  # it grows
    state = (none, ops.equal(none, 1)), ops.as_scalar(0)
    (ids, kept), _ = ops.while_loop(_always, append, state, ops.dim(parts, 1))
    lengths = ops.sum(ops.cast(kept, "int64"), axis=1)
    flat = [ops.reshape(x, (-1,)) for x in (ids, kept)]
    return _from_flat(graph.node("Compress", *flat, shape=(None,)), _running(lengths))


@op
def text_of_bytes(characters, byte_of):
    """Texts of strings that write each byte as one character.

    What is no UTF-8 becomes a replacement character for each longest part that could
    begin one, as Unicode recommends (chapter 3.9) and Rust and Python do.

    Args:
        characters: string (N,).
        byte_of: dict from each of the 256 characters to its byte.

    Returns:
        string (N,).
    """
    import tensorflow as tf

    codes = tf.strings.unicode_decode(characters, "UTF-8")
    _, place = _search(codes.values, byte_of)
    raw = tf.constant([bytes([b]) for b in _sorted(byte_of).values()])
    text = tf.strings.reduce_join(codes.with_values(tf.gather(raw, place)), axis=-1)
    return tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace")


@text_of_bytes.emits
def _(graph, characters, byte_of):
    table = {**byte_of, "": -1}
    codes = _looked_up(graph, _characters(graph, characters), table, -1)
    return joined(picked(_BYTES, _shown(codes)))


# What a place of a text shows: one of the 256 bytes, nothing, or that text was lost.
_NOTHING, _REPLACED = 256, 257
_BYTES = [*(bytes([b]) for b in range(256)), b"", _LOST.encode()]


def _shown(codes):
    """Which of `_BYTES` stand for bytes: int (N, T), -1 behind a text's end."""
    batch = ops.dim(codes, 0)
    end = ops.full((batch, 3), -1, "int32")

    def after(x, count):
        """What stands `count` places on."""
        longer = ops.concatenate([x, end], axis=1)
        return ops.take(longer, ops.arange(ops.dim(x, 1)) + count, axis=1)

    def before(x, count):
        longer = ops.concatenate([end, x], axis=1)
        return ops.take(longer, ops.arange(ops.dim(x, 1)) + (3 - count), axis=1)

    def between(x, low, high):
        return (x >= low) & (x <= high)

    def number(condition):
        return ops.cast(condition, "int32")

    # How many bytes follow a first one, and in which range the next may be: there is
    # one way to write a character, and none for surrogates or beyond U+10FFFF.
    needed = (
        number(between(codes, 0xC2, 0xF4))
        + number(between(codes, 0xE0, 0xF4))
        + number(between(codes, 0xF0, 0xF4))
    )
    low = 0x80 + number(codes == 0xE0) * 0x20 + number(codes == 0xF0) * 0x10
    high = 0xBF - number(codes == 0xED) * 0x20 - number(codes == 0xF4) * 0x30
    following = after(codes, 1)
    fits = (needed > 0) & (following >= low) & (following <= high)
    found = number(fits)
    for count in (2, 3):
        fits = fits & (needed >= count) & between(after(codes, count), 0x80, 0xBF)
        found = found + number(fits)
    whole = between(codes, 0, 0x7F) | ((needed > 0) & ops.equal(found, needed))
    shown, hidden = whole, codes < 0
    for count in (1, 2, 3):
        inside = before(found, count) >= count
        good = number(before(number(whole), count) > 0)
        shown = shown | (inside & (good > 0))
        hidden = hidden | (inside & (good == 0))
    kept = ops.where(shown, codes, _REPLACED)
    return ops.where(hidden, _NOTHING, kept)


# Parts of the above.


def _always(state):
    return state[1] >= 0


def _sorted(table):
    return dict(sorted(table.items()))


def _search(codes, table):
    """Where code points are among the table's sorted keys; bool (T,), int (T,)."""
    import tensorflow as tf

    keys = tf.constant(np.array([ord(c) for c in _sorted(table)], "int32"))
    place = tf.minimum(tf.searchsorted(keys, codes), len(table) - 1)
    return tf.equal(tf.gather(keys, place), codes), place


def _from_ragged(ids):
    import tensorflow as tf

    return ids.to_tensor(0), tf.sequence_mask(ids.row_lengths())


def _from_flat(ids, splits):
    """Rows (B, T) and their mask of ids in one row, and where each text's begin."""
    starts = ops.slice_axis(splits, 0, -1, axis=0)
    lengths = ops.slice_axis(splits, 1, None, axis=0) - starts
    columns = ops.expand_dims(ops.arange(ops.max(lengths)), 0)
    mask = columns < ops.expand_dims(lengths, 1)
    index = ops.where(mask, ops.expand_dims(starts, 1) + columns, 0)
    ids = ops.concatenate([ids, np.array([0])], axis=0)  # there may be none
    return ops.take(ids, index), mask


def _running(x):
    """Sums of what stands before each place, and of all: int (T,) to (T + 1,)."""
    return ops.concatenate([np.array([0]), ops.cumsum(x, axis=0)], axis=0)


def _strings(graph, *strings):
    return graph.node(
        "Constant", shape=(len(strings),), dtype="string", value_strings=list(strings)
    )


def _split(graph, text, delimiter):
    """Parts of texts, string (B, W), and how many each has, int (B,)."""
    return graph.node(
        "StringSplit",
        text,
        delimiter=delimiter,
        shape=[(text.shape[0], None), text.shape],
        dtype=["string", "int64"],
    )


def _characters(graph, text):
    """string (B, T), each one character; short rows are filled with ""."""
    return graph.node(
        "Tokenizer",
        text,
        domain="com.microsoft",
        mark=0,
        mincharnum=1,
        pad_value="",
        separators=[""],
        shape=(text.shape[0], None),
    )


def _looked_up(graph, strings, table, default):
    """Values of strings, all `str` or all int."""
    kind = "strings" if isinstance(default, str) else "int64s"
    return graph.node(
        "LabelEncoder",
        strings,
        domain="ai.onnx.ml",
        shape=strings.shape,
        dtype="string" if kind == "strings" else "int64",
        keys_strings=list(table),
        **{
            f"values_{kind}": list(table.values()),
            f"default_{kind[:-1]}": default,
        },
    )


# At a NUL the extensions end a text, and U+0085 is no white space to some of them.
_NAMES = {"\0": "NUL", "\x85": "U+0085"}


def _without(graph, text, refused):
    """The text; the run fails where it holds a character that is refused."""
    pattern = "".join(f"\\x{{{ord(character):x}}}" for character in refused)
    right = graph.node("RegexFullMatch", text, dtype="bool", pattern=f"[^{pattern}]*")
    names = " or ".join(_NAMES[character] for character in refused)
    return _required(text, ops.all(right), f"text must have no {names} character")


def _required(x, holds, message):
    """`ops.required` in ONNX, of strings, too: of the places of the rows."""
    rows = ops.required(ops.arange(ops.dim(x, 0)), holds, message)
    return ops.take(x, rows)
