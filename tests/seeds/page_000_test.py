"""Pages 000 and 002, "Understanding the Transformer": one text, `make_model`.

The numpy below is written from the text and its formulas, in the page's own parts.
Slips of its code are not followed: the decoder's second attention has weights of its
own (`src_attn`; the text has "two multi-head attention layers"), and positions have
10000 as in the formula, not 1000. Xavier's numbers are uniform as in "The Annotated
Transformer", where page 002's are normal; their deviation is the same. Padding is
counted by neither side: numbers are compared at real words.
"""

import inspect

import keras
import numpy as np
import pytest

from kzoo import ModelConfig, Seq2SeqLM, StackConfig, ops
from tests.harness import difference, padding, perturb, to_numpy

SOURCE, TARGET = 13, 17
SIZE = dict(N=2, d_model=24, d_ff=40, h=4)


def make_model(src_vocab, tgt_vocab, N=6, d_model=512, d_ff=2048, h=8, dropout=0.1):  # noqa: N803
    """The page's "Helper: Construct a model from hyperparameters", in kzoo's parts."""

    def stack(vocabulary_size, **changes):
        return StackConfig(
            vocabulary_size=vocabulary_size,
            num_layers=N,
            hidden_dim=d_model,
            num_heads=h,
            intermediate_dim=d_ff,
            positions="sinusoidal",
            norm="std_norm",
            norm_position="pre",
            norm_epsilon=1e-6,
            embedding_scale=d_model**0.5,
            activation="relu",
            dropout=dropout,
            attention_dropout=0.1,  # MultiHeadedAttention(h, d_model) keeps its default
            feed_forward_dropout=dropout,
            initializer="xavier",
            **changes,
        )

    return Seq2SeqLM(
        ModelConfig(
            encoder=stack(src_vocab),
            decoder=stack(tgt_vocab, causal=True, cross_attention=True),
            tie_head=False,
            head_bias=True,
        ),
        name="model",
    )


# The page in numpy. `w` gives a weight by the path of kzoo's variable.


class Page:
    """`EncoderDecoder` and `Generator` of the page, at inference, in float64."""

    def __init__(self, model, layers, heads):
        self.weights = {
            variable.path.removeprefix("model/"): to_numpy(variable.value)
            for variable in model.weights
        }
        self.layers, self.heads = layers, heads
        self.attention = {}

    def w(self, path):
        return self.weights[path].astype("float64")

    def linear(self, path, x):
        return x @ self.w(f"{path}/kernel") + self.w(f"{path}/bias")

    def norm(self, path, x, eps=1e-6):
        """a_2 (x - mean) / (std + eps) + b_2, with torch's std: divided by n - 1."""
        mean = x.mean(-1, keepdims=True)
        std = np.sqrt(((x - mean) ** 2).sum(-1, keepdims=True) / (x.shape[-1] - 1))
        return self.w(f"{path}/gamma") * (x - mean) / (std + eps) + self.w(
            f"{path}/beta"
        )

    def sublayer(self, path, x, function, *others):
        return x + function(path, self.norm(f"{path}_norm", x), *others)

    def multi_head(self, path, query, memory, mask):
        memory = query if memory is None else memory
        batch, width = len(query), query.shape[-1]

        def split(name, x):
            y = self.linear(f"{path}/{name}", x)
            y = y.reshape(batch, -1, self.heads, width // self.heads)
            return y.transpose(0, 2, 1, 3)

        q, k, v = split("query", query), split("key", memory), split("value", memory)
        scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(width // self.heads)
        scores = np.where(mask[:, None], scores, -1e9)
        p_attn = np.exp(scores - scores.max(-1, keepdims=True))
        p_attn = p_attn / p_attn.sum(-1, keepdims=True)
        self.attention[path] = p_attn
        x = (p_attn @ v).transpose(0, 2, 1, 3).reshape(batch, -1, width)
        return self.linear(f"{path}/output", x)

    def feed_forward(self, path, x):
        inner = np.maximum(self.linear(f"{path}/intermediate", x), 0.0)
        return self.linear(f"{path}/output", inner)

    def embed(self, path, tokens):
        table = self.w(f"{path}/token_embedding/embeddings")
        width = table.shape[1]
        pe = np.zeros((tokens.shape[1], width))
        for position, i in np.ndindex(tokens.shape[1], width // 2):
            angle = position / 10000 ** (2 * i / width)
            pe[position, 2 * i], pe[position, 2 * i + 1] = np.sin(angle), np.cos(angle)
        return table[tokens] * np.sqrt(width) + pe

    def encode(self, tokens, mask):
        x = self.embed("encoder", tokens)
        for n in range(self.layers):
            layer = f"encoder/layer_{n}"
            x = self.sublayer(f"{layer}/self_attention", x, self.multi_head, None, mask)
            x = self.sublayer(f"{layer}/feed_forward", x, self.feed_forward)
        return self.norm("encoder/final_norm", x)

    def decode(self, tokens, mask, memory, memory_mask):
        x = self.embed("decoder", tokens)
        for n in range(self.layers):
            layer = f"decoder/layer_{n}"
            x = self.sublayer(f"{layer}/self_attention", x, self.multi_head, None, mask)
            x = self.sublayer(
                f"{layer}/cross_attention", x, self.multi_head, memory, memory_mask
            )
            x = self.sublayer(f"{layer}/feed_forward", x, self.feed_forward)
        return self.norm("decoder/final_norm", x)

    def generator(self, x):
        x = self.linear("head", x)
        x = x - x.max(-1, keepdims=True)
        return x - np.log(np.exp(x).sum(-1, keepdims=True))


def subsequent_mask(size):
    return np.tril(np.ones((1, size, size), bool))


@pytest.fixture(scope="module")
def translation():
    """A model, its page, and sentences of which some are padded."""
    model = make_model(SOURCE, TARGET, **SIZE)
    perturb(model.weights)
    for stack in ("encoder", "decoder"):  # the page multiplies them by sqrt(d_model)
        table = getattr(model, stack).token_embedding.embeddings
        table.assign(table.value / 24**0.5)
    random = np.random.default_rng(0)
    source = random.integers(3, SOURCE, (3, 7), dtype="int32")
    target = random.integers(3, TARGET, (3, 5), dtype="int32")
    source_mask, target_mask = padding([7, 4, 1], 7), padding([5, 5, 2], 5)
    source, target = np.where(source_mask, source, 0), np.where(target_mask, target, 0)
    return model, Page(model, 2, 4), source, target, source_mask, target_mask


def test_log_probabilities_equal_the_page(translation):
    model, page, source, target, source_mask, target_mask = translation
    memory = page.encode(source, source_mask[:, None])
    mask = target_mask[:, None] & subsequent_mask(5)
    expected = page.generator(page.decode(target, mask, memory, source_mask[:, None]))
    got = ops.log_softmax(
        model(dict(encoder_token_ids=source, decoder_token_ids=target))
    )
    got = to_numpy(got)
    np.testing.assert_allclose(np.exp(got).sum(-1), 1.0, atol=1e-5)
    assert difference(got[target_mask], expected[target_mask]) <= 1e-6


def test_attention_equals_the_page_and_sees_no_later_word(translation):
    model, page, source, target, source_mask, target_mask = translation
    memory = page.encode(source, source_mask[:, None])
    mask = target_mask[:, None] & subsequent_mask(5)
    page.decode(target, mask, memory, source_mask[:, None])
    states, _ = model.encode(dict(encoder_token_ids=source))
    _, weights = model.decoder(
        target,
        padding_mask=target_mask,
        memory=states,
        memory_padding_mask=source_mask,
        return_weights=True,
    )
    for kind, layers in weights.items():
        for n, got in enumerate(layers):
            got = to_numpy(got)
            expected = page.attention[f"decoder/layer_{n}/{kind}"]
            np.testing.assert_allclose(
                np.moveaxis(got, 1, 2)[target_mask],
                np.moveaxis(expected, 1, 2)[target_mask],
                atol=1e-6,
            )
            if kind == "self_attention":
                assert (got[..., ~subsequent_mask(5)[0]] == 0).all()


def test_every_dropout_of_the_page_acts():
    model = make_model(SOURCE, TARGET, **SIZE, dropout=0.3)
    places = {}
    for name, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        places[f"{name} positions"] = stack.embedding_dropout
        for block in stack.blocks[:1]:
            places[f"{name} sublayer"] = block.residual_dropout
            places[f"{name} feed-forward"] = block.feed_forward.inner_dropout
            places[f"{name} attention"] = block.self_attention.weights_dropout
    places["memory attention"] = model.decoder.blocks[0].cross_attention.weights_dropout
    rates = {name: layer.rate for name, layer in places.items()}
    assert rates == {name: 0.1 if "attention" in name else 0.3 for name in places}

    for block in (model.encoder.blocks[1], model.decoder.blocks[1]):
        for layer in block._flatten_layers():
            if isinstance(layer, keras.layers.Dropout):
                layer.rate = 0.0
    inputs = dict(
        encoder_token_ids=np.full((8, 9), 5, "int32"),
        decoder_token_ids=np.full((8, 9), 6, "int32"),
    )
    for layer in places.values():
        layer.rate = 0.0
    still = to_numpy(model(inputs))
    np.testing.assert_array_equal(to_numpy(model(inputs, training=True)), still)
    for name, layer in places.items():
        layer.rate = rates[name]
        assert np.abs(to_numpy(model(inputs, training=True)) - still).max() > 1e-3, name
        layer.rate = 0.0


def test_every_matrix_starts_as_xavier_has_it():
    """Glorot and Bengio (2010): variance 2 / (fan in + fan out), no number above."""
    model = make_model(211, 307, N=1, d_model=96, d_ff=160, h=4)
    for variable in model.weights:
        value = to_numpy(variable.value)
        if value.ndim > 1:
            limit = np.sqrt(6 / sum(value.shape))
            assert 0.99 * limit < np.abs(value).max() <= limit, variable.path
            deviation = np.sqrt(2 / sum(value.shape))
            assert value.std() == pytest.approx(deviation, rel=0.03), variable.path


def test_the_defaults_are_those_of_the_page():
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(make_model).parameters.items()
    }
    assert list(defaults.values())[2:] == [6, 512, 2048, 8, 0.1]
    config = make_model(11, 12, N=1).config  # one layer instead of six: they are alike
    for stack in (config.encoder, config.decoder):
        assert (stack.hidden_dim, stack.intermediate_dim) == (512, 2048)
        assert (stack.num_heads, stack.head_dim, stack.final_norm) == (8, 64, True)
    assert not config.share_embeddings and not config.tie_head and config.head_bias
