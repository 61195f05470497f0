"""`export`: write beside, verify, then move into place; or leave nothing."""

import contextlib
import json
import shutil
import tempfile
import time
from pathlib import Path

import keras

from kzoo.exporters import onnx, saved_model
from kzoo.exporters.checks import references
from kzoo.exporters.errors import ExportError
from kzoo.exporters.report import ExportReport

EXPORTERS = ("kzoo", "tf2onnx")
FORMATS = ("onnx", "tf_saved_model")


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
    exporter="kzoo",
    input_signature=None,
):
    """Writes a task as an artifact that runs without kzoo, and verifies it there.

    Args:
        task: a task of kzoo; with `exporter="tf2onnx"` any Keras model.
        path: a new folder; or, for ONNX, a file that ends in `.onnx` and holds one
            function with its weights.
        format: `"tf_saved_model"` or `"onnx"`.
        functions: names of what to export: `"forward"`, `"generate"`. All by default;
            in a single file `"generate"`.
        opset: of ONNX; by default the one whose fused operators onnxruntime runs best.
        portable: of ONNX; use no operator newer than opset 18.
        overwrite: replace what is at `path`, once the new artifact is verified: a file
            with its weights beside it, or a folder that is empty or an artifact.
        external_data_threshold: bytes of weights above which a single ONNX file keeps
            them in a file beside it; protobuf's limit of 2 GB by default.
        exporter: `"kzoo"` emits a task natively; `"tf2onnx"` converts the forward pass
            of any Keras model, for layers that are not written over `kzoo.ops`.
        input_signature: with tf2onnx, what the model takes; a task's own by default.
            See `kzoo.exporters.tf2onnx.convert`.

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
    if exporter == "tf2onnx":
        if functions is not None or portable or external_data_threshold is not None:
            raise ExportError(
                "functions, portable and external_data_threshold are options of "
                "exporter='kzoo'. Received: exporter='tf2onnx'; leave them out."
            )
        return _convert(task, path, format, opset, overwrite, input_signature)
    if input_signature is not None:
        raise ExportError(
            "input_signature is an option of exporter='tf2onnx'. Received: "
            "exporter='kzoo', which knows what a task takes; leave it out."
        )
    if not hasattr(task, "export_functions"):
        raise ExportError(
            f"{type(task).__name__} is not a task of kzoo. Export it with "
            "format='onnx', exporter='tf2onnx'."
        )
    single = _is_file_name(path) and format == "onnx"
    chosen = _choose(task, functions, single)
    _check_model(task)
    if format != "onnx" and (opset or portable or external_data_threshold):
        raise ExportError(
            "opset, portable and external_data_threshold are options of format='onnx'. "
            f"Received: format={format!r}."
        )
    targets = [path, path.with_suffix(onnx.BESIDE)] if single else [path]
    for target in targets:
        _check_target(target, single, overwrite)
    try:
        with _beside(path) as partial, references(chosen) as cases:
            target = partial / (path.with_suffix(".onnx") if single else path).name
            if format == "onnx":
                names = {id(v): name for name, v in task.named_variables().items()}
                report, paths = onnx.write(
                    chosen,
                    names,
                    target,
                    opset=opset,
                    portable=portable,
                    metadata=onnx.metadata_of(task),
                    threshold=external_data_threshold,
                )
                onnx.verify(cases, lambda name: onnx.open_session(paths[name]), report)
            else:
                variables = list(task.named_variables().values())
                report = saved_model.write(chosen, variables, target)
                saved_model.verify(cases, target, report)
            if single:
                target.rename(partial / path.name)  # `.ONNX`
            else:
                _describe(task, target)
            report.path = str(path)
            report.files = {
                str(
                    file.relative_to(partial if single else target)
                ): file.stat().st_size
                for file in sorted(partial.rglob("*"))
                if file.is_file()
            }
            if not single:
                report.save(target / "report.json")
            _install(partial, targets)
    except OSError as error:
        raise ExportError(
            f"Could not write {path}: {error}. Nothing was left behind; free some "
            "space or choose another path, and export again."
        ) from error
    return report


def verify(path, task):
    """Runs an artifact again beside a task.

    Args:
        path: a folder or file that `export` wrote.
        task: the task that it should equal.

    Returns:
        An `ExportReport`.

    Raises:
        ExportError: it cannot be run, or it differs.
    """
    path = Path(path)
    functions = {f.name: f for f in task.export_functions()}
    written = path / "report.json"
    if written.is_file():  # what the export said that it holds
        names = json.loads(written.read_text(encoding="utf-8"))["functions"]
        functions = {n: f for n, f in functions.items() if n in names}
    if _is_file_name(path):
        report = ExportReport(str(path), "onnx")
        session = onnx.open_session(path)
        with references([_function_in(session, functions, path)]) as cases:
            onnx.verify(cases, lambda name: session, report)
    elif (path / "saved_model.pb").is_file():
        report = ExportReport(str(path), "tf_saved_model")
        with references(functions.values()) as cases:
            saved_model.verify(cases, path, report)
    else:
        paths = {n: path / f"{n}.onnx" for n in functions}
        if not written.is_file():
            paths = {name: file for name, file in paths.items() if file.is_file()}
        if not paths:
            raise ExportError(
                f"{path} holds no artifact of kzoo: expected saved_model.pb, or one of "
                f"{[f'{name}.onnx' for name in functions]}."
            )
        report = ExportReport(str(path), "onnx")
        with references(functions[name] for name in paths) as cases:
            onnx.verify(cases, lambda name: onnx.open_session(paths[name]), report)
    return report


def _convert(model, path, format, opset, overwrite, input_signature):
    """The tf2onnx road, for any Keras model."""
    from kzoo.exporters import tf2onnx

    if format != "onnx":
        raise ExportError(f"exporter='tf2onnx' writes onnx. Received: {format!r}.")
    start = time.perf_counter()
    opset = opset or onnx.PORTABLE_OPSET
    axes = None
    if input_signature is None and hasattr(model, "export_functions"):
        arguments = _choose(model, "forward", True)[0].arguments
        input_signature = {
            a.name: keras.InputSpec(shape=(None,) * len(a.axes), dtype=a.dtype)
            for a in arguments
        }
        axes = {a.name: dict(enumerate(a.axes)) for a in arguments}
    differences = tf2onnx.convert(
        model,
        path,
        input_signature=input_signature,
        opset=opset,
        axes=axes,
        overwrite=overwrite,
    )
    beside = path.with_suffix(onnx.BESIDE)
    if overwrite and _is_file_name(path) and beside.is_file():
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
    names = {file.name for file in path.iterdir()} if path.is_dir() else {"a file"}
    artifact = names & {"report.json", "saved_model.pb"}
    if names and (not artifact or names & {"model.safetensors", "training"}):
        raise ExportError(
            f"{path} is no folder of an artifact, and overwrite=True replaces nothing "
            "else. Choose another path, or remove it."
        )


def _choose(task, names, single):
    known = {function.name: function for function in task.export_functions()}
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
    if policies:
        raise ExportError(
            f"{task.name} computes in {sorted(policies)}; artifacts compute in "
            "float32, as verification expects. Build the model with dtype='float32', "
            "load this one's weights into it, and export that."
        )
    for name, variable in task.named_variables().items():
        if not keras.ops.all(keras.ops.isfinite(variable)):
            raise ExportError(f"The weight {name} holds NaN or infinity.")


def _function_in(session, functions, path):
    """Which of the functions a single file holds, by its outputs."""
    outputs = {output.name for output in session.get_outputs()}
    for function in functions.values():
        if set(function.outputs) == outputs:
            return function
    raise ExportError(f"{path} holds none of {list(functions)}. It gives {outputs}.")


def _describe(task, folder):
    """Config and tokenizer, so that a service needs nothing else."""
    text = json.dumps({"task": type(task).__name__, "model": task.config.to_dict()})
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")
    if task.tokenizer is not None:
        task.tokenizer.save(folder)


@contextlib.contextmanager
def _beside(path):
    """A folder next to `path`, on the same disk, that is gone in the end.

    Parent folders that were missing are made, and stay only when all went well.
    """
    missing = [p for p in (path.parent, *path.parent.parents) if not p.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield partial
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        for folder in missing:
            folder.rmdir()
        raise
    shutil.rmtree(partial, ignore_errors=True)


def _install(partial, targets):
    """Moves what was made in `partial` to the targets and empties the others, or none.

    The model file comes after its weights, so that it never stands without them. What
    stood there before waits in `partial` until all has been moved.
    """
    made = [path for path in targets if (partial / path.name).exists()]
    made.sort(key=_is_file_name)
    waiting = Path(tempfile.mkdtemp(dir=partial))
    moved = []
    try:
        for path in made + [path for path in targets if path not in made]:
            moved.append((path, path.exists()))
            if path.exists():
                path.rename(waiting / path.name)
            if path in made:
                (partial / path.name).rename(path)
    except BaseException:
        for path, stood in reversed(moved):
            file = partial / path.name
            if path in made and path.exists() and not file.exists():
                path.rename(file)
            if stood and (waiting / path.name).exists():
                (waiting / path.name).rename(path)
        raise
