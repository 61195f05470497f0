"""Scores of pairs: numbers or probabilities, ranked, exported as they are predicted."""

import keras
import numpy as np
import onnxruntime
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

import kzoo
from kzoo.tasks import load_task
from tests.harness import difference, perturb, to_numpy
from tests.reference import Reference
from tests.words import TOKENIZER, WORDS, compiled

SMALL = dict(num_layers=1, hidden_dim=16, intermediate_dim=16, num_heads=2, dropout=0.0)
# A pair belongs together when both have an "a".
PAIRS = [(a, b) for a in WORDS[:64:8] for b in WORDS[1:64:11]]
TARGETS = [int("a" in a and "a" in b) for a, b in PAIRS]


def scorer(**changes):
    options = {"head_dropout": 0.0, "num_segments": 2, **SMALL, **changes}
    return kzoo.PairScorer.from_size("tiny", TOKENIZER, name="scorer", **options)


def perturbed(task):
    perturb(task.named_variables().values())
    table = task.stack.token_embedding.embeddings
    table.assign(table.value / task.stack.config.embedding_scale)
    return task


def expected_logits(task, pairs):
    """float64 (B,), a pair at a time: start first end second end, its first state."""
    weights = {k: to_numpy(w.value) for k, w in task.named_variables().items()}
    reference = Reference(task.config, weights)
    logits = []
    for pair in pairs:
        first, second = TOKENIZER.encode(list(pair))
        ids = [1, *first, 2, *second, 2]
        segments = [0] * (len(first) + 2) + [1] * (len(second) + 1)
        state = reference.encode([ids], segment_ids=[segments])[0, 0]
        logits.append(state @ weights["head/output/kernel"][:, 0])
    return np.array(logits) + weights["head/output/bias"]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("output_activation", [None, "sigmoid"])
def test_scores_and_losses_equal_the_definition(output_activation):
    task = perturbed(scorer(output_activation=output_activation))
    compiled(task, eager=True)
    logits = expected_logits(task, PAIRS[:7])
    y = np.array([0.0, 1.0, 0.25, 1.0, 0.0, 0.5, 1.0])
    if output_activation:
        scores, p = sigmoid(logits), sigmoid(logits)
        loss = -np.mean(y * np.log(p) + (1 - y) * np.log(1 - p))
    else:
        scores, loss = logits, np.mean((logits - y) ** 2)
    got = task.predict(PAIRS[:7], verbose=0)
    assert got.shape == (7, 1) and difference(got[:, 0], scores) <= 1e-5
    inputs, _ = task.encode_text(PAIRS[:7])
    from_ids = task.predict(inputs, batch_size=3, verbose=0)
    assert difference(from_ids[:, 0], scores) <= 1e-5
    assert difference(to_numpy(task(inputs))[:, 0], logits) <= 1e-5
    for batch_size in (3, 7):  # the last batch is filled with rows of padding
        got = task.evaluate(PAIRS[:7], y, batch_size=batch_size, verbose=0)
        assert got == pytest.approx(loss, rel=1e-5)


def test_documents_are_ranked_by_their_scores():
    task = perturbed(scorer(output_activation="sigmoid"))
    documents = ["ab", "cd", "", "ab", "dcba"]
    logits = expected_logits(task, [("ad", document) for document in documents])
    ranked = task.rank("ad", documents)
    assert [index for index, _ in ranked] == sorted(range(5), key=lambda i: -logits[i])
    got = [score for _, score in ranked]
    np.testing.assert_allclose(got, np.sort(sigmoid(logits))[::-1], atol=1e-6)
    assert task.rank("ad", documents, top_k=2) == ranked[:2]
    assert task.rank("ad", []) == []
    for most in (0, -1):
        with pytest.raises(ValueError, match=f"top_k must be an integer .* {most}"):
            task.rank("ad", documents, top_k=most)
    with pytest.raises(ValueError, match="one query, a string. Received: list"):
        task.rank(["ad"], documents)


def test_it_learns_what_belongs_together():
    task = scorer(output_activation="sigmoid", hidden_dim=32, pooling="max")
    task.compile(keras.optimizers.Adam(0.01))
    loss = task.fit(PAIRS, TARGETS, epochs=30, verbose=0).history["loss"]
    assert loss[-1] < 0.2 < 0.5 < loss[0]
    scores = task.score(PAIRS, TARGETS)
    p = task.predict(PAIRS, verbose=0)[:, 0]
    assert scores == pytest.approx(
        {
            "accuracy": np.mean((p >= 0.5) == TARGETS),
            "average_precision": average_precision_score(TARGETS, p),
            "roc_auc": roc_auc_score(TARGETS, p),
        }
    )
    assert scores["accuracy"] > 0.95
    graded = np.linspace(0, 1, len(PAIRS))
    assert set(task.score(PAIRS, graded)) == {
        "pearson",
        "spearman",
        "mean_squared_error",
    }


@pytest.mark.parametrize("portable", [False, True])
def test_onnx_gives_probabilities(portable, tmp_path):
    task = perturbed(scorer(output_activation="sigmoid"))
    task.export(tmp_path / "scorer.onnx", format="onnx", portable=portable)
    session = onnxruntime.InferenceSession(tmp_path / "scorer.onnx")
    inputs, _ = task.encode_text(PAIRS[:5])
    feed = {name: x.astype("int64") for name, x in inputs.items()}
    (got,) = session.run(["scores"], feed)
    assert difference(got[:, 0], sigmoid(expected_logits(task, PAIRS[:5]))) <= 1e-5


@pytest.mark.tensorflow
def test_a_saved_model_gives_probabilities(tmp_path):
    import tensorflow as tf

    task = perturbed(scorer(output_activation="sigmoid"))
    task.export(tmp_path / "scorer")
    serve = tf.saved_model.load(tmp_path / "scorer").signatures["serving_default"]
    inputs, _ = task.encode_text(PAIRS[:5])
    got = serve(**{k: tf.constant(x) for k, x in inputs.items()})["scores"]
    expected = sigmoid(expected_logits(task, PAIRS[:5]))
    assert difference(got.numpy()[:, 0], expected) <= 1e-5


def test_an_artifact_s_certain_scores_stay_as_they_are():
    task, scores = scorer(output_activation="sigmoid"), [[0.0], [0.25], [1.0]]
    logits = to_numpy(task.from_named_outputs({"scores": np.float32(scores)}))
    assert np.isfinite(logits).all()
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(sigmoid(logits), scores, rtol=1e-6)


def test_a_folder_and_a_keras_file_hold_it(tmp_path):
    task = compiled(perturbed(scorer(output_activation="sigmoid", max_length=9)))
    task.save_folder(tmp_path / "folder")
    task.save(tmp_path / "task.keras")
    expected = task.predict(PAIRS[:5], verbose=0)
    for loaded in (
        load_task(tmp_path / "folder"),
        kzoo.load_model(tmp_path / "task.keras"),
    ):
        assert type(loaded) is kzoo.PairScorer and loaded.options == task.options
        got = loaded.predict(PAIRS[:5], verbose=0)
        np.testing.assert_array_equal(got, expected)


def test_targets_of_one_class_have_an_accuracy_alone():
    task = perturbed(scorer(output_activation="sigmoid"))
    for target in (0, 1):
        found = task.score(PAIRS[:5], [target] * 5)
        right = (task.predict(PAIRS[:5], verbose=0)[:, 0] >= 0.5) == target
        assert found["accuracy"] == pytest.approx(right.mean())
        assert np.isnan([found["average_precision"], found["roc_auc"]]).all()


def test_what_does_not_fit_is_named():
    task = compiled(scorer(output_activation="sigmoid"), eager=True)
    with pytest.raises(ValueError, match="reads pairs of texts, .*'ab' as example 0"):
        task.predict(["ab"])
    with pytest.raises(ValueError, match=r"in \[0, 1\]. Received: 2.0 for example 1"):
        task.fit(PAIRS[:2], [1, 2])
    with pytest.raises(ValueError, match="None or 'sigmoid'. Received: 'tanh'"):
        scorer(output_activation="tanh")
    with pytest.raises(ValueError, match="label_smoothing is of classes"):
        scorer(output_activation="sigmoid").compile(label_smoothing=0.1)
