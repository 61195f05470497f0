"""Runs an artifact beside the Keras model and refuses what differs."""

import contextlib
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import keras
import numpy as np

from kzoo import ops
from kzoo.exporters.errors import ExportError
from kzoo.exporters.signatures import Function

# Largest difference that float32 arithmetic in another order explains after some ten
# layers: absolute for values up to 10, and growing with the largest one beyond, as the
# rounding of a float does. Kernels, and so the order, differ from one CPU to another.
TOLERANCE, USUAL_SIZE = 1e-4, 10.0


class Case(NamedTuple):
    """Inputs of a function, and the outputs that Keras gives for them."""

    function: Function
    name: str
    inputs: dict
    expected: Future


@contextlib.contextmanager
def references(functions, seed=0):
    """Has Keras compute the outputs of every case, in a thread while the block runs.

    This takes longer than all else in an export, and is mostly Python on one core.

    Args:
        functions: `Function`s.
        seed: of the random inputs.

    Yields:
        A list of `Case`s, one function after another.
    """
    pool = ThreadPoolExecutor(1)
    try:
        yield [
            Case(function, name, inputs, pool.submit(reference, function, inputs))
            for function in functions
            for name, inputs in function.cases(np.random.default_rng(seed)).items()
        ]
    finally:
        pool.shutdown(cancel_futures=True)


def verify(cases, answers, report):
    """Compares an artifact with Keras; adds the checks to the report.

    Args:
        cases: from `references`.
        answers: an iterable of the artifact's outputs, a dict of numpy arrays a case.
        report: an `ExportReport`.

    Raises:
        ExportError: an output is missing, of another shape or dtype, or differs by more
            than the tolerance; or a token differs.
    """
    for case, got in zip(cases, answers, strict=True):
        compare(case.function, case.name, got, case.expected.result(), report)


def compare(function, case, got, expected, report):
    """Compares the artifact's outputs with Keras's, both dicts of numpy arrays."""
    where = f"{report.path}, {function.name}, {case}"
    if set(got) != set(expected):
        raise ExportError(
            f"{where}: expected the outputs {sorted(expected)}. "
            f"Received: {sorted(got)}."
        )
    for name, value in expected.items():
        kind = "iu" if value.dtype.kind in "iu" else value.dtype.kind
        if got[name].dtype.kind not in kind:
            raise ExportError(
                f"{where}: {name} should be {value.dtype}. Received: {got[name].dtype}."
            )
    check = {"function": function.name, "case": case, "difference": 0.0}
    if "sequences" in expected:
        if not ops.buffers_grow():  # Keras's buffer is as long as max_new_tokens
            got, expected = _trimmed(function, got), _trimmed(function, expected)
        _check_tokens(got, expected, where)
        check["tokens_equal"] = True
        ended = (expected["sequences"] == function.end_token_id).any(axis=-1)
        check["sequences"], check["ended"] = ended.size, int(ended.sum())
    for name, value in expected.items():
        if value.dtype.kind != "f":
            continue
        if got[name].shape != value.shape:
            raise ExportError(
                f"{where}: {name} should have shape {value.shape}. "
                f"Received: {got[name].shape}."
            )
        if not np.isfinite(value).all():
            raise ExportError(
                f"{where}: {name} of the Keras model should be finite. "
                "Received: NaN or infinity. Look for a weight that is far too large."
            )
        difference = np.abs(got[name].astype("float64") - value)
        difference = float(np.max(difference, initial=0.0))
        # Both may hold the "no such sequence" score; it says nothing of the sizes.
        size = np.max(np.abs(value), initial=0.0, where=np.abs(value) < 1e20)
        tolerance = TOLERANCE * max(1.0, float(size) / USUAL_SIZE)
        if not difference <= tolerance:
            raise ExportError(
                f"{where}: {name} differs by {difference:.3g} from Keras, more than "
                f"{tolerance:g}. The artifact was not kept; please report this."
            )
        check["difference"] = max(check["difference"], difference)
        check["tolerance"] = tolerance
    report.checks.append(check)


def reference(function, inputs):
    """The function's outputs in Keras, as numpy arrays."""
    tensors = {
        argument.name: keras.ops.convert_to_tensor(
            inputs[argument.name], argument.dtype
        )
        if argument.axes
        else inputs[argument.name]
        for argument in function.arguments
    }
    outputs = function.call(tensors)
    return {name: keras.ops.convert_to_numpy(x) for name, x in outputs.items()}


def _trimmed(function, outputs):
    """The outputs, their sequences without the padding behind the longest one."""
    sequences = outputs["sequences"]
    real = (sequences != function.pad_token_id).any(axis=(0, 1))
    length = len(real) - np.argmax(real[::-1]) if real.any() else 0
    return {**outputs, "sequences": sequences[..., :length]}


def _check_tokens(got, expected, where):
    """Raises `ExportError` unless all tokens are Keras's."""
    if got["sequences"].shape != expected["sequences"].shape:
        raise ExportError(
            f"{where}: sequences should have shape {expected['sequences'].shape}. "
            f"Received: {got['sequences'].shape}."
        )
    differs = (got["sequences"] != expected["sequences"]).any(axis=-1)
    if differs.any():
        gap = np.abs(got["scores"] - expected["scores"])[differs].max()
        raise ExportError(
            f"{where}: {int(differs.sum())} of {differs.size} sequences differ from "
            f"Keras's; their scores are {gap:.2g} apart."
        )
