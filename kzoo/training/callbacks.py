"""Callbacks: resume a killed training exactly, average epochs or keep the best."""

import json
import math
import re
import time
from pathlib import Path

import keras
import numpy as np

from kzoo.arguments import arguments_of, check_count
from kzoo.files import make_folder, make_writable, write_json
from kzoo.training.state_file import (
    check_fits,
    open_variables,
    refuse,
    stored_dtype,
    write_variables,
)

# Last words of measures' names: Keras's, and those of the tasks' `score`.
_LOWER_IS_BETTER = {
    *("loss", "error", "perplexity", "bits_per_character", "crossentropy"),
    *("mae", "mse", "mape", "msle", "rmse", "bce"),
}
_HIGHER_IS_BETTER = {
    *("accuracy", "acc", "precision", "recall", "f1", "matthews", "auc", "exact_match"),
    *("pearson", "spearman", "bleu", "chrf"),
}


class _Callback(keras.callbacks.Callback):
    """One that Keras can write and read: its arguments are its attributes."""

    def get_config(self):
        """The arguments of `__init__`."""
        return {
            name: str(value) if isinstance(value, Path) else value
            for name, value in arguments_of(self).items()
        }

    @classmethod
    def from_config(cls, config):
        """Builds the callback from `get_config`'s result."""
        return cls(**config)


@keras.saving.register_keras_serializable(package="kzoo")
class ResumableCheckpoint(_Callback):
    """Saves the whole training state after each epoch; `fit` goes on from there.

    A training that is killed and started again with the same call ends with the same
    weights as one that was not: the file holds the weights, the optimizer's state,
    the seeds of dropout, the epoch, and what `stateful` objects give. The data order of
    an epoch must depend on the epoch or on a `stateful` object: `fit(shuffle=True)` on
    arrays draws a new order from the global generator and is not repeatable. On torch,
    where dropout draws from the global generator, too, each epoch seeds it anew.
    Another backend can go on from the file; its dropout draws other numbers.

    A file is complete or not there: it is written beside, flushed and renamed, so a
    kill or a full disk leaves the previous one. The epoch of `fit` is restored too;
    `fit(epochs=10)` after 4 saved epochs runs 6. `keras.callbacks.BackupAndRestore`
    writes two files in place and deletes them at the end.

    Put it after callbacks that change weights at the end of an epoch, but before
    `keras.callbacks.SwapEMAWeights(swap_on_epoch=True)`, which changes them back when
    the next one begins; a task's `fit` refuses the other order. Callbacks that
    count epochs in memory, such as Keras's `EarlyStopping` and `ReduceLROnPlateau`,
    begin to count anew in a training that goes on; those of kzoo keep what they know
    on disk.

    Args:
        path: the file, `.npz`; its folder is made.
        stateful: name -> object with `get_state()`, giving what JSON can hold, and
            `set_state(state)`, as grain's iterators have.

    Raises:
        ValueError: at the start of `fit`, a file that is damaged or of another model
            or optimizer; so it is where a kzoo model has another config, other options
            such as labels, or adapters, but for what its weights do not follow from:
            rates of dropout and of masks, initializers, and defaults of searches.
    """

    def __init__(self, path, stateful=None):
        super().__init__()
        self.path = Path(path)
        self.stateful = dict(stateful or {})
        self._seed, self._epoch = None, 0

    def saved_epoch(self):
        """How many epochs the file has seen; 0 without a file."""
        if not self.path.exists():
            return 0
        with open_variables(self.path) as (meta, _):
            return meta["epoch"]

    def on_train_begin(self, logs=None):
        """Restores the state, when there is a file."""
        if keras.backend.backend() == "torch":
            import torch

            self._seed = int(torch.randint(2**31, ()))
        make_writable(self.path.parent)  # at the end of an epoch it is too late
        if not self.path.exists():
            return
        model = self.model
        with open_variables(self.path) as (meta, read):
            check_fits(self.path, meta, self._variables(), self.stateful)
            _check_config(self.path, meta, model)
            for i, variable in enumerate(self._variables()):
                variable.assign(read(i).astype(stored_dtype(variable)))
        if self._seed is not None and meta.get("seed") is not None:
            self._seed = meta["seed"]
        for name, thing in self.stateful.items():
            thing.set_state(meta["stateful"][name])
        # The attribute that Keras's own BackupAndRestore sets for every trainer.
        model._initial_epoch = meta["epoch"]

    def on_epoch_begin(self, epoch, logs=None):
        """Lets the next `fit` count from its own `initial_epoch`: this one has begun.

        Not only at its end, which an interrupted `fit` does not reach.
        """
        self.model._initial_epoch = None
        self._epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        """On torch, seeds an epoch: not before, for what loads its data draws, too."""
        if self._seed is not None and not batch:
            import torch

            torch.manual_seed(self._seed + self._epoch)

    def on_epoch_end(self, epoch, logs=None):
        """Writes the state."""
        write_variables(
            self.path,
            self._variables(),
            {
                "epoch": epoch + 1,
                "stateful": {k: v.get_state() for k, v in self.stateful.items()},
                "config": _config(self.model),
                "seed": self._seed,
            },
        )

    def on_train_end(self, logs=None):
        """As `on_epoch_begin`, where no epoch was left to run."""
        self.model._initial_epoch = None

    def _variables(self):
        # `variables` has the seed generators of dropout, `weights` has not.
        model = self.model
        if not model.built:
            raise ValueError(
                "ResumableCheckpoint needs a built model. Call the model on a batch, "
                "or its build(), before fit()."
            )
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        return [*model.variables, *model.optimizer.variables]

    def get_config(self):
        """The arguments of `__init__`, but `stateful`, which lives in this process."""
        config = super().get_config()
        del config["stateful"]
        return config


def check_order(callbacks):
    """Raises `ValueError` where a checkpoint would have swapped weights for its own."""
    swaps = False
    for callback in callbacks:
        swap = isinstance(callback, keras.callbacks.SwapEMAWeights)
        swaps |= swap and callback.swap_on_epoch
        if swaps and isinstance(callback, ResumableCheckpoint):
            raise ValueError(
                "ResumableCheckpoint must stand before SwapEMAWeights(swap_on_epoch="
                "True), else a training that goes on begins with the averages. "
                "Received: behind it."
            )


@keras.saving.register_keras_serializable(package="kzoo")
class CheckpointAverage(_Callback):
    """Sets the weights, when training ends, to their mean over the last epochs.

    Paper: Attention Is All You Need, Vaswani et al., 2017, section 6.1, averages the
    last 5 checkpoints of the base model. Only floating-point weights are averaged.

    The weights of the last `last` epochs lie on disk, one file each; averaging reads
    one variable of one file at a time. So the memory is that of the largest variable,
    and a training that is killed and resumed averages over the same epochs.

    Args:
        folder: for the files `epoch-0001.npz` and so on; made when missing. One
            training's own: files of epochs beyond the current one are removed.
        last: number of epochs.

    Raises:
        ValueError: `last` is no positive integer, or at the end of `fit` a file is
            damaged or of another model.
    """

    def __init__(self, folder, last=5):
        super().__init__()
        check_count("CheckpointAverage.last", last)
        self.folder = Path(folder)
        self.last = last

    def on_train_begin(self, logs=None):
        """Makes the folder: at the end of an epoch it is too late."""
        make_writable(self.folder)

    def on_epoch_end(self, epoch, logs=None):
        """Writes this epoch's weights and removes those no longer needed."""
        write_variables(
            self.folder / f"epoch-{epoch + 1:04d}.npz",
            self.model.weights,
            {"epoch": epoch + 1},
        )
        for number, path in self._files():
            if not epoch + 1 - self.last < number <= epoch + 1:
                path.unlink()

    def on_train_end(self, logs=None):
        """Sets the mean."""
        files = [path for _, path in self._files()][-self.last :]
        if files:
            self._assign_mean(files)

    def begin_behind(self, epoch):
        """Removes what is not of the epochs to this one, the last that was finished.

        A training that is killed may leave the weights of an epoch without its state.

        Args:
            epoch: int, counted from 1.

        Returns:
            int, how many epochs' weights there are; none where this one's are not.
        """
        files = dict(self._files())
        for number, path in files.items():
            if number > epoch or epoch not in files:
                path.unlink()
        return len(self._files())

    def restore_last(self):
        """Sets the weights of the last epoch again, to go on training from them.

        Raises:
            FileNotFoundError: no epoch has been saved.
        """
        files = [path for _, path in self._files()]
        if not files:
            raise FileNotFoundError(
                f"{self.folder} has no epoch-*.npz. Run fit() with this callback first."
            )
        self._assign_mean(files[-1:])

    def _files(self):
        """(epoch, path) of the files there are, in order of the epoch."""
        return sorted(
            (int(path.stem.removeprefix("epoch-")), path)
            for path in self.folder.glob("epoch-*.npz")
            if path.stem.removeprefix("epoch-").isdigit()
        )

    def _assign_mean(self, files):
        weights = self.model.weights
        for path in files:
            with open_variables(path) as (meta, _):
                check_fits(path, meta, weights)
        for i, variable in enumerate(weights):
            is_float = keras.backend.is_float_dtype(variable.dtype)
            total, used = 0, files if is_float else files[-1:]
            for path in used:
                with open_variables(path) as (_, read):
                    value = read(i)
                # float64, because a sum in float32 would round once a file.
                total = total + (value.astype(np.float64) if is_float else value)
            mean = total / len(used) if is_float else total
            variable.assign(mean.astype(value.dtype))


@keras.saving.register_keras_serializable(package="kzoo")
class BestEpoch(_Callback):
    """Sets the weights, when training ends, to those of the epoch that was best.

    They lie on disk with the measure, so a training that is killed and resumed has the
    same best epoch. Of equal epochs the first is the best.

    Args:
        path: the file, `.npz`; its folder is made.
        measure: of an epoch, such as `"val_accuracy"`.
        mode: whether the lowest is best, `"min"`, or the highest, `"max"`. By default
            what the compiled metric of this name says, or else the name's last word,
            such as `loss`, `mae` or `f1`.

    Raises:
        ValueError: another mode; at the end of an epoch, no such measure, or one of
            which nothing says whether lower is better; or at the end of `fit`, a file
            that is damaged or of another model.
    """

    def __init__(self, path, measure, mode="auto"):
        super().__init__()
        if mode not in ("auto", "min", "max"):
            raise ValueError(
                f'BestEpoch.mode must be "auto", "min" or "max". Received: {mode!r}.'
            )
        self.path, self.measure, self.mode = Path(path), measure, mode

    def on_train_begin(self, logs=None):
        """Makes the folder: at the end of an epoch it is too late."""
        make_writable(self.path.parent)

    def on_epoch_end(self, epoch, logs=None):
        """Writes the weights if this epoch is the best."""
        if self.measure not in (logs or {}):
            raise ValueError(
                f"BestEpoch.measure must be a measure of an epoch, one of "
                f"{sorted(logs or {})}. Received: {self.measure!r}."
            )
        if np.size(logs[self.measure]) != 1:
            raise ValueError(
                f"BestEpoch.measure must be one number an epoch. Received: "
                f"{self.measure!r}, of shape {np.shape(logs[self.measure])}. A metric "
                'of Keras that averages, such as F1Score(average="macro"), gives one.'
            )
        lower, value = self._lower_is_better(), float(np.squeeze(logs[self.measure]))
        if self.path.exists() and epoch:
            with open_variables(self.path) as (meta, _):
                best = meta["value"]
            better = value < best if lower else value > best
            if not (better or math.isnan(best)):
                return
        meta = {"epoch": epoch + 1, "value": value}
        write_variables(self.path, self.model.weights, meta)

    def on_train_end(self, logs=None):
        """Sets the weights, where an epoch was kept."""
        if not self.path.exists():
            return
        weights = self.model.weights
        with open_variables(self.path) as (meta, read):
            check_fits(self.path, meta, weights)
            for i, variable in enumerate(weights):
                variable.assign(read(i))

    def _lower_is_better(self):
        if self.mode != "auto":
            return self.mode == "min"
        name = self.measure.removeprefix("val_")
        # Keras's metrics say a direction; those of `compile` are one of them there.
        for metric in self.model.metrics:
            for each in getattr(metric, "metrics", [metric]):
                direction = getattr(each, "_direction", None)
                if each.name == name and direction is not None:
                    return direction == "down"
        for words, lower in ((_LOWER_IS_BETTER, True), (_HIGHER_IS_BETTER, False)):
            if any(f"_{name}".endswith(f"_{word}") for word in words):
                return lower
        raise ValueError(
            f"BestEpoch cannot tell whether a lower {self.measure!r} is better. Give "
            'mode="min" or mode="max". Received: mode="auto".'
        )


@keras.saving.register_keras_serializable(package="kzoo")
class EpochHistory(_Callback):
    """Keeps the measures of every epoch in a file, also when training is resumed.

    Args:
        path: a JSON list of dicts, one an epoch, rewritten after each: `epoch` from 1,
            `seconds` of the clock, and the measures, a list where one has several
            numbers.

    Raises:
        ValueError: at the start of `fit`, a file that holds something else.
    """

    def __init__(self, path):
        super().__init__()
        self.path = Path(path)

    def on_train_begin(self, logs=None):
        """Looks at what earlier epochs left: at the end of one it is too late."""
        make_writable(self.path.parent)
        self._read()

    def _read(self):
        """The rows that the file has."""
        if not self.path.exists():
            return []
        try:
            rows = json.loads(self.path.read_text(encoding="utf-8"))
            if not isinstance(rows, list):
                raise TypeError(f"a {type(rows).__name__}")
            return [row for row in rows if row["epoch"] > 0]
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"{self.path} should be a JSON list with a dict for each epoch, and is "
                f"damaged or something else: {error!r}. Move it away, or give "
                "EpochHistory another path."
            ) from error

    def on_epoch_begin(self, epoch, logs=None):
        """Starts the clock."""
        self._start = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        """Writes the rows, without what a killed training wrote of this epoch."""
        seconds = round(time.perf_counter() - self._start, 3)
        measures = {
            name: np.squeeze(keras.ops.convert_to_numpy(value)).tolist()
            for name, value in (logs or {}).items()
        }
        rows = [row for row in self._read() if row["epoch"] <= epoch]
        rows.append({"epoch": epoch + 1, "seconds": seconds, **measures})
        make_folder(self.path.parent)
        write_json(self.path, rows)


# Fields of a config that may change: the function a model computes does not.
_OF_TRAINING = re.compile(
    r"(dropout|initializer|initializer_range|mask_rate)$|^options\.search_defaults\b"
)


def _config(model):
    """What JSON gives back of a kzoo model's config; `None` of another model."""
    to_dict = getattr(getattr(model, "config", None), "to_dict", None)
    if not callable(to_dict):
        return None
    described = {**to_dict(), "options": getattr(model, "options", {})}
    described |= getattr(model, "fine_tuning_config", dict)()
    return json.loads(json.dumps(described, default=str))


def _check_config(path, meta, model):
    """Raises `ValueError` for a config whose weights have these shapes, too."""
    saved, present = meta.get("config"), _config(model)
    if saved and present:  # older files have none
        saved, present = dict(_leaves(saved)), dict(_leaves(present))
        differ = [
            f"{name}={saved[name]!r}, the training has {present[name]!r}"
            for name in sorted(saved.keys() & present.keys())
            if saved[name] != present[name] and not _OF_TRAINING.search(name)
        ]
        refuse(path, differ and f"it is of {'; '.join(differ)}")


def _leaves(config, before=""):
    """The fields of a nested dict, under names like `decoder.num_heads`."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value
