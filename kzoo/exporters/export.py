"""`export`: write beside, verify, then move into place; or leave nothing."""

import contextlib
import inspect
import json
import os
import re
import reprlib
import time
from pathlib import Path

from kzoo.arguments import is_integer, is_number, is_unicode
from kzoo.exporters import agreement, genai, onnx, onnx_session, saved_model
from kzoo.exporters import text as text_form
from kzoo.exporters.answers import scores
from kzoo.exporters.artifact import REPORT, hashes, is_file_name, said_of, sizes
from kzoo.exporters.checks import references
from kzoo.exporters.errors import ExportError
from kzoo.exporters.offers import called, check_model, choose, forward_of, offered
from kzoo.exporters.quantize import MODES, Matrices
from kzoo.exporters.report import ExportReport
from kzoo.files import beside, install, refuse_link
from kzoo.layers.lora import lora_merged

EXPORTERS = ("kzoo", "tf2onnx")
FORMATS = ("onnx", "tf_saved_model", "genai")
_PATTERN = r"\[.+\]" if os.sep == "\\" else r"\[.+\]|\\"


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
            gives the cache under the names that other runtimes know. A conversation
            takes a new `Generator` each turn: `append_tokens` to one that has
            generated leaves out its last token, in onnxruntime-genai 0.18.
        functions: names of what to export: `"forward"`, `"generate"`, and `"prefill"`
            and `"step"`, which hand the cache from call to call and give logits as they
            are, before any of the task's processors; with `text=True` also
            `"forward_pairs"` of a task that reads one text or two. By default all, but
            in an ONNX folder of ids the first two, and in a single file `"generate"`,
            or `"forward"` where there is none.
        opset: of ONNX; by default the one whose fused operators onnxruntime runs best.
        portable: of ONNX; use no operator newer than opset 18.
        overwrite: replace what is at `path`, once the new artifact is verified: a file
            with its weights beside it, or a folder that is empty or an artifact. A
            symbolic link is refused: the artifact goes to the place that is named.
        external_data_threshold: bytes of weights above which a single ONNX file keeps
            them in a file beside it; protobuf's limit of 2 GB by default.
        quantize: of ONNX, makes the weights smaller: `"int8"` computes with them and is
            the fastest; `"int8_weights"` and `"int4"` need onnxruntime; `"float16"`
            computes in float32. See `kzoo.exporters.quantize`.
        evaluate: of ONNX, a tuple of the arguments of the task's `score`, such as
            `(x, y)`; the report then holds the metric of the model and of the artifact.
            The function that `score` asks for has to be exported, too.
        exporter: `"kzoo"` emits a task natively; `"tf2onnx"` converts the forward pass
            of any Keras model, for layers that are not written over `kzoo.ops`.
        input_signature: with tf2onnx, what the model takes; a task's own by default.
            See `kzoo.exporters.tf2onnx.convert`.
        text: the artifact takes and gives text: the tokenizer is in the graph, by the
            operators of TensorFlow Text or onnxruntime-extensions, which it needs where
            it runs (see `kzoo.exporters.text_operators`), and does exactly what the
            task's does, or it is refused; but of two splits that are as probable it may
            take the other one, which the report then notes. Where a stop string ends an
            answer, all of its last token is in it: the caller cuts it before the stop,
            as the task's `generate` does.
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
    _check_path(path, format)
    if not (opset is None or is_integer(opset)):
        raise ExportError(f"opset must be a whole number. Received: {opset!r}.")
    least = 0 if external_data_threshold is None else external_data_threshold
    if not (is_number(least) and least >= 0):
        raise ExportError(
            "external_data_threshold must be a number of bytes, at least 0. Received: "
            f"{external_data_threshold!r}."
        )
    if quantize not in (None, *MODES):
        raise ExportError(
            f"quantize must be None or one of {MODES}. Received: {quantize!r}."
        )
    if (quantize or evaluate is not None) and (format != "onnx" or exporter != "kzoo"):
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
    single = is_file_name(path) and format == "onnx"
    known = offered(task, format, text)
    if single or functions is not None or format != "onnx" or text:
        defaults = None
    else:  # the functions that pass the cache only where they are asked for
        defaults = [function.name for function in task.export_functions()]
    chosen = choose(known, defaults if functions is None else functions, single)
    if low_memory and "generate" not in [function.name for function in chosen]:
        raise ExportError(
            "low_memory is of `generate`. Received: functions="
            f"{[function.name for function in chosen]}; leave it out."
        )
    if evaluate is not None:
        _check_evaluate(task, evaluate, chosen, known, single)
    check_model(task)
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
    try:
        stood = [target for target in targets if target.exists()]
        for target in targets:
            _check_target(target, single, overwrite)
        if targets[-1] in stood and targets[-1] != path and not _reads(*targets):
            raise ExportError(
                f"{targets[-1]} exists, and is the weights of no {path.name}. Choose "
                "another path, or remove it."
            )
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
                else:
                    variables = list(task.named_variables().values())
                    report = saved_model.write(chosen, variables, target)
                    report.needs = text_form.needs(task, format) if text else []
                if not single:  # while Keras computes
                    report.sha256 = hashes(target)
                if format == "tf_saved_model":
                    saved_model.verify(cases, target, report)
                elif quantize:
                    agreement.verify(cases, paths, names, matrices, report)
                else:
                    onnx.verify(
                        cases,
                        lambda name: onnx_session.open_session(paths[name]),
                        report,
                        onnx.of_ids(names, report.opset, low_memory),
                    )
            if evaluate is not None:
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
            report.notes += _left_to_the_caller(task, chosen, format)
            names = [function.name for function in known]
            if single and functions is None and "forward_pairs" in names:
                report.notes.append(
                    "forward takes one text for each answer; the file of "
                    "functions='forward_pairs' takes two."
                )
            report.notes += text_form.notes(task, format) if text else []
            report.files = sizes(partial if single else target)
            for new in [t for t in targets if t.exists() and t not in stood]:
                raise ExportError(f"{new} has come into being. Choose another path.")
            if not single:
                report.save(target / REPORT)
            install(partial, targets)
    except OSError as error:
        raise ExportError(
            f"Could not write {path}: {error}. Nothing was left behind; "
            "export again where there is space, and a folder that can be written."
        ) from error
    return report


def _check_path(path, format):
    if is_file_name(path) and format != "onnx":
        raise ExportError(
            f"format={format!r} writes a folder, and a path that ends in .onnx is a "
            f"file's. Received: {path}. Name a folder, or export format='onnx'."
        )
    whole = str(path.absolute())
    if not is_unicode(whole):
        raise ExportError(
            f"The runtimes read paths of UTF-8 alone. Received: {whole!a}."
        )
    if format == "tf_saved_model" and re.search(_PATTERN, whole):
        raise ExportError(
            "TensorFlow reads a name with [ and ], or a backslash, as a pattern, which "
            f"is no name of that file. Received: {whole}. Give another name."
        )


def _left_to_the_caller(task, chosen, format):
    """A sentence where a search of the file does not begin as the task's does."""
    if format != "genai" and all(function.name != "generate" for function in chosen):
        return []
    defaults = {n: x for n, x in task.search_defaults.items() if n != "stop_tokens"}
    left = (
        f"onnxruntime-genai does not know the task's search_defaults {defaults}: give "
        "to set_search_options what it has of them."
        if format == "genai"
        else "generate of this file does not begin with the task's search_defaults "
        f"{defaults}: task.search_inputs({format!r}) gives them as its inputs."
    )
    return [left] * bool(defaults)


def _check_evaluate(task, arguments, chosen, known, single):
    """Raises `ExportError` where no score of these functions can be measured."""
    score, kind = type(task).score, type(task).__name__
    try:
        inspect.signature(task.score).bind(*arguments)
    except TypeError as error:
        raise ExportError(
            f"evaluate must be a tuple of the arguments of {kind}.score, such as "
            f"(x, y): {error}. Received: {reprlib.repr(arguments)}."
        ) from error
    names, needed = [function.name for function in chosen], task.scored_by
    # What a score of the user's own asks for is seen when it does.
    if needed in names or not score.__module__.startswith("kzoo."):
        return
    advice = f"Export functions={needed!r}{'' if single else ', too'}, or"
    if all(function.name != needed for function in known):
        advice = "Export ids, or"
    raise ExportError(
        f"{kind}.score asks for {needed!r}, which is not exported. Received: "
        f"functions={names}. {advice} leave out evaluate."
    )


def _convert(model, path, format, opset, overwrite, input_signature):
    """The tf2onnx road, for any Keras model."""
    from kzoo.exporters import tf2onnx

    if format != "onnx":
        raise ExportError(f"exporter='tf2onnx' writes onnx. Received: {format!r}.")
    if not is_file_name(path):
        raise ExportError(
            "exporter='tf2onnx' writes one file, whose name ends in .onnx. Received: "
            f"{path}."
        )
    start, beside = time.perf_counter(), path.with_suffix(onnx.BESIDE)
    replaces = overwrite and beside.is_file() and _reads(path, beside)
    opset = opset or onnx.PORTABLE_OPSET
    axes = None
    if input_signature is None and hasattr(model, "export_functions"):
        _, input_signature, axes = forward_of(model)
    differences = tf2onnx.convert(
        model,
        path,
        input_signature=input_signature,
        opset=opset,
        axes=axes,
        overwrite=overwrite,
    )
    if replaces:
        beside.unlink()  # the weights of the file before
    report = ExportReport(str(path), "onnx", opset=opset)
    report.files = {path.name: path.stat().st_size}
    report.checks = [
        dict(function="forward", case=f"three shapes, {name}", difference=difference)
        for name, difference in differences.items()
    ]
    report.seconds["write and verify"] = time.perf_counter() - start
    return report


def _reads(path, weights):
    """Whether an ONNX file's weights are in the other; of one that is none they are.

    Those of another file would be removed with it.
    """
    if not path.exists():
        return False
    try:
        tensors = onnx.head_of(path).graph.initializer
    except ExportError:
        return True
    said = {(e.key, e.value) for t in tensors for e in t.external_data}
    return ("location", weights.name) in said


def _check_target(path, single, overwrite):
    """Refuses to replace what is no artifact, such as the model's own folder."""
    if path.name in ("", ".."):
        raise ExportError(f"Expected the name of a new folder. Received: {path}.")
    refuse_link(path, ExportError)
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
            names = (*said_of(path).get("files", ()), REPORT)
            known = {path / name for name in names}
        files = [f for f in path.rglob("*") if f.is_file() and f not in known]
    if files:
        raise ExportError(
            f"{path} is no folder of an artifact alone, and overwrite=True replaces "
            f"nothing else. Choose another path, or remove it. It holds: {files[0]}."
        )


def _describe(task, folder):
    """Config and tokenizer, so that a service needs nothing else."""
    names = {name: value for name, value in called(task).items() if value}
    text = json.dumps({**names, "model": task.config.to_dict()})
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")
    if task.tokenizer is not None:
        task.tokenizer.save(folder)
