"""Inputs that end an artifact's run in an error where no result of theirs is right.

A runtime that computed with them would give a wrong result, or read beyond a table, and
no error.
"""

from kzoo import ops
from kzoo.generation import RANGES


def in_table(ids, name, lowest, end):
    """The ids, which end a run in an error where one is out of [lowest, end)."""
    wrong = ops.sum(ops.cast((ids < lowest) | (ids >= end), "int32"))
    message = f"{name} must be in [{lowest}, {end})"
    return ops.required(ids, ops.equal(wrong, 0), message)


def within(x, limit, message, axis):
    """The tensor, which ends a run in an error where an axis is longer than a limit.

    Its length is what is required, so that positions, which follow from that alone, are
    not read before.
    """
    length = ops.dim(x, axis)
    length = ops.required(length, length <= limit, message)
    return ops.take(x, ops.arange(length), axis=axis)


def in_ranges(inputs):
    """The inputs, which end a run in an error where an option is out of range."""
    inputs = dict(inputs)
    for name, (lowest, highest) in RANGES.items():
        if name not in inputs:
            continue
        value = inputs[name]
        message = f"{name} must be at least {lowest}"
        inputs[name] = value = ops.required(value, value >= lowest, message)
        if highest is not None:
            message = f"{name} must be at most {highest}"
            inputs[name] = ops.required(value, value <= highest, message)
    return inputs


def in_harmony(inputs, prompts, vocabulary_size):
    """The inputs, which end a run in an error where one contradicts another.

    So does `SearchOptions`, and more where a constraint would have to be followed, or
    something is forced behind an end, which a file leaves out.

    Args:
        inputs: of a search, each in its own range.
        prompts: how many there are.
        vocabulary_size: V.
    """
    inputs = dict(inputs)
    given, limit = inputs.get, inputs["max_new_tokens"]
    temperature = given("temperature", 0.0)

    def require(name, holds, message):
        if name in inputs:
            message = f"{name} must be {message}"
            inputs[name] = ops.required(inputs[name], holds, message)

    fewer = given("num_return_sequences") <= given("beams")
    require("num_return_sequences", fewer, "at most beams")
    alone = (given("beams") < 2) | (temperature <= 0.0)
    require("temperature", alone, "0 with several beams")
    draws = temperature > 0.0
    require("top_k", draws | (given("top_k", 0) < 1), "0 without a temperature")
    require("top_p", draws | (given("top_p", 1.0) >= 1.0), "1 without a temperature")
    require("min_p", draws | (given("min_p", 0.0) <= 0.0), "0 without a temperature")
    least = given("min_new_tokens", 0)
    require("min_new_tokens", least <= limit, "at most max_new_tokens")
    if "forced_token_ids" in inputs:
        forced = inputs["forced_token_ids"]
        rows, places = ops.dim(forced, 0), ops.dim(forced, 1)
        fits = ops.equal(rows, 1) | ops.equal(rows, prompts)
        require("forced_token_ids", fits, "1 row, or one for each prompt")
        require("forced_token_ids", places <= limit, "no longer than max_new_tokens")
        if "banned_token_ids" in inputs:
            both = [
                ops.members(ops.reshape(ids, (1, -1)), vocabulary_size)
                for ids in (forced, inputs["banned_token_ids"])
            ]
            none = ~ops.any(both[0] & both[1])
            require("forced_token_ids", none, "other ids than banned_token_ids")
    return inputs
