"""What an export did, and how it was verified."""

import dataclasses
import json
from pathlib import Path


@dataclasses.dataclass
class ExportReport:
    """The record of an export or of a verification; prints as a short table.

    Args:
        path: of the artifact.
        format: `"onnx"` or `"tf_saved_model"`.
        runtime: what it was verified in, with its version.
        functions: name to its inputs and outputs, as the artifact declares them.
        checks: dicts of `function`, `case`, `difference` (largest absolute one),
            `tolerance`, and where tokens come out `tokens_equal`, the number of
            `sequences`, and how many `ended` with the end token.
        files: name to bytes.
        operators: function to a count of each operator (ONNX).
        opset: of ONNX.
        seconds: name of a step to its duration.
        weight_bytes: of the weights, each counted once.
    """

    path: str
    format: str
    runtime: str = ""
    functions: dict = dataclasses.field(default_factory=dict)
    checks: list = dataclasses.field(default_factory=list)
    files: dict = dataclasses.field(default_factory=dict)
    operators: dict = dataclasses.field(default_factory=dict)
    opset: int | None = None
    seconds: dict = dataclasses.field(default_factory=dict)
    weight_bytes: int = 0

    def to_dict(self):
        """The fields, JSON-serialisable."""
        return dataclasses.asdict(self)

    def save(self, path):
        """Writes the report as JSON."""
        text = json.dumps(self.to_dict(), indent=2) + "\n"
        Path(path).write_text(text, encoding="utf-8")

    def __str__(self):
        size = sum(self.files.values())
        lines = [
            f"{self.format} at {self.path}: {size / 1e6:.2f} MB"
            + (f", opset {self.opset}" if self.opset else "")
            + (f", verified in {self.runtime}" if self.runtime else ""),
        ]
        for name, function in self.functions.items():
            inputs = ", ".join(function["inputs"])
            outputs = ", ".join(function["outputs"])
            lines.append(f"  {name}({inputs}) -> {outputs}")
        for check in self.checks:
            tokens = ""
            if "sequences" in check:
                tokens = f", tokens equal, {check['ended']}/{check['sequences']} ended"
            lines.append(
                f"  {check['function']:15} {check['case']:28} "
                f"difference {check['difference']:.1e}{tokens}"
            )
        if self.seconds:
            lines.append(
                "  "
                + ", ".join(f"{name} {s:.1f} s" for name, s in self.seconds.items())
            )
        return "\n".join(lines)
