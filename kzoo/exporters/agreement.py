"""Runs a quantised artifact beside a float32 one, and says how near it is.

Three things are held apart, so that a tight bound finds what is wrong however much a
model suffers from few bits:

1. Every weight is off by half a step of its rounding at most (`Matrix.restored`).
2. A float32 artifact with the rounded weights computes what the quantised one does, but
   for what its operators round on the way.
3. The model's own numbers and tokens: how near they are is for the user to judge, and
   bounded only so that an artifact that has nothing left of the model is refused.

An artifact of text is held to a file of ids with the same quantised weights, whose
answers it has to give exactly; and that file is judged as said.
"""

import dataclasses
import functools
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from kzoo import ops
from kzoo.exporters import checks, onnx, onnx_session
from kzoo.exporters.errors import ExportError
from kzoo.exporters.report import ExportReport
from kzoo.exporters.tolerances import FEW, NOTHING, ROUNDING, TOLERANCES, is_far

_TURNS = 5  # of a measurement of latency


def verify(cases, paths, names, matrices, report):
    """Compares a quantised artifact with Keras; adds what is found to the report.

    Args:
        cases: from `checks.references`.
        paths: function's name to the artifact's file.
        names: `id(variable)` to its path.
        matrices: the `Matrices` that the files should hold.
        report: an `ExportReport`.

    Raises:
        ExportError: something is off by more than `TOLERANCES` says.
    """
    import onnxruntime

    start = time.perf_counter()
    report.runtime = f"onnxruntime {onnxruntime.__version__}"
    report.quantize = matrices.mode
    functions = {case.function.name: case.function for case in cases}
    over = {name: _of_ids(function) for name, function in functions.items()}
    expected = [case.expected.result() for case in cases]  # then the cores are free
    if not ops.buffers_grow():  # Keras's buffer is as long as max_new_tokens
        expected = [
            checks.trimmed(over[case.function.name], right)
            if "sequences" in right
            else right
            for case, right in zip(cases, expected, strict=True)
        ]
    with tempfile.TemporaryDirectory() as folder:

        def write(name, change):
            return onnx.write(
                list(over.values()),
                names,
                Path(folder) / name,
                opset=report.opset,
                portable=False,
                metadata={},
                change=change,
            )

        rounded, rounded_paths = write("rounded", matrices.restore)
        report.float32_weight_bytes = rounded.weight_bytes
        if not matrices.found:
            report.notes.append(
                f"{matrices.mode} changed nothing: no matrix is so large, with rows so "
                "long, that it saves anything."
            )
        all_paths = {"artifact": paths, "rounded": rounded_paths}
        if any(function.text for function in functions.values()):
            _, all_paths["artifact"] = write("quantised", matrices.quantize)
        if TOLERANCES[matrices.mode].operators:
            coarse = functools.partial(matrices.restore, round_activations=True)
            _, all_paths["coarse"] = write("coarse", coarse)
        labels = []
        for name, function in functions.items():
            own = [
                (case, right)
                for case, right in zip(cases, expected, strict=True)
                if case.function is function
            ]
            files = {who: every[name] for who, every in all_paths.items()}
            answers = _verify_function(over[name], own, files, matrices.mode, report)
            if function.text:
                labels += _verify_text(function, own, answers, paths[name], report)
    if labels:
        report.label_agreement = float(np.mean(labels))
    report.seconds["verify"] = time.perf_counter() - start


def _of_ids(function):
    """The function itself; of text the one that it is over, under its name."""
    if not function.text:
        return function
    return dataclasses.replace(function.text.function, name=function.name)


def _verify_text(function, cases, answers, path, report):
    """An artifact of text against what the file of ids with its weights gives.

    Returns:
        list of bool, for each text whether its label is the model's.
    """
    where = f"{report.path}, {function.name}"
    session = onnx_session.open_session(path, prepacked=True)
    onnx.declare(function, session, report, where)
    run, labels = onnx_session.runner(function, session), []
    for (case, _), right, model in zip(cases, answers["artifact"], answers["model"]):
        right, model = (
            checks.written(function, case.inputs, outputs) for outputs in (right, model)
        )
        same = ExportReport(report.path, report.format)
        found = onnx.answer(run, case)
        checks.compare(function, case.name, found, right, same, case.rows)
        if "label" in right:
            labels += (right["label"] == model["label"]).ravel().tolist()
    return labels


def _verify_function(function, cases, files, mode, report):
    """Judges a function of ids; returns the outputs for each case by who gave them."""
    where = f"{report.path}, {function.name}"
    sessions = onnx_session.open_sessions(files)
    onnx.declare(function, sessions["artifact"], report, where)
    runs = {
        who: onnx_session.runner(function, session) for who, session in sessions.items()
    }
    inputs = [
        case.function.text.read(case.inputs) if case.function.text else case.inputs
        for case, _ in cases
    ]
    answers = {who: [run(each) for each in inputs] for who, run in runs.items()}
    answers["model"] = [right for _, right in cases]
    for (case, right), got, rounded in zip(
        cases, answers["artifact"], answers["rounded"]
    ):
        case = case._replace(function=function)
        _compare(case, got, rounded, right, where, mode, report)
    every = answers
    generates = "sequences" in function.outputs
    if generates:
        report.token_agreement = _check_tokens(
            answers, where, mode, functools.partial(_most_different, cases, answers)
        )
        answers = _of_equal_tokens(answers)
    report.differences[function.name] = {}
    for name in function.outputs:
        if name == "sequences":
            continue
        values = {who: [each[name] for each in a] for who, a in answers.items()}
        found = {
            "model": difference(values["artifact"], values["model"]),
            "rounded": difference(values["artifact"], values["rounded"]),
        }
        if "coarse" in values:
            found["activations"] = difference(values["coarse"], values["rounded"])
        most = functools.partial(_most_different, cases, every, name)
        few = generates or sum(x.size for x in values["model"]) < FEW
        _check_differences(f"{where}: {name}", found, mode, generates, few, most)
        report.differences[function.name][name] = found
    report.latency[function.name] = _latency(
        {"float32": runs["rounded"], mode: runs["artifact"]}, inputs
    )
    return every


def _check_tokens(answers, where, mode, most):
    """The share of the artifact's tokens that are the model's."""
    shares = {}
    for who in ("rounded", "model"):
        pairs = zip(answers["artifact"], answers[who], strict=True)
        shares[who] = statistics.mean(
            token_agreement(got["sequences"], right["sequences"])
            for got, right in pairs
        )
    if shares["rounded"] < TOLERANCES[mode].tokens:
        raise ExportError(
            f"{where}: {shares['rounded']:.0%} of the tokens are those of a float32 "
            f"file with the same weights, less than {TOLERANCES[mode].tokens:.0%}."
            f"{most('sequences', 'rounded')} Do not use this artifact; please report "
            "this."
        )
    return shares["model"]


def _of_equal_tokens(answers):
    """The scores of those sequences that all agree on."""
    kept = {who: [] for who in answers}
    for outputs in zip(*answers.values(), strict=True):
        length = min(each["sequences"].shape[-1] for each in outputs)
        first = outputs[0]["sequences"]
        equal = np.ones(first.shape[:-1], bool)
        for each in outputs:
            tokens = each["sequences"]
            equal &= (tokens[..., :length] == first[..., :length]).all(axis=-1)
            equal &= tokens.shape[-1] == first.shape[-1]
        for who, each in zip(answers, outputs, strict=True):
            kept[who].append({"scores": each["scores"][equal]})
    return kept


def _compare(case, got, rounded, expected, where, mode, report):
    """One case: names, dtypes and shapes; adds a check to the report."""
    where = f"{where}, {case.name}"
    if mode == "float16":
        checks.compare(case.function, case.name, got, rounded, report, case.rows)
        check = report.checks[-1]
    else:
        dtypes, right = (
            {name: str(x.dtype) for name, x in outputs.items()}
            for outputs in (got, rounded)
        )
        if dtypes != right:
            raise ExportError(
                f"{where}: expected the outputs {right}. Received: {dtypes}."
            )
        check = {"function": case.function.name, "case": case.name}
        if case.rows:
            check["rows"] = len(case.rows)
        report.checks.append(check)
    floats = [name for name in expected if expected[name].dtype.kind == "f"]
    for name in floats:
        checks.check_shape(name, got[name].shape, expected[name].shape, where)
        if not np.isfinite(got[name]).all():
            raise ExportError(f"{where}: {name} should be finite, and is not.")
    check["difference"] = max(
        float(np.max(np.abs(a - b), initial=0.0, where=np.abs(b) < NOTHING))
        for a, b in ((got[name], expected[name]) for name in floats)
    )
    if "sequences" in expected:
        ended = (got["sequences"] == case.function.end_token_id).any(axis=-1)
        check["sequences"], check["ended"] = ended.size, int(ended.sum())
        check["token_agreement"] = token_agreement(
            got["sequences"], expected["sequences"]
        )
        check["tokens_equal"] = check["token_agreement"] == 1.0


def _most_different(cases, answers, name, who):
    """A sentence that names the user's input whose output is the farthest off."""
    rows = {}
    for (case, _), got, right in zip(cases, answers["artifact"], answers[who]):
        for row, mine, theirs in zip(case.rows or (), got[name], right[name]):
            if name == "sequences":
                rows[row] = 1 - token_agreement(mine, theirs)
            else:
                real = np.abs(theirs) < NOTHING
                rows[row] = np.sum((mine - theirs) ** 2, where=real)
    return f" Of the own inputs {max(rows, key=rows.get)} is off most." if rows else ""


def _check_differences(where, found, mode, generates, few, most):
    tolerance = TOLERANCES[mode]
    if tolerance.operators:
        factor = tolerance.operators * (2 if few else 1)
        limit = ROUNDING + factor * found["activations"]
        if not found["rounded"] <= limit:
            raise ExportError(
                f"{where} differs by {found['rounded']:.3g} of its spread from a "
                f"float32 file with the same weights, more than {limit:.3g}."
                f"{most('rounded')} Do not use this artifact; please report this."
            )
    if not generates and not found["model"] <= tolerance.model:
        raise ExportError(
            f"{where} differs by {found['model']:.3g} of its spread from the model, "
            f"more than {tolerance.model:g}.{most('model')} This model does not bear "
            f"quantize={mode!r}; use one with more bits."
        )


def difference(got, expected):
    """Root mean square difference in units of the standard deviation of `expected`.

    Args:
        got: float arrays.
        expected: likewise; of those far from the others the sign and the size count
            alone, and where they are very large, nothing is compared.

    Returns:
        float.
    """
    got, expected = (np.concatenate([x.ravel() for x in each], dtype="float64")
                     for each in (got, expected))  # fmt: skip
    sizes = np.abs(expected)
    real, near = sizes < NOTHING, ~is_far(sizes)
    far = real & ~near
    alike = np.abs(got[far] - expected[far]) <= 0.5 * sizes[far]
    if (np.abs(got[~real]) < NOTHING).any() or not alike.all():
        return np.inf
    if not real.any():
        return 0.0
    got, expected = got[near], expected[near]
    error = np.sqrt(np.mean((got - expected) ** 2))
    # The mean counts a little, for numbers that hardly differ from one another.
    spread = np.std(expected) + 0.01 * np.abs(np.mean(expected)) + 1e-6
    return float(error / spread)


def token_agreement(got, expected):
    """The share of equal tokens, int (..., L); of the longer where lengths differ."""
    shorter = min(got.shape[-1], expected.shape[-1])
    longer = max(got.shape[-1], expected.shape[-1])
    if not longer:
        return 1.0
    equal = (got[..., :shorter] == expected[..., :shorter]).mean() if shorter else 0.0
    return float(equal) * shorter / longer


def _latency(runs, inputs):
    """Seconds of all inputs for each run: medians, taken in turns."""
    seconds = {name: [] for name in runs}
    for _ in range(_TURNS):
        for name, run in runs.items():
            start = time.perf_counter()
            for each in inputs:
                run(each)
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}
