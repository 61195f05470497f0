"""What a transformer computes beside attention: linear maps, norms, activations."""

import keras
import numpy as np

from kzoo.ops import array as ops
from kzoo.ops import tensorflow
from kzoo.ops.dispatch import op
from kzoo.ops.onnx_value import OnnxValue


@op
def matmul(x, y):
    """Matrix product over the last two axes; those before are equal, or y has none.

    See `linear_by_head` for kernels that a batch shares.
    """
    return keras.ops.matmul(x, y)


matmul.on_tensorflow(tensorflow.matmul)


@matmul.emits
def _(graph, x, y):
    x, y = graph.lift(x), graph.lift(y)
    batch = x.shape[:-2] if y.ndim == 2 else x.shape[: max(x.ndim, y.ndim) - 2]
    return graph.node("MatMul", x, y, shape=(*batch, x.shape[-2], y.shape[-1]))


@op
def linear_by_head(x, kernel):
    """Each head by its own kernel: (B, N, T, H) with (N, H, E) to (B, N, T, E)."""
    # Not `matmul`: where it repeats a batch axis, TensorFlow 2.21 with oneDNN writes
    # beside its memory.
    return keras.ops.einsum("bnth,nhe->bnte", x, kernel)


@linear_by_head.emits
def _(graph, x, kernel):
    return matmul(x, kernel)


@op
def linear(x, kernel, bias=None):
    """`x @ kernel + bias`; kernel (D, E), bias (E,)."""
    y = keras.ops.matmul(x, kernel)
    return y if bias is None else keras.ops.add(y, bias)


linear.on_tensorflow(tensorflow.linear)


@linear.emits
def _(graph, x, kernel, bias=None):
    return _gemm(graph, x, kernel, bias)


def _gemm(graph, x, kernel, bias=None, transposed=False):
    """`Gemm` on the rows of x: it adds the bias, and runtimes fuse an activation."""
    kernel = graph.lift(kernel)
    width = kernel.shape[0 if transposed else 1]
    panels = graph.panels(kernel, transposed)

    def product(rows):
        shape = rows.shape[0], width
        return graph.node(
            "Gemm", rows, kernel, bias, shape=shape, transB=int(transposed)
        )

    def product_by_panels(rows):
        count, _, columns = panels.shape
        y = graph.node("MatMul", rows, panels, shape=(count, rows.shape[0], columns))
        y = ops.reshape(ops.transpose(y, (1, 0, 2)), (-1, count * columns))
        y = ops.slice_axis(y, 0, width, axis=1) if count * columns > width else y
        return y if bias is None else y + graph.lift(bias)

    return _by_rows(graph, x, product if panels is None else product_by_panels)


def _by_rows(graph, x, function):
    """A function of matrices (rows, D) to (rows, E), of x (..., D).

    A chain of such functions stays with matrices: what is reshaped in between is not
    used, and so not written. See `OnnxGraph.elementwise`.
    """
    if x.ndim == 2:
        return function(x)
    rows = graph.once(("rows", x.name), lambda: ops.reshape(x, (-1, x.shape[-1])))
    rows = function(rows)
    y = ops.reshape(rows, (*ops.shape(x)[:-1], rows.shape[-1]))
    graph.remember(("rows", y.name), rows)
    return y


@op
def add_bias(x, bias):
    """`x + bias` with a weight; bias (E,)."""
    return x + bias


@add_bias.emits
def _(graph, x, bias):
    return x + graph.lift(bias)


@op
def linears(x, layers):
    """Several dense layers on one input; ONNX gets one product with joined kernels."""
    return [layer(x) for layer in layers]


@linears.emits
def _(graph, x, layers):
    if len(layers) == 1:
        return [layers[0](x)]
    kernels = [layer.kernel for layer in layers]
    bias = None
    if layers[0].use_bias:
        bias = graph.concatenated([layer.bias for layer in layers])
    y = linear(x, graph.concatenated(kernels), bias)
    return ops.split(y, [kernel.shape[-1] for kernel in kernels])


@op
def linear_transposed(x, table):
    """`x @ table.T`, the head tied to an embedding table (V, D)."""
    return keras.ops.matmul(x, keras.ops.transpose(table))


@linear_transposed.on_tensorflow
def _(x, table):
    return tensorflow.linear(x, table, transposed=True)


@linear_transposed.emits
def _(graph, x, table):
    return _gemm(graph, x, table, transposed=True)


@op
def embedding(ids, table):
    """The rows of a table (V, D): int (...) to (..., D)."""
    return keras.ops.take(table, ids, axis=0)


@embedding.emits
def _(graph, ids, table):
    table = graph.lift(table)
    panels = graph.panels(table, transposed=True)
    if panels is None:
        return ops.take(table, ids)
    _, width, columns = panels.shape
    # Of a shape that is known at run time alone, or the runtime keeps a flat copy.
    length = ops.expand_dims(ops.sum(ids) * 0 - 1, 0)
    numbers = graph.node("Reshape", panels, length, shape=(None,))
    first = ids // columns * (width * columns) + ids % columns
    return ops.take(numbers, ops.expand_dims(first, -1) + np.arange(width) * columns)


@op
def layer_norm(x, gamma, beta, epsilon):
    """Layer normalisation over the last axis (Ba et al., 2016)."""
    return keras.ops.layer_normalization(x, gamma, beta, axis=-1, epsilon=epsilon)


@layer_norm.emits
def _(graph, x, gamma, beta, epsilon):
    options = dict(axis=-1, epsilon=epsilon)

    def norm(rows):
        return graph.node("LayerNormalization", rows, gamma, beta, **options)

    return _by_rows(graph, x, norm)


@op
def rms_norm(x, scale, epsilon):
    """Root-mean-square normalisation over the last axis (Zhang and Sennrich, 2019)."""
    return keras.ops.rms_normalization(x, scale, axis=-1, epsilon=epsilon)


@rms_norm.emits
def _(graph, x, scale, epsilon):
    def norm(rows):
        if graph.root.opset >= 23:
            return graph.node("RMSNormalization", rows, scale, axis=-1, epsilon=epsilon)
        mean_square = ops.mean(rows * rows, axis=-1, keepdims=True)
        return rows / ops.sqrt(mean_square + epsilon) * graph.lift(scale)

    return _by_rows(graph, x, norm)


@op
def offset_rms_norm(x, offset, epsilon):
    """`rms_norm` with the scale `1 + offset`, computed in float32 at least."""
    # In bfloat16 the sum would lose most of a small offset.
    wide = "float32" if "16" in str(x.dtype) else x.dtype
    scale = keras.ops.cast(offset, wide) + 1.0
    return ops.cast(rms_norm(ops.cast(x, wide), scale, epsilon), x.dtype)


@offset_rms_norm.emits
def _(graph, x, offset, epsilon):
    return rms_norm(x, graph.lift(offset) + 1.0, epsilon)


@op
def std_norm(x, gamma, beta, epsilon):
    """`gamma * (x - mean) / (std + epsilon) + beta` over the last axis.

    The standard deviation is the unbiased one, of D - 1; computed in float32 at least.
    """
    wide = ops.cast(x, "float32") if "16" in str(x.dtype) else x
    centered = wide - ops.mean(wide, axis=-1, keepdims=True)
    squares = ops.sum(centered * centered, axis=-1, keepdims=True)
    # The root's slope at 0, of a row of equal numbers, is infinite: stay off it.
    std = ops.sqrt(ops.maximum(squares / (x.shape[-1] - 1.0), 1e-30))
    return ops.cast(centered / (std + epsilon), x.dtype) * gamma + beta


_std_norm_decomposed = std_norm.__wrapped__


@std_norm.emits
def _(graph, x, gamma, beta, epsilon):
    gamma, beta = graph.lift(gamma), graph.lift(beta)
    return _by_rows(graph, x, lambda x: _std_norm_decomposed(x, gamma, beta, epsilon))


@op
def gelu(x):
    """x times the normal distribution function (Hendrycks and Gimpel, 2016)."""
    return keras.ops.gelu(x, approximate=False)


@gelu.emits
def _(graph, x):
    if graph.root.opset >= 20:
        return graph.elementwise("Gelu", x)
    return x * 0.5 * (ops.erf(x * 0.5**0.5) + 1.0)


@op
def gelu_tanh(x):
    """GELU's tanh approximation, as in GPT-2."""
    return keras.ops.gelu(x, approximate=True)


@gelu_tanh.emits
def _(graph, x):
    if graph.root.opset >= 20:
        return graph.elementwise("Gelu", x, approximate="tanh")
    return x * 0.5 * (ops.tanh((x + x * x * x * 0.044715) * (2 / np.pi) ** 0.5) + 1.0)


@op
def silu(x):
    """x times sigmoid(x)."""
    return keras.ops.silu(x)


@silu.on_tensorflow
def _(x):
    # `tf.nn.silu` keeps every graph that it is called in, by `tf.custom_gradient`.
    return x * keras.ops.sigmoid(x)


@silu.emits
def _(graph, x):
    return x * ops.sigmoid(x)


def identity(x):
    """`x`."""
    return x


ACTIVATIONS = {
    "relu": ops.relu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": silu,
    "sigmoid": ops.sigmoid,
    "tanh": ops.tanh,
    "linear": identity,
}


@op
def softmax(x):
    """Softmax over the last axis, computed in float32 at least."""
    if x.shape[-1] == 1:
        return keras.ops.exp(x - x)  # 1, without the warning that Keras gives for it
    dtype = keras.backend.standardize_dtype(x.dtype)
    if dtype in ("float16", "bfloat16"):
        return keras.ops.cast(keras.ops.softmax(keras.ops.cast(x, "float32")), dtype)
    if keras.backend.backend() == "tensorflow" and x.shape[-2:-1] == (1,):
        return tensorflow.softmax_of_few(x)
    return keras.ops.softmax(x)


@softmax.emits
def _(graph, x):
    return graph.node("Softmax", x, axis=-1)


@op
def log_softmax(x):
    """log(softmax(x)) over the last axis."""
    return keras.ops.log_softmax(x)


@log_softmax.emits
def _(graph, x):
    return graph.node("LogSoftmax", x, axis=-1)


def unit_length(x):
    """Vectors of length 1, zeros where a vector is zeros.

    Args:
        x: float (..., D), of lengths from 1e-12 to 1e19, whose squares float32 has.

    Returns:
        float (..., D), dtype of `x`; lengths are computed in float32.
    """
    wide = ops.cast(x, "float32")
    squares = ops.sum(wide * wide, axis=-1, keepdims=True)
    # The smallest stands under the root, whose gradient at 0 is infinite.
    return ops.cast(wide / ops.sqrt(ops.maximum(squares, 1e-24)), x.dtype)


def is_onnx(x):
    """Whether `x` is a symbolic value of an ONNX graph."""
    return isinstance(x, OnnxValue)
