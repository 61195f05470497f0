"""Tasks train on every form of data, and go on where they were killed."""

import itertools
import warnings

import grain
import keras
import numpy as np
import pytest

import kzoo
from kzoo.training import Adam, ResumableCheckpoint
from kzoo.training.optimizers import LossScaleOptimizer
from tests.harness import KillBefore, Killed, difference, small_task, to_numpy
from tests.reference import Reference
from tests.words import (
    PAIRS,
    TOKENIZER,
    WORDS,
    batches_of_ids,
    causal,
    compiled,
    ids_of,
    perturbed,
    seq2seq,
    seq2seq_ids,
)

# Fit, in every form.


def test_a_translator_learns_to_copy_strings():
    # At a rate that does not fall the last losses jump, on some processors above 0.1.
    rate = keras.optimizers.schedules.CosineDecay(0.01, 40 * len(WORDS) // 16)
    model = compiled(seq2seq(), keras.optimizers.Adam(rate))
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
    pairs = list(zip(WORDS[:16], WORDS[24:40], strict=True))
    one, two = (compiled(seq2seq(), eager=True) for _ in range(2))
    two.set_weights(one.get_weights())
    one.fit(WORDS[:16], WORDS[24:40], batch_size=8, verbose=0)
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
    history = model.fit(inputs, y, epochs=2, batch_size=8, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]


def test_a_language_model_takes_dicts_of_ids():
    model = compiled(causal(), eager=True)
    inputs = {"token_ids": ids_of(WORDS[:16])}
    history = model.fit(inputs, epochs=2, batch_size=8, verbose=0).history
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
    dataset = grain.MapDataset.source(pairs).batch(8)
    dataset = dataset.to_iter_dataset() if iterate else dataset
    model = compiled(seq2seq(), eager=iterate)
    history = model.fit(dataset, epochs=2, shuffle=False, verbose=0).history
    assert history["loss"][1] < history["loss"][0]
    listed, same = (model.evaluate(d, verbose=0) for d in (dataset.map(list), dataset))
    assert listed == same  # as of Keras, a list of parts is a tuple
    scorer = compiled(kzoo.PairScorer.from_size("tiny", TOKENIZER), eager=True)
    losses = []
    for kind in (list, tuple):
        scored = grain.MapDataset.source([kind([kind(p), 0.5]) for p in pairs])
        scored = scored.batch(8)
        scored = scored.to_iter_dataset() if iterate else scored
        losses.append(scorer.evaluate(scored, verbose=0))
    assert losses[0] == losses[1]
    texts = grain.MapDataset.source(WORDS[:16]).batch(8)
    texts = texts.to_iter_dataset() if iterate else texts
    language_model = compiled(causal(), eager=True)
    history = language_model.fit(texts, epochs=2, shuffle=False, verbose=0).history
    assert history["loss"][1] < history["loss"][0]


@pytest.mark.tensorflow  # elsewhere Keras itself looks at batches before
def test_what_looks_at_a_grain_pipeline_reads_no_batch_twice():
    """Nor begins its processes anew, where it has some."""
    batches, read = batches_of_pairs(PAIRS[:4] * 16), []
    dataset = grain.MapDataset.source(range(4)).map(lambda i: read.append(i) or i)
    model = compiled(seq2seq(), eager=True)
    model.evaluate(dataset.map(batches.__getitem__), verbose=0)
    assert read == [0, 1, 2, 3]
    model.fit(dataset.map(batches.__getitem__), epochs=2, shuffle=False, verbose=0)
    assert read == [0, 1, 2, 3] * 3
    with pytest.raises(ValueError, match="one batch at least. Received: a .*MapData"):
        model.evaluate(grain.MapDataset.source(batches)[:0], verbose=0)


@pytest.mark.tensorflow
def test_tf_data_of_dicts():
    import tensorflow as tf

    inputs, targets = seq2seq_ids(WORDS[:16], WORDS[:16])
    for elements, eager in (((inputs, targets), False), (inputs, True)):
        model = compiled(seq2seq(), eager=eager)
        dataset = tf.data.Dataset.from_tensor_slices(elements).batch(4)
        history = model.fit(dataset, epochs=2, verbose=0).history
        assert history["loss"][1] < history["loss"][0]


@pytest.mark.tensorflow
@pytest.mark.parametrize("rounds", [None, 3])
def test_no_step_is_taken_where_a_pipeline_of_unknown_length_ends(rounds):
    import tensorflow as tf

    ids = ids_of(WORDS[:16])

    def batches():
        yield from ({"token_ids": ids[first : first + 4]} for first in range(0, 16, 4))

    kind = {"token_ids": tf.TensorSpec((None, ids.shape[1]), "int32")}
    pipeline = tf.data.Dataset.from_generator(batches, output_signature=kind)
    # A small epsilon makes steps of rounding, where a gradient is zero but for that.
    given = dict(weight_decay=0.5, epsilon=1e-3, gradient_accumulation_steps=rounds)
    models = []
    for data in (pipeline, {"token_ids": ids}):
        keras.utils.set_random_seed(0)
        model = compiled(causal(dropout=0.1), kzoo.training.Adam(0.01, **given))
        size = {} if data is pipeline else {"batch_size": 4}
        model.fit(data, **size, shuffle=False, epochs=3, verbose=0)
        models.append(model)
    one, two = models
    assert int(one.optimizer.iterations) == 12 // (rounds or 1)
    for a, b in zip(one.get_weights(), two.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.tensorflow
@pytest.mark.parametrize("at_a_time", [1, 3])
def test_no_step_begins_where_a_pipeline_of_unknown_length_ends(at_a_time):
    """Not even what a graph runs before all else, by whatever order it is in."""
    import tensorflow as tf

    class Counted(kzoo.CausalLM):
        begun = tf.Variable(0, trainable=False)

        def train_step(self, data):
            with tf.control_dependencies(None):
                self.begun.assign_add(1)
            return super().train_step(data)

    ids = ids_of(WORDS[:16])

    def batches():
        yield from ({"token_ids": ids[first : first + 4]} for first in range(0, 16, 4))

    kind = {"token_ids": tf.TensorSpec((None, ids.shape[1]), "int32")}
    pipeline = tf.data.Dataset.from_generator(batches, output_signature=kind)
    model = Counted.from_size("tiny", TOKENIZER, num_layers=1)
    model.compile(steps_per_execution=at_a_time)
    model.fit(pipeline, epochs=3, verbose=0)
    assert int(model.begun) == int(model.optimizer.iterations) == 12


def test_parts_of_a_generator_s_batches_may_be_none():
    ids = ids_of(WORDS[:8])

    def batches(*parts):
        while True:
            yield {"token_ids": ids}, *parts

    losses = []
    for parts in (), (None,), (None, None):
        keras.utils.set_random_seed(0)
        model = compiled(causal())
        model.fit(batches(*parts), steps_per_epoch=2, verbose=0)
        losses.append(model.evaluate(batches(*parts), steps=1, verbose=0))
    for loss in losses[1:]:
        np.testing.assert_allclose(loss, losses[0], rtol=1e-6)


def test_a_second_fit_goes_on_from_the_average_of_the_first():
    optimizer = keras.optimizers.Adam(0.01, use_ema=True)
    model = compiled(causal(), optimizer, eager=True)
    for _ in range(2):
        before = model.get_weights()
        model.fit(WORDS[:8], batch_size=4, verbose=0)
        averages = model.optimizer._model_variables_moving_average
        for weight, average in zip(model.trainable_weights, averages, strict=True):
            np.testing.assert_array_equal(to_numpy(weight), to_numpy(average))
        assert any(
            (a != b).any() for a, b in zip(before, model.get_weights(), strict=True)
        )
        inputs, _ = model.encode_text(WORDS[:8])
        model.evaluate(WORDS[:8], verbose=0)
        model.predict(inputs, verbose=0)
        model.test_on_batch(inputs)


@pytest.mark.tensorflow
def test_tf_data_of_strings():
    import tensorflow as tf

    words = [*WORDS[:8], "äb" * 4, *WORDS[9:16]]
    pairs = tf.data.Dataset.from_tensor_slices((words, words)).batch(8)
    model = compiled(seq2seq(), eager=True)
    history = model.fit(pairs, epochs=2, validation_data=pairs, verbose=0).history
    assert history["loss"][1] < history["loss"][0]
    strings = model.evaluate(words, words, batch_size=8, verbose=0)
    got = model.evaluate(pairs, verbose=0)
    np.testing.assert_allclose(got, strings, rtol=1e-5)
    weights = np.arange(16.0, dtype="float32")
    weighted = tf.data.Dataset.from_tensor_slices((words, words, weights)).batch(8)
    inputs, targets = model.encode_text(words, words)
    expected = model.evaluate(inputs, targets, sample_weight=weights, verbose=0)
    got = model.evaluate(weighted, verbose=0)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-5)
    for wrong in ((words, words, words), (words, words, weights, weights)):
        dataset = tf.data.Dataset.from_tensor_slices(wrong).batch(4)
        with pytest.raises(ValueError, match="or \\(source, target, weight\\)"):
            model.evaluate(dataset, verbose=0)
    texts = tf.data.Dataset.from_tensor_slices(words).batch(8)
    language_model = compiled(causal())  # traced: lengths are not known
    history = language_model.fit(texts, epochs=2, verbose=0).history
    assert history["loss"][1] < history["loss"][0]


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
    history = model.fit(WORDS[:8], WORDS[:8], validation_data=held_out, verbose=0)
    words = WORDS[40:42] if held_out == PAIRS[:2] else WORDS[40:50]
    expected = model.evaluate(words, words, verbose=0, return_dict=True)
    assert len(history.history["val_loss"]) == 1
    for name, value in expected.items():
        assert history.history[f"val_{name}"][0] == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("endless", [False, True])
def test_every_batch_of_a_generator_is_validated_on(endless):
    """In the first epoch; Keras may leave some out between two, of any model."""
    inputs, targets = seq2seq_ids(*zip(*PAIRS[:8], strict=True))
    batches = [
        keras.tree.map_structure(lambda x, i=i: x[i : i + 2], (inputs, targets))
        for i in range(0, 8, 2)
    ]
    model = compiled(perturbed(seq2seq()), eager=True)
    expected = model.evaluate((batch for batch in batches), verbose=0)
    model.compile(optimizer=keras.optimizers.SGD(0.0), run_eagerly=True)
    given = itertools.cycle(batches) if endless else batches
    history = model.fit(
        WORDS[:4],
        WORDS[:4],
        validation_data=(batch for batch in given),
        validation_steps=4 if endless else None,
        verbose=0,
    )
    assert history.history["val_loss"] == pytest.approx(expected[:1], rel=1e-5)


@pytest.mark.parametrize(("steps", "too_few"), [(2, False), (4, True)])
def test_the_end_of_data_is_a_warning_where_so_many_steps_were_said(steps, too_few):
    """Not the end of the batches to learn from, whose number nobody said."""
    inputs, targets = seq2seq_ids(*zip(*PAIRS[:2], strict=True))

    def batches():
        yield from [(inputs, targets)] * 3

    model = compiled(seq2seq(), eager=True)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        model.fit(
            batches(), validation_data=batches(), validation_steps=steps, verbose=0
        )
    said = [str(each.message) for each in found]
    assert any("ran out of data" in message for message in said) is too_few


def test_an_iterator_that_is_no_generator_is_refused():
    """Where what looked at its first batch had it, the first two were lost."""
    dataset = grain.MapDataset.source([seq2seq_ids(WORDS[:2], WORDS[:2])] * 3)
    model = compiled(seq2seq(), eager=True)
    for method in (model.fit, model.evaluate, model.predict):
        with pytest.raises(ValueError, match="an iterator, .*; give what it iterates"):
            method(iter(dataset.to_iter_dataset()), verbose=0)


def test_the_same_weights_have_the_same_loss_on_every_pipeline():
    words = WORDS[:64]
    model = compiled(perturbed(seq2seq()), eager=True)
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


def test_inputs_of_unequal_rows_are_counted():
    inputs, _ = seq2seq_ids(WORDS[:8], WORDS[:8])
    inputs["decoder_token_ids"] = inputs["decoder_token_ids"][:5]
    with pytest.raises(ValueError, match="'decoder_token_ids': 5"):
        compiled(seq2seq()).fit(inputs, verbose=0)


def batches_of_pairs(pairs):
    return [
        seq2seq_ids(*zip(*pairs[i : i + 16], strict=True)) for i in range(0, 64, 16)
    ]


def test_predict_gives_logits_of_strings():
    model = compiled(perturbed(seq2seq()), eager=True)
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


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_trains(dtype):
    model = compiled(
        kzoo.Seq2SeqLM(seq2seq().config, tokenizer=TOKENIZER, dtype=dtype),
        keras.optimizers.Adam(0.01),
        eager=True,
    )
    words = WORDS[:40]
    history = model.fit(words, words, batch_size=40, epochs=3, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    assert history["loss"][-1] < 0.8 * history["loss"][0]
    assert {w.dtype for w in model.weights} == {"float32"}
    scales = isinstance(model.optimizer, LossScaleOptimizer)
    assert scales == (dtype == "mixed_float16")


# Resume.


def test_resuming_on_strings_gives_the_same_weights_bit_by_bit(tmp_path):
    def fit(model, *callbacks):
        model.fit(WORDS[:20], batch_size=6, epochs=3, callbacks=callbacks, verbose=0)

    whole, first = (compiled(causal(dropout=0.2), eager=True) for _ in range(2))
    for variable, source in zip(first.variables, whole.variables, strict=True):
        variable.assign(to_numpy(source.value))  # the seeds of dropout, too
    keras.utils.set_random_seed(1)  # torch draws from a generator for all
    fit(whole, ResumableCheckpoint(tmp_path / "whole.npz"))
    path = tmp_path / "resume.npz"
    keras.utils.set_random_seed(1)
    with pytest.raises(Killed):
        fit(first, ResumableCheckpoint(path), KillBefore(2))
    second = compiled(causal(dropout=0.2), eager=True)  # other weights, other seeds
    fit(second, ResumableCheckpoint(path))
    for got, want in zip(second.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_array_equal(got, want)


def test_keras_s_own_backup_has_the_order_of_its_epoch(tmp_path):
    def fit(model, *callbacks):
        model.fit(WORDS[:20], batch_size=6, epochs=3, callbacks=callbacks, verbose=0)

    def backup():
        return keras.callbacks.BackupAndRestore(tmp_path / "backup")

    whole, first, second = (compiled(causal(), eager=True) for _ in range(3))
    for other in (first, second):
        other.set_weights(whole.get_weights())
    fit(whole)
    with pytest.raises(Killed):
        fit(first, backup(), KillBefore(2))
    fit(second, backup())
    for got, want in zip(second.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-6)


def test_a_fit_that_never_began_leaves_no_epoch_behind(tmp_path):
    class Refuse(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            raise Killed

    model = compiled(causal(), eager=True)
    data = dict(x=WORDS[:8], verbose=0)
    resumable = ResumableCheckpoint(tmp_path / "resume.npz")
    model.fit(**data, epochs=2, callbacks=[resumable])
    with pytest.raises(Killed):
        model.fit(**data, epochs=4, callbacks=[resumable, Refuse()])
    assert model.fit(**data, epochs=1).epoch == [0]


@pytest.mark.parametrize("in_list", [False, True])
def test_a_checkpoint_alone_says_which_examples_come_next(
    tmp_path, in_list, monkeypatch
):
    model = compiled(causal(), eager=True)
    resumable = ResumableCheckpoint(tmp_path / "resume.npz")
    model.fit(WORDS[:8], batch_size=4, callbacks=[resumable], verbose=0)
    starts, pipeline = [], model.pipeline

    def remembered(batches, **options):
        starts.append(options["start"])
        return pipeline(batches, **options)

    monkeypatch.setattr(model, "pipeline", remembered)
    callbacks = [resumable]
    if in_list:
        callbacks = keras.callbacks.CallbackList(
            callbacks, add_history=True, model=model
        )
    options = dict(batch_size=4, epochs=4, initial_epoch=3, verbose=0)
    history = model.fit(WORDS[:8], callbacks=callbacks, **options)
    assert starts == [2] and history.epoch == [1, 2, 3]


def test_strings_are_cut_to_the_learned_positions_on_every_pipeline():
    model = compiled(causal(positions="learned", max_sequence_length=3), eager=True)
    words = ["abcd" * 3, "ab"]
    with pytest.warns(UserWarning, match="1 of 2 examples were cut"):
        model.fit(words, shuffle=False, verbose=0)
    model.fit(grain.MapDataset.source(words).batch(2), verbose=0)
    assert model.predict(words, verbose=0).shape[1] == 3


def test_an_example_that_is_rather_a_mistake_is_warned_of():
    model = causal()
    with pytest.warns(UserWarning, match=r"about 20000 tokens: .* takes 1\.6 GB"):
        model.batches({"token_ids": [[5, 6], [5] * 20_000]}, batch_size=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.batches({"token_ids": [[5, 6], [5] * 16_000]}, batch_size=1)


def test_held_out_batches_are_as_those_of_the_training():
    pairs = [(a, b) for a, b in zip(WORDS[:16], WORDS[20:36])]
    sizes = dict(num_layers=1, hidden_dim=16, intermediate_dim=16, dropout=0.0)
    model = kzoo.SentenceEmbedder.from_size("tiny", TOKENIZER, **sizes)
    compiled(model, keras.optimizers.SGD(0.0), eager=True)
    by_size = {n: model.evaluate(pairs, batch_size=n, verbose=0) for n in (4, 8)}
    assert by_size[8] - by_size[4] > 0.1  # a text has more others to be told from

    def held_out(**options):
        fit = model.fit(
            pairs, validation_data=pairs, shuffle=False, verbose=0, **options
        )
        return fit.history["val_loss"][0]

    assert held_out(batch_size=4) == pytest.approx(by_size[4])
    got = held_out(batch_size=4, validation_batch_size=8)
    assert got == pytest.approx(by_size[8])
    got = held_out(tokens_per_batch=1024, validation_batch_size=8)
    assert got == pytest.approx(by_size[8])
    ids, _ = model.encode_text(pairs)
    history = model.fit(
        pairs, validation_data=(ids, None), batch_size=4, shuffle=False, verbose=0
    ).history
    assert history["val_loss"][0] == pytest.approx(by_size[4])


# What ends a method before its end.


class Interrupting(keras.callbacks.Callback):
    """Ends a method after so many steps, and keeps what the weights were then."""

    def __init__(self, steps):
        super().__init__()
        self.steps, self.weights = steps, None

    def on_train_batch_end(self, batch, logs=None):
        if batch + 1 == self.steps:
            self.weights = self.model.get_weights()
            raise KeyboardInterrupt

    on_test_batch_end = on_predict_batch_end = on_train_batch_end


ROWS = {"token_ids": np.tile(np.arange(1, 7, dtype="int32"), (8, 1))}
GIVEN = {"fit": (ROWS, ROWS["token_ids"]), "predict": (ROWS,)}
GIVEN["evaluate"] = GIVEN["fit"]
EXECUTIONS = [1] if keras.backend.backend() == "torch" else [1, 2]  # Keras's rule


@pytest.mark.parametrize(
    "options",
    [dict(run_eagerly=True), *(dict(steps_per_execution=n) for n in EXECUTIONS)],
)
def test_what_ends_a_method_leaves_the_weights(options):
    """On JAX Keras keeps them elsewhere while it runs, and an error lost them."""
    model = causal()
    model.compile(keras.optimizers.SGD(0.1), **options)
    for method, given in GIVEN.items():
        before = model.get_weights()
        stop = Interrupting(2)
        with pytest.raises(KeyboardInterrupt):
            getattr(model, method)(*given, batch_size=2, callbacks=[stop], verbose=0)
        for now, then in zip(model.get_weights(), stop.weights, strict=True):
            np.testing.assert_array_equal(now, then)
        learned = any((a != b).any() for a, b in zip(before, stop.weights))
        assert learned == (method == "fit")


def failing(model, method, after):
    """Calls a method on data that fail after so many batches."""

    def batches():
        ids = ROWS["token_ids"][:2]
        for _ in range(after):
            yield ({"token_ids": ids}, ids)[: len(GIVEN[method])]
        raise OSError("The data ended.")

    options = {"steps_per_epoch" if method == "fit" else "steps": 4}
    getattr(model, method)(batches(), verbose=0, **options)


@pytest.mark.parametrize("steps_per_execution", EXECUTIONS)
def test_data_that_fail_leave_the_weights(steps_per_execution, request):
    if steps_per_execution == 1:  # graphs have a guard of their own
        request.getfixturevalue("eager")
    model = causal()
    model.compile(keras.optimizers.SGD(0.1), steps_per_execution=steps_per_execution)
    model.predict_on_batch(ROWS)
    model.train_on_batch(*GIVEN["fit"])
    assigned = [np.full_like(each, 0.5) for each in model.get_weights()]
    for method, after in itertools.product(GIVEN, (0, 1, 3)):
        model.set_weights(assigned)  # which nothing older replaces
        with pytest.raises(Exception, match="The data ended"):
            failing(model, method, after)
        changed = [(now != 0.5).any() for now in model.get_weights()]
        if not after or method != "fit":
            assert not any(changed)
        elif after == 3:  # of fewer a backend may read one ahead
            assert any(changed)
        model.predict(ROWS, verbose=0)


def test_inputs_that_no_model_reads_leave_the_weights():
    model = compiled(causal())
    model.train_on_batch(*GIVEN["fit"])
    for method, given in GIVEN.items():
        weights = [each + 1 for each in model.get_weights()]
        model.set_weights(weights)
        wrong = (ROWS, ROWS["token_ids"][:, :5])[: len(given)]
        wrong = wrong if method != "predict" else ({"others": ROWS["token_ids"]},)
        single = {"fit": "train_on_batch", "evaluate": "test_on_batch"}.get(method)
        for name in filter(None, (method, single)):
            with pytest.raises(Exception, match="(?i)targets.are.ids|token_ids"):
                getattr(model, name)(*wrong)
            for now, then in zip(model.get_weights(), weights, strict=True):
                np.testing.assert_array_equal(now, then)


# Refusals.


def test_what_cannot_be_read_is_refused():
    with pytest.raises(ValueError, match="no tokenizer"):
        compiled(seq2seq(None), eager=True).fit(WORDS, WORDS)
    with pytest.raises(ValueError, match="learns from pairs.*'ab'"):
        compiled(seq2seq()).fit(["ab", "cd"])
    with pytest.raises(ValueError, match="Every source needs a target.*2 and 1"):
        compiled(seq2seq()).fit(["ab", "cd"], ["ab"])
    with pytest.raises(ValueError, match="learns each text from itself"):
        compiled(causal()).fit(["ab"], ["ab"])
    with pytest.raises(ValueError, match="weight must be finite.*nan for example 1"):
        words = ["ab", "cd"]
        compiled(seq2seq()).fit(words, words, sample_weight=[1.0, np.nan])
    with pytest.raises(ValueError, match="architecture 'decoder'.*'encoder_decoder'"):
        kzoo.CausalLM(seq2seq().config)
    with pytest.raises(ValueError, match="has 8 tokens, the model only 5"):
        kzoo.CausalLM.from_size("tiny", TOKENIZER, vocabulary_size=5)
    with pytest.raises(ValueError, match="a tokenizer or a vocabulary_size"):
        kzoo.CausalLM.from_size("tiny")
    inputs, targets = seq2seq_ids(WORDS[:2], WORDS[:2])
    inputs["encoder_padding_maks"] = inputs["encoder_token_ids"] != 0
    with pytest.raises(ValueError, match="encoder_padding_maks"):
        compiled(seq2seq(), eager=True).fit(inputs, targets, verbose=0)
    loader = grain.DataLoader(
        data_source=WORDS[:8],
        sampler=grain.samplers.IndexSampler(8, num_epochs=1, seed=0),
        operations=[grain.transforms.Batch(4)],
    )
    with pytest.raises(ValueError, match="grain.MapDataset and IterDataset"):
        compiled(causal(), eager=True).fit(loader, verbose=0)


def test_a_loader_s_batches_are_of_any_lengths():
    """Also where the first two are of one, which Keras takes for that of all."""
    rows = [{"token_ids": np.full((2, t), 5, "int32")} for t in (3, 3, 5, 4)]
    targets = [np.full((2, t), 5, "int32") for t in (3, 3, 5, 4)]

    def batches(rows=rows, **options):
        sampler = grain.samplers.IndexSampler(len(rows), seed=0, **options)
        return grain.DataLoader(data_source=rows, sampler=sampler, operations=[])

    model = compiled(causal(), eager=True)
    losses = model.fit(batches(), steps_per_epoch=3, epochs=3, verbose=0)
    assert np.isfinite(losses.history["loss"]).all()  # twice around, and one batch
    pairs = [*zip(rows, targets)]
    for given in (pairs, [(*p, None) for p in pairs], [[*p] for p in pairs]):
        model.fit(batches(given, num_epochs=1), verbose=0)
    losses = [model.evaluate(row, verbose=0)[0] for row in rows]
    expected = np.average(losses, weights=[2, 2, 4, 3])  # a row's targets
    found = model.evaluate(batches(num_epochs=1), verbose=0)[0]
    assert found == pytest.approx(expected, rel=1e-5)


def test_rows_beyond_the_learned_positions_are_refused():
    model = compiled(causal(positions="learned", max_sequence_length=3))
    ids = {"token_ids": np.full((2, 4), 5, "int32")}
    for verb in (model.fit, model.evaluate, model.predict, model.energy):
        with pytest.raises(ValueError, match="token_ids must have rows of at most 3"):
            verb(ids)
    with pytest.raises(ValueError, match="batch_size must be an integer of at least 1"):
        model.energy(["a"], batch_size=0)


def test_a_batch_of_strings_is_what_fit_makes_of_it():
    model, same = seq2seq(), seq2seq()
    same.set_weights(model.get_weights())
    sources, targets = zip(*PAIRS, strict=True)
    weights = np.arange(len(PAIRS), dtype="float32")
    for each in (model, same):
        compiled(each, keras.optimizers.SGD(0.1), eager=True)
    (loss,) = model.fit(
        sources, targets, sample_weight=weights, batch_size=len(PAIRS), verbose=0
    ).history["loss"]
    batch = same.train_on_batch(sources, targets, weights, return_dict=True)
    assert difference(batch["loss"], loss) < 1e-5
    assert (
        difference(
            same.test_on_batch(sources, targets, weights, return_dict=True)["loss"],
            model.evaluate(sources, targets, sample_weight=weights, verbose=0)[0],
        )
        < 1e-5
    )
    logits = same.predict_on_batch(PAIRS)
    assert difference(to_numpy(logits), same.predict(PAIRS, verbose=0)) < 1e-6
    inputs, ids = same.encode_text(sources, targets)
    found = same.test_on_batch(inputs, ids.tolist(), weights)
    assert difference(found[0], same.test_on_batch(sources, targets, weights)[0]) < 1e-6
    with pytest.raises(ValueError, match="one at least"):
        same.train_on_batch([], [])


def test_classes_of_a_batch_of_strings_are_weighed():
    x, y = WORDS[:4], ["a", "b", "a", "b"]
    model = small_task(
        kzoo.TextClassifier,
        labels=["a", "b"],
        tokenizer=TOKENIZER,
        dropout=0.0,
        head_dropout=0.0,
    )
    model.compile(keras.optimizers.SGD(0.0))
    ids, numbers = model.encode_text(x, y)
    alone = [model.test_on_batch([a], [b])[0] for a, b in zip(x, y, strict=True)]
    expected = np.average(alone, weights=[3.0, 0.5, 3.0, 0.5])
    for data in ((x, y), (ids, numbers)):
        loss = model.train_on_batch(*data, class_weight={"a": 3.0, "b": 0.5})[0]
        assert difference(loss, expected) < 1e-5


def test_swapped_weights_are_not_saved_for_a_training_s_own(tmp_path):
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    keep = ResumableCheckpoint(tmp_path / "state.npz")
    model = causal()
    model.compile(keras.optimizers.Adam(use_ema=True), run_eagerly=True)
    with pytest.raises(ValueError, match="must stand before SwapEMAWeights"):
        model.fit(WORDS[:4], callbacks=[swap, keep], verbose=0)
    other = keras.callbacks.SwapEMAWeights()  # which swaps for a validation alone
    for callbacks in ([keep, swap], [other, keep]):
        model.fit(WORDS[:4], callbacks=callbacks, verbose=0)


@pytest.mark.parametrize(
    ("dtype", "on_epoch"),
    [
        ("bfloat16", False),
        ("bfloat16", True),
        ("float16", False),  # of 16 bits, too
        ("float32", True),
    ],
)
def test_weights_of_any_dtype_are_swapped_with_their_averages(dtype, on_epoch):
    model = causal(dtype=dtype)
    model.compile(Adam(1e-2, use_ema=True, ema_momentum=0.5), run_eagerly=True)
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=on_epoch)
    data = dict(validation_data=WORDS[:4], callbacks=[swap], epochs=2, verbose=0)
    history = model.fit(WORDS[:8], **data).history
    assert np.isfinite([history["loss"], history["val_loss"]]).all()
    # What a training leaves are the averages, which the last validation has seen.
    found = model.evaluate(WORDS[:4], verbose=0, return_dict=True)["loss"]
    assert found == pytest.approx(history["val_loss"][-1], rel=1e-2)
    for weight, average in zip(
        model.trainable_variables,
        model.optimizer._model_variables_moving_average,
        strict=True,
    ):
        weight, average = (
            to_numpy(keras.ops.cast(each, "float32")) for each in (weight, average)
        )
        np.testing.assert_allclose(weight, average, rtol=4e-3, atol=1e-6)
