"""Writes a task's functions as SavedModel signatures, verified in a fresh process."""

import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import keras
import numpy as np

from kzoo.exporters import checks
from kzoo.exporters.errors import ExportError
from kzoo.exporters.report import ExportReport

_RUNNER = Path(__file__).with_name("saved_model_runner.py")


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
    module = tf.Module()
    module.model_variables = [variable.value for variable in variables]
    offered = [*functions, _at_defaults(functions[-1], name="serving_default")]
    signatures = {function.name: _concrete(function) for function in offered}
    module.functions = list(signatures.values())
    try:
        tf.saved_model.save(module, str(target), signatures=signatures)
    except tf.errors.OpError as error:  # a full disk comes as this, too
        message = re.sub(r"{{.*?}} | \[Op:\w+\]", "", error.message)
        raise OSError(f"TensorFlow says: {message}") from error
    report = ExportReport(str(target), "tf_saved_model")
    report.weight_bytes = sum(
        int(np.prod(v.shape)) * np.dtype(v.dtype).itemsize for v in variables
    )
    report.seconds["write"] = time.perf_counter() - start
    return report


def _at_defaults(function, name):
    """The function without the arguments that have a default."""
    defaults = {a.name: a.default for a in function.arguments if a.default is not None}
    return dataclasses.replace(
        function,
        name=name,
        arguments=tuple(a for a in function.arguments if a.default is None),
        call=lambda inputs: function.call({**inputs, **defaults}),
    )


def _concrete(function):
    """The function traced with free axes, taking and giving named tensors."""
    import tensorflow as tf

    def call(**inputs):
        return function.call(inputs)

    specs = {
        a.name: tf.TensorSpec([None] * len(a.axes), a.dtype, name=a.name)
        for a in function.arguments
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
    served = _at_defaults(last, name="serving_default")
    first = served.arguments[0].name
    own = [case.inputs for case in cases if case.function is last]
    largest = max(own, key=lambda inputs: len(inputs[first]))
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


def _run(target, requests, offered, report):
    """The outputs that a fresh process gives for each (function, inputs)."""
    arrays = {
        f"{number}/{function.name}/{a.name}": np.asarray(inputs[a.name], a.dtype)
        for number, (function, inputs) in enumerate(requests)
        for a in function.arguments
    }
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder) / "asked.npz", Path(folder) / "answered.npz"
        np.savez(asked, **arrays)
        done = subprocess.run(
            [sys.executable, "-P", str(_RUNNER), str(target), asked, answered],
            capture_output=True,
            text=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
        )
        if done.returncode:
            raise ExportError(
                f"TensorFlow cannot run {target} in a fresh process: "
                f"{done.stderr.strip().splitlines()[-1:]}"
            )
        with np.load(answered) as results:
            answers = dict(results)
    report.functions = json.loads(str(answers.pop("signatures")))
    _check_interface(offered, report)
    outputs = [{} for _ in requests]
    for key, value in answers.items():
        number, name = key.split("/")
        outputs[int(number)][name] = value
    return outputs


def _check_interface(offered, report):
    names = [function.name for function in offered]
    if set(report.functions) != set(names):
        raise ExportError(
            f"{report.path} should have the signatures {names}. "
            f"Received: {list(report.functions)}."
        )
    for function in offered:
        found = report.functions[function.name]["inputs"]
        wanted = {a.name: [a.dtype, [None] * len(a.axes)] for a in function.arguments}
        if found != wanted:
            raise ExportError(
                f"{report.path} should have the signature {function.name} with the "
                f"inputs {wanted}. Received: {found}."
            )
