"""What the benchmarks share: contenders in processes of their own, taken in turns.

TensorFlow and torch do not share a process, and timings of one machine move from minute
to minute. So each contender is a worker that answers JSON lines, one works while the
others wait, and two are compared by the median of the ratios of neighbouring turns.
"""

import argparse
import gzip
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

# Two threads and wall-clock time; `measure_cpu_time` has one thread and CPU time.
THREADS = int(os.environ.get("KZOO_BENCHMARK_THREADS", 2))
clock = time.perf_counter if THREADS > 1 else time.process_time
RESULTS = Path(__file__).parent / "results"

# Threads, backend and log lines of the libraries, as they read it when imported.
ENVIRONMENT = {
    "KERAS_BACKEND": os.environ.get("KERAS_BACKEND", "tensorflow"),
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_NUM_INTRAOP_THREADS": str(THREADS),
    "TF_NUM_INTEROP_THREADS": str(THREADS),
    "OMP_NUM_THREADS": str(THREADS),
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}


def measure_cpu_time():
    """One thread and CPU time from here on, for a machine that others use, too.

    What a thread computes does not depend on how often it has to wait for its turn;
    two threads that wait for each other do.
    """
    global THREADS
    THREADS = 1
    ENVIRONMENT["KZOO_BENCHMARK_THREADS"] = "1"
    for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"):
        ENVIRONMENT[name] = "1"


def count(text):
    """An argument that is a number of things, 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more. Received: {text!r}.")
    return int(text)


def results_name(text):
    """An argument that `write_results` takes: its folder is there before all work."""
    folder = (RESULTS / text).parent
    if folder != RESULTS and not folder.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {folder}.")
    return text


def folder(text):
    """An argument that is the path of a folder that is there."""
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {text}.")
    return Path(text)


def file(text):
    """An argument that is the path of a file that is there."""
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text}.")
    return Path(text)


def lines(path):
    """The lines of a text file, plain or gz."""
    opened = gzip.open if str(path).endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8") as file:
        return [line.rstrip("\n") for line in file]


def main(compare, work):
    """Runs a script: `work(*arguments)` in a worker of its own, else `compare()`."""
    if sys.argv[1:2] == ["--work"]:
        work(*sys.argv[2:])
    else:
        compare()


class Worker:
    """A contender in a process of its own.

    Args:
        name: of the contender.
        python: the interpreter that has its packages.
        *arguments: of this benchmark's script, which then calls `serve`.
    """

    def __init__(self, name, python, *arguments):
        self.name = name
        self.process = subprocess.Popen(
            [python, sys.argv[0], *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **ENVIRONMENT},
        )

    def ask(self, **message):
        """Sends a message and returns the worker's answer."""
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with code {self.process.wait()}.")
        return json.loads(line)

    def close(self):
        """Lets the worker end."""
        self.process.stdin.close()
        self.process.wait()


def serve(answer):
    """Answers messages from standard input until it closes.

    Args:
        answer: function of a message's items, to what JSON can hold.
    """
    # What libraries print must not stand between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(json.dumps(answer(**json.loads(line))) + "\n")
        answers.flush()


def take_turns(workers, turns, **message):
    """Asks every worker `turns` times, A B C, C B A, A B C, ...

    Returns:
        dict of the workers' names to lists of answers.
    """
    return take_turns_of(workers, turns, [message])[0]


def take_turns_of(workers, turns, messages):
    """`take_turns` for several messages, all of which are asked in every turn.

    Returns:
        list of what `take_turns` returns, one a message.
    """
    answers = [{worker.name: [] for worker in workers} for _ in messages]
    for turn in range(turns):
        for message, found in zip(messages, answers, strict=True):
            for worker in workers if turn % 2 == 0 else reversed(workers):
                found[worker.name].append(worker.ask(**message))
    return answers


def median_ratio(ours, theirs):
    """The median of `ours[i] / theirs[i]`."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def geometric_mean(numbers):
    """exp of the mean logarithm."""
    return math.exp(statistics.mean(map(math.log, numbers)))


def compare(cell, workers, amount, turns, seconds, **message):
    """One cell of a table: the first worker against the others, in turns.

    Args:
        cell: its name.
        workers: ours first; each answers a message with a dict that has the `seconds`
            of `calls` calls.
        amount: what a call gets done: tokens, sequences.
        turns: of every worker.
        seconds: how long one of our turns takes.
        **message: what all of them are asked besides `calls`.

    Returns:
        dict of `cell`, `calls`, `rates` (amounts a second, a list a worker) and
        `faster_by` (how many times our rate is that of each other worker).
    """
    for worker in workers:
        worker.ask(calls=1, **message)  # compiles, warms up
    quickest = workers[0].ask(calls=1, **message)["seconds"]
    calls = max(1, round(seconds / quickest))
    answers = take_turns(workers, turns, calls=calls, **message)
    rates = {
        name: [amount * calls / answer["seconds"] for answer in found]
        for name, found in answers.items()
    }
    ours = rates[workers[0].name]
    others = [worker.name for worker in workers[1:]]
    faster_by = {name: median_ratio(ours, rates[name]) for name in others}
    print(cell, {k: round(v, 2) for k, v in faster_by.items()}, flush=True)
    return {"cell": cell, "calls": calls, "rates": rates, "faster_by": faster_by}


def table(head, cells):
    """The rows of a table of `compare`'s cells, geometric means last.

    Args:
        head: of the first two columns, what the cells are and what our rates.
        cells: what `compare` returned.
    """
    peers = list(cells[0]["faster_by"])
    rows = [[*head, *(f"× {peer}" for peer in peers)]]
    for cell in cells:
        ours = statistics.median(next(iter(cell["rates"].values())))
        ratios = [f"{cell['faster_by'][peer]:.2f}" for peer in peers]
        rows.append([cell["cell"], f"{ours:,.0f}", *ratios])
    means = [geometric_mean([cell["faster_by"][p] for cell in cells]) for p in peers]
    return [*rows, ["**geometric mean**", "", *(f"**{mean:.2f}**" for mean in means)]]


def keras_turn(model, inputs, targets, rows):
    """A function that trains a compiled Keras model on all rows once; its seconds.

    They end with the training, when the loss is a number, so that a device is done.
    tf.data's thread for tuning the input looks up after 10, 20, 40 ms and so on, and
    `fit` often waits for it before it returns: up to half of a turn, whatever the
    model.

    Args:
        model: the Keras model.
        inputs: of `fit`.
        targets: of `fit`.
        rows: of a batch.
    """
    import keras

    ends = []
    ended = keras.callbacks.LambdaCallback(on_train_end=lambda _: ends.append(clock()))

    def turn():
        start = clock()
        model.fit(
            inputs,
            targets,
            batch_size=rows,
            shuffle=False,
            verbose=0,
            callbacks=[ended],
        )
        return ends[-1] - start

    return turn


def versions(*packages):
    """Which of the packages this interpreter has, and their versions."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def onnx_session(path):
    """A file in onnxruntime, on the benchmark's number of threads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options)


def resident():
    """Bytes that this process holds now; the peak is counted from here on."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak():
    """The most bytes that this process has held.

    Not `getrusage`'s, which starts with what the process held that started this one.
    """
    return _status("VmHWM")


def _status(name):
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{name}:")[1].split()[0]) * 1024


def settings(args):
    """What a script was asked for; not where interpreters and results are."""
    places = ("peers", "hub", "out")
    return {name: value for name, value in vars(args).items() if name not in places}


def machine():
    """The processor, and the GPU, that the numbers belong to."""
    model = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        lines = info.read_text().splitlines()
        names = [line.split(":")[1] for line in lines if line.startswith("model name")]
        model = names[0].strip() if names else model
        if any(line.startswith("flags") and " avx512f" in line for line in lines):
            model += " with AVX-512"
    found = {
        "cpu": model,
        "cores": os.cpu_count(),
        "threads": THREADS,
        "time": "wall" if THREADS > 1 else "cpu",
    }
    if shutil.which("nvidia-smi"):
        ask = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        answer = subprocess.run(ask, capture_output=True, text=True)
        found["accelerator"] = answer.stdout.strip() or "none"
    return found


def results(args, versions, cells):
    """What the JSON of a benchmark holds."""
    return {
        "machine": machine(),
        "versions": versions,
        "arguments": settings(args),
        "cells": cells,
    }


def write_results(name, results, rows):
    """Writes `results/<name>.json` and `.md`; prints the table.

    Args:
        name: of the benchmark, of `results_name`.
        results: what the JSON holds.
        rows: lists of strings, the first one the table's head.
    """
    from kzoo.files import write_text  # which peers' interpreters need not have

    rows = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    print(table)
    RESULTS.mkdir(exist_ok=True)
    write_text(RESULTS / f"{name}.json", json.dumps(results, indent=1) + "\n")
    write_text(RESULTS / f"{name}.md", table)
