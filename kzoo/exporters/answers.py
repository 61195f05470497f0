"""Lets a task answer with an artifact, so that its own metric measures the artifact."""

import contextlib
import functools
import importlib
import threading
import weakref
from pathlib import Path

import keras
import numpy as np

from kzoo.exporters import onnx_session, saved_model
from kzoo.exporters.errors import ExportError
from kzoo.generation import IMPOSSIBLE, CompiledFunction
from kzoo.generation.streaming import before_stop
from kzoo.models.replacing import replaced

_lock = threading.Lock()
_eager = weakref.WeakKeyDictionary()  # tasks to how many blocks there are
_FORCED = "forced_token_ids"  # the option that may have a row for each prompt


@contextlib.contextmanager
def answers_from(task, sessions):
    """While the block runs, the task's outputs and tokens are an artifact's.

    In this thread alone; others are answered by the task, whose `predict` is slower as
    long. A task that was made under a strategy of `tf.distribute` answers all so.

    `predict`, `generate`, `score` and what else a task offers then work on strings as
    they always do. The functions run without a graph, one batch at a time; `fit` does
    not work. An artifact of text answers `predict` and `generate`, and `score` where
    it asks for no more.

    Args:
        task: the task that was exported.
        sessions: name of a function to its onnxruntime session, or one of
            `saved_model.open_sessions`.

    Yields:
        The task.

    Raises:
        ExportError: a function is asked for that `sessions` lacks, or with an option
            that the artifact does not take.

    Example:
        >>> sessions = {"forward": onnxruntime.InferenceSession("out/forward.onnx")}
        >>> with answers_from(classifier, sessions):
        ...     classifier.score(texts, labels)
    """
    known = {function.name: function for function in task.export_functions()}

    def run(name, inputs):
        if name not in sessions:
            raise ExportError(
                f"{task.name} is asked for {name!r}, which the artifact lacks. It has "
                f"{sorted(sessions)}; export it, too."
            )
        taken = {argument.name for argument in known[name].arguments}
        if not set(inputs) <= taken:
            raise ExportError(
                f"{name!r} of the artifact takes {sorted(taken)}. "
                f"Received: {sorted(inputs)}."
            )
        arrays = {k: keras.ops.convert_to_numpy(v) for k, v in inputs.items()}
        outputs = onnx_session.runner(known[name], sessions[name])(arrays)
        return {k: keras.ops.convert_to_tensor(v) for k, v in outputs.items()}

    def call(inputs, training=None):
        return task.from_named_outputs(run("forward", _unmasked(task, inputs)))

    def search(inputs, options, capacity=None):
        # It holds the task's own processors.
        if options.get("processors", task.own_processors) != task.own_processors:
            raise ExportError(
                "The artifact holds the processors of the task alone. Received: "
                f"processors={options['processors']!r}."
            )
        held = ("row", "processors", "return_scores")
        inputs, row = _unmasked(task, inputs), options["row"]
        options = {k: v for k, v in options.items() if k not in held}
        if "temperature" not in options:
            outputs = run("generate", {**inputs, **options})
            return outputs["sequences"], outputs["scores"]
        # A draw follows from its row, which the artifact counts by itself: each prompt
        # goes where it is counted right, copies of the first one where none is.
        row = keras.ops.convert_to_numpy(row)
        place = np.zeros(row.max() + 1, "int32")
        place[row] = np.arange(len(row))
        inputs |= {k: v for k, v in options.items() if k == _FORCED and len(v) > 1}
        inputs = {k: keras.ops.take(v, place, axis=0) for k, v in inputs.items()}
        outputs = run("generate", {**options, **inputs})
        return tuple(
            keras.ops.take(outputs[name], row, axis=0)
            for name in ("sequences", "scores")
        )

    def compiled_function(key, function, signature):
        return _Eager(task, function, signature)

    functions = dict(call=call, compiled_function=compiled_function)
    if hasattr(task, "generate"):  # the `search` of others is no function of tensors
        functions["search"] = search
    if any(map(onnx_session.takes_text, sessions.values())):
        functions |= _of_text(task, sessions)
    # A strategy of TensorFlow's runs steps in threads of its own.
    everywhere = getattr(task, "_distribute_strategy", None) is not None
    with contextlib.ExitStack() as stack:
        for name, function in functions.items():
            instead = functools.partial(_instead, function)
            stack.enter_context(replaced(task, name, instead, everywhere=everywhere))
        stack.enter_context(_eager_predictions(task))
        yield task


def _instead(function, _):
    return function


@contextlib.contextmanager
def _eager_predictions(task):
    """Inside, Keras predicts without a graph; in other threads, too."""
    with _lock:
        _make_predictions(task, run_eagerly=True)
        _eager[task] = _eager.get(task, 0) + 1
    try:
        yield
    finally:
        with _lock:
            _eager[task] -= 1
            if not _eager[task]:
                del _eager[task]
                _make_predictions(task, run_eagerly=task.run_eagerly)


def _make_predictions(task, run_eagerly):
    """Replaces in one step what another thread may be about to call."""
    before = task.run_eagerly
    task.run_eagerly = run_eagerly
    try:
        task.make_predict_function(force=True)
    finally:
        task.run_eagerly = before


def _of_text(task, sessions):
    """`predict` and `generate` of an artifact that takes and gives text."""

    def answers(name, columns, options, batch_size):
        if name not in sessions:
            raise ExportError(
                f"{task.name} is asked for {name!r} of texts, which the artifact "
                f"lacks. It has {sorted(sessions)}; export it, too."
            )
        session, found = sessions[name], []
        outputs = [output.name for output in session.get_outputs()]
        for first in range(0, len(next(iter(columns.values()))), batch_size):
            feed = {k: v[first : first + batch_size] for k, v in columns.items()}
            try:
                values = session.run(None, options | feed)
            except Exception as error:  # each runtime has its own
                raise ExportError(
                    f"The artifact of {task.name} does not answer {name!r} of "
                    f"{len(next(iter(feed.values())))} texts from number {first}: "
                    f"{error}"
                ) from error
            found.append(dict(zip(outputs, values)))
        return {key: np.concatenate([each[key] for each in found]) for key in outputs}

    def predict(x, *, batch_size=32, **_):
        x = list(x)
        pairs = not isinstance(x[0], str)
        least = pairs == (min(task.texts_per_example) == 2)
        name = "forward" if least else "forward_pairs"
        columns = dict(zip(("first", "second"), zip(*x))) if pairs else {"text": x}
        columns = {key: np.array(texts, object) for key, texts in columns.items()}
        outputs = answers(name, columns, {}, batch_size)
        outputs.pop("label", None)
        ((name, values),) = outputs.items()
        values = values.reshape(len(x), -1)
        # The logits but for a number that all classes share.
        return np.log(np.maximum(values, 1e-30)) if name == "probabilities" else values

    def generate(x, *, batch_size=32, **options):
        texts = task._given(x)
        asked, prompts = task._search_options(options), task.encode_prompts(texts)
        asked, _ = task._limited(asked, options, prompts, together=True)
        options["max_new_tokens"] = asked.max_new_tokens
        options.pop("max_length", None)  # of which that follows
        given = task.search_inputs("onnx", **options)
        columns, forced = {"text": np.array(texts, object)}, given[_FORCED]
        if len(forced) not in (1, len(texts)):
            raise ValueError(
                f"forced_prefix must be one for all, or one for each of {len(texts)} "
                f"prompts. Received: {len(forced)}."
            )
        if len(forced) > 1:
            columns[_FORCED] = forced
        if asked.temperature:  # a draw follows from its row, which a batch counts
            batch_size = len(texts)
        outputs = answers("generate", columns, given, batch_size)
        results = [
            [before_stop(text, asked.stop) for text in row[real].tolist()]
            for row, real in zip(
                outputs["generated_text"], outputs["scores"] > IMPOSSIBLE / 2
            )
        ]
        if asked.num_return_sequences == 1:
            results = [row[0] if row else "" for row in results]
        return results[0] if isinstance(x, str) else results

    return (
        dict(generate=generate) if hasattr(task, "generate") else dict(predict=predict)
    )


def sessions_of(task, folder, report):
    """What `answers_from` takes, of an artifact's folder and the report of its export.

    Args:
        task: the task that was exported.
        folder: of the artifact.
        report: its `ExportReport`.
    """
    from kzoo.exporters.text import offered

    if report.format == "tf_saved_model":
        for package in report.needs:  # whose operators the graph has
            importlib.import_module(package.split()[0].replace("-", "_"))
        own = offered(task, report.format) if report.text else task.export_functions()
        own = [function for function in own if function.name in report.functions]
        return saved_model.open_sessions(folder, own)
    paths = {path.stem: path for path in Path(folder).glob("*.onnx")}
    return onnx_session.open_sessions(paths)


def scores(task, paths, arguments):
    """The task's metric, of the model and of an artifact.

    Args:
        task: the task.
        paths: name of a function to its file.
        arguments: of `task.score`.

    Returns:
        dict of `"model"` and `"artifact"`, what `score` gives.
    """
    sessions = onnx_session.open_sessions(paths)
    model = task.score(*arguments)
    with answers_from(task, sessions):
        return {"model": model, "artifact": task.score(*arguments)}


class _Eager(CompiledFunction):
    """A function that is not compiled: an artifact cannot be part of a graph."""

    def __init__(self, model, function, signature):
        self.model, self.function, self.signature = model, function, signature
        self.traces, self._run = 0, self._eager()


def _unmasked(task, inputs):
    """The inputs with the padding id where a mask says padding."""
    inputs = dict(inputs)
    for name in [name for name in inputs if name.endswith("padding_mask")]:
        ids = name.replace("padding_mask", "token_ids")
        mask = keras.ops.convert_to_numpy(inputs.pop(name)).astype(bool)
        array = keras.ops.convert_to_numpy(inputs[ids]).copy()
        array[~mask] = task.config.pad_token_id
        inputs[ids] = array
    return inputs
