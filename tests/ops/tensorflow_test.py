"""The training kernels for TensorFlow, against Keras's ops and by counting."""

import concurrent.futures
import gc
import threading

import keras
import numpy as np
import pytest

import kzoo
from tests import harness

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.99])
def test_dropout_keeps_the_mean(rate):
    from kzoo.ops import tensorflow as kernels

    ones = np.ones((77, 13, 101), "float32")  # a number of elements not of 4
    draws = [kernels.dropout(ones, rate, (seed, 1)).numpy() for seed in range(40)]
    for values in draws:
        assert values.shape == ones.shape
        share = (values == 0).mean()
        assert abs(share - rate) < 1 / 256 + 4 * (rate * (1 - rate) / ones.size) ** 0.5
        kept = values[values != 0]
        np.testing.assert_allclose(kept, 1 / (1 - rate), rtol=1e-6)
    # The threshold is one of two neighbours; over draws the rate is met exactly.
    shares = [(values == 0).mean() for values in draws]
    assert abs(np.mean(shares) - rate) < 4 * (1 / 512) / len(draws) ** 0.5


def test_dropout_depends_on_the_seed_alone():
    from kzoo.ops import tensorflow as kernels

    ones = np.ones((50, 50), "float32")
    first, again, other = (
        kernels.dropout(ones, 0.5, seed).numpy() for seed in [(1, 2), (1, 2), (2, 2)]
    )
    np.testing.assert_array_equal(first, again)
    assert abs((first == other).mean() - 0.5) < 0.05
    # Neighbours, along rows and columns, are independent.
    kept = first != 0
    for one, two in [(kept[1:], kept[:-1]), (kept[:, 1:], kept[:, :-1])]:
        assert abs((one == two).mean() - 0.5) < 0.05


def test_dropout_passes_the_gradient_of_what_it_keeps():
    import tensorflow as tf

    from kzoo.ops import tensorflow as kernels

    x = tf.Variable(np.full((6, 7), 3.0, "float32"))
    with tf.GradientTape() as tape:
        y = kernels.dropout(x, 0.25, (3, 4))
    np.testing.assert_allclose(tape.gradient(y, x), y / 3, rtol=1e-6)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("shape", [(4, 8), (2, 3, 8)])
def test_layer_norm_and_its_gradients_equal_those_of_keras(shape, training):
    import tensorflow as tf

    from kzoo.ops import tensorflow as kernels

    rng = np.random.default_rng(0)
    x, upstream = rng.normal(1.0, 3.0, (2, *shape)).astype("float32")
    gamma, beta = rng.normal(size=(2, 8)).astype("float32")

    def run(norm):
        variables = [tf.Variable(v) for v in (x, gamma, beta)]
        with tf.GradientTape() as tape:
            y = norm(*variables)
        return y, *tape.gradient(y, variables, output_gradients=upstream)

    found = run(lambda *args: kernels.layer_norm(*args, 1e-5, training))
    wanted = run(
        lambda x, gamma, beta: keras.ops.layer_normalization(
            x, gamma, beta, axis=-1, epsilon=1e-5
        )
    )
    for own, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-5)


def test_layer_norm_takes_the_variables_of_a_layer_that_runs_eagerly():
    import tensorflow as tf

    from kzoo.layers.base import LayerNormalization

    layer = LayerNormalization()
    layer.build((None, 4))
    x = tf.constant([[1.0, 2.0, 4.0, 9.0]])
    with tf.GradientTape() as tape:
        y = layer(x, training=True)
    gamma, beta = tape.gradient(y, layer.trainable_variables)
    np.testing.assert_allclose(gamma, y[0], rtol=1e-6)
    np.testing.assert_allclose(beta, np.ones(4))


@pytest.mark.parametrize("outside", [False, True], ids=["in the graph", "outside"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_and_its_gradient_equal_those_of_its_formula(smoothing, outside):
    import tensorflow as tf

    from kzoo.ops import tensorflow as kernels

    rng = np.random.default_rng(0)
    y = tf.constant(rng.integers(0, 7, (2, 3)), "int32")
    logits = rng.normal(0.0, 3.0, (2, 3, 7)).astype("float32")
    upstream = rng.normal(size=(2, 3)).astype("float32")
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    target = np.eye(7)[y.numpy()] * (1 - smoothing) + smoothing / 7

    def differentiated(logits, function):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            loss = function(y, logits, label_smoothing=smoothing)
        return loss, tape.gradient(loss, logits, output_gradients=upstream)

    if outside:
        graph = tf.function(kernels.cross_entropy)
        found = differentiated(tf.constant(logits), graph)
    else:
        graph = tf.function(lambda x: differentiated(x, kernels.cross_entropy))
        found = graph(tf.constant(logits))
    wanted = -(target * np.log(p)).sum(-1), (p - target) * upstream[..., None]
    for own, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-6)


def train(**changes):
    """One step of a small new model."""
    model = harness.small_task(kzoo.TextClassifier, num_classes=3, **changes)
    model.compile()
    ids = np.arange(1, 13).reshape(3, 4)
    return model.train_on_batch({"token_ids": ids}, np.array([0, 1, 2]))


@pytest.mark.parametrize("width", [21, 22, 23])  # of no other test
def test_several_threads_may_trace_a_gradient_at_once(width):
    import tensorflow as tf

    from kzoo.ops import tensorflow as kernels

    together = threading.Barrier(4)
    x = np.random.default_rng(0).normal(size=(2, width)).astype("float32")
    ones = np.ones(width, "float32")

    @tf.autograph.experimental.do_not_convert
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = kernels.layer_norm(x, ones, ones, 1e-5, True)
        return tape.gradient(y, x, output_gradients=tf.square(x))

    def trace():
        function = tf.function(step)
        together.wait(timeout=60)
        return function(tf.constant(x)).numpy()

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = [each.result() for each in [pool.submit(trace) for _ in range(4)]]
    for gradient in found:
        np.testing.assert_allclose(gradient, step(tf.constant(x)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "changes", [{}, dict(activation="silu", norm="rms_norm", feed_forward="gated")]
)
def test_models_that_were_trained_leave_no_graph_behind(changes):
    def graphs_behind_it():
        train(num_layers=1, **changes)
        keras.backend.clear_session()
        gc.collect()
        return sum(type(each).__name__ == "FuncGraph" for each in gc.get_objects())

    first, second = graphs_behind_it(), graphs_behind_it()
    assert second <= first


@pytest.mark.parametrize("known", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize("shape", [(5, 8), (2, 3, 8), (2, 3, 4, 8)])
def test_linear(shape, known):
    import tensorflow as tf

    from kzoo.ops import tensorflow as kernels

    rng = np.random.default_rng(0)
    x, kernel, bias = (rng.normal(size=s) for s in (shape, (8, 11), 11))
    free = shape if known else [None] * (len(shape) - 1) + [8]

    @tf.function(input_signature=[tf.TensorSpec(free, "float64")])
    def both(x):
        plain = kernels.linear(x, kernel, bias)
        return plain, kernels.linear(x, kernel.T, transposed=True)

    plain, transposed = both(x)
    assert both.get_concrete_function().outputs[0].shape.rank == len(shape)
    np.testing.assert_allclose(plain, x @ kernel + bias)
    np.testing.assert_allclose(transposed, x @ kernel)


def test_argmax_is_the_first_of_equals_also_of_zeros():
    from kzoo.ops import tensorflow as kernels

    x = np.array([[1, 3, 3, 2], [-0.0, 0.0, -1, 0.0], [-5, -4, -4, -9]], "float32")
    found = kernels.argmax(x)
    assert found.dtype == "int32"
    np.testing.assert_array_equal(found, [1, 0, 1])


@pytest.mark.parametrize("fixed", [False, True])
def test_argmax_is_the_same_where_buffers_are_fixed(fixed):
    import tensorflow as tf

    from kzoo import ops

    x = np.random.default_rng(0).integers(-9, 9, (40, 37)).astype("float32") / 2
    x[0], x[1], x[2, :5] = -np.inf, 0.0, [-0.0, 0.0, -0.0, 0.0, -1]

    @tf.function(jit_compile=fixed)
    def found(x):
        with ops.fixed_buffers(fixed):
            return ops.argmax(x)

    assert found(x).dtype == "int32"
    np.testing.assert_array_equal(found(x), np.argmax(x, axis=-1))


def test_a_softmax_of_few_sums_to_one_and_does_not_overflow():
    from kzoo.ops import tensorflow as kernels

    x = np.array([[[1e4, 1e4 - 1, -1e9]], [[0, 0, 0]]], "float32")
    p = np.exp([0, -1]) / np.exp([0, -1]).sum()
    expected = [[[*p, 0]], [[1 / 3] * 3]]
    np.testing.assert_allclose(kernels.softmax_of_few(x), expected, rtol=1e-6)


SHAPED = {
    "reshape": (lambda x, ops: ops.reshape(x, (-1, 6)), (2, 3, 4)),
    "reshape to none": (lambda x, ops: ops.reshape(x, ()), (1, 1)),
    "reshape by one number": (lambda x, ops: ops.reshape(x, -1), (2, 3)),
    "transpose": (lambda x, ops: ops.transpose(x, (2, 0, 1)), (2, 3, 4)),
    "transpose from behind": (lambda x, ops: ops.transpose(x, (0, -1, 1)), (2, 3, 4)),
    "transpose all": (lambda x, ops: ops.transpose(x, None), (2, 3, 4)),
    "matmul": (lambda x, ops: ops.matmul(x, x), (5, 2, 3, 3)),
    "matmul of vectors": (lambda x, ops: ops.matmul(x, x), (3,)),
    "matmul of a batch": (lambda x, ops: ops.matmul(x, x[0]), (2, 3, 3)),
}


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int32"])
@pytest.mark.parametrize("name", SHAPED)
def test_what_is_spared_eagerly_is_what_keras_gives(name, dtype):
    """Of tensors, variables and arrays; shapes and dtypes of results, too."""
    function, shape = SHAPED[name]
    values = np.random.default_rng(0).integers(-5, 6, shape)
    given = keras.ops.cast(values, dtype)
    for x in (given, keras.Variable(given, dtype=dtype), np.asarray(given)):
        found, expected = function(x, kzoo.ops), function(x, keras.ops)
        assert found.dtype == expected.dtype and found.shape == expected.shape
        found, expected = map(keras.ops.convert_to_numpy, (found, expected))
        np.testing.assert_array_equal(found, expected)


def test_what_is_spared_eagerly_takes_lengths_that_are_not_known():
    """As numbers, as scalars, and as one vector; also of no known rank at all."""
    import tensorflow as tf

    x = np.arange(24.0, dtype="float32").reshape(2, 3, 4)

    @tf.function(input_signature=[tf.TensorSpec((None, None, 4), "float32")])
    def known(x):
        y = kzoo.ops.transpose(x, (1, 0, 2))
        y = kzoo.ops.reshape(y, (-1, kzoo.ops.dim(x, 0), 2, 2))
        y = kzoo.ops.matmul(y, y)
        return kzoo.ops.reshape(y, tf.shape(x))

    @tf.function(input_signature=[tf.TensorSpec(None, "float32")])
    def unknown(x):
        return kzoo.ops.reshape(kzoo.ops.matmul(x, x), (-1,))

    squares = x.transpose(1, 0, 2).reshape(3, 2, 2, 2)
    np.testing.assert_array_equal(known(x), (squares @ squares).reshape(x.shape))
    square = x[:, :, :3]
    np.testing.assert_array_equal(unknown(square), (square @ square).ravel())


def test_what_is_spared_eagerly_makes_a_functional_model():
    x = keras.Input((4, 6))
    y = kzoo.ops.reshape(kzoo.ops.transpose(x, (0, 2, 1)), (-1, 24))
    model = keras.Model(x, kzoo.ops.matmul(y, kzoo.ops.reshape(x, (24, -1))))
    values = np.arange(24.0, dtype="float32").reshape(1, 4, 6)
    expected = values[0].T.reshape(1, 24) @ values.reshape(24, 1)
    np.testing.assert_allclose(model(values), expected)


def test_an_axis_that_is_not_there_is_no_other_one():
    with pytest.raises(ValueError, match="axis 5"):
        kzoo.ops.transpose(keras.ops.ones((2, 3, 4)), (0, 1, 5))
