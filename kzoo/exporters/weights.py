"""What an artifact holds beside what the task would: no case reads all of it."""

import collections
import json
import operator
from pathlib import Path

import numpy as np

import kzoo
from kzoo.exporters.errors import ANOTHER, ExportError
from kzoo.exporters.quantize import MODES
from kzoo.ops.onnx_file import graph_proto, node_proto
from kzoo.ops.onnx_graph import to_numpy

# Of the largest number, by dtype. Sums of adapters differ by backends in their last
# bits, and what is rounded to fewer may then be a step off (of int8 two, by its scale).
_TOLERANCE = {"float32": 1e-5, "float16": 1e-3, "int8": 0.02}
_ELEMENTS = 2**22  # that are compared at a time
TABLES = "tables"  # what a file of tf2onnx calls those that it stores
# Operators whose attributes hold a tokenizer; so do all of most other domains.
_OF_TEXT = ("RegexFullMatch", "StringConcat", "StringSplit", "Tokenizer")


def check_onnx(path, head, graph, task, mode):
    """Raises `ExportError` where a file has something else than the task.

    That is a node, a number, a text, or an axis of an output.

    Args:
        path: the file.
        head: what it holds, an `onnx.ModelProto`.
        graph: the `OnnxGraph` of the same function of the task, quantised likewise.
        task: what errors name.
        mode: how it was quantised, or `None`.

    Returns:
        Whether all nodes are the task's. Others of another version of kzoo, and of an
        optimiser, which joins some, are left to the cases, but for what reads text.
    """
    emitted, stored = graph.every_node(), _nodes(head.graph)
    emitted = [n for n in emitted if _is_of_text(n[0], n[3].get("domain", ""))]
    stored = [n for n in stored if _is_of_text(n.op_type, n.domain)]
    if _counted(stored) != _counted(node_proto(*node) for node in emitted):
        raise ExportError(
            f"{path} reads or writes text otherwise than {task.name} does. {ANOTHER}"
        )
    proto = graph_proto(graph, "kzoo")
    _check_outputs(path, head.graph, proto)
    whole = _check_nodes(path, head, proto, task)
    inputs = {each.name for each in head.graph.input}  # their defaults are no weights
    for tensor in head.graph.initializer:
        kind = tensor.name.rpartition("/")[2]
        if kind in MODES and kind != mode:
            raise ExportError(
                f"{path} stores {tensor.name}, and says that it is quantized as "
                f"{mode!r}. Export the model again."
            )
        if tensor.name in graph.initializers and tensor.name not in inputs:
            right = np.asarray(to_numpy(graph.initializers[tensor.name][2]()))
            if not _alike(array_of(tensor, path), right, packed=mode == "int4"):
                raise ExportError(
                    f"{path} stores {tensor.name} otherwise than {task.name} has it. "
                    f"{ANOTHER}"
                )
    return whole


def array_of(tensor, path):
    """The numbers of an `onnx.TensorProto`, which may stand in a second file.

    Raises:
        ExportError: they cannot be read.
    """
    import onnx

    try:
        return onnx.numpy_helper.to_array(tensor, str(Path(path).parent))
    except Exception as error:  # onnx's and numpy's have no common base class
        raise ExportError(
            f"{path}: its {tensor.name} cannot be read: {error}. Export the model "
            "again."
        ) from error


def _check_outputs(path, found, right):
    """Axes as the file has them; onnxruntime puts those that follow in their place."""
    right = {output.name: _axes(output) for output in right.output}
    for output in found.output:
        if _axes(output) != right[output.name]:
            raise ExportError(
                f"{path}: should have the output {output.name} with axes "
                f"{right[output.name]}. Received: {_axes(output)}. Export the model "
                "again."
            )


def _axes(value):
    return [
        axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim
    ]


def _check_nodes(path, head, right, task):
    """Whether the nodes are those that this version writes.

    Where it wrote the file, as many nodes must be equal.
    """
    said = {entry.key: entry.value for entry in head.metadata_props}
    found, right = (
        {(*node.output,): _plain(node) for node in _nodes(each)}
        for each in (head.graph, right)
    )
    if said.get("kzoo_version") != kzoo.__version__ or len(found) != len(right):
        return found == right
    for outputs, node in reversed(right.items()):  # those within loops first
        if found.get(outputs) != node:
            raise ExportError(
                f"{path} computes {outputs} otherwise than {task.name} does. Expected: "
                f"{node!s:.300}. Received: {found.get(outputs)!s:.300}. {ANOTHER}"
            )
    return True


def _plain(node):
    """What a node computes, without its name and the order of its attributes."""
    import onnx

    values = {}
    for attribute in node.attribute:
        value = onnx.helper.get_attribute_value(attribute)
        if attribute.HasField("g"):  # its nodes are looked at one by one
            value = [
                [each.name for each in ends] for ends in (value.input, value.output)
            ]
        elif attribute.HasField("t"):
            value = value.SerializeToString()
        values[attribute.name] = value
    return node.domain, node.op_type, [*node.input], dict(sorted(values.items()))


def _nodes(graph):
    """Nodes of a graph of onnx, those of subgraphs among them."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)


def _is_of_text(op_type, domain):
    return op_type in _OF_TEXT or domain not in ("", "com.microsoft")


def _counted(nodes):
    """How often there is a node that says the same."""
    return collections.Counter(
        (node.op_type, *sorted(each.SerializeToString() for each in node.attribute))
        for node in nodes
    )


def check_saved_model(path, task):
    """Raises `ExportError` where a SavedModel has other weights than the task.

    Args:
        path: of the folder.
        task: the task.
    """
    import tensorflow as tf

    stored = tf.train.load_checkpoint(str(Path(path) / "variables" / "variables"))
    shapes = stored.get_variable_to_shape_map()

    def holds(key, variable):
        if shapes.get(key) != [*variable.shape]:
            return False
        return _alike(stored.get_tensor(key), to_numpy(variable))

    free, elsewhere = {*shapes}, {}
    for number, (name, variable) in enumerate(task.named_variables().items()):
        key = f"model_variables/{number}/.ATTRIBUTES/VARIABLE_VALUE"
        if holds(key, variable):
            free.remove(key)
        else:
            elsewhere[name] = variable
    for name, variable in elsewhere.items():  # another version may have another order
        key = next((key for key in sorted(free) if holds(key, variable)), None)
        if key is None:
            raise ExportError(
                f"{path} stores no weight that equals {name} of {task.name}. {ANOTHER}"
            )
        free.remove(key)


def check_converted(path, model):
    """Raises `ExportError` where a table is not in a file of tf2onnx, as it was.

    Args:
        path: of the file.
        model: of Keras.
    """
    import onnx

    proto = onnx.load(path)
    said = {entry.key: entry.value for entry in proto.metadata_props}
    lost = {*json.loads(said.get(TABLES, "[]"))} - {*stored_tables(proto, model)}
    if lost:
        names = [v.path for i, v in enumerate(model.weights) if i in lost]
        raise ExportError(f"{path} has no table that equals {names}. {ANOTHER}")


def stored_tables(proto, model):
    """Tables of embeddings that tf2onnx left whole: their places among the weights.

    Others are parts, or sums and products with something.

    Args:
        proto: `onnx.ModelProto`.
        model: of Keras.
    """
    import onnx

    found = []
    for number, variable in enumerate(model.weights):
        shape = [*variable.shape]
        alike = [t for t in proto.graph.initializer if sorted(t.dims) == sorted(shape)]
        if not (variable.path.endswith("/embeddings") and alike):
            continue
        right = to_numpy(variable)
        arrays = map(onnx.numpy_helper.to_array, alike)
        if any(_alike(x, right) or _alike(x.T, right) for x in arrays):
            found.append(number)
    return found


def _alike(found, right, packed=False):
    """Whether arrays are equal, but for rounding; `packed`: a byte is two of 4 bits."""
    if right.dtype.kind in "OUS":
        pair = ([_text(x) for x in array.ravel()] for array in (found, right))
        return found.shape == right.shape and operator.eq(*pair)
    if found.shape != right.shape or found.dtype != right.dtype:
        return False
    found, right = (np.atleast_1d(array) for array in (found, right))
    rows = max(1, _ELEMENTS // max(1, right[:1].size))
    parts = [slice(i, i + rows) for i in range(0, len(right), rows)]
    if all((found[part] == right[part]).all() for part in parts):
        return True
    if right.dtype.kind in "iu" and right.dtype.itemsize > 1:
        return False
    tolerance = _TOLERANCE.get(right.dtype.name, 0.0)
    most = max(np.nanmax(np.abs(_wide(right[part])), initial=0.0) for part in parts)
    within = 1.0 if right.dtype == "uint8" else tolerance * most
    if right.dtype in ("uint8", "int8"):  # codes: of rounding few are a step off
        differ = sum(np.count_nonzero(found[part] != right[part]) for part in parts)
        if differ > max(1, right.size // 100):
            return False
    return all(
        np.allclose(
            _wide(found[part], packed), _wide(right[part], packed), 0.0, within, True
        )
        for part in parts
    )


def _wide(array, packed=False):
    if packed and array.dtype == "uint8":
        array = np.stack([array & 15, array >> 4])
    return array.astype(np.result_type(array.dtype, np.float32))


def _text(x):
    return x.decode() if isinstance(x, bytes) else x
