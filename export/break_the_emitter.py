"""Breaks the ONNX emitter in thirteen ways and shows that an export refuses every one.

    python export/break_the_emitter.py

Each fault is what a slip in an emission rule would do. A fault that an export lets
through, or that changes nothing, ends the script with status 1.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import keras
import numpy as np

import kzoo
from kzoo.exporters import ExportError
from kzoo.ops.onnx_graph import OnnxGraph

SMALL = dict(num_layers=2, hidden_dim=16, intermediate_dim=32, num_heads=4)
WINDOW = 5
emit = OnnxGraph.node


def attribute(name, change):
    return lambda inputs, options: (
        inputs,
        {**options, name: change(options.get(name))},
    )


def swapped(first, second):
    def change(inputs, options):
        inputs = list(inputs)
        inputs[first], inputs[second] = inputs[second], inputs[first]
        return inputs, options

    return change


def without(place):
    return lambda inputs, options: (
        [None if i == place else x for i, x in enumerate(inputs)],
        options,
    )


def is_mask(inputs, options):
    return len(inputs) > 3 and inputs[3] is not None


def is_position_table(inputs, options):
    return "position_embedding" in getattr(inputs[0], "name", "")


def constant(inputs, value):
    return inputs[0].graph.constant(np.int64(value))


def is_window(inputs, options):
    return inputs[1].name == constant(inputs, WINDOW).name


def has_cache(inputs, options):
    return len(inputs) > 5 and inputs[4] is not None


def joins_keys(inputs, options):
    head_dim = SMALL["hidden_dim"] // SMALL["num_heads"]
    return options["axis"] == 3 and inputs[0].shape[2] == head_dim


def is_panels(inputs, options):
    return getattr(inputs[1], "name", "").endswith("_panels")


# What is broken: name -> (operator, whether this node, what becomes of it, the model).
FAULTS = {
    "attention's scale is 5 % off": (
        "Attention", None, attribute("scale", lambda x: x * 1.05), "decoder"),
    "attention has no mask": ("Attention", is_mask, without(3), "encoder_decoder"),
    "keys and values are swapped": ("Attention", None, swapped(1, 2), "decoder"),
    "a norm's gain and shift are swapped": (
        "LayerNormalization", None, swapped(1, 2), "encoder_decoder"),
    "a norm's epsilon is 0.1": (
        "RMSNormalization", None, attribute("epsilon", lambda x: 0.1), "decoder"),
    "a norm has no shift": (
        "LayerNormalization", None, without(2), "encoder_decoder"),
    "positions are one too high": (
        "Gather", is_position_table, lambda inputs, options: (
            [inputs[0], inputs[1] + 1], options), "encoder_decoder"),
    "rotary pairs are interleaved": (
        "RotaryEmbedding", None, attribute("interleaved", lambda x: 1), "decoder"),
    "the exact GELU is the approximate one": (
        "Gelu", None, attribute("approximate", lambda x: "tanh"), "encoder_decoder"),
    "cached keys and values are swapped": (
        "Attention", has_cache, swapped(4, 5), "decoder"),
    "a window is a token wider": (
        "Less", is_window, lambda inputs, options: (
            [inputs[0], constant(inputs, WINDOW + 1)], options), "windowed"),
    "new keys are joined in front": (
        "Concat", joins_keys, swapped(0, 1), "low_memory"),
    "panels are multiplied by twice the row": (
        "MatMul", is_panels, lambda inputs, options: (
            [inputs[0] + inputs[0], *inputs[1:]], options), "low_memory"),
}  # fmt: skip


def model(architecture):
    """A small model with perturbed weights: of initial ones, norms are all alike."""
    if architecture == "encoder_decoder":
        kind, own = kzoo.Seq2SeqLM, dict(positions="learned", activation="gelu")
    else:
        kind, own = kzoo.CausalLM, dict(
            positions="rotary", norm="rms_norm", feed_forward="gated", activation="silu"
        )  # fmt: skip
        if architecture == "windowed":
            own["attention_window"] = WINDOW
    keras.utils.set_random_seed(0)
    task = kind.from_size("tiny", vocabulary_size=29, **SMALL, **own)
    random = np.random.default_rng(0)
    for variable in task.weights:
        noise = random.normal(0, 0.3, variable.shape).astype("float32")
        variable.assign(variable + noise)
    return task


def attempt(task, fault=(None, None, None), **form):
    """What the export says, and how many nodes were changed."""
    operator, chosen, change = fault
    count = 0

    def node(graph, op_type, *inputs, **options):
        nonlocal count
        if op_type == operator and (chosen is None or chosen(inputs, options)):
            inputs, options = change(inputs, options)
            count += 1
        return emit(graph, op_type, *inputs, **options)

    OnnxGraph.node = node
    try:
        with tempfile.TemporaryDirectory() as folder:
            task.export(Path(folder) / "model", format="onnx", **form)
    except ExportError as error:
        return str(error).split(": ", 1)[-1], count
    finally:
        OnnxGraph.node = emit
    return None, count


def main():
    """Runs all; the status."""
    models = {
        name: (model(name), dict(low_memory=True) if name == "low_memory" else {})
        for name in ("decoder", "encoder_decoder", "windowed", "low_memory")
    }
    for name, (task, form) in models.items():
        message, _ = attempt(task, **form)
        if message:
            print(f"{name} without a fault is refused: {message}")
            return 1
    missed = 0
    for name, (*fault, architecture) in FAULTS.items():
        task, form = models[architecture]
        message, count = attempt(task, fault, **form)
        missed += message is None
        found = message[:60] if message else "NOT NOTICED"
        print(f"{name:38} {count:3} x {fault[0]:18} {found}")
    print(f"{len(FAULTS) - missed} of {len(FAULTS)} faults were refused.")
    return min(missed, 1)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()
    sys.exit(main())
