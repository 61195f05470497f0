"""Vectors of texts: right under padding, learned both ways, searched exactly."""

import grain
import keras
import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr

import kzoo
from kzoo.tasks import load_task, sentence_embedder
from kzoo.training import ContrastiveLoss, CosineSimilarityLoss
from tests.harness import difference, perturb, to_numpy
from tests.reference import Reference
from tests.words import TOKENIZER, WORDS, compiled, ids_of

POOLINGS = ["mean", "cls", "max", "last"]
SMALL = dict(num_layers=1, hidden_dim=16, intermediate_dim=16, num_heads=2, dropout=0.0)
PAIRS = list(zip(WORDS[:10], WORDS[3:13], strict=True))
TRIPLES = [(*pair, word) for pair, word in zip(PAIRS, WORDS[50:60], strict=True)]
SCORES = [0.0, 5.0, 2.5, 1.0, 4.0, 3.0, 0.5, 5.0, 2.0, 1.5]


def embedder(**changes):
    return kzoo.SentenceEmbedder.from_size(
        "tiny", TOKENIZER, name="embedder", **{**SMALL, **changes}
    )


def perturbed(task):
    perturb(task.named_variables().values())
    table = task.stack.token_embedding.embeddings
    table.assign(table.value / task.stack.config.embedding_scale)
    return task


def expected_vectors(task, texts):
    """float64 (N, D), a text at a time and without padding."""
    weights = {k: to_numpy(w.value) for k, w in task.named_variables().items()}
    reference, vectors = Reference(task.config, weights), []
    for ids in TOKENIZER.encode(list(texts)):
        stack = reference.encode if task.config.encoder else reference.decode
        (states,) = stack([[1, *ids, 2]])
        pool = {
            "mean": lambda x: x.sum(axis=0) / len(x),
            "cls": lambda x: x[0],
            "last": lambda x: x[-1],
            "max": lambda x: x.max(axis=0),
        }[task.pooling]
        vector = pool(states)
        vectors.append(vector / np.sqrt(vector @ vector) if task.normalize else vector)
    return np.array(vectors)


def cosines(task, a, b):
    a, b = expected_vectors(task, a), expected_vectors(task, b)
    a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
    return a @ b.T


# Vectors.


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_vectors_equal_the_reference(pooling, normalize):
    decoder = dict(architecture="decoder") if pooling == "last" else {}
    task = perturbed(embedder(pooling=pooling, normalize=normalize, **decoder))
    texts = ["abcd", "", "b", "ca"]
    expected = expected_vectors(task, texts)
    got = task.embed(texts)
    assert got.dtype == "float32" and difference(got, expected) <= 1e-5
    ids = ids_of(texts)
    np.testing.assert_allclose(to_numpy(task({"token_ids": ids})), got, atol=1e-5)
    pairs = to_numpy(task({"token_ids": ids.reshape(2, 2, -1)}))
    np.testing.assert_allclose(pairs.reshape(4, -1), got, atol=1e-5)
    assert task.embed([]).shape == (0, 16)


@pytest.fixture(scope="module")
def built():
    """Perturbed tasks, made once."""
    made = {}

    def get(**changes):
        key = tuple(changes.items())
        if key not in made:
            made[key] = perturbed(embedder(**changes))
        return made[key]

    return get


@given(
    pooling=st.sampled_from(POOLINGS),
    positions=st.sampled_from(["learned", "sinusoidal", "rotary", "alibi"]),
    words=st.lists(st.text("abcd", max_size=4), min_size=3, max_size=3),
    left=st.integers(0, 3),
)
@settings(max_examples=12, deadline=None)
def test_neither_padding_nor_batching_changes_a_vector(
    built, pooling, positions, words, left
):
    task = built(pooling=pooling, positions=positions)
    ids = ids_of(words)
    # Few shapes, for backends that compile for each.
    rows = np.zeros((3, 9), "int32")
    rows[:, : ids.shape[1]] = ids
    together = to_numpy(task({"token_ids": rows}))
    rows = np.roll(rows, left, axis=1)
    np.testing.assert_allclose(to_numpy(task({"token_ids": rows})), together, atol=1e-5)
    alone = to_numpy(task({"token_ids": ids_of(words[-1:])}))
    np.testing.assert_allclose(alone[0], together[-1], atol=1e-5)


# Training.


@pytest.mark.parametrize("normalize", [True, False])
def test_the_cosine_loss_compares_with_scaled_scores(normalize):
    task = perturbed(embedder(normalize=normalize))
    found = np.diag(cosines(task, *zip(*PAIRS)))
    for loss, wanted in (
        (CosineSimilarityLoss((0, 5)), np.array(SCORES) / 5),
        (CosineSimilarityLoss((0, 5), (-1, 1)), np.array(SCORES) / 2.5 - 1),
    ):
        compiled(task, loss=loss, eager=True)
        for batch_size in (3, 10):  # the last batch is filled with rows of padding
            got = task.evaluate(PAIRS, SCORES, batch_size=batch_size, verbose=0)
            assert got == pytest.approx(np.mean((found - wanted) ** 2), rel=1e-5)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("data", [PAIRS, TRIPLES], ids=["pairs", "triples"])
def test_the_contrastive_loss_finds_partners_in_the_batch(data, symmetric):
    task = perturbed(embedder())
    compiled(task, loss=ContrastiveLoss(0.5, symmetric), eager=True)
    anchors, positives, *negatives = zip(*data)

    def mean_loss(rows, columns):
        scores = cosines(task, rows, columns) / 0.5
        chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        return -np.mean(np.log(np.diag(chances)))

    expected = mean_loss(anchors, sum(negatives, positives))
    if symmetric:
        expected = (expected + mean_loss(positives, anchors)) / 2
    for batch_size in (10, 16):  # six rows only fill the batch
        got = task.evaluate(data, batch_size=batch_size, verbose=0)
        assert got == pytest.approx(expected, rel=1e-5)


def test_the_loss_follows_from_the_targets():
    task = compiled(perturbed(embedder()), eager=True)
    scores = np.array(SCORES) / 5
    found = np.diag(cosines(task, *zip(*PAIRS)))
    got = task.evaluate(PAIRS, scores, verbose=0)
    assert got == pytest.approx(np.mean((found - scores) ** 2), rel=1e-5)
    chosen = task.evaluate(PAIRS, verbose=0)
    compiled(task, loss=ContrastiveLoss(), eager=True)
    assert task.evaluate(PAIRS, verbose=0) == pytest.approx(chosen, rel=1e-6)


@pytest.mark.parametrize("data", [(PAIRS, np.array(SCORES) / 5), (TRIPLES,)])
def test_every_form_of_data_has_the_same_loss(data):
    task = compiled(perturbed(embedder()), eager=True)
    expected = task.evaluate(*data, batch_size=5, verbose=0)
    inputs, targets = task.encode_text(*data)
    assert inputs["token_ids"].shape[:2] == (10, len(data[0][0]))
    elements = list(zip(*data)) if targets is not None else [(t,) for t in data[0]]
    dataset = grain.MapDataset.source(elements).batch(5)
    for given_ in ((inputs, targets), (dataset,)):
        got = task.evaluate(*given_, batch_size=5, verbose=0)
        assert got == pytest.approx(expected, rel=1e-5)
    history = task.fit(dataset, epochs=2, shuffle=False, verbose=0).history
    assert history["loss"][1] < history["loss"][0]


@pytest.mark.tensorflow
def test_tf_data_of_pairs():
    import tensorflow as tf

    task = compiled(perturbed(embedder()), eager=True)
    scores = np.array(SCORES) / 5
    pairs = tuple(map(list, zip(*PAIRS)))
    for elements, data in (
        ((pairs, scores), (PAIRS, scores)),
        ((pairs,), (PAIRS,)),
    ):
        dataset = tf.data.Dataset.from_tensor_slices(elements).batch(10)
        expected = task.evaluate(*data, batch_size=10, verbose=0)
        assert task.evaluate(dataset, verbose=0) == pytest.approx(expected, rel=1e-5)
    texts = tf.data.Dataset.from_tensor_slices(WORDS[:6]).batch(3)
    got = task.predict(texts, verbose=0)
    np.testing.assert_allclose(got, task.embed(WORDS[:6]), atol=1e-5)


def test_filling_rows_leave_no_trace_in_the_gradient():
    # One step on 5 pairs, alone and in a batch of 8.
    for data in ((PAIRS[:5], np.array(SCORES[:5]) / 5), (PAIRS[:5],)):
        steps = []
        for batch_size in (5, 8):
            task = compiled(perturbed(embedder()), eager=True)
            task.fit(*data, batch_size=batch_size, verbose=0)
            steps.append(task.get_weights())
        for one, other in zip(*steps):
            assert np.isfinite(one).all()
            np.testing.assert_allclose(one, other, atol=1e-5)


def test_it_learns_pairs_and_finds_them():
    # A text and the same with its first letter twice, some 20 in a batch.
    anchors = WORDS[:20]
    pairs = [(word, word[0] + word) for word in anchors]
    task = embedder(hidden_dim=32)
    task.compile(keras.optimizers.Adam(0.01))
    loss = task.fit(pairs, epochs=25, verbose=0).history["loss"]
    assert loss[-1] < 0.5 * loss[0]
    corpus = [positive for _, positive in pairs]
    scores = task.score_retrieval(anchors, corpus, range(20), top_k=(1, 3))
    assert scores["recall@1"] > 0.6 and scores["mrr@3"] >= scores["recall@1"]


def test_mixed_precision_trains():
    for dtype, data in (
        ("mixed_bfloat16", (PAIRS,)),
        ("mixed_float16", (PAIRS, np.array(SCORES) / 5)),
    ):
        task = compiled(embedder(dtype=dtype), keras.optimizers.Adam(0.01), eager=True)
        loss = task.fit(*data, batch_size=10, epochs=2, verbose=0).history["loss"]
        assert np.isfinite(loss).all() and loss[-1] < loss[0]
        assert task.embed(["ab"]).dtype == "float32"


# Search and scores.


def test_search_is_exact_in_every_chunking(monkeypatch):
    generator = np.random.default_rng(0)
    queries = generator.normal(size=(7, 16))
    corpus = generator.normal(size=(50, 16)).astype("float32")
    queries[0] = corpus[31] = corpus[4]  # of equal ones the first comes first
    task = embedder()
    scores = (queries / np.linalg.norm(queries, axis=1, keepdims=True)) @ (
        corpus / np.linalg.norm(corpus, axis=1, keepdims=True)
    ).T
    for chunk in (1, 7, 32, 1000):
        monkeypatch.setattr(sentence_embedder, "_DOCUMENTS", chunk)
        monkeypatch.setattr(sentence_embedder, "_QUERIES", chunk)
        found = task.search(queries, corpus, top_k=6)
        for row, hits in zip(scores, found, strict=True):
            best = sorted(range(50), key=lambda i: -row[i])[:6]
            assert {i for i, _ in hits} == set(best)
            np.testing.assert_allclose(
                [score for _, score in hits], row[best], atol=1e-6
            )
        assert found[0][0][0] == 4 and found[0][1][0] == 31
        assert [len(hits) for hits in task.search(queries, corpus[:3], 6)] == [3] * 7
    assert task.search(queries, corpus[:0]) == [[]] * 7


def test_texts_are_searched_and_compared_by_the_cosine_of_their_vectors():
    for task in (perturbed(embedder()), perturbed(embedder(normalize=False))):
        expected = cosines(task, ["ab", "c"], WORDS[:9])
        got = task.similarity(["ab", "c"], WORDS[:9])
        np.testing.assert_allclose(got, expected, atol=1e-5)
        found = task.search(["ab", "c"], task.embed(WORDS[:9]), top_k=4)
        for row, hits in zip(expected, found, strict=True):
            assert [i for i, _ in hits] == sorted(range(9), key=lambda i: -row[i])[:4]
        found = np.diag(cosines(task, *zip(*PAIRS)))
        assert task.score(PAIRS, SCORES) == pytest.approx(
            {
                "pearson": pearsonr(found, SCORES).statistic,
                "spearman": spearmanr(found, SCORES).statistic,
            },
            rel=1e-4,
        )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_cosines_do_not_depend_on_lengths(dtype):
    task = embedder()
    width = task.stack.config.hidden_dim
    x = np.random.default_rng(0).normal(size=(3, width)).astype(dtype)
    for scale in (1e-30, 1e30) if dtype == "float32" else (1e-200, 1e300):
        np.testing.assert_allclose(
            task.similarity(x * x.dtype.type(scale), x),
            task.similarity(x, x),
            atol=1e-6,
        )


def test_retrieval_scores_of_a_search_known_by_hand():
    task = embedder()
    corpus = np.eye(16, dtype="float32")[:4]
    # Query 0 finds 0, 1, 2, 3 in this order; query 1 finds 3, 2, 1, 0.
    queries = np.array([[4, 3, 2, 1], [1, 2, 3, 4]], "float32") @ corpus
    got = task.score_retrieval(queries, corpus, [1, [3, 0]], top_k=(1, 2))
    assert got == pytest.approx(
        {
            "recall@1": (0 + 1 / 2) / 2,
            "recall@2": (1 + 1 / 2) / 2,
            "mrr@2": (1 / 2 + 1) / 2,
        }
    )


# Files.


def test_a_folder_and_a_keras_file_hold_it(tmp_path):
    task = perturbed(embedder(pooling="cls", normalize=False, max_length=5))
    compiled(task, loss=CosineSimilarityLoss((0, 5)))
    task.save_folder(tmp_path / "folder")
    task.save(tmp_path / "task.keras")
    expected = task.embed(WORDS[:5])
    again = kzoo.load_model(tmp_path / "task.keras")
    assert again.loss.score_range == (0, 5)
    for loaded in (load_task(tmp_path / "folder"), again):
        assert type(loaded) is kzoo.SentenceEmbedder and loaded.options == task.options
        np.testing.assert_array_equal(loaded.embed(WORDS[:5]), expected)


@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_onnx_gives_the_vectors_of_the_reference(pooling, portable, tmp_path):
    task = perturbed(embedder(pooling=pooling))
    task.export(tmp_path / "embed.onnx", format="onnx", portable=portable)
    session = onnxruntime.InferenceSession(tmp_path / "embed.onnx")
    texts = ["abcd", "", "ba"]
    ids = ids_of(texts).astype("int64")
    (got,) = session.run(["embedding"], {"token_ids": ids})
    assert difference(got, expected_vectors(task, texts)) <= 1e-5


@pytest.mark.tensorflow
def test_a_saved_model_gives_the_vectors_of_the_reference(tmp_path):
    import tensorflow as tf

    task = perturbed(embedder())
    task.export(tmp_path / "embed")
    serve = tf.saved_model.load(tmp_path / "embed").signatures["serving_default"]
    texts = ["abcd", "", "ba"]
    got = serve(token_ids=tf.constant(ids_of(texts)))["embedding"]
    assert difference(got.numpy(), expected_vectors(task, texts)) <= 1e-5


# Refusals.


def test_what_cannot_be_learned_is_named():
    task = compiled(embedder(), eager=True)
    for data, message in (
        ((["ab", "cd"],), "learns from pairs or triples of texts. Received: 'ab'"),
        ((["ab", "cd"], [0.1, 0.2]), "learns from pairs or triples.*'ab'"),
        (([("ab",)],), r"\('ab',\) as example 0"),
        ((TRIPLES[:2], [0.1, 0.2]), "as example 0"),
        ((PAIRS[:1] + TRIPLES[:1],), "as example 1"),
        ((PAIRS[:2], [0.5]), "a target for each of 2 examples. Received: 1"),
        ((PAIRS[:2], [0.5, 1.5]), r"in \[0.0, 1.0\]. Received: 1.5 for example 1.*"),
        ((PAIRS[:2], ["a", "b"]), "a number for each example. Received: 'a'"),
        ((PAIRS[:2], [0.5, np.nan]), "nan for example 1"),
    ):
        for verb in (task.fit, task.evaluate, task.train_on_batch):
            quiet = {} if verb == task.train_on_batch else {"verbose": 0}
            with pytest.raises(ValueError, match=message):
                verb(*data, **quiet)
    flat = {"token_ids": ids_of(["ab", "cd"])}
    with pytest.raises(ValueError, match=r"\(batch, texts, length\)"):
        task.fit(flat, np.array([0.5, 0.5], "float32"), verbose=0)
    compiled(task, loss=ContrastiveLoss(), eager=True)
    with pytest.raises(ValueError, match="ContrastiveLoss learns from pairs without"):
        task.fit(PAIRS, SCORES, verbose=0)
    compiled(task, loss=CosineSimilarityLoss(), eager=True)
    with pytest.raises(ValueError, match="CosineSimilarityLoss learns from pairs with"):
        task.fit(PAIRS, verbose=0)
    with pytest.raises(ValueError, match="label_smoothing is of classes"):
        task.compile(label_smoothing=0.1)


def test_what_cannot_be_embedded_or_searched_is_named():
    task = embedder()
    for texts in ("ab", [1, 2]):
        with pytest.raises(ValueError, match="embed needs a list of strings"):
            task.embed(texts)
    with pytest.raises(ValueError, match=r"reads texts.*\('ab', 'c'\)"):
        task.embed([("ab", "c")])
    with pytest.raises(ValueError, match=r"\(texts, 16\). Received: a shape of \(3, 8"):
        task.search(["ab"], np.ones((3, 8)))
    with pytest.raises(ValueError, match="finite"):
        task.search(["ab"], np.full((3, 16), np.nan))
    with pytest.raises(ValueError, match="top_k must be an integer of at least 1"):
        task.search(["ab"], ["c"], top_k=0)
    with pytest.raises(ValueError, match="2 queries needs a relevant text.*1 of them"):
        task.score_retrieval(["a", "b"], ["c"], [[0], []])
    for beyond in (-1, 1, "c", 0.5):
        with pytest.raises(ValueError, match=f"corpus of 1. Received: .*{beyond}"):
            task.score_retrieval(["a"], ["c"], [[0, beyond]])
    for top_k in ((), (3, 1), (0, 1), 0, (1, 1)):
        with pytest.raises(ValueError, match="top_k must rise from 1 at least"):
            task.score_retrieval(["a"], ["c"], [0], top_k=top_k)
    with pytest.raises(ValueError, match="a list of examples, one at least"):
        task.score([], [])
    with pytest.raises(ValueError, match="'cls', 'last', 'mean', 'max'.*'max_logits'"):
        embedder(pooling="max_logits")


def test_weights_count_without_scores_in_every_form():
    task = compiled(perturbed(embedder()), keras.optimizers.SGD(0.0), eager=True)
    ids, _ = task.encode_text(PAIRS)
    weights = np.linspace(0.0, 2.0, len(PAIRS)).astype("float32")
    real = np.ones(len(PAIRS), bool)
    expected = float(ContrastiveLoss()(real, task(ids), weights))
    assert expected != pytest.approx(float(ContrastiveLoss()(real, task(ids))))
    given = dict(batch_size=len(PAIRS), verbose=0)
    for x in (ids, PAIRS):
        got = task.evaluate(x, sample_weight=weights, **given)
        assert got == pytest.approx(expected, rel=1e-5)
        history = task.fit(
            x, sample_weight=weights, validation_data=(x, None, weights), **given
        ).history
        for name in ("loss", "val_loss"):
            assert history[name] == [pytest.approx(expected, rel=1e-5)]


def test_tokens_per_batch_count_every_text_at_the_longest_one_s_length():
    pairs = [("abcd" * 4, "ab")] * 40
    task = compiled(embedder())
    batches = task.batches(task.encode_examples(pairs), tokens_per_batch=512)
    for i in range(len(batches)):
        inputs, _ = task._inputs_and_targets(batches[i])
        assert 256 < inputs["token_ids"].size <= 512


def test_recall_at_one_place_is_an_int():
    task = perturbed(embedder())
    got = task.score_retrieval(WORDS[:3], WORDS[:9], [0, 1, 2], top_k=1)
    assert got == {"recall@1": 1.0, "mrr@1": 1.0}


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_a_missing_score_is_named(missing):
    said = "score needs a number for each example.*for example 1"
    with pytest.raises(ValueError, match=said):
        embedder().score(PAIRS[:2], [0.5, missing])


def test_bools_are_scores():
    task = compiled(perturbed(embedder()), keras.optimizers.SGD(0.0), eager=True)
    ids, _ = task.encode_text(PAIRS)
    scores = np.arange(len(PAIRS)) % 3 == 0
    given = dict(batch_size=len(PAIRS), verbose=0)
    expected = task.evaluate(ids, scores.astype("float32"), **given)
    assert task.evaluate(ids, scores, **given) == pytest.approx(expected)
    assert task.evaluate(PAIRS, scores, **given) == pytest.approx(expected)


def test_a_first_token_that_sees_nothing_is_a_warning():
    with pytest.warns(UserWarning, match="sees no more of a text"):
        embedder(architecture="decoder", pooling="cls")
