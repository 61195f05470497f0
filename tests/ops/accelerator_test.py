"""What differs on a GPU: seen there where there is one, else played."""

import threading
from functools import partial

import keras
import numpy as np
import pytest

from kzoo import ops
from kzoo.ops import accelerator, ordering

BACKEND = keras.backend.backend()
X = np.random.default_rng(0).normal(size=(5, 37)).astype("float32")


def compiled(function):
    """The function, compiled by XLA where Keras's backend has it."""
    if BACKEND == "jax":
        import jax

        return jax.jit(function)
    if BACKEND == "tensorflow":
        import tensorflow as tf

        def fixed(*args):
            with ops.fixed_buffers():
                return function(*args)

        return tf.function(fixed, jit_compile=True)
    return function


@pytest.mark.parametrize("up", [False, True], ids=["as it is", "rounded up"])
@pytest.mark.parametrize("is_cpu", [True, False])
def test_argmax_finds_the_largest_whose_maximum_is_rounded_otherwise(
    monkeypatch, is_cpu, up
):
    """XLA on a GPU computed scores of a row again for the comparison: none was it."""
    largest = keras.ops.max

    def rounded(x, **options):
        return largest(x, **options) * (1 + 1e-6 if up else 1)

    monkeypatch.setattr(ordering, "xla_is_on_cpu", lambda: is_cpu)
    monkeypatch.setattr(ordering.keras.ops, "max", rounded)
    found = keras.ops.convert_to_numpy(compiled(ops.argmax)(np.abs(X)))
    assert found.dtype == "int32"
    np.testing.assert_array_equal(found, np.argmax(np.abs(X), axis=-1))


def test_the_best_token_of_one_row_is_its_largest_logit():
    """As the search reads them: small products, which XLA likes to compute twice."""
    random = np.random.default_rng(1)
    states = random.normal(size=(200, 1, 32)).astype("float32")
    table = random.normal(size=(32, 8)).astype("float32")

    @compiled
    def found(x, table):
        logits = ops.matmul(x, table) * 0.9 + 0.1
        return logits, ops.argmax(logits)

    @compiled
    def alone(x, table):
        return ops.argmax(ops.matmul(x, table) * 0.9 + 0.1)

    table = keras.ops.convert_to_tensor(table)
    for x in map(keras.ops.convert_to_tensor, states):
        logits, token = map(keras.ops.convert_to_numpy, found(x, table))
        first, second = np.sort(logits[0])[[-1, -2]]
        if first - second < 1e-2:  # TF32 may turn these
            continue
        assert token == int(alone(x, table)[0]) == np.argmax(logits)


def test_settled_is_the_identity():
    found = compiled(lambda x: ops.settled(x * 2.0))(X)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(found), X * 2)


def test_full_float32_keeps_24_bits_and_gives_the_setting_back():
    x = np.random.default_rng(0).normal(size=(64, 256)).astype("float32")
    y = np.random.default_rng(1).normal(size=(256, 64)).astype("float32")
    before = setting()
    with ops.full_float32():
        found = keras.ops.convert_to_numpy(keras.ops.matmul(x, y))
    exact = x.astype("float64") @ y.astype("float64")
    assert np.abs(found - exact).max() < 1e-4  # of TF32 some 1e-2
    assert setting() == before


@pytest.mark.skipif(BACKEND == "jax", reason="JAX's setting is of each thread")
def test_blocks_of_two_threads_may_overlap(coarse):
    before, (entered, left) = setting(), (threading.Event(), threading.Event())

    def other():
        with ops.full_float32():
            entered.set()
            left.wait()

    thread = threading.Thread(target=other)
    with ops.full_float32():
        exact = setting()
        thread.start()
        entered.wait()
    assert setting() == exact  # the other one is still inside
    left.set()
    thread.join()
    assert setting() == before


def setting():
    """How exact products of float32 are, as the backend says."""
    if BACKEND == "jax":
        import jax

        return jax.config.jax_default_matmul_precision
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.config.experimental.tensor_float_32_execution_enabled()
    import torch

    return torch.get_float32_matmul_precision()


@pytest.fixture
def coarse(monkeypatch):
    """TF32 is on, or would be on the GPU that is played."""
    if BACKEND == "jax":
        import jax

        monkeypatch.setattr(accelerator, "xla_is_on_cpu", lambda: False)
        change, value = partial(jax.config.update, "jax_default_matmul_precision"), None
    elif BACKEND == "tensorflow":
        import tensorflow as tf

        change, value = tf.config.experimental.enable_tensor_float_32_execution, True
    else:
        import torch

        change, value = torch.set_float32_matmul_precision, "high"
    before = setting()
    change(value)
    yield
    change(before)


@pytest.mark.parametrize("compiled", [False, True])
def test_an_export_is_compared_with_exact_products(coarse, compiled):
    """In what computes Keras's side of a verification, TF32 is off."""
    from kzoo.exporters import checks
    from kzoo.exporters.signatures import Argument, Function

    seen = []

    def call(inputs):
        seen.append(setting())
        return {"y": inputs["x"]}

    function = Function(
        name="forward",
        call=call,
        arguments=(Argument("x", "float32", ("batch", "length")),),
        outputs={"y": ("batch", "length")},
        cases=lambda random: {},
        task=keras.layers.Dense(1) if compiled else None,  # has variables: none yet
    )
    before, exact = setting(), False if BACKEND == "tensorflow" else "highest"
    checks.reference(function, {"x": X})
    assert seen == [exact] and setting() == before != exact
