"""A decoder over a cache, with the names that onnxruntime-genai and others read."""

import warnings

import numpy as np

from kzoo import ops
from kzoo.exporters.checks import reference
from kzoo.exporters.genai import model_inputs
from kzoo.exporters.signatures import Argument, Function
from kzoo.tasks.generates import own_method
from kzoo.tasks.guards import in_table
from kzoo.tasks.stepwise import by_layer, cache_names, flat


def genai_function(task):
    """`model`: input_ids, attention_mask, position_ids and a cache to logits and cache.

    `attention_mask` is 1 at real tokens, those of the cache first. `position_ids` count
    the real tokens of a row from 0. Padding may stand anywhere: onnxruntime-genai fills
    the prompts of a batch on the right, and puts new tokens behind that.

    Args:
        task: a `CausalLM`.

    Returns:
        A `Function`.
    """
    own = own_method(task, "call", "step")
    if own:
        warnings.warn(
            f"{own} is not in what onnxruntime-genai runs, which is the decoder and "
            "the head alone: what it changes of the logits is left out.",
            stacklevel=3,
        )
    config = task.config.decoder
    past = cache_names("past_key_values.{}.{}", config, "past_sequence")
    present = cache_names("present.{}.{}", config, "total_sequence")

    def model(inputs):
        layers = by_layer([inputs[name] for name in past])
        mask = ops.cast(inputs["attention_mask"], "int32")
        seen = ops.dim(layers[0][0], 2)
        length = seen + ops.dim(inputs["input_ids"], 1)
        message = "attention_mask must be as long as the cache and input_ids together"
        mask = ops.required(mask, ops.dim(mask, 1) == length, message)
        mask = in_table(mask, "attention_mask", 0, 2)
        ids = in_table(inputs["input_ids"], "input_ids", 0, config.vocabulary_size)
        positions = inputs["position_ids"]
        if config.positions == "learned":
            limit = config.max_sequence_length
            positions = in_table(positions, "position_ids", 0, limit)
        with ops.fixed_buffers(False):
            states, layers = task.decoder(
                ids,
                padding_mask=mask > 0,
                positions=positions,
                places=(positions, ops.maximum(ops.cumsum(mask, axis=1) - 1, 0)),
                cache=layers,
                index=seen,
            )
        return {"logits": task.head(states), **dict(zip(present, flat(layers)))}

    empty = config.num_key_value_heads, 0, config.head_dim

    def inputs_of(ids):
        cache = np.zeros((len(ids), *empty), "float32")
        mask = ids != task.config.pad_token_id
        return {**model_inputs(ids, mask), **dict.fromkeys(past, cache)}

    def cases(generator):
        made, cases = {}, {}
        for text, size, side, more in (
            ("batch 1", 1, "left", 3),
            ("batch 3, padded on the left", 3, "left", 1),
            ("batch 3, padded on the right", 3, "right", 1),
        ):
            padding = "behind" if size > 1 else None
            ids = task._random_ids(generator, "token_ids", (size, 9), padding)
            made[text] = ids[:, ::-1] if side == "left" else ids, more
        made |= {text: (ids, 1) for text, ids in task._long_prompt(generator).items()}
        for text, (ids, more) in made.items():
            mask = ids != task.config.pad_token_id
            cases[text] = inputs_of(ids)
            outputs = reference(function, cases[text])
            cache = {name: outputs[new] for name, new in zip(past, present)}
            ids = task._random_ids(generator, "token_ids", (len(ids), more))
            mask = np.concatenate([mask, np.ones_like(ids, bool)], axis=1)
            cases[f"{text}, {more} more"] = {**model_inputs(ids, mask), **cache}
        return cases

    function = Function(
        "model",
        (
            Argument("input_ids", "int32", ("batch", "sequence")),
            Argument("attention_mask", "int32", ("batch", "total_sequence")),
            Argument("position_ids", "int32", ("batch", "sequence")),
            *(Argument(name, "float32", axes) for name, axes in past.items()),
        ),
        {"logits": ("batch", "sequence", config.vocabulary_size), **present},
        model,
        cases,
        given=lambda inputs: inputs_of(inputs["token_ids"]),
        task=task,
    )
    return function
