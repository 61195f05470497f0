"""Holds a tokenizer in a graph to the one that it is made from."""

import contextlib
import functools
import tempfile
import threading
from pathlib import Path

import numpy as np

from kzoo.exporters import onnx, onnx_session, saved_model
from kzoo.exporters.errors import ExportError
from kzoo.exporters.signatures import Argument, Function
from kzoo.exporters.text.strings import MINIMUM_OPSET
from kzoo.exporters.text.texts import HARD, character_texts, vocabulary_texts
from kzoo.generation.streaming import before_end

_BATCH = 64
# What is probed for ties: so many pieces, with their last letter so many times more.
_PROBED, _TIMES = 1000, (2, 3)
# Keras answers in a thread beside this one, and both replace what a tokenizer does.
_READING = threading.Lock()


def check_codec(codec, writes):
    """Compares ids, and texts, on hard texts, those of the vocabulary, and all scripts.

    Args:
        codec: `Codec`, from `codec_of`.
        writes: whether it has to decode, too.

    Raises:
        ExportError: something differs; the first text that does is named.
    """
    tokenizer, generator = codec.tokenizer, np.random.default_rng(0)
    texts = [*HARD, *vocabulary_texts(tokenizer, generator, 64), *character_texts()]
    if codec.format == "onnx":
        texts = filter(codec.takes, texts)
    for text, ids, right in _otherwise(tokenizer, codec, texts):
        if not codec.is_tie(ids, right):
            raise ExportError(
                f"In the graph {tokenizer!r} reads {text!r} as {ids}, and in Python as "
                f"{right}. Leave text out: the artifact then takes token ids."
            )
    if not writes:
        return
    decode = Function(
        "decode",
        (Argument("ids", "int32", ("batch", "sequence")),),
        {"text": ("batch",)},
        lambda inputs: {"text": codec.decode(inputs["ids"])},
        None,
    )
    run = _runner(decode, codec.format)
    for length in (1, 3, 24):
        size = tokenizer.vocabulary_size
        ids = generator.integers(0, size, (_BATCH, length))
        ids[ids == codec.null] = 0
        ids[0, -1] = size  # where a model's table is larger, it says nothing
        end, pad = [tokenizer.end_token_id], tokenizer.pad_token_id
        rows = [before_end(row, end, pad) for row in ids.tolist()]
        right = tokenizer.decode([[i for i in row if i < size] for row in rows])
        for row, mine, theirs in zip(ids, run({"ids": ids})["text"], right):
            if mine != theirs:
                raise ExportError(
                    f"In the graph {tokenizer!r} writes {row.tolist()} as {mine!r}, "
                    f"and in Python as {theirs!r}. Leave text out: the artifact then "
                    "gives token ids."
                )


@contextlib.contextmanager
def read_as_the_graph(tokenizer, codec, texts):
    """Has a tokenizer split texts as the graph does, where its own splits are as right.

    So verification compares what a model makes of one split of a text, not of two.
    Where the graph gives other ids, and no tie explains it, the tokenizer keeps its
    own: then what is compared differs.

    Args:
        tokenizer: whose `encode` is another one in the block.
        codec: `Codec` of one that equals it.
        texts: strings; those that the graph refuses are left alone.
    """
    if not codec.has_ties:
        yield
        return
    with _READING:
        own = tokenizer.encode
        ties = {
            text: ids
            for text, ids, right in _otherwise(
                tokenizer, codec, filter(codec.takes, texts)
            )
            if codec.is_tie(ids, right)
        }

        def encode(texts):
            texts = list(texts)
            rows = zip(texts, own(texts), strict=True)
            return [ties.get(text, ids) for text, ids in rows]

        tokenizer.encode = encode
        try:
            yield
        finally:
            del tokenizer.encode


def a_tie(codec):
    """A text of which the graph takes the other one of two splits, or `None`.

    Looked for among pieces whose last letter repeats itself, as in "aggg": there "gg"
    and "g" give one text in either order.
    """
    if not codec.has_ties:
        return None
    tokenizer = codec.tokenizer
    kept = sorted(set(range(tokenizer.vocabulary_size)) - tokenizer.special_ids)
    pieces = tokenizer.decode([[i] for i in kept[:_PROBED]])
    probes = [piece + piece[-1:] * times for piece in pieces for times in _TIMES]
    found = _otherwise(tokenizer, codec, filter(codec.takes, probes))
    return next((t for t, ids, right in found if codec.is_tie(ids, right)), None)


def _otherwise(tokenizer, codec, texts):
    """Texts that the graph reads otherwise, short ones first: its ids, and Python's."""
    found = reader(codec)(texts)
    rows = zip(found.items(), tokenizer.encode(list(found)), strict=True)
    return [(text, ids, right) for (text, ids), right in rows if ids != right]


def reader(codec):
    """From texts to a dict: each, short ones first, with the ids that a graph gives."""
    return _reader(codec, *(codec.resources() if codec.format != "onnx" else ()))


@functools.lru_cache(maxsize=2)  # as many as there are codecs
def _reader(codec, *resources):  # of which TensorFlow may have made others
    encode = Function(
        "encode",
        (Argument("text", "string", ("batch",)),),
        {"ids": ("batch", "sequence"), "mask": ("batch", "sequence")},
        lambda inputs: dict(zip(("ids", "mask"), codec.encode(inputs["text"]))),
        None,
    )
    run = _runner(encode, codec.format)

    def read(texts):
        found = {}
        for batch in _batches(texts):
            answer = run({"text": np.array(batch, object)})
            rows = zip(batch, answer["ids"], answer["mask"], strict=True)
            found.update((text, ids[mask].tolist()) for text, ids, mask in rows)
        return found

    return read


def _batches(texts):
    """Texts of like lengths."""
    texts = sorted(texts, key=len)
    return [texts[i : i + _BATCH] for i in range(0, len(texts), _BATCH)]


def _runner(function, format):
    """From numpy inputs to numpy outputs, in this process."""
    if format == "onnx":
        from kzoo.ops.onnx_file import write_model

        graph = onnx.emit(function, {}, MINIMUM_OPSET)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "tokenizer.onnx"
            write_model(graph, path, metadata={})
            return onnx_session.runner(function, onnx_session.open_session(path))
    session = saved_model._Session(function, saved_model._concrete(function))
    return lambda inputs: dict(zip(function.outputs, session.run(None, inputs)))
