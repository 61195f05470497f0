"""Under `keras.RematScope`: the same gradients, from blocks that compute twice."""

import functools

import keras
import numpy as np
import pytest

from kzoo.config import ModelConfig
from kzoo.layers import FeedForward
from kzoo.models.encoder_decoder import EncoderDecoder

IDS = np.array([[5, 6, 7, 8], [9, 4, 3, 0]], "int32")
MASK = IDS != 0
SLOPE = np.random.default_rng(0).normal(size=(2, 4, 16)).astype("float32")
SCOPES = {
    "full": dict(mode="full"),
    "layers": dict(mode="list_of_layers", layer_names=["layer_1", "feed_forward"]),
    "activations": dict(mode="activations"),
    "large": dict(mode="larger_than", output_size_threshold=100),
}


def make(scope):
    """Two layers a stack, with all that crosses a block: memory, bias, masks, seeds."""
    keras.utils.set_random_seed(0)
    changes = dict(hidden_dim=16, intermediate_dim=32, num_layers=2, dropout=0.3)
    config = ModelConfig.from_size(
        "tiny", "encoder_decoder", 12, positions="relative", **changes
    )
    with keras.RematScope(**(scope or dict(mode=None))):
        model = EncoderDecoder(config, name="model")
    model.build()
    return model


def gradients(model):
    """Of a loss, by the variables' paths, at the second step: seeds have moved on."""

    slope = keras.ops.convert_to_tensor(SLOPE)

    def loss():
        options = dict(encoder_padding_mask=MASK, decoder_padding_mask=MASK)
        options = {k: keras.ops.convert_to_tensor(v) for k, v in options.items()}
        ids = keras.ops.convert_to_tensor(IDS)
        states = model(ids, ids, training=True, **options)
        # Not of squares, whose mean the last norm makes the same for all weights.
        return keras.ops.mean(keras.ops.cast(states, "float32") * slope)

    variables, others = model.trainable_variables, model.non_trainable_variables
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        @tf.function
        def step():
            with tf.GradientTape() as tape:
                value = loss()
            found = tape.gradient(value, [v.value for v in variables])
            return [tf.convert_to_tensor(gradient) for gradient in found]

    elif keras.backend.backend() == "torch":

        def step():
            model.zero_grad()
            loss().backward()
            return [v.value.grad for v in variables]

    else:
        import jax

        @jax.jit
        def compute(values, states):
            def stateless(values):
                mapping = [*zip(variables, values, strict=True)]
                mapping += zip(others, states, strict=True)
                with keras.StatelessScope(mapping) as scope:
                    value = loss()
                return value, [scope.get_current_value(v) for v in others]

            return jax.grad(stateless, has_aux=True)(values)

        def step():
            found, moved = compute(
                [v.value for v in variables], [v.value for v in others]
            )
            for variable, value in zip(others, moved, strict=True):
                variable.assign(value)
            return found

    for _ in range(2):
        found = step()
    return {
        v.path: np.array(keras.ops.convert_to_numpy(keras.ops.cast(g, "float32")))
        for v, g in zip(variables, found, strict=True)
    }


@functools.cache
def expected(policy, eager):
    return gradients(make(None))


CASES = [(scope, "float32") for scope in SCOPES] + [("full", "mixed_bfloat16")]


@pytest.mark.parametrize(("scope", "policy"), CASES)
def test_gradients_are_the_same(scope, policy, monkeypatch, request):
    eager = scope not in ("full", "activations")  # a block, and what is in one
    if eager:
        request.getfixturevalue("eager")
    keras.config.set_dtype_policy(policy)
    want, wrapped, remat = expected(policy, eager), [], keras.remat
    monkeypatch.setattr(keras, "remat", lambda f: wrapped.append(f) or remat(f))
    got = gradients(make(SCOPES[scope]))
    for name in want:
        assert "key/bias" in name or np.abs(want[name]).max() > 1e-4, name
        close = 1e-6 if policy == "float32" else 1e-2
        np.testing.assert_allclose(got[name], want[name], atol=close, err_msg=name)
    assert len(wrapped) >= 4  # blocks, or their activations


def test_a_block_computes_twice_in_training_alone(monkeypatch):
    calls, call = [], FeedForward.call

    def counted(self, x, training=None):
        calls.append(training)
        return call(self, x, training=training)

    monkeypatch.setattr(FeedForward, "call", counted)
    model = make(SCOPES["full"])
    model(IDS, IDS)
    assert len(calls) == 4
    calls.clear()
    if keras.backend.backend() == "jax":
        import jax

        def forward(x):
            return model.encoder.blocks[0](x, training=True)[0].sum()

        assert "remat" in str(jax.make_jaxpr(forward)(np.ones((2, 4, 16), "float32")))
    else:
        gradients(model)
        # Two stacks of two layers: twice in a trace, and in each of two steps.
        traces = keras.backend.backend() == "tensorflow"
        assert calls.count(True) == (8 if traces else 16)
