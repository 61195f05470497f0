"""Page 001, "Transformers: A Quick Explanation with Code".

The numpy is written from the text, by loops over queries and keys as on the page. What
its code does otherwise than its text and the paper is not followed: its mask hides the
present token, too; `encoder` returns its input; the decoder's last residual skips the
cross-attention; positions have 2i/d as the exponent for odd i, where the pair's 2i is
meant; `layer_norm` mixes the tokens of a sentence, where the text says "the outputs
from a layer" (Ba et al., 2016: of a token). Its matrix is "a substitute for the neural
network": here it is the feed-forward network that the text names.
"""

import keras
import numpy as np
import pytest

from kzoo import CausalLM, ModelConfig, Seq2SeqLM, StackConfig
from kzoo.layers import Attention, LayerNormalization
from kzoo.layers.similarity import SIMILARITIES
from tests.harness import difference, perturb, to_numpy

D, HEADS, F, VOCABULARY, BLOCKS = 6, 4, 10, 11, 3
START, STOP, PAD = 0, VOCABULARY - 1, VOCABULARY - 2
RANDOM = np.random.default_rng(0)


# Attention.


def dictionary(queries, keys, values):
    """Attention with nothing around it: one head that projects by the identity."""
    width = queries.shape[-1]
    layer = Attention(width, 1, use_bias=False, similarity="dot")
    layer.build((None, None, width))
    for kernel in layer.weights:
        kernel.assign(np.eye(width))
    arrays = (np.asarray([x], "float32") for x in (queries, keys, values))
    query, memory, value = map(keras.ops.convert_to_tensor, arrays)
    return to_numpy(layer(query, memory=memory, value=value))[0]


KEYS = np.array([[0, 1], [1, 0]])
VALUES = np.array([[0, 0], [1, 1]])


def test_attention_looks_up_a_dictionary_where_scores_are_large():
    lookup = {tuple(key): value for key, value in zip(KEYS, VALUES, strict=True)}
    for query in KEYS:
        (got,) = dictionary(200 * query[None], KEYS, VALUES)
        np.testing.assert_array_equal(got, lookup[tuple(query)])


def test_attention_is_the_sum_of_values_weighted_by_similarity():
    queries = RANDOM.normal(size=(3, 2))
    expected = []
    for query in queries:
        total_similarity, total_value = 0, 0
        for key, value in zip(KEYS, VALUES, strict=True):
            similarity = np.exp(query @ key)  # as the page has it from its `mha` on
            total_similarity += similarity
            total_value = total_value + similarity * value
        expected.append(total_value / total_similarity)
    assert difference(dictionary(queries, KEYS, VALUES), expected) <= 1e-6


SIMILARITY = {
    "dot": lambda q, k, w: q.T @ k,
    "scaled_dot": lambda q, k, w: q.T @ k / np.sqrt(len(k)),
    "general": lambda q, k, w: q.T @ w @ k,
    "additive": lambda q, k, w: w.T @ q + w.T @ k,
}


def mha(w, path, queries, keys, values, similarity="scaled_dot", masked=False):
    """The page's `mha` and `masked_mha`: loops over heads, queries and keys."""
    heads = []
    for h in range(HEADS):
        part = slice(h * D, (h + 1) * D)
        qs = queries @ w[f"{path}/query/kernel"][:, part]
        ks = keys @ w[f"{path}/key/kernel"][:, part]
        vs = values @ w[f"{path}/value/kernel"][:, part]
        trained = {
            "general": f"{path}/similarity/kernel",
            "additive": f"{path}/similarity/vector",
        }.get(similarity)
        own = None if trained is None else w[trained][h]
        rows = []
        for i, q in enumerate(qs):
            total_similarity, total_value = 0, 0
            for j, k in enumerate(ks):
                if masked and j > i:  # "the vectors representing the future tokens"
                    continue
                score = np.exp(np.squeeze(SIMILARITY[similarity](q, k, own)))
                total_similarity += score
                total_value = total_value + score * vs[j]
            rows.append(total_value / total_similarity)
        heads.append(rows)
    return np.concatenate(heads, axis=1) @ w[f"{path}/output/kernel"]


def weights_of(layer, prefix):
    return {
        variable.path.removeprefix(prefix): to_numpy(variable.value).astype("float64")
        for variable in layer.weights
    }


@pytest.mark.parametrize("similarity", SIMILARITY)
@pytest.mark.parametrize("masked", [False, True], ids=["open", "masked"])
def test_multi_head_attention_equals_the_page(similarity, masked):
    layer = Attention(
        D, HEADS, head_dim=D, use_bias=False, similarity=similarity, name="mha"
    )
    layer.build((None, None, D))
    perturb(layer.weights)
    w = weights_of(layer, "")
    queries, keys, values = RANDOM.normal(size=(3, 5, D)).astype("float32")
    expected = mha(w, "mha", queries, keys, values, similarity, masked)
    got = layer(
        queries[None],
        memory=keys[None],
        value=values[None],
        attention_mask=np.tril(np.ones((1, 1, 5, 5), bool)) if masked else None,
        causal=masked,
    )
    assert difference(to_numpy(got)[0], expected) <= 1e-6


def test_the_four_similarities_of_the_page_are_kzoos():
    assert set(SIMILARITY) <= set(SIMILARITIES)


# Layers.


def layer_norm(x, gain):
    return gain * (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)


def test_layer_norm_has_a_gain():
    layer = LayerNormalization(epsilon=1e-12)
    layer.build((None, 10))
    gain = RANDOM.normal(size=10)
    layer.gamma.assign(gain)
    x = RANDOM.random((1, 10)).astype("float32")
    assert difference(to_numpy(layer(x)), layer_norm(x.astype("float64"), gain)) <= 1e-6


def positions(length):
    pe = np.zeros((length, D))
    for pos in range(length):
        for i in range(D):
            angle = pos / 10000 ** (2 * (i // 2) / D)
            pe[pos, i] = np.sin(angle) if i % 2 == 0 else np.cos(angle)
    return pe


def run(w, name, words, memory=None, masked=True):
    """The page's `encoder` and `decoder`, to the last block's output, (seq_len, d)."""
    x = w[f"{name}/token_embedding/embeddings"][words] + positions(len(words))
    for n in range(BLOCKS):
        path = f"{name}/layer_{n}"
        out = mha(w, f"{path}/self_attention", x, x, x, masked=masked)
        x = layer_norm(out + x, w[f"{path}/self_attention_norm/gamma"])
        if memory is not None:
            out = mha(w, f"{path}/cross_attention", x, memory, memory)
            x = layer_norm(out + x, w[f"{path}/cross_attention_norm/gamma"])
        inner = np.maximum(x @ w[f"{path}/feed_forward/intermediate/kernel"], 0)
        out = inner @ w[f"{path}/feed_forward/output/kernel"]
        x = layer_norm(out + x, w[f"{path}/feed_forward_norm/gamma"])
    return x


def next_word(w, states):
    """The probabilities of the new word, from the last vector."""
    powers = np.exp(states[-1] @ w["head/kernel"])
    powers[PAD] = 0  # the page has no such word
    return powers / powers.sum()


def stack(**changes):
    return StackConfig(
        vocabulary_size=VOCABULARY,
        num_layers=BLOCKS,
        hidden_dim=D,
        num_heads=HEADS,
        head_dim=D,
        intermediate_dim=F,
        norm_position="post",
        norm_epsilon=1e-12,
        use_bias=False,
        **changes,
    )


def started(kind, **stacks):
    """A model with random weights and no shift in its norms, and the weights.

    A bias of the head keeps padding, which the page does not have, from being drawn.
    """
    config = ModelConfig(
        **stacks,
        tie_head=False,
        head_bias=True,
        start_token_id=START,
        end_token_id=STOP,
        pad_token_id=PAD,
    )
    model = kind(config, name="model")
    perturb(model.weights)
    for variable in model.weights:
        if variable.path.endswith("beta"):
            variable.assign(np.zeros(variable.shape))
    model.head.bias.assign(-1e9 * (np.arange(VOCABULARY) == PAD))
    return model, weights_of(model, "model/")


def test_encoder_and_decoder_equal_the_page():
    decoder = stack(causal=True, cross_attention=True)
    model, w = started(Seq2SeqLM, encoder=stack(), decoder=decoder)
    sentence, words = np.array([[3, 1, 7]]), np.array([[0, 5, 5, 2]])
    memory = run(w, "encoder", sentence[0], masked=False)
    assert difference(to_numpy(model.encoder(sentence))[0], memory) <= 1e-6
    expected = next_word(w, run(w, "decoder", words[0], memory))
    logits = model(dict(encoder_token_ids=sentence, decoder_token_ids=words))
    got = to_numpy(keras.ops.softmax(logits))[0, -1]
    assert difference(got, expected) <= 1e-6


def test_a_decoder_works_without_the_encoder():
    """The page: a "text generation task where there is no input" needs no encoder."""
    model, w = started(CausalLM, decoder=stack(causal=True))
    words = np.array([[0, 5, 5, 2]])
    expected = next_word(w, run(w, "decoder", words[0]))
    got = to_numpy(keras.ops.softmax(model(dict(token_ids=words))))[0, -1]
    assert difference(got, expected) <= 1e-6


# Generation: words are drawn until the stop token, or up to a maximum.


def test_generated_words_follow_the_softmax():
    decoder = stack(causal=True, cross_attention=True)
    model, w = started(Seq2SeqLM, encoder=stack(), decoder=decoder)
    count, sentence = 2000, np.array([3, 1, 7])
    memory = run(w, "encoder", sentence, masked=False)
    drawn = model.generate(
        np.tile(sentence, (count, 1)),
        max_new_tokens=2,
        temperature=1.0,
        seed=7,
        batch_size=count,
    )

    def check(words, follow_up):
        p = next_word(w, run(w, "decoder", np.array([START, *words]), memory))
        got = np.bincount(follow_up, minlength=VOCABULARY) / len(follow_up)
        assert np.abs(got - p).max() <= 4 * np.sqrt(p.max() / len(follow_up))
        return int(p[:STOP].argmax())

    # A list ends before the stop token.
    likely = check([], [words[0] if words else STOP for words in drawn])
    after = [words[1:] for words in drawn if words[:1] == [likely]]
    check([likely], [words[0] if words else STOP for words in after])


def test_generation_ends_at_the_stop_token_or_the_maximum():
    model, _ = started(CausalLM, decoder=stack(causal=True))
    drawn = model.generate(
        np.full((200, 1), START), max_new_tokens=20, temperature=1.0, batch_size=200
    )
    lengths = [len(words) for words in drawn]
    assert min(lengths) < 20 and max(lengths) == 20
    assert not any({STOP, PAD} & set(words) for words in drawn)
    again = model.generate(
        np.full((200, 1), START), max_new_tokens=20, temperature=1.0, batch_size=200
    )
    assert again == drawn
