"""The ONNX model as it is written: each weight once, axes with names."""

import hashlib

import numpy as np

# Initialisers from this size on are stored once, whatever the graph does with them.
SHARED_BYTES = 1024


def store_once(proto):
    """Keeps one copy of every large initialiser, those of subgraphs too.

    tf2onnx folds the transpose of a tied table into a second table, and gives each
    branch or loop body copies of its own.
    """
    from onnx import helper, numpy_helper

    main = proto.graph
    taken = {tensor.name for tensor in main.initializer}
    seen = {}  # content -> name
    stored, turned = [], []  # initialisers and nodes of the main graph

    def share(graph):
        own, renamed = [], {}
        outputs = {value.name for value in graph.output}  # stay where they are
        for tensor in graph.initializer:
            array = numpy_helper.to_array(tensor)
            if array.nbytes < SHARED_BYTES or tensor.name in outputs:
                (stored if graph is main else own).append(tensor)
                continue
            content = (array.dtype.str, array.shape, _digest(array))
            if content in seen:
                renamed[tensor.name] = seen[content]
                continue
            if graph is not main:
                name = tensor.name
                while tensor.name in taken:
                    tensor.name += "_"
                taken.add(tensor.name)
                renamed[name] = tensor.name
            seen[content] = tensor.name
            transposed = (array.dtype.str, array.shape[::-1], _digest(array.T))
            if array.ndim == 2 and transposed in seen and transposed != content:
                turned.append(
                    helper.make_node(
                        "Transpose", [seen[transposed]], [tensor.name], perm=[1, 0]
                    )
                )
            else:
                stored.append(tensor)
        if graph is not main:
            del graph.initializer[:]
            graph.initializer.extend(own)
        if renamed:
            _rename_inputs(graph, renamed)
        for node in graph.node:
            for body in _bodies(node):
                share(body)

    share(main)
    nodes = turned + list(main.node)
    del main.initializer[:], main.node[:]
    main.initializer.extend(stored)
    main.node.extend(nodes)


def _digest(array):
    return hashlib.sha256(np.ascontiguousarray(array)).digest()


def _bodies(node):
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _rename_inputs(graph, renamed):
    for node in graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = renamed.get(name, name)
        for body in _bodies(node):
            _rename_inputs(body, renamed)


def declare(proto, signature, outputs, inputs, expected, metadata):
    """Writes names, dtypes and named axes of inputs and outputs into the model.

    Args:
        proto: `onnx.ModelProto`.
        signature: the `Signature`.
        outputs: list of `Output`.
        inputs: of the verification runs, dicts of arrays.
        expected: what the model gave for each.
        metadata: dict of strings.
    """
    from onnx import helper

    graph = proto.graph
    graph.name = "kzoo"
    proto.producer_name = "kzoo"
    helper.set_model_props(proto, {"exporter": "tf2onnx", **metadata})
    del graph.input[:], graph.output[:], graph.value_info[:]

    def declared(name, dtype, shape):
        code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return helper.make_tensor_value_info(name, code, shape)

    runs, places = {}, set()  # axis name -> its sizes, a run each; and where it stands
    for name, dtype, shape in zip(signature.names, signature.dtypes, signature.shapes):
        graph.input.append(declared(name, dtype, shape))
        for axis, size in enumerate(shape):
            if isinstance(size, str):
                sizes = [np.shape(example[name])[axis] for example in inputs]
                runs.setdefault(size, tuple(sizes))
                places.add((size, axis))
    for output in outputs:
        name, known = output.name, output.shape
        shape = []
        for axis in range(expected[0][name].ndim):
            sizes = tuple(result[name].shape[axis] for result in expected)
            follows = [symbol for symbol in runs if runs[symbol] == sizes]
            if known is not None and known[axis] is not None:
                shape.append(known[axis])
            elif follows:
                shape.append(max(follows, key=lambda symbol: (symbol, axis) in places))
            else:
                shape.append(f"{name}_axis_{axis}")
        graph.output.append(declared(name, output.dtype, shape))
