"""Feed-forward: plain and gated, every activation, dropout inside."""

import numpy as np
import pytest

from kzoo.layers import FeedForward
from tests.harness import check_layer, difference, perturb, to_numpy
from tests.reference import ACTIVATIONS

B, T, D, F = 2, 5, 12, 20
X = np.random.default_rng(0).normal(size=(B, T, D)).astype("float32")


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_it_equals_the_formula(activation, gated, use_bias):
    layer = FeedForward(D, F, activation, gated=gated, use_bias=use_bias, name="ff")
    layer.build((None, None, D))
    perturb(layer.weights)
    weights = {w.path: to_numpy(w.value).astype("float64") for w in layer.weights}

    def linear(name, x):
        return x @ weights[f"ff/{name}/kernel"] + weights.get(f"ff/{name}/bias", 0.0)

    act = ACTIVATIONS[activation]
    inner = linear("intermediate", X.astype("float64"))
    inner = act(linear("gate", X.astype("float64"))) * inner if gated else act(inner)
    assert difference(to_numpy(layer(X)), linear("output", inner)) <= 1e-6
    assert len(weights) == (3 if gated else 2) * (2 if use_bias else 1)


GATED = ["sigmoid", "linear", "silu"]  # of Shazeer (2020), section 2


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_it_is_a_layer(activation, tmp_path):
    gated = activation in GATED  # of which an activation knows nothing
    check_layer(
        lambda **kw: FeedForward(
            D, F, activation, gated=gated, use_bias=not gated, dropout=0.1, **kw
        ),
        dict(x=X),
        (B, T, D),
        tmp_path,
        build_shapes=[(None, None, D)],
    )


def test_dropout_drops_inner_activations_at_its_rate_and_rescales():
    # Inner activations of 1, and an output that copies them.
    size, rate = 64, 0.4
    layer = FeedForward(size, size, dropout=rate)
    layer.build((None, None, size))
    layer.intermediate.kernel.assign(np.zeros((size, size), "float32"))
    layer.intermediate.bias.assign(np.ones(size, "float32"))
    layer.output_projection.kernel.assign(np.eye(size, dtype="float32"))
    x = np.zeros((4, 64, size), "float32")
    assert (to_numpy(layer(x)) == 1).all()
    dropped = to_numpy(layer(x, training=True))
    np.testing.assert_allclose(np.unique(dropped), [0.0, 1 / (1 - rate)], rtol=1e-6)
    assert abs((dropped == 0).mean() - rate) < 0.02


def test_an_unknown_activation_names_the_known():
    with pytest.raises(ValueError, match=r"one of \['relu'.*Received: 'odd'"):
        FeedForward(D, F, "odd")
