"""`export`: write beside, verify, then move into place; or leave nothing."""

import contextlib
import hashlib
import json
import numbers
import time
from pathlib import Path

import keras
import numpy as np

from kzoo.exporters import agreement, genai, onnx, saved_model
from kzoo.exporters import text as text_form
from kzoo.exporters.answers import scores
from kzoo.exporters.checks import check_finite, references
from kzoo.exporters.errors import ANOTHER, ExportError
from kzoo.exporters.inputs import batches, together
from kzoo.exporters.quantize import MODES, Matrices
from kzoo.exporters.report import ExportReport, joined
from kzoo.files import beside, install
from kzoo.layers.lora import lora_merged

# How many tokens `generate` adds to inputs of the user's. In a quantised artifact a
# token that differs may change all behind it, and so few are judged, as in an export.
_NEW_TOKENS, _QUANTIZED_TOKENS = 16, 3
_REPORT = "report.json"
# What holds an ONNX model itself; of a SavedModel, TensorFlow knows when bits change.
_HASHED = ("*.onnx", onnx.WEIGHTS)
EXPORTERS = ("kzoo", "tf2onnx")
FORMATS = ("onnx", "tf_saved_model", "genai")


def export(
    task,
    path,
    format="tf_saved_model",
    *,
    functions=None,
    opset=None,
    portable=False,
    overwrite=False,
    external_data_threshold=None,
    quantize=None,
    evaluate=None,
    exporter="kzoo",
    input_signature=None,
    text=False,
    low_memory=False,
):
    """Writes a task as an artifact that runs without kzoo, and verifies it there.

    Args:
        task: a task of kzoo; with `exporter="tf2onnx"` any Keras model.
        path: a new folder; or, for ONNX, a file that ends in `.onnx` and holds one
            function with its weights.
        format: `"tf_saved_model"`, `"onnx"`, or `"genai"`: a folder that
            onnxruntime-genai runs, of a `CausalLM`. Its one ONNX function takes and
            gives the cache under the names that other runtimes know.
        functions: names of what to export: `"forward"`, `"generate"`, and `"prefill"`
            and `"step"`, which hand the cache from call to call. By default all, but in
            an ONNX folder the first two, in a single file `"generate"`.
        opset: of ONNX; by default the one whose fused operators onnxruntime runs best.
        portable: of ONNX; use no operator newer than opset 18.
        overwrite: replace what is at `path`, once the new artifact is verified: a file
            with its weights beside it, or a folder that is empty or an artifact.
        external_data_threshold: bytes of weights above which a single ONNX file keeps
            them in a file beside it; protobuf's limit of 2 GB by default.
        quantize: of ONNX, makes the weights smaller: `"int8"` computes with them and is
            the fastest; `"int8_weights"` and `"int4"` need onnxruntime; `"float16"`
            computes in float32. See `kzoo.exporters.quantize`.
        evaluate: of ONNX, arguments of the task's `score`, such as `(x, y)`; the
            report then holds the metric of the model and of the artifact.
        exporter: `"kzoo"` emits a task natively; `"tf2onnx"` converts the forward pass
            of any Keras model, for layers that are not written over `kzoo.ops`.
        input_signature: with tf2onnx, what the model takes; a task's own by default.
            See `kzoo.exporters.tf2onnx.convert`.
        text: the artifact takes and gives text: the tokenizer is in the graph, by the
            operators of TensorFlow Text or onnxruntime-extensions, which it needs where
            it runs, and does exactly what the task's does. Or it is refused. Where a
            stop string ends an answer, all of its last token is in it: the caller cuts
            it before the stop, as the task's `generate` does.
        low_memory: of ONNX, `generate` holds the weights once, since matrices are
            stored so that onnxruntime need not pack them, and opens the file at once;
            and the cache once, twice while it grows by 256 tokens, or as many as the
            file's input `tokens_between_joins` says. One row of a model that does not
            fit into a processor's caches takes the same time, a few rows, and small
            models, up to twice as much.

    The scores that a file gives are -1e30 for a sequence that does not exist, where the
    task's `generate` gives -inf, and NaN where it raises since numbers were lost.

    Returns:
        An `ExportReport`.

    Raises:
        ExportError: something stands at `path` that may not be replaced, the model
            cannot be exported, the disk is full, or the artifact differs from the
            model. Nothing is left behind.
    """
    path = Path(path)
    if format not in FORMATS:
        raise ExportError(f"format must be one of {FORMATS}. Received: {format!r}.")
    if exporter not in EXPORTERS:
        raise ExportError(
            f"exporter must be one of {EXPORTERS}. Received: {exporter!r}."
        )
    if _is_file_name(path) and format != "onnx":
        raise ExportError(
            f"format={format!r} writes a folder, and a path that ends in .onnx is a "
            f"file's. Received: {path}. Name a folder, or export format='onnx'."
        )
    if not (opset is None or isinstance(opset, numbers.Integral)):
        raise ExportError(f"opset must be a whole number. Received: {opset!r}.")
    least = 0 if external_data_threshold is None else external_data_threshold
    if not (isinstance(least, numbers.Real) and least >= 0):
        raise ExportError(
            "external_data_threshold must be a number of bytes, at least 0. Received: "
            f"{external_data_threshold!r}."
        )
    if quantize not in (None, *MODES):
        raise ExportError(
            f"quantize must be None or one of {MODES}. Received: {quantize!r}."
        )
    if (quantize or evaluate) and (format != "onnx" or exporter != "kzoo"):
        raise ExportError(
            "quantize and evaluate are options of format='onnx', exporter='kzoo'. "
            f"Received: format={format!r}, exporter={exporter!r}."
        )
    if low_memory and (format != "onnx" or exporter != "kzoo" or quantize):
        raise ExportError(
            "low_memory is an option of format='onnx', exporter='kzoo', without "
            f"quantize. Received: format={format!r}, exporter={exporter!r}, "
            f"quantize={quantize!r}."
        )
    if exporter == "tf2onnx":
        if functions or portable or external_data_threshold is not None or text:
            raise ExportError(
                "functions, portable, external_data_threshold and text are options of "
                "exporter='kzoo'. Received: exporter='tf2onnx'; leave them out."
            )
        return _convert(task, path, format, opset, overwrite, input_signature)
    if input_signature is not None:
        raise ExportError(
            "input_signature is an option of exporter='tf2onnx'. Received: "
            "exporter='kzoo', which knows what a task takes; leave it out."
        )
    if format == "genai" and (functions is not None or text):
        raise ExportError(
            "functions and text are no options of format='genai', which writes one "
            f"function of ids. Received: functions={functions!r}, text={text}; leave "
            "them out."
        )
    if not hasattr(task, "export_functions"):
        raise ExportError(
            f"{type(task).__name__} is not a task of kzoo. Export it with "
            "format='onnx', exporter='tf2onnx'."
        )
    single = _is_file_name(path) and format == "onnx"
    offered = _offered(task, format, text)
    if single or functions is not None or format != "onnx" or text:
        defaults = None
    else:  # the functions that pass the cache only where they are asked for
        defaults = [function.name for function in task.export_functions()]
    chosen = _choose(offered, defaults if functions is None else functions, single)
    if low_memory and "generate" not in [function.name for function in chosen]:
        raise ExportError(
            "low_memory is of `generate`. Received: functions="
            f"{[function.name for function in chosen]}; leave it out."
        )
    _check_model(task)
    if (format == "tf_saved_model" and (opset or portable)) or (
        format != "onnx" and external_data_threshold is not None
    ):
        raise ExportError(
            "opset, portable and external_data_threshold are options of format='onnx'. "
            f"Received: format={format!r}."
        )
    if text and format == "onnx":
        opset = text_form.opset(opset, portable)
    targets = [path, path.with_suffix(onnx.BESIDE)] if single else [path]
    for target in targets:
        _check_target(target, single, overwrite)
    if single and not path.exists() and targets[1].exists():
        raise ExportError(
            f"{targets[1]} exists, and is the weights of no {path.name}. Choose "
            "another path, or remove it."
        )
    try:
        if text:
            text_form.check_tokenizer(task, format)
        with beside(path) as partial, references(chosen) as cases:
            target = partial / (path.with_suffix(".onnx") if single else path).name
            with lora_merged(task):
                if format != "tf_saved_model":
                    matrices = Matrices(quantize)
                    names = onnx.names_of(task)
                    report, paths = onnx.write(
                        chosen,
                        names,
                        target,
                        opset=opset,
                        portable=portable,
                        metadata=onnx.metadata_of(task) | matrices.metadata,
                        threshold=external_data_threshold,
                        change=matrices.quantize,
                        low_memory=low_memory,
                    )
                    if quantize:
                        agreement.verify(cases, paths, names, matrices, report)
                    else:
                        onnx.verify(
                            cases,
                            lambda name: onnx.open_session(paths[name]),
                            report,
                            onnx.of_ids(names, report.opset, low_memory),
                        )
                else:
                    variables = list(task.named_variables().values())
                    report = saved_model.write(chosen, variables, target)
                    report.needs = text_form.needs(task, format) if text else []
                    saved_model.verify(cases, target, report)
            if evaluate:
                report.metric = scores(task, paths, evaluate)
            if single:
                target.rename(partial / path.name)  # `.ONNX`
            elif format == "genai":
                report.format = "genai"
                genai.describe(task, target, report)
                genai.verify(task, target, report, new=True)
            else:
                _describe(task, target)
            report.path, report.text = str(path), text
            report.notes += task.unexercised(text)
            report.files = _sizes(partial if single else target)
            if not overwrite and path.exists():
                raise ExportError(f"{path} has come into being. Choose another path.")
            if not single:
                report.sha256 = _hashes(target)
                report.save(target / _REPORT)
            install(partial, targets)
    except OSError as error:
        raise ExportError(
            f"Could not write {path}: {error}. Nothing was left behind; free some "
            "space or choose another path, and export again."
        ) from error
    return report


def verify(path, task, inputs=None):
    """Runs an artifact again beside a task, on inputs of the user's, too.

    Args:
        path: a folder or file that `export` wrote.
        task: the task that it should equal; of what exporter="tf2onnx" wrote any Keras
            model.
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
        return _verify_converted(path, task, inputs)
    _check_model(task)
    said = _said_of(path)
    text, format = said.get("text", False), "onnx"
    if (path / genai.CONFIG).is_file():
        format = "genai"
    elif (path / "saved_model.pb").is_file():
        format = "tf_saved_model"
    opened = {}
    if _is_file_name(path):
        opened[path] = session = onnx.open_session(path)
        text = onnx.takes_text(session)
        metadata = session.get_modelmeta().custom_metadata_map
        if metadata.get("exporter") == "tf2onnx":
            return _verify_converted(path, task, inputs)
    _check_folder(path, task, format)
    if format == "tf_saved_model" and not said:
        declared = saved_model.signatures_of(path)
        text = any("string" in dtypes for dtypes in declared.values())
        said = {"functions": declared}
    if format == "onnx" and not said and not opened:
        for file in sorted(path.glob("*.onnx"))[:1]:
            text = onnx.takes_text(onnx.open_session(file))
    functions = {f.name: f for f in _offered(task, format, text)}
    if said:
        functions = {n: f for n, f in functions.items() if n in said["functions"]}
    if not functions:
        raise ExportError(
            f"{path} holds nothing that {task.name} offers. Received: functions="
            f"{sorted(said['functions'])}."
        )
    mode, paths = None, {}

    def session_of(name):
        return opened.get(paths[name]) or onnx.open_session(paths[name])

    if format != "tf_saved_model":
        paths = _onnx_files(path, functions, opened, said, format)
        functions = {name: functions[name] for name in paths}
        for name, file in paths.items():
            head = onnx.head_of(file)
            _check_said(file, onnx.said_of(file, head), task)
            onnx.check_defaults(functions[name], file, head)
        mode = onnx.quantize_mode(session_of(next(iter(paths))))
    own, notes, reports = [], [], []
    if inputs is not None:
        own, notes = batches(
            task,
            inputs,
            list(functions.values()),
            text,
            _QUANTIZED_TOKENS if mode else _NEW_TOKENS,
        )
    notes += task.unexercised(text)
    for some in together(own):
        report = ExportReport(str(path), format, text=text, notes=[*notes])
        with references(functions.values(), some) as cases:
            if format == "tf_saved_model":
                report.needs = text_form.needs(task, format) if text else []
                saved_model.verify(cases, path, report)
            elif mode:
                _verify_quantized(cases, paths, task, mode, report)
            else:
                with lora_merged(task):
                    of_ids = onnx.of_ids(onnx.names_of(task), onnx.DEFAULT_OPSET)
                    onnx.verify(cases, session_of, report, of_ids)
        if format == "genai":
            genai.verify(task, path, report, some)
        reports.append(report)
    _check_unchanged(path, said.get("sha256", {}))  # what no number has shown
    report = joined(reports)
    report.files = _sizes(path)
    return report


def _check_folder(path, task, format):
    """Raises `ExportError` where what stands beside a model is not the task's."""
    file = path / "config.json"
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


def _check_unchanged(folder, said):
    """Raises `ExportError` where a file of the model is not as it was written.

    A few other bits in the weights may stay within the tolerance of numbers.
    """
    found = _hashes(folder)
    for name, digest in said.items():
        if found.get(name) != digest:
            state = "changed" if name in found else "lost"
            raise ExportError(
                f"{folder / name} was {state} since it was exported, as sha256 in "
                f"{_REPORT} tells. Copy the folder again, or export the model anew."
            )


def _hashes(folder):
    """Name to hexadecimal SHA-256 of the files that hold a folder's ONNX model."""
    found = {}
    for file in sorted(file for each in _HASHED for file in folder.glob(each)):
        with file.open("rb") as opened:
            found[file.name] = hashlib.file_digest(opened, "sha256").hexdigest()
    return found


def _check_said(where, said, task):
    """Raises `ExportError` where an artifact says that it is of another model.

    Numbers do not tell names apart, and windows in cases alone that are longer than
    both.

    Args:
        where: the file that says it.
        said: dict; `"task"`, `"labels"` and the config, `"model"`, may be missing.
        task: what it should be of.
    """
    for name, mine in _names_of(task).items():
        if said.get(name, mine) != mine:
            raise ExportError(
                f"{where} is of a model with {name}={said[name]!r}, and {task.name} "
                f"has {mine!r}. {ANOTHER}"
            )
    said, own = said.get("model", {}), json.loads(json.dumps(task.config.to_dict()))
    for side in ("encoder", "decoder"):
        both = said.get(side), own.get(side)
        if not all(both):
            continue
        for name in ("attention_window", "windowed_layers"):
            theirs, mine = (stack.get(name) for stack in both)
            if theirs != mine:
                raise ExportError(
                    f"{where} is of a model whose {side} has {name}={theirs}, and "
                    f"{task.name} has {mine}. {ANOTHER}"
                )


def _verify_converted(path, task, inputs):
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
        function, signature, _ = _forward(task)
        cases = function.cases(np.random.default_rng(0))
    else:  # another model of Keras
        cases = tf2onnx.random_inputs(task)
        cases = {f"shape {i}": case for i, case in enumerate(cases, 1)}
    report = ExportReport(str(path), "onnx")
    for name, case in cases.items():
        found = tf2onnx.compare(task, path, [case], input_signature=signature)
        difference = max(found.values())
        report.checks.append(dict(function="forward", case=name, difference=difference))
    report.seconds["verify"] = time.perf_counter() - start
    report.files = _sizes(path)
    return report


def _forward(task):
    """A task's `forward`, and the signature and axes that tf2onnx needs of it."""
    function = _choose(task.export_functions(), "forward", True)[0]
    signature = {
        a.name: keras.InputSpec(shape=(None,) * len(a.axes), dtype=a.dtype)
        for a in function.arguments
    }
    axes = {a.name: dict(enumerate(a.axes)) for a in function.arguments}
    return function, signature, axes


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


def _verify_quantized(cases, paths, task, mode, report):
    """Quantises the task again, in memory, to know what the files should hold."""
    with lora_merged(task):
        matrices, names = Matrices(mode), onnx.names_of(task)
        for function in {case.function.name: case.function for case in cases}.values():
            matrices.quantize(onnx.emit(function, names, onnx.DEFAULT_OPSET))
        agreement.verify(cases, paths, names, matrices, report)


def _convert(model, path, format, opset, overwrite, input_signature):
    """The tf2onnx road, for any Keras model."""
    from kzoo.exporters import tf2onnx

    if format != "onnx":
        raise ExportError(f"exporter='tf2onnx' writes onnx. Received: {format!r}.")
    if not _is_file_name(path):
        raise ExportError(
            "exporter='tf2onnx' writes one file, whose name ends in .onnx. Received: "
            f"{path}."
        )
    start, replaces = time.perf_counter(), overwrite and path.exists()
    opset = opset or onnx.PORTABLE_OPSET
    axes = None
    if input_signature is None and hasattr(model, "export_functions"):
        _, input_signature, axes = _forward(model)
    differences = tf2onnx.convert(
        model,
        path,
        input_signature=input_signature,
        opset=opset,
        axes=axes,
        overwrite=overwrite,
    )
    beside = path.with_suffix(onnx.BESIDE)
    if replaces and beside.is_file():
        beside.unlink()  # the weights of the file before
    report = ExportReport(str(path), "onnx", opset=opset)
    report.files = {path.name: path.stat().st_size}
    report.checks = [
        dict(function="forward", case=f"three shapes, {name}", difference=difference)
        for name, difference in differences.items()
    ]
    report.seconds["write and verify"] = time.perf_counter() - start
    return report


def _is_file_name(path):
    return path.suffix.lower() == ".onnx"


def _check_target(path, single, overwrite):
    """Refuses to replace what is no artifact, such as the model's own folder."""
    if path.name in ("", ".."):
        raise ExportError(f"Expected the name of a new folder. Received: {path}.")
    if not path.exists():
        return
    if not overwrite:
        raise ExportError(f"{path} exists. Choose another path, or overwrite=True.")
    if single:
        if not path.is_file():
            raise ExportError(
                f"{path} is a folder, which overwrite=True does not replace by a file. "
                "Choose another path, or remove it."
            )
        return
    files = [path]
    if path.is_dir():
        known = set()
        with contextlib.suppress(ExportError):  # a report of something else
            names = (*_said_of(path).get("files", ()), _REPORT)
            known = {path / name for name in names}
        files = [f for f in path.rglob("*") if f.is_file() and f not in known]
    if files:
        raise ExportError(
            f"{path} is no folder of an artifact alone, and overwrite=True replaces "
            f"nothing else. Choose another path, or remove it. It holds: {files[0]}."
        )


def _sizes(path):
    """Name to bytes of the files of an artifact, a folder's or a file's."""
    folder, files = path, sorted(path.rglob("*"))
    if path.is_file():
        folder, files = path.parent, [path, path.with_suffix(onnx.BESIDE)]
    return {
        str(file.relative_to(folder)): file.stat().st_size
        for file in files
        if file.is_file() and file.name != _REPORT
    }


def _said_of(folder):
    """The report of an export to a folder, as a dict; empty where there is none."""
    file = folder / _REPORT
    if not file.is_file():
        return {}
    with contextlib.suppress(ValueError):
        said = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(said, dict) and {"files", "functions"} <= set(said):
            return said
    raise ExportError(
        f"{file} was cut short, or is no report of kzoo. Export the model again, to a "
        "new folder."
    )


def _offered(task, format, text):
    """All functions that a task can export in a format, what serves by default last."""
    if format == "genai":
        return [genai.function_of(task)]
    if text:
        return text_form.offered(task, format)
    steps = getattr(task, "stepwise_functions", list)()
    return [*steps, *task.export_functions()]


def _choose(offered, names, single):
    known = {function.name: function for function in offered}
    if names is None:
        names = ["generate" if "generate" in known else "forward"] if single else known
    names = [names] if isinstance(names, str) else list(names)
    unknown = [name for name in names if name not in known]
    if unknown or not names or single and len(names) > 1:
        raise ExportError(
            f"functions must be among {list(known)}"
            f"{', one of them for a single file' if single else ''}. Received: {names}."
        )
    return [function for name, function in known.items() if name in names]


def _check_model(task):
    if not task.built:
        raise ExportError(
            f"{task.name} has no weights yet. Call it once on data, or build() it."
        )
    policies = {
        layer.dtype_policy.name
        for layer in task._flatten_layers()
        if layer.dtype_policy.name != "float32"
    }
    if any("int" in policy or "float8" in policy for policy in policies):
        raise ExportError(
            f"{task.name} was quantised by Keras to {sorted(policies)}, which no "
            "artifact keeps. Export the model as it was before, with quantize='int8', "
            "'int8_weights' or 'int4'."
        )
    if policies:
        raise ExportError(
            f"{task.name} computes in {sorted(policies)}; artifacts compute in "
            "float32, as verification expects. Build the model with dtype='float32', "
            "load this one's weights into it, and export that."
        )
    check_finite(task.named_variables())


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


def _names_of(task):
    """What a task and its classes are called."""
    labels = getattr(task, "labels", None)
    return {"task": type(task).__name__, "labels": labels and list(labels)}


def _describe(task, folder):
    """Config and tokenizer, so that a service needs nothing else."""
    names = {name: value for name, value in _names_of(task).items() if value}
    text = json.dumps({**names, "model": task.config.to_dict()})
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")
    if task.tokenizer is not None:
        task.tokenizer.save(folder)
