"""What an export did, and how it was verified."""

import dataclasses
import json
import math
import textwrap
from pathlib import Path

import numpy as np

from kzoo.files import write_text

OWN = "own inputs"  # the name of a case of the user's inputs


@dataclasses.dataclass
class ExportReport:
    """The record of an export or of a verification; prints as a short table.

    Args:
        path: of the artifact.
        format: `"onnx"`, `"tf_saved_model"` or `"genai"`.
        runtime: what it was verified in, with its version.
        needs: packages with their versions that it needs beside the runtime.
        text: whether it takes text, and not token ids.
        functions: name to its inputs and outputs, as the artifact declares them.
        checks: dicts of `function`, `case`, `difference` (largest absolute one),
            `tolerance`, and where tokens come out `tokens_equal`, the number of
            `sequences`, how many `ended` with the end token, and in how many places
            two tokens were `ties`, of which the artifact took the other; where strings
            do `texts_equal`; of a user's inputs the number of `rows`.
        files: name to bytes.
        sha256: of the files that hold a folder's model, but variables; name to digest.
        operators: function to a count of each operator (ONNX).
        opset: of ONNX.
        seconds: name of a step to its duration.
        weight_bytes: of the weights, each counted once.
        notes: sentences on what was left out, or has to be known.
        domains: operator sets that it needs beside ONNX's own.
        quantize: how the weights were made smaller; the rest is for such artifacts.
        float32_weight_bytes: what `weight_bytes` would be without.
        differences: function to output to root mean square differences, in units of
            the output's spread: from the model (`"model"`), and from a float32 file
            with the same weights after rounding (`"rounded"`); and of that file from
            itself, when activations have 8 bits (`"activations"`).
        token_agreement: the share of generated tokens that are the model's, as the
            mean over cases.
        label_agreement: the share of labels that are, of an artifact that gives them.
            Of own inputs that are verified in parts both are the parts' means, by rows.
        latency: function to seconds of its cases, `"float32"` and quantised; without
            reading and writing text.
        metric: the task's own, of the `"model"` and of the `"artifact"`.
    """

    path: str
    format: str
    runtime: str = ""
    needs: list = dataclasses.field(default_factory=list)
    text: bool = False
    functions: dict = dataclasses.field(default_factory=dict)
    checks: list = dataclasses.field(default_factory=list)
    files: dict = dataclasses.field(default_factory=dict)
    sha256: dict = dataclasses.field(default_factory=dict)
    operators: dict = dataclasses.field(default_factory=dict)
    opset: int | None = None
    seconds: dict = dataclasses.field(default_factory=dict)
    weight_bytes: int = 0
    notes: list = dataclasses.field(default_factory=list)
    domains: list = dataclasses.field(default_factory=list)
    quantize: str | None = None
    float32_weight_bytes: int = 0
    differences: dict = dataclasses.field(default_factory=dict)
    token_agreement: float | None = None
    label_agreement: float | None = None
    latency: dict = dataclasses.field(default_factory=dict)
    metric: dict = dataclasses.field(default_factory=dict)

    def to_dict(self):
        """The fields, JSON-serialisable: NaN and infinity are `None`."""
        return _defined(dataclasses.asdict(self))

    def save(self, path):
        """Writes the report as JSON."""
        text = json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n"
        write_text(Path(path), text)

    def __str__(self):
        size = sum(self.files.values())
        lines = [
            f"{self.format} at {self.path}: {size / 1e6:.2f} MB"
            + (f", opset {self.opset}" if self.opset else "")
            + (f", verified in {self.runtime}" if self.runtime else "")
            + (f", needs {', '.join(self.needs)}" if self.needs else ""),
        ]
        for name, function in self.functions.items():
            inputs = ", ".join(function["inputs"])
            outputs = ", ".join(function["outputs"])
            text = f"  {name}({inputs}) -> {outputs}"
            lines.append(textwrap.fill(text, 80, subsequent_indent=6 * " "))
        for check in self.checks:
            tokens = ", texts equal" if "texts_equal" in check else ""
            if "token_agreement" in check:
                tokens = f", {check['token_agreement']:.0%} of the tokens equal"
            elif "sequences" in check:
                tokens = f", tokens equal, {check['ended']}/{check['sequences']} ended"
            if check.get("ties"):
                tokens += f", {check['ties']} ties between two tokens"
            lines.append(
                f"  {check['function']:15} {check['case']:31} "
                f"difference {check['difference']:.1e}{tokens}"
            )
        lines += [f"  {note}" for note in self.notes]
        lines += self._quantized() if self.quantize else []
        for who, values in self.metric.items():
            lines.append(f"  {who}: {values}")
        if self.seconds:
            lines.append(
                "  "
                + ", ".join(f"{name} {s:.1f} s" for name, s in self.seconds.items())
            )
        return "\n".join(lines)

    def _quantized(self):
        before, after = self.float32_weight_bytes, self.weight_bytes
        lines = []
        if after:
            lines.append(
                f"  {self.quantize}: weights {after / 1e6:.2f} MB, {before / 1e6:.2f} "
                "MB in float32"
            )
        for name, outputs in self.differences.items():
            for output, found in outputs.items() if name != "generate" else ():
                lines.append(
                    f"  {name}: {output} differs from the model by "
                    f"{found['model']:.1%} of its spread"
                )
        if self.token_agreement is not None:
            lines.append(f"  {self.token_agreement:.0%} of the tokens are the model's")
        if self.label_agreement is not None:
            lines.append(f"  {self.label_agreement:.0%} of the labels are the model's")
        for name, seconds in self.latency.items():
            one, other = seconds["float32"], seconds[self.quantize]
            lines.append(
                f"  {name}: {other * 1e3:.1f} ms, {one * 1e3:.1f} ms in float32"
            )
        if self.domains:
            lines.append(f"  needs onnxruntime, for the operators {self.domains}")
        return lines


def joined(reports):
    """One report of verifications of the same artifact, on some of the inputs each.

    Args:
        reports: `ExportReport`s; their checks on own inputs become one a function.
    """
    report = reports[0]
    counts = [max(1, sum(c.get("rows", 0) for c in r.checks)) for r in reports]
    own = {}
    for check in [check for each in reports for check in each.checks]:
        if "rows" in check:
            own.setdefault((check["function"], check["case"]), []).append(check)
    report.checks = [check for check in report.checks if "rows" not in check]
    for checks in own.values():
        check = dict(max(checks, key=lambda check: check["difference"]))
        for key in ("rows", "sequences", "ended", "ties"):
            if any(key in each for each in checks):
                check[key] = sum(each.get(key, 0) for each in checks)
        if "token_agreement" in check:
            rows = [each["token_agreement"] * each["rows"] for each in checks]
            check["token_agreement"] = sum(rows) / check["rows"]
            check["tokens_equal"] = all(each["tokens_equal"] for each in checks)
        check["case"] = f"{check['rows']} {check['case']}"
        report.checks.append(check)
    for key in ("token_agreement", "label_agreement"):
        shares = [getattr(each, key) for each in reports]
        if None not in shares:
            setattr(report, key, float(np.average(shares, weights=counts)))
    for name, outputs in report.differences.items():
        for output, found in outputs.items():
            for who in found:
                found[who] = max(
                    each.differences[name][output][who] for each in reports
                )
    return report


def _defined(x):
    """Nested dicts and lists, with `None` for NaN and infinity."""
    if isinstance(x, dict):
        return {name: _defined(value) for name, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [_defined(value) for value in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x
