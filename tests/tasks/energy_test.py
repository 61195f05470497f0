"""The energy of a pair is the reference's negative log-likelihood."""

import numpy as np
import pytest

import kzoo
from kzoo.tokenizers import Template
from tests.harness import perturb, to_numpy
from tests.reference import Reference
from tests.words import PAIRS, TOKENIZER, WORDS, causal, perturbed, seq2seq


def reference_of(model):
    perturb(model.trainable_variables)
    weights = {k: to_numpy(v.value) for k, v in model.named_variables().items()}
    return Reference(model.config, weights)


def expected(model, reference, target, source=None):
    """-log p of a row's tokens after the start token, one by one in float64."""
    config = model.config
    ids = [config.start_token_id, *TOKENIZER.encode([target])[0], config.end_token_id]
    encoder_ids = None
    if source is not None:
        encoder_ids = [[*TOKENIZER.encode([source])[0], config.end_token_id]]
    logits = reference.logits([ids[:-1]], encoder_token_ids=encoder_ids)[0]
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -sum(log_p[t, ids[t + 1]] for t in range(len(ids) - 1))


def test_energy_of_translations():
    model = seq2seq()
    reference = reference_of(model)
    sources, targets = zip(*[(s, t[::-1][:2]) for s, t in PAIRS], strict=True)
    got = model.energy(sources, targets, batch_size=3)
    rows = zip(targets, sources, strict=True)
    want = [expected(model, reference, *row) for row in rows]
    np.testing.assert_allclose(got, want, rtol=1e-5)
    pairs = list(zip(sources, targets, strict=True))
    np.testing.assert_allclose(model.energy(pairs), got, rtol=1e-5)


def test_energy_of_texts_and_of_ids():
    model = causal()
    reference = reference_of(model)
    words = [*WORDS[:5], "abcabc"]
    got = model.energy(words, batch_size=4)
    want = [expected(model, reference, word) for word in words]
    np.testing.assert_allclose(got, want, rtol=1e-5)
    inputs, targets = model.encode_text(words)
    np.testing.assert_allclose(model.energy(inputs, targets), want, rtol=1e-5)


def test_training_lowers_the_energy_of_the_data():
    model = causal()
    model.compile(kzoo.training.Adam(1e-2))
    before = model.energy(WORDS).mean()
    model.fit(WORDS, epochs=3, verbose=0)
    assert model.energy(WORDS).mean() < 0.8 * before


def test_the_energy_is_minus_the_score_of_what_search_found():
    model = seq2seq()
    source = np.array([[5, 6, 7, 2]])
    (found,), (score,) = model.generate(
        source, beams=4, max_new_tokens=6, length_penalty=0.0, return_scores=True
    )
    targets = np.array([[*found, model.config.end_token_id][:6]])
    ids = np.insert(targets[:, :-1], 0, model.config.start_token_id, axis=1)
    inputs = {"encoder_token_ids": source, "decoder_token_ids": ids}
    assert model.energy(inputs, targets)[0] == pytest.approx(-score, rel=1e-5)


def test_pairs_are_needed_where_the_task_has_two_sides():
    with pytest.raises(ValueError, match="learns from pairs"):
        seq2seq().energy(["ab", "cd"])


def test_perplexity_and_bits_follow_from_the_energy():
    model = causal()
    words = ["abc", "dd", "abcabc"]
    energy = model.energy(words).sum()
    tokens = 3 + 2 + 6 + 3  # with an end each; a character is a token here
    score = model.score(words)
    assert score["perplexity"] == pytest.approx(np.exp(energy / tokens), rel=1e-6)
    assert score["bits_per_character"] == pytest.approx(
        energy / np.log(2) / tokens, rel=1e-6
    )


def test_a_model_that_diverged_has_a_number_and_without_a_start_no_first_token():
    model = perturbed(causal())
    table = model.named_variables()["decoder/token_embedding/embeddings"]
    table.assign(table.value * 1e4)
    assert model.score(["abc"])["perplexity"] == pytest.approx(np.exp(700))
    # Nothing stands before a text, as GPT-2 reads it: its first letter is only read.
    template = Template.of((), ())
    tokenizer = TOKENIZER.with_conventions(template=template)
    model = causal(tokenizer)
    energy = model.energy(["abc", "d"]).sum()
    score = model.score(["abc", "d"])
    assert score["perplexity"] == pytest.approx(np.exp(energy / 4), rel=1e-6)
    bits = energy / np.log(2) / 4  # "b", "c" and two ends
    assert score["bits_per_character"] == pytest.approx(bits, rel=1e-6)
    assert model.score(["abc", "d", ""]) == pytest.approx(score)  # of which none is
    with pytest.raises(ValueError, match="needs a second one to be scored"):
        model.score([""])


def test_a_weight_that_is_not_finite_is_named():
    model = causal()
    weight = model.named_variables()["decoder/final_norm/gamma"]
    weight.assign(np.full(weight.shape, np.nan))
    with pytest.raises(ValueError, match="weight decoder/final_norm/gamma.*be scored"):
        model.score(WORDS)


def test_what_learned_positions_would_cut_is_refused():
    short = dict(positions="learned", max_sequence_length=4)
    model = causal(**short)
    assert np.isfinite(model.energy(["abc"])).all()  # start and three letters
    match = "positions hold 4 tokens.*would not count.*5 tokens in token_ids of .* 1"
    for verb in (model.energy, model.score):
        with pytest.raises(ValueError, match=match):
            verb(["abc", "abcd"])
    model = seq2seq(**short)
    assert np.isfinite(model.energy(["abc"], ["abc"])).all()
    with pytest.raises(ValueError, match="5 tokens in encoder_token_ids of example 0"):
        model.energy(["abcd"], ["a"])
    with pytest.raises(ValueError, match="5 tokens in decoder_token_ids of example 0"):
        model.energy(["a"], ["abcd"])


@pytest.mark.parametrize("missing", [None, float("nan"), ["ab"]])
def test_a_missing_translation_is_named_before_any_is_generated(monkeypatch, missing):
    model = seq2seq()
    monkeypatch.setattr(kzoo.Seq2SeqLM, "generate", None)
    with pytest.raises(TypeError, match="score expects a list of strings.*at index 1"):
        model.score(["ab", "ba"], ["ab", missing])


def test_translations_are_scored_by_sacrebleu(monkeypatch):
    model = seq2seq()
    said = ["the cat sat on the mat", "a dog ran home"]
    monkeypatch.setattr(model, "generate", lambda x, beams: said[:beams])
    score = model.score(
        ["x", "y"], ["the cat sat on the mat", "a dog ran away"], beams=2
    )
    # 9 of 10 words, 7 of 8 pairs, 5 of 6 triples, 3 of 4 fours; lengths are equal.
    expected = 100 * (9 / 10 * 7 / 8 * 5 / 6 * 3 / 4) ** 0.25
    assert score["bleu"] == pytest.approx(expected, abs=1e-6)
    assert "case:mixed" in score["signature"] and 0 < score["chrf"] < 100
    with pytest.raises(ValueError, match="Every source needs a target.*2 and 1"):
        model.score(["x", "y"], ["z"])
