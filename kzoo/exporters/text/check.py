"""Holds a tokenizer in a graph to the one that it is made from."""

import tempfile
from pathlib import Path

import numpy as np

from kzoo.exporters import onnx, saved_model
from kzoo.exporters.errors import ExportError
from kzoo.exporters.signatures import Argument, Function
from kzoo.exporters.text.strings import MINIMUM_OPSET
from kzoo.exporters.text.texts import HARD, character_texts, vocabulary_texts
from kzoo.generation.streaming import before_end

_BATCH = 64


def check_codec(codec, format, writes):
    """Compares ids, and texts, on hard texts, those of the vocabulary, and all scripts.

    Args:
        codec: `Codec`.
        format: `"onnx"` or `"tf_saved_model"`.
        writes: whether it has to decode, too.

    Raises:
        ExportError: something differs; the first text that does is named.
    """
    tokenizer, generator = codec.tokenizer, np.random.default_rng(0)
    texts = [*HARD, *vocabulary_texts(tokenizer, generator, 64), *character_texts()]
    if format == "onnx":
        texts = filter(codec.takes, texts)
    encode = Function(
        "encode",
        (Argument("text", "string", ("batch",)),),
        {"ids": ("batch", "sequence"), "mask": ("batch", "sequence")},
        lambda inputs: dict(zip(("ids", "mask"), codec.encode(inputs["text"]))),
        None,
    )
    run = _runner(encode, format)
    for batch in _batches(texts):
        answer = run({"text": np.array(batch, object)})
        for text, ids, mask, right in zip(
            batch, answer["ids"], answer["mask"], tokenizer.encode(batch)
        ):
            if ids[mask].tolist() != right:
                raise ExportError(
                    f"In the graph {tokenizer!r} reads {text!r} as {ids[mask].tolist()}"
                    f", and in Python as {right}. Leave text out: the artifact then "
                    "takes token ids."
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
    run = _runner(decode, format)
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
            return onnx.runner(function, onnx.open_session(path))
    import tensorflow as tf

    compiled = saved_model._concrete(function)

    def run(inputs):
        tensors = {a.name: tf.constant(inputs[a.name], a.dtype) for a in arguments}
        outputs = {k: v.numpy() for k, v in compiled(**tensors).items()}
        if "text" in outputs:
            outputs["text"] = [text.decode("utf-8") for text in outputs["text"]]
        return outputs

    arguments = function.arguments
    return run
