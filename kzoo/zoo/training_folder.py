"""The folder of a training: one process at a time, one recipe, and what is kept.

`training/` in it holds what a training that was killed goes on from: the settings and a
digest of the texts, the tokenizer, drawn splits of the texts, the state of the last
epoch, and the epochs that are averaged or the best one. All of it is written beside and
renamed.
"""

import contextlib
import dataclasses
import json
import shutil
import warnings
from pathlib import Path

import filelock
import numpy as np

from kzoo.data import are_vectors
from kzoo.files import make_folder, replacing, write_json
from kzoo.tasks.saving import CONFIG_FILE
from kzoo.tokenizers import load_tokenizer
from kzoo.training import BestEpoch, CheckpointAverage, ResumableCheckpoint
from kzoo.zoo.registry import HISTORY

_WORK = "training"


class OtherTraining(ValueError):
    """The folder has a training with other settings; the message names them."""


class TrainingFolder:
    """A folder that this process trains in, until `release`.

    Args:
        out: as in `kzoo.zoo.training.train`.

    Attributes:
        checkpoint: the `ResumableCheckpoint` of its last epoch.

    Raises:
        ValueError: it holds something else; `OtherTraining`: another process is busy
            with it.
    """

    def __init__(self, out):
        self.out = Path(out)
        check_folder(self.out)
        work = self.out / _WORK
        self.checkpoint = ResumableCheckpoint(work / "state.npz")
        self._settings = work / "settings.json"
        self._tokenizer, self._epochs = work / "tokenizer", work / "epochs"
        self._features, self._best = work / "splits.npz", work / "best.npz"
        self._lock = _locked(work)

    def release(self):
        """Lets other processes train there."""
        self._lock.release(force=True)

    @contextlib.contextmanager
    def released_after_errors(self):
        """A notebook keeps what an error left, and other processes may go on."""
        try:
            yield
        except BaseException:
            self.release()
            raise

    @property
    def epochs_done(self):
        """How many whole epochs there are."""
        return self.checkpoint.saved_epoch()

    def begin(self, recipe, texts):
        """Writes the settings, or compares them; whether the training goes on.

        Args:
            recipe: a `kzoo.zoo.recipes.Recipe`.
            texts: a digest of what is trained on and validated with.

        Raises:
            OtherTraining: it has a training with other settings, of which an epoch was
                done, or one that is longer.
        """
        settings = {"recipe": _deciding(recipe), "texts": texts}
        resumed = self._settings.is_file()
        if resumed:
            before = json.loads(self._settings.read_text(encoding="utf-8"))
            changed = _changes(before["recipe"], recipe)
            if before["texts"] != texts:
                changed.append("the texts of the training or of the validation")
            finished = (self.out / CONFIG_FILE).exists()
            if changed and not (self.epochs_done or finished):  # nothing is lost
                self._forget()
                resumed = False
            elif changed:
                raise OtherTraining(
                    f"{self.out} has a training with other settings: "
                    f"{'; '.join(changed)}. Run it with the same settings to go on, or "
                    "name another folder."
                )
        self._check_epochs(recipe.training)
        write_json(self._settings, settings)
        return resumed

    def _check_epochs(self, training):
        done = self.epochs_done
        if done > training.epochs:
            raise OtherTraining(
                f"{self.out} was trained for {done} epochs. Give epochs {done} or "
                f"more, or another folder. Received: {training.epochs}."
            )
        kept = CheckpointAverage(self._epochs).begin_behind(done)
        if done and training.average > 1:
            found = kept + training.epochs - done
            if found < min(training.average, training.epochs):
                raise OtherTraining(
                    f"Of {done} epochs, {self.out} keeps weights of the last {kept}: "
                    f"average can be {max(found, 1)} at most, or epochs more. "
                    f"Received: {training.average}."
                )

    def _forget(self):
        """Removes what a training left of which no epoch was done, and no more.

        Its settings stay until others are written: with them this can be done again.
        """
        for path in (self.out / HISTORY, self._features, self._best):
            path.unlink(missing_ok=True)
        for folder in (self._tokenizer, self._epochs):
            shutil.rmtree(folder, ignore_errors=True)

    def tokenizer(self):
        """That of the training before, or `None`."""
        return load_tokenizer(self._tokenizer) if self._tokenizer.is_dir() else None

    def keep_tokenizer(self, tokenizer):
        """Saves it for what a killed training goes on with."""
        folder = self._tokenizer
        if tokenizer is None or folder.is_dir():
            return
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        tokenizer.save(partial)
        partial.rename(folder)

    def features(self, make):
        """Features as a function made them at first; see `_kept`."""
        return _kept(self._features, make)

    def keeps(self, training):
        """The callback that keeps epochs, as a recipe's `Training` says."""
        if training.best:
            return BestEpoch(self._best, training.best)
        # Of 1, too: a longer training may average it.
        return CheckpointAverage(self._epochs, training.average)


def check_folder(out):
    """Refuses a folder that is not new and has no training to go on with.

    Raises:
        ValueError: it is a file, or holds something else.
    """
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file. Name a new folder.")
    settings = out / _WORK / "settings.json"
    begun = settings.is_file() or not out.is_dir()
    # A kill may have come before the settings were written.
    others = [] if begun else [path for path in out.iterdir() if path.name != _WORK]
    if others:
        raise ValueError(
            f"{out} is not empty and has no training to go on with. Name a new folder."
        )


def _locked(folder):
    """A held lock on a training's folder, which the end of the process releases.

    This process may train there again: a notebook keeps what an error left.

    Raises:
        OtherTraining: another process holds it.
    """
    make_folder(folder)
    lock = filelock.FileLock(
        folder / "lock", timeout=0, thread_local=False, is_singleton=True
    )
    try:
        lock.acquire()
    except filelock.Timeout:
        raise OtherTraining(
            f"Another process trains in {folder.parent}. Wait for its end, or name "
            "another folder."
        ) from None
    except PermissionError:
        raise
    except OSError as error:  # some network file systems have no locks
        warnings.warn(
            f"{folder} cannot be locked ({error}): see to it that no other process "
            "trains there.",
            stacklevel=2,
        )
    return lock


def _kept(path, make):
    """Features out of a file, which gets them where there is none.

    Args:
        path: the file, `.npz`.
        make: function to features: dict of lists of sequences of int, or of numbers,
            or arrays of vectors.
    """
    if path.exists():
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        ends = {k: arrays.pop(f"{k}.ends", None) for k in [*arrays] if ".ends" not in k}
        return {
            name: values if ends[name] is None else np.split(values, ends[name][:-1])
            for name, values in arrays.items()
        }
    features, arrays = make(), {}
    for name, rows in features.items():
        if np.ndim(rows[0]) and not are_vectors(rows):
            arrays[f"{name}.ends"] = np.cumsum([len(row) for row in rows])
            rows = np.concatenate(rows)
        arrays[name] = np.asarray(rows)
    with replacing(path) as partial, partial.open("wb") as file:
        np.savez(file, **arrays)
    return features


def _deciding(recipe):
    """What of a recipe decides the weights, as JSON has it."""
    tables = ("task", "seed", "tokenizer", "model", "task_options", "training")
    described = dataclasses.asdict(recipe)
    return json.loads(json.dumps({name: described[name] for name in tables}))


def _defaults(table):
    """The defaults of a recipe's table and of those in it, a dict."""
    found = {}
    for field in dataclasses.fields(table):
        value = getattr(table, field.name)
        if dataclasses.is_dataclass(value) and field.default is not None:
            found[field.name] = _defaults(value)
        elif field.default is not dataclasses.MISSING:
            found[field.name] = field.default
    return found


def _changes(before, recipe):
    """What differs between `_deciding` of a recipe and another recipe, but what may."""
    free = {"training.average"}
    # A cosine reaches its end at the last epoch, so another number is another curve.
    if recipe.training.schedule.kind != "cosine":
        free.add("training.epochs")

    def flat(table, path=""):
        found = {}
        for key, value in table.items():
            if isinstance(value, dict):
                # A file has a model's fields beside its size.
                found |= flat(value, path if key == "fields" else f"{path}{key}.")
            else:
                found[path + key] = value
        return found

    # A key that an older version did not write is what it is by default.
    tables = {"tokenizer": recipe.tokenizer, "training": recipe.training}
    usual = {name: _defaults(table) for name, table in tables.items()}
    before, now = flat(usual) | flat(before), flat(_deciding(recipe))
    values = {key: (before.get(key), now.get(key)) for key in {*before, *now} - free}
    return [
        "{} was {}, now {}".format(
            key, *("not given" if value is None else value for value in values[key])
        )
        for key in sorted(values)
        if values[key][0] != values[key][1]
    ]
