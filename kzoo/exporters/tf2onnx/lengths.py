"""Which inputs of a Keras model share a length.

Inputs whose axis has one name promise one length, and onnxruntime plans its memory on
that.
"""

import itertools

import numpy as np

from kzoo.exporters.errors import ExportError
from kzoo.exporters.tf2onnx.comparison import draw_inputs, expected_outputs

# Groups of more inputs than these are not looked for, of many inputs none of several.
_LARGEST, _MANY = 3, 8


def lengths_of_model(signature, limits):
    """The signature with a name for each length that the model takes for itself.

    Every input has a length of its own where the model takes that; otherwise some share
    one, as ids and their mask do, in groups of up to three beside one of the others; of
    more than eight inputs, those that share any are one group.

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
    """The inputs of each length of several, but for those that the user named."""
    found = {}
    for name, shape in zip(signature.names, signature.shapes):
        given = 1 in signature.axes.get(name, {})
        if len(shape) > 1 and isinstance(shape[1], str) and not given:
            found.setdefault(shape[1], []).append(name)
    return [names for names in found.values() if len(names) > 1]


def _apart(signature, groups):
    if len(groups) == 1:
        return signature
    renamed = {name for group in groups for name in group}
    known = {
        size
        for name, shape in zip(signature.names, signature.shapes)
        for axis, size in enumerate(shape)
        if axis != 1 or name not in renamed
    }
    axes = {}
    for group in groups:
        length = f"{group[0]}_sequence"
        while length in known:
            length += "_1"
        known.add(length)
        axes |= {name: {1: length} for name in group}
    return signature.renamed(axes)


def _groups(signature, limits, names):
    """The smallest groups of inputs that the model takes with lengths of their own."""

    def takes(groups):
        try:
            for example in draw_inputs(_apart(signature, groups), limits):
                expected_outputs(signature, example)
        except ExportError:
            return False
        return True

    groups, left = [], names
    for size in range(1, 1 + (_LARGEST if len(names) <= _MANY else 1)):
        for group in itertools.combinations(names, size):
            others = [name for name in names if name not in group]
            if size < len(left) and {*group} <= {*left} and takes([group, others]):
                groups.append(group)
                left = [name for name in left if name not in group]
    groups.append(left)
    return groups if len(groups) > 1 and takes(groups) else [names]
