"""Every form in which a model leaves: exported, verified, weighed and scored."""

import tempfile
import time
from pathlib import Path

from kzoo.exporters import ExportError, export
from kzoo.exporters.answers import answers_from, sessions_of
from kzoo.exporters.quantize import MODES
from kzoo.tasks import CausalLM

# A form's name, and the options of `export` that make it. Text where it is exact.
FORMS = {
    "ONNX": dict(format="onnx"),
    **{f"ONNX {mode}": dict(format="onnx", quantize=mode) for mode in MODES},
    "ONNX, text": dict(format="onnx", text=True),
    "ONNX int8, text": dict(format="onnx", quantize="int8", text=True),
    "SavedModel": dict(format="tf_saved_model"),
    "SavedModel, text": dict(format="tf_saved_model", text=True),
}


def measure_exports(task, score, forms=None):
    """What `exports.json` of a preset holds: its forms, and how well each does.

    Args:
        task: a task, in float32.
        score: function of the task to a dict of numbers, such as `lambda task:
            task.score(x, y)`. It is called again while an artifact answers for the
            task, see `kzoo.exporters.answers`.
        forms: keys of `FORMS`; all by default.

    Returns:
        dict of `score` and `seconds`, of the model in Keras, and `forms`, a list of
        dicts: `form`, its name; `bytes` of its files; `difference`, the largest of its
        verification; `export_seconds`; `score` and `seconds`, of the same measures; of
        what cannot be exported or, in this form, scored, `refused` or `not_scored`
        with the reason. A caller says beside it where (`machine`, `versions`) and on
        what (`test`, `rows`) it was measured.

    Raises:
        ValueError: an unknown form.
    """
    forms = list(FORMS if forms is None else forms)
    unknown = sorted(set(forms) - set(FORMS))
    if unknown:
        raise ValueError(f"forms must be of {list(FORMS)}. Received: {unknown}.")
    found = {**_scored(task, score), "forms": []}
    for form in forms:
        found["forms"].append({"form": form, **_measured(task, score, FORMS[form])})
    return found


def _measured(task, score, options):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "artifact"
        start = time.perf_counter()
        try:
            report = export(task, path, **options)
        except ExportError as error:
            return {"refused": " ".join(str(error).split())}
        made = {
            "bytes": sum(report.files.values()),
            "difference": max(check["difference"] for check in report.checks),
            "export_seconds": round(time.perf_counter() - start, 3),
        }
        for share in ("token_agreement", "label_agreement"):
            if getattr(report, share) is not None:
                made[share] = getattr(report, share)
        if isinstance(task, CausalLM) and "forward" not in report.functions:
            reason = "it gives text alone, and this score needs probabilities"
            return {**made, "not_scored": reason}
        try:
            with answers_from(task, sessions_of(task, path, report)):
                return {**made, **_scored(task, score)}
        except ExportError as error:
            return {**made, "not_scored": " ".join(str(error).split())}


def _scored(task, score):
    start = time.perf_counter()
    found = {k: float(v) for k, v in score(task).items() if not isinstance(v, str)}
    return {"score": found, "seconds": round(time.perf_counter() - start, 3)}
