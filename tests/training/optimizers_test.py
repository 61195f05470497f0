"""Adam against its definition in float64, and against Keras's."""

import contextlib
from unittest import mock

import keras
import numpy as np
import pytest

from kzoo.training import Adam
from kzoo.training.optimizers import LossScaleOptimizer
from tests.words import EAGER


def definition(weights, gradients, rate, beta_1, beta_2, epsilon):
    """Algorithm 1 of Kingma and Ba, with the epsilon of its section 2's last line."""
    weights = weights.astype("float64")
    m, v = np.zeros_like(weights), np.zeros_like(weights)
    for t, g in enumerate(gradients, 1):
        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g**2
        alpha = rate * np.sqrt(1 - beta_2**t) / (1 - beta_1**t)
        weights = weights - alpha * m / (np.sqrt(v) + epsilon)
    return weights


def test_equals_the_definition():
    rng = np.random.default_rng(0)
    start = rng.normal(size=(5, 3)).astype("float32")
    gradients = rng.normal(size=(6, 5, 3)).astype("float32")
    variable = keras.Variable(start)
    optimizer = Adam(0.01, beta_1=0.8, beta_2=0.95, epsilon=1e-6)
    for gradient in gradients:
        optimizer.apply([keras.ops.convert_to_tensor(gradient)], [variable])
    want = definition(start, gradients, 0.01, 0.8, 0.95, 1e-6)
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(variable), want, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("options", [dict(), dict(amsgrad=True), dict(clipnorm=1.0)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_of_16_bits_take_the_steps_of_float32(dtype, options):
    rng = np.random.default_rng(0)
    gradients = rng.normal(size=(20, 5, 3)).astype("float32")
    found = []
    for kind in (dtype, "float32"):
        # Gradients that both dtypes have.
        variable = keras.Variable(np.zeros((5, 3)), dtype=kind)
        optimizer = Adam(0.01, **options)
        for gradient in gradients:
            gradient = keras.ops.cast(keras.ops.cast(gradient, dtype), kind)
            optimizer.apply([gradient], [variable])
        found.append(keras.ops.convert_to_numpy(keras.ops.cast(variable, "float32")))
        assert {str(m.dtype) for m in optimizer._velocities} == {"float32"}
    assert np.abs(found[1]).min() > 1e-4
    np.testing.assert_allclose(*found, atol=2e-3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_large_gradients_of_16_bits_are_clipped_to_a_norm(dtype):
    for options in (dict(global_clipnorm=1.0), dict(clipnorm=1.0)):
        variable = keras.Variable(np.zeros(10_000), dtype=dtype)
        optimizer = Adam(0.01, **options)
        gradient = keras.ops.full((10_000,), 50.0, dtype)  # its norm is 5,000
        optimizer.apply([gradient], [variable])
        (v,) = optimizer._velocities
        norm = float(keras.ops.sum(v)) / (1 - optimizer.beta_2)
        assert norm == pytest.approx(1.0, rel=0.02)
        moved = keras.ops.convert_to_numpy(keras.ops.cast(variable, "float32"))
        np.testing.assert_allclose(moved, -0.01, rtol=0.02)


def number(variable):
    """The first number of it."""
    array = keras.ops.convert_to_numpy(keras.ops.cast(variable, "float32"))
    return float(array.ravel()[0])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("steps", "size"), [(300, 1.0), (4, 30_000.0)])
def test_gradients_of_16_bits_are_accumulated_in_32(dtype, steps, size):
    variable = keras.Variable(np.ones(1), dtype=dtype)
    optimizer = Adam(0.0, gradient_accumulation_steps=steps)
    optimizer.build([variable])
    gradient = keras.ops.full((1,), size, dtype)
    for _ in range(steps):
        optimizer.apply([gradient])
    exact = number(gradient) * (1 - optimizer.beta_1)  # which bfloat16 rounds
    assert number(optimizer._momentums[0]) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("overwrite", [None, 60])
def test_weights_of_16_bits_are_averaged_in_32(dtype, overwrite):
    variable = keras.Variable(np.ones(1), dtype=dtype)
    optimizer = Adam(
        0.0, use_ema=True, ema_momentum=0.99, ema_overwrite_frequency=overwrite
    )
    optimizer.build([variable])
    gradient = keras.ops.zeros((1,), dtype)
    optimizer.apply([gradient])
    variable.assign(np.full(1, 0.75))
    for _ in range(59):
        optimizer.apply([gradient])
    average = 0.75 + 0.25 * 0.99**59
    (found,), (exact,) = (
        optimizer._model_variables_moving_average,
        optimizer._exact_averages,
    )
    assert number(found) == pytest.approx(average, rel=4e-3)
    exact = found if exact is None else exact
    assert number(exact) == pytest.approx(average, rel=1e-5)
    assert number(variable) == pytest.approx(average if overwrite else 0.75, rel=4e-3)
    optimizer.finalize_variable_values([variable])
    assert number(variable) == pytest.approx(average, rel=4e-3)
    assert keras.backend.standardize_dtype(variable.dtype) == dtype


@pytest.fixture
def bfloat16_by_default():
    keras.config.set_floatx("bfloat16")
    keras.config.set_dtype_policy("bfloat16")
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")


@pytest.mark.parametrize("on_epoch", [False, True])
@pytest.mark.usefixtures("bfloat16_by_default")
def test_averages_are_swapped_with_weights_of_16_bits(on_epoch):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    optimizer = Adam(0.02, use_ema=True, ema_momentum=0.9)
    model.compile(optimizer, "mse", run_eagerly=EAGER)
    assert {str(v.dtype) for v in model.trainable_variables} == {"bfloat16"}
    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=on_epoch)
    data = dict(validation_data=(x, x[:, :1]), callbacks=[swap], verbose=0)
    history = model.fit(x, x[:, :1], epochs=3, **data).history
    assert history["val_loss"][-1] < history["val_loss"][0]
    before = [number(each) for each in optimizer._exact_averages]
    assert before == pytest.approx(
        [number(v) for v in model.trainable_variables], rel=4e-3
    )
    other = keras.callbacks.SwapEMAWeights()
    loss = model.evaluate(x, x[:, :1], callbacks=[other], verbose=0)
    assert float(loss) == pytest.approx(float(history["val_loss"][-1]), rel=0.02)
    assert np.isfinite(model.predict(x, callbacks=[other], verbose=0)).all()
    # A swap moves what has 16 bits, and the averages go on from what they were.
    assert before == [number(each) for each in optimizer._exact_averages]


@pytest.mark.parametrize(
    "options",
    [
        dict(global_clipnorm=1.0),
        dict(gradient_accumulation_steps=2),
        dict(use_ema=True),
        dict(use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=1),
        dict(weight_decay=0.01),
    ],
)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_model_of_16_bits_trains(dtype, options):
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)]
    )
    config = model.get_config()
    for layer in config["layers"]:
        layer["config"]["dtype"] = dtype
    keras.utils.set_random_seed(0)
    model = keras.Sequential.from_config(config)
    eager = EAGER and dtype == "float16" and "use_ema" not in options
    model.compile(Adam(0.05, **options), "mse", run_eagerly=eager)
    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    y = x[:, :1] + 0.5
    losses = model.fit(x, y, batch_size=16, epochs=4, verbose=0).history["loss"]
    assert losses[-1] < 0.6 * losses[0]


def test_a_token_twice_in_a_batch_has_one_gradient_in_16_bits_too():
    found = []
    for dtype in ("bfloat16", "float32"):
        keras.utils.set_random_seed(0)
        table = keras.layers.Embedding(5, 3, dtype=dtype)
        model = keras.Sequential([keras.Input((4,), dtype="int32"), table])
        model.compile(Adam(0.01), "mse")
        ids = np.array([[1, 1, 2, 1]])
        model.fit(ids, np.ones((1, 4, 3), "float32"), verbose=0)
        (v,) = model.optimizer._velocities
        found.append(keras.ops.convert_to_numpy(v))
    # Of what stands three times, nine times the square of one; else three.
    np.testing.assert_allclose(*found, rtol=0.25)


@pytest.mark.tensorflow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "around", [keras.optimizers.LossScaleOptimizer, LossScaleOptimizer]
)
def test_a_token_twice_in_a_batch_has_one_gradient_under_a_scaled_loss(around, dtype):
    import tensorflow as tf

    variable = keras.Variable(np.zeros((4, 1)), dtype=dtype)
    optimizer = around(Adam(0.125, epsilon=1e-9), initial_scale=1024.0)
    optimizer.build([variable])
    rows = tf.fill([4, 1], tf.cast(1024.0, dtype))
    gradient = tf.IndexedSlices(rows, [1, 1, 1, 1], [4, 1])
    optimizer.apply([gradient], [variable])  # whose first step is the rate
    assert number(variable[1]) == pytest.approx(-0.125, rel=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(global_clipnorm=0.1),
        dict(global_clipnorm=100.0),
        dict(clipnorm=0.1),
        dict(weight_decay=0.01),
        dict(amsgrad=True),
        dict(use_ema=True),
        dict(gradient_accumulation_steps=2),
    ],
)
def test_trains_as_keras_does(options):
    def train(kind):
        keras.utils.set_random_seed(0)
        # A table that is clipped in a branch, and two weights that are too small.
        table = keras.layers.Embedding(3000, 6)
        model = keras.Sequential([keras.Input((4,)), table, keras.layers.Dense(2)])
        rate = keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.5)
        optimizer = kind(rate, **options)
        # Keras's is a reference alone; the others' options change numbers alone.
        traced = {"use_ema", "gradient_accumulation_steps", "global_clipnorm"}
        traced &= options.keys()
        plain = type(optimizer) is not Adam or (options and not traced)
        model.compile(optimizer, "mse", run_eagerly=bool(EAGER and plain))
        rng = np.random.default_rng(1)
        # No token twice in a batch: Keras squares the parts of its gradient one by one.
        x = np.stack([rng.permutation(8).reshape(2, 4) for _ in range(5)])
        x, y = x.reshape(10, 4), rng.normal(size=(10, 4, 2))
        model.fit(x, y, batch_size=2, shuffle=False, verbose=0)
        return model.get_weights(), model.optimizer

    ours, optimizer = train(Adam)
    theirs, keras_optimizer = train(keras.optimizers.Adam)
    for own, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-6)
    for own, other in zip(optimizer.variables, keras_optimizer.variables, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", [dict(beta_1=0), dict(epsilon=1), "numpy"])
def test_numbers_of_any_kind_are_taken(options):
    if options == "numpy":
        options = dict(beta_1=np.float64(0.8), beta_2=np.float64(0.9))
    found = []
    for kind in (Adam, keras.optimizers.Adam):
        variable = keras.Variable(np.ones(3, "float32"))
        for _ in range(2):
            optimizer = kind(0.1, **options)
            optimizer.apply([keras.ops.ones((3,))], [variable])
        found.append(keras.ops.convert_to_numpy(variable))
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_a_subclass_s_own_step_is_taken():
    class Still(Adam):
        def update_step(self, gradient, variable, learning_rate):
            pass

    variable = keras.Variable(np.ones(3, "float32"))
    Still(0.1).apply([keras.ops.ones((3,))], [variable])
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(variable), 1.0)


@pytest.mark.tensorflow
def test_an_optimizer_of_a_strategy_steps_outside_of_it_as_that_does(monkeypatch):
    import tensorflow as tf

    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        variable = keras.Variable(np.ones(3, "float32"))
        optimizer = Adam(0.1)
        optimizer.build([variable])
    kernel = mock.Mock(side_effect=AssertionError("this is of one replica alone"))
    monkeypatch.setattr(tf.raw_ops, "ResourceApplyAdam", kernel)
    optimizer.apply([tf.ones((3,))])
    np.testing.assert_allclose(keras.ops.convert_to_numpy(variable), 0.9, rtol=1e-5)


@pytest.mark.tensorflow
def test_what_all_variables_share_is_traced_once():
    import tensorflow as tf

    def size(count):
        variables = [keras.Variable(np.ones(3, "float32")) for _ in range(count)]
        optimizer = Adam(0.1, global_clipnorm=1.0)
        optimizer.build(variables)
        step = tf.function(lambda *gradients: optimizer.apply(gradients))
        specs = [tf.TensorSpec((3,), "float32")] * count
        return len(step.get_concrete_function(*specs).graph.get_operations())

    # The gradient, the variable and its two averages, the norm, the clipping, the step.
    assert (size(12) - size(2)) / 10 <= 8


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_shows_in_every_weight(bad):
    sizes = (2, 3, 20_000)
    variables = [keras.Variable(np.ones(size, "float32")) for size in sizes]
    gradients = [np.ones(size, "float32") for size in sizes]
    gradients[0][0] = bad
    gradients = [keras.ops.convert_to_tensor(gradient) for gradient in gradients]
    Adam(0.1, global_clipnorm=1.0).apply(gradients, variables)
    for variable in variables:
        assert np.isnan(keras.ops.convert_to_numpy(variable)).all()


@pytest.mark.tensorflow
@pytest.mark.parametrize("road", ["plain", "amsgrad", "strategy"])
def test_a_token_twice_in_a_batch_has_one_gradient(road):
    import tensorflow as tf

    gradient = np.array([[1.0], [-3.0], [2.0]], "float32")
    dense = np.array([[-2.0], [0.0], [2.0], [0.0]])
    strategy = tf.distribute.get_strategy()
    if road == "strategy":
        strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        variable = keras.Variable(np.zeros((4, 1), "float32"))
        # Its squares only grow here: amsgrad's largest is the last.
        optimizer = Adam(0.1, epsilon=1e-3, amsgrad=road == "amsgrad")
        optimizer.build([variable])

    def step(scale):
        sparse = tf.IndexedSlices(
            gradient * np.float32(scale), tf.constant([0, 0, 2]), tf.constant([4, 1])
        )
        optimizer.apply([sparse], [variable])

    for scale in (1.0, -0.5, 2.0):
        strategy.run(step, (scale,))
    want = definition(
        np.zeros((4, 1)), [dense, -0.5 * dense, 2 * dense], 0.1, 0.9, 0.999, 1e-3
    )
    np.testing.assert_allclose(variable.numpy(), want, rtol=1e-5, atol=1e-6)


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("clip", "want"),
    [
        # The sums, by token, are -2 and 2.
        ({"clipvalue": 1.5}, [-1.5, 0, 1.5, 0]),
        ({"clipnorm": 2.0}, [-(2**0.5), 0, 2**0.5, 0]),
        ({"global_clipnorm": 1.0}, [-(0.5**0.5), 0, 0.5**0.5, 0]),
        ({"loss_scale_factor": 2.0}, [-1, 0, 1, 0]),
        ({}, [-2, 0, 2, 0]),
    ],
)
def test_a_token_twice_in_a_batch_is_clipped_once(clip, want):
    import tensorflow as tf

    variable = keras.Variable(np.zeros((4, 1), "float32"))
    optimizer = Adam(0.1, **clip)
    optimizer.build([variable])
    sparse = tf.IndexedSlices(
        tf.constant([[1.0], [-3.0], [2.0]]), tf.constant([0, 0, 2]), tf.constant([4, 1])
    )
    optimizer.apply([sparse], [variable])
    (momentum,) = optimizer._momentums  # a tenth of the first gradient
    np.testing.assert_allclose(10 * momentum.numpy()[:, 0], want, rtol=1e-5)


@pytest.mark.tensorflow
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_overflow_in_one_gradient_of_a_token_is_no_step(bad):
    import tensorflow as tf

    def apply(*values):
        values = np.array(values, "float32")[:, None]
        indices, shape = tf.constant([1, 1]), tf.constant([3, 1])
        optimizer.apply([tf.IndexedSlices(values, indices, shape)], [variable])

    variable = keras.Variable(np.ones((3, 1), "float32"))
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=8.0)
    apply(bad, 1.0)
    apply(1.0, bad)
    np.testing.assert_array_equal(variable, np.ones((3, 1)))
    assert float(optimizer.dynamic_scale) == 2.0  # halved twice
    apply(6.0, 10.0)
    np.testing.assert_array_equal(variable, [[1.0], [1.0 - 16.0 / 2.0], [1.0]])


def test_a_loss_scale_of_keras_s_is_made_one_of_these():
    given = keras.optimizers.LossScaleOptimizer(Adam(0.1), initial_scale=8.0)
    made = LossScaleOptimizer.around(given)
    assert type(made) is LossScaleOptimizer and made.initial_scale == 8.0
    assert made.inner_optimizer is given.inner_optimizer
    assert LossScaleOptimizer.around(made) is made
    given.build([keras.Variable(np.zeros(1))])
    assert LossScaleOptimizer.around(given) is given


def test_config_round_trip():
    again = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(Adam(0.3, beta_2=0.98, layer_decay=0.9))
    )
    assert type(again) is Adam
    assert again.get_config()["beta_2"] == 0.98 and again.layer_decay == 0.9


# Of two stacks, of 3 and 2 layers, what share of the rate each variable gets.
SHARES = {
    "encoder/token_embedding/embeddings": 0.5**4,
    "encoder/embedding_norm/gamma": 0.5**4,
    "encoder/position_bias/embeddings": 0.5**4,
    "encoder/layer_0/self_attention/query/kernel": 0.5**3,
    "encoder/layer_1/self_attention/query/lora_kernel_a": 0.5**2,
    "encoder/layer_2/feed_forward/output/bias": 0.5,
    "encoder/final_norm/gamma": 1.0,
    "decoder/position_embedding/embeddings": 0.5**3,
    "decoder/layer_0/cross_attention/key/kernel": 0.5**2,
    "decoder/layer_1/cross_attention/key/kernel": 0.5,
    "head/hidden/kernel": 1.0,
}


def variables_at(paths):
    variables = []
    for seed, path in enumerate(paths):
        *scopes, name = path.split("/")
        with contextlib.ExitStack() as stack:
            for scope in ("model", *scopes):
                stack.enter_context(keras.name_scope(scope))
            initial = keras.initializers.RandomNormal(seed=seed)
            variables.append(keras.Variable(initial, (2, 3), name=name))
    return variables


@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(weight_decay=0.1),
        dict(global_clipnorm=0.5),
        dict(weight_decay=0.1, gradient_accumulation_steps=2),
    ],
    ids=str,
)
def test_lower_layers_take_smaller_steps(options):
    rng = np.random.default_rng(0)
    steps = options.get("gradient_accumulation_steps", 1)
    variables = variables_at(SHARES)
    assert [v.path for v in variables] == [f"model/{path}" for path in SHARES]
    start = [np.array(keras.ops.convert_to_numpy(v)) for v in variables]
    gradients = rng.normal(size=(3, steps, len(variables), 2, 3)).astype("float32")
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    optimizer = Adam(rate, epsilon=1e-3, layer_decay=0.5, **options)
    for gradient in gradients.reshape(3 * steps, len(variables), 2, 3):
        optimizer.apply(list(map(keras.ops.convert_to_tensor, gradient)), variables)

    means = gradients.astype("float64").mean(1)
    if limit := options.get("global_clipnorm"):
        norms = np.sqrt((means**2).sum((1, 2, 3), keepdims=True))
        means = means * np.minimum(1, limit / norms)
    for i, share in enumerate(SHARES.values()):
        m = v = 0.0
        weights = start[i].astype("float64")
        for t, g in enumerate(means[:, i]):
            # Keras's schedules count batches, the moments steps.
            now = share * 0.1 * 0.5 ** (steps * (t + 1) - 1)
            weights = weights * (1 - options.get("weight_decay", 0.0) * now)
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            now = now * np.sqrt(1 - 0.999 ** (t + 1)) / (1 - 0.9 ** (t + 1))
            weights = weights - now * m / (np.sqrt(v) + 1e-3)
        got = keras.ops.convert_to_numpy(variables[i])
        np.testing.assert_allclose(got, weights, rtol=1e-4, atol=1e-6)


def test_layer_decay_needs_layers_and_a_factor():
    with pytest.raises(ValueError, match=r"in \(0, 1\] or None. Received: 1.5"):
        Adam(0.1, layer_decay=1.5)
    with pytest.raises(ValueError, match=r"layer_<i>.*Received: \['model/head/bias'\]"):
        Adam(0.1, layer_decay=0.9).build(variables_at(["head/bias"]))
