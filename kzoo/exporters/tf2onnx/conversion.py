"""Keras model to verified ONNX file."""

import importlib
import json
from collections import Counter
from pathlib import Path

import keras

from kzoo.exporters.errors import ExportError
from kzoo.exporters.tf2onnx.comparison import (
    compare_file,
    draw_extremes,
    draw_inputs,
    expected_outputs,
)
from kzoo.exporters.tf2onnx.freeze import freeze
from kzoo.exporters.tf2onnx.lengths import lengths_of_inputs, lengths_of_model
from kzoo.exporters.tf2onnx.mapping import to_onnx
from kzoo.exporters.tf2onnx.model_proto import declare, store_once
from kzoo.exporters.tf2onnx.signature import Signature
from kzoo.exporters.tolerances import TOLERANCES
from kzoo.exporters.weights import TABLES, stored_tables
from kzoo.files import beside, install, refuse_link

OPSETS = range(13, 19)  # tf2onnx writes no newer one
HALF_DTYPES = ("float16", "bfloat16")


def convert(
    model,
    path,
    *,
    input_signature=None,
    opset=18,
    axes=None,
    inputs=None,
    tolerance=TOLERANCES["tf2onnx"].numbers,
    overwrite=False,
):
    """Writes the forward pass of a Keras model as one ONNX file and verifies it.

    Inputs keep their names and dtypes: the keys of a dict signature, or the names of
    its specs, else `input_0`, `input_1`. Outputs have the keys of the model's dict or
    the names that the user gave to a functional model's output layers, else `output_0`.
    Free axes are named: axis 0 `batch`, axis 1 `sequence` (`encoder_sequence` for an
    input named `encoder_...`, likewise `decoder_`), or `<input>_sequence` where the
    model takes inputs of different lengths; an output's axis has the name of the input
    axis that it followed in every verification run.

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
            the size of the table that they index, and are 0 and 1 where none is. The
            default adds runs with negative integers where no table is indexed, with
            zeros among floats and with large floats, where the model takes them.
        tolerance: allowed difference, times the largest absolute output if over 1.
        overwrite: whether `path` may exist.

    Returns:
        dict of the largest absolute difference of each output.

    Raises:
        ExportError: a model that is not built, in half precision, over 2 GB or with
            weights that are not finite; an operator without a counterpart; a file that
            differs from the model; a path that exists; a full disk. Nothing is left
            behind.
    """
    path = Path(path)
    try:
        _check_target(path, opset, overwrite)
    except OSError as error:  # a name that is too long
        raise ExportError(f"{path} cannot be written: {error}.") from error
    _check_installed("tf2onnx", "onnxruntime")
    signature = Signature(model, input_signature, axes)
    _check_model(model)
    graph_def, outputs, example_limits = freeze(model, signature)
    signature = lengths_of_model(signature, example_limits)
    extremes = []
    if inputs is None:
        inputs = draw_inputs(signature, example_limits)
        extremes = draw_extremes(signature, example_limits, inputs[-1])
    expected = [expected_outputs(signature, example) for example in inputs]
    signature = lengths_of_inputs(signature, inputs)
    proto = to_onnx(graph_def, signature, outputs, opset, model)
    store_once(proto)
    tables = {TABLES: json.dumps(stored_tables(proto, model))}
    declare(proto, signature, outputs, inputs, expected, tables)
    return _write(
        path,
        proto,
        lambda file: compare_file(
            signature, file, inputs, expected, tolerance, extremes
        ),
    )


def compare(
    model,
    path,
    inputs_list,
    tolerance=TOLERANCES["tf2onnx"].numbers,
    *,
    input_signature=None,
):
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
            model's, or an output differs; a model in half precision, or with weights
            that are not finite.
    """
    _check_installed("onnxruntime")
    signature = Signature(model, input_signature, None)
    _check_model(model)
    if not inputs_list:
        raise ExportError("compare() needs one dict of inputs at least.")
    expected = [expected_outputs(signature, example) for example in inputs_list]
    return compare_file(signature, path, inputs_list, expected, tolerance)


def random_inputs(model, *, axes=None):
    """Random inputs of three shapes: batch 1, longer, a larger batch.

    Returns:
        a list of dicts of numpy arrays by input name.
    """
    signature = Signature(model, None, axes)
    limits = freeze(model, signature)[2]
    return draw_inputs(lengths_of_model(signature, limits), limits)


def promised_axes(model, session):
    """What a file says of its inputs that the model need not: `axes` of `convert`.

    One name of several inputs promises one length, where the model may take others;
    a name of one alone promises nothing.

    Args:
        model: the model that the file is of.
        session: `onnxruntime.InferenceSession` of the file.
    """
    known = Signature(model, None, None).names
    inputs = [each for each in session.get_inputs() if each.name in known]
    count = Counter(size for each in inputs for size in {*each.shape})
    return {
        each.name: {
            axis: size
            for axis, size in enumerate(each.shape)
            if isinstance(size, int) or (size and count[size] > 1)
        }
        for each in inputs
    }


def _check_installed(*packages):
    for name in packages:
        try:
            importlib.import_module(name)
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
    refuse_link(path, ExportError)
    if path.is_dir() or (path.exists() and not overwrite):
        raise ExportError(
            f"{path} exists. Pass overwrite=True to replace a file, or another path."
        )


def _check_model(model):
    # A metric or a loss may keep float16 state, which the forward pass never reads.
    for layer in model._flatten_layers():
        for dtype in (layer.compute_dtype, layer.variable_dtype):
            if dtype in HALF_DTYPES:
                raise ExportError(
                    f"The model must be in float32. Received: layer '{layer.name}' "
                    f"with dtype policy {layer.dtype_policy.name}. Build the model "
                    'with dtype="float32", copy the weights with '
                    "new.set_weights(old.get_weights()), and export that."
                )
    # NaN is where it should be on both sides, so that nothing would differ.
    for variable in model.weights:
        if not keras.ops.all(keras.ops.isfinite(variable)):
            raise ExportError(f"The weight {variable.path} holds NaN or infinity.")


def _write(path, proto, verify):
    """Writes beside, verifies, moves; whatever fails leaves `path` as it was."""
    try:
        data = proto.SerializeToString(deterministic=True)
    except Exception as error:  # protobuf's, when it ends at 2 GiB
        raise ExportError(f"The ONNX model is over 2 GB: {error}") from error
    try:
        with beside(path) as partial:
            file = partial / path.name
            file.write_bytes(data)
            differences = verify(file)
            install(partial, [path])
    except OSError as error:
        raise ExportError(
            f"{path} could not be written: {error}. Nothing was left behind; "
            f"{len(data) / 1e6:.1f} MB are needed."
        ) from error
    return differences
