"""The user's own inputs, as batches that the functions of an artifact read."""

import dataclasses
import math
import warnings
from collections.abc import Iterable, Mapping

import numpy as np

from kzoo.exporters.errors import ExportError

_ROWS = 32  # of a batch
# Numbers that an output of a batch may hold, and those compared at a time.
_NUMBERS, _AT_ONCE = 2**24, 2**26


@dataclasses.dataclass(frozen=True)
class Batch:
    """Some rows of like lengths.

    Args:
        names: what errors call each row.
        columns: name of an input to int32 (B, T), or to texts (B,).
        new_tokens: how many `generate` adds.
        numbers: about how many an output holds.
    """

    names: tuple
    columns: dict
    new_tokens: int
    numbers: int

    def reads(self, function):
        """Whether a function reads these."""
        return _reads(function, self.columns)

    def inputs_of(self, function):
        """The inputs of a function that reads these."""
        if function.given:
            return function.given(self.columns)
        names = {a.name for a in function.arguments}
        inputs = {name: x for name, x in self.columns.items() if name in names}
        if "max_new_tokens" in names:
            inputs["max_new_tokens"] = self.new_tokens
        return inputs


def batches(task, inputs, functions, text, new_tokens):
    """The inputs in batches.

    Args:
        task: what reads them.
        inputs: see `kzoo.exporters.verify`.
        functions: those of the artifact.
        text: whether they take text.
        new_tokens: the most that `generate` adds.

    Returns:
        A list of `Batch`, and a list of sentences for the report.

    Raises:
        ValueError: an input that the task cannot read; it is named.
        ExportError: an input that no function of the artifact takes.
    """
    rows, cut = _rows(task, inputs, text)
    _check_read(rows, functions)
    rows = sorted(rows, key=lambda row: (row.kind, row.length))
    found = []
    while rows:
        most = max(1, min(_ROWS, _NUMBERS // _numbers(functions, rows[-1].length)))
        some = [row for row in rows[-most:] if row.kind == rows[-1].kind]
        del rows[-len(some) :]
        length = max(row.length for row in some)
        columns = {
            name: column(task, name, [row.columns[name] for row in some])
            for name in some[0].columns
        }
        found.append(
            Batch(
                tuple(row.name for row in some),
                columns,
                task.room(new_tokens, length) if hasattr(task, "room") else 0,
                len(some) * _numbers(functions, length),
            )
        )
    notes = ["Inputs longer than the model reads were cut as it cuts them."] * cut
    return found, notes


def together(batches):
    """The batches in lists that are compared one at a time, to bound the memory."""
    found, size = [[]], 0
    for batch in batches:
        if found[-1] and size + batch.numbers > _AT_ONCE:
            found.append([])
            size = 0
        found[-1].append(batch)
        size += batch.numbers
    return found


def texts_of(example):
    """The texts of an example of one or more, or `None` where it has ids."""
    parts = [example] if isinstance(example, str) else example
    some = isinstance(parts, (list, tuple)) and len(parts)
    return parts if some and all(isinstance(part, str) for part in parts) else None


def column(task, name, values):
    """What an input of a task is for some rows: texts, or ids padded on the right."""
    if isinstance(values[0], str):
        return np.array(values, object)
    pad = 0 if name == "segment_ids" else task.config.pad_token_id
    longest = max(map(len, values))
    rows = [[*ids, *[pad] * (longest - len(ids))] for ids in values]
    return np.array(rows, "int32")


@dataclasses.dataclass(frozen=True)
class _Row:
    """What a task reads as one row: ids by input, or texts by input."""

    name: str
    columns: dict
    length: int  # in tokens

    @property
    def kind(self):
        return tuple(self.columns)


def _rows(task, inputs, text):
    """The rows in the order of the inputs, and whether any text was cut."""
    if isinstance(inputs, str) or not isinstance(inputs, Iterable):
        raise ValueError(f"Expected a list of inputs. Received: {inputs!r}.")
    if not isinstance(inputs, Mapping):
        inputs = {f"input {i}": example for i, example in enumerate(inputs)}
    if not inputs:
        raise ValueError("Expected inputs, one at least. Received: none.")
    rows, cut = [], False
    for name, example in inputs.items():
        texts = texts_of(example)
        try:
            if text and not texts:
                raise ValueError(f"The artifact takes text. Received: {example!r}.")
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                made = task.export_rows(example)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{name}: {error}") from error
        cut = cut or any(issubclass(w.category, UserWarning) for w in caught)
        if texts:
            name = f"{name}, {_shortened(texts)}"
        length = max(len(ids) for row in made for ids in row.values())
        if text:
            names = ["text"] if len(texts) == 1 else ["first", "second"]
            made = [dict(zip(names, texts, strict=True))]
        rows += [_Row(name, columns, length) for columns in made]
    return rows, cut


def _check_read(rows, functions):
    """Names the first row that no function reads."""
    for row in rows:
        if not any(_reads(each, row.columns) for each in functions):
            takes = [f"{each.name} takes {_needed(each)}" for each in functions]
            raise ExportError(
                f"{row.name} gives {list(row.columns)}, which no function of the "
                f"artifact takes: {', '.join(takes)}. Give inputs of that kind."
            )


def _reads(function, names):
    """Whether a function reads inputs of these names."""
    return bool(function.given) or set(_needed(function)) <= set(names)


def _needed(function):
    """The names of the inputs that have no default."""
    return [each.name for each in function.arguments if each.default is None]


def _numbers(functions, length):
    """How many numbers the largest output has for a row of so many tokens."""
    return max(
        math.prod(
            axis if isinstance(axis, int) else 1 if axis == "batch" else length
            for axis in axes
        )
        for function in functions
        for axes in function.outputs.values()
    )


def _shortened(texts, length=60):
    text = ", ".join(map(repr, texts))
    return text if len(text) <= length else text[: length - 3] + "..."
