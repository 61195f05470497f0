"""The inputs of `kzoo verify`: a file of texts, of pairs, or of token ids."""

import json
import zipfile
import zlib
from pathlib import Path

import numpy as np

from kzoo.cli.console import note
from kzoo.cli.texts import read_texts
from kzoo.data import DataError, load_pairs
from kzoo.data.sources import decoded


def read(path, task):
    """The examples in a file, for `kzoo.exporters.verify`.

    Args:
        path: of token ids where it ends in `.npz`, `.json` or `.jsonl`; of pairs, with
            a tab between them, where it ends in `.tsv` or the task reads nothing else;
            else a text a line. All but `.npz` may be gzip.
        task: what is to read them.

    Returns:
        dict from what an error calls an example, such as "a.txt, line 3", to it.

    Raises:
        DataError: what stands there cannot be right; the line is named.
    """
    path = Path(path)
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    if suffix == ".npz":
        return _arrays(path)
    if suffix in (".json", ".jsonl"):
        return _json(path, suffix == ".jsonl")
    kinds = getattr(task, "texts_per_example", (1, 2) if task.encoder else (1,))
    if kinds == (2,) or (suffix == ".tsv" and 2 in kinds):
        return _numbered(path, load_pairs(path))
    lines = _numbered(path, read_texts(None, path))
    texts = {name: text for name, text in lines.items() if text.strip()}
    if len(texts) < len(lines):
        note(f"{path}: {len(lines) - len(texts)} empty lines are no input.")
    return texts


def _numbered(path, examples, what="line"):
    return {f"{path}, {what} {i}": example for i, example in enumerate(examples, 1)}


def _json(path, by_lines):
    """A JSON list of examples, or one a line."""
    text = decoded(path.read_bytes(), path)
    if by_lines:
        examples = {}
        for name, line in _numbered(path, text.split("\n")).items():
            if line.strip():
                examples[name] = _parsed(line, name)
    else:
        examples = _parsed(text, path)
        if not isinstance(examples, list):
            raise DataError(
                f"{path}: expected a list of examples. Received: "
                f"{type(examples).__name__}."
            )
        examples = _numbered(path, examples, "example")
    if not examples:
        raise DataError(f"{path} is empty.")
    return examples


def _parsed(text, where):
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{where} is not JSON: {error.msg}, line {error.lineno} column "
            f"{error.colno}."
        ) from error
    except ValueError:  # an integer of more digits than Python converts, 4,300
        raise DataError(f"{where} holds a number of too many digits.") from None
    except RecursionError:
        raise DataError(f"{where} is nested too deeply to be examples.") from None


def _arrays(path):
    """The rows of the arrays in an `.npz` file, named as the inputs are."""
    with path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            raise DataError(f"{path} is no .npz file of numpy.")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: np.asarray(file[name]) for name in file.files}
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} is no .npz file of numpy: {error}.") from error
    sizes = {name: array.shape for name, array in arrays.items()}
    if (
        not arrays
        or any(len(shape) != 2 for shape in sizes.values())
        or len({shape[0] for shape in sizes.values()}) > 1
    ):
        raise DataError(
            f"{path}: expected arrays of ids (rows, length), named as the model's "
            f"inputs and with the same rows. Received: {sizes}."
        )
    rows = [dict(zip(arrays, row)) for row in zip(*arrays.values())]
    return _numbered(path, rows, "row")
