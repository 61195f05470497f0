"""Writes a task's functions as SavedModel signatures, verified in fresh processes."""

import atexit
import contextlib
import dataclasses
import functools
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np

from kzoo.exporters import checks
from kzoo.exporters.errors import ExportError
from kzoo.exporters.report import ExportReport

_RUNNER = Path(__file__).with_name("saved_model_runner.py")
_LOCK = threading.Lock()
# Seconds until the process that runs SavedModels counts as stuck: for TensorFlow to
# start, for each request, and of each for a megabyte of the folder, that is of weights.
# Hundreds of times what a slow machine needs.
_START, _REQUEST, _MEGABYTE = 600, 60, 1


def write(functions, variables, target):
    """Writes the SavedModel.

    Args:
        functions: `Function`s; each is a signature of its name, and the last is
            `serving_default`, too, with its scalars at their defaults.
        variables: the Keras variables that they read.
        target: the folder.

    Returns:
        An `ExportReport` without checks.

    Raises:
        ExportError: the backend is not TensorFlow.
    """
    if keras.backend.backend() != "tensorflow":
        raise ExportError(
            "A SavedModel is made of TensorFlow operations, and Keras runs on "
            f"{keras.backend.backend()}. Save the model, set KERAS_BACKEND=tensorflow, "
            "load it and export there; or export ONNX, which every backend can."
        )
    import tensorflow as tf

    start = time.perf_counter()
    with _LOCK:
        _runner()  # imports TensorFlow while this is written
    module = tf.Module()
    module.model_variables = [variable.value for variable in variables]
    signatures = {function.name: _concrete(function) for function in functions}
    last = functions[-1]
    served = _at_defaults(last)  # whose graph has no options
    same = served.arguments == last.arguments
    signatures[served.name] = signatures[last.name] if same else _concrete(served)
    module.functions = list(signatures.values())
    module.resources = [list(function.resources()) for function in functions]
    try:
        tf.saved_model.save(module, str(target), signatures=signatures)
    except AssertionError as error:
        raise ExportError(
            "TensorFlow finds a variable that is none of the task's, such as one that "
            "a function among its processors reads: make it a constant there. "
            f"Received: {' '.join(str(error).split())[:300]}"
        ) from error
    except tf.errors.OpError as error:  # a full disk comes as this, too
        message = re.sub(r"{{.*?}} | \[Op:\w+\]", "", error.message)
        raise OSError(f"TensorFlow says: {message}") from error
    report = ExportReport(str(target), "tf_saved_model")
    report.weight_bytes = sum(
        int(np.prod(v.shape)) * np.dtype(v.dtype).itemsize for v in variables
    )
    report.seconds["write"] = time.perf_counter() - start
    return report


def _at_defaults(function):
    """The function as `serving_default`, without the arguments that have a default."""
    needed = tuple(a for a in function.arguments if a.default is None)
    return dataclasses.replace(function, name="serving_default", arguments=needed)


def _concrete(function):
    """The function traced with free axes, taking and giving named tensors."""
    import tensorflow as tf

    def call(**inputs):
        return function.computed(inputs)

    specs = {
        a.name: tf.TensorSpec(a.shape, a.dtype, name=a.name) for a in function.arguments
    }
    return tf.function(call, autograph=False).get_concrete_function(**specs)


def verify(cases, target, report):
    """Runs every case in a fresh TensorFlow process.

    `serving_default` is compared with the signature that it serves, called with the
    defaults: Keras would take long for as many tokens as these allow.

    Args:
        cases: from `checks.references`.
        target: the folder.
        report: gets the checks.

    Raises:
        ExportError: TensorFlow cannot load it, or it differs from Keras.
    """
    import tensorflow as tf

    start = time.perf_counter()
    if not (Path(target) / "saved_model.pb").is_file():
        raise ExportError(f"No SavedModel at {target}.")
    functions = {case.function.name: case.function for case in cases}
    last = list(functions.values())[-1]
    served = _at_defaults(last)
    first = served.arguments[0].name
    made = [c.inputs for c in cases if c.function is last and not c.rows]
    # Not the longest texts, which would take long: their cases have few new tokens.
    made = made[:1] if made[0][first].dtype == object else made
    largest = max(made, key=lambda inputs: len(inputs[first]))
    inputs = {a.name: a.default for a in last.arguments}
    inputs.update({a.name: largest[a.name] for a in served.arguments})
    requests = [(case.function, case.inputs) for case in cases]
    requests += [(last, inputs), (served, inputs)]
    offered = [*functions.values(), served]
    *answers, expected, got = _run(target, requests, offered, report)
    checks.compare(served, f"as {last.name}", got, expected, report)
    checks.verify(cases, answers, report)
    report.runtime = f"tensorflow {tf.__version__}, a fresh process"
    report.seconds["verify"] = time.perf_counter() - start


def check_runtime(target):
    """Raises `ExportError` unless what runs a SavedModel is installed."""
    if importlib.util.find_spec("tensorflow") is None:
        raise ExportError(
            f"{target} is a SavedModel, which TensorFlow runs, and that is not "
            "installed: pip install tensorflow. Keras may stay on "
            f"{keras.backend.backend()}."
        )


def signatures_of(target):
    """The signatures that a SavedModel declares: name to its inputs' dtypes."""
    import tensorflow as tf
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    try:
        content = (Path(target) / "saved_model.pb").read_bytes()
        (graph,) = SavedModel.FromString(content).meta_graphs
    except Exception as error:  # protobuf's, which depend on what reads it
        raise ExportError(f"{target} holds no whole SavedModel: {error}.") from error
    return {
        name: [tf.as_dtype(given.dtype).name for given in signature.inputs.values()]
        for name, signature in graph.signature_def.items()
    }


def open_sessions(target, functions):
    """The signatures of a SavedModel with the face of onnxruntime's sessions.

    They run in this process, for `answers.answers_from`.

    Args:
        target: the folder.
        functions: `Function`s, whose defaults stand for inputs that are left out.

    Returns:
        dict from a function's name to its session.
    """
    import tensorflow as tf

    loaded = tf.saved_model.load(str(target))
    return {f.name: _Session(f, loaded.signatures[f.name], loaded) for f in functions}


class _Session:
    """What the exporters ask of `onnxruntime.InferenceSession`, of a signature."""

    def __init__(self, function, run, loaded=None):
        self._arguments, self._outputs = function.arguments, function.outputs
        self._run, self._loaded = run, loaded  # which holds the variables

    def get_inputs(self):
        return [
            _Declared(a.name, "tensor(string)" if a.dtype == "string" else a.dtype)
            for a in self._arguments
            if a.default is None
        ]

    def get_outputs(self):
        return [_Declared(name) for name in self._outputs]

    def run(self, names, feed):
        import tensorflow as tf

        inputs = {a.name: tf.constant(a.array(feed), a.dtype) for a in self._arguments}
        found = self._run(**inputs)
        return [_decoded(found[name].numpy()) for name in names or self._outputs]


class _Declared(NamedTuple):
    """An input or output as a session declares it."""

    name: str
    type: str = ""


def _run(target, requests, offered, report):
    """The outputs that a fresh process gives for each (function, inputs)."""
    arrays = {
        f"{number}/{function.name}/{a.name}": a.array(inputs)
        for number, (function, inputs) in enumerate(requests)
        for a in function.arguments
    }
    modules = [need.split()[0].replace("-", "_") for need in report.needs]
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder) / "asked.npz", Path(folder) / "answered.npz"
        np.savez(asked, **arrays)
        size = sum(f.stat().st_size for f in Path(target).rglob("*") if f.is_file())
        problem = _asked(
            _START + len(requests) * (_REQUEST + _MEGABYTE * size / 2**20),
            # That process may have another working directory by now.
            folder=str(Path(target).absolute()),
            asked=str(asked),
            answered=str(answered),
            modules=modules,
        )
        if problem is not None:
            raise ExportError(
                f"TensorFlow cannot run {target} in a fresh process: {problem}"
            )
        with np.load(answered, allow_pickle=True) as results:  # strings
            answers = {name: _decoded(value) for name, value in results.items()}
    report.functions = json.loads(str(answers.pop("signatures")))
    _check_interface(offered, report)
    outputs = [{} for _ in requests]
    for key, value in answers.items():
        number, name = key.split("/")
        outputs[int(number)][name] = value
    return outputs


def _asked(patience, **request):
    """What the runner says to a request: what was wrong, or `None`.

    Args:
        patience: seconds, after which it is ended.
        **request: see `saved_model_runner`.
    """
    with _LOCK:  # one at a time: answers come in the order of requests
        for _ in range(2):  # the one that is there may have ended, tired of waiting
            process, answer, start = _runner(), "", time.monotonic()
            watch = threading.Timer(patience, _kill, [process])
            watch.start()
            try:
                with contextlib.suppress(OSError):
                    process.stdin.write(json.dumps(request) + "\n")
                    process.stdin.flush()
                    answer = process.stdout.readline()
            finally:
                watch.cancel()
                if not answer:  # it ended, or this was interrupted
                    _runner.cache_clear()
                    _end(process)
            if answer:
                return json.loads(answer)
            if time.monotonic() - start >= patience:
                return (
                    f"it gave no answer in {patience:.0f} seconds, and was ended. Try "
                    "again when the machine does less; if that fails, please report it."
                )
        return f"its process ended with {process.returncode}"


@functools.cache
def _runner():
    """The process that runs SavedModels; it begins here, and ends with this one."""
    process = subprocess.Popen(
        [sys.executable, "-P", str(_RUNNER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # so that it ends with the processes it forks
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
    )
    atexit.register(_end, process)
    return process


def _forget():
    """In a fork: what runs is the parent's, and ends with the parent alone."""
    _runner.cache_clear()
    atexit.unregister(_end)


if hasattr(os, "register_at_fork"):  # a child starts its own
    os.register_at_fork(after_in_child=_forget)


def _kill(process):
    """Ends it, and what it has forked, which may outlive it."""
    if process.returncode is not None:  # waited for: its number may be another's now
        return
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):  # all have ended
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()


def _end(process):
    """Ends it, and closes its pipes."""
    _kill(process)
    with contextlib.suppress(OSError), process:
        pass


def _decoded(value):
    """An array with `str` for bytes."""
    if value.dtype.kind != "O":
        return value
    texts = [text.decode("utf-8") for text in value.ravel().tolist()]
    return np.array(texts, object).reshape(value.shape)


def _check_interface(offered, report):
    names = [function.name for function in offered]
    if set(report.functions) != set(names):
        raise ExportError(
            f"{report.path} should have the signatures {names}. "
            f"Received: {list(report.functions)}."
        )
    for function in offered:
        found = report.functions[function.name]["inputs"]
        wanted = {a.name: [a.dtype, list(a.shape)] for a in function.arguments}
        if found != wanted:
            raise ExportError(
                f"{report.path} should have the signature {function.name} with the "
                f"inputs {wanted}. Received: {found}."
            )
