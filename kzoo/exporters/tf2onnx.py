"""ONNX of any Keras model on the TensorFlow backend, through tf2onnx.

The second road: for models with layers that are not written over `kzoo.ops`. tf2onnx
lacks some operators that Keras emits, leaves constants captured from outside as
inputs of the file, logs its errors and writes the file all the same. Here the missing
ones have handlers, captured constants are stored, every error is raised, and no file
gets its name before onnxruntime has run it and agreed with the model.
"""

import contextlib
import hashlib
import inspect
import logging
import os
import re
from collections import deque
from pathlib import Path

import keras
import numpy as np

from kzoo.exporters.errors import ExportError

OPSETS = range(13, 19)  # tf2onnx writes no newer one
# A protobuf message ends at 2 GiB, and the TensorFlow graph holds the weights too.
LIMIT_BYTES = 2**31 - 2**24
# Initialisers from this size on are stored once, whatever the graph does with them.
SHARED_BYTES = 1024

INPUT_DTYPES = ("bool", "int32", "int64", "float32", "float64")
HALF_DTYPES = ("float16", "bfloat16")
# Axis sizes of the three verification runs: batch 1, longer, a larger batch.
BATCH_SIZES = (1, 2, 4)
SEQUENCE_SIZES = (3, 8, 6)


def convert(
    model,
    path,
    *,
    input_signature=None,
    opset=18,
    axes=None,
    inputs=None,
    tolerance=1e-5,
    overwrite=False,
):
    """Writes the forward pass of a Keras model as one ONNX file and verifies it.

    Inputs keep their names and dtypes: the keys of a dict signature, or the names of
    its specs, else `input_0`, `input_1`. Outputs have the keys of the model's dict or
    the names that the user gave to a functional model's output layers, else `output_0`.
    Free axes are named: axis 0 `batch`, axis 1 `sequence` (`encoder_sequence` for an
    input named `encoder_...`, likewise `decoder_`); an output's axis has the name of
    the input axis that it followed in every verification run.

    Args:
        model: a built `keras.Model`, in float32 or float64.
        path: the file, `.onnx`; its folder is made.
        input_signature: `keras.InputSpec` or `tf.TensorSpec`: one, or a dict or list
            (nested as well), `None` for free axes. A dict is passed as the model's
            first argument, or by keyword when its keys are the arguments of `call`;
            a list is the positional arguments, or the first one where `call` has
            only that. Functional and Sequential models need none.
        opset: 13 to 18.
        axes: `{input name: {axis: name}}` for free axes of another name. Two inputs
            of different lengths need different names.
        inputs: dicts of numpy arrays to verify with, one a run; by default three
            random ones: batch 1, longer, a larger batch. Random integers stay below
            the size of the table that they index, and are 0 and 1 where none is.
        tolerance: allowed difference, times the largest absolute output if over 1.
        overwrite: whether `path` may exist.

    Returns:
        dict of the largest absolute difference of each output.

    Raises:
        ExportError: a model that is not built, in half precision or over 2 GB; an
            operator without a counterpart; a file that differs from the model; a
            path that exists; a full disk. Nothing is left behind.
    """
    path = Path(path)
    _check_target(path, opset, overwrite)
    _import("tf2onnx")
    _import("onnxruntime")
    signature = _Signature(model, input_signature, axes)
    _check_model(model)
    graph_def, outputs, example_limits = _freeze(model, signature)
    if inputs is None:
        inputs = _random_inputs(signature, example_limits)
    expected = [_expected(signature, example) for example in inputs]
    proto = _to_onnx(graph_def, signature, outputs, opset, model)
    _store_once(proto)
    _declare(proto, signature, outputs, inputs, expected)
    return _write(
        path,
        proto,
        lambda file: _compare(signature, file, inputs, expected, tolerance),
    )


def compare(model, path, inputs_list, tolerance=1e-5, *, input_signature=None):
    """Runs an ONNX file in onnxruntime and compares it with the Keras model.

    Args:
        model: the model that the file is of.
        path: the file.
        inputs_list: dicts of numpy arrays by input name, one a run.
        tolerance: allowed difference, times the largest absolute output if over 1.
            Integers and booleans must be equal.
        input_signature: as for `convert`.

    Returns:
        dict of the largest absolute difference of each output.

    Raises:
        ExportError: the file does not load or run, its names or dtypes are not the
            model's, or an output differs.
    """
    signature = _Signature(model, input_signature, None)
    if not inputs_list:
        raise ExportError("compare() needs one dict of inputs at least.")
    expected = [_expected(signature, example) for example in inputs_list]
    return _compare(signature, path, inputs_list, expected, tolerance)


def random_inputs(model, *, input_signature=None, axes=None, seed=0):
    """Random inputs of three shapes: batch 1, longer, a larger batch.

    Returns:
        a list of dicts of numpy arrays by input name.
    """
    signature = _Signature(model, input_signature, axes)
    return _random_inputs(signature, _freeze(model, signature)[2], seed)


# Before anything runs.


def _import(name):
    try:
        return __import__(name)
    except ImportError as error:
        raise ExportError(
            f"The tf2onnx road needs the package {name}, which is not installed. "
            f"Install it: pip install {name}"
        ) from error


def _check_target(path, opset, overwrite):
    if keras.backend.backend() != "tensorflow":
        raise ExportError(
            "tf2onnx needs the TensorFlow backend. "
            f"Received: {keras.backend.backend()}. Set KERAS_BACKEND=tensorflow."
        )
    if opset not in OPSETS:
        raise ExportError(
            f"Expected opset {OPSETS[0]} to {OPSETS[-1]}. Received: {opset}. "
            "tf2onnx writes no newer one; kzoo's native export does."
        )
    if path.is_dir() or (path.exists() and not overwrite):
        raise ExportError(
            f"{path} exists. Pass overwrite=True to replace a file, or another path."
        )


def _check_model(model):
    # A metric or a loss may keep float16 state, which the forward pass never reads.
    for layer in _layers(model):
        for dtype in (layer.compute_dtype, layer.variable_dtype):
            if dtype in HALF_DTYPES:
                raise ExportError(
                    f"The model must be in float32. Received: layer '{layer.name}' "
                    f"with dtype policy {layer.dtype_policy.name}. Build the model "
                    'with dtype="float32", copy the weights with '
                    "new.set_weights(old.get_weights()), and export that."
                )


def _layers(model):
    return list(model._flatten_layers())


# Names, dtypes and axes.


def _leaves(structure, path=()):
    """Pairs (path, leaf) of dicts, lists and tuples, in their own order."""
    if isinstance(structure, dict):
        for key, value in structure.items():
            yield from _leaves(value, (*path, str(key)))
    elif isinstance(structure, list | tuple):
        for i, value in enumerate(structure):
            yield from _leaves(value, (*path, str(i)))
    elif structure is not None:
        yield path, structure


def _rebuild(structure, values):
    """The structure with its leaves taken from the iterator `values`."""
    if isinstance(structure, dict):
        return {key: _rebuild(value, values) for key, value in structure.items()}
    if isinstance(structure, list | tuple):
        items = [_rebuild(value, values) for value in structure]
        return tuple(items) if isinstance(structure, tuple) else items
    return None if structure is None else next(values)


class _Signature:
    """What goes into the model and comes out of it, by name.

    Attributes:
        names: of the inputs, in order.
        shapes: of each input, an int or an axis name for each axis.
        dtypes: of each input.
    """

    def __init__(self, model, given, axes):
        if not isinstance(model, keras.Model):
            raise ExportError(
                f"Expected a keras.Model. Received: {type(model).__name__}"
            )
        if not model.built:
            raise ExportError(
                f"Model '{model.name}' was never built: it has no weights to export. "
                "Call it once on a batch, or load its weights, and export again."
            )
        self.model = model
        self.structure, self.positional = _structure(model, given)
        leaves = list(_leaves(self.structure))
        if not leaves:
            raise ExportError(f"The signature has no inputs. Received: {given!r}")
        names = [_input_name(model, p, spec, i) for i, (p, spec) in enumerate(leaves)]
        if len(set(names)) < len(names):
            raise ExportError(f"Input names must be distinct. Received: {names}")
        self.names = names
        self.dtypes, self.shapes = [], []
        axes = axes or {}
        if set(axes) - set(names):
            raise ExportError(
                f"axes names unknown inputs {sorted(set(axes) - set(names))}. "
                f"The inputs are {names}."
            )
        for name, (_, spec) in zip(names, leaves):
            dtype, shape = _dtype_and_shape(name, spec)
            self.dtypes.append(dtype)
            self.shapes.append(
                tuple(
                    _axis_name(name, i, len(shape), axes) if size is None else size
                    for i, size in enumerate(shape)
                )
            )

    def specs(self):
        """`tf.TensorSpec` of each input."""
        import tensorflow as tf

        return [
            tf.TensorSpec(
                [None if isinstance(size, str) else size for size in shape],
                dtype,
                name=f"kzoo_input_{i}",
            )
            for i, (shape, dtype) in enumerate(zip(self.shapes, self.dtypes))
        ]

    def call(self, tensors):
        """Calls the model; gives its outputs as a dict."""
        arguments = _rebuild(self.structure, iter(tensors))
        if self.positional == "first":
            outputs = self.model(arguments, training=False)
        elif self.positional == "keywords":
            outputs = self.model(**arguments, training=False)
        else:
            outputs = self.model(*arguments, training=False)
        leaves = list(_leaves(outputs))
        return dict(zip(self._output_names(leaves), (leaf for _, leaf in leaves)))

    def _output_names(self, leaves):
        numbered = [f"output_{i}" for i in range(len(leaves))]
        keys = ["_".join(path) for path, _ in leaves]
        if isinstance(self.model, keras.Sequential) or not leaves:
            return numbered
        if all(path and not path[0].isdigit() for path, _ in leaves):  # a dict
            names = keys
        elif hasattr(self.model, "_inputs_struct"):  # functional
            given = {
                layer.name
                for layer in self.model.layers
                if not _is_numbered_name(layer)
            }
            names = [
                name if name in given else number
                for name, number in zip(self.model.output_names, numbered)
            ]
        else:
            return numbered
        distinct = len(set(names)) == len(leaves) and not set(names) & set(self.names)
        return names if distinct else numbered


def _is_numbered_name(layer):
    """Whether Keras made the name up: it counts, and changes from run to run."""
    stem = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(layer).__name__).lower()
    return re.sub(r"_\d+$", "", layer.name).replace("_", "") == stem.replace("_", "")


def _structure(model, given):
    """The structure of specs, and how the model takes it."""
    own = None
    if isinstance(model, keras.Sequential):
        own = model.inputs[0] if model.inputs else None
    elif hasattr(model, "_inputs_struct"):  # functional; Keras's exporters read it too
        own = model._inputs_struct
    if given is None:
        if own is not None:
            return own, "first"
        specs = model.input_spec
        if specs is None or any(
            getattr(spec, "shape", None) is None or spec.dtype is None
            for _, spec in _leaves(specs)
        ):
            raise ExportError(
                f"Model '{model.name}' is a subclass of keras.Model: Keras records "
                "neither the dtypes nor the free axes of its inputs. Pass "
                "input_signature, say "
                '{"token_ids": keras.InputSpec(shape=(None, None), dtype="int32")}.'
            )
        given = specs
    if own is not None:
        return _fitted_to(model, own, given), "first"
    parameters = [
        p.name
        for p in inspect.signature(model.call).parameters.values()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        and p.name not in ("training", "mask")
    ]
    if isinstance(given, dict):
        return given, "keywords" if set(given) <= set(parameters) else "first"
    if isinstance(given, list | tuple):
        if len(given) == 1 or len(parameters) >= len(given):
            return given, "arguments"
    return given, "first"


def _fitted_to(model, own, given):
    """The given specs in the structure of a functional model's inputs."""
    wanted, received = list(_leaves(own)), list(_leaves(given))
    keys = {path[-1] for path, _ in received if path}
    by_name = dict((path[-1], spec) for path, spec in received if path)
    names = [path[-1] if path and path[-1] in keys else x.name for path, x in wanted]
    if isinstance(given, dict) and set(names) == set(by_name):
        received = [((), _named(by_name[name], name)) for name in names]
    elif len(wanted) != len(received) or isinstance(given, dict):
        raise ExportError(
            f"Model '{model.name}' has the inputs {[x.name for _, x in wanted]}. "
            f"Received: input_signature={given!r}"
        )
    return _rebuild(own, iter([spec for _, spec in received]))


def _named(spec, name):
    dtype, shape = _dtype_and_shape(name, spec)
    return keras.InputSpec(shape=shape, dtype=dtype, name=name)


def _input_name(model, path, spec, i):
    """The key of the dict, the name of the spec, or a number."""
    keys = [part for part in path if not part.isdigit()]
    if keys:
        return "_".join(keys if len(keys) == len(path) else path)
    name = getattr(spec, "name", None)
    if not name or re.fullmatch(r"keras_tensor(_\d+)?|input_layer(_\d+)?", name):
        return f"input_{i}"
    return name


def _dtype_and_shape(name, spec):
    shape, dtype = getattr(spec, "shape", None), getattr(spec, "dtype", None)
    if shape is None or dtype is None or getattr(shape, "rank", 0) is None:
        raise ExportError(
            f"Input '{name}' needs a shape, None for free axes, and a dtype. "
            f"Received: {spec!r}"
        )
    dtype = keras.backend.standardize_dtype(dtype)
    if dtype not in INPUT_DTYPES:
        hint = (
            " Tokenize before the model."
            if dtype == "string"
            else " Export a float32 model."
        )
        raise ExportError(
            f"Input '{name}' must have one of the dtypes {', '.join(INPUT_DTYPES)}. "
            f"Received: {dtype}.{hint}"
        )
    return dtype, tuple(None if size is None else int(size) for size in shape)


def _axis_name(name, axis, rank, axes):
    if axis in axes.get(name, {}):
        return axes[name][axis]
    if axis == 0:
        return "batch"
    if axis == 1 and rank <= 3:
        # One name promises one length, and onnxruntime plans its memory on that.
        side = re.match(r"(encoder|decoder)_", name)
        return f"{side[1]}_sequence" if side else "sequence"
    return f"{name}_axis_{axis}"


# The TensorFlow graph.


def _freeze(model, signature):
    """Traces the model; gives a GraphDef of constants without captured tensors.

    Returns:
        the GraphDef; a list of (name, tensor name, dtype, shape) of the outputs; and
        the number of rows that each integer input indexes, where it does.
    """
    import tensorflow as tf
    from tensorflow.python.framework.convert_to_constants import (
        convert_variables_to_constants_v2,
    )

    tf2onnx = _import("tf2onnx")
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
        concrete = function.get_concrete_function(*signature.specs())
    _check_graph(concrete, model)
    outputs = [
        (name, x.name, x.dtype.name, [None if s is None else s for s in x.shape])
        if x.shape.rank is not None
        else (name, x.name, x.dtype.name, None)
        for name, x in zip(names, concrete.outputs)
    ]
    frozen = convert_variables_to_constants_v2(
        concrete, lower_control_flow=False, aggressive_inlining=True
    )
    graph_def = frozen.graph.as_graph_def(add_shapes=True)
    graph_def = tf2onnx.tf_loader.fix_freezing_errors_part2(graph_def)
    # The outputs of the frozen function have names of their own.
    outputs = [
        (name, frozen_x.name, dtype, shape)
        for (name, _, dtype, shape), frozen_x in zip(outputs, frozen.outputs)
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
            tensors, [tensor for _, tensor, _, _ in outputs], graph_def
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
    if size > LIMIT_BYTES:
        raise ExportError(
            f"The weights take {size / 1e9:.2f} GB; a file through tf2onnx holds at "
            f"most {LIMIT_BYTES / 1e9:.2f} GB. kzoo's native export writes larger "
            "models with external data; other models can leave as SavedModel."
        )
    for operation in concrete.graph.get_operations():
        if operation.type.startswith("Assign") and "VariableOp" in operation.type:
            raise ExportError(
                f"The forward pass assigns a variable ('{operation.name}'"
                f"{_layer_phrase(operation.name, model)}). An ONNX file has no "
                "state: pass it as an input and return it as an output."
            )
        for tensor in operation.outputs:
            if tensor.dtype in (tf.float16, tf.bfloat16):
                raise ExportError(
                    f"The model computes in {tensor.dtype.name} ('{operation.name}'"
                    f"{_layer_phrase(operation.name, model)}). "
                    "Export a float32 model."
                )


def _layer_phrase(node_name, model):
    """The layer whose name scope the node lies in: `, layer 'x'`, or nothing."""
    names = {layer.name for layer in _layers(model) if layer is not model}
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
    """Rows of the smallest table that each integer input indexes; 2 without one."""
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
        found, seen, queue = [2**31], set(), deque([f"kzoo_input_{i}"])
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
        limits.append(min(found) if min(found) < 2**31 else 2)
    return limits


# tf2onnx, its gaps and its errors.


def _to_onnx(graph_def, signature, outputs, opset, model):
    import tensorflow as tf

    tf2onnx = _import("tf2onnx")
    inputs = [f"kzoo_input_{i}:0" for i in range(len(signature.names))]
    tensors = [tensor for _, tensor, _, _ in outputs]
    renamed = dict(zip(inputs, signature.names))
    renamed.update((tensor, name) for name, tensor, _, _ in outputs)

    def mapped():
        with tf.Graph().as_default() as graph, tf.device("/cpu:0"):
            tf.import_graph_def(graph_def, name="")
            return tf2onnx.tfonnx.process_tf_graph(
                graph,
                continue_on_error=True,  # all unsupported operators in one error
                opset=opset,
                input_names=inputs,
                output_names=tensors,
                tensors_to_rename=renamed,
                custom_op_handlers={
                    "Erfc": (_erfc, []),
                    "XlaDynamicUpdateSlice": (_dynamic_update_slice, []),
                },
                custom_rewriter=[_rewrite_signbit],
            )

    with _errors_collected() as records:
        try:
            graph = mapped()
            graph.delete_unused_nodes(graph.outputs)  # some handlers leave the old one
            _raise_unsupported(_unmapped(graph, opset), records, model)
            try:
                graph = _optimized(graph, careful=False)
            except Exception:  # of any optimizer: what it had in hand is lost
                graph = _optimized(mapped(), careful=True)
            return graph.make_model("kzoo")
        except ExportError:
            raise
        except Exception as error:  # tf2onnx raises whatever its handlers meet
            _raise_unsupported([], records, model)
            raise ExportError(
                f"tf2onnx failed: {type(error).__name__}: {error}\n{_ADVICE}"
            ) from error


def _optimized(graph, careful):
    """Runs tf2onnx's optimizers; `careful` leaves out those that fail.

    Being careful copies the graph with its weights for each of them.
    """
    from tf2onnx import optimizer

    # The einsum one times every spelling: seconds a layer, a second copy of weights,
    # and another file each time. onnxruntime has the operator. The reshape one loses
    # which tensor a length is of, and onnxruntime then cannot run the file.
    optimizers = {
        name: make
        for name, make in optimizer._get_optimizers().items()
        if name not in ("einsum_optimizer", "reshape_optimizer")
    }
    return optimizer.optimize_graph(graph, catch_errors=careful, optimizers=optimizers)


_ADVICE = (
    "Write that computation with other operations of keras.ops, write the layer over "
    "kzoo.ops and use the native export, or export a SavedModel."
)


@contextlib.contextmanager
def _errors_collected():
    """Takes tf2onnx's log; what it logs as an error is one."""
    records = []
    logger = logging.getLogger("tf2onnx")
    handler = logging.Handler(logging.ERROR)
    handler.emit = records.append
    before = logger.handlers[:], logger.propagate, logger.disabled
    logger.handlers, logger.propagate, logger.disabled = [handler], False, False
    try:
        yield records
    finally:
        logger.handlers, logger.propagate, logger.disabled = before


def _unmapped(graph, opset):
    """Pairs (node, operator) of what is not in the ONNX standard, subgraphs too."""
    onnx = _import("onnx")
    found = []
    for node in graph.get_nodes():
        try:
            onnx.defs.get_schema(node.type, opset, node.domain or "")
        except onnx.defs.SchemaError:
            # Its own names for initialisers and inputs.
            if node.type not in ("Const", "Placeholder", "PlaceholderWithDefault"):
                found.append((node.name, node.type))
        for body in (node.get_body_graphs() or {}).values():
            found += _unmapped(body, opset)
    return found


def _raise_unsupported(unmapped, records, model):
    """Raises what is left over and what tf2onnx logged; returns when neither is."""
    messages = []
    for record in records:
        if "is not supported" in str(record.msg) and len(record.args) == 2:
            unmapped.append(tuple(record.args))
        elif not str(record.msg).startswith("Unsupported ops"):
            messages.append(record.getMessage().split("\n")[0])
            if record.exc_info and record.exc_info[1] is not None:
                messages[-1] += f": {record.exc_info[1]}"
    lines = [
        f"  {op}: node '{name}'{_layer_phrase(name, model)}"
        for name, op in dict.fromkeys(unmapped)
    ]
    if lines:
        raise ExportError(
            "tf2onnx has no ONNX counterpart of these TensorFlow operators:\n"
            + "\n".join(lines)
            + f"\n{_ADVICE}"
        )
    if messages:
        raise ExportError(
            "tf2onnx failed:\n  " + "\n  ".join(messages) + f"\n{_ADVICE}"
        )


def _name(stem):
    from tf2onnx import utils

    return utils.make_name(f"kzoo_{stem}")


def _constant(graph, value):
    return graph.make_const(_name("constant"), np.asarray(value)).output[0]


def _emit(graph, op_type, inputs, dtype, shape=None, **attributes):
    return graph.make_node(
        op_type,
        inputs,
        attr=attributes,
        dtypes=[dtype],
        shapes=[shape],
        name=_name(op_type),
    ).output[0]


def _erfc(graph, node, name, args):
    """`erfc(x) = 1 - erf(x)`: exact GELU, since TensorFlow writes it so."""
    from tf2onnx import utils

    dtype, shape = graph.get_dtype(node.output[0]), graph.get_shape(node.output[0])
    one = _constant(graph, np.ones((), utils.map_onnx_to_numpy_type(dtype)))
    erf = _emit(graph, "Erf", [node.input[0]], dtype, shape)
    graph.remove_node(node.name)
    graph.make_node(
        "Sub",
        [one, erf],
        outputs=node.output,
        name=name,
        dtypes=[dtype],
        shapes=[shape],
    )


def _dynamic_update_slice(graph, node, name, args):
    """`keras.ops.slice_update`: the start is clamped so that the update fits.

    Axis by axis: what lies before, the rows of the update (the next axis decides what
    they become), what lies after.
    """
    from onnx import TensorProto

    x, update, starts = node.input
    dtype = graph.get_dtype(node.output[0])
    shape, update_shape = graph.get_shape(x), graph.get_shape(update)
    if shape is None or update_shape is None:
        raise ExportError("slice_update of a tensor of unknown rank")
    graph.remove_node(name)
    int64 = TensorProto.INT64
    rank = len(shape)
    sizes = _emit(graph, "Shape", [x], int64, [rank])
    lengths = _emit(graph, "Shape", [update], int64, [rank])
    starts = _emit(graph, "Cast", [starts], int64, [rank], to=int64)
    last = _emit(graph, "Sub", [sizes, lengths], int64, [rank])
    starts = _emit(graph, "Min", [starts, last], int64, [rank])
    zeros = _constant(graph, np.zeros(rank, np.int64))
    starts = _emit(graph, "Max", [starts, zeros], int64, [rank])
    ends = _emit(graph, "Add", [starts, lengths], int64, [rank])

    def pick(vector, axis):
        where = _constant(graph, np.array([axis], np.int64))
        return _emit(graph, "Gather", [vector, where], int64, [1], axis=0)

    def cut(rows, begin, end, axis):
        where = _constant(graph, np.array([axis], np.int64))
        return _emit(graph, "Slice", [rows, begin, end, where], dtype, [-1] * rank)

    # An axis that the update fills leaves nothing before or after it.
    free = [
        axis
        for axis in range(rank)
        if not 0 <= shape[axis] == update_shape[axis]  # -1 is unknown
    ]

    def updated(rows, depth):
        if depth == len(free):
            return update
        axis = free[depth]
        begin, end = pick(starts, axis), pick(ends, axis)
        middle = rows
        if depth + 1 < len(free):
            middle = cut(rows, begin, end, axis)
        before = cut(rows, _constant(graph, np.zeros(1, np.int64)), begin, axis)
        after = cut(rows, end, _constant(graph, np.array([2**31 - 1])), axis)
        parts = [before, updated(middle, depth + 1), after]
        return _emit(graph, "Concat", parts, dtype, [-1] * rank, axis=axis)

    graph.make_node(
        "Identity",
        [updated(x, 0)],
        outputs=node.output,
        name=name,
        dtypes=[dtype],
        shapes=[shape],
    )


def _rewrite_signbit(graph, ops):
    """The sign bit of a float, as `keras.ops.argmax` reads it to tell -0 from 0.

    `Bitcast` to an integer and `BitwiseAnd` with the sign mask becomes
    `where(x < 0 or 1 / x < 0, mask, 0)`. Equal but for a NaN with a sign, which
    argmax treats like any other. Another use of `Bitcast` stays, and is refused.
    """
    from onnx import TensorProto
    from tf2onnx import utils

    masks = {TensorProto.FLOAT: -(2**31), TensorProto.DOUBLE: -(2**63)}
    for bitcast in [op for op in ops if op.type == "Bitcast"]:
        x = bitcast.input[0]
        mask = masks.get(graph.get_dtype(x))
        for user in graph.find_output_consumers(bitcast.output[0]):
            if user.type != "BitwiseAnd" or mask is None:
                continue
            other = [n for n in user.inputs if n is not bitcast]
            if not other or not other[0].is_const():
                continue
            if np.any(other[0].get_tensor_value(as_list=False) != mask):
                continue
            real, integer = graph.get_dtype(x), graph.get_dtype(user.output[0])
            shape = graph.get_shape(x)
            real_type = utils.map_onnx_to_numpy_type(real)
            integer_type = utils.map_onnx_to_numpy_type(integer)
            zero = _constant(graph, np.zeros((), real_type))
            one = _constant(graph, np.ones((), real_type))
            boolean = TensorProto.BOOL
            inverse = _emit(graph, "Div", [one, x], real, shape)
            negative = _emit(graph, "Less", [x, zero], boolean, shape)
            below = _emit(graph, "Less", [inverse, zero], boolean, shape)
            either = _emit(graph, "Or", [negative, below], boolean, shape)
            bit = _emit(
                graph,
                "Where",
                [
                    either,
                    _constant(graph, np.asarray(mask, integer_type)),
                    _constant(graph, np.zeros((), integer_type)),
                ],
                integer,
                shape,
            )
            graph.replace_all_inputs(user.output[0], bit)
            graph.remove_node(user.name)
        if not graph.find_output_consumers(bitcast.output[0]):
            graph.remove_node(bitcast.name)
    return graph.get_nodes()


# The ONNX model.


def _store_once(proto):
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


def _declare(proto, signature, outputs, inputs, expected):
    """Writes names, dtypes and named axes of inputs and outputs into the model."""
    from onnx import helper

    graph = proto.graph
    graph.name = "kzoo"
    proto.producer_name = "kzoo"
    del graph.input[:], graph.output[:], graph.value_info[:]

    def declared(name, dtype, shape):
        code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return helper.make_tensor_value_info(name, code, shape)

    runs = {}  # axis name -> its sizes, a run each
    for name, dtype, shape in zip(signature.names, signature.dtypes, signature.shapes):
        graph.input.append(declared(name, dtype, shape))
        for axis, size in enumerate(shape):
            if isinstance(size, str):
                sizes = [np.shape(example[name])[axis] for example in inputs]
                runs.setdefault(size, tuple(sizes))
    for name, _, dtype, known in outputs:
        shape = []
        for axis in range(expected[0][name].ndim):
            sizes = tuple(result[name].shape[axis] for result in expected)
            follows = [symbol for symbol in runs if runs[symbol] == sizes]
            if known is not None and known[axis] is not None:
                shape.append(known[axis])
            elif follows:
                shape.append(follows[0])
            else:
                shape.append(f"{name}_axis_{axis}")
        graph.output.append(declared(name, dtype, shape))


def _write(path, proto, verify):
    """Writes beside, verifies, renames; whatever fails leaves `path` as it was."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        data = proto.SerializeToString(deterministic=True)
    except Exception as error:  # protobuf's, when it ends at 2 GiB
        raise ExportError(f"The ONNX model is over 2 GB: {error}") from error
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # the data before the name
        differences = verify(temporary)
        os.replace(temporary, path)
    except OSError as error:
        raise ExportError(
            f"{path} could not be written: {error}. Nothing was left behind; "
            f"{len(data) / 1e6:.1f} MB are needed."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return differences


# Verification.


def _random_inputs(signature, limits, seed=0):
    rng = np.random.default_rng(seed)
    symbols = {}
    for shape in signature.shapes:
        for size in shape:
            if isinstance(size, str) and size not in symbols:
                # Different axes get different sizes, to be told apart in the outputs.
                others = len(symbols) - ("batch" in symbols)
                symbols[size] = (
                    BATCH_SIZES
                    if size == "batch"
                    else tuple(n + others for n in SEQUENCE_SIZES)
                )
    examples = []
    for run in range(len(BATCH_SIZES)):
        example = {}
        for name, dtype, shape, limit in zip(
            signature.names, signature.dtypes, signature.shapes, limits
        ):
            sizes = [symbols[n][run] if isinstance(n, str) else n for n in shape]
            if dtype == "bool":
                array = rng.random(sizes) < 0.7
            elif dtype.startswith("int"):
                array = rng.integers(0, limit, sizes)
            else:
                array = rng.standard_normal(sizes)
            example[name] = np.asarray(array, dtype)
        examples.append(example)
    return examples


def _expected(signature, example):
    """The model's outputs by name, as numpy arrays."""
    if set(example) != set(signature.names):
        raise ExportError(
            f"Expected the inputs {signature.names}. Received: {sorted(example)}"
        )
    tensors = [
        keras.ops.convert_to_tensor(np.asarray(example[name]), dtype=dtype)
        for name, dtype in zip(signature.names, signature.dtypes)
    ]
    try:
        outputs = signature.call(tensors)
    except Exception as error:  # the model's own; the shapes may be out of its range
        shapes = {name: np.shape(value) for name, value in example.items()}
        raise ExportError(
            f"The Keras model itself fails on verification inputs of the shapes "
            f"{shapes}: {error}\nPass inputs=[...] that it accepts."
        ) from error
    return {
        name: np.asarray(keras.ops.convert_to_numpy(x)) for name, x in outputs.items()
    }


def _compare(signature, path, inputs_list, expected, tolerance):
    ort = _import("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 3  # errors; they are raised as well
    try:
        session = ort.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # onnxruntime's errors share no base
        raise ExportError(f"onnxruntime refuses {path}: {error}") from error
    types = {
        "bool": "tensor(bool)",
        "float32": "tensor(float)",
        "float64": "tensor(double)",
    }

    def declared(values):
        return {value.name: value.type for value in values}

    def wanted(dtypes):
        return {name: types.get(d, f"tensor({d})") for name, d in dtypes.items()}

    for what, found, right in (
        (
            "inputs",
            declared(session.get_inputs()),
            wanted(dict(zip(signature.names, signature.dtypes))),
        ),
        (
            "outputs",
            declared(session.get_outputs()),
            wanted({name: x.dtype.name for name, x in expected[0].items()}),
        ),
    ):
        if found != right:
            raise ExportError(
                f"The {what} of {path} are not the model's. Expected: {right}. "
                f"Received: {found}"
            )
    differences = dict.fromkeys(expected[0], 0.0)
    for example, right in zip(inputs_list, expected):
        feed = {
            name: np.asarray(example[name], dtype)
            for name, dtype in zip(signature.names, signature.dtypes)
        }
        shapes = {name: x.shape for name, x in feed.items()}
        try:
            found = session.run(list(right), feed)
        except Exception as error:  # onnxruntime's errors share no base
            raise ExportError(
                f"onnxruntime fails on inputs of the shapes {shapes}: {error}"
            ) from error
        for (name, x), y in zip(right.items(), found):
            difference = _difference(x, y)
            scale = 0.0  # integers and booleans must be equal
            if x.dtype.kind == "f":
                largest = np.max(np.abs(x), initial=0.0, where=np.isfinite(x))
                scale = max(1.0, float(largest))
            if not difference <= tolerance * scale:
                raise ExportError(
                    f"Output '{name}' differs from the Keras model by "
                    f"{difference:.3g} on inputs of the shapes {shapes}; allowed: "
                    f"{tolerance * scale:.3g}."
                )
            differences[name] = max(differences[name], difference)
    return differences


def _difference(x, y):
    """The largest absolute difference; infinite where shapes or NaNs differ."""
    if x.shape != y.shape or x.dtype != y.dtype:
        return float("inf")
    if x.dtype.kind != "f":
        return float(np.max(np.abs(x.astype(np.float64) - y), initial=0.0))
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0.0, np.abs(x.astype(np.float64) - y))
    apart = np.where(np.isnan(apart), np.inf, apart)
    return float(np.max(apart, initial=0.0))
