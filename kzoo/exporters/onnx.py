"""Emits a task's functions as ONNX and verifies them in onnxruntime."""

import collections
import importlib.metadata
import itertools
import json
import re
import tempfile
import time
import traceback
from pathlib import Path

import keras
import numpy as np

from kzoo.exporters import checks, onnx_session
from kzoo.exporters.errors import ANOTHER, ExportError
from kzoo.exporters.report import ExportReport
from kzoo.exporters.weights import array_of
from kzoo.generation.low_memory import TOKENS_BETWEEN_JOINS, USUAL_BETWEEN_JOINS
from kzoo.ops.onnx_graph import DEFAULT_OPSET, MINIMUM_OPSET, PORTABLE_OPSET, OnnxGraph
from kzoo.ops.onnx_value import onnx_dtype

MAXIMUM_OPSET = 24  # the newest one that onnxruntime runs
WEIGHTS = "weights.bin"
BESIDE = ".weights.bin"  # the suffix of a single file's weights
# What Keras's backends say of an `OnnxValue`; torch asks for its dtype alone.
_FOREIGN = r"OnnxValue|Invalid dtype: object"
# Inputs of a file, no function's.
_FILE_OPTIONS = {TOKENS_BETWEEN_JOINS: USUAL_BETWEEN_JOINS}


def emit(function, names, opset, low_memory=False):
    """The graph of one function.

    Args:
        function: a `Function`.
        names: `id(variable)` to its path.
        opset: of the graph.
        low_memory: see `export`.

    Returns:
        `OnnxGraph`; what has a default is an input that may be left out.
    """
    graph = OnnxGraph(opset, names, low_memory=low_memory)
    with graph.building():
        inputs = {}
        for argument in function.arguments:
            inputs[argument.name] = graph.input(
                argument.name,
                argument.shape,
                argument.dtype,
                axes=argument.axes,
                default=argument.default,
            )
        try:
            values = function.computed(inputs)
        except Exception as error:  # each backend has its own
            said = str(error)  # of a user's processor all is said already
            if said.startswith("The processor ") or not re.search(_FOREIGN, said):
                raise
            raise ExportError(
                f"{function.name} uses an operation that is not of kzoo.ops, and so has"
                " no form in ONNX. Write your own layers and tasks over kzoo.ops, or "
                "export the forward pass with exporter='tf2onnx'. Received"
                f"{_place(error)}: {' '.join(said.split())[:300]}"
            ) from error
        for name, value in values.items():
            graph.output(value, name, axes=function.outputs[name])
    graph.prune()
    graph.sink()
    return graph


def _place(error):
    """The innermost layer that an error rose in, in words."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    owners = [frame.f_locals.get("self") for frame in frames]
    layers = [x for x in owners if isinstance(x, keras.layers.Layer)]
    return f", in {type(layers[-1]).__name__} {layers[-1].path!r}" if layers else ""


def write(
    functions,
    names,
    target,
    *,
    opset,
    portable,
    metadata,
    threshold=None,
    change=None,
    low_memory=False,
):
    """Writes the functions: a file for one, a folder for all with weights beside.

    Args:
        functions: `Function`s.
        names: `id(variable)` to its path.
        target: a path that ends in `.onnx` (one function), or that of a folder.
        opset: `None` for the default.
        portable: use no operator newer than opset 18.
        metadata: dict of strings.
        threshold: bytes of weights above which one file keeps them beside it.
        change: a function called with each graph before it is written.
        low_memory: see `export`.

    Returns:
        An `ExportReport` without checks, and name to path of the files.
    """
    from kzoo.ops.onnx_file import (
        LARGEST_FILE,
        weight_bytes,
        write_model,
        write_weights,
    )

    if opset is None:
        opset = PORTABLE_OPSET if portable else DEFAULT_OPSET
    largest = PORTABLE_OPSET if portable else MAXIMUM_OPSET
    if not MINIMUM_OPSET <= opset <= largest:
        raise ExportError(
            f"opset must be in [{MINIMUM_OPSET}, {MAXIMUM_OPSET}], and at most "
            f"{PORTABLE_OPSET} with portable=True. Received: {opset}."
        )
    start = time.perf_counter()
    graphs = {f.name: emit(f, names, opset, low_memory) for f in functions}
    for graph in graphs.values():
        if change:
            change(graph)
    report = ExportReport(str(target), "onnx", opset=opset)
    report.domains = sorted(set().union(*(g.domains() for g in graphs.values())))
    everything = {n: i for g in graphs.values() for n, i in g.initializers.items()}
    report.weight_bytes = weight_bytes(everything)
    single, external = target.suffix == ".onnx", None
    threshold = LARGEST_FILE if threshold is None else min(threshold, LARGEST_FILE)
    if not single:
        target.mkdir()
    if not single or report.weight_bytes > threshold:
        beside = target.with_suffix(BESIDE) if single else target / WEIGHTS
        external = (beside.name, write_weights(graphs.values(), beside))
    if any(onnx_session.EXTENSIONS in graph.domains() for graph in graphs.values()):
        version = importlib.metadata.version("onnxruntime-extensions")
        metadata = {**metadata, "needs": f"onnxruntime-extensions {version}"}
    paths = {}
    for name, graph in graphs.items():
        paths[name] = target if single else target / f"{name}.onnx"
        write_model(graph, paths[name], metadata=metadata, external=external)
        counts = collections.Counter(op_type for op_type, *_ in graph.every_node())
        report.operators[name] = dict(counts.most_common())
    report.seconds["write"] = time.perf_counter() - start
    return report, paths


def of_ids(names, opset, low_memory=False):
    """What a file of ids gives that has the weights of one of text; see `checks`.

    Args:
        names: as for `write`; so for the others.
        opset: of the graph.
        low_memory: see `export`.

    Returns:
        function from a `Function` and its numpy inputs to its outputs.
    """

    def run(function, inputs):
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "ids"
            options = dict(portable=False, metadata={}, low_memory=low_memory)
            _, paths = write([function], names, target, opset=opset, **options)
            session = onnx_session.open_session(paths[function.name])
            return onnx_session.runner(function, session)(inputs)

    return run


def verify(cases, session_of, report, of_ids=None):
    """Runs every case in onnxruntime.

    Args:
        cases: from `checks.references`.
        session_of: from a function's name to its session; called one by one, so that
            only one need be in memory.
        report: gets the checks.
        of_ids: see `checks.verify`.

    Raises:
        ExportError: onnxruntime refuses a file, or it differs from Keras.
    """
    import onnxruntime

    def answers():
        for name, own in itertools.groupby(cases, lambda case: case.function.name):
            yield from _answers(session_of(name), list(own), report)

    start = time.perf_counter()
    report.runtime = f"onnxruntime {onnxruntime.__version__}"
    checks.verify(cases, answers(), report, of_ids)
    report.seconds["verify"] = time.perf_counter() - start


def _answers(session, cases, report):
    """Yields the outputs for each of one function's cases."""
    function = cases[0].function
    declare(function, session, report, f"{report.path}, {function.name}")
    options = [option.name for option in session.get_overridable_initializers()]
    # The cases are of few tokens.
    often = {TOKENS_BETWEEN_JOINS: 2} if TOKENS_BETWEEN_JOINS in options else {}
    run = onnx_session.runner(function, session, often)
    for case in cases:
        yield answer(run, case)


def answer(run, case):
    """What a `runner` gives for a case; which of the user's own rows it refuses.

    Raises:
        ExportError: the runtime fails.
    """
    try:
        return run(case.inputs)
    except ExportError as error:
        if not case.rows:
            raise
        batched = {a.name for a in case.function.arguments if a.axes[:1] == ("batch",)}
        for row, name in enumerate(case.rows):
            alone = {
                key: value[row : row + 1] if key in batched else value
                for key, value in case.inputs.items()
            }
            try:
                run(alone)
            except ExportError as own:
                raise ExportError(f"{name}: {own}") from own
        these = f"from {case.rows[0]} to {case.rows[-1]}"
        raise ExportError(f"{error} The inputs are those {these}.") from error


def declare(function, session, report, where):
    """Checks names, dtypes and axes, and tells a report of them, and of what it needs.

    Raises:
        ExportError: they are not the function's.
    """
    codes = {"float32": "float"}
    inputs = [*session.get_inputs(), *session.get_overridable_initializers()]
    try:
        found = {i.name: (i.type, i.shape) for i in inputs}
        outputs = {o.name: (o.type, o.shape) for o in session.get_outputs()}
    except UnicodeDecodeError as error:
        raise ExportError(
            f"{where}: its inputs and outputs should have names in UTF-8: {error}. "
            "Export the model again."
        ) from error
    for argument in function.arguments:
        dtype = onnx_dtype(argument.dtype)
        wanted = (f"tensor({codes.get(dtype, dtype)})", list(argument.axes))
        if found.get(argument.name) != wanted:
            raise ExportError(
                f"{where}: should have the input {argument.name} as {wanted}. "
                f"Received: {found.get(argument.name)}."
            )
    names = [*outputs]
    if {*names} == {*function.outputs} and names != [*function.outputs]:
        raise ExportError(
            f"{where}: should have the outputs {[*function.outputs]} in this order. "
            f"Received: {names}."
        )
    for name, (_, axes) in outputs.items():
        if name not in function.outputs or axes != [*function.outputs[name]]:
            raise ExportError(
                f"{where}: should have the outputs {function.outputs}. "
                f"Received: {name} with axes {axes}."
            )
    report.functions[function.name] = {
        "inputs": {name: [*said] for name, said in found.items()},
        "outputs": {name: [*said] for name, said in outputs.items()},
    }
    needs = onnx_session.metadata_in(session, where).get("needs")
    report.needs = [needs] if needs else []


def head_of(path):
    """What a file says beside weights that stand in another, an `onnx.ModelProto`.

    Raises:
        ExportError: it is no ONNX file, or was cut short.
    """
    import onnx

    try:
        return onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf's and onnx's have no common base class
        raise ExportError(
            f"{path} should be an ONNX file, and cannot be read: {error}. Export the "
            "model again."
        ) from error


def opset_of(head):
    """The version of onnx's own operators that a file is written in."""
    own = [o.version for o in head.opset_import if o.domain in ("", "ai.onnx")]
    return own[0] if own else DEFAULT_OPSET


def check_defaults(function, path, head):
    """Raises `ExportError` when an input that is left out is not what it should be."""
    expected = {a.name: a.default for a in function.arguments}
    names = {*expected, *_FILE_OPTIONS}
    found = {
        tensor.name: array_of(tensor, path)
        for tensor in head.graph.initializer
        if tensor.name in names
    }
    expected |= {n: value for n, value in _FILE_OPTIONS.items() if n in found}
    for name, right in expected.items():
        got = found.get(name)
        if right is not None and got is not None:
            right = np.asarray(right, got.dtype)
            if np.array_equal(got, right):
                continue
        if right is not got:
            got, right = (np.asarray(x).tolist() for x in (got, right))
            raise ExportError(
                f"{path}: the input {name} should be {right} where it is left out, as "
                f"the task has it. Received: {got}. {ANOTHER}"
            )


def said_of(path, head):
    """What a file says of the model that it is of, by the keys of `config.json`.

    Raises:
        ExportError: it cannot be read.
    """
    metadata = {entry.key: entry.value for entry in head.metadata_props}
    said = {"task": metadata["task"]} if "task" in metadata else {}
    try:
        for name, key in (("labels", "labels"), ("model", "config")):
            if key in metadata:
                said[name] = json.loads(metadata[key])
    except ValueError as error:
        raise ExportError(
            f"{path}: its metadata should have {key} as JSON. Received: "
            f"{metadata[key]!r}. Export the model again."
        ) from error
    return said


def names_of(task):
    """`id(variable)` to the variable's path, as `emit` needs it."""
    return {id(variable): name for name, variable in task.named_variables().items()}


def metadata_of(task):
    """What the file says of itself."""
    import kzoo

    labels = getattr(task, "labels", None)
    return {
        "kzoo_version": kzoo.__version__,
        "keras_version": keras.__version__,
        "task": type(task).__name__,
        "config": json.dumps(task.config.to_dict()),
        **({"labels": json.dumps(labels)} if labels else {}),
    }
