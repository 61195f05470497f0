"""Runs an artifact beside the Keras model and refuses what differs."""

import contextlib
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import keras
import numpy as np

from kzoo import ops
from kzoo.exporters.errors import ExportError
from kzoo.exporters.report import OWN
from kzoo.exporters.signatures import Function
from kzoo.exporters.tolerances import bounds, largest_difference
from kzoo.generation import IMPOSSIBLE, CompiledFunction
from kzoo.layers.base import bare_calls
from kzoo.models.turns import with_own_turns

# The options of a plain beam search, and those of it that one beam has not.
_HOW_MANY = {"beams", "num_return_sequences", "early_stopping"}
_OF_BEAMS = _HOW_MANY | {"max_new_tokens", "length_penalty"}


class Case(NamedTuple):
    """Inputs of a function, and the outputs that Keras gives for them.

    Attributes:
        function: a `Function`.
        name: what errors call it.
        inputs: dict of numpy arrays.
        expected: what `reference` gives.
        rows: what errors call each row of a batch of the user's own inputs, or `None`.
    """

    function: Function
    name: str
    inputs: dict
    expected: Future
    rows: tuple | None = None


@contextlib.contextmanager
def references(functions, own=()):
    """Has Keras compute the outputs of every case, in a thread while the block runs.

    This takes longer than all else in an export, and is mostly Python on one core.

    Args:
        functions: `Function`s.
        own: `kzoo.exporters.inputs.Batch`es of the user's, for the functions that
            read them.

    Yields:
        A list of `Case`s, one function after another.
    """
    pool = ThreadPoolExecutor(1)

    def case(function, name, inputs, rows=None):
        expected = pool.submit(with_own_turns(reference), function, inputs)
        return Case(function, name, inputs, expected, rows)

    try:
        cases = []
        for function in functions:
            made = function.cases(np.random.default_rng(0))
            cases += [case(function, name, inputs) for name, inputs in made.items()]
            cases += [
                case(function, OWN, batch.inputs_of(function), batch.names)
                for batch in own
                if batch.reads(function)
            ]
        yield cases
    finally:
        pool.shutdown(cancel_futures=True)


def verify(cases, answers, report, of_ids=None):
    """Compares an artifact with Keras; adds the checks to the report.

    Args:
        cases: from `references`.
        answers: an iterable of the artifact's outputs, a dict of numpy arrays a case.
        report: an `ExportReport`.
        of_ids: from a `Function` of ids and inputs to what the runtime gives for them:
            texts alone do not tell a tie. `None` where there is no such.

    Raises:
        ExportError: an output is missing, of another shape or dtype, or differs by more
            than the tolerance; or a token differs, where no tie explains it.
    """
    for case, got in zip(cases, answers, strict=True):
        expected, ties = _tied(case, got, of_ids)
        expected = written(case.function, case.inputs, expected)
        compare(case.function, case.name, got, expected, report, case.rows)
        if ties:
            report.checks[-1]["ties"] = ties


def compare(function, case, got, expected, report, rows=None):
    """Compares the artifact's outputs with Keras's, both dicts of numpy arrays.

    Args:
        function: a `Function`.
        case: its name.
        got: the artifact's.
        expected: Keras's.
        report: gets a check.
        rows: what errors call each row, or `None`.
    """
    where = f"{report.path}, {function.name}, {case}"
    if set(got) != set(expected):
        raise ExportError(
            f"{where}: expected the outputs {sorted(expected)}. "
            f"Received: {sorted(got)}."
        )
    for name, value in expected.items():
        kind = "iu" if value.dtype.kind in "iu" else value.dtype.kind
        wrong = got[name].dtype.kind not in kind
        if wrong or (kind == "f" and got[name].dtype != value.dtype):
            raise ExportError(
                f"{where}: {name} should be {value.dtype}. Received: {got[name].dtype}."
            )
    check = {"function": function.name, "case": case, "difference": 0.0}
    if rows:
        check["rows"] = len(rows)
    if "sequences" in expected:
        if not ops.buffers_grow():  # Keras's buffer is as long as max_new_tokens
            got, expected = trimmed(function, got), trimmed(function, expected)
        _check_tokens(function, got, expected, where, rows)
        check["tokens_equal"] = True
        ended = (expected["sequences"] == function.end_token_id).any(axis=-1)
        check["sequences"], check["ended"] = ended.size, int(ended.sum())
    for name, value in expected.items():
        if name == "sequences":
            continue
        check_shape(name, got[name].shape, value.shape, where)
        if value.dtype.kind != "f":
            _check_equal(name, got[name], value, where, rows)
            if value.dtype.kind == "O":
                check["texts_equal"] = True
            continue
        if not np.isfinite(value).all():
            raise ExportError(
                f"{where}: {name} of the Keras model should be finite. "
                "Received: NaN or infinity. Look for a weight that is far too large."
            )
        differences = np.subtract(got[name], value, dtype="float64")
        np.abs(differences, out=differences)  # logits of long rows are many
        tolerance, allowed, near = bounds("float32", value)
        if not (differences <= allowed).all():
            place = np.unravel_index(np.argmax(differences - allowed), value.shape)
            raise ExportError(
                f"{where}: {name} differs by {differences[place]:.3g} from Keras, more "
                f"than {tolerance:g}. {_both(got[name], value, place, rows)} Do not "
                "use this artifact: export the model again; if that fails, please "
                "report it."
            )
        difference = float(np.max(differences, initial=0.0, where=near))
        check["difference"] = max(check["difference"], difference)
        check["tolerance"] = tolerance
    report.checks.append(check)


def reference(function, inputs):
    """The outputs in Keras, as numpy arrays; of a `TextForm` those of its function."""
    if function.text:
        function, inputs = function.text.function, function.text.read(inputs)
    given = [argument for argument in function.arguments if argument.name in inputs]
    numbers = {a.name: inputs[a.name] for a in given if not a.axes}
    tensors = {
        a.name: keras.ops.convert_to_tensor(inputs[a.name], a.dtype)
        for a in given
        if a.axes
    }

    def call(tensors):
        return function.call({**numbers, **tensors})

    # JAX compiles each operator for each shape, and a loop whenever it is called: all
    # together take half the time, two thirds where there are 12 layers. TensorFlow runs
    # a case sooner than it makes a graph.
    if keras.backend.backend() == "jax" and function.task is not None:
        call = CompiledFunction(function.task, call, None).tensors
    # A search runs many layers for few numbers; `forward` goes all the way.
    around = contextlib.nullcontext() if function.end_token_id is None else bare_calls()
    with around, ops.full_float32():
        outputs = call(tensors)
    return {name: keras.ops.convert_to_numpy(x) for name, x in outputs.items()}


def _tied(case, got, of_ids):
    """Keras's outputs for a case, and how many ties between tokens these go with.

    Where two differ by no more than arithmetic in another order explains, a search may
    take either. What no tie explains is left for `compare`.
    """
    inputs, expected = case.inputs, case.expected.result()
    if "generated_text" in got and of_ids and "sequences" in expected:
        right = written(case.function, inputs, expected)["generated_text"]
        if np.array_equal(got["generated_text"], right):
            return expected, 0
        text = case.function.text
        case = case._replace(function=text.function, inputs=text.read(inputs))
        return _tied(case, of_ids(case.function, case.inputs), None)
    if not {"sequences", "scores"} <= set(expected) & set(got):
        return expected, 0
    both = _padded(case.function, got, expected)
    if both[0].shape != both[1].shape or (both[0] == both[1]).all():
        return expected, 0
    if "max_new_tokens" in inputs and len(inputs) == 2:
        return _tied_tokens(case.function, inputs, got, expected)
    if "beams" in inputs and len(set(inputs) - _OF_BEAMS) == 1:  # the prompt
        return _tied_beams(case.function, inputs, got, expected)
    return expected, 0


def _tied_tokens(function, inputs, got, expected):
    """Greedy search: where two tokens are a tie, Keras goes on from the artifact's."""
    ties, limit = 0, int(inputs["max_new_tokens"])

    def from_prefix(tokens, length):
        given = {"forced_token_ids": tokens.astype("int32"), "max_new_tokens": length}
        return reference(function, {**inputs, **given})

    for _ in range(limit):
        both = _padded(function, got, expected)
        if both[0].shape != both[1].shape or (both[0] == both[1]).all():
            break
        theirs, mine = both[0][:, 0], both[1][:, 0]
        length = 1 + int(np.argmax((theirs != mine).any(axis=0)))
        theirs, mine = theirs[:, :length], mine[:, :length]
        rows = (theirs != mine).any(axis=1)
        sums = np.array(
            [from_prefix(x, length)["scores"][rows, 0] * length for x in (theirs, mine)]
        )
        tolerance = 2 * largest_difference("float32", np.abs(sums).max())
        if not np.abs(sums[0] - sums[1]).max() <= tolerance:
            break
        ties += int(rows.sum())
        expected = from_prefix(np.where(rows[:, None], theirs, mine), limit)
    return expected, ties


def _tied_beams(function, inputs, got, expected):
    """Beam search: the artifact's sequences, where Keras scores them as its own."""
    theirs, mine = _padded(function, got, expected)
    given = {name: x for name, x in inputs.items() if name not in _HOW_MANY}
    behind = np.cumsum(theirs == function.end_token_id, axis=-1) > 0
    behind = np.pad(behind, ((0, 0), (0, 0), (1, 0)))[..., :-1]
    forced = np.where(behind, -1, theirs).astype("int32")
    scores = [
        reference(function, {**given, "forced_token_ids": forced[:, rank]})["scores"]
        for rank in range(forced.shape[1])
    ]
    scores = np.concatenate(scores, axis=1)
    real = expected["scores"] > IMPOSSIBLE / 2
    size = np.max(np.abs(expected["scores"]), initial=0.0, where=real)
    apart = np.abs(scores - expected["scores"])[real]
    tied = apart.max(initial=0.0) <= largest_difference("float32", size)
    padded = (theirs[behind] == function.pad_token_id).all()
    # Or the best would count twice.
    several = all(
        len(np.unique(row[x], axis=0)) == x.sum()
        for row, x in zip(theirs, real, strict=True)
    )
    if not (tied and padded and several):
        return expected, 0
    ties = int(((theirs != mine).any(axis=-1) & real).sum())
    return {**expected, "sequences": theirs}, ties


def _padded(function, got, expected):
    """Both's sequences, as long as the longer ones."""
    mine, theirs = got["sequences"], expected["sequences"]
    length = max(mine.shape[-1], theirs.shape[-1])
    return [
        np.pad(
            x,
            ((0, 0), (0, 0), (0, length - x.shape[-1])),
            constant_values=function.pad_token_id,
        )
        for x in (mine, theirs)
    ]


def written(function, inputs, outputs):
    """What a function gives whose `reference` is `outputs`: text, where it does."""
    return function.text.write(inputs, outputs) if function.text else outputs


def trimmed(function, outputs):
    """The outputs, their sequences without the padding behind the longest one."""
    sequences = outputs["sequences"]
    real = (sequences != function.pad_token_id).any(axis=(0, 1))
    length = len(real) - np.argmax(real[::-1]) if real.any() else 0
    return {**outputs, "sequences": sequences[..., :length]}


def _both(got, expected, place, rows):
    """A sentence: where two arrays differ, and what each holds there."""
    row, *place = map(int, place)
    at = f"{rows[row]}" if rows else f"Row {row}"
    if place:
        at += f", place {place[0] if len(place) == 1 else place}"
    values = (x[(row, *place)] for x in (expected, got))
    right, wrong = (
        f"{x:.7g}" if x.dtype.kind == "f" else repr(x.tolist())
        for x in map(np.asarray, values)
    )
    return f"{at}: Keras gives {right}, the artifact {wrong}."


def check_shape(name, got, expected, where):
    """Raises `ExportError` unless an output has the shape of Keras's."""
    if got != expected:
        raise ExportError(
            f"{where}: {name} should have shape {expected}. Received: {got}."
        )


def _check_equal(name, got, expected, where, rows):
    """Raises `ExportError` unless all texts, integers or truths are Keras's."""
    differs = got != expected
    if differs.any():
        place = np.unravel_index(np.argmax(differs), expected.shape)
        raise ExportError(
            f"{where}: {name} differs from Keras's. {_both(got, expected, place, rows)}"
        )


def _check_tokens(function, got, expected, where, rows):
    """Raises `ExportError` unless all tokens are Keras's."""
    mine, theirs = got["sequences"], expected["sequences"]
    check_shape("sequences without length", mine.shape[:2], theirs.shape[:2], where)
    padded = _padded(function, got, expected)
    # Tokens of what does not exist, all of them banned, are any.
    real = np.maximum(got["scores"], expected["scores"]) > IMPOSSIBLE / 2
    differs = (padded[0] != padded[1]).any(axis=-1) & real
    if differs.any():
        gap = np.abs(got["scores"] - expected["scores"])[differs].max()
        place = np.unravel_index(np.argmax(differs), differs.shape)
        raise ExportError(
            f"{where}: {int(differs.sum())} of {differs.size} sequences differ from "
            f"Keras's; their scores are {gap:.2g} apart. {_both(*padded, place, rows)}"
        )
    check_shape("sequences", mine.shape, theirs.shape, where)
