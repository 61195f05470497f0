"""Tasks train on every form of data, report per token, and survive a file."""

import json
import subprocess
import sys
from pathlib import Path

import grain
import keras
import numpy as np
import pytest

import kzoo
from kzoo.config import ModelConfig
from kzoo.data import padded_batch
from kzoo.tasks import load_task
from kzoo.tokenizers import FastTokenizer
from kzoo.training import MaskedCrossEntropy, ResumableCheckpoint
from tests.harness import difference, perturb, to_numpy
from tests.reference import Reference, log_softmax

REPOSITORY = Path(__file__).parents[2]
LETTERS = "abcd"
WORDS = [a + b + c for a in LETTERS for b in ["", *LETTERS] for c in LETTERS]  # 80
TOKENIZER = FastTokenizer.train(WORDS, 20, algorithm="character")


def seq2seq(tokenizer=TOKENIZER, **changes):
    config = ModelConfig.from_size(
        "tiny",
        "encoder_decoder",
        TOKENIZER.vocabulary_size,
        **{
            "num_layers": 1,
            "hidden_dim": 32,
            "intermediate_dim": 64,
            "dropout": 0.0,
            **changes,
        },
    )
    return kzoo.Seq2SeqLM(config, tokenizer=tokenizer, name="seq2seq")


def causal(tokenizer=TOKENIZER, **changes):
    return kzoo.CausalLM.from_size(
        "tiny",
        tokenizer,
        vocabulary_size=TOKENIZER.vocabulary_size,
        name="causal",
        **{
            "num_layers": 1,
            "hidden_dim": 32,
            "intermediate_dim": 64,
            "dropout": 0.0,
            **changes,
        },
    )


def compiled(model, optimizer=None, eager=False, **options):
    """Plain descent; and no graph for claims that it cannot change, which is faster."""
    optimizer = optimizer or keras.optimizers.SGD(0.1)
    model.compile(optimizer, run_eagerly=eager, **options)
    return model


def perturbed(model):
    perturb(model.weights)
    table = model.decoder.token_embedding.embeddings
    table.assign(table.value / model.config.decoder.embedding_scale)
    return model


def ids_of(words, start=True):
    start = [1] if start else []
    return padded_batch([start + ids + [2] for ids in TOKENIZER.encode(words)])


def seq2seq_ids(sources, targets):
    """Inputs and targets as a user would make them."""
    full = ids_of(targets)
    inputs = {
        "encoder_token_ids": ids_of(sources, start=False),
        "decoder_token_ids": full[:, :-1],
    }
    return inputs, full[:, 1:]


def batches_of_ids(words, sizes):
    """Batches that differ in both lengths."""
    batches, first = [], 0
    for size in sizes:
        chosen = words[first : first + size]
        batches.append(seq2seq_ids(chosen, chosen))
        first += size
    return batches


# Fit, in every form.


def test_a_translator_learns_to_copy_strings():
    model = compiled(seq2seq(), keras.optimizers.Adam(0.01))
    history = model.fit(WORDS, WORDS, batch_size=16, epochs=40, verbose=0)
    assert history.history["loss"][0] > 1.0
    assert history.history["loss"][-1] < 0.1, history.history["loss"]
    assert history.history["token_accuracy"][-1] > 0.98
    assert history.history["perplexity"][-1] < 1.1


def test_a_language_model_learns_strings():
    # Each letter twice: the second is certain, the first is one of four or the end.
    texts = ["".join(letter * 2 for letter in word) for word in WORDS]
    model = compiled(causal(), keras.optimizers.Adam(0.01))
    history = model.fit(texts, batch_size=16, epochs=20, verbose=0)
    assert history.history["loss"][0] > 1.5
    assert history.history["loss"][-1] < 0.9


def test_pairs_are_sources_and_targets():
    pairs = list(zip(WORDS[:24], WORDS[24:48], strict=True))
    one, two = (compiled(seq2seq(), eager=True) for _ in range(2))
    two.set_weights(one.get_weights())
    one.fit(WORDS[:24], WORDS[24:48], batch_size=8, verbose=0)
    two.fit(pairs, batch_size=8, verbose=0)
    for a, b in zip(one.get_weights(), two.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("with_targets", [True, False])
def test_dicts_of_ids_with_and_without_targets(with_targets):
    inputs, targets = seq2seq_ids(WORDS[:16], WORDS[:16])
    model = compiled(perturbed(seq2seq()), eager=True)
    if not with_targets:
        # The last input has no successor, so it is made padding: nothing is lost.
        pad = np.zeros((16, 1), "int32")
        last = np.concatenate([inputs["decoder_token_ids"], targets[:, -1:]], axis=1)
        inputs = {**inputs, "decoder_token_ids": np.concatenate([last, pad], axis=1)}
        expected = model.evaluate(inputs, verbose=0)
        first, target = seq2seq_ids(WORDS[:16], WORDS[:16])
        np.testing.assert_allclose(
            expected, model.evaluate(first, target, verbose=0), rtol=1e-5
        )
    y = targets if with_targets else None
    history = model.fit(inputs, y, epochs=3, batch_size=8, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]


def test_a_language_model_takes_dicts_of_ids():
    model = compiled(causal(), eager=True)
    inputs = {"token_ids": ids_of(WORDS[:16])}
    history = model.fit(inputs, epochs=3, batch_size=8, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]


def test_grain_pipelines_of_dicts_may_vary_in_length():
    # Lengths change after the second batch, from which Keras guesses shapes.
    batches = batches_of_ids(["ab"] * 8 + ["abcd"] * 4 + ["abcdab"] * 8, [4, 4, 4, 8])
    dataset = grain.MapDataset.source(batches)
    model = compiled(seq2seq())
    history = model.fit(
        dataset, epochs=2, shuffle=False, validation_data=dataset, verbose=0
    )
    assert len(history.history["val_loss"]) == 2
    assert model.evaluate(dataset, verbose=0)[0] == pytest.approx(
        history.history["val_loss"][-1], rel=1e-5
    )


@pytest.mark.parametrize("iterate", [False, True], ids=["map", "iter"])
def test_grain_pipelines_of_strings(iterate):
    pairs = [(word, word) for word in [*WORDS[:8], "ab" * 4, *WORDS[9:16]]]
    dataset = grain.MapDataset.source(pairs).batch(4)
    dataset = dataset.to_iter_dataset() if iterate else dataset
    model = compiled(seq2seq(), eager=iterate)
    history = model.fit(dataset, epochs=2, shuffle=False, verbose=0).history
    assert history["loss"][1] < history["loss"][0]
    texts = grain.MapDataset.source(WORDS[:16]).batch(4)
    texts = texts.to_iter_dataset() if iterate else texts
    language_model = compiled(causal(), eager=iterate)
    history = language_model.fit(texts, epochs=2, shuffle=False, verbose=0).history
    assert history["loss"][1] < history["loss"][0]


@pytest.mark.tensorflow
def test_tf_data_of_dicts():
    import tensorflow as tf

    inputs, targets = seq2seq_ids(WORDS[:16], WORDS[:16])
    model = compiled(seq2seq())
    for elements in ((inputs, targets), inputs):
        dataset = tf.data.Dataset.from_tensor_slices(elements).batch(4)
        history = model.fit(dataset, epochs=2, verbose=0).history
        assert history["loss"][1] < history["loss"][0]


@pytest.mark.tensorflow
def test_tf_data_of_strings():
    import tensorflow as tf

    words = [*WORDS[:8], "äb" * 4, *WORDS[9:16]]
    pairs = tf.data.Dataset.from_tensor_slices((words, words)).batch(4)
    model = compiled(seq2seq())
    history = model.fit(pairs, epochs=2, validation_data=pairs, verbose=0).history
    assert history["loss"][1] < history["loss"][0]
    strings = model.evaluate(words, words, batch_size=4, verbose=0)
    got = model.evaluate(pairs, verbose=0)
    np.testing.assert_allclose(got, strings, rtol=1e-5)
    texts = tf.data.Dataset.from_tensor_slices(words).batch(4)
    language_model = compiled(causal(), eager=True)
    history = language_model.fit(texts, epochs=2, verbose=0).history
    assert history["loss"][1] < history["loss"][0]


PAIRS = list(zip(WORDS[40:50], WORDS[40:50], strict=True))


@pytest.mark.parametrize(
    "held_out",
    [
        (WORDS[40:50], WORDS[40:50]),
        PAIRS,
        PAIRS[:2],
        seq2seq_ids(WORDS[40:50], WORDS[40:50]),
        grain.MapDataset.source(PAIRS).batch(5),
    ],
    ids=["strings", "pairs", "two_pairs", "ids", "grain"],
)
def test_validation_data_in_every_form(held_out):
    model = compiled(seq2seq(), eager=True)
    history = model.fit(
        WORDS[:16], WORDS[:16], validation_data=held_out, batch_size=8, verbose=0
    )
    words = WORDS[40:42] if held_out == PAIRS[:2] else WORDS[40:50]
    expected = model.evaluate(words, words, verbose=0, return_dict=True)
    assert len(history.history["val_loss"]) == 1
    for name, value in expected.items():
        assert history.history[f"val_{name}"][0] == pytest.approx(value, rel=1e-5)


def test_the_same_weights_have_the_same_loss_on_every_pipeline():
    words = WORDS[:64]
    model = compiled(perturbed(seq2seq()))
    inputs, targets = seq2seq_ids(words, words[::-1])
    expected = model.evaluate(inputs, targets, verbose=0)
    pairs = list(zip(words, words[::-1], strict=True))
    for data in (
        (words, words[::-1]),
        (pairs,),
        (grain.MapDataset.source(pairs).batch(16),),
        (grain.MapDataset.source(batches_of_pairs(pairs)),),
    ):
        np.testing.assert_allclose(
            model.evaluate(*data, verbose=0), expected, rtol=1e-5
        )


def batches_of_pairs(pairs):
    return [
        seq2seq_ids(*zip(*pairs[i : i + 16], strict=True)) for i in range(0, 64, 16)
    ]


def test_predict_gives_logits_of_strings():
    model = perturbed(seq2seq())
    got = model.predict(PAIRS[:3], verbose=0)
    words = [source for source, _ in PAIRS[:3]]
    inputs, _ = seq2seq_ids(words, words)
    np.testing.assert_allclose(got, model.predict(inputs, verbose=0), atol=1e-6)
    language_model = perturbed(causal())
    got = language_model.predict(words, verbose=0)
    inputs = {"token_ids": ids_of(words)[:, :-1]}
    np.testing.assert_allclose(got, to_numpy(language_model(inputs)), atol=1e-5)


def test_a_task_gives_the_logits_of_the_reference():
    model = perturbed(seq2seq(norm="rms_norm", head_bias=True))
    weights = {path: to_numpy(w.value) for path, w in model.named_variables().items()}
    inputs, targets = seq2seq_ids(WORDS[2:8], WORDS[:6])
    expected = Reference(model.config, weights).logits(
        inputs["decoder_token_ids"],
        None,
        inputs["encoder_token_ids"],
        inputs["encoder_token_ids"] != 0,
    )
    got = to_numpy(model(inputs))
    assert difference(got[targets != 0], expected[targets != 0]) <= 1e-6


# What is reported.


@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
def test_loss_accuracy_and_perplexity_ignore_padding(label_smoothing):
    model = compiled(perturbed(seq2seq()), label_smoothing=label_smoothing)
    sources, targets = WORDS[:7], WORDS[-7:]
    inputs, y = seq2seq_ids(sources, targets)
    log_p = log_softmax(to_numpy(model(inputs)).astype("float64"))
    losses, hits, smooth = [], [], []
    for row, column in zip(*np.nonzero(y), strict=True):
        token = log_p[row, column]
        losses.append(-token[y[row, column]])
        smooth.append(-token.mean())
        hits.append(token.argmax() == y[row, column])
    e = label_smoothing
    smoothed = (1 - e) * np.array(losses) + e * np.array(smooth)
    for data, batch_size in (
        ((inputs, y), 1),
        ((sources, targets), 3),  # the last batch is filled with rows of padding
        ((sources, targets), 8),
    ):
        got = model.evaluate(*data, batch_size=batch_size, verbose=0, return_dict=True)
        assert got["loss"] == pytest.approx(smoothed.mean(), rel=1e-5)
        assert got["token_accuracy"] == pytest.approx(np.mean(hits), rel=1e-6)
        assert got["perplexity"] == pytest.approx(np.exp(np.mean(losses)), rel=1e-5)


def test_the_loss_is_a_mean_over_weighted_tokens():
    model = perturbed(causal())
    inputs, y = {"token_ids": ids_of(WORDS)[:, :-1]}, ids_of(WORDS)[:, 1:]
    weight = np.linspace(0.0, 2.0, len(y), dtype="float32")
    log_p = log_softmax(to_numpy(model(inputs)).astype("float64"))
    losses = -np.take_along_axis(log_p, y[..., None], axis=-1)[..., 0]
    for sample_weight in (None, weight, weight[:, None] * np.ones(y.shape, "float32")):
        weights = (y != 0).astype("float64")
        if sample_weight is not None:
            weights *= sample_weight.reshape((len(y), -1))
        expected = pytest.approx((losses * weights).sum() / weights.sum(), rel=1e-5)
        compiled(model, keras.optimizers.SGD(0.0))
        options = dict(sample_weight=sample_weight, batch_size=7, verbose=0)
        assert model.fit(inputs, y, **options).history["loss"][0] == expected
        assert model.evaluate(inputs, y, **options)[0] == expected
    assert model.metrics_names.count("loss") == 1


def test_a_loss_of_the_user_is_reported_as_keras_does():
    model = causal()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    compiled(model, keras.optimizers.SGD(0.0), loss=loss)
    inputs, y = {"token_ids": ids_of(WORDS[:8])[:, :-1]}, ids_of(WORDS[:8])[:, 1:]
    expected = to_numpy(loss(y, model(inputs)))
    got = model.evaluate(inputs, y, batch_size=4, verbose=0)[0]
    assert got == pytest.approx(expected, rel=1e-5)


class FirstTokenAccuracy(keras.metrics.Mean):
    """Looks at one position of ids (B, T) and logits (B, T, V)."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        hits = keras.ops.equal(
            keras.ops.cast(y_true[:, 0], "int32"),
            keras.ops.cast(keras.ops.argmax(y_pred[:, 0], axis=-1), "int32"),
        )
        super().update_state(keras.ops.cast(hits, "float32"))


def test_metrics_of_the_user_see_positions():
    model = perturbed(seq2seq())
    metrics = [FirstTokenAccuracy(name="first")]
    compiled(model, keras.optimizers.SGD(0.0), eager=True, metrics=metrics)
    inputs, y = seq2seq_ids(WORDS[:8], WORDS[:8])
    expected = np.mean(to_numpy(model(inputs))[:, 0].argmax(axis=-1) == y[:, 0])
    for data in ((inputs, y), (WORDS[:8], WORDS[:8])):
        history = model.fit(*data, batch_size=8, verbose=0).history
        assert history["first"][0] == pytest.approx(expected)


def test_compile_has_the_defaults_of_the_paper():
    model = seq2seq()
    model.compile(run_eagerly=True)
    optimizer = model.optimizer
    assert (optimizer.beta_2, optimizer.epsilon) == (0.98, 1e-9)
    assert isinstance(model.loss, MaskedCrossEntropy)
    # Section 5.3: width ** -0.5 * min(step ** -0.5, step * 4000 ** -1.5), steps from 1.
    model.fit(WORDS[:4], WORDS[:4], verbose=0)
    rate = float(keras.ops.convert_to_numpy(optimizer.learning_rate))
    steps = [32**-0.5 * step * 4000**-1.5 for step in (1, 2)]
    assert any(rate == pytest.approx(step, rel=1e-5) for step in steps)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_trains(dtype):
    model = compiled(
        kzoo.Seq2SeqLM(seq2seq().config, tokenizer=TOKENIZER, dtype=dtype),
        keras.optimizers.Adam(0.01),
        eager=True,
    )
    history = model.fit(WORDS, WORDS, batch_size=40, epochs=6, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    assert history["loss"][-1] < 0.8 * history["loss"][0]
    assert {w.dtype for w in model.weights} == {"float32"}


# Resume and files.


class Killed(Exception):
    pass


class KillBefore(keras.callbacks.Callback):
    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            raise Killed


def test_resuming_on_strings_gives_the_same_weights_bit_by_bit(tmp_path):
    def fit(model, *callbacks):
        model.fit(WORDS[:20], batch_size=6, epochs=3, callbacks=callbacks, verbose=0)

    whole, first = (compiled(causal(dropout=0.2)) for _ in range(2))
    for variable, source in zip(first.variables, whole.variables, strict=True):
        variable.assign(to_numpy(source.value))  # the seeds of dropout, too
    fit(whole)
    path = tmp_path / "resume.npz"
    with pytest.raises(Killed):
        fit(first, ResumableCheckpoint(path), KillBefore(2))
    second = compiled(causal(dropout=0.2))  # other weights, other seeds
    fit(second, ResumableCheckpoint(path))
    for got, want in zip(second.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_keras_file_loads_in_a_fresh_process(tmp_path):
    model = compiled(seq2seq(dropout=0.1), label_smoothing=0.1)
    model.fit(WORDS[:16], WORDS[:16], verbose=0)
    model.save(tmp_path / "model.keras")
    expected = {
        "loss": model.evaluate(PAIRS, verbose=0),
        "iterations": int(model.optimizer.iterations),
        "smoothing": 0.1,
    }
    code = (
        "import json, sys, kzoo\n"
        "model = kzoo.load_model(sys.argv[1])\n"
        "pairs = [tuple(pair) for pair in json.loads(sys.argv[2])]\n"
        "assert type(model) is kzoo.Seq2SeqLM\n"
        "print(json.dumps({'loss': model.evaluate(pairs, verbose=0),\n"
        "    'iterations': int(model.optimizer.iterations),\n"
        "    'smoothing': model.loss.label_smoothing}))\n"
        "model.fit(pairs, verbose=0)\n"
    )
    result = subprocess.run(
        [
            *(sys.executable, "-W", "error::UserWarning", "-c", code),
            *(str(tmp_path / "model.keras"), json.dumps(PAIRS)),
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    got = json.loads(result.stdout.splitlines()[-1])
    assert got.pop("loss") == pytest.approx(expected.pop("loss"), rel=1e-6)
    assert got == expected


def test_weights_files_are_complete(tmp_path):
    for make in (seq2seq, causal):
        model, other = perturbed(make()), make()
        model.save_weights(tmp_path / "model.weights.h5")
        other.load_weights(tmp_path / "model.weights.h5")
        model.save_safetensors(tmp_path / "model.safetensors")
        third = make()
        third.load_safetensors(tmp_path / "model.safetensors")
        for loaded in (other, third):
            for got, want in zip(
                loaded.get_weights(), model.get_weights(), strict=True
            ):
                np.testing.assert_array_equal(got, want)
        assert [p.name for p in tmp_path.glob("*.partial")] == []


def test_safetensors_have_the_contract_names(tmp_path):
    from safetensors.numpy import load_file, save_file

    model = causal(tie_head=False)
    model.save_safetensors(tmp_path / "model.safetensors")
    arrays = load_file(tmp_path / "model.safetensors")
    assert set(arrays) == set(model.named_variables())
    assert arrays["decoder/layer_0/self_attention/query/kernel"].shape == (32, 32)
    assert arrays["head/kernel"].shape == (32, TOKENIZER.vocabulary_size)

    # All that does not fit is named, and nothing is loaded.
    before = model.get_weights()
    wrong = {path: array + 1 for path, array in arrays.items()}
    del wrong["head/kernel"]
    wrong["head/bias"] = np.zeros(3, "float32")
    wrong["decoder/final_norm/gamma"] = np.zeros(31, "float32")
    save_file(wrong, tmp_path / "wrong.safetensors")
    with pytest.raises(ValueError) as raised:
        model.load_safetensors(tmp_path / "wrong.safetensors")
    message = str(raised.value)
    assert "wrong.safetensors does not fit causal" in message
    assert "Missing: ['head/kernel']" in message
    assert "Unknown: ['head/bias']" in message
    assert "decoder/final_norm/gamma: (31,), expected (32,)" in message
    for got, want in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(got, want)

    (tmp_path / "damaged.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ValueError, match="damaged.safetensors is not a safetensors"):
        model.load_safetensors(tmp_path / "damaged.safetensors")
    with pytest.raises(FileNotFoundError, match="nowhere.safetensors"):
        model.load_safetensors(tmp_path / "nowhere.safetensors")


@pytest.mark.parametrize("make", [seq2seq, causal])
@pytest.mark.parametrize("tokenizer", [TOKENIZER, None], ids=["text", "ids"])
def test_a_folder_has_config_weights_and_tokenizer(make, tokenizer, tmp_path):
    model = perturbed(make(tokenizer, positions="relative"))
    model.save_folder(tmp_path / "model")
    loaded = load_task(tmp_path / "model")
    assert type(loaded) is type(model) and loaded.config == model.config
    for got, want in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(got, want)
    if tokenizer is None:
        assert loaded.tokenizer is None
    else:
        assert loaded.tokenizer.encode(WORDS) == tokenizer.encode(WORDS)


def test_a_folder_that_is_no_model_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="No config.json in"):
        load_task(tmp_path)
    (tmp_path / "config.json").write_text('{"task": "Odd", "model": {}}')
    with pytest.raises(ValueError, match="config.json does not describe a kzoo task"):
        load_task(tmp_path)


# Refusals.


def test_smoothing_a_loss_of_the_user_is_refused():
    loss = MaskedCrossEntropy(ignore_id=0)
    with pytest.raises(ValueError, match="label_smoothing=0.1 is of the default loss"):
        causal().compile(loss=loss, label_smoothing=0.1)
    causal().compile(loss=loss)


def test_what_cannot_be_read_is_refused():
    with pytest.raises(ValueError, match="no tokenizer"):
        compiled(seq2seq(None), eager=True).fit(WORDS, WORDS)
    with pytest.raises(ValueError, match="learns from pairs.*'ab'"):
        compiled(seq2seq()).fit(["ab", "cd"])
    with pytest.raises(ValueError, match="Every source needs a target.*2 and 1"):
        compiled(seq2seq()).fit(["ab", "cd"], ["ab"])
    with pytest.raises(ValueError, match="learns each text from itself"):
        compiled(causal()).fit(["ab"], ["ab"])
    with pytest.raises(ValueError, match="architecture 'decoder'.*'encoder_decoder'"):
        kzoo.CausalLM(seq2seq().config)
    with pytest.raises(ValueError, match="has 8 tokens, the model only 5"):
        kzoo.CausalLM.from_size("tiny", TOKENIZER, vocabulary_size=5)
    with pytest.raises(ValueError, match="a tokenizer or a vocabulary_size"):
        kzoo.CausalLM.from_size("tiny")
