"""Page 003, "Attention is all you need": post-norm layers, sizes, four properties.

The numpy is written from the page's formulas. Its slip: d_model is 512 in the text and
502 in the shapes of W_1 and W_2; 512 is meant. The page writes the projections of
attention without a bias; here the output's is set to zero.
"""

import numpy as np
import pytest

from kzoo import ModelConfig, StackConfig
from kzoo.config import SIZES
from kzoo.layers.positions import sinusoidal_positions
from kzoo.models import Decoder, Encoder, EncoderDecoder
from tests.harness import difference, perturb, to_numpy

D, HEADS, F, LAYERS = 24, 4, 40, 2


def stack(**changes):
    return StackConfig(
        vocabulary_size=13,
        num_layers=LAYERS,
        hidden_dim=D,
        num_heads=HEADS,
        intermediate_dim=F,
        norm_position="post",
        attention_bias=False,
        **changes,
    )


# The page in numpy: X is (n_s, d_model), one sentence.


def layer_norm(x, gamma, beta):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-6) * gamma + beta


def softmax(x):
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def multi_head(w, path, x, memory, may):
    size = D // HEADS
    heads = []
    for n in range(HEADS):
        part = slice(n * size, (n + 1) * size)  # W_i of the page
        q = x @ w[f"{path}/query/kernel"][:, part]
        k = memory @ w[f"{path}/key/kernel"][:, part]
        v = memory @ w[f"{path}/value/kernel"][:, part]
        scores = np.where(may, q @ k.T / np.sqrt(size), -np.inf)
        heads.append(softmax(scores) @ v)
    return np.concatenate(heads, -1) @ w[f"{path}/output/kernel"]


def feed_forward(w, path, x):
    inner = x @ w[f"{path}/intermediate/kernel"] + w[f"{path}/intermediate/bias"]
    return np.maximum(0, inner) @ w[f"{path}/output/kernel"] + w[f"{path}/output/bias"]


def positions(length, width=D):
    pe = np.zeros((length, width))
    for pos, i in np.ndindex(length, width // 2):
        pe[pos, 2 * i] = np.sin(pos / 10000 ** (2 * i / width))
        pe[pos, 2 * i + 1] = np.cos(pos / 10000 ** (2 * i / width))
    return pe


def run(w, name, tokens, memory=None):
    """The hidden states of one sentence."""
    x = w[f"{name}/token_embedding/embeddings"][tokens] + positions(len(tokens))
    past = np.tril(np.ones((len(tokens), len(tokens)), bool))

    def add_and_norm(path, x, y):
        return layer_norm(x + y, w[f"{path}_norm/gamma"], w[f"{path}_norm/beta"])

    for n in range(LAYERS):
        path = f"{name}/layer_{n}/self_attention"
        may = True if memory is None else past
        x = add_and_norm(path, x, multi_head(w, path, x, x, may))
        if memory is not None:
            path = f"{name}/layer_{n}/cross_attention"
            x = add_and_norm(path, x, multi_head(w, path, x, memory, True))
        path = f"{name}/layer_{n}/feed_forward"
        x = add_and_norm(path, x, feed_forward(w, path, x))
    return x


def test_encoder_and_decoder_equal_the_page():
    config = ModelConfig(
        encoder=stack(), decoder=stack(causal=True, cross_attention=True)
    )
    model = EncoderDecoder(config, name="model")
    model.build()
    perturb(model.weights)
    for variable in model.weights:
        if variable.path.endswith("attention/output/bias"):
            variable.assign(np.zeros(D))
    w = {
        variable.path.removeprefix("model/"): to_numpy(variable.value).astype("float64")
        for variable in model.weights
    }
    source, target = np.array([[3, 9, 4, 12, 7]]), np.array([[1, 8, 8, 2]])
    memory = run(w, "encoder", source[0])
    expected = run(w, "decoder", target[0], memory)
    got_memory = to_numpy(model.encoder(source))[0]
    got = to_numpy(model(source, target))[0]
    assert difference(got_memory, memory) <= 1e-6
    assert difference(got, expected) <= 1e-6


def test_a_post_norm_stack_ends_with_the_norm_of_its_last_sublayer():
    assert not stack().final_norm
    for kind, changes in ((Encoder, {}), (Decoder, dict(causal=True))):
        model = kind(stack(**changes))
        states = to_numpy(model(np.array([[3, 4, 5]])))
        np.testing.assert_allclose(states.mean(-1), 0, atol=1e-6)
        np.testing.assert_allclose(states.std(-1), 1, atol=1e-4)


# Sizes.


def parameters(size, vocabulary_size):
    """By formula: what figure 1 and sections 3.1 to 3.4 of the paper need."""
    d, f = SIZES[size]["hidden_dim"], SIZES[size]["intermediate_dim"]
    projections = 4 * (d * d + d)
    inner = d * f + f + f * d + d
    norm = 2 * d
    encoder_layer = projections + inner + 2 * norm
    decoder_layer = 2 * projections + inner + 3 * norm
    return vocabulary_size * d + 6 * (encoder_layer + decoder_layer)


@pytest.mark.parametrize(
    ("size", "exact", "published"),
    [("base", 63_082_496, 65e6), ("big", 214_245_376, 213e6)],
)
def test_base_and_big_have_the_parameters_of_the_paper(size, exact, published):
    """Vaswani et al. (2017), table 3: 65 million and 213 million.

    They are rounded, and the vocabulary of both languages is "about 37000" there
    (section 5.1), which is 512 or 1024 parameters a token: hence 4 %. Only the first
    layer is built here; the others are counted as equal to it.
    """
    config = ModelConfig.from_size(
        size, "encoder_decoder", 37_000, norm_position="post", num_layers=1
    )
    assert config.share_embeddings and config.tie_head and not config.head_bias
    model = EncoderDecoder(config)
    model.build()
    layers = [model.encoder.blocks[0], model.decoder.blocks[0]]
    count = model.count_params() + 5 * sum(layer.count_params() for layer in layers)
    assert SIZES[size]["num_layers"] == 6
    assert count == parameters(size, 37_000) == exact
    assert exact == pytest.approx(published, rel=0.04)


def test_base_has_the_sizes_of_the_page():
    config = ModelConfig.from_size("base", "encoder_decoder", 100, norm_position="post")
    for side in (config.encoder, config.decoder):
        assert (side.num_layers, side.hidden_dim, side.num_heads) == (6, 512, 8)
        assert (side.head_dim, side.intermediate_dim) == (64, 2048)
        assert side.attention_scale == 1 / 8


# The four properties of the positions.

PE = to_numpy(sinusoidal_positions(np.arange(1000, dtype="int32"), 64, 1000))


def test_positions_are_unique():
    squares = (PE**2).sum(-1)
    distances = squares[:, None] + squares - 2 * PE @ PE.T
    np.fill_diagonal(distances, np.inf)
    assert distances.min() > 0.1


def test_distances_of_positions_are_consistent():
    """|PE(p + k) - PE(p)| is the same for every p, and in every sentence."""
    for k in (1, 2, 7, 100):
        distances = np.linalg.norm(PE[k:] - PE[:-k], axis=-1)
        np.testing.assert_allclose(distances, distances[0], rtol=1e-5)
    short = to_numpy(sinusoidal_positions(np.arange(9, dtype="int32"), 64, 9))
    np.testing.assert_array_equal(short, PE[:9])


def test_positions_are_deterministic():
    again = to_numpy(sinusoidal_positions(np.arange(1000, dtype="int32"), 64, 1000))
    np.testing.assert_array_equal(again, PE)
    assert not [v for v in Encoder(stack()).weights if "position" in v.path]


def test_later_positions_are_linear_in_earlier_ones():
    """PE(p + k) = M PE(p), with one matrix M of rotations for all p."""
    for k in (1, 5, 300):
        matrix = np.zeros((64, 64))
        for i in range(32):
            angle = k / 10000 ** (2 * i / 64)
            block = [[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]
            matrix[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = block
        np.testing.assert_allclose(PE[:-k] @ matrix.T, PE[k:], atol=1e-6)
        np.testing.assert_allclose(matrix @ matrix.T, np.eye(64), atol=1e-12)
