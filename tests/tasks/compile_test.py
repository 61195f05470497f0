"""Metrics leave padding out; an epoch has the steps that it should have."""

import functools
import subprocess
import sys
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest

import kzoo
from kzoo.training import MaskedCrossEntropy, TokenAccuracy
from tests.words import EAGER, TOKENIZER, WORDS, causal, compiled, seq2seq

ROOT = Path(__file__).parents[2]
SMALL = dict(num_layers=1, hidden_dim=16, intermediate_dim=16, num_heads=2, dropout=0.0)
LENGTHS = ["a", "abcdabcd", "ab", "d"]


def tagger():
    return kzoo.TokenClassifier.from_size("tiny", TOKENIZER, labels=["X", "Y"], **SMALL)


def measured(model, *data, **options):
    model.compile(run_eagerly=EAGER, **options)
    return model.evaluate(*data, verbose=0, return_dict=True)


@pytest.mark.parametrize("name", ["accuracy", "acc"])
def test_accuracy_leaves_out_padding(name):
    model, words = seq2seq(), LENGTHS
    expected = measured(model, words, words)["token_accuracy"]
    metrics = [name]
    got = measured(model, words, words, metrics=metrics, weighted_metrics=[[name]])
    assert metrics == [name]  # the caller's list
    assert got[name] == pytest.approx(expected) and model.leaves_out_filling
    nested = measured(model, words, words, metrics={"logits": [name]})
    assert nested[name] == pytest.approx(expected)
    both = measured(model, words, words, metrics=[TokenAccuracy(0, "mine"), name])
    assert both[name] == both["mine"] == pytest.approx(expected)


def test_a_model_compiled_again_computes_what_it_was_compiled_for():
    """While the former steps are alive, too, which JAX takes for the new ones."""
    model, held, losses = causal(), [], []
    for smoothing, metric in (
        (0.0, TokenAccuracy(0, "a")),
        (0.5, TokenAccuracy(0, "b")),
    ):
        model.compile(
            keras.optimizers.SGD(0.0), label_smoothing=smoothing, metrics=[metric]
        )
        learned = model.fit(WORDS, batch_size=len(WORDS), verbose=0).history
        found = model.evaluate(WORDS, verbose=0, return_dict=True)
        assert {*learned} == {*found} == {"loss", metric.name}
        losses.append((learned["loss"][0], found["loss"]))
        held += [model.train_function, model.test_function]
    for before, after in zip(*losses, strict=True):
        assert abs(after - before) > 1e-3
    assert losses[1][0] == pytest.approx(losses[1][1], rel=1e-5)


def test_accuracy_leaves_out_ignored_targets():
    model = tagger()
    sentences = [["abcd", "ab"], ["abc"]]
    right = model.tag(sentences)
    assert measured(model, sentences, right, metrics=["accuracy"])["accuracy"] == 1.0


def test_metrics_that_keras_refuses_are_shown_as_they_were_given():
    model = tagger()
    sentences = [["abcd", "ab"], ["abc"]]
    with pytest.raises(ValueError, match="metrics=accuracy of type <class 'str'>"):
        measured(model, sentences, model.tag(sentences), metrics="accuracy")


def test_metrics_of_keras_that_count_padding_are_named():
    own = keras.metrics.SparseCategoricalAccuracy(name="right")
    with pytest.warns(UserWarning, match="count padding, too: .'right'"):
        causal().compile(metrics=[own])
    name = "sparse_categorical_accuracy"
    with pytest.warns(UserWarning, match=f"count padding, too: .'{name}'"):
        tagger().compile(weighted_metrics=[name])
    causal().compile(metrics=[keras.metrics.MeanIoU(8, ignore_class=0)])
    causal().compile(metrics=[lambda y, logits: keras.ops.zeros(())])


def test_a_class_an_example_is_measured_as_keras_does():
    model = kzoo.TextClassifier.from_size("tiny", TOKENIZER, num_classes=3, **SMALL)
    ids, _ = model.encode_text(WORDS[:4])
    rows = np.eye(3)[[0, 1, 2, 0]]
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=["accuracy"])
    best = model.predict(ids, verbose=0).argmax(-1)
    got = model.evaluate(ids, rows, verbose=0, return_dict=True)
    assert got["accuracy"] == pytest.approx((best == [0, 1, 2, 0]).mean())


@pytest.mark.parametrize(
    "loss",
    [
        "sparse_categorical_crossentropy",
        "BinaryCrossentropy",
        keras.losses.sparse_categorical_crossentropy,
        keras.losses.CategoricalCrossentropy(),
        [keras.losses.BinaryFocalCrossentropy()],
    ],
)
def test_a_loss_of_probabilities_is_a_warning(loss):
    """Keras would take logits for them, and learn from wrong numbers."""
    model = kzoo.TextClassifier.from_size("tiny", TOKENIZER, num_classes=3, **SMALL)
    with pytest.warns(UserWarning, match="gives logits, .* with from_logits=True"):
        model.compile("sgd", loss)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for right in ("mse", lambda y, logits: keras.ops.sum(logits), None, "hinge"):
            model.compile("sgd", right)


def test_a_loss_that_counts_padding_is_a_warning():
    sparse = keras.losses.SparseCategoricalCrossentropy
    for model, loss in (
        (causal(), sparse(from_logits=True)),
        (tagger(), keras.losses.CategoricalFocalCrossentropy(from_logits=True)),
    ):
        with pytest.warns(UserWarning, match="loss of Keras counts them"):
            model.compile("sgd", loss, metrics=None)
    with pytest.warns(UserWarning) as caught:  # not of padding, too
        causal().compile("sgd", "sparse_categorical_crossentropy", metrics=None)
    assert ["gives logits" in str(each.message) for each in caught] == [True]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wrapper = keras.losses.MeanSquaredError.__base__  # of a function of the user's
        causal().compile("sgd", wrapper(lambda y, x: x[..., 0]), metrics=None)

        class Masked(sparse):
            def call(self, y, x):
                return super().call(y, x) * keras.ops.cast(y != 0, "float32")

        causal().compile("sgd", Masked(), metrics=None)
        ignoring = sparse(from_logits=True, ignore_class=0)
        causal().compile("sgd", ignoring, metrics=None)


@pytest.mark.tensorflow
@pytest.mark.parametrize("text", [False, True])
def test_a_pipeline_without_targets_is_named(text):
    import tensorflow as tf

    model = kzoo.TextClassifier.from_size("tiny", TOKENIZER, num_classes=3, **SMALL)
    model.compile(run_eagerly=EAGER)
    x = WORDS[:4] if text else model.encode_text(WORDS[:4])[0]
    with pytest.raises(ValueError, match=r"no targets: .* gives \(inputs, targets\)"):
        model.fit(tf.data.Dataset.from_tensor_slices(x).batch(2), verbose=0)


def test_a_loss_of_one_s_own_may_need_no_targets():
    class Own(kzoo.TextClassifier):
        def compute_loss(self, x=None, y=None, y_pred=None, *args, **kwargs):
            return keras.ops.mean(y_pred**2)

    model = Own.from_size("tiny", TOKENIZER, num_classes=3, **SMALL)
    model.compile("sgd", loss=None, metrics=None)
    ids, _ = model.encode_text(WORDS[:4])
    assert np.isfinite(model.fit(ids, verbose=0).history["loss"]).all()


class OwnSteps(kzoo.CausalLM):
    """With a metric and steps of one's own, as Keras's guides to them have it."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.own_loss = keras.metrics.Mean(name="own_loss")

    def _loss(self, x, y, answers):
        return self.compute_loss(x=x, y=y, y_pred=answers)

    def _update(self, x, y, answers):
        loss = self._loss(x, y, answers)
        for metric in self.metrics:
            own = metric.name in ("loss", "own_loss")
            metric.update_state(*([loss] if own else [y, answers]))
        return loss

    def train_step(self, data):
        import tensorflow as tf

        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            loss = self._update(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return self.get_metrics_result()

    def test_step(self, *data):
        if keras.backend.backend() == "jax":
            return self._jax_test_step(*data)
        x, y, _ = keras.utils.unpack_x_y_sample_weight(*data)
        self._update(x, y, self(x, training=False))
        return self.get_metrics_result()

    def _jax_test_step(self, state, data):
        trainable, others, values = state
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        answers, others = self.stateless_call(trainable, others, x, training=False)
        loss = self._loss(x, y, answers)
        logs, new = {}, []
        for metric in self.metrics:
            own = metric.name in ("loss", "own_loss")
            now, values = (
                values[: len(metric.variables)],
                values[len(metric.variables) :],
            )
            now = metric.stateless_update_state(now, *([loss] if own else [y, answers]))
            result = metric.stateless_result(now)
            logs |= result if isinstance(result, dict) else {metric.name: result}
            new += now
        return logs, (trainable, others, new)


def evaluated(*models):
    """What models of the same weights report for rows of several lengths."""
    x, y = models[0].encode_text(LENGTHS)
    for model in models[1:]:
        model.set_weights(models[0].get_weights())
    options = dict(batch_size=2, verbose=0, return_dict=True)
    return [model.evaluate(x, y, **options) for model in models]


def own_of(kind):
    return compiled(kind(causal().config, TOKENIZER), keras.optimizers.SGD(0.1))


def test_steps_of_one_s_own_report_the_mean_of_batches_as_in_keras():
    expected, found = evaluated(compiled(causal()), own_of(OwnSteps))
    assert found["loss"] == pytest.approx(found.pop("own_loss"), rel=1e-5)
    # Rows differ in tokens, by which the task's own step weighs.
    assert abs(expected.pop("loss") - found.pop("loss")) > 1e-4
    assert found == pytest.approx(expected, rel=1e-5)


class TwoLosses(kzoo.CausalLM):
    """Whose loss has a part, asked of Keras's, too."""

    def compute_loss(self, x=None, y=None, y_pred=None, *arguments, **options):
        part = super().compute_loss(x, y[:, :1], y_pred[:, :1], *arguments, **options)
        loss = super().compute_loss(x, y, y_pred, *arguments, **options)
        return loss + 0 * part


def test_a_loss_that_is_computed_twice_has_the_weight_of_all_targets():
    expected, found = evaluated(compiled(causal()), own_of(TwoLosses))
    assert found == pytest.approx(expected, rel=1e-5)


class MeanLogit(kzoo.TextClassifier):
    """Whose loss is over all rows that it is given."""

    def compute_loss(self, x=None, y=None, y_pred=None, *arguments, **options):
        return keras.ops.mean(keras.ops.abs(y_pred))


def test_rows_that_fill_a_batch_reach_no_loss_of_one_s_own():
    options = dict(num_classes=3, head_dropout=0.0, **SMALL)
    model = MeanLogit.from_size("tiny", TOKENIZER, **options)
    model.compile(run_eagerly=EAGER)
    loss, _ = model.evaluate(LENGTHS[:3], [0, 1, 2], verbose=0)
    expected = np.abs(model.predict(LENGTHS[:3], verbose=0)).mean()
    assert loss == pytest.approx(expected, rel=1e-5)
    (learned,) = model.fit(LENGTHS[:3], [0, 1, 2], verbose=0).history["loss"]
    assert learned == pytest.approx(expected, rel=1e-5)


def test_which_steps_leave_out_rows_that_fill_a_batch():
    assert compiled(causal()).leaves_out_filling
    assert not own_of(OwnSteps).leaves_out_filling
    model = compiled(causal())
    model.test_step = lambda data: model.get_metrics_result()  # as late as Keras asks
    assert not model.leaves_out_filling

    class Wrapped(kzoo.CausalLM):
        @functools.wraps(kzoo.CausalLM.compute_loss)
        def compute_loss(self, *arguments, **options):
            return super().compute_loss(*arguments, **options)

    class OfJax(kzoo.CausalLM):
        def compute_loss_and_updates(self, *arguments, **options):
            return super().compute_loss_and_updates(*arguments, **options)

    for kind in (Wrapped, OfJax):
        assert not own_of(kind).leaves_out_filling


class OwnLoss(OwnSteps):
    """Whose steps compute the task's loss and report others."""

    def _loss(self, x, y, answers):
        self.compute_loss(x=x, y=y, y_pred=answers)
        return keras.ops.mean(answers**2)


@pytest.mark.parametrize("eager", [True, False])
def test_a_step_s_own_loss_is_the_one_reported(eager):
    model, own = compiled(causal()), own_of(OwnLoss)
    own.run_eagerly = eager
    _, found = evaluated(model, own)
    x, _ = model.encode_text(LENGTHS)
    answers = keras.ops.convert_to_numpy(model(x))
    assert found["loss"] == pytest.approx(np.mean(answers**2), rel=1e-5)


@pytest.mark.tensorflow
def test_a_training_step_of_one_s_own_is_that_of_keras():
    model, own = compiled(causal(), keras.optimizers.SGD(0.1)), own_of(OwnSteps)
    own.set_weights(model.get_weights())
    histories = [
        each.fit(WORDS[:32], batch_size=8, epochs=2, shuffle=False, verbose=0).history
        for each in (model, own)
    ]
    losses = [history.pop("loss") for history in histories]
    assert histories[1].pop("own_loss") == pytest.approx(losses[1], rel=1e-4)
    assert losses[1] == pytest.approx(losses[0], rel=0.05) and losses[1][1] > 0
    for name, values in histories[0].items():
        assert histories[1].pop(name) == pytest.approx(values, rel=1e-4)
    assert not histories[1]


def test_steps_per_execution_must_divide_an_epoch():
    model = compiled(causal(), keras.optimizers.SGD(0.0), steps_per_execution=4)
    before = int(model.optimizer.iterations)
    match = "trains 8 instead.*steps_per_execution=4 for 6 steps.*steps_per_epoch=4"
    with pytest.raises(ValueError, match=match):
        model.fit(WORDS[:24], batch_size=4, verbose=0)
    inputs, _ = model.encode_text(WORDS[:24])
    with pytest.raises(ValueError, match=match):
        model.fit(inputs, batch_size=4, steps_per_epoch=6, verbose=0)
    assert int(model.optimizer.iterations) == before
    model.fit(WORDS[:32], batch_size=4, verbose=0)
    assert int(model.optimizer.iterations) == before + 8


def test_padding_of_a_language_model_counts_nowhere():
    model = compiled(causal(), eager=True)
    generator = np.random.default_rng(0)
    ids = generator.integers(4, TOKENIZER.vocabulary_size, (6, 8), dtype="int32")
    ids[2:, 4:] = 0
    real = ids != 0
    forms = [{"token_ids": ids}]
    # Padded with the end token, as other libraries do, and on the left.
    for filled in (np.where(real, ids, 2), np.where(real, ids, 5)):
        forms += [
            {"token_ids": filled, "padding_mask": m} for m in (real, np.int32(real))
        ]
    forms.append({"token_ids": np.array([np.roll(r, (r == 0).sum()) for r in ids])})
    losses = [model.evaluate(form, verbose=0) for form in forms]
    np.testing.assert_allclose(losses, [losses[0]] * len(forms), rtol=1e-5)
    energies = [model.energy(form) for form in forms]
    np.testing.assert_allclose(energies, [energies[0]] * len(forms), rtol=1e-5)


def test_a_saved_compile_chooses_again_where_it_is_loaded():
    model = causal()
    model.compile()
    assert model.get_compile_config()["jit_compile"] == "auto"
    model.compile(jit_compile=False)
    assert model.get_compile_config()["jit_compile"] is False


def test_keras_does_not_quantise():
    model = causal()
    for each in (model, model.decoder):
        with pytest.raises(ValueError, match=f'{each.name}: .*quantize="int8"'):
            each.quantize("int8")


@pytest.mark.parametrize("kind", ["metrics", "weighted_metrics"])
def test_no_metrics_leave_none_of_an_earlier_compile(kind):
    """They would count what fills the last batch: NaN, or a class that there is not."""
    model = kzoo.TextRegressor.from_size("tiny", TOKENIZER, **SMALL)
    x, y = WORDS[:5], np.arange(5.0)
    model.compile("sgd", **{"metrics": None, kind: ["mae"]})
    assert np.isfinite(model.evaluate(x, y, batch_size=4, verbose=0)).all()
    model.compile("sgd", metrics=None)
    found = model.evaluate(x, y, batch_size=4, verbose=0, return_dict=True)
    np.testing.assert_allclose(
        found["loss"], np.mean((model.predict(x, verbose=0)[:, 0] - y) ** 2), rtol=1e-5
    )
    assert list(found) == ["loss"]


@pytest.mark.tensorflow
def test_replicas_report_the_loss_of_all(tmp_path):
    script = """
import tensorflow as tf
cpus = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(
    cpus[0], [tf.config.LogicalDeviceConfiguration()] * 2)
import keras, kzoo, numpy as np
ids = np.random.default_rng(0).integers(3, 30, (8, 8)); ids[4:, 3:] = 0
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    model = kzoo.CausalLM.from_size(
        "tiny", vocabulary_size=30, num_layers=1, hidden_dim=8, dropout=0.0)
    model.compile(kzoo.training.Adam(1e-9), metrics=None)
x = {"token_ids": ids}
(loss,) = model.fit(x, batch_size=8, shuffle=False, verbose=0).history["loss"]
expected = model.evaluate(x, batch_size=8, verbose=0)
assert abs(loss - expected) < 1e-4, (loss, expected)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_loss_that_leaves_out_a_class_is_refused():
    loss, metric = MaskedCrossEntropy(0.1), TokenAccuracy()  # leave out 0
    for options in (dict(loss=loss), dict(metrics=[metric]), dict(metrics=[[metric]])):
        with pytest.raises(ValueError, match="ignore_id=-1.*with ignore_id=0"):
            tagger().compile(**options)
    with pytest.raises(ValueError, match=r"Give MaskedCrossEntropy\(0.1, ignore_id=-1"):
        tagger().compile(loss="mse", label_smoothing=0.1)
    tagger().compile(loss=MaskedCrossEntropy(0.1, ignore_id=-1))
    seq2seq().compile(loss=loss, metrics=[metric])  # whose padding is 0
