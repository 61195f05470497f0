"""Exports every task in every form and compares what the files compute with Keras.

    python export/matrix.py

The matrix is task x architecture x position kind x norm, in both formats, and of tasks
that generate in a file of little memory, too; every other model has its norms behind
the sublayers. Each export verifies itself. Then `forward`
reads rows of its own, padded on either side, and each token of `generate` must be the
one that Keras's forward pass finds most probable there. The other forms, of text and of
small weights, are of one model each task and architecture. A checkpoint of each family
in `tests/parity` leaves in both formats, too. Cells that the results hold already are
left out. A cell that fails ends the script with status 1.
"""

import argparse
import itertools
import json
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple, get_args

import keras
import numpy as np
import onnxruntime

import kzoo
from kzoo.config import Norm, NormPosition, Positions
from kzoo.data import padded_batch
from kzoo.exporters import ExportError
from kzoo.files import write_text
from kzoo.tokenizers import FastTokenizer

FORMATS = ("onnx", "tf_saved_model")
# Options of the other forms.
FORMS = {
    "onnx low_memory": dict(format="onnx", low_memory=True),
    "onnx text": dict(format="onnx", text=True),
    "tf_saved_model text": dict(format="tf_saved_model", text=True),
    **{
        f"onnx {mode}": dict(format="onnx", quantize=mode)
        for mode in ("float16", "int8", "int8_weights", "int4")
    },
    "genai": dict(format="genai"),
}
AS_KERAS = ("onnx low_memory",)  # of these, whose numbers are those of the formats
# Formats of checkpoints.
LOADED = {f"checkpoint {format}": format for format in FORMATS}
SIZE = dict(vocabulary_size=17, num_layers=1, hidden_dim=8, num_heads=2,
            intermediate_dim=12, mask_token_id=3)  # fmt: skip
TEXT_SIZE = dict(num_layers=1, hidden_dim=32, num_heads=2, intermediate_dim=64)
LENGTH, NEW_TOKENS, TOLERANCE = 6, 3, 1e-4
RESULTS = Path(__file__).parent / "results" / "matrix.json"

found = {name: getattr(kzoo.tasks, name) for name in kzoo.tasks.__all__}
TASKS = {name: x for name, x in found.items() if hasattr(x, "export_functions")}
# What a task has to be given beside its config.
OWN = {name: dict(num_classes=3) for name in ("TextClassifier", "TokenClassifier")}


class Cell(NamedTuple):
    """A model of the matrix; a name of each kind."""

    task: str
    architecture: str
    positions: str
    norm: str
    norm_position: str

    def build(self, tokenizer=None):
        """The model, perturbed; with a tokenizer it is wider."""
        own = {**OWN.get(self.task, {}), **self._asdict()}
        size = SIZE if tokenizer is None else TEXT_SIZE
        keras.utils.set_random_seed(0)
        kind = TASKS[own.pop("task")]
        return perturbed(kind.from_size("tiny", tokenizer, **size, **own))


def has_form(kind, form):
    """Whether a class of tasks has one of `FORMS`; the others are refused by name."""
    generates = hasattr(kind, "generate")
    if "low_memory" in form:
        return generates
    if "text" in form:
        return generates or hasattr(kind, "text_outputs")
    return form != "genai" or (generates and kind.architectures == ("decoder",))


CELLS = [
    Cell(name, *cell, get_args(NormPosition)[number % len(get_args(NormPosition))])
    for name, kind in TASKS.items()
    for number, cell in enumerate(
        itertools.product(kind.architectures, get_args(Positions), get_args(Norm))
    )
]


def perturbed(task):
    """The task, with noise in all weights: of initial ones, norms are all alike."""
    random = np.random.default_rng(0)
    for variable in task.named_variables().values():
        noise = random.normal(0, 0.3, variable.shape).astype("float32")
        variable.assign(variable + noise)
    return task


def covering(cells, parts):
    """Few cells that together have all parts that any has.

    Args:
        cells: to choose from; at each step the first of those with most new parts.
        parts: from a cell to a set.

    Returns:
        list of cells.
    """
    chosen, missing = [], set().union(*map(parts, cells))
    while missing:
        chosen.append(max(cells, key=lambda cell: len(parts(cell) & missing)))
        missing -= parts(chosen[-1])
    return chosen


def pairs(values):
    """All pairs of values, each with its place."""
    return set(itertools.combinations(enumerate(values), 2))


def opened(path, format):
    """The artifact: a function of a function's name and numpy inputs."""
    if format == "tf_saved_model":
        import tensorflow as tf

        signatures = tf.saved_model.load(str(path)).signatures

        def run(name, inputs):
            tensors = {key: tf.constant(value) for key, value in inputs.items()}
            return {k: v.numpy() for k, v in signatures[name](**tensors).items()}

        return run
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it warns of options that may be left out

    def run(name, inputs):
        session = onnxruntime.InferenceSession(path / f"{name}.onnx", options)
        integers = {k: np.int64(v) for k, v in inputs.items() if v.dtype == np.int32}
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(names, {**inputs, **integers})))

    return run


def padded_rows(task, random):
    """Ids int32 (3, LENGTH): a full row, and rows padded on the right and the left.

    Each holds an end token, behind which question answering has its context.
    """
    config = task.config
    stacks = [stack for stack in (config.encoder, config.decoder) if stack]
    size = min(stack.vocabulary_size for stack in stacks)
    pad, end = config.pad_token_id, config.end_token_id
    usual = [i for i in range(size) if i not in (pad, end)]
    ids = random.choice(usual, (3, LENGTH)).astype("int32")
    ids[:, 2], ids[1, 4:], ids[2, :2] = end, pad, pad
    return ids


def forward_difference(task, run, random):
    """The largest difference of `forward` from Keras, relative above 1."""
    (forward, *_) = task.export_functions()
    inputs = {a.name: padded_rows(task, random) for a in forward.arguments}
    if "segment_ids" in inputs:
        inputs["segment_ids"] %= task.stack.config.num_segments
    tensors = {k: keras.ops.convert_to_tensor(v) for k, v in inputs.items()}
    got, differences = run("forward", inputs), []
    for name, value in task.named_outputs(tensors).items():
        value = keras.ops.convert_to_numpy(value)
        if got[name].shape != value.shape:
            return np.inf
        scale = np.maximum(1.0, np.abs(value))
        differences.append(np.max(np.abs(got[name] - value) / scale))
    return float(np.max(differences))


def token_difference(task, run, format, random):
    """How far tokens of `generate` are from being the most probable: logits' largest.

    Keras reads prompt and tokens at once, without a cache.
    """
    config, ids = task.config, padded_rows(task, random)
    pad, end = config.pad_token_id, config.end_token_id
    options = task.search_inputs(format, max_new_tokens=NEW_TOKENS, banned_tokens=[pad])
    sequences = run("generate", {task.prompt_input: ids, **options})["sequences"]
    rows = []
    for prompt, new in zip(ids, sequences[:, 0].tolist(), strict=True):
        new = new[: new.index(end) + 1] if end in new else new
        prompt = prompt[prompt != pad].tolist()
        rows.append(([config.start_token_id] if config.encoder else prompt, new))
    read = padded_batch([before + new for before, new in rows], pad_id=pad)
    logits = task({task.prompt_input: ids, task.decoder_input: read})
    logits = np.array(keras.ops.convert_to_numpy(logits))
    logits[:, :, pad] = -np.inf
    gaps = [
        logits[row, place].max() - logits[row, place, token]
        for row, (before, new) in enumerate(rows)
        for place, token in enumerate(new, len(before) - 1)
    ]
    return float(np.max(gaps))


def check(task, form, folder, functions=None):
    """The largest difference of a task's artifact from Keras, in any way.

    Where values are large it is relative, as the tolerance of an export is.

    Args:
        task: the model.
        form: one of `FORMATS`, or of `FORMS` that reads ids and computes as Keras does.
        folder: where the artifact is written.
        functions: names of what it holds; `forward` and `generate` by default.

    Raises:
        ExportError: it is larger than rounding explains.
    """
    functions = functions or [function.name for function in task.export_functions()]
    options = FORMS.get(form, dict(format=form))
    report = task.export(folder / "model", functions=functions, **options)
    format = options["format"]
    run, random = opened(folder / "model", format), np.random.default_rng(1)
    with kzoo.ops.full_float32():
        differences = [forward_difference(task, run, random)]
        if "generate" in functions:
            differences.append(token_difference(task, run, format, random))
    if not np.max(differences) <= TOLERANCE:
        raise ExportError(f"forward and tokens are {differences} from Keras.")
    verified = (c["difference"] * TOLERANCE / c["tolerance"] for c in report.checks)
    return max(*differences, *verified)


def check_cell(cell, form, folder):
    """`check` of a cell's model."""
    return check(cell.build(), form, folder)


def check_form(cell, form, folder):
    """The largest difference from Keras, of which small weights are the most.

    Raises:
        ExportError: its verification failed.
    """
    texts = ["a man rides a bike", "two dogs play in the snow", "the quick brown fox"]
    options = dict(algorithm="wordpiece", mask_token=cell.task == "MaskedLM")
    task = cell.build(FastTokenizer.train(texts, 60, **options))
    report = task.export(folder / "model", **FORMS[form])
    return max((check.get("difference", 0.0) for check in report.checks), default=0.0)


def check_checkpoint(cell, name, folder):
    """`check` of a family's checkpoint, without what it says of searches."""
    from tests.parity.parity_test import written

    written(cell[0], folder)
    task = kzoo.from_preset(folder)
    if hasattr(task, "search_defaults"):
        task.search_defaults = {}
    return check(task, LOADED[name], folder)


def checkpoints():
    """The first row of each family in `tests/parity`."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.parity.parity_test import FIRST

    return [(row,) for row in FIRST.values()]


def print_table(results):
    """By task and format the largest difference, and how many of the cells passed."""
    print(" " * 18 + "".join(f"{format:>19}" for format in FORMATS))
    for name in TASKS:
        line = f"{name:18}"
        for cells in (results.get(format, {}) for format in FORMATS):
            own = [value for cell, value in cells.items() if cell.split()[0] == name]
            passed = [value for value in own if isinstance(value, float)]
            line += f"{max(passed, default=0.0):11.1e} {len(passed):3}/{len(own):3}"
        print(line)


def main():
    """Runs what is missing; the status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    known = (*FORMATS, *FORMS, *LOADED)
    parser.add_argument("--formats", nargs="+", choices=known, default=known)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    results = json.loads(args.out.read_text()) if args.out.exists() else {}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    # Those that have every pair of values come first: a fault shows early.
    every = dict.fromkeys([*covering(CELLS, pairs), *CELLS])
    one_each = {cell[:2]: cell for cell in reversed(CELLS)}.values()
    todo = {format: every for format in FORMATS}
    for form in FORMS:
        cells = every if form in AS_KERAS else one_each
        todo[form] = [cell for cell in cells if has_form(TASKS[cell.task], form)]
    todo |= dict.fromkeys(LOADED, checkpoints())
    checks = dict.fromkeys(FORMATS, check_cell) | dict.fromkeys(FORMS, check_form)
    checks |= dict.fromkeys(AS_KERAS, check_cell)
    checks |= dict.fromkeys(LOADED, check_checkpoint)
    # What was not run yet is null, so that the file says how much is missing.
    before, results = results, {}
    for format, cells in todo.items():
        done = before.get(format, {})
        results[format] = {name: done.get(name) for name in map(" ".join, cells)}
    for format in args.formats:
        done = results[format]
        for cell in todo[format]:
            name = " ".join(cell)
            if done[name] is not None and not isinstance(done[name], str):
                continue  # it passed; what failed is tried again
            with tempfile.TemporaryDirectory() as folder:
                try:
                    done[name] = checks[format](cell, format, Path(folder))
                except ExportError as error:
                    done[name] = str(error)
            print(f"{format:20}{name:60}{done[name]}", flush=True)
            write_text(args.out, json.dumps(results, indent=1, sort_keys=True) + "\n")
    print_table(results)
    values = (value for cells in results.values() for value in cells.values())
    return int(any(isinstance(value, str) for value in values))


if __name__ == "__main__":
    sys.exit(main())
