"""The functions of a task with strings where it has ids."""

import dataclasses
import functools
import itertools
import warnings

import numpy as np

from kzoo import ops
from kzoo.exporters.errors import ExportError
from kzoo.exporters.inputs import column
from kzoo.exporters.signatures import LONG, Argument, Function, TextForm
from kzoo.exporters.text import strings
from kzoo.exporters.text.check import read_as_the_graph
from kzoo.exporters.text.texts import HARD, vocabulary_texts
from kzoo.ops.onnx_graph import to_numpy


def text_functions(task, codec):
    """What an artifact of text offers.

    A language model generates: `text` to `generated_text`, beside the function's own
    arguments and scores. The others read: `text`, or `first` and `second`, to what the
    task's `text_outputs` says.

    Args:
        task: a task of kzoo.
        codec: of its tokenizer.

    Returns:
        A list of `Function`s.

    Raises:
        ExportError: the task has no such form.
    """
    own = {function.name: function for function in task.export_functions()}
    if "generate" in own:
        return [_generation(task, own["generate"], codec)]
    if not hasattr(task, "text_outputs"):
        raise ExportError(
            f"text=True is of tasks that answer with a text, a label, a number or a "
            f"vector, and {type(task).__name__} answers with places in a text. Leave "
            "it out: the artifact then takes token ids."
        )
    counts = sorted(task.texts_per_example, reverse=True)
    if task.template.pair is None and 1 in counts:
        counts = [1]
    return [_reading(task, own["forward"], codec, texts) for texts in counts]


def _generation(task, function, codec):
    """`generate` with `text` for the prompt, and for what is new `generated_text`.

    In ONNX an output cannot have the name of an input. All of the token that completes
    a stop string is in the text: a graph knows such strings by the states of
    `automaton` alone, and the caller cuts, as `kzoo.generation.streaming.before_stop`
    does. As in a file of ids, the score of what does not exist is -1e30.
    """
    prompt = task.prompt_input
    (before, after), outputs = task.prompt_specials, dict(function.outputs)
    outputs = {"generated_text": outputs.pop("sequences")[:2], **outputs}
    own = task._own_inputs()

    def call(inputs):
        inputs = {**own, **inputs}
        ids, mask = codec.encode(strings.checked(inputs.pop("text"), "text"))
        columns = [*_ends(ids, before), (ids, mask), *_ends(ids, after)]
        if not [*before, *after]:  # an empty text has a place, too
            ((none, seen),) = _ends(ids, [task.config.pad_token_id])
            columns.append((none, ~seen))
        ids, _ = _packed(columns, task)
        answer = function.call({**inputs, prompt: ids})
        ids = answer.pop("sequences")
        batch, hypotheses = ops.dim(ids, 0), ops.dim(ids, 1)
        if "stop_token_ids" in inputs:  # what they end, they are no part of
            size = task.config.decoder.vocabulary_size
            stops = ops.members(ops.expand_dims(inputs["stop_token_ids"], 0), size)
            stops = ops.take(ops.reshape(stops, (size,)), ids)
            ids = ops.where(stops, task.config.end_token_id, ids)
        end = task.config.end_token_id
        if end != codec.tokenizer.end_token_id:  # which its texts end at by themselves
            ended = ops.cumsum(ops.cast(ops.equal(ids, end), "int32"), axis=2) > 0
            ids = ops.where(ended, codec.tokenizer.vocabulary_size, ids)  # left out
        flat = ops.reshape(ids, (batch * hypotheses, -1))
        text = _shaped(codec.decode(flat), (batch, hypotheses))
        return {"generated_text": text, **answer}

    def read(inputs):
        inputs = dict(inputs)
        texts = inputs.pop("text").tolist()
        with read_as_the_graph(task.tokenizer, codec, texts):
            rows = task.encode_prompts(texts)
        return {**inputs, prompt: column(task, prompt, rows)}

    def write(inputs, answer):
        answer = dict(answer)
        ids = answer.pop("sequences")
        stops = {**own, **inputs}.get("stop_token_ids", ())
        ends = {task.config.end_token_id, *stops}
        rows = [task._trimmed(row, ends) for each in ids.tolist() for row in each]
        text = np.array(task.decode(rows), object).reshape(ids.shape[:2])
        return {"generated_text": text, **answer}

    def cases(generator):
        made = function.cases(generator)
        made.pop(LONG, None)  # no text is so long
        pool = iter(_fitting(task, codec, generator))
        for inputs in made.values():
            if codec.null is not None:  # a run ends where it comes
                null = np.array([codec.null], "int32")
                banned = inputs.get("banned_token_ids", null)
                inputs["banned_token_ids"] = np.union1d(banned, null)
                if "forced_token_ids" in inputs:
                    forced = inputs["forced_token_ids"]
                    inputs["forced_token_ids"] = np.where(forced == null, -1, forced)
            inputs["text"] = _array([next(pool, "") for _ in inputs.pop(prompt)])
        first = next(iter(made.values()))
        return {**made, "hard texts": {**first, "text": _array([*pool, ""])}}

    return dataclasses.replace(
        function,
        arguments=(
            Argument("text", "string", ("batch",)),
            *(a for a in function.arguments if a.name != prompt),
        ),
        outputs=outputs,
        call=call,
        cases=cases,
        text=TextForm(function, read, write),
        end_token_id=None,
        pad_token_id=None,
        resources=codec.resources,
    )


def _reading(task, function, codec, texts):
    """`forward` with `text`, or `first` and `second`, for its inputs."""
    names = ["text"] if texts == 1 else ["first", "second"]
    axes, answered = task.text_outputs
    with_segments = "segment_ids" in task._signature()

    def call(inputs):
        parts = [codec.encode(strings.checked(inputs[name], name)) for name in names]
        ids = parts[0][0]
        first, *others = task.template.around(texts)
        columns = _ends(ids, first)
        for part, special in zip(_cut(parts, task), others):
            columns += [part, *_ends(ids, special)]
        segments = task.template.segments(texts)
        if not any(map(len, (first, *others))):  # an empty text has a place, too
            ((start, seen),) = _ends(ids, [task.config.start_token_id])
            some = [ops.any(mask, axis=1) for _, mask in columns]
            some = functools.reduce(lambda a, b: a | b, some)
            columns.append((start, seen & ~ops.expand_dims(some, 1)))
            segments = (*segments, 0)
        ids, order = _packed(columns, task)
        features = {"token_ids": ids}
        if with_segments:
            rows = [ops.cast(m, "int32") * s for (_, m), s in zip(columns, segments)]
            features["segment_ids"] = _ordered(rows, order)
        return answered(function.call(features), strings.picked)

    def read(inputs):
        columns = [inputs[name].tolist() for name in names]
        examples = columns[0] if texts == 1 else list(zip(*columns))
        with (
            read_as_the_graph(task.tokenizer, codec, itertools.chain(*columns)),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")  # that texts were cut, which they should
            features = task.encode_texts(examples)
        return {name: column(task, name, rows) for name, rows in features.items()}

    def write(inputs, outputs):
        # numpy takes torch's tensor of one place for a number, and none of a GPU.
        outputs = answered(
            outputs, lambda names, i: np.array(names, object)[to_numpy(i)]
        )
        return {name: to_numpy(value) for name, value in outputs.items()}

    def cases(generator):
        rows = {
            "batch 1": ["A man rides a bike."],
            "batch 3": ["a", "", "  A man, a bike,  "],
            "hard texts": _taken(codec, generator),
        }
        made = {
            name: {key: _array(np.roll(row, i)) for i, key in enumerate(names)}
            for name, row in rows.items()
        }
        text = [" ".join(rows["batch 3"]) * 9]
        made["nothing in any"] = {name: _array([""] * 2) for name in names}
        for empty in names if texts > 1 else ():  # in all of a batch
            made[f"{empty} is empty"] = {
                name: _array([""] if name == empty else text) for name in names
            }
        return made

    return Function(
        "forward" if texts == min(task.texts_per_example) else "forward_pairs",
        tuple(Argument(name, "string", ("batch",)) for name in names),
        {name: ("batch", *rest) for name, rest in axes.items()},
        call,
        cases,
        text=TextForm(function, read, write),
        resources=codec.resources,
    )


def _ends(ids, special):
    """A column of each special id, with its mask."""
    batch = ops.dim(ids, 0)
    return [
        (ops.full((batch, 1), i, "int32"), ops.full((batch, 1), True, "bool"))
        for i in special
    ]


def _cut(parts, task):
    """Parts, ids and masks, with room beside what is special; see `_fitted`."""
    if task._limit is None:
        return parts
    room = task._limit - sum(map(len, task.template.around(len(parts))))
    lengths = [ops.sum(ops.cast(mask, "int32"), axis=1) for _, mask in parts]
    if len(parts) == 1:
        allowed = [lengths[0] * 0 + room]
    else:
        least = ops.maximum(room - lengths[1], room - room // 2)
        first = ops.minimum(lengths[0], least)
        allowed = [first, room - first]
    return [
        (ids, mask & (_columns(ids) < ops.expand_dims(most, 1)))
        for (ids, mask), most in zip(parts, allowed)
    ]


def _packed(columns, task):
    """Ids side by side without what no mask allows, and padded; and their order."""
    masks = [mask for _, mask in columns]
    hidden = _joined([1 - ops.cast(mask, "int32") for mask in masks])
    longest = ops.maximum(ops.max(ops.sum(1 - hidden, axis=1)), 1)
    order = ops.argsort(hidden)  # stable
    order = ops.take(order, ops.arange(longest), axis=1)
    ids = _ordered([ids for ids, _ in columns], order)
    shown = ops.equal(_ordered([hidden], order), 0)
    return ops.where(shown, ids, task.config.pad_token_id), order


def _joined(rows):
    return rows[0] if len(rows) == 1 else ops.concatenate(rows, axis=1)


def _ordered(rows, order):
    return ops.take_along_axis(_joined(rows), order, axis=1)


def _columns(ids):
    return ops.expand_dims(ops.arange(ops.dim(ids, 1)), 0)


def _shaped(text, shape):
    """`ops.reshape`, which Keras has for numbers alone."""
    if ops.is_onnx(text):
        return ops.reshape(text, shape)
    import tensorflow as tf

    return tf.reshape(text, shape)


def _taken(codec, generator):
    """Texts that tell tokenizers apart, but for those that the graph refuses."""
    texts = [*HARD, *vocabulary_texts(codec.tokenizer, generator)]
    return list(filter(codec.takes, texts))


def _fitting(task, codec, generator):
    """Texts that leave room for the new tokens of a request without options."""
    texts = _taken(codec, generator)
    stack = task.config.encoder or task.config.decoder
    if stack.positions != "learned":
        return texts
    limit = stack.max_sequence_length // (1 if task.config.encoder else 2)
    lengths = map(len, task.encode_prompts(texts))
    return [text for text, length in zip(texts, lengths) if length <= limit]


def _array(texts):
    """Strings as numpy has them without cutting NULs."""
    return np.array(list(texts), object)
