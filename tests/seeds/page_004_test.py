"""Page 004, "Encoder-predictor-decoder architecture" (Canziani, 2021).

The numpy is written from the page's text and code. In its `EncoderLayer` the parts
`super().__init__()` and `self.cnn` are missing; the text has the latter: "a
1D-convolution (aka a position-wise feed forward network)" of "two dense layers". Its
classifier reads padding like text, kzoo's does not: here no text is padded. The layer
norm after the embedding is that of the notebook to which the page refers.
"""

import keras
import numpy as np
import pytest

import kzoo
from kzoo import ModelConfig, StackConfig
from kzoo.layers import Attention, Block, FeedForward, ShiftRight
from tests.harness import difference, perturb, to_numpy

B, T, S, D, HEADS, F = 2, 5, 4, 32, 2, 128
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(B, T, D)).astype("float32")
ENCODED = RANDOM.normal(size=(B, S, D)).astype("float32")


def stack(**changes):
    """The page's sizes and options."""
    return StackConfig(
        **{
            "vocabulary_size": 50_002,
            "num_layers": 1,
            "hidden_dim": D,
            "num_heads": HEADS,
            "intermediate_dim": F,
            "norm_position": "post",
            "norm_epsilon": 1e-6,
            "attention_bias": False,
            "embedding_norm": True,
            **changes,
        }
    )


def weights_of(layer):
    return {
        variable.path.split("/", 1)[1]: to_numpy(variable.value).astype("float64")
        for variable in layer.weights
    }


# The page in numpy.


def multi_head_attention(w, path, x_q, x_k, x_v, mask=True):
    """The page's class: no bias but in the last linear layer, heads of d_model / h."""

    def split_heads(name, x):
        y = x @ w[f"{path}{name}/kernel"]
        return y.reshape(*y.shape[:2], HEADS, -1).transpose(0, 2, 1, 3)

    q, k, v = (
        split_heads(name, x)
        for name, x in zip(("query", "key", "value"), (x_q, x_k, x_v))
    )
    scores = np.where(mask, q @ k.swapaxes(2, 3) / np.sqrt(q.shape[-1]), -np.inf)
    a = np.exp(scores - scores.max(-1, keepdims=True))
    h = a / a.sum(-1, keepdims=True) @ v
    h = h.transpose(0, 2, 1, 3).reshape(*x_q.shape[:2], -1)
    return h @ w[f"{path}output/kernel"] + w[f"{path}output/bias"]


def cnn(w, path, x):
    """Two convolutions of width 1 with a ReLU in between, position by position."""
    result = np.zeros((*x.shape[:2], w[f"{path}output/bias"].size))
    for b, t in np.ndindex(*x.shape[:2]):
        inner = (
            x[b, t] @ w[f"{path}intermediate/kernel"] + w[f"{path}intermediate/bias"]
        )
        result[b, t] = np.maximum(inner, 0) @ w[f"{path}output/kernel"]
    return result + w[f"{path}output/bias"]


def layer_norm(w, path, x):
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
    return x * w[f"{path}/gamma"] + w[f"{path}/beta"]


def predictor(w, path, x, encoded=None, mask=True):
    """Self-attention, then cross-attention where there is an encoder's output."""
    own = multi_head_attention(w, f"{path}self_attention/", x, x, x, mask)
    x = layer_norm(w, f"{path}self_attention_norm", x + own)
    if encoded is None:
        return x
    cross = multi_head_attention(w, f"{path}cross_attention/", x, encoded, encoded)
    return layer_norm(w, f"{path}cross_attention_norm", x + cross)


def decoder(w, path, x):
    return layer_norm(
        w, f"{path}feed_forward_norm", x + cnn(w, f"{path}feed_forward/", x)
    )


# Its modules.


def test_the_unit_delay_gives_the_target_before():
    y = RANDOM.integers(3, 90, (B, T), dtype="int32")
    delayed = to_numpy(ShiftRight(start_token_id=1)(y))
    for b, j in np.ndindex(B, T):
        assert delayed[b, j] == (y[b, j - 1] if j else 1)


def test_predictor_and_decoder_are_a_block():
    block = Block(stack(causal=True, cross_attention=True), name="block")
    block.build((None, None, D), (None, None, D))
    perturb(block.weights)
    w, past = weights_of(block), np.tril(np.ones((1, 1, T, T), bool))
    hidden = predictor(w, "", X.astype("float64"), ENCODED.astype("float64"), past)
    got, *_ = block.predictor(
        keras.ops.convert_to_tensor(X),
        own=dict(attention_mask=past),
        cross=dict(memory=ENCODED),
    )
    assert difference(to_numpy(got), hidden) <= 1e-6
    expected = decoder(w, "", hidden)
    assert difference(to_numpy(block.decoder(got)), expected) <= 1e-6
    got, *_ = block(X, attention_mask=past, memory=ENCODED)
    assert difference(to_numpy(got), expected) <= 1e-6


def test_an_encoder_layer_is_a_block_without_memory():
    block = Block(stack(), name="block")
    block.build((None, None, D))
    perturb(block.weights)
    w = weights_of(block)
    expected = decoder(w, "", predictor(w, "", X.astype("float64")))
    assert difference(to_numpy(block(X)[0]), expected) <= 1e-6


def test_position_wise_convolutions_equal_the_feed_forward_network():
    layer = FeedForward(D, F, name="feed_forward")
    layer.build((None, None, D))
    perturb(layer.weights)
    w = weights_of(layer)
    convolutions = keras.Sequential(
        [
            keras.layers.Conv1D(F, 1, activation="relu"),
            keras.layers.Conv1D(D, 1),
        ]
    )
    convolutions.build((None, T, D))
    for one, name in zip(convolutions.layers, ("intermediate", "output"), strict=True):
        one.kernel.assign(w[f"{name}/kernel"][None])
        one.bias.assign(w[f"{name}/bias"])
    got = to_numpy(layer(X))
    assert difference(got, to_numpy(convolutions(X))) <= 1e-6
    assert difference(got, cnn(w, "", X.astype("float64"))) <= 1e-6


def test_attention_takes_inputs_of_three_sizes_without_bias():
    """`d_input`: "depending on query, key and values, self or cross attention"."""
    sizes = 7, 11, 13
    layer = Attention(D, HEADS, attention_bias=False, name="attention")
    layer.build(*((None, None, size) for size in sizes))
    perturb(layer.weights)
    assert len(layer.weights) == 5  # W_q, W_k, W_v, and W_h with its bias
    x_q, x_k, x_v = (
        RANDOM.normal(size=(B, length, size)).astype("float32")
        for length, size in zip((T, S, S), sizes)
    )
    expected = multi_head_attention(
        weights_of(layer), "", *(x.astype("float64") for x in (x_q, x_k, x_v))
    )
    got = layer(x_q, memory=x_k, value=x_v)
    assert difference(to_numpy(got), expected) <= 1e-6


# The classifier of movie reviews.


def embedded(w, path, ids):
    x = w[f"{path}token_embedding/embeddings"][ids]
    for p, i in np.ndindex(ids.shape[1], D // 2):
        angle = p / 10000 ** (2 * i / D)
        x[:, p, 2 * i] += np.sin(angle)
        x[:, p, 2 * i + 1] += np.cos(angle)
    return layer_norm(w, f"{path}embedding_norm", x)


def test_the_classifier_equals_the_page_at_its_size():
    model = kzoo.TextClassifier(
        ModelConfig(encoder=stack(), tie_head=False),
        labels=["negative", "positive"],
        pooling="max_logits",
        name="model",
    )
    perturb(model.weights)
    w = weights_of(model)
    ids = RANDOM.integers(3, 50_002, (3, 12), dtype="int32")
    x = embedded(w, "encoder/", ids)
    x = decoder(w, "encoder/layer_0/", predictor(w, "encoder/layer_0/", x))
    answers = x @ w["head/output/kernel"] + w["head/output/bias"]
    expected = answers.max(axis=1)  # torch.max(x, dim=1): over the positions
    got = to_numpy(model(dict(token_ids=ids)))
    assert got.shape == (3, 2)
    assert difference(got, expected) <= 1e-6

    norms = 3 * 2 * D
    attention = 4 * D * D + D
    convolutions = D * F + F + F * D + D
    expected = 50_002 * D + norms + attention + convolutions + 2 * D + 2
    assert model.count_params() == expected == 1_612_802


@pytest.mark.parametrize("padded", [1, 6])
def test_padding_changes_no_answer(padded):
    """What kzoo adds to the page: texts of a batch need not be equally long."""
    config = ModelConfig(encoder=stack(vocabulary_size=20), tie_head=False)
    model = kzoo.TextClassifier(config, labels=["a", "b"], pooling="max_logits")
    perturb(model.weights)
    ids = RANDOM.integers(3, 20, (2, 9), dtype="int32")
    alone = to_numpy(model(dict(token_ids=ids)))
    longer = np.pad(ids, [(0, 0), (0, padded)])
    np.testing.assert_allclose(
        to_numpy(model(dict(token_ids=longer))), alone, atol=1e-5
    )
