"""Resuming is exact, averages are means, and nothing is half-written."""

import errno
import json
import os
import shutil
import tempfile
import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest

import kzoo
from kzoo.training import (
    BestEpoch,
    CheckpointAverage,
    EpochHistory,
    ResumableCheckpoint,
    state_file,
)
from tests.harness import KillBefore, Killed, small_task
from tests.words import EAGER

# Two epochs of `drawn_model` on each backend, which make_checkpoints.py wrote.
CHECKPOINTS = Path(__file__).parents[1] / "golden" / "checkpoints"
X = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
Y = np.random.default_rng(1).normal(size=(24, 2)).astype("float32")


def new_model(seed=None, units=8, rate=0.5, eager=True):
    """No graph for claims that it cannot change: XLA compiles one for a second."""
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(units, activation="relu"),
            keras.layers.Dropout(rate, seed=seed),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(2),
        ]
    )
    optimizer = keras.optimizers.Adam(0.05)
    model.compile(optimizer, "mse", run_eagerly=eager and EAGER)
    return model


def fit(model, epochs, *extra):
    return model.fit(
        X, Y, epochs=epochs, batch_size=8, shuffle=False, verbose=0, callbacks=extra
    )


def state(model):
    return [
        keras.ops.convert_to_numpy(v)
        for v in [*model.variables, *model.optimizer.variables]
    ]


class Recorder(keras.callbacks.Callback):
    """Keeps the weights of every epoch."""

    def __init__(self):
        super().__init__()
        self.weights = []

    def on_epoch_end(self, epoch, logs=None):
        # Copies: on some backends the arrays share memory with the variables.
        self.weights.append([np.array(w) for w in self.model.get_weights()])


@pytest.mark.parametrize(
    ("kills", "seed", "eager"),
    # torch has a generator for all where a layer has no seed
    [([1, 3], 3, True), ([2], 3, False), ([1, 2, 3], None, True)],
    ids=str,
)
def test_a_killed_training_resumes_to_the_same_state(tmp_path, kills, seed, eager):
    keras.utils.set_random_seed(0)
    whole = new_model(seed, eager=eager)
    start = [np.array(w) for w in whole.get_weights()]
    fit(whole, 4, ResumableCheckpoint(tmp_path / "whole.npz"))
    for killed_before in kills:
        keras.utils.set_random_seed(0)
        first = new_model(seed, eager=eager)
        first.set_weights(start)
        path = tmp_path / f"run_{killed_before}" / "resume.npz"
        with pytest.raises(Killed):
            fit(first, 4, ResumableCheckpoint(path), KillBefore(killed_before))
        keras.utils.set_random_seed(1)
        # Other weights, other dropout: all is restored.
        second = new_model(seed and 99, eager=eager)
        history = fit(second, 4, ResumableCheckpoint(path))
        assert history.epoch == list(range(killed_before, 4))
        for got, want in zip(state(second), state(whole), strict=True):
            np.testing.assert_array_equal(got, want)


def test_a_finished_training_is_not_repeated_and_can_go_on(tmp_path):
    path = tmp_path / "resume.npz"
    model = new_model(seed=3)
    fit(model, 2, ResumableCheckpoint(path))
    done = state(model)
    again = new_model(seed=4)
    assert fit(again, 2, ResumableCheckpoint(path)).epoch == []
    for got, want in zip(state(again), done, strict=True):
        np.testing.assert_array_equal(got, want)
    assert fit(again, 3, ResumableCheckpoint(path)).epoch == [2]
    # Without the callback, fit counts from its own initial_epoch again.
    assert fit(again, 1).epoch == [0]


def test_an_interrupted_fit_leaves_no_epoch_behind(tmp_path):
    class Interrupt(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            raise KeyboardInterrupt

    path = tmp_path / "resume.npz"
    model = new_model()
    fit(model, 2, ResumableCheckpoint(path))
    with pytest.raises(KeyboardInterrupt):
        fit(model, 4, ResumableCheckpoint(path), Interrupt())
    assert fit(model, 1).epoch == [0]


def test_another_architecture_of_the_same_shapes_is_refused(tmp_path):
    def task(**changes):
        changes = dict(num_layers=1, dropout=0.1, tie_head=True) | changes
        model = small_task(kzoo.CausalLM, **changes)
        model.compile(run_eagerly=EAGER)
        return model

    def train(model):
        ids = {"token_ids": np.array([[4, 5, 6]])}
        return model.fit(ids, verbose=0, callbacks=[ResumableCheckpoint(path)])

    path = tmp_path / "resume.npz"
    train(task())
    for name, value in (
        ("num_heads", 2),
        ("activation", "silu"),
        ("positions", "rotary"),
    ):
        with pytest.raises(ValueError, match=f"decoder.{name}=.*, the training has"):
            train(task(**{name: value}))
    assert train(task(dropout=0.2)).epoch == []
    with state_file.open_variables(path) as (meta, read):
        arrays = [read(i) for i in range(len(meta["variables"]))]
    del meta["config"]  # as older files are
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("meta.json", json.dumps(meta))
        for i, array in enumerate(arrays):
            with archive.open(f"{i}.npy", "w") as entry:
                np.save(entry, array)
    assert train(task(num_heads=2)).epoch == []


def test_a_stateful_pipeline_is_restored(tmp_path):
    class Pipeline:
        position = 0

        def get_state(self):
            return {"position": self.position}

        def set_state(self, state):
            self.position = state["position"]

    path, pipeline = tmp_path / "resume.npz", Pipeline()
    pipeline.position = 7
    fit(new_model(), 1, ResumableCheckpoint(path, stateful={"data": pipeline}))
    fresh = Pipeline()
    fit(new_model(), 1, ResumableCheckpoint(path, stateful={"data": fresh}))
    assert fresh.position == 7
    with pytest.raises(ValueError, match=r"state of \['data'\]"):
        fit(new_model(), 1, ResumableCheckpoint(path))


def test_a_full_disk_leaves_the_previous_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "resume.npz"
    fit(new_model(seed=3), 1, ResumableCheckpoint(path))
    before = path.read_bytes()
    written = []

    def write_array(file, array, **kwargs):
        if len(written) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(file.write(array.tobytes()))

    monkeypatch.setattr(state_file.npy_format, "write_array", write_array)
    with pytest.raises(OSError, match=r"No space left.*resume\.npz"):
        fit(new_model(seed=3), 2, ResumableCheckpoint(path))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["resume.npz"]


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    path = tmp_path / "resume.npz"
    fit(new_model(), 1, ResumableCheckpoint(path))
    with pytest.raises(ValueError, match="written by another training") as error:
        fit(new_model(units=9), 2, ResumableCheckpoint(path))
    assert str(path) in str(error.value)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32"])
def test_counters_and_seeds_of_another_backend_are_this_ones(tmp_path, dtype):
    """Counters and seeds are int64 on TensorFlow, and int32 and uint32 on JAX."""
    path = tmp_path / "resume.npz"
    keras.utils.set_random_seed(0)
    fit(new_model(seed=3), 2, ResumableCheckpoint(path))
    with np.load(path, allow_pickle=False) as file:
        entries = {name: file[name] for name in file.files if name != "meta.json"}
    with zipfile.ZipFile(path) as archive:
        meta = json.loads(archive.read("meta.json"))
    changed = 0
    for i, described in enumerate(meta["variables"]):
        if "int" in described[2]:
            described[2] = dtype
            entries[str(i)] = entries[str(i)].astype(dtype)
            changed += 1
    assert changed > 1
    np.savez(path, **entries)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("meta.json", json.dumps(meta))
    resumed = new_model(seed=3)
    fit(resumed, 4, ResumableCheckpoint(path))
    keras.utils.set_random_seed(0)
    whole = new_model(seed=3)
    fit(whole, 4, ResumableCheckpoint(tmp_path / "whole.npz"))
    for got, want in zip(state(resumed), state(whole), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


def drawn_model():
    """A model that starts, and drops, alike on every backend."""
    model, draw = new_model(seed=3, rate=1e-9), np.random.default_rng(2)
    model.set_weights([draw.uniform(0.2, 1, w.shape) for w in model.get_weights()])
    return model


@pytest.mark.parametrize("backend", ["jax", "tensorflow", "torch"])
def test_a_training_goes_on_on_another_backend(tmp_path, backend):
    path = tmp_path / "resume.npz"
    shutil.copy(CHECKPOINTS / f"{backend}.npz", path)
    keras.utils.set_random_seed(0)
    resumed, whole = drawn_model(), drawn_model()
    counted = fit(resumed, 4, ResumableCheckpoint(path))
    fit(whole, 4, ResumableCheckpoint(tmp_path / "whole.npz"))
    assert counted.epoch == [2, 3]
    for got, want in zip(state(resumed), state(whole), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def test_a_damaged_checkpoint_is_named(tmp_path):
    path = tmp_path / "resume.npz"
    fit(new_model(), 1, ResumableCheckpoint(path))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"resume\.npz is damaged"):
        fit(new_model(), 2, ResumableCheckpoint(path))


def test_the_average_is_the_mean_of_the_last_epochs(tmp_path):
    model, recorder = new_model(), Recorder()
    average = CheckpointAverage(tmp_path / "epochs", last=3)
    fit(model, 5, recorder, average)
    for got, *epochs in zip(model.get_weights(), *recorder.weights[2:], strict=True):
        want = np.mean(np.array(epochs, np.float64), axis=0)
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)
    kept = sorted(p.name for p in (tmp_path / "epochs").iterdir())
    assert kept == ["epoch-0003.npz", "epoch-0004.npz", "epoch-0005.npz"]

    average.restore_last()
    for got, want in zip(model.get_weights(), recorder.weights[-1], strict=True):
        np.testing.assert_array_equal(got, want)


def test_the_average_of_fewer_epochs_than_asked_is_of_all(tmp_path):
    model, recorder = new_model(), Recorder()
    fit(model, 2, recorder, CheckpointAverage(tmp_path, last=8))
    for got, *epochs in zip(model.get_weights(), *recorder.weights, strict=True):
        np.testing.assert_allclose(got, np.mean(epochs, axis=0), rtol=1e-5, atol=1e-7)


def test_a_resumed_training_averages_the_same_epochs(tmp_path):
    whole = new_model(seed=3)
    start = [np.array(w) for w in whole.get_weights()]
    fit(whole, 4, CheckpointAverage(tmp_path / "a", last=3))

    first = new_model(seed=3)
    first.set_weights(start)

    def extra():
        return (
            CheckpointAverage(tmp_path / "b", last=3),
            ResumableCheckpoint(tmp_path / "resume.npz"),
        )

    with pytest.raises(Killed):
        fit(first, 4, *extra(), KillBefore(2))
    second = new_model(seed=9)
    fit(second, 4, *extra())
    for got, want in zip(second.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_array_equal(got, want)


def test_weights_of_an_epoch_that_was_not_finished_are_removed(tmp_path):
    average = CheckpointAverage(tmp_path / "none")
    assert average.begin_behind(3) == 0
    for epoch, left in ((5, 3), (4, 2), (2, 0)):  # the weights of 3, 4 and 5 are there
        average = CheckpointAverage(tmp_path / str(epoch), last=3)
        fit(new_model(), 5, average)
        assert average.begin_behind(epoch) == left == len([*average.folder.iterdir()])


def test_files_of_an_earlier_longer_training_do_not_join_the_average(tmp_path):
    fit(new_model(), 6, CheckpointAverage(tmp_path, last=2))
    model, recorder = new_model(), Recorder()
    fit(model, 1, recorder, CheckpointAverage(tmp_path, last=2))
    for got, want in zip(model.get_weights(), recorder.weights[0], strict=True):
        np.testing.assert_array_equal(got, want)


def test_bfloat16_weights_are_saved_and_averaged(tmp_path):
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(2, dtype="bfloat16")]
    )
    model.compile("sgd", "mse", run_eagerly=EAGER)
    fit(
        model, 2, CheckpointAverage(tmp_path / "e"), ResumableCheckpoint(tmp_path / "r")
    )
    assert model.layers[0].kernel.dtype == "bfloat16"


@pytest.mark.parametrize(
    "callback",
    [
        lambda path: BestEpoch(path / "best.npz", "loss"),
        CheckpointAverage,
        lambda path: EpochHistory(path / "history.json"),
        lambda path: ResumableCheckpoint(path / "resume.npz"),
    ],
    ids=["best", "average", "history", "resumable"],
)
def test_a_folder_that_cannot_be_written_is_named_before_the_work(
    callback, tmp_path, monkeypatch
):
    recorder = Recorder()
    fit(new_model(), 1, callback(tmp_path), recorder)

    def full(dir):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"{dir}/tmpfile")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(OSError, match=f"No space left.*'{tmp_path}'"):
        fit(new_model(), 2, callback(tmp_path), recorder)
    assert len(recorder.weights) == 1


def test_nothing_to_average_and_nothing_to_restore(tmp_path):
    for last in (0, 2.0, np.inf, "3", True):
        with pytest.raises(ValueError, match="last must be an integer of at least 1"):
            CheckpointAverage(tmp_path, last=last)
    with pytest.raises(FileNotFoundError, match="Run fit"):
        CheckpointAverage(tmp_path).restore_last()


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (BestEpoch, {"path": "best.npz", "measure": "val_loss", "mode": "min"}),
        (CheckpointAverage, {"folder": "folder", "last": 2}),
        (EpochHistory, {"path": "history.json"}),
        (ResumableCheckpoint, {"path": "file.npz"}),
    ],
)
def test_config_round_trip(kind, config):
    again = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(kind(**config))
    )
    assert type(again) is kind
    assert again.get_config() == config


class Measures(keras.callbacks.Callback):
    """Gives every epoch a measure, whatever was computed."""

    def __init__(self, values, name):
        super().__init__()
        self.values, self.name = values, name

    def on_epoch_end(self, epoch, logs=None):
        logs[self.name] = self.values[epoch]


@pytest.fixture(scope="module")
def epochs():
    """The weights that four epochs start from, and those of each."""
    keras.utils.set_random_seed(0)
    recorder, whole = Recorder(), new_model(seed=3)
    start = [np.array(w) for w in whole.get_weights()]
    fit(whole, 4, recorder)
    return start, recorder.weights


@pytest.mark.parametrize(
    ("name", "values", "best"),
    [
        ("val_accuracy", [0.2, 0.7, 0.7, 0.1], 1),
        ("val_loss", [0.9, 0.4, 0.2, 0.3], 2),
        ("val_bits_per_character", [2.0, 1.5, 1.8, 1.9], 1),
        ("val_f1", [float("nan"), 0.1, float("nan"), 0.05], 1),
    ],
)
@pytest.mark.parametrize("killed_before", [None, 2])
def test_the_best_epoch_s_weights_are_kept_also_through_a_kill(
    tmp_path, epochs, name, values, best, killed_before
):
    start, weights = epochs

    def callbacks():
        return [
            Measures(values, name),
            BestEpoch(tmp_path / "best.npz", name),
            ResumableCheckpoint(tmp_path / "resume.npz"),
        ]

    model = new_model(seed=3)
    model.set_weights(start)
    if killed_before:
        with pytest.raises(Killed):
            fit(model, 4, *callbacks(), KillBefore(killed_before))
    fit(model, 4, *callbacks())
    for got, want in zip(model.get_weights(), weights[best], strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("name", "mode", "best"),
    [
        ("val_mae", "auto", 1),
        ("mse", "auto", 1),
        ("val_mean_absolute_percentage_error", "auto", 1),
        ("val_macro_f1", "auto", 0),
        ("val_roc_auc", "auto", 0),
        ("val_marks", "max", 0),
        ("val_accuracy", "min", 1),
    ],
)
def test_the_best_epoch_follows_the_measure_or_the_mode(tmp_path, name, mode, best):
    recorder, model = Recorder(), new_model()
    keep = BestEpoch(tmp_path / "best.npz", name, mode)
    fit(model, 3, Measures([0.5, 0.1, 0.3], name), keep, recorder)
    for got, want in zip(model.get_weights(), recorder.weights[best], strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_compiled_metric_says_which_epoch_is_best(tmp_path, direction):
    metric = keras.metrics.MeanMetricWrapper(lambda y, _: y, name="own_error")
    metric._direction = direction
    model = new_model()
    model.compile("sgd", "mse", metrics=[metric], run_eagerly=EAGER)
    keep = BestEpoch(tmp_path / "best.npz", "val_own_error")
    recorder = Recorder()
    fit(model, 3, Measures([0.4, 0.1, 0.6], "val_own_error"), keep, recorder)
    best = {"up": 2, "down": 1}[direction]
    for got, want in zip(model.get_weights(), recorder.weights[best], strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_measure_whose_direction_nothing_says_is_refused(tmp_path):
    keep = BestEpoch(tmp_path / "best.npz", "val_marks")
    with pytest.raises(ValueError, match='lower .val_marks. is better.*mode="min"'):
        fit(new_model(), 1, Measures([1.0], "val_marks"), keep)
    with pytest.raises(ValueError, match='"auto", "min" or "max". Received: .lowest.'):
        BestEpoch(tmp_path / "best.npz", "loss", "lowest")


def test_an_unknown_measure_is_named_with_the_known(tmp_path):
    with pytest.raises(ValueError, match=r"one of \['loss'\]. Received: 'val_loss'"):
        fit(new_model(), 1, BestEpoch(tmp_path / "best.npz", "val_loss"))


def test_the_history_has_each_epoch_once_after_a_kill(tmp_path):
    path = tmp_path / "history.json"

    def callbacks():
        # The history is written before the state: a kill in between repeats an epoch.
        return EpochHistory(path), ResumableCheckpoint(tmp_path / "resume.npz")

    model = new_model(seed=3)
    history, checkpoint = callbacks()
    with pytest.raises(Killed):
        fit(model, 3, history, KillBefore(1), checkpoint)
    assert [row["epoch"] for row in json.loads(path.read_text())] == [1]
    path.write_text(json.dumps([{"epoch": 1}, {"epoch": 2}]))
    fitted = fit(model, 3, *callbacks())
    rows = json.loads(path.read_text())
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert [row["loss"] for row in rows[1:]] == fitted.history["loss"]
    assert all(row["seconds"] >= 0 for row in rows[1:])


def test_a_history_goes_on_in_a_loop_of_the_user_s(tmp_path):
    path = tmp_path / "history.json"
    path.write_text('[{"epoch": 1, "loss": 0.5}]')
    history = EpochHistory(path)
    history.on_epoch_begin(1)
    history.on_epoch_end(1, {"loss": 0.25})
    assert [row["loss"] for row in json.loads(path.read_text())] == [0.5, 0.25]


def test_a_measure_of_several_numbers_is_kept_and_is_no_best(tmp_path):
    """As those of Keras's F1Score are, one a class."""
    several = Measures([np.array([0.25, 0.5], "float32")], "f1_score")
    path = tmp_path / "history.json"
    fit(new_model(), 1, several, EpochHistory(path))
    assert json.loads(path.read_text())[0]["f1_score"] == [0.25, 0.5]
    fit(
        new_model(),
        1,
        Measures([np.array([0.5], "float32")], "one"),
        EpochHistory(path),
    )
    assert json.loads(path.read_text())[0]["one"] == 0.5
    keep = BestEpoch(tmp_path / "best.npz", "f1_score")
    with pytest.raises(ValueError, match=r"one number.*'f1_score', of shape \(2,\)"):
        fit(new_model(), 1, several, keep)


@pytest.mark.parametrize(
    "content", ['[{"epoch": 1', '{"epoch": 1}', '[{"loss": 1}]', "7", "{}", '""']
)
def test_a_history_that_is_none_is_refused_before_the_first_epoch(tmp_path, content):
    path = tmp_path / "history.json"
    path.write_text(content)
    model = new_model()
    before = model.get_weights()
    with pytest.raises(ValueError, match="history.json should be a JSON list"):
        fit(model, 1, EpochHistory(path))
    np.testing.assert_array_equal(model.get_weights()[0], before[0])
    assert path.read_text() == content


def test_no_epoch_leaves_the_weights(tmp_path):
    model = new_model()
    before = model.get_weights()
    fit(model, 0, BestEpoch(tmp_path / "best.npz", "loss"))
    for got, expected in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(got, expected)
