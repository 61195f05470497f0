"""Writes an `OnnxGraph` as a model file, weights streamed one by one.

A protobuf message is its fields one after another, so the weights need never be in one
message in memory: their sizes are known, and each is written behind its header.
"""

import numpy as np
import onnx

from kzoo.ops.onnx_graph import OnnxGraph, to_numpy
from kzoo.ops.onnx_value import ONNX_CODES, static

# A protobuf message ends at 2 GiB; some room for the nodes.
LARGEST_FILE = 2**31 - 2**24
_EXTERNAL_FROM = 1024  # bytes; smaller constants stay in the model file
_VERSIONS = {"ai.onnx.ml": 3}  # of operator sets beside the default one; else 1
_ALIGNMENT = 4096  # of weights in their own file, so that runtimes can map them


def write_weights(graphs, path):
    """Writes the large initialisers of several graphs into one file, each once.

    Args:
        graphs: `OnnxGraph`s whose initialisers of one name hold the same weights.
        path: of the file; its name goes into the models that use it.

    Returns:
        dict from the initialiser's name to (offset, length) in bytes.
    """
    places, offset, kinds = {}, 0, {}
    with open(path, "wb") as file:
        for graph in graphs:
            for name, initializer in graph.initializers.items():
                size = _size(initializer)
                kind = kinds.setdefault(name, initializer[:2])
                if kind != initializer[:2]:
                    raise ValueError(
                        f"{name} is {kind} in one graph, {initializer[:2]} in another."
                    )
                if name in places or size < _EXTERNAL_FROM:
                    continue
                offset += -offset % _ALIGNMENT
                file.seek(offset)
                file.write(_bytes(initializer))
                places[name] = offset, size
                offset += size
        file.truncate(offset)
    return places


def write_model(graph, path, *, metadata, external=None):
    """Writes the model file.

    Args:
        graph: the outermost `OnnxGraph`.
        path: of the file.
        metadata: dict of strings, the model's metadata properties.
        external: `(file name, places)` of weights that `write_weights` wrote.
    """
    location, places = external or (None, {})
    opset = onnx.helper.make_opsetid("", graph.opset)
    custom = [
        onnx.helper.make_opsetid(name, _VERSIONS.get(name, 1))
        for name in sorted(graph.domains())
    ]
    model = onnx.ModelProto(
        ir_version=onnx.helper.find_min_ir_version_for([opset]),
        producer_name="kzoo",
        opset_import=[opset, *custom],
    )
    onnx.helper.set_model_props(model, metadata)
    inline = []
    body = graph_proto(graph, "kzoo")
    for name, initializer in graph.initializers.items():
        dtype, shape, _ = initializer
        tensor = onnx.TensorProto(name=name, dims=shape, data_type=ONNX_CODES[dtype])
        if name in places:
            offset, length = places[name]
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in dict(
                location=location, offset=offset, length=length
            ).items():
                tensor.external_data.add(key=key, value=str(value))
            body.initializer.append(tensor)
        else:
            inline.append((tensor.SerializeToString(), initializer))
    head, nodes = model.SerializeToString(), body.SerializeToString()
    headers = []
    for tensor, initializer in inline:
        size = _size(initializer)
        raw = _field(9, size)  # TensorProto.raw_data
        headers.append(_field(5, len(tensor) + len(raw) + size) + tensor + raw)
    length = len(nodes) + sum(
        len(header) + _size(initializer)
        for header, (_, initializer) in zip(headers, inline, strict=True)
    )
    with open(path, "wb") as file:
        file.write(head + _field(7, length) + nodes)  # ModelProto.graph
        for header, (_, initializer) in zip(headers, inline, strict=True):
            file.write(header)
            file.write(_bytes(initializer))


def weight_bytes(initializers):
    """Bytes of a graph's initialisers, a dict by name."""
    return sum(map(_size, initializers.values()))


def _size(initializer):
    dtype, shape, _ = initializer
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize


def _bytes(initializer):
    dtype, shape, read = initializer
    array = np.ascontiguousarray(to_numpy(read()), dtype)
    if array.size != int(np.prod(shape, dtype=np.int64)):
        raise ValueError(f"A weight has shape {array.shape}, expected {shape}.")
    return array.data if array.size else b""


def _field(number, length):
    """The head of a length-delimited protobuf field."""
    result = bytearray()
    for value in (number << 3 | 2, length):
        while value >= 0x80:
            result.append(value & 0x7F | 0x80)
            value >>= 7
        result.append(value)
    return bytes(result)


def graph_proto(graph, name):
    """An `OnnxGraph` as onnx has it, without initialisers."""
    nodes, told = graph.live_nodes(), graph.root.told
    own = [told[key] for _, _, outputs, _ in nodes for key in outputs if key in told]
    return onnx.helper.make_graph(
        [node_proto(*node) for node in nodes],
        name,
        [_value_info(value, axes) for value, axes in graph.inputs],
        [_value_info(value, axes) for value, axes in graph.outputs],
        value_info=[_value_info(value, map(static, value.shape)) for value in own],
    )


def node_proto(op_type, inputs, outputs, attributes):
    """A node of an `OnnxGraph` as onnx has it."""
    attributes = {
        key: graph_proto(value, f"{outputs[0]}/{key}")
        if isinstance(value, OnnxGraph)
        else value
        for key, value in attributes.items()
    }
    return onnx.helper.make_node(
        op_type, inputs, outputs, name=outputs[0], **attributes
    )


def _value_info(value, axes):
    return onnx.helper.make_tensor_value_info(
        value.name, ONNX_CODES[value.dtype], list(axes)
    )
