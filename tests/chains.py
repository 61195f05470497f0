"""A search over a chain: a model whose next-token scores depend on all tokens before.

Small enough for plain Python to follow, on tensors and in onnxruntime.
"""

import keras
import numpy as np
import onnxruntime

from kzoo import ops
from kzoo.generation import SEARCH_INPUTS, Start, search
from kzoo.ops.onnx_file import write_model
from kzoo.ops.onnx_graph import OnnxGraph
from tests import reference

END, PAD, STATES = 1, 0, 31


def chain(vocabulary_size, seed):
    """A table (STATES, V) of logits; state' = (7 * state + token + 1) % STATES."""
    generator = np.random.default_rng(seed)
    table = generator.normal(scale=1.5, size=(STATES, vocabulary_size))
    table[:, PAD] = -30.0  # padding is never generated
    return table.astype("float32")


def advance(state, token):
    return (7 * state + token + 1) % STATES


def reference_step(table, start):
    def step(tokens):
        state = start
        for token in tokens:
            state = advance(state, token)
        return reference.log_softmax(table[state].astype("float64"))

    return step


DEFAULTS = {"length_penalty": 1.0, "early_stopping": True, "num_return_sequences": 1}


POWERS = np.array([pow(7, n, STATES) for n in range(STATES)], "int32")


def searched(table, starts, prompt, options, capacity=None):
    """kzoo's search; the cache has all beams' tokens, so a step must ask for its own.

    The state behind tokens 0 to n is 7 ** (n + 1) * start + sum of 7 ** (n - i) *
    (token i + 1), so it is a sum over the entries that are seen.
    """

    def step(tokens, cache, place, fixed):
        tokens = ops.append(cache, tokens, place.filled, axis=1)
        if place.seen is None:
            order = ops.arange(ops.dim(tokens, 1))
            seen = ops.expand_dims(ops.expand_dims(order <= place.index, 0), 0)
        else:
            batch, _, beams, count = ops.shape(place.seen)
            order, seen = place.order, ops.reshape(place.seen, (batch, beams, count))
        powers = ops.take(POWERS, ops.maximum(place.index - order, 0) % (STATES - 1))
        values = ops.expand_dims(powers * (tokens + 1), 1)
        first = ops.take(POWERS, ops.reshape((place.index + 1) % (STATES - 1), (1, 1)))
        state = ops.sum(ops.where(seen, values, 0), axis=2) + first * fixed
        return ops.take(table, state % STATES, axis=0), tokens

    beams = options["beams"]
    room = capacity if ops.buffers_grow() else capacity * beams
    return search(
        step,
        Start(
            prompt,
            ops.buffer((ops.dim(prompt, 0), 0), 1, room, "int32"),
            0,
            ops.expand_dims(starts, 1),
            prompt=ops.expand_dims(prompt, 1),
        ),
        options,
        end_token_id=END,
        pad_token_id=PAD,
        vocabulary_size=table.shape[1],
        capacity=capacity,
    )


def run(table, starts, prompt, **options):
    """Sequences and scores of the search on tensors, as arrays."""
    starts, prompt = (keras.ops.convert_to_tensor(x, "int32") for x in (starts, prompt))
    capacity = options["max_new_tokens"]
    options = {
        name: keras.ops.convert_to_tensor(value, SEARCH_INPUTS[name][0])
        if np.ndim(value) and name in SEARCH_INPUTS
        else value
        for name, value in {**DEFAULTS, **options}.items()
    }
    results = searched(table, starts, prompt, options, capacity)
    return tuple(map(keras.ops.convert_to_numpy, results))


class InOnnx:
    """The search of one table in onnxruntime; every option is an input."""

    def __init__(self, table, path):
        self.graph, self.size = OnnxGraph(), table.shape[1]
        with self.graph.building():
            starts, prompt = (
                self.graph.input(name, (None,), "int64", axes=["batch"])
                for name in ("starts", "prompt")
            )
            options = {}
            for name, (dtype, axes, _) in SEARCH_INPUTS.items():
                size = table.shape[1]
                shape = tuple(size if a == "vocabulary" else None for a in axes)
                names = [size if a == "vocabulary" else a for a in axes]
                options[name] = self.graph.input(name, shape, dtype, axes=names)
            results = searched(table, starts, prompt, options)
            for name, value in zip(("sequences", "scores"), results, strict=True):
                self.graph.output(value, name, axes=(None,) * value.ndim)
        write_model(self.graph, path, metadata={})
        self.session = onnxruntime.InferenceSession(path)

    def __call__(self, starts, prompt, **options):
        feed = {"starts": np.array(starts), "prompt": np.array(prompt)}
        off = {1: np.zeros(0), 2: np.zeros((1, 0))}
        for name, (dtype, axes, default) in SEARCH_INPUTS.items():
            value = options.get(name, off[len(axes)] if axes else default)
            if name == "automaton" and name not in options:
                value = np.zeros((0, self.size))
            dtype = "int64" if dtype == "int32" else dtype
            feed[name] = np.array(value, dtype)
        return self.session.run(["sequences", "scores"], feed)


def without_padding(sequence):
    ids = list(sequence)
    return tuple(ids[: ids.index(END) + 1]) if END in ids else tuple(ids)
