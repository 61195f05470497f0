"""Masks are the field's, follow from seed and batch, and touch nothing special."""

import keras
import numpy as np
import pytest

import kzoo
from kzoo.config import ModelConfig
from kzoo.tokenizers import FastTokenizer, SentencePieceTokenizer
from kzoo.training import ResumableCheckpoint
from tests.harness import KillBefore, Killed, perturb, to_numpy
from tests.words import WORDS, compiled

START, END, UNKNOWN, MASK = 1, 2, 3, 4
SMALL = dict(num_layers=1, hidden_dim=16, intermediate_dim=16, num_heads=2, dropout=0.0)
TOKENIZER = FastTokenizer.train(WORDS, 9, algorithm="character", mask_token=True)
A, B, C, D = (TOKENIZER.encode([letter])[0][0] for letter in "abcd")
TEXTS = [a * 2 + b * 2 for a in WORDS[:6] for b in WORDS[:5]]


def task(tokenizer=TOKENIZER, **changes):
    return kzoo.MaskedLM.from_size(
        "tiny", tokenizer, name="masked", **{**SMALL, **changes}
    )


def perturbed(model):
    perturb(model.named_variables().values())
    return model


# Masks.


def test_eight_of_ten_chosen_tokens_are_masked_and_one_stays():
    model = task(None, vocabulary_size=1000, mask_token_id=MASK)
    ids = np.random.default_rng(0).integers(5, 1000, (200, 400))
    inputs, targets = model.masked({"token_ids": ids}, 1)
    chosen = targets != -1
    np.testing.assert_array_equal(targets[chosen], ids[chosen])
    np.testing.assert_array_equal(inputs["token_ids"][~chosen], ids[~chosen])
    # 80,000 tokens: three standard deviations are below 0.004 and 0.011.
    assert chosen.mean() == pytest.approx(0.15, abs=0.004)
    after, before = inputs["token_ids"][chosen], ids[chosen]
    assert (after == MASK).mean() == pytest.approx(0.8, abs=0.011)
    assert (after == before).mean() == pytest.approx(0.1, abs=0.01)
    other = after[(after != MASK) & (after != before)]
    assert len(other) / len(after) == pytest.approx(0.1, abs=0.01)
    assert len(np.unique(other)) > 500 and other.min() >= 5
    assert task(mask_rate=0.6).masked({"token_ids": ids % 4 + 5}, 0)[1].max() == 8


def test_special_tokens_and_padding_are_never_chosen_and_a_token_always_is():
    model = task()
    ids = np.array([[START, A, END, 0, 0], [START, UNKNOWN, B, MASK, END], [0] * 5])
    ids = np.concatenate([ids, ids[:, ::-1]])
    counts = np.zeros(ids.shape, int)
    for index in range(200):
        inputs, targets = model.masked({"token_ids": ids}, index)
        counts += targets != -1
        np.testing.assert_array_equal(targets[targets != -1], ids[targets != -1])
        assert not (
            np.isin(inputs["token_ids"], [0, START, END]) & (targets != -1)
        ).any()
    # "a" alone is chosen every time; of two tokens one at least, sometimes both.
    assert counts[0].tolist() == [0, 200, 0, 0, 0]
    assert counts[1, [0, 3, 4]].tolist() == [0, 0, 0]
    assert (counts[1, 1:3] > 60).all() and counts[1].sum() > 200
    assert counts[2].sum() == counts[5].sum() == 0
    # A mask says what is padding, whatever the id.
    real = ids == B
    _, targets = model.masked({"token_ids": ids, "padding_mask": real}, 0)
    assert ((targets != -1) == real).all()


def test_masks_follow_from_seed_and_batch():
    model, other = task(), task()
    batch = {"token_ids": np.full((4, 50), A)}
    first = model.masked(batch, 3, seed=5)[0]["token_ids"]
    np.testing.assert_array_equal(other.masked(batch, 3, seed=5)[0]["token_ids"], first)
    for index, seed in ((4, 5), (3, 6), (5, 3)):
        different = model.masked(batch, index, seed)[0]["token_ids"]
        assert (different != first).any()


def unmasked(batch):
    """The ids of a batch before any was masked."""
    ids, places = batch["token_ids"].copy(), batch["masked_positions"]
    there = np.take_along_axis(ids, places, axis=1)
    there = np.where(batch["targets"] < 0, there, batch["targets"])
    np.put_along_axis(ids, places, there, axis=1)
    return ids


def test_batches_of_texts_ask_for_chosen_places_alone():
    model = compiled(perturbed(task()), eager=True)
    features = model.encode_examples(TEXTS)
    batch = model.batches(features, batch_size=len(TEXTS), shuffle=False)[0]
    places, targets = batch["masked_positions"], batch.pop("targets")
    plain = {"token_ids": unmasked({**batch, "targets": targets})}
    plain["padding_mask"] = plain["token_ids"] != 0
    inputs, wanted = model.masked(plain, 0)
    np.testing.assert_array_equal(inputs["token_ids"], batch["token_ids"])
    assert (targets != -1).sum() == (wanted != -1).sum() > len(TEXTS)
    assert places.shape[1] < wanted.shape[1] / 2
    chosen = np.take_along_axis(wanted, places, axis=1)
    np.testing.assert_array_equal(targets, chosen)
    logits, every = to_numpy(model(batch)), to_numpy(model(inputs))
    expected = np.take_along_axis(every, places[..., None], axis=1)
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)
    loss = model.evaluate(batch, targets, verbose=0)
    np.testing.assert_allclose(
        loss, model.evaluate(inputs, wanted, verbose=0), rtol=1e-5
    )


def test_every_epoch_has_other_masks_and_validation_the_same(monkeypatch):
    model = compiled(task(), eager=True)
    made, pipeline = [], model.pipeline

    def remembered(batches, **options):
        made.append(batches)
        return pipeline(batches, **options)

    monkeypatch.setattr(model, "pipeline", remembered)
    options = dict(batch_size=8, shuffle=False, verbose=0, validation_data=TEXTS[:8])
    model.fit(TEXTS[:8], epochs=2, **options)
    training, held_out = made
    one, two = training[0], training[len(training)]
    np.testing.assert_array_equal(unmasked(one), unmasked(two))  # the same text
    assert not np.array_equal(one["masked_positions"], two["masked_positions"])
    np.testing.assert_array_equal(held_out[0]["targets"], list(held_out)[0]["targets"])
    texts = TEXTS[:8]
    assert model.evaluate(texts, verbose=0) == model.evaluate(texts, verbose=0)


def test_resuming_gives_the_same_weights_bit_by_bit(tmp_path):
    def fit(model, *callbacks):
        model.fit(TEXTS[:20], batch_size=8, epochs=2, callbacks=callbacks, verbose=0)

    whole, first, second = (compiled(task(), eager=True) for _ in range(3))
    first.set_weights(whole.get_weights())
    fit(whole)
    path = tmp_path / "resume.npz"
    with pytest.raises(Killed):
        fit(first, ResumableCheckpoint(path), KillBefore(1))
    fit(second, ResumableCheckpoint(path))
    for got, want in zip(second.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_array_equal(got, want)


# Data in every form.


def test_it_learns_and_fills():
    model = compiled(task(), keras.optimizers.Adam(0.02))
    texts = [letter * n for letter in "abcd" for n in (3, 4, 5, 6, 7)]
    history = model.fit(texts * 3, epochs=12, batch_size=20, verbose=0).history
    assert history["accuracy"][-1] > 0.9 and history["perplexity"][-1] < 2.0
    ((first, second),) = model.fill(["bb<mask>b<mask>"], top_k=2)
    for found in (first, second):
        assert (found[0].token, found[0].token_id) == ("b", B)
        assert found[0].probability > 0.5 > found[1].probability
    scores = model.score(texts)
    assert scores["accuracy"] > 0.9 and scores == model.score(texts)


def test_strings_and_ids_are_masked_alike():
    model = compiled(perturbed(task(num_segments=2)), eager=True)
    texts = TEXTS[:16]
    inputs, _ = model.encode_text(texts)
    options = dict(batch_size=8, verbose=0)
    expected = model.evaluate(texts, **options)
    np.testing.assert_allclose(model.evaluate(inputs, **options), expected, rtol=1e-6)
    left = {name: array[:, ::-1] for name, array in inputs.items()}
    left["padding_mask"] = left["token_ids"] != 0
    left["token_ids"] = np.sort(left["token_ids"])  # padding in front
    assert np.isfinite(model.evaluate(left, **options)).all()
    history = model.fit(
        inputs, epochs=2, batch_size=8, verbose=0, validation_data=inputs
    ).history
    assert len(set(history["loss"])) == 2 and history["val_loss"][0] > 0


def test_a_batch_alone_is_masked_and_read_as_those_of_fit_and_predict():
    model, same = perturbed(task()), perturbed(task())
    same.set_weights(model.get_weights())
    for each in (model, same):
        compiled(each, keras.optimizers.SGD(0.0), eager=True)
    texts = [word for word in WORDS if len(word) == 2][:8]  # of four tokens
    options = dict(shuffle=False, batch_size=8, epochs=2, verbose=0)
    losses = model.fit(texts, **options).history["loss"]
    assert losses[0] != losses[1]  # other tokens are masked in each step
    ids = same.encode_text(texts)[0]
    for data, loss in zip((texts, ids), losses, strict=True):
        assert same.train_on_batch(data)[0] == pytest.approx(loss, rel=1e-5)
    assert same.test_on_batch(texts)[0] == pytest.approx(losses[0], rel=1e-5)
    masked = ["ab<mask>", "a<mask>b"]
    expected = np.stack(same.predict(masked, verbose=0))
    np.testing.assert_allclose(
        to_numpy(same.predict_on_batch(masked)), expected, atol=1e-5
    )
    with pytest.raises(ValueError, match="not empty. Received: 1 empty"):
        same.train_on_batch([""])


def test_targets_that_are_given_are_taken_as_they_are():
    model = compiled(perturbed(task()), eager=True)
    ids = np.array([[START, A, MASK, C, END], [START, MASK, B, END, 0]])
    targets = np.array([[-1, -1, B, -1, -1], [-1, A, D, -1, -1]])
    logits = model.predict({"token_ids": ids}, verbose=0).astype("float64")
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    picked = [logs[0, 2, B], logs[1, 1, A], logs[1, 2, D]]
    got = model.evaluate({"token_ids": ids}, targets, verbose=0, return_dict=True)
    assert got["loss"] == pytest.approx(-np.mean(picked), rel=1e-5)
    assert got["perplexity"] == pytest.approx(np.exp(-np.mean(picked)), rel=1e-5)
    right = logits.argmax(-1)[targets != -1] == targets[targets != -1]
    assert got["accuracy"] == pytest.approx(right.mean())
    model.fit({"token_ids": ids}, targets, verbose=0)


def test_a_pipeline_gives_what_masked_makes():
    import grain

    model = compiled(perturbed(task()), eager=True)
    inputs, _ = model.encode_text(TEXTS)
    batches = grain.MapDataset.source([inputs]).repeat(2)
    batches = batches.map_with_index(lambda index, batch: model.masked(batch, index))
    history = model.fit(batches, verbose=0).history
    assert np.isfinite(history["loss"]).all()


def test_a_long_text_has_several_rows_and_loses_nothing():
    model = task(positions="learned", max_sequence_length=9)
    text = "".join(WORDS)[:50]
    rows = model.encode_examples(["ab", text, ""])["token_ids"]
    assert rows[0] == [START, A, B, END] and rows[-1] == [START, END]
    assert max(map(len, rows)) == 9 and len(rows) == 1 + 8 + 1
    assert all(row[0] == START and row[-1] == END for row in rows)
    inner = [token for row in rows[1:-1] for token in row[1:-1]]
    assert inner == TOKENIZER.encode([text])[0]


# Predictions.


def test_candidates_are_the_most_probable_of_all_tokens():
    model = perturbed(task())
    (logits,) = model.predict(["ab<mask>"], verbose=0)
    assert logits.shape == (5, 9)  # start, a, b, mask, end
    expected = np.exp(logits[3]) / np.exp(logits[3]).sum()
    ((found,),) = model.fill(["ab<mask>"], top_k=9)
    assert [each.token_id for each in found] == np.argsort(-expected).tolist()
    got = [each.probability for each in found]
    np.testing.assert_allclose(got, np.sort(expected)[::-1], rtol=1e-5)
    assert {each.token for each in found} >= {"a", "b", "c", "d", "<mask>"}


@pytest.mark.parametrize(
    "changes",
    [
        dict(activation="relu"),
        dict(activation="gelu", norm="rms_norm", tie_head=False),
    ],
    ids=["tied", "own"],
)
def test_the_head_is_that_of_bert(changes):
    from math import erf, sqrt

    model = perturbed(task(**changes))
    weights = {
        n: to_numpy(v.value).astype("float64")
        for n, v in model.named_variables().items()
    }
    ids = {"token_ids": np.array([[START, A, MASK, END]])}
    x = to_numpy(model.states(ids)[0]).astype("float64")
    x = x @ weights["head/hidden/kernel"] + weights["head/hidden/bias"]
    if changes["activation"] == "relu":
        x = np.maximum(x, 0)
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        x = x * weights["head/norm/gamma"] + weights["head/norm/beta"]
        table = weights["encoder/token_embedding/embeddings"].T
    else:
        x = x * np.vectorize(lambda v: 0.5 * (1 + erf(v / sqrt(2))))(x)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
        x = x * weights["head/norm/scale"]
        table = weights["head/output/kernel"]
    expected = x @ table + weights["head/output/bias"]
    np.testing.assert_allclose(to_numpy(model(ids)), expected, rtol=2e-5, atol=2e-5)
    # A tied table is held once.
    assert ("head/output/kernel" in weights) == ("tie_head" in changes)


@pytest.mark.parametrize("positions", ["learned", "relative"])
def test_padding_on_either_side_and_other_rows_change_nothing(positions):
    model = perturbed(task(positions=positions, max_sequence_length=40))
    table = model.encoder.token_embedding.embeddings
    table.assign(table.value / model.config.encoder.embedding_scale)
    ids = np.array([[START, A, MASK, C, END], [START, D, A, MASK, END]])
    expected = model.predict({"token_ids": ids}, verbose=0)
    for left, right in ((0, 3), (3, 0), (2, 5)):
        padded = np.pad(ids, ((0, 0), (left, right)))
        got = model.predict({"token_ids": padded}, verbose=0)[:, left : left + 5]
        assert np.abs(got - expected).max() <= 1e-5
    texts = ["ab<mask>dab", "<mask>", "cab"]
    for text, rows in zip(texts, model.predict(texts, verbose=0), strict=True):
        assert np.abs(model.predict([text], verbose=0)[0] - rows).max() <= 1e-5


# Files, and other tasks.


@pytest.mark.parametrize(
    "format", ["onnx", pytest.param("tf_saved_model", marks=pytest.mark.tensorflow)]
)
def test_artifacts_give_the_logits_of_every_token(tmp_path, format):
    report = perturbed(task()).export(tmp_path / "model", format)
    assert list(report.functions["forward"]["outputs"]) == ["logits"]
    assert len(report.checks) >= 3
    assert all(check["difference"] <= 1e-4 for check in report.checks)


def test_files_hold_the_task(tmp_path):
    head = dict(hidden_activation="silu", hidden_bias=False, output_bias=False)
    model = compiled(perturbed(task(mask_rate=0.3, max_length=12, **head)))
    model.save_folder(tmp_path / "folder")
    model.save(tmp_path / "model.keras")
    expected = model.fill(["ab<mask>d"])
    for loaded in (
        kzoo.load_task(tmp_path / "folder"),
        kzoo.load_model(tmp_path / "model.keras"),
    ):
        assert type(loaded) is kzoo.MaskedLM
        assert loaded.options == dict(mask_rate=0.3, max_length=12, **head)
        assert loaded.config.mask_token_id == MASK
        for got, want in zip(loaded.fill(["ab<mask>d"])[0][0], expected[0][0]):
            assert got[:2] == want[:2]
            assert got.probability == pytest.approx(want.probability)


def test_another_task_starts_from_its_encoder(tmp_path):
    model = perturbed(task())
    model.save_folder(tmp_path)
    ids = {"token_ids": np.array([[START, A, B, END]])}
    expected = to_numpy(model.states(ids)[0])
    for source in (model, tmp_path):
        tagger = kzoo.TokenClassifier(
            model.config.replace(encoder=model.config.encoder.replace(dropout=0.3)),
            labels=["X", "Y"],
            tokenizer=TOKENIZER,
        )
        head = to_numpy(tagger.head.output_projection.kernel)
        assert tagger.load_encoder(source) is tagger
        np.testing.assert_array_equal(to_numpy(tagger.states(ids)[0]), expected)
        np.testing.assert_array_equal(
            to_numpy(tagger.head.output_projection.kernel), head
        )


def test_weights_of_another_encoder_are_refused():
    def tagger(tokenizer=TOKENIZER, **changes):
        return kzoo.TokenClassifier.from_size(
            "tiny", tokenizer, num_classes=2, **{**SMALL, **changes}
        )

    model, other = task(), tagger(num_heads=4)
    before = other.get_weights()
    with pytest.raises(ValueError, match=r"encoders.*'num_heads': \(4, 2\)"):
        other.load_encoder(model)
    for got, want in zip(other.get_weights(), before, strict=True):
        np.testing.assert_array_equal(got, want)
    reversed_words = [word.upper() for word in WORDS]
    tokenizer = FastTokenizer.train(
        reversed_words, 9, algorithm="character", mask_token=True
    )
    with pytest.raises(ValueError, match="different tokenizers"):
        tagger(tokenizer).load_encoder(model)
    decoder = tagger(architecture="decoder")
    with pytest.raises(ValueError, match="'decoder' and 'encoder'"):
        decoder.load_encoder(model)


# Refusals.


def test_broken_weights_are_no_score():
    model = task()
    table = next(iter(model.named_variables().values()))
    table.assign(np.full(table.shape, np.nan))
    with pytest.raises(ValueError, match="The weight .* nothing can be scored"):
        model.score(TEXTS[:3])


def test_what_does_not_fit_is_named():
    plain = FastTokenizer.train(WORDS, 9, algorithm="character")
    with pytest.raises(ValueError, match="needs a mask token: train.*mask_token=True"):
        task(plain)
    for rate in (0.0, 1.0):
        with pytest.raises(ValueError, match=f"between 0 and 1. Received: {rate}"):
            task(mask_rate=rate)
    with pytest.raises(ValueError, match="special ones. Received: 4"):
        config = ModelConfig.from_size(
            "tiny", "encoder", 4, pad_token_id=0, mask_token_id=3
        )
        kzoo.MaskedLM(config)
    model = compiled(task(max_length=8), eager=True)
    with pytest.raises(ValueError, match="strings without y"):
        model.fit(["ab"], ["ab"])
    with pytest.raises(ValueError, match="reads texts.*as example 0"):
        model.fit([("ab", "cd")])
    with pytest.raises(ValueError, match="needs a mask, <mask>. Received: 'ab'"):
        model.fill(["a<mask>", "ab"])
    with pytest.raises(
        ValueError, match="reads 6 tokens at once. Received: 9 in text 1"
    ):
        model.fill(["<mask>", "<mask>abcdabcd"])
    with pytest.raises(ValueError, match="top_k.*Received: 0"):
        model.fill(["<mask>"], top_k=0)
    with pytest.raises(ValueError, match="list of strings, one at least.*'<mask>'"):
        model.fill("<mask>")
    for nothing in ([], np.array([]), {}):
        with pytest.raises(ValueError, match="a list of examples, one at least"):
            model.score(nothing)
    with pytest.raises(ValueError, match="none in row 1"):
        model.fit({"token_ids": np.array([[START, A], [0, 0]])})
    with pytest.raises(ValueError, match="has no tokenizer"):
        task(None, vocabulary_size=9, mask_token_id=4).fill(["<mask>"])


def test_pipelines_without_targets_are_refused():
    import grain

    model = compiled(task(), eager=True)
    texts = grain.MapDataset.source(["ab", "cd"]).batch(2)
    with pytest.raises(ValueError, match="has no targets: a pipeline gives"):
        model.fit(texts, verbose=0)
    ids = grain.MapDataset.source([{"token_ids": np.array([[START, A, END]])}])
    with pytest.raises(ValueError, match="has no targets: a pipeline gives"):
        model.fit(ids, verbose=0)


def test_a_sentencepiece_mask_stands_for_a_word():
    texts = ["a man rides a bike", "a bike rides"] * 4
    tokenizer = SentencePieceTokenizer.train(texts, 30, mask_token=True)
    model = perturbed(task(tokenizer))
    ((found,),) = model.fill(["a man <mask> a bike."], top_k=3)
    assert len(found) == 3 and all(0 < each.probability < 1 for each in found)


def test_a_share_of_arrays_is_held_out():
    model = compiled(perturbed(task()), keras.optimizers.SGD(0.0), eager=True)
    ids = model.encode_text(TEXTS[:8])[0]["token_ids"]
    history = model.fit(
        {"token_ids": ids}, validation_split=0.25, batch_size=2, verbose=0
    ).history
    expected = model.evaluate({"token_ids": ids[6:]}, batch_size=2, verbose=0)
    assert history["val_loss"] == [pytest.approx(expected[0], rel=1e-5)]
