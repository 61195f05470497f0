"""Forms in which data comes: texts, columns of tables, arrays, pipelines."""

import collections.abc

import keras
import numpy as np


def is_text(x):
    """Whether `x` is a list (or array) of strings, or of lists or tuples of them."""
    if isinstance(x, np.ndarray):
        return x.dtype.kind == "U" or (x.dtype == object and is_text(x.tolist()))
    if not isinstance(x, (list, tuple)) or not len(x):
        return False
    # An empty list may stand for a sentence without words; what is missing between
    # texts is named by the tokenizer.
    first = next((part for part in x if not _is_missing(part, empty=True)), None)
    if isinstance(first, (list, tuple)):
        first = next((part for part in first if not _is_missing(part)), None)
    return isinstance(first, str)


def as_list(x):
    """A column of texts or lists of them, as tables have it, as a list; else `x`.

    So is a tensor of TensorFlow's strings, and a column of Arrow's.
    """
    if hasattr(x, "numpy") and getattr(x, "dtype", None) == "string":
        return _decoded(x.to_list() if hasattr(x, "to_list") else x.numpy())
    if hasattr(x, "to_pylist") and not hasattr(x, "columns"):  # a column of Arrow's
        return x.to_pylist()
    if isinstance(x, np.ndarray) and x.dtype.kind in "ST":  # numpy's own strings
        return x.tolist() if x.dtype.kind == "T" else _decoded(x.tolist())
    if (
        isinstance(x, (str, collections.abc.Mapping))
        or not (hasattr(x, "__len__") and hasattr(x, "__getitem__"))
        or isinstance(x, keras.utils.PyDataset)
        or is_tf_data(x)
        or is_grain(x)
        or getattr(x, "ndim", 1) != 1  # a table's items are the names of its columns
    ):
        return x
    first = next((cell for cell in x if not _is_missing(cell)), None)
    cell = _cell(first)
    as_they_are = isinstance(x, (list, tuple, np.ndarray)) and cell is first
    if as_they_are or (len(x) and not is_text([cell])):
        return x
    return [_cell(each) for each in x]


def _is_missing(cell, empty=False):
    """Whether a cell of a table is missing, or with `empty` a list of nothing."""
    if isinstance(cell, (list, tuple)):
        return empty and not cell
    nan = isinstance(cell, float) and cell != cell
    return nan or cell is None or type(cell).__name__ == "NAType"  # pandas's


def _cell(cell):
    """A cell that holds several, such as parquet's, as a list; else as it is."""
    if isinstance(cell, np.ndarray) and cell.ndim:
        return cell.tolist()
    return cell.to_list() if hasattr(cell, "to_list") else cell


def _decoded(x):
    """Bytes, alone or in nested lists or arrays, as strings."""
    if not isinstance(x, bytes):
        return [_decoded(each) for each in x]
    try:
        return x.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"Texts must be UTF-8. Received: {x!r}: {error}.") from error


def column(x):
    """Targets beside texts, tensors as arrays and those of shape (N, 1) as (N,)."""
    if hasattr(x, "numpy") and getattr(x, "dtype", None) == "string":
        x = np.array(as_list(x), object)
    if keras.ops.is_tensor(x) and not hasattr(x, "to_tensor"):  # not a ragged one
        x = keras.ops.convert_to_numpy(x)
    return x[:, 0] if isinstance(x, np.ndarray) and x.shape[1:] == (1,) else x


def known_ints(x):
    """An int array, also of a dense tensor that has its numbers by now; else `None`."""
    if isinstance(x, np.ndarray):
        return x if x.dtype.kind in "iu" else None
    if not keras.ops.is_tensor(x) or hasattr(x, "to_tensor"):  # a ragged one
        return None
    if "int" not in keras.backend.standardize_dtype(x.dtype):
        return None
    try:
        return keras.ops.convert_to_numpy(x)
    except (NotImplementedError, RuntimeError, TypeError):
        # It is traced (TensorFlow, JAX, torch's vmap), or parts are on other hosts: no
        # numbers to look at here, and the model reads it as before.
        return None


def is_table_of_text(x):
    """Whether this is a table of pandas or polars with texts among its columns."""
    if not hasattr(x, "columns") or len(getattr(x, "shape", ())) != 2:
        return False
    return np.asarray(x).dtype.kind in "OSU"


def holds_objects(x):
    """Whether `x` is a list, a tuple, or an array of Python's objects."""
    listed = isinstance(x, (list, tuple))
    return listed or isinstance(x, np.ndarray) and x.dtype == object


def kinds(x):
    """How an error names a list, without its content: by the types at its beginning."""
    names = [type(x).__name__]
    while holds_objects(x) and len(x):
        x = x[0]
        names.append(type(x).__name__)
    return " of ".join(names)


def begins_with_text(element):
    """Whether an element of an iterator is a text, or begins with texts."""
    while isinstance(element, (list, tuple)) and element:
        element = element[0]
    if isinstance(element, np.ndarray):
        return element.dtype.kind in "USO"
    return isinstance(element, (str, bytes))


def number_of(x):
    """How many examples there are, of a list, an array, or a dict of arrays."""
    return len(next(iter(x.values()), ()) if isinstance(x, dict) else x)


def split(x, y, weights, share):
    """x, y and weights without the last `share`, and that share as a tuple.

    Args:
        x: a list, or a dict of arrays of a row an example.
        y: a list or an array, or `None`; so for `weights`.
        weights: what each example counts.
        share: in (0, 1).
    """
    size = number_of(x)
    cut = int(size * (1 - share)) if 0 < share < 1 else 0  # NaN is no share
    if not 0 < cut < size:
        raise ValueError(
            "validation_split must leave an example on both sides. Received: "
            f"validation_split={share} of {size} examples."
        )

    def part(column, rows):
        if isinstance(column, dict):
            return {name: values[rows] for name, values in column.items()}
        return None if column is None else column[rows]

    first, last = (
        [part(column, rows) for column in (x, y, weights)]
        for rows in (slice(cut), slice(cut, None))
    )
    return *first, tuple(last)


def columns_of(element):
    """The parts of a batched element of a pipeline, each as a list of examples."""

    def column(part):
        if isinstance(part, tuple):  # pairs of strings
            return list(zip(*map(column, part), strict=True))
        values = np.asarray(part)
        if values.dtype.kind == "f" and values.ndim == 2 and values.shape[1] > 1:
            return list(values)  # distributions, or vectors
        values = np.ravel(values).tolist()
        return [_decoded(v) if isinstance(v, bytes) else v for v in values]

    parts = element if isinstance(element, tuple) else (element,)
    return [column(part) for part in parts]


def is_tf_data(data):
    """Whether this is a `tf.data.Dataset`."""
    return hasattr(data, "element_spec")


def is_grain(data):
    """Whether this is one of grain's pipelines."""
    return type(data).__module__.startswith("grain")


def is_pair(data):
    """Whether this may be (x, y) or (x, y, weights)."""
    return isinstance(data, (tuple, list)) and len(data) in (2, 3)
