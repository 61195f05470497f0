"""Which inputs of a Keras model share a length.

Inputs whose axis has one name promise one length, and onnxruntime plans its memory on
that.
"""

from itertools import product

import numpy as np

from kzoo.exporters.errors import ExportError
from kzoo.exporters.tf2onnx.comparison import draw_inputs, expected_outputs

_MOST_INPUTS = 6  # the trials double with each


def lengths_of_model(signature, limits):
    """The signature with a name for each length that the model takes for itself.

    Every input has a length of its own where the model takes that; otherwise some share
    one, as ids and their mask do, in the smallest groups that it takes.

    Args:
        signature: the `Signature`.
        limits: as for `draw_inputs`.
    """
    for names in _together(signature):
        signature = _apart(signature, _groups(signature, limits, names))
    return signature


def lengths_of_inputs(signature, inputs):
    """The signature with names of their own for lengths that differ in some run.

    Args:
        signature: the `Signature`.
        inputs: dicts of arrays, one a run.
    """
    for names in _together(signature):
        groups = {}
        for name in names:
            sizes = tuple(np.shape(example[name])[1] for example in inputs)
            groups.setdefault(sizes, []).append(name)
        signature = _apart(signature, list(groups.values()))
    return signature


def _together(signature):
    """The inputs whose length has one name, for each name of two and more."""
    found = {}
    for name, shape in zip(signature.names, signature.shapes):
        if len(shape) > 1 and isinstance(shape[1], str):
            found.setdefault(shape[1], []).append(name)
    return [names for names in found.values() if len(names) > 1]


def _apart(signature, groups):
    if len(groups) == 1:
        return signature
    return signature.renamed(
        {name: {1: f"{group[0]}_sequence"} for group in groups for name in group}
    )


def _groups(signature, limits, names):
    """The inputs that no split in two, of those that the model takes, tells apart."""

    def takes(groups):
        try:
            for example in draw_inputs(_apart(signature, groups), limits):
                expected_outputs(signature, example)
        except ExportError:
            return False
        return True

    alone = [[name] for name in names]
    if takes(alone):
        return alone
    groups = {"": names}
    splits = product("01", repeat=len(names) - 1) if len(names) <= _MOST_INPUTS else ()
    for split in splits:
        halves = {"0": [], "1": []}
        for name, half in zip(names, ("0", *split)):
            halves[half].append(name)
        if halves["1"] and takes(list(halves.values())):
            groups = {
                key + half: both
                for key, group in groups.items()
                for half, others in halves.items()
                if (both := [name for name in group if name in others])
            }
    groups = list(groups.values())
    return groups if len(groups) > 1 and takes(groups) else [names]
