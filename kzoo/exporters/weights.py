"""What an artifact holds beside what the task would: no case reads all of it."""

import collections
import functools
import operator
from pathlib import Path

import numpy as np

import kzoo
from kzoo.exporters.artifact import is_file_name
from kzoo.exporters.errors import ANOTHER, ExportError
from kzoo.ops.onnx_file import graph_proto, node_proto
from kzoo.ops.onnx_graph import to_numpy

# Of the largest number, by dtype. Sums of adapters differ by backends in their last
# bits, and what is rounded to fewer may then be a step off (of int8 two, by its scale).
_TOLERANCE = {"float32": 1e-5, "float16": 1e-3, "int8": 0.02}
_ELEMENTS = 2**22  # that are compared at a time
# Operators whose attributes hold a tokenizer; so do all of most other domains.
_OF_TEXT = ("RegexFullMatch", "StringConcat", "StringSplit", "Tokenizer")


def check_onnx(path, head, graph, task, mode):
    """Raises `ExportError` where a file has another node, number or text than the task.

    Args:
        path: the file.
        head: what it holds, an `onnx.ModelProto`.
        graph: the `OnnxGraph` of the same function of the task, quantised likewise.
        task: what errors name.
        mode: how it was quantised, or `None`.

    Returns:
        Whether all nodes were compared. Those of another version of kzoo, and of an
        optimiser, which joins some, are left to the cases, but for what reads text.
    """
    import onnx

    emitted, stored = graph.every_node(), _nodes(head.graph)
    emitted = [n for n in emitted if _is_of_text(n[0], n[3].get("domain", ""))]
    stored = [n for n in stored if _is_of_text(n.op_type, n.domain)]
    if _counted(stored) != _counted(node_proto(*node) for node in emitted):
        raise ExportError(
            f"{path} reads or writes text otherwise than {task.name} does. {ANOTHER}"
        )
    whole = _check_nodes(path, head, graph, task)
    inputs = {each.name for each in head.graph.input}  # their defaults are no weights
    for tensor in head.graph.initializer:
        if tensor.name in graph.initializers and tensor.name not in inputs:
            right = np.asarray(to_numpy(graph.initializers[tensor.name][2]()))
            found = onnx.numpy_helper.to_array(tensor, str(Path(path).parent))
            if not _alike(found, right, packed=mode == "int4"):
                raise ExportError(
                    f"{path} stores {tensor.name} otherwise than {task.name} has it. "
                    f"{ANOTHER}"
                )
    return whole


def _check_nodes(path, head, graph, task):
    """Whether there are as many nodes as this version writes, which must be equal."""
    said = {entry.key: entry.value for entry in head.metadata_props}
    if said.get("kzoo_version") != kzoo.__version__:
        return False
    found, right = list(_nodes(head.graph)), list(_nodes(graph_proto(graph, "kzoo")))
    if len(found) != len(right):
        return False
    for mine, theirs in zip(reversed(right), reversed(found)):  # within loops first
        if mine.SerializeToString() != theirs.SerializeToString():
            raise ExportError(
                f"{path} computes otherwise than {task.name} does. Expected: "
                f"{_said(mine)}. Received: {_said(theirs)}. {ANOTHER}"
            )
    return True


def _said(node):
    """A node in a few words."""
    import onnx

    values = {
        a.name: onnx.helper.get_attribute_value(a)
        for a in node.attribute
        if not (a.HasField("g") or a.HasField("t"))
    }
    return f"{node.op_type}{(*node.input,)} to {(*node.output,)}, {values}"[:300]


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


def check_tables(path, tables):
    """Raises `ExportError` where an artifact stores a table, and it is none of these.

    Args:
        path: of a SavedModel's folder, or of a file that tf2onnx made.
        tables: name to variable of all weights; those of embeddings are looked for.
    """
    stored = (_of_file if is_file_name(Path(path)) else _of_saved_model)(path)
    for name, variable in tables.items():
        shape = (*variable.shape,)
        alike = [read for size, read in stored if size == shape]
        turned = [read for size, read in stored if size == shape[::-1] != shape]
        if not (name.endswith("/embeddings") and (alike or turned)):
            continue
        right = to_numpy(variable)
        found = any(_alike(read(), right) for read in alike)
        if not (found or any(_alike(read().T, right) for read in turned)):
            raise ExportError(f"{path} has no table that equals {name}. {ANOTHER}")


def _of_saved_model(path):
    """Shape, and function that reads it, of each variable."""
    import tensorflow as tf

    stored = tf.train.load_checkpoint(str(Path(path) / "variables" / "variables"))
    shapes = stored.get_variable_to_shape_map().items()
    return [((*s,), functools.partial(stored.get_tensor, key)) for key, s in shapes]


def _of_file(path):
    """Shape, and function that reads it, of each initialiser of the outer graph."""
    import onnx

    read = onnx.numpy_helper.to_array
    stored = onnx.load(path).graph.initializer
    return [((*t.dims,), functools.partial(read, t)) for t in stored]


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
    tolerance = _TOLERANCE.get(right.dtype.name, 0.0)
    most = max(np.nanmax(np.abs(_wide(right[part])), initial=0.0) for part in parts)
    within = 1.0 if right.dtype == "uint8" else tolerance * most
    return all(
        np.allclose(
            _wide(found[part], packed), _wide(right[part], packed), 0.0, within, True
        )
        for part in parts
    )


def _wide(array, packed=False):
    if packed and array.dtype == "uint8":
        array = np.stack([array & 15, array >> 4])
    return array.astype("float32")


def _text(x):
    return x.decode() if isinstance(x, bytes) else x
