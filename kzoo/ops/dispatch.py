"""`@op`: one name, a body for tensors and one for ONNX, chosen by what comes in."""

import functools

import keras

from kzoo.ops.onnx_value import OnnxValue, current_graph, is_building


def op(function=None, *, creates=False):
    """Makes `function` an op that can also emit ONNX.

    The body runs on tensors. The emission rule, where there is one, runs when an
    argument is an `OnnxValue`; it takes the graph, then the arguments. A body written
    over other ops needs no rule: each of them emits its part::

        @op
        def silu(x):
            return x * sigmoid(x)

        @silu.emits
        def _(graph, x):
            return graph.node("Swish", x)

    Where TensorFlow needs another computation than the body's, a kernel runs there in
    its place: `silu.on_tensorflow(kernel)`.

    Args:
        function: the body.
        creates: the op makes tensors out of nothing, so that no argument may tell; the
            rule runs whenever a graph is being built.
    """
    if function is None:
        return functools.partial(op, creates=creates)
    rule = None

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        if rule and is_building() and (creates or is_symbolic((args, kwargs))):
            return rule(current_graph(), *args, **kwargs)
        return function(*args, **kwargs)

    def emits(emission):
        nonlocal rule
        rule = emission
        return emission

    def on_tensorflow(kernel):
        nonlocal function
        if keras.backend.backend() == "tensorflow":
            function = kernel
        return kernel

    wrapper.emits, wrapper.on_tensorflow = emits, on_tensorflow
    return wrapper


def is_symbolic(structure):
    """Whether an `OnnxValue` is anywhere in nested lists, tuples and dicts."""
    if isinstance(structure, OnnxValue):
        return True
    if isinstance(structure, dict):
        return any(is_symbolic(x) for x in structure.values())
    if isinstance(structure, (list, tuple)):
        return any(is_symbolic(x) for x in structure)
    return False
