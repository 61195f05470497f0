"""Writes a task's functions as SavedModel signatures, verified in a fresh process."""

import json
import os
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
    signatures = {f.name: _concrete(f, f.arguments) for f in functions}
    last = functions[-1]
    served = tuple(a for a in last.arguments if a.default is None)
    signatures["serving_default"] = _concrete(last, served)
    module.functions = list(signatures.values())
    try:
        tf.saved_model.save(module, str(target), signatures=signatures)
    except tf.errors.OpError as error:  # a full disk comes as this, too
        raise OSError(f"TensorFlow says: {error.message}") from error
    report = ExportReport(str(target), "tf_saved_model")
    report.weight_bytes = sum(
        int(np.prod(v.shape)) * np.dtype(v.dtype).itemsize for v in variables
    )
    report.seconds["write"] = time.perf_counter() - start
    return report


def _concrete(function, arguments):
    """The function traced with free axes, taking and giving named tensors."""
    import tensorflow as tf

    rest = {a.name: a.default for a in function.arguments if a not in arguments}

    def call(**inputs):
        return function.call({**inputs, **rest})

    specs = {
        a.name: tf.TensorSpec([None] * len(a.axes), a.dtype, name=a.name)
        for a in arguments
    }
    return tf.function(call, autograph=False).get_concrete_function(**specs)


def verify(functions, target, report):
    """Runs every function in a fresh TensorFlow process beside Keras.

    Args:
        functions: `Function`s.
        target: the folder.
        report: gets the checks.

    Raises:
        ExportError: TensorFlow cannot load it, or it differs from Keras.
    """
    import tensorflow as tf

    def answers(cases):
        with tempfile.TemporaryDirectory() as folder:
            results = _run(target, cases, Path(folder))
            report.functions = json.loads(str(results["signatures"]))
            _check_interface(functions, report)
            for number in range(len(cases)):
                prefix = f"{number}/"
                yield {
                    key.removeprefix(prefix): results[key]
                    for key in results
                    if key.startswith(prefix)
                }

    start = time.perf_counter()
    if not (Path(target) / "saved_model.pb").is_file():
        raise ExportError(f"No SavedModel at {target}.")
    checks.verify(functions, answers, report)
    report.runtime = f"tensorflow {tf.__version__}, a fresh process"
    report.seconds["verify"] = time.perf_counter() - start


def _run(target, cases, folder):
    """The outputs of every case by a fresh process, as it wrote them into `folder`."""
    requests, answers = folder / "requests.npz", folder / "answers.npz"
    np.savez(
        requests,
        **{
            f"{number}/{function.name}/{a.name}": np.asarray(inputs[a.name], a.dtype)
            for number, (function, _, inputs) in enumerate(cases)
            for a in function.arguments
        },
    )
    done = subprocess.run(
        [sys.executable, "-P", str(_RUNNER), str(target), str(requests), str(answers)],
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
    )
    if done.returncode:
        raise ExportError(
            f"TensorFlow cannot run {target} in a fresh process: "
            f"{done.stderr.strip().splitlines()[-1:]}"
        )
    with np.load(answers) as results:
        return dict(results)


def _check_interface(functions, report):
    for function in functions:
        found = report.functions.get(function.name, {"inputs": {}})["inputs"]
        wanted = {a.name: [a.dtype, [None] * len(a.axes)] for a in function.arguments}
        if found != wanted:
            raise ExportError(
                f"{report.path} should have the signature {function.name} with the "
                f"inputs {wanted}. Received: {found}."
            )
