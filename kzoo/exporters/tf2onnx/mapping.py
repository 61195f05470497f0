"""A TensorFlow graph as an ONNX model, by tf2onnx, with its errors raised."""

import contextlib
import logging

from kzoo.exporters.errors import ExportError
from kzoo.exporters.tf2onnx.freeze import layer_phrase
from kzoo.exporters.tf2onnx.handlers import HANDLERS, REWRITERS

_ADVICE = (
    "Write that computation with other operations of keras.ops, write the layer over "
    "kzoo.ops and use the native export, or export a SavedModel."
)


def to_onnx(graph_def, signature, outputs, opset, model):
    """The ONNX model of a frozen graph.

    Args:
        graph_def: of `freeze`.
        signature: the `Signature`.
        outputs: of `freeze`.
        opset: the ONNX operator set.
        model: the `keras.Model`, to name layers in errors.

    Returns:
        `onnx.ModelProto`.

    Raises:
        ExportError: an operator has no counterpart, or tf2onnx fails.
    """
    import tensorflow as tf
    import tf2onnx

    inputs = [f"kzoo_input_{i}:0" for i in range(len(signature.names))]
    renamed = dict(zip(inputs, signature.names))
    renamed.update((output.tensor, output.name) for output in outputs)

    def mapped():
        with tf.Graph().as_default() as graph, tf.device("/cpu:0"):
            tf.import_graph_def(graph_def, name="")
            return tf2onnx.tfonnx.process_tf_graph(
                graph,
                continue_on_error=True,  # all unsupported operators in one error
                opset=opset,
                input_names=inputs,
                output_names=[output.tensor for output in outputs],
                tensors_to_rename=renamed,
                custom_op_handlers=HANDLERS,
                custom_rewriter=REWRITERS,
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
    # which tensor a length is of, and onnxruntime then cannot run the file. The one of
    # neighbours leaves out a cast before a cast, and with it what the first one rounds.
    optimizers = {
        name: make
        for name, make in optimizer._get_optimizers().items()
        if name not in ("einsum_optimizer", "reshape_optimizer", "remove_back_to_back")
    }
    return optimizer.optimize_graph(graph, catch_errors=careful, optimizers=optimizers)


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
    import onnx

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
        f"  {op}: node '{name}'{layer_phrase(name, model)}"
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
