"""Operators on an `OnnxValue` give Keras's values and dtypes, or are refused."""

import itertools
import operator

import keras
import numpy as np
import onnxruntime
import pytest

from kzoo import ops
from kzoo.ops.onnx_file import write_model
from kzoo.ops.onnx_graph import DEFAULT_OPSET, MINIMUM_OPSET, OnnxGraph

ARITHMETIC = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}
COMPARISONS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
LOGIC = {"&": operator.and_, "|": operator.or_}
BINARY = {**ARITHMETIC, **COMPARISONS, **LOGIC}
UNARY = {"-x": operator.neg, "~x": operator.invert}

# Two tensors of a kind: signs differ, and so do remainders; one pair is equal.
TENSORS = {
    "int": np.array([[-7, 7, -7, 7, -6, 6, 0, 5], [3, 3, -3, -3, 3, -4, 2, 5]]),
    "float": np.array([[-7.5, 7.5, 0.3, 2, 1e-3], [2.5, -2.5, 7, 2, 1e3]]),
    "bool": np.array([[True, True, False, False], [True, False, True, False]]),
}
DTYPES = {"int": "int32", "float": "float32", "bool": "bool"}
NUMBERS = {"3": 3, "-3": -3, "0.5": 0.5, "True": True}

# What works, by the kinds of the tensors and numbers; everything else is refused.
WHOLE, REAL = ["int", "3", "-3"], ["float", "3", "-3", "0.5"]
ACCEPTED = {
    **dict.fromkeys(["+", "-", "*", "<", "<=", ">", ">=", "==", "!="], [WHOLE, REAL]),
    **dict.fromkeys(["//", "%"], [WHOLE]),
    "/": [REAL],
    "**": [WHOLE, REAL],
    **dict.fromkeys(["&", "|"], [["bool", "True"]]),
}
ACCEPTED["=="] = ACCEPTED["!="] = [WHOLE, REAL, ["bool", "True"]]


def pairs():
    """Every pair of operands of which one is a tensor."""
    for left, right in itertools.product([*TENSORS, *NUMBERS], repeat=2):
        if left in TENSORS or right in TENSORS:
            yield left, right


def is_accepted(symbol, left, right):
    if symbol == "**" and "int" in (left, right):
        # Integers have no negative powers, neither here nor in Keras.
        return (left, right) in [("int", "3"), ("3", "int"), ("-3", "int")]
    return any({left, right} <= set(kinds) for kinds in ACCEPTED[symbol])


def arrays(symbol):
    """Name to array; exponents are not negative and bases of real ones positive."""
    result = {
        f"{kind}_{side}": both[i].astype(DTYPES[kind])
        for kind, both in TENSORS.items()
        for i, side in enumerate(("left", "right"))
    }
    if symbol == "**":
        for name in ("int_right", "int_left", "float_left"):
            result[name] = np.abs(result[name])
    return result


def operand(values, kind, side):
    return values[f"{kind}_{side}"] if kind in TENSORS else NUMBERS[kind]


def onnx_values(graph):
    return {
        f"{kind}_{side}": graph.input(f"{kind}_{side}", (None,), dtype, axes=[kind])
        for kind, dtype in DTYPES.items()
        for side in ("left", "right")
    }


def run(build, arrays, path, opset=DEFAULT_OPSET):
    """The arrays that onnxruntime computes for `build`'s dict of values."""
    graph = OnnxGraph(opset)
    with graph.building():
        built = build(onnx_values(graph))
        names = [f"out_{i}" for i in range(len(built))]
        for name, value in zip(names, built.values(), strict=True):
            graph.output(value, name, axes=value.shape)
        dtypes = [value.dtype for value in built.values()]
    write_model(graph, path, metadata={})
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # a warning for each input that is not used
    session = onnxruntime.InferenceSession(path, options)
    feed = {
        name: a.astype("int64") if a.dtype == "int32" else a
        for name, a in arrays.items()
    }
    results = session.run(names, feed)
    assert [r.dtype.name for r in results] == dtypes
    return dict(zip(built, results, strict=True))


def assert_equal(got, expected):
    expected = np.array(keras.ops.convert_to_numpy(expected))
    assert got.dtype == (expected.dtype if expected.dtype != "int32" else "int64")
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize("opset", [MINIMUM_OPSET, DEFAULT_OPSET])
@pytest.mark.parametrize("symbol", BINARY)
def test_an_operator_gives_the_value_and_dtype_of_keras(symbol, opset, tmp_path):
    inputs = arrays(symbol)
    tensors = {name: keras.ops.convert_to_tensor(x) for name, x in inputs.items()}
    cases = [pair for pair in pairs() if is_accepted(symbol, *pair)]

    def results(values):
        return {
            (left, right): BINARY[symbol](
                operand(values, left, "left"), operand(values, right, "right")
            )
            for left, right in cases
        }

    got = run(results, inputs, tmp_path / "model.onnx", opset)
    for case, expected in results(tensors).items():
        assert_equal(got[case], expected)


@pytest.mark.parametrize("symbol", BINARY)
def test_an_operator_refuses_what_backends_do_not_agree_on(symbol):
    with OnnxGraph().building() as graph:
        values = onnx_values(graph)
        for left, right in pairs():
            if is_accepted(symbol, left, right):
                continue
            if symbol == "**" and {left, right} <= set(WHOLE):
                continue  # Keras fails on the values, not on the dtypes
            with pytest.raises(TypeError, match="ops.cast"):
                BINARY[symbol](
                    operand(values, left, "left"), operand(values, right, "right")
                )


def test_unary_operators_give_the_value_and_dtype_of_keras(tmp_path):
    def results(values):
        return {
            "-int": -values["int_left"],
            "-float": -values["float_left"],
            "~bool": ~values["bool_left"],
        }

    inputs = arrays("-x")
    got = run(results, inputs, tmp_path / "model.onnx")
    tensors = {name: keras.ops.convert_to_tensor(x) for name, x in inputs.items()}
    for case, expected in results(tensors).items():
        assert_equal(got[case], expected)
    with OnnxGraph().building() as graph:
        values = onnx_values(graph)
        for refused in [
            lambda: -values["bool_left"],
            lambda: ~values["int_left"],
            lambda: ~values["float_left"],
        ]:
            with pytest.raises(TypeError, match="ops.cast"):
                refused()


@pytest.mark.parametrize("symbol", {**ARITHMETIC, **COMPARISONS})
def test_numpy_arrays_and_scalars_are_operands_on_either_side(symbol, tmp_path):
    """As tensors of the value's dtype; an array does not become one of values."""
    function, inputs = BINARY[symbol], arrays(symbol)
    kind = "int" if symbol in ("//", "%") else "float"
    name, dtype = f"{kind}_right", DTYPES[kind]
    array = np.array([2, 3, -2, 5, 4, 1, 7, 2])[: len(inputs[name])].astype(
        {"int": "int64", "float": "float64"}[kind]
    )
    scalar = array.dtype.type(2)

    def results(values, array, scalar):
        value = values[name]
        return {
            "value array": function(value, array),
            "value scalar": function(value, scalar),
            "array value": function(array, value),
            "scalar value": function(scalar, value),
        }

    got = run(lambda values: results(values, array, scalar), inputs, tmp_path / "model")
    tensors = {n: keras.ops.convert_to_tensor(x) for n, x in inputs.items()}
    expected = results(tensors, keras.ops.convert_to_tensor(array, dtype), int(scalar))
    for case, value in expected.items():
        assert_equal(got[case], value)


def test_numbers_that_would_be_rounded_are_refused_in_ops_too():
    with OnnxGraph().building() as graph:
        value = onnx_values(graph)["int_left"]
        for function in (ops.equal, ops.not_equal, ops.minimum, ops.maximum):
            with pytest.raises(TypeError, match="0.5.*ops.cast"):
                function(value, 0.5)
        with pytest.raises(TypeError, match="0.5.*ops.cast"):
            ops.where(ops.equal(value, 1), value, 0.5)
        with pytest.raises(TypeError, match="ops.cast"):
            value * np.array([0.5])


@pytest.mark.parametrize("opset", [MINIMUM_OPSET, DEFAULT_OPSET])
@pytest.mark.parametrize("count", [0, 1, 4])
def test_any_and_all_are_those_of_numpy_also_of_nothing(count, opset, tmp_path):
    inputs = {name: x[:count] for name, x in arrays("&").items()}

    def build(values):
        x = ops.expand_dims(values["bool_left"], 0)
        return {
            (name, axis): getattr(ops, name)(x, axis=axis)
            for name in ("any", "all")
            for axis in (1, None)
        }

    found = run(build, inputs, tmp_path / "model.onnx", opset)
    x = inputs["bool_left"][None]
    for (name, axis), value in found.items():
        np.testing.assert_array_equal(value, getattr(np, name)(x, axis=axis))


def test_the_extremum_of_two_ints_is_an_int():
    assert (ops.minimum(3, 5), ops.maximum(3, 5), ops.maximum(5, 3)) == (3, 5, 5)
