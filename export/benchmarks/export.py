"""Time, size and memory of a native ONNX export of the paper's base model.

    python export/benchmarks/export.py [--size base] [--vocabulary-size 32000]

Prints a JSON line: seconds to write and to verify, seconds that all cores worked, bytes
stored over those of the weights, and the peak of this process's memory above what it
held before, likewise.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import _duel

import kzoo

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--size", default="base")
parser.add_argument("--vocabulary-size", type=int, default=32_000)
parser.add_argument("--file", action="store_true", help="one .onnx instead of a folder")
args = parser.parse_args()

task = kzoo.Seq2SeqLM.from_size(args.size, vocabulary_size=args.vocabulary_size)
before = _duel.resident()
with tempfile.TemporaryDirectory() as folder:
    start, busy = time.perf_counter(), time.process_time()
    name = "model.onnx" if args.file else "model"
    report = task.export(Path(folder) / name, format="onnx")
    seconds = time.perf_counter() - start
    busy = time.process_time() - busy
peak = _duel.peak()
stored = sum(s for f, s in report.files.items() if f.endswith((".onnx", ".bin")))
print(
    json.dumps(
        {
            "seconds": seconds,
            "seconds_of_all_cores": busy,
            **{f"seconds_{k}": v for k, v in report.seconds.items()},
            "weight_megabytes": report.weight_bytes / 1e6,
            "stored_over_weights": stored / report.weight_bytes,
            "extra_peak_over_weights": (peak - before) / report.weight_bytes,
            "peak_over_weights": peak / report.weight_bytes,
            "opset": report.opset,
        }
    )
)
