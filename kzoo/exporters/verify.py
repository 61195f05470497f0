"""`verify`: an artifact that was exported, beside a task, once more."""

import functools
import json
import time
from pathlib import Path

import keras
import numpy as np

from kzoo.config import ModelConfig
from kzoo.exporters import agreement, genai, onnx, onnx_session, saved_model, weights
from kzoo.exporters import text as text_form
from kzoo.exporters.artifact import (
    REPORT,
    SAVED_MODEL,
    hashes,
    is_file_name,
    said_of,
    sizes,
)
from kzoo.exporters.checks import references
from kzoo.exporters.errors import ANOTHER, ExportError
from kzoo.exporters.inputs import batches, together
from kzoo.exporters.offers import called, check_model, forward_of, offered
from kzoo.exporters.quantize import MODES, Matrices
from kzoo.exporters.report import ExportReport, joined
from kzoo.layers.lora import lora_merged

# How many tokens `generate` adds to inputs of the user's. In a quantised artifact a
# token that differs may change all behind it, and so few are judged, as in an export.
_NEW_TOKENS, _QUANTIZED_TOKENS = 16, 3
_OTHER_NODES = (
    "{} has other nodes than this version of kzoo writes, by an optimiser or by "
    "another version: what they compute was compared by the cases alone."
)
_SILENT = "{} does not say of which {} it is, so that this was not compared."
_UNREPORTED = "{} has no {} with hashes: whether files were changed was not looked at."
# Fields of a config of which two values are never the same model; most others follow
# from one another, or are read with some values of others alone.
_TELLING = (
    *("pad_token_id", "start_token_id", "end_token_id"),
    *("vocabulary_size", "num_layers", "hidden_dim", "intermediate_dim", "num_heads"),
    *("num_key_value_heads", "head_dim", "positions", "norm", "norm_position"),
    *("attention_window", "windowed_layers", "causal", "num_segments", "layer_groups"),
    *("activation", "feed_forward", "similarity", "query_key_norm", "norm_epsilon"),
    *("parallel_residual", "embedding_norm", "embedding_scale", "attention_soft_cap"),
    *("first_norm", "final_norm", "norm_bias", "use_bias", "attention_bias"),
    *("attention_output_bias", "attention_scale", "embedding_dim"),
)
# What a field is where it is `None`.
_ELSE = {
    "attention_bias": "use_bias",
    "attention_output_bias": "use_bias",
    "layer_groups": "num_layers",
    "rotary_dim": "head_dim",
}
# Those that are read with some values of others alone.
_OF_POSITIONS = {
    "learned": ("max_sequence_length", "first_position"),
    "sinusoidal": ("sinusoidal_layout", "first_position"),
    "rotary": (
        "rope_max_wavelength",
        "rope_scaling",
        "rotary_dim",
        "window_rope_max_wavelength",
    ),
    "relative": ("relative_buckets", "relative_max_distance"),
}
_OF_A_HEAD = ("tie_head", "head_bias", "head_scale", "head_soft_cap")


def verify(path, task, inputs=None):
    """Runs an artifact again beside a task, on inputs of the user's, too.

    Args:
        path: a folder or file that `export` wrote.
        task: the task that it should equal; of what exporter="tf2onnx" wrote any model
            of Keras that knows its inputs. What that road wrote is compared by its
            answers and its tables: a weight that changes no answer may be another.
        inputs: what to compare on, beside what every export is compared on. A list of
            examples: strings, or (first, second) pairs of strings where the task reads
            pairs, or (source, target); or ids, a list of int each for the first input,
            or a dict of such lists by input. Instead of a list a dict, from what an
            error calls an example to the example. All functions of the artifact that
            read them are run; `generate` adds few tokens, by greedy search. A language
            model's `forward` reads what is generated from, and for want of a target
            the decoder reads the source.

    Returns:
        An `ExportReport`.

    Raises:
        ExportError: it cannot be run, or it differs; of the inputs the first that does
            is named, with what both gave.
        ValueError: the task cannot read an input.
    """
    path = Path(path)
    if not hasattr(task, "export_functions"):
        return _verify_other(path, task, inputs)
    check_model(task)
    said = said_of(path)
    _check_whole(path, said)
    _check_unchanged(path, said)  # before it is run: onnxruntime may abort on it
    silences = []
    if path.is_dir() and "sha256" not in said:
        silences.append(_UNREPORTED.format(path, REPORT))
    text, format = said.get("text", False), "onnx"
    if (path / genai.CONFIG).is_file():
        format = "genai"
    elif (path / SAVED_MODEL).is_file():
        format = "tf_saved_model"
        saved_model.check_runtime(path)
    opened, head_of = {}, functools.cache(onnx.head_of)
    if is_file_name(path) and not path.is_dir():
        opened[path] = session = onnx_session.open_session(path)
        text = onnx_session.takes_text(session)
        if onnx_session.metadata_in(session, path).get("exporter") == "tf2onnx":
            return _verify_converted(path, session, task, inputs)
        _check_said(path, onnx.said_of(path, head_of(path)), task)
    beside = _check_folder(path, task, format)
    if format == "tf_saved_model" and not said:
        declared = saved_model.signatures_of(path)
        text = any("string" in dtypes for dtypes in declared.values())
        said = {"functions": declared}
    if format == "onnx" and not said and not opened:
        for file in sorted(path.glob("*.onnx"))[:1]:
            text = onnx_session.takes_text(onnx_session.open_session(file))
    functions = {f.name: f for f in offered(task, format, text)}
    if said:
        functions = {n: f for n, f in functions.items() if n in said["functions"]}
    if not functions:
        raise ExportError(
            f"{path} holds nothing that {task.name} offers. Received: functions="
            f"{sorted(said['functions'])}."
        )
    mode, paths, heads = None, {}, {}

    def session_of(name):
        return opened.get(paths[name]) or onnx_session.open_session(paths[name])

    if format != "tf_saved_model":
        paths = _onnx_files(path, functions, opened, said, format)
        functions = {name: functions[name] for name in paths}
        for name, file in paths.items():
            heads[name] = head = head_of(file)
            inside = onnx.said_of(file, head)
            _check_said(file, inside, task)
            silences += _silence(file, {**beside, **inside}, task)
            onnx.check_defaults(functions[name], file, head)
        name, file = next(iter(paths.items()))
        mode = onnx_session.metadata_in(session_of(name), file).get("quantize")
        if mode not in (None, *MODES):
            raise ExportError(
                f"{path} says that it is quantized as {mode!r}. Expected one of "
                f"{MODES}. {ANOTHER}"
            )
    else:
        silences += _silence(path, beside, task)
    with lora_merged(task):
        matrices, graphs = _emitted(functions, heads, task, mode)
    own, notes, reports = [], [], []
    if inputs is not None:
        own, notes = batches(
            task,
            inputs,
            list(functions.values()),
            text,
            _QUANTIZED_TOKENS if mode else _NEW_TOKENS,
        )
    notes += silences + task.unexercised(text)
    notes += text_form.notes(task, format) if text else []
    for some in together(own):
        report = ExportReport(str(path), format, text=text, notes=[*notes])
        with references(functions.values(), some) as cases:
            if format == "tf_saved_model":
                report.needs = text_form.needs(task, format) if text else []
                saved_model.verify(cases, path, report)
            elif mode:
                with lora_merged(task):
                    names = onnx.names_of(task)
                    agreement.verify(cases, paths, names, matrices, report)
            else:
                with lora_merged(task):
                    of_ids = onnx.of_ids(onnx.names_of(task), onnx.DEFAULT_OPSET)
                    onnx.verify(cases, session_of, report, of_ids)
        if format == "genai":
            genai.verify(task, path, report, some)
        reports.append(report)
    # What no number has shown.
    with lora_merged(task):
        if format == "tf_saved_model":
            weights.check_saved_model(path, task)
        for name, graph in graphs.items():
            if not weights.check_onnx(paths[name], heads[name], graph, task, mode):
                reports[-1].notes.append(_OTHER_NODES.format(paths[name].name))
    report = joined(reports)
    report.files = sizes(path)
    return report


def _check_folder(path, task, format):
    """What the config beside a model says, a dict.

    Raises:
        ExportError: it, or the tokenizer, is not the task's.
    """
    said, file = {}, path / "config.json"
    if file.is_file():
        try:
            said = json.loads(file.read_text(encoding="utf-8"))
            right = isinstance(said, dict) and isinstance(said.get("model"), dict)
        except (OSError, ValueError):
            right = False
        if not right:
            raise ExportError(
                f"{file} was cut short, or is no config of kzoo. Export the model "
                "again, to a new folder."
            )
        _check_said(file, said, task)
    if format != "genai":  # which writes a tokenizer in another form
        try:
            task.check_saved_tokenizer(path)
        except (OSError, ValueError) as error:
            raise ExportError(
                f"The tokenizer beside the model should be the task's. Received: "
                f"{error} {ANOTHER}"
            ) from error
    return said


def _silence(file, said, task):
    """Notes on what an artifact does not say of its model."""
    names = [name for name, value in called(task).items() if value]
    silent = sorted({*names, "model"} - {*said})
    return [_SILENT.format(file.name, " and ".join(silent))] if silent else []


def _check_whole(folder, said):
    """Raises `ExportError` where a file of the model is not there any more."""
    for name in said.get("files", {}):
        if not (folder / name).is_file():
            raise ExportError(
                f"{folder / name} was lost since it was exported, as {REPORT} tells. "
                "Copy the folder again, or export the model anew."
            )


def _check_unchanged(folder, said):
    """Raises `ExportError` where a file of the model is not as it was written.

    A few other bits in the weights may stay within the tolerance of numbers.
    """
    found = hashes(folder)
    for name, digest in said.get("sha256", {}).items():
        if found.get(name) != digest:
            state = "changed" if name in found else "lost"
            raise ExportError(
                f"{folder / name} was {state} since it was exported, as sha256 in "
                f"{REPORT} tells. Copy the folder again, or export the model anew."
            )


def _check_said(where, said, task):
    """Raises `ExportError` where an artifact says that it is of another model.

    Numbers do not tell names apart, nor what no case reads, as windows longer than all.

    Args:
        where: the file that says it.
        said: dict; `"task"`, `"labels"` and the config, `"model"`, may be missing.
        task: what it should be of.
    """
    for name, mine in called(task).items():
        if said.get(name, mine) != mine:
            raise ExportError(
                f"{where} is of a model with {name}={said[name]!r}, and {task.name} "
                f"has {mine!r}. {ANOTHER}"
            )
    if "model" not in said:
        return
    try:
        found = ModelConfig.from_dict(said["model"])
    except (TypeError, ValueError) as error:
        raise ExportError(
            f"{where} was cut short, or its config is none of this version of kzoo: "
            f"{error} Export the model again, to a new folder."
        ) from error
    for side in ("encoder", "decoder", None):
        theirs, mine = (getattr(x, side) if side else x for x in (found, task.config))
        if not (theirs and mine):
            continue  # the cases tell which sides a model has
        names = [name for name in _TELLING if hasattr(mine, name)]
        if side:
            names += _OF_POSITIONS.get(mine.positions, ())
        elif mine.decoder:
            names += _OF_A_HEAD
        for name in names:
            values = [_field(config, name) for config in (theirs, mine)]
            if values[0] != values[1]:
                raise ExportError(
                    f"{where} is of a model whose {side or 'config'} has {name}="
                    f"{values[0]!r}, and {task.name} has {values[1]!r}. {ANOTHER}"
                )


def _field(config, name):
    """A field of a config; what it stands for where it is `None`."""
    value = getattr(config, name)
    return getattr(config, _ELSE[name]) if value is None and name in _ELSE else value


def _verify_other(path, model, inputs):
    """Verifies a file that tf2onnx made of a model that is no task."""
    made = path.is_file() and is_file_name(path)
    if made:
        session = onnx_session.open_session(path)
        made = onnx_session.metadata_in(session, path).get("exporter") == "tf2onnx"
    if not made:
        raise ExportError(
            f"{type(model).__name__} is no task of kzoo, so that it is compared with a "
            f"file that exporter='tf2onnx' wrote. Received: {path}, which is none."
        )
    if keras.backend.backend() != "tensorflow":
        raise ExportError(
            "Models that are no tasks are compared on the TensorFlow backend. "
            f"Received: {keras.backend.backend()}. Set KERAS_BACKEND=tensorflow."
        )
    return _verify_converted(path, session, model, inputs)


def _verify_converted(path, session, task, inputs):
    """Verifies a file that tf2onnx made, on what every export is compared on."""
    from kzoo.exporters import tf2onnx

    start = time.perf_counter()
    if inputs is not None:
        raise ExportError(
            f"{path} was made by exporter='tf2onnx', and inputs of your own go with "
            "exporter='kzoo'. Leave them out, or export format='onnx' anew."
        )
    signature = None
    if hasattr(task, "export_functions"):
        function, signature, _ = forward_of(task)
        cases = function.cases(np.random.default_rng(0))
    else:  # another model of Keras
        axes = tf2onnx.promised_axes(task, session)
        cases = tf2onnx.random_inputs(task, axes=axes)
        cases = {f"shape {i}": case for i, case in enumerate(cases, 1)}
    report = ExportReport(str(path), "onnx")
    for name, case in cases.items():
        found = tf2onnx.compare(task, path, [case], input_signature=signature)
        difference = max(found.values())
        report.checks.append(dict(function="forward", case=name, difference=difference))
    weights.check_converted(path, task)
    report.seconds["verify"] = time.perf_counter() - start
    report.files = sizes(path)
    return report


def _onnx_files(path, functions, opened, said, format):
    """Name of each function that an artifact holds to its file."""
    if opened:
        return {_function_in(opened[path], functions, path).name: path}
    if format == "genai":
        return {name: path / genai.MODEL for name in functions}
    paths = {name: path / f"{name}.onnx" for name in functions}
    if not said:
        paths = {name: file for name, file in paths.items() if file.is_file()}
    if not paths:
        raise ExportError(
            f"{path} holds no artifact of kzoo: expected saved_model.pb, or one of "
            f"{[f'{name}.onnx' for name in functions]}."
        )
    return paths


def _emitted(functions, heads, task, mode):
    """What the files should hold: the task emitted again, in memory, and quantised."""
    matrices, graphs = Matrices(mode), {}
    inputs = {each.name for head in heads.values() for each in head.graph.input}
    for name, head in heads.items():
        graphs[name] = onnx.emit(
            functions[name],
            onnx.names_of(task),
            onnx.opset_of(head),
            low_memory=onnx.TOKENS_BETWEEN_JOINS in inputs,  # of all, and in one
        )
        matrices.quantize(graphs[name])
    return matrices, graphs


def _function_in(session, functions, path):
    """Which of the functions a single file holds, by what it needs and gives."""
    outputs = {output.name for output in session.get_outputs()}
    needed = {each.name for each in session.get_inputs()}
    fitting = [f for f in functions.values() if set(f.outputs) == outputs]
    # One whose input alone has another name is compared, and refused for that.
    fitting.sort(
        key=lambda f: needed != {a.name for a in f.arguments if a.default is None}
    )
    if fitting:
        return fitting[0]
    raise ExportError(f"{path} holds none of {list(functions)}. It gives {outputs}.")
