"""Any Keras model as ONNX through tf2onnx, right where Keras's own export is not."""

import errno
from pathlib import Path

import keras
import numpy as np
import onnx
import onnxruntime
import pytest
from keras import layers, ops

from kzoo.exporters import export, verify
from kzoo.exporters import tf2onnx as road
from kzoo.exporters.errors import ExportError
from kzoo.exporters.tf2onnx import freeze, handlers
from tests.harness import perturb

pytestmark = [
    pytest.mark.tensorflow,
    # tf2onnx and TensorFlow's freezing, not kzoo.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class Apply(layers.Layer):
    """A user's layer, not written over kzoo.ops."""

    def __init__(self, function, **kwargs):
        super().__init__(**kwargs)
        self.function = function

    def call(self, x):
        return self.function(x)


def model_of(function, shape=(None, 6), dtype="float32"):
    x = keras.Input(shape, dtype=dtype, name="x")
    policy = "float64" if dtype == "float64" else None  # else it casts to float32
    return keras.Model(x, Apply(function, name="probe", dtype=policy)(x))


def exported(model, tmp_path, **kwargs):
    path = tmp_path / "model.onnx"
    differences = road.convert(model, path, **kwargs)
    assert max(differences.values()) <= 1e-5
    return onnx.load(path)


def axes_of(values):
    return {
        v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in values
    }


def dtypes_of(values):
    code = onnx.helper.tensor_dtype_to_np_dtype
    return {v.name: code(v.type.tensor_type.elem_type).name for v in values}


def stored_bytes(graph):
    total = sum(onnx.numpy_helper.to_array(t).nbytes for t in graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                total += stored_bytes(attribute.g)
            if attribute.HasField("t"):
                total += onnx.numpy_helper.to_array(attribute.t).nbytes
    return total


# What Keras's own export writes and no runtime loads.


def test_exact_gelu_is_erf(tmp_path):
    model = model_of(lambda x: ops.gelu(x, approximate=False))
    proto = exported(model, tmp_path)
    assert "Erf" in {node.op_type for node in proto.graph.node}
    x = np.array([[[-8.0, -3.0, -1e-3, 0.0, 3.0, 8.0]]], np.float32)
    road.compare(model, tmp_path / "model.onnx", [{"x": x}], tolerance=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("function", [ops.argmax, ops.argmin], ids=["argmax", "argmin"])
def test_argmax_of_floats_tells_the_zeros_apart(function, dtype, tmp_path):
    model = model_of(lambda x: function(x, -1), shape=(3,), dtype=dtype)
    rows = [[-0.0, 0.0, -1.0], [0.0, -0.0, 1.0], [1.0, 2.0, 2.0], [-1e-9, -0.0, 0.0]]
    x = {"x": np.array(rows, dtype)}
    exported(model, tmp_path, inputs=[x])
    road.compare(model, tmp_path / "model.onnx", [x])


def test_argmax_over_everything_is_a_scalar(tmp_path):
    proto = exported(model_of(ops.argmax), tmp_path)
    assert axes_of(proto.graph.output) == {"probe": []}


UPDATES = {
    "last step": lambda x: ops.slice_update(
        x, (0, ops.shape(x)[1] - 1, 2), ops.ones((1, 1, 2))
    ),
    "whole batch": lambda x: ops.slice_update(x, (0, 1, 0), 2 * x[:, :2]),
    "start is clamped": lambda x: ops.slice_update(x, (9, -4, 5), ops.ones((1, 2, 3))),
    "everything": lambda x: ops.slice_update(x, (0, 0, 0), -x),
    "integers": lambda x: ops.slice_update(
        ops.cast(x, "int32"), (0, 1, 1), ops.ones((1, 1, 1), "int32")
    ),
}


@pytest.mark.parametrize("function", UPDATES.values(), ids=UPDATES.keys())
def test_slice_update_is_exact(function, tmp_path):
    road.convert(model_of(function), tmp_path / "model.onnx", tolerance=0.0)


def test_a_captured_constant_is_no_input(tmp_path):
    scale = ops.convert_to_tensor(np.arange(6, dtype="float32"))
    proto = exported(model_of(lambda x: x * scale), tmp_path)
    assert axes_of(proto.graph.input) == {"x": ["batch", "sequence", 6]}


def test_a_constant_captured_in_a_loop_is_no_input(tmp_path):
    scale = ops.convert_to_tensor(np.arange(6, dtype="float32"))

    def function(x):
        def body(i, y):
            return i + 1, y * scale

        return ops.while_loop(lambda i, y: i < 3, body, (0, x))[1]

    proto = exported(model_of(function), tmp_path)
    assert [value.name for value in proto.graph.input] == ["x"]


def causal_attention(x):
    x = x[:, :, None]
    return ops.dot_product_attention(x, x, x, is_causal=True)


OPERATIONS = {
    "cumsum": lambda x: ops.cumsum(x, axis=1),
    "top_k": lambda x: ops.top_k(x, 3),
    "einsum": lambda x: ops.einsum("btd,bsd->bts", x, x),
    "layer_normalization": lambda x: ops.layer_normalization(
        x, ops.arange(6, dtype="float32"), ops.ones((6,))
    ),
    "rms_normalization": lambda x: ops.rms_normalization(x, ops.ones((6,))),
    "erf": ops.erf,
    "sort": ops.sort,
    "log_softmax": ops.log_softmax,
    "causal attention": causal_attention,
}


@pytest.mark.parametrize("function", OPERATIONS.values(), ids=OPERATIONS.keys())
def test_operation_equals_keras(function, tmp_path):
    exported(model_of(function), tmp_path)


def test_multi_head_attention_of_a_subclass(tmp_path):
    class Block(keras.Model):
        def __init__(self):
            super().__init__()
            self.norm = layers.LayerNormalization()
            self.attention = layers.MultiHeadAttention(2, 4)
            self.feed = layers.Dense(8, activation="gelu")

        def call(self, inputs):
            x = self.norm(inputs["x"])
            mask = inputs["mask"][:, None]
            x = self.attention(x, x, attention_mask=mask, use_causal_mask=True)
            return {"hidden": self.feed(x), "mask_sum": ops.sum(inputs["mask"], -1)}

    model = Block()
    model({"x": np.zeros((2, 4, 8), "float32"), "mask": np.ones((2, 4), "int64")})
    signature = {
        "x": keras.InputSpec(shape=(None, None, 8), dtype="float32"),
        "mask": keras.InputSpec(shape=(None, None), dtype="int64"),
    }
    graph = exported(model, tmp_path, input_signature=signature).graph
    assert axes_of(graph.input) == {
        "x": ["batch", "sequence", 8],
        "mask": ["batch", "sequence"],
    }
    assert dtypes_of(graph.input) == {"x": "float32", "mask": "int64"}
    assert axes_of(graph.output) == {
        "hidden": ["batch", "sequence", 8],
        "mask_sum": ["batch"],
    }


def test_a_model_that_has_no_graph_of_open_sizes_is_told_so(tmp_path):
    pictures = keras.Input((None, None, 3))
    larger = layers.UpSampling2D(interpolation="bilinear")(pictures)
    model = keras.Model(pictures, larger)
    with pytest.raises(ExportError, match="cannot trace the model.*give keras.Input a"):
        exported(model, tmp_path)
    assert not list(tmp_path.iterdir())


def language_model():
    ids = keras.Input((None,), dtype="int32", name="token_ids")
    embedding = layers.Embedding(50, 32)
    x = layers.Dense(32, activation="relu")(embedding(ids))
    logits = Apply(lambda h: ops.matmul(h, ops.transpose(embedding.embeddings)))(x)
    return keras.Model({"token_ids": ids}, {"logits": logits})


def test_tied_table_is_stored_once_and_random_ids_stay_in_it(tmp_path):
    model = language_model()
    graph = exported(model, tmp_path).graph
    assert dtypes_of(graph.input) == {"token_ids": "int32"}
    assert axes_of(graph.output) == {"logits": ["batch", "sequence", 50]}
    weights = sum(w.numpy().nbytes for w in model.weights)
    assert stored_bytes(graph) <= weights + 512
    ids = np.concatenate([x["token_ids"].ravel() for x in road.random_inputs(model)])
    assert ids.min() >= 0 and 40 < ids.max() < 50


def test_attention_keeps_its_weights_once(tmp_path):
    x = keras.Input((None, 32), name="x")
    model = keras.Model(x, layers.MultiHeadAttention(4, 16)(x, x))
    graph = exported(model, tmp_path).graph
    assert "Einsum" in {node.op_type for node in graph.node}
    assert stored_bytes(graph) <= sum(w.numpy().nbytes for w in model.weights) + 512


def test_an_optimizer_that_fails_is_left_out(tmp_path, monkeypatch):
    from tf2onnx.optimizer import IdentityOptimizer

    def fail(self, graph, iteration):
        raise KeyError("a fault of the optimizer")

    monkeypatch.setattr(IdentityOptimizer, "optimize", fail)
    exported(model_of(ops.tanh), tmp_path)


def test_weights_of_a_loop_and_outside_are_stored_once(tmp_path):
    x = keras.Input((16,), name="x")
    dense = layers.Dense(16)
    hidden = dense(x)

    def loop(y):
        def body(i, y):
            return i + 1, ops.tanh(dense(y))

        return ops.while_loop(lambda i, y: i < 3, body, (0, y))[1]

    model = keras.Model(x, Apply(loop)(hidden))
    graph = exported(model, tmp_path).graph
    assert stored_bytes(graph) <= sum(w.numpy().nbytes for w in model.weights) + 512


RECURRENT = {
    "gru": lambda: [layers.GRU(3)],
    "simple": lambda: [layers.SimpleRNN(3, return_sequences=True)],
    "both ways": lambda: [layers.Bidirectional(layers.GRU(3, return_sequences=True))],
    "cells": lambda: [layers.RNN([layers.LSTMCell(4), layers.GRUCell(3)])],
    "masked lstm": lambda: [layers.Masking(), layers.LSTM(3)],
    "masked gru": lambda: [layers.Masking(), layers.GRU(3, reset_after=False)],
}


@pytest.mark.parametrize("steps", [None, 5], ids=["any length", "five steps"])
@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers(name, steps, tmp_path):
    x = keras.Input((steps, 6), name="x")
    exported(keras.Model(x, keras.Sequential(RECURRENT[name]())(x)), tmp_path)


# What tf2onnx writes and every runtime computes otherwise.


def file_gives(function, x, wanted, tmp_path, **kwargs):
    """Exports `function` and checks what the file gives for `x`, not Keras."""
    import onnxruntime as ort

    model = model_of(function, shape=x.shape[1:], dtype=x.dtype.name)
    exported(model, tmp_path, **kwargs)
    session = ort.InferenceSession(tmp_path / "model.onnx")
    found = session.run(None, {"x": x})[0]
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


OPSETS = pytest.mark.parametrize("opset", [13, 18])
INTEGERS = pytest.mark.parametrize(("dtype", "opset"), [("int32", 18), ("int64", 13)])
FLOATS = pytest.mark.parametrize(("dtype", "opset"), [("float32", 18), ("float64", 13)])
QUOTIENTS = {
    4: ([-2, -2, -1, -1, 0, 0, 1, 1, 2], [1, 0, 1, 3, 0, 3, 0, 3, 0]),
    -4: ([1, 2, 0, 0, 0, -1, -1, -2, -2], [-3, 0, -3, -1, 0, -1, 0, -1, 0]),
}


@INTEGERS
@pytest.mark.parametrize("divisor", QUOTIENTS)
def test_integers_are_divided_downwards(divisor, dtype, opset, tmp_path):
    quotient, rest = QUOTIENTS[divisor]
    x = np.array([[-7, -8, -3, -1, 0, 3, 4, 7, 8]], dtype)
    wanted = np.array([quotient, rest], dtype)[:, None]
    file_gives(
        lambda x: ops.stack([x // divisor, x % divisor]),
        x,
        wanted,
        tmp_path,
        opset=opset,
    )


@INTEGERS
@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (lambda x: x > 2**24, [False, True, True, False]),
        (lambda x: x < 2**24 + 1, [True, False, False, True]),
        (lambda x: ops.sort(x, -1), [-(2**31), 2**24, 2**24 + 1, 2**24 + 3]),
        (lambda x: ops.argsort(x, -1), [3, 0, 1, 2]),
        (lambda x: ops.top_k(x, 3)[0], [2**24 + 3, 2**24 + 1, 2**24]),
        (lambda x: ops.top_k(x, 3)[1], [2, 1, 0]),
    ],
    ids=["greater", "less", "sort", "argsort", "values", "places"],
)
def test_large_integers_are_compared_and_ranked(
    function, wanted, dtype, opset, tmp_path
):
    x = np.array([[2**24, 2**24 + 1, 2**24 + 3, -(2**31)]], dtype)
    kind = np.asarray(function(ops.convert_to_tensor(x))).dtype
    wanted = np.array([wanted], kind)
    file_gives(function, x, wanted, tmp_path, opset=opset)


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize(
    ("function", "shape", "wanted"),
    [
        (lambda x: ops.sum(x, -1), (1, 2), [2**53 + 1]),
        (lambda x: ops.sum(x, -1, keepdims=True), (1, 2), [[2**53 + 1]]),
        (lambda x: ops.sum(x), (2, 1), 2**53 + 1),
        (lambda x: ops.sum(x, (1, 2)), (1, 1, 2), [2**53 + 1]),
        (lambda x: ops.sum(x, 0), (0, 3), [0, 0, 0]),
        (lambda x: ops.prod(x + 3, -1), (1, 2), [2**55 + 12]),
        (lambda x: ops.prod(x + 3, (1, 2)), (1, 2, 1), [2**55 + 12]),
    ],
)
def test_integers_are_added_and_multiplied_exactly(
    function, shape, wanted, opset, tmp_path
):
    x = np.array([2**53, 1][: int(np.prod(shape))], "int64").reshape(shape)
    file_gives(function, x, np.array(wanted, "int64"), tmp_path, opset=opset)


@pytest.mark.parametrize("name", ["sum", "prod"])
def test_integers_beyond_the_largest_wrap_around(name, tmp_path):
    x = np.array([[2**31 - 1, 2, 3, 1, 7]], "int32")
    function, wanted = getattr(ops, name), getattr(x, name)(-1, "int32")
    assert abs(wanted[0]) < 2**31 - 1
    file_gives(lambda x: function(x, -1), x, wanted, tmp_path)


def test_a_product_of_integers_along_a_free_length_is_refused(tmp_path):
    model = model_of(lambda x: ops.prod(x, 1), dtype="int32")
    refused("Prod: node", model, tmp_path)


def test_a_cast_before_a_cast_still_rounds(tmp_path):
    def function(x):
        return ops.cast(ops.cast(x, "float32"), "int64") % 1000

    x = np.array([[1_700_000_000_123]])
    wanted = x.astype("float32").astype("int64") % 1000
    assert wanted != 123
    file_gives(function, x, wanted, tmp_path)


@pytest.mark.parametrize(
    "narrow", ["int8", "uint8", "int16", "uint16", "uint32", "uint64"]
)
def test_narrow_and_unsigned_integers_are_compared_and_ranked(narrow, tmp_path):
    def function(x):
        x = ops.cast(x, narrow)
        return ops.cast(x > 3, "int64") * 1000 + ops.cast(ops.top_k(x, 3)[0], "int64")

    largest = -1 if narrow == "uint64" else np.iinfo(narrow).max  # -1 wraps around
    x = np.array([[5, largest, 2]], "int64")
    wanted = np.array([[1000 + largest, 1005, 2]])
    file_gives(function, x, wanted, tmp_path)


@pytest.mark.parametrize(
    ("function", "wanted"),
    [(ops.argsort, [1, 0, 2]), (lambda x: ops.top_k(x, 3)[1], [2, 0, 1])],
    ids=["argsort", "top_k"],
)
def test_float64_is_ranked_as_it_is(function, wanted, tmp_path):
    x = 1 + np.array([[2e-11, 1e-11, 3e-11]])
    file_gives(function, x, np.array([wanted], "int32"), tmp_path)


@pytest.mark.parametrize("divisor", [3, -3])
@INTEGERS
def test_the_largest_integers_are_divided_downwards(dtype, opset, divisor, tmp_path):
    limits = np.iinfo(dtype)
    numbers = [limits.min, limits.min + 1, limits.max - 1, limits.max]
    wanted = [[n // divisor for n in numbers], [n % divisor for n in numbers]]
    file_gives(
        lambda x: ops.stack([x // divisor, x % divisor]),
        np.array([numbers], dtype),
        np.array(wanted, dtype)[:, None],
        tmp_path,
        opset=opset,
    )


@pytest.mark.parametrize("narrow", ["int8", "int16", "uint8", "uint16", "uint32"])
@OPSETS
def test_narrow_integers_are_divided_and_chosen(narrow, opset, tmp_path):
    def function(x):
        x, three = ops.cast(x, narrow), ops.cast(3, narrow)
        parts = [x // three, x % three, ops.where(x > three, x, three)]
        return ops.cast(ops.stack(parts), "int32")

    numbers = [0, 1, 4, 100] if narrow[0] == "u" else [-100, -4, -1, 4]
    parts = (
        [n // 3 for n in numbers],
        [n % 3 for n in numbers],
        np.maximum(numbers, 3),
    )
    wanted = np.array(parts, np.int32)[:, None]
    # The default inputs have negative integers, which no unsigned one is.
    x = np.array([numbers], np.int32)
    file_gives(function, x, wanted, tmp_path, opset=opset, inputs=[{"x": x}])


@FLOATS
@pytest.mark.parametrize("divisor", [0.1, -0.1, 4.0, -4.0, np.inf, -np.inf])
def test_the_remainder_of_floats_is_exact(divisor, dtype, opset, tmp_path):
    x = np.array([[-7.5, -1.0, -0.5, 0.0, 0.5, 1.0, 8.0, 1e6]], dtype)
    divisor = np.array(divisor, dtype)
    wanted = np.mod(x, divisor)
    file_gives(lambda x: ops.mod(x, divisor), x, wanted, tmp_path, opset=opset)


@INTEGERS
@pytest.mark.parametrize(
    ("kind", "axis"),
    [("float32", -1), ("float32", 0), ("float32", 1)]
    + [("float64", -1), ("int32", 0), ("bool", 1)],
)
def test_one_hot_of_no_class_is_zeros(kind, axis, dtype, opset, tmp_path):
    ids = np.array([[-1, 0, 3], [5, 2, -3]], dtype)
    wanted = np.zeros((2, 3, 3), kind)
    wanted[0, 1, 0] = wanted[1, 1, 2] = 1
    wanted = np.moveaxis(wanted, -1, axis)
    file_gives(
        lambda x: ops.one_hot(x, 3, axis=axis, dtype=kind),
        ids,
        wanted,
        tmp_path,
        opset=opset,
    )


def test_one_hot_of_a_vector_and_of_a_number(tmp_path):
    def function(x):
        return ops.one_hot(x, 3) + 2 * ops.one_hot(ops.max(x), 3)

    wanted = np.array([[0, 2, 0], [0, 3, 0]], np.float32)
    file_gives(function, np.array([-1, 1], np.int32), wanted, tmp_path)


@OPSETS
@pytest.mark.parametrize(
    ("ids", "wanted"),
    [([-1, 0, 2, -3, 2], [1, 0, 6]), ([-1, -2], [0, 0, 0])],
    ids=["some", "all"],
)
def test_nothing_is_added_for_a_negative_segment(ids, wanted, opset, tmp_path):
    def function(x):
        rows = ops.arange(ops.shape(x)[0], dtype="float32")[:, None] * ops.ones((2,))
        return ops.segment_sum(rows, x, num_segments=3)

    wanted = np.array(wanted, np.float32)[:, None] * np.ones(2, np.float32)
    x = np.array(ids, np.int32)
    file_gives(function, x, wanted, tmp_path, opset=opset)


CHOICES = {
    "guarded reciprocal": (
        lambda x: ops.where(x == 0, 0.0, 1 / x),
        [-2.0, 0.0, 4.0],
        [-0.5, 0.0, 0.25],
    ),
    "guarded exponential": (
        lambda x: ops.where(x > 20, x, ops.log(1 + ops.exp(x))),
        [100.0, 1000.0, -1000.0],
        [100.0, 1000.0, 0.0],
    ),
    "absolute": (
        lambda x: ops.where(x > 0, x, -x),
        [np.inf, -np.inf, -1.0],
        [np.inf, np.inf, 1.0],
    ),
    "no number": (lambda x: ops.where(x > 0, x, 0.0), [np.nan, 1.0], [0.0, 1.0]),
}


@FLOATS
@pytest.mark.parametrize(("function", "x", "wanted"), CHOICES.values(), ids=CHOICES)
def test_where_takes_one_branch_alone(function, x, wanted, dtype, opset, tmp_path):
    x, wanted = np.array([x], dtype), np.array([wanted], dtype)
    file_gives(function, x, wanted, tmp_path, opset=opset)


@FLOATS
def test_nan_to_num_is_finite(dtype, opset, tmp_path):
    x = np.array([[np.inf, -np.inf, np.nan, 1.0]], dtype)
    largest = np.finfo(dtype).max
    wanted = np.array([[largest, -largest, 0, 1]], dtype)
    file_gives(ops.nan_to_num, x, wanted, tmp_path, opset=opset)


@pytest.mark.parametrize("kind", ["bool", "int32", "int64", "float64"])
@OPSETS
def test_where_broadcasts(kind, opset, tmp_path):
    def function(x):
        one = ops.cast(ops.convert_to_tensor([[1], [0]]), kind)
        return ops.where(x[:, None, :] > 0, one, ops.cast(x[:, None, :], kind))

    x = np.array([[-1.0, 0.0, 2.0], [3.0, -1.0, 0.0]], np.float32)
    one = np.array([[1], [0]], kind)
    wanted = np.where(x[:, None] > 0, one, x[:, None].astype(kind))
    file_gives(function, x, wanted, tmp_path, opset=opset)


def test_a_vector_chooses_rows(tmp_path):
    tf = pytest.importorskip("tensorflow")
    x = np.array([[-1.0, np.inf], [2.0, 0.0]], np.float32)
    wanted = np.array([[0, 0], [2, 0]], np.float32)
    file_gives(
        lambda x: tf.compat.v1.where(x[:, 0] > 0, x, tf.zeros_like(x)),
        x,
        wanted,
        tmp_path,
    )


def test_where_inside_a_loop(tmp_path):
    def function(x):
        def body(i, y):
            return i + 1, ops.where(y == 0, 0.0, 1 / y)

        return ops.while_loop(lambda i, y: i < 3, body, (0, x))[1]

    x = np.array([[0.0, 4.0]], np.float32)
    file_gives(function, x, np.array([[0, 0.25]], np.float32), tmp_path)


WRONG = {
    "floor_div": ("FloorDiv", "negative integers", "int32", lambda x: x // 3),
    "mod": ("FloorMod", "negative integers", "int64", lambda x: x % 3),
    "one_hot": ("OneHot", "negative integers", "int32", lambda x: ops.one_hot(x, 3)),
    "zero": ("SelectV2", "zeros", "float32", CHOICES["guarded reciprocal"][0]),
    "large": (
        "SelectV2",
        "large numbers",
        "float64",
        CHOICES["guarded exponential"][0],
    ),
}


@pytest.mark.parametrize(
    ("operator", "kind", "dtype", "function"), WRONG.values(), ids=WRONG
)
def test_verification_notices_what_tf2onnx_gets_wrong(
    operator, kind, dtype, function, tmp_path, monkeypatch
):
    monkeypatch.delitem(handlers.HANDLERS, operator)
    refused(f"with {kind}", model_of(function, dtype=dtype), tmp_path)


FUSSY = {
    "count of steps": (
        "int32",
        lambda x: ops.while_loop(
            lambda i, y: i < ops.max(x), lambda i, y: (i + 1, y * 2), (0, x)
        )[1],
    ),
    "rounded mean": (
        "int32",
        lambda x: ops.cast(ops.mean(ops.cast(x, "float32"), -1), "int32"),
    ),
    "no negative integer": ("int32", lambda x: 2**x),
    "no large number": (
        "float32",
        lambda x: ops.take(
            ops.arange(9), ops.cast(x, "int32") % 9 + ops.cast(x > 9, "int32") * 99
        ),
    ),
    "not a number": ("float32", lambda x: ops.softmax(x / ops.abs(x))),
    "mask": ("int32", lambda x: ops.softmax((1 - ops.cast(x, "float32")) * -3.4e38)),
    "overflow of one number": ("float32", ops.prod),
    "argmax": ("float32", lambda x: ops.argmax(x, -1)),
    "rounding": ("float32", lambda x: ops.sin(ops.matmul(x, 9 * ops.ones((6, 3))))),
}


@pytest.mark.parametrize(("dtype", "function"), FUSSY.values(), ids=FUSSY)
def test_a_right_file_is_not_refused_for_extremes(dtype, function, tmp_path):
    exported(model_of(function, dtype=dtype), tmp_path)


# Names, dtypes and signatures.


def test_names_that_keras_counts_become_numbers(tmp_path):
    x = keras.Input((4,))
    graph = exported(
        keras.Model(x, [layers.Dense(2)(x), layers.Dense(3, name="score")(x)]), tmp_path
    ).graph
    assert axes_of(graph.input) == {"input_0": ["batch", 4]}
    assert axes_of(graph.output) == {"output_0": ["batch", 2], "score": ["batch", 3]}


def test_two_lengths_have_two_names(tmp_path):
    encoder = keras.Input((None, 4), name="encoder_states")
    decoder = keras.Input((None, 4), name="decoder_states")
    scores = Apply(lambda x: ops.einsum("bsd,btd->bts", *x))([encoder, decoder])
    graph = exported(keras.Model([encoder, decoder], scores), tmp_path).graph
    assert axes_of(graph.output) == {
        "output_0": ["batch", "decoder_sequence", "encoder_sequence"]
    }


def pooled(function, names, **kwargs):
    """Inputs of (B, T, 4) and what a function makes of them, one row an example."""
    inputs = [keras.Input((None, 4), name=name, **kwargs) for name in names]
    return keras.Model(inputs, Apply(function)(inputs))


def mean(x):
    return ops.mean(x, axis=1)


@pytest.mark.parametrize(
    "names, function, groups",
    [
        ("qm", lambda x: mean(layers.Attention()(x)), ["q", "m"]),
        ("ab", lambda x: mean(x[0] * x[1]), ["aa"]),
        # Each with a mask of its own; and one that all share.
        (
            "abcd",
            lambda x: ops.concatenate([mean(x[0] * x[3]), mean(x[1] * x[2])]),
            ["a", "b", "b", "a"],
        ),
        ("abcd", lambda x: mean(sum(x)), ["aaaa"]),
        ("abc", lambda x: mean(x[0] + x[2]) - mean(x[1]), ["a", "b", "a"]),
        ("abcdefg", lambda x: sum(map(mean, x)), list("abcdefg")),
        ("abcdefg", lambda x: mean(sum(x[1:])) - mean(x[0]), ["a", *"bbbbbb"]),
        (
            "abcdefgh",
            lambda x: sum(mean(a * b) for a, b in zip(x[::2], x[1::2])),
            list("aacceegg"),
        ),
    ],
)
def test_lengths_have_names_of_their_own_where_the_model_takes_them(
    names, function, groups, tmp_path
):
    model = pooled(function, names)
    path = tmp_path / "m.onnx"
    export(model, path, format="onnx", exporter="tf2onnx")
    found = axes_of(onnx.load(path).graph.input)
    shared = len(groups) == 1
    groups = dict(zip(names, groups[0] if shared else groups))
    assert found == {
        name: ["batch", "sequence" if shared else f"{group}_sequence", 4]
        for name, group in groups.items()
    }
    session = onnxruntime.InferenceSession(path)
    rng = np.random.default_rng(0)
    order = sorted(set(groups.values()))
    for lengths in (dict(zip(order, range(2, 9))), dict(zip(order[::-1], range(2, 9)))):
        feed = {
            name: rng.standard_normal((2, lengths[group], 4)).astype("float32")
            for name, group in groups.items()
        }
        wanted = model([feed[name] for name in names])
        np.testing.assert_allclose(session.run(None, feed)[0], wanted, atol=1e-5)
    verify(path, model)


def test_lengths_of_the_users_own_inputs_have_names_of_their_own(tmp_path):
    def fifths(x):  # no length that is drawn
        return mean(ops.reshape(x, (ops.shape(x)[0], -1, 20)))

    model = pooled(lambda x: fifths(x[0]) + fifths(x[1]), "ab")

    def axes(*sizes):
        runs = [
            {name: np.ones((2, t, 4), "float32") for name, t in zip("ab", run)}
            for run in sizes
        ]
        path = tmp_path / f"{len(sizes)}.onnx"
        road.convert(model, path, inputs=runs)
        return axes_of(onnx.load(path).graph.input)

    assert axes((5, 5)) == {n: ["batch", "sequence", 4] for n in "ab"}
    assert axes((5, 5), (10, 5)) == {n: ["batch", f"{n}_sequence", 4] for n in "ab"}


def test_a_file_is_verified_with_the_lengths_that_it_promises(tmp_path):
    model = pooled(lambda x: sum(mean(ops.relu(a * 2) + 1) for a in x), "ab")
    path = tmp_path / "model.onnx"
    proto = exported(model, tmp_path, axes={name: {1: "tokens"} for name in "ab"})
    assert verify(path, model).checks
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].Clear()
    onnx.save(proto, path)
    assert verify(path, model).checks
    proto.graph.input[0].name = "other"
    for node in proto.graph.node:
        node.input[:] = ["other" if name == "a" else name for name in node.input]
    onnx.save(proto, path)
    with pytest.raises(ExportError, match="inputs of .* are not the model's.*other"):
        verify(path, model)


def test_lengths_that_the_model_ties_are_verified_so_whatever_their_names(tmp_path):
    model = pooled(lambda x: mean(x[0] + x[1]), "ab")
    runs = [
        {name: np.ones((2, t, 4), "float32") for name, t in zip("ab", run)}
        for run in ((5, 5), (6, 1))  # the second is broadcast
    ]
    path = tmp_path / "model.onnx"
    road.convert(model, path, inputs=runs, axes={"a": {0: "rows"}})
    assert axes_of(onnx.load(path).graph.input)["b"] == ["batch", "b_sequence", 4]
    assert verify(path, model).checks


def test_lengths_keep_names_of_the_users_and_take_none_twice(tmp_path):
    names = ["encoder", "words", "encoder_extra", "own"]
    model = pooled(lambda x: sum(map(mean, x)), names)
    axes = {name: {0: "rows"} for name in names}
    axes["own"] |= {1: "sequence"}
    graph = exported(model, tmp_path, axes=axes).graph
    assert axes_of(graph.input) == {
        "encoder": ["rows", "encoder_sequence_1", 4],
        "words": ["rows", "words_sequence", 4],
        "encoder_extra": ["rows", "encoder_sequence", 4],
        "own": ["rows", "sequence", 4],
    }


def test_an_output_axis_of_two_likely_names_has_that_of_its_place(tmp_path):
    ids = keras.Input((None,), dtype="int32", name="ids")
    model = keras.Model(ids, layers.Embedding(9, 8)(ids))
    runs = [{"ids": np.ones((4, 4), "int32")}]
    graph = exported(model, tmp_path, inputs=runs).graph
    assert axes_of(graph.output) == {"output_0": ["batch", "sequence", 8]}


class Adder(keras.Model):
    def call(self, left, right):
        return left + ops.cast(right, left.dtype)


def adder():
    model = Adder()
    model(np.zeros((1, 3), "float32"), np.zeros((1, 3), "int32"))
    return model


@pytest.mark.parametrize("as_list", [False, True], ids=["keywords", "positional"])
def test_several_arguments_and_axes_of_the_users_own(as_list, tmp_path):
    tf = pytest.importorskip("tensorflow")
    signature = {
        "left": tf.TensorSpec([None, None], "float32", name="left"),
        "right": tf.TensorSpec([None, None], "int64", name="right"),
    }
    graph = exported(
        adder(),
        tmp_path,
        input_signature=list(signature.values()) if as_list else signature,
        axes={"left": {1: "width"}, "right": {1: "width"}},
    ).graph
    assert axes_of(graph.input) == {
        "left": ["batch", "width"],
        "right": ["batch", "width"],
    }
    assert dtypes_of(graph.input) == {"left": "float32", "right": "int64"}
    assert axes_of(graph.output) == {"output_0": ["batch", "width"]}


def test_an_unused_input_stays_declared(tmp_path):
    x, y = keras.Input((2,), name="x"), keras.Input((2,), dtype="int64", name="y")
    graph = exported(keras.Model({"x": x, "y": y}, {"z": x + 1.0}), tmp_path).graph
    assert dtypes_of(graph.input) == {"x": "float32", "y": "int64"}


def test_a_given_signature_overrides_a_functional_models_dtype(tmp_path):
    spec = keras.InputSpec(shape=(None, 5), dtype="int64")
    graph = exported(
        language_model(), tmp_path, input_signature={"token_ids": spec}
    ).graph
    assert dtypes_of(graph.input) == {"token_ids": "int64"}
    assert axes_of(graph.input) == {"token_ids": ["batch", 5]}


@pytest.mark.parametrize("opset", [13, 15, 18])
def test_opset_is_the_one_asked_for(opset, tmp_path):
    proto = exported(model_of(lambda x: ops.argmax(x, -1)), tmp_path, opset=opset)
    assert {o.version for o in proto.opset_import if not o.domain} == {opset}


# What is refused.


def refused(match, model, tmp_path, **kwargs):
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ExportError, match=match):
        road.convert(model, tmp_path / "model.onnx", **kwargs)
    assert sorted(tmp_path.iterdir()) == before


def test_an_output_of_another_shape_is_said(tmp_path):
    inputs = keras.Input((None, 4))
    outputs = keras.layers.TimeDistributed(keras.layers.Dense(3))(inputs)
    message = r"should be \(1, 3, 3\)\. Received: \(1, 1, 3\)\. Give .* TimeDistributed"
    refused(message, keras.Model(inputs, outputs), tmp_path)


@pytest.mark.parametrize(
    ("function", "operator"),
    [
        (lambda x: ops.erfinv(x), "Erfinv"),
        (
            lambda x: x + keras.random.normal(ops.shape(x), seed=1),
            "StatelessRandomNormal",
        ),
        (lambda x: ops.view(x, "int32"), "Bitcast"),
    ],
    ids=["erfinv", "random", "bitcast"],
)
def test_an_unsupported_operator_is_named_with_its_layer(function, operator, tmp_path):
    match = rf"(?s){operator}.*layer 'probe'.*kzoo.ops"
    refused(match, model_of(function), tmp_path)


@pytest.mark.parametrize(
    "policy", ["float16", "bfloat16", "mixed_float16", "mixed_bfloat16"]
)
def test_half_precision_is_refused(policy, tmp_path):
    x = keras.Input((4,), dtype="float32")
    model = keras.Model(x, layers.Dense(2, dtype=policy, name="half")(x))
    refused(f"layer 'half' with dtype policy {policy}", model, tmp_path)


def test_a_cast_to_half_inside_a_layer_is_refused(tmp_path):
    model = model_of(lambda x: ops.cast(ops.cast(x, "bfloat16"), "float32"))
    refused("computes in bfloat16.*layer 'probe'", model, tmp_path)


def test_a_model_never_built_is_refused(tmp_path):
    class Lazy(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(2)

        def call(self, x):
            return self.dense(x)

    spec = [keras.InputSpec(shape=(None, 4), dtype="float32")]
    refused("never built", Lazy(), tmp_path, input_signature=spec)
    refused("never built", keras.Sequential([layers.Dense(2)]), tmp_path)
    built = Lazy()
    built(np.zeros((1, 4), "float32"))
    refused("Pass input_signature", built, tmp_path)
    assert axes_of(exported(built, tmp_path, input_signature=spec).graph.input) == {
        "input_0": ["batch", 4]
    }


def test_over_two_gigabytes_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(freeze, "LARGEST_FILE", 1000)
    refused("GB.*external data", language_model(), tmp_path)


def test_a_path_that_exists_is_kept_unless_overwrite(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_text("old")
    refused("overwrite=True", model_of(ops.tanh), tmp_path)
    assert path.read_text() == "old"
    refused("Erfinv", model_of(ops.erfinv), tmp_path, overwrite=True)
    assert path.read_text() == "old"
    exported(model_of(ops.tanh), tmp_path, overwrite=True)


def test_weights_of_another_file_stay(tmp_path):
    path, weights = tmp_path / "model.onnx", tmp_path / "model.weights.bin"
    weights.write_bytes(b"mine")
    options = dict(format="onnx", exporter="tf2onnx", overwrite=True)
    for _ in range(2):  # where a file was, too
        export(model_of(ops.tanh), path, **options)
        assert weights.read_bytes() == b"mine"


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(path, data):
        with open(path, "wb") as file:
            file.write(data[:8])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    refused("No space left.*MB are needed", model_of(ops.tanh), tmp_path)


def test_the_longest_name_is_written_and_one_more_is_refused(tmp_path):
    model = model_of(ops.tanh)
    longest = tmp_path / f"{'a' * 250}.onnx"
    export(model, longest, "onnx", exporter="tf2onnx")
    assert verify(longest, model).checks
    with pytest.raises(ExportError, match="too long"):
        export(model, tmp_path / f"{'a' * 251}.onnx", "onnx", exporter="tf2onnx")
    assert [*tmp_path.iterdir()] == [longest]


def test_a_wrong_conversion_is_noticed_and_leaves_nothing(tmp_path, monkeypatch):
    right, options = handlers.HANDLERS["Erfc"]

    def wrong(graph, node, name, args):
        node.input[0] = graph.make_node("Neg", [node.input[0]]).output[0]
        right(graph, node, name, args)

    monkeypatch.setitem(handlers.HANDLERS, "Erfc", (wrong, options))
    model = model_of(lambda x: ops.gelu(x, approximate=False))
    refused("differs from the Keras model", model, tmp_path)


def test_a_forward_pass_with_state_is_refused(tmp_path):
    class Counter(layers.Layer):
        def build(self, shape):
            self.count = self.add_weight(shape=(), initializer="zeros")

        def call(self, x):
            self.count.assign(self.count + 1.0)
            return x * self.count

    x = keras.Input((2,))
    model = keras.Model(x, Counter(name="counter")(x))
    refused("assigns a variable.*layer 'counter'", model, tmp_path)


def test_a_model_that_fails_on_the_drawn_shapes_says_what_to_pass(tmp_path):
    x = keras.Input((None, 2), name="x")
    table = ops.ones((4, 2))
    model = keras.Model(x, Apply(lambda x: x + table)(x))
    refused(r"pass inputs=\[", model, tmp_path)
    exported(model, tmp_path, inputs=[{"x": np.ones((3, 4, 2), "float32")}])


@pytest.mark.parametrize("opset", [12, 19])
def test_an_opset_that_tf2onnx_lacks_is_refused(opset, tmp_path):
    refused("opset 13 to 18", model_of(ops.tanh), tmp_path, opset=opset)


@pytest.mark.parametrize("package", ["tf2onnx", "onnxruntime"])
def test_a_missing_package_is_named(package, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, package, None)
    refused(f"pip install {package}", model_of(ops.tanh), tmp_path)


def test_compare_notices_values_names_and_dtypes(tmp_path):
    path = tmp_path / "model.onnx"
    road.convert(model_of(ops.tanh), path)
    inputs = [{"x": np.ones((1, 2, 6), "float32")}]
    assert road.compare(model_of(ops.tanh), path, inputs)["probe"] < 1e-6
    with pytest.raises(ExportError, match="differs from the Keras model"):
        road.compare(model_of(ops.sin), path, inputs)
    with pytest.raises(ExportError, match="outputs .* not the model's"):
        road.compare(model_of(lambda x: x > 0), path, inputs)
    y = keras.Input((None, 6), name="y")
    with pytest.raises(ExportError, match="inputs .* not the model's"):
        road.compare(keras.Model(y, ops.tanh(y)), path, [{"y": inputs[0]["x"]}])
    with pytest.raises(ExportError, match="cannot run"):
        (tmp_path / "bad.onnx").write_bytes(b"no model")
        road.compare(model_of(ops.tanh), tmp_path / "bad.onnx", inputs)


def test_a_file_has_a_file_s_name_and_is_verified_again(tmp_path):
    inputs = keras.Input((6,))
    model = keras.Model(inputs, keras.layers.Dense(3)(inputs))
    with pytest.raises(ExportError, match="whose name ends in .onnx"):
        export(model, tmp_path / "new" / "model", "onnx", exporter="tf2onnx")
    assert not list(tmp_path.iterdir())
    path = tmp_path / "model.onnx"
    export(model, path, "onnx", exporter="tf2onnx")
    report = verify(path, model)
    assert len(report.checks) == 3 and report.files == {path.name: path.stat().st_size}
    model.layers[-1].bias.assign(np.ones(3))
    with pytest.raises(ExportError, match="differs"):
        verify(path, model)


@pytest.mark.parametrize("batch", [None, 1])
@pytest.mark.parametrize("masked", [slice(1), slice(2)], ids=["one", "most"])
def test_masked_numbers_do_not_allow_the_others_to_differ(masked, batch, tmp_path):
    inputs = keras.Input((6,), batch_size=batch, name="x")

    def mask(x):
        hidden = np.zeros(3, "float32")
        hidden[masked] = -1e9
        return x + hidden

    dense = layers.Dense(3)
    model = keras.Model(inputs, Apply(mask)(dense(inputs)))
    path = tmp_path / "model.onnx"
    export(model, path, "onnx", exporter="tf2onnx")
    assert max(check["difference"] for check in verify(path, model).checks) < 1e-5
    dense.bias.assign([0, 0, 1e-3])
    with pytest.raises(ExportError, match="differs from the Keras model by 0.001 "):
        verify(path, model)


def test_a_row_of_a_table_that_no_run_reads_is_compared(tmp_path):
    """Also of a tied table, which the file stores once."""
    ids = keras.Input((None,), dtype="int32", name="ids")
    embed = keras.layers.ReversibleEmbedding(5000, 8)
    model = keras.Model(ids, embed(embed(ids), reverse=True)[:, :, :2])
    path = tmp_path / "model.onnx"
    export(model, path, "onnx", exporter="tf2onnx")
    verify(path, model)
    rows = keras.ops.convert_to_numpy(embed.embeddings).copy()
    for bad, message in ((0.5, "no table that equals"), (np.nan, "holds NaN")):
        rows[4321] = bad
        embed.embeddings.assign(rows)
        with pytest.raises(ExportError, match=message):
            verify(path, model)


def test_a_table_that_is_stored_otherwise_is_left_to_the_runs(tmp_path):
    """One with adapters, one times a number, and a part of one, beside its like."""

    class Parts(keras.layers.Layer):
        def build(self, shape):
            self.scaled = layers.Embedding(50, 8, name="scaled")
            self.places = layers.Embedding(50, 8, name="places")
            self.scaled.build(shape)
            self.places.build(shape)

        def call(self, ids):
            scaled = self.scaled.embeddings * 8**0.5
            return ops.take(scaled, ids, axis=0) + self.places.embeddings[:7]

    ids = keras.Input((7,), dtype="int32", name="ids")
    adapted = keras.layers.Embedding(50, 8, name="adapted")
    model = keras.Model(ids, adapted(ids) + Parts()(ids))
    adapted.enable_lora(2)
    perturb(model.weights)
    path = tmp_path / "model.onnx"
    export(model, path, "onnx", exporter="tf2onnx")
    assert len(verify(path, model).checks) == 3
