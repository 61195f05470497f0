"""What tasks show of themselves: an answer as text, and where they look."""

import numpy as np
import pytest

import kzoo
from kzoo.zoo.illustrations import attention_of, outputs_of
from tests.harness import perturb

SIZE = dict(num_layers=1, hidden_dim=8, num_heads=2, intermediate_dim=8)


@pytest.fixture(scope="module")
def tokenizer():
    return kzoo.FastTokenizer.train(
        ["abc de"], 30, algorithm="character", mask_token=True
    )


def make(kind, tokenizer, **options):
    task = kind.from_size("tiny", tokenizer, **SIZE, **options)
    perturb(task.weights)
    return task


def test_a_class_has_its_probability(tokenizer):
    task = make(kzoo.TextClassifier, tokenizer, labels=["good", "bad"])
    names, shares = task.classify(["abc", "de"], return_probabilities=True)
    outputs = outputs_of(task, ["abc", "de"])
    for output, name, row in zip(outputs, names, shares, strict=True):
        assert output == f"{name} ({100 * max(row):.1f}%)"


def test_every_word_has_its_label(tokenizer):
    task = make(kzoo.TokenClassifier, tokenizer, labels=["N", "V"])
    (labels,) = task.tag([["abc", "de"]])
    assert outputs_of(task, ["abc de"]) == [f"abc/{labels[0]} de/{labels[1]}"]


def test_a_pair_of_texts_has_its_cosine(tokenizer):
    task = make(kzoo.SentenceEmbedder, tokenizer)
    a, b = task.embed(["abc", "de"])
    cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    same, other = outputs_of(task, [["abc", "abc"], ["abc", "de"]])
    assert same == "cosine 1.000" and other == f"cosine {cosine:.3f}"


def test_a_text_has_the_nearest_other_one(tokenizer):
    task = make(kzoo.SentenceEmbedder, tokenizer)
    first, second, third = outputs_of(task, ["abc", "ed", "abc"])
    assert first == third == "cosine 1.000: abc"
    assert second.endswith(": abc") and not second.startswith("cosine 1.000")


def test_a_text_alone_has_no_nearest(tokenizer):
    with pytest.raises(ValueError, match="two at least"):
        outputs_of(make(kzoo.SentenceEmbedder, tokenizer), ["abc"])


def test_a_mask_has_its_candidates(tokenizer):
    task = make(kzoo.MaskedLM, tokenizer)
    ((first, second, third),) = task.fill(["a<mask>c"], top_k=3)[0:1][0]
    (output,) = outputs_of(task, ["a<mask>c"])
    shown = [f"{c.token} ({c.probability:.1%})" for c in (first, second, third)]
    assert output == ", ".join(shown)


def test_an_encoder_looks_at_what_it_reads(tokenizer):
    task = make(kzoo.TextClassifier, tokenizer, labels=["good", "bad"])
    (weights,), tokens, read = attention_of(task, "abc")
    assert read is None and weights.shape == (1, 2, len(tokens), len(tokens))
    assert [t for t in tokens if len(t) == 1] == ["a", "b", "c"]
    np.testing.assert_allclose(weights.sum(axis=-1), 1.0, atol=1e-5)


def test_an_embedder_looks_at_the_first_text_of_a_pair(tokenizer):
    task = make(kzoo.SentenceEmbedder, tokenizer)
    _, tokens, _ = attention_of(task, ["ab", "cd"])
    assert [t for t in tokens if len(t) == 1] == ["a", "b"]


def test_a_pair_that_is_read_together_is_looked_at_together(tokenizer):
    task = make(kzoo.PairScorer, tokenizer)
    _, tokens, _ = attention_of(task, ["ab", "cd"])
    assert [t for t in tokens if len(t) == 1] == ["a", "b", "c", "d"]


def test_a_decoder_looks_at_what_it_wrote_too(tokenizer):
    task = make(kzoo.CausalLM, tokenizer)
    (weights,), tokens, read = attention_of(task, "ab", max_new_tokens=4)
    (ids,) = task.encode_prompts(["ab"])
    (found,) = task.generate([ids], max_new_tokens=4)
    assert read is None and len(tokens) == len(ids) + len(found)
    assert weights.shape[2:] == (len(tokens), len(tokens))
    assert not np.triu(weights[0, 0], 1).any()  # the past alone
