"""A Keras model as a TensorFlow graph of constants."""

import dataclasses
import re
from collections import deque

from kzoo.exporters.errors import ExportError
from kzoo.ops.onnx_file import LARGEST_FILE


@dataclasses.dataclass(frozen=True)
class Output:
    """An output of the graph.

    Args:
        name: the one that it has in the file.
        tensor: that of its tensor.
        dtype: its name.
        shape: list with `None` for free axes, or `None` when the rank is unknown.
    """

    name: str
    tensor: str
    dtype: str
    shape: list | None


def freeze(model, signature):
    """Traces the model; gives a GraphDef of constants without captured tensors.

    Args:
        model: the `keras.Model`.
        signature: its `Signature`.

    Returns:
        the GraphDef, its inputs named `kzoo_input_0:0` and so on; a list of `Output`;
        and the number of rows that each integer input indexes, 2 where it is not
        known, `None` where it indexes none.

    Raises:
        ExportError: state, half precision, too many weights, no graph of open axes.
    """
    import tensorflow as tf
    import tf2onnx
    from tensorflow.python.framework.convert_to_constants import (
        convert_variables_to_constants_v2,
    )

    names = []

    def forward(*tensors):
        outputs = signature.call(tensors)
        names[:] = outputs
        return [
            tf.identity(tf.convert_to_tensor(x), name=f"kzoo_output_{i}")
            for i, x in enumerate(outputs.values())
        ]

    with tf.device("/cpu:0"):
        function = tf.function(forward, autograph=False)
        try:
            concrete = function.get_concrete_function(*signature.specs())
        except Exception as error:  # whatever the model's layers raise
            said = " ".join(str(error).split())
            raise ExportError(
                "TensorFlow cannot trace the model, whose inputs are "
                f"{list(map(list, signature.shapes))}: {said}. "
                "Where it is for an axis that is open, give keras.Input a size for it."
            ) from error
    _check_graph(concrete, model)
    frozen = convert_variables_to_constants_v2(
        concrete, lower_control_flow=False, aggressive_inlining=True
    )
    graph_def = frozen.graph.as_graph_def(add_shapes=True)
    graph_def = tf2onnx.tf_loader.fix_freezing_errors_part2(graph_def)
    # The outputs of the frozen function have names of their own.
    outputs = [
        Output(
            name,
            after.name,
            x.dtype.name,
            None if x.shape.rank is None else x.shape.as_list(),
        )
        for name, x, after in zip(names, concrete.outputs, frozen.outputs)
    ]
    captured = {
        inner.op.name: outer
        for outer, inner in concrete.graph.captures
        if inner.dtype != tf.resource
    }
    for node in graph_def.node:
        if node.op == "Placeholder" and node.name in captured:
            value = tf.make_tensor_proto(captured[node.name].numpy())
            node.op = "Const"
            del node.attr["shape"]
            node.attr["value"].tensor.CopyFrom(value)
    tensors = [f"kzoo_input_{i}:0" for i in range(len(signature.names))]
    with tf.Graph().as_default(), tf.device("/cpu:0"):
        tf.import_graph_def(graph_def, name="")
        graph_def = tf2onnx.tf_loader.tf_optimize(
            tensors, [output.tensor for output in outputs], graph_def
        )
    return graph_def, outputs, _index_limits(graph_def, signature)


def _check_graph(concrete, model):
    import tensorflow as tf

    variables = {id(variable.handle) for variable in concrete.variables}
    size = sum(v.shape.num_elements() * v.dtype.size for v in concrete.variables)
    for outer, inner in concrete.graph.captures:
        if inner.dtype == tf.resource and id(outer) not in variables:
            raise ExportError(
                f"The model reads a resource that is no weight: '{inner.name}', a "
                "table perhaps. ONNX has none: do such lookups before the model."
            )
        if inner.dtype != tf.resource:
            size += outer.shape.num_elements() * outer.dtype.size
    if size > LARGEST_FILE:  # the TensorFlow graph holds the weights, too
        raise ExportError(
            f"The weights take {size / 1e9:.2f} GB; a file through tf2onnx holds at "
            f"most {LARGEST_FILE / 1e9:.2f} GB. kzoo's native export writes larger "
            "models with external data; other models can leave as SavedModel."
        )
    for operation in concrete.graph.get_operations():
        if operation.type.startswith("Assign") and "VariableOp" in operation.type:
            raise ExportError(
                f"The forward pass assigns a variable ('{operation.name}'"
                f"{layer_phrase(operation.name, model)}). An ONNX file has no "
                "state: pass it as an input and return it as an output."
            )
        for tensor in operation.outputs:
            if tensor.dtype in (tf.float16, tf.bfloat16):
                raise ExportError(
                    f"The model computes in {tensor.dtype.name} ('{operation.name}'"
                    f"{layer_phrase(operation.name, model)}). "
                    "Export a float32 model."
                )


def layer_phrase(node_name, model):
    """The layer whose name scope the node lies in: `, layer 'x'`, or nothing."""
    names = {layer.name for layer in model._flatten_layers(include_self=False)}
    for part in reversed(node_name.split("/")[:-1]):
        # TensorFlow numbers the scope of a second call: `probe_1`.
        for name in (part, re.sub(r"_\d+$", "", part)):
            if name in names:
                return f", layer '{name}'"
    return ""


# What ids go through between an input and the table that they index.
_CARRIES_IDS = {
    "Add",
    "AddV2",
    "Cast",
    "ConcatV2",
    "ExpandDims",
    "GatherV2",
    "Identity",
    "Maximum",
    "Minimum",
    "Pack",
    "Reshape",
    "SelectV2",
    "Slice",
    "Squeeze",
    "StridedSlice",
    "Tile",
    "Transpose",
}
_INTEGER_TYPES = {3, 9}  # DT_INT32, DT_INT64


def _index_limits(graph_def, signature):
    """Rows of the smallest table that each integer input indexes; see `freeze`."""
    nodes = {node.name: node for node in graph_def.node}
    consumers = {}
    for node in graph_def.node:
        for position, name in enumerate(node.input):
            name = name.lstrip("^").split(":")[0]
            consumers.setdefault(name, []).append((node, position))

    def constant(name):
        from tensorflow import make_ndarray

        node = nodes.get(name.split(":")[0])
        while node is not None and node.op == "Identity":
            node = nodes.get(node.input[0].split(":")[0])
        if node is None or node.op != "Const":
            return None
        return make_ndarray(node.attr["value"].tensor)

    def rows(gather):
        params, axis = constant(gather.input[0]), constant(gather.input[2])
        if params is None or axis is None:
            return None
        return params.shape[int(axis)]

    limits = []
    for i in range(len(signature.names)):
        found, seen, queue = [], set(), deque([f"kzoo_input_{i}"])
        while queue:
            for node, position in consumers.get(queue.popleft(), ()):
                if node.op == "GatherV2" and position == 1:
                    found.append(rows(node) or 2**31)
                    continue
                dtype = node.attr["DstT" if node.op == "Cast" else "T"].type
                if node.op == "GatherV2":
                    dtype = node.attr["Tparams"].type
                if node.op not in _CARRIES_IDS or node.name in seen:
                    continue
                if dtype in _INTEGER_TYPES:
                    seen.add(node.name)
                    queue.append(node.name)
        known = [size for size in found if size < 2**31]
        limits.append(min(known, default=2) if found else None)
    return limits
