"""Benchmarks are scripts that run for long; here the shortest run of those on text."""

import gzip
import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "export" / "benchmarks"
WORDS = "a dog|ein Hund|a cat|eine Katze|two dogs|zwei Hunde|a man|ein Mann".split("|")


@pytest.fixture
def run(monkeypatch):
    """Runs a script as its command does, in this process: to import takes longest."""
    monkeypatch.syspath_prepend(BENCHMARKS)

    def run(script, *args):
        with monkeypatch.context() as patched:
            patched.setattr(sys, "argv", [script, *map(str, args)])
            runpy.run_path(str(BENCHMARKS / script), run_name="__main__")

    return run


@pytest.mark.tensorflow
@pytest.mark.usefixtures("greedy")
def test_a_translator_is_trained_and_scored_in_all_its_forms(run, tmp_path):
    for split in ("train", "val", "test"):
        for language, words in (("en", WORDS[::2]), ("de", WORDS[1::2])):
            with gzip.open(tmp_path / f"{split}.{language}.gz", "wt") as file:
                file.writelines(f"{word}\n" for word in words * 8)
    out = tmp_path / "run"
    sizes = ("--size", "tiny", "--vocabulary-size", 40, "--minutes", 1e-6)
    run("multi30k.py", tmp_path, "--out", out, *sizes)
    curve = json.loads((out / "curve.json").read_text())
    assert [row["epoch"] for row in curve] == [1]
    # As if it had been killed after a second epoch's row, before its checkpoint.
    (out / "curve.json").write_text(json.dumps([*curve, {**curve[0], "epoch": 2}]))
    run("multi30k.py", tmp_path, "--out", out, *sizes)
    again = json.loads((out / "curve.json").read_text())
    assert again[0] == curve[0] and [row["epoch"] for row in again] == [1, 2]
    weights = (out / "model" / "model.safetensors").read_bytes()
    run("multi30k.py", tmp_path, "--out", out, *sizes)
    assert (out / "model" / "model.safetensors").read_bytes() == weights

    scores = tmp_path / "scores"
    run("score_multi30k.py", out, tmp_path / "test", "--sentences", 4, "--out", scores)
    found = json.loads(scores.with_suffix(".json").read_text())["scores"]
    assert [row["beams"] for row in found] == [1, 4]
    for row in found:
        assert row["onnx"]["different"] == row["onnx"]["tied"]
        assert row["tf_saved_model"]["different"] == row["tf_saved_model"]["tied"]
    assert scores.with_suffix(".png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("script", "args", "named"),
    [
        ("minilm.py", ("--checkpoint", "nowhere", "--stsb", "."), "no folder nowhere"),
        ("generate.py", ("--model", ".", "--texts", "."), "no file ."),
    ],
)
def test_what_is_not_there_is_named_before_all_work(script, args, named):
    command = [sys.executable, BENCHMARKS / script, *args]
    done = subprocess.run(command, capture_output=True, text=True, cwd=BENCHMARKS)
    assert done.returncode == 2 and named in done.stderr, done.stderr[-3000:]
