"""Runs an ONNX file beside the Keras model."""

import keras
import numpy as np

from kzoo import ops
from kzoo.exporters.errors import ExportError
from kzoo.exporters.onnx_session import open_session
from kzoo.exporters.tolerances import bounds

BATCH_SIZES = (1, 2, 4)  # of the three verification runs
# The exponential overflows, or is 0.
LARGE = {"float32": 1e2, "float64": 1e3}


def draw_inputs(signature, limits):
    """Random inputs of three shapes: batch 1, longer, a larger batch.

    Args:
        signature: the `Signature`.
        limits: what the integers of each input stay below; 2 where it is `None`.

    Returns:
        list of dicts of arrays.
    """
    rng = np.random.default_rng(0)
    symbols = {}
    for shape in signature.shapes:
        for size in shape:
            if isinstance(size, str) and size not in symbols:
                others = len(symbols) - ("batch" in symbols)
                symbols[size] = BATCH_SIZES if size == "batch" else _sizes(others)
    examples = []
    for run in range(len(BATCH_SIZES)):
        example = {}
        for name, dtype, shape, limit in zip(
            signature.names, signature.dtypes, signature.shapes, limits
        ):
            sizes = [symbols[n][run] if isinstance(n, str) else n for n in shape]
            if dtype == "bool":
                array = rng.random(sizes) < 0.7
            elif dtype.startswith("int"):
                array = rng.integers(0, limit or 2, sizes)
            else:
                array = rng.standard_normal(sizes)
            example[name] = np.asarray(array, dtype)
        examples.append(example)
    return examples


def _sizes(i):
    """Those of the i-th free axis: 3 to 8, 9 to 14 of the seventh.

    No two axes are of one size in a run, so that outputs tell them apart, and of two
    among six each is the longer one in some run.
    """
    turn, i = divmod(i, 6)
    return tuple(6 * turn + n for n in (3 + i, 8 - i, 3 + (i + 3) % 6))


def draw_extremes(signature, limits, example):
    """Inputs that show where a file computes otherwise, and a model may refuse.

    Args:
        signature: the `Signature`.
        limits: as for `draw_inputs`; what has one stays as it is.
        example: dict of arrays that the model takes.

    Returns:
        list of pairs: what the inputs hold, and a dict of arrays. Negative integers,
        zeros among floats, large floats; what no input can hold is left out.
    """
    rng = np.random.default_rng(0)
    found = {}
    for name, dtype, limit in zip(signature.names, signature.dtypes, limits):
        shape = example[name].shape
        order = rng.permutation(example[name].size)
        changed = {}
        if dtype in LARGE:
            zeros, large = example[name].flatten(), example[name].flatten()
            zeros[order[::3]] = 0
            large[order[::4]] = LARGE[dtype]
            large[order[1::4]] = -LARGE[dtype]
            changed = {"zeros": zeros, "large numbers": large}
        elif dtype != "bool" and limit is None:
            integers = rng.integers(0, 8, order.size).astype(dtype)
            integers[order[::2]] = ~integers[order[::2]]
            changed = {"negative integers": integers}
        for kind, array in changed.items():
            found.setdefault(kind, dict(example))[name] = array.reshape(shape)
    return list(found.items())


def expected_outputs(signature, example):
    """The model's outputs by name, as numpy arrays."""
    if set(example) != set(signature.names):
        raise ExportError(
            f"Expected the inputs {signature.names}. Received: {sorted(example)}"
        )
    tensors = [
        keras.ops.convert_to_tensor(np.asarray(example[name]), dtype=dtype)
        for name, dtype in zip(signature.names, signature.dtypes)
    ]
    try:
        with ops.full_float32():
            outputs = signature.call(tensors)
    except Exception as error:  # the model's own; the shapes may be out of its range
        shapes = {name: np.shape(value) for name, value in example.items()}
        raise ExportError(
            f"The Keras model itself fails on verification inputs of the shapes "
            f"{shapes}: {error}\nFix the sizes that it needs in input_signature, or "
            "pass inputs=[...] that it accepts to tf2onnx.convert."
        ) from error
    return {
        name: np.asarray(keras.ops.convert_to_numpy(x)) for name, x in outputs.items()
    }


def compare_file(signature, path, inputs_list, expected, tolerance, extremes=()):
    """The largest difference of each output; see `compare`.

    Args:
        signature: the `Signature`.
        path: the ONNX file.
        inputs_list: dicts of arrays, one a run.
        expected: what the model gives for each.
        tolerance: allowed difference.
        extremes: of `draw_extremes`. What the model refuses is passed over, so is what
            onnxruntime refuses: nothing wrong comes of it unnoticed. The others have
            to be equal in the rows in which the model gives finite numbers alone.
    """
    session = open_session(path, prepacked=True)
    types = {
        "bool": "tensor(bool)",
        "float32": "tensor(float)",
        "float64": "tensor(double)",
    }

    def declared(values):
        return {value.name: value.type for value in values}

    def wanted(dtypes):
        return {name: types.get(d, f"tensor({d})") for name, d in dtypes.items()}

    for what, found, right in (
        (
            "inputs",
            declared(session.get_inputs()),
            wanted(dict(zip(signature.names, signature.dtypes))),
        ),
        (
            "outputs",
            declared(session.get_outputs()),
            wanted({name: x.dtype.name for name, x in expected[0].items()}),
        ),
    ):
        if found != right:
            raise ExportError(
                f"The {what} of {path} are not the model's. Expected: {right}. "
                f"Received: {found}"
            )
    differences = dict.fromkeys(expected[0], 0.0)
    for example, right in zip(inputs_list, expected):
        feed = _feed(signature, example)
        shapes = {name: x.shape for name, x in feed.items()}
        try:
            found = session.run(list(right), feed)
        except Exception as error:  # onnxruntime's errors share no base
            raise ExportError(
                f"onnxruntime fails on inputs of the shapes {shapes}: {error}\nWhere "
                "the model needs other sizes, fix them in input_signature."
            ) from error
        for (name, x), y in zip(right.items(), found):
            if x.shape != y.shape:
                raise ExportError(
                    f"Output '{name}' differs from the Keras model: on inputs of the "
                    f"shapes {shapes} its shape should be {x.shape}. Received: "
                    f"{y.shape}. Give the model's inputs fixed lengths, or leave out "
                    "layers that fold axes, such as TimeDistributed."
                )
            apart, (allowed, near) = _apart(x, y), _allowed(x, tolerance)
            if not (apart <= allowed).all():
                place = np.unravel_index(np.argmax(apart - allowed), x.shape)
                raise ExportError(
                    f"Output '{name}' differs from the Keras model by "
                    f"{apart[place]:.3g} on inputs of the shapes {shapes}; allowed: "
                    f"{allowed[place]:.3g}."
                )
            most = np.max(apart, initial=0.0, where=near)
            differences[name] = max(differences[name], float(most))
    for kind, example in extremes:
        _compare_extreme(signature, session, kind, example, tolerance)
    return differences


def _compare_extreme(signature, session, kind, example, tolerance):
    try:
        expected = expected_outputs(signature, example)
        found = session.run(list(expected), _feed(signature, example))
    except Exception:  # the model's own, or onnxruntime's
        return
    for (name, x), y in zip(expected.items(), found):
        what = "differs from the Keras model"
        if x.dtype.kind == "f" and x.shape == y.shape:
            # Runtimes differ in what NaN does to its neighbours.
            finite = np.isfinite(x).all(axis=tuple(range(1, x.ndim)))
            x, y = x[finite], y[finite]
        if kind == "large numbers":
            # Rounding grows with them, so that finite numbers are all one.
            what = "is not finite where that of the Keras model is"
            wrong = x.dtype.kind == "f" and not np.all(np.isfinite(y))
        else:
            wrong = x.shape != y.shape
            wrong = wrong or not (_apart(x, y) <= _allowed(x, tolerance)[0]).all()
        if wrong:
            raise ExportError(
                f"Output '{name}' {what} on inputs with {kind}. Pass inputs=[...] to "
                "tf2onnx.convert, which verifies with them, if the model never gets "
                "such ones."
            )


def _feed(signature, example):
    return {
        name: np.asarray(example[name], dtype)
        for name, dtype in zip(signature.names, signature.dtypes)
    }


def _allowed(x, tolerance):
    """The last two of `bounds`; integers and booleans may have no difference."""
    if x.dtype.kind != "f":
        return np.zeros(x.shape), True
    finite = np.where(np.isfinite(x), x.astype(np.float64), 0.0)
    return bounds("tf2onnx", finite, tolerance)[1:]


def _apart(x, y):
    """The difference of each number; infinite where one of the two is NaN."""
    with np.errstate(invalid="ignore"):  # infinity less infinity
        apart = np.abs(x.astype(np.float64) - y)
    if x.dtype.kind != "f":  # float64 has not all integers
        return np.where(x == y, 0.0, np.maximum(apart, 1.0))
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    return np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))
