"""The training of a recipe: one road for every task and for `kzoo train`.

    read_training ► Run: tokenizer ► task ► batches ► compile ► fit ► finish

A folder's `training/` holds what a training that was killed goes on from: the settings
and a digest of the texts, the tokenizer, drawn splits of the texts, the state of the
last epoch, and the epochs that are averaged or the best one. All of it is written
beside and renamed, and what batch i is follows from the seed and i, so that the same
call gives the same weights whenever it was killed.
"""

import contextlib
import dataclasses
import inspect
import json
import shutil
import warnings
from pathlib import Path

import filelock
import keras
import numpy as np

from kzoo import tasks
from kzoo.data import RandomStretches, are_vectors
from kzoo.files import make_folder, remove_partial, replacing, write_json
from kzoo.plots import training_curve
from kzoo.tasks.saving import CONFIG_FILE
from kzoo.tokenizers import FastTokenizer, SentencePieceTokenizer, load_tokenizer
from kzoo.training import (
    Adam,
    BestEpoch,
    CheckpointAverage,
    CosineSimilarityLoss,
    EpochHistory,
    MaskedCrossEntropy,
    Perplexity,
    Restarts,
    ResumableCheckpoint,
    WarmupInverseSquareRoot,
)
from kzoo.zoo.examples import (
    fingerprint,
    inputs_and_targets,
    labels_of,
    read_training,
    stretches,
    texts_of,
)
from kzoo.zoo.pretrained import from_preset
from kzoo.zoo.recipes import RecipeError
from kzoo.zoo.registry import CURVE, HISTORY, RECIPE, TASKS, began_with
from kzoo.zoo.teacher import taught

_WORK, _TOKENIZER, _EPOCHS = "training", "tokenizer", "epochs"
_SPLITS, _BEST = "splits.npz", "best.npz"


class OtherTraining(ValueError):
    """The folder has a training with other settings; the message names them."""


class Diverged(ValueError):
    """A loss that is no number any more; the message says what is kept."""


def train(recipe, folder, out, *, callbacks=()):
    """Trains what a recipe describes; the same call goes on where one was killed.

    Args:
        recipe: a `kzoo.zoo.recipes.Recipe`.
        folder: that its data files are relative to.
        out: a new folder, or one of the same training. It gets what `save_folder`
            writes, `recipe.toml`, `history.json` with a row an epoch, and the curve.
        callbacks: of Keras, besides.

    Returns:
        The task.

    Raises:
        DataError: the data are missing or cannot be right; nothing is written.
        ValueError: `out` holds something else; `OtherTraining`: another training, of
            which an epoch was done, or one that a process is busy with; `Diverged`: a
            loss is not finite.

    Example:
        >>> from kzoo.zoo import recipes, training
        >>> recipe = recipes.Recipe.load("recipe.toml")
        >>> task = training.train(recipe, "data", "out")
    """
    run = Run(recipe, *read_training(recipe, folder), out)
    run.fit(callbacks)
    return run.finish()


class Run:
    """A training in a folder, begun or gone on with.

    Args:
        recipe: as in `train`.
        train_examples: what `read_training` gives; so for the next.
        held_out: validation examples, or `None`.
        out: as in `train`.

    Raises:
        ValueError: as in `train`.
    """

    def __init__(self, recipe, train_examples, held_out, out):
        self.recipe, self.out = recipe, Path(out)
        self._examples, self._held_out = train_examples, held_out
        self._work = self.out / _WORK
        check_folder(self.out)
        self._lock = _locked(self._work)
        with self._unlocked_after_errors():
            self._prepare()

    def _prepare(self):
        recipe, train_examples = self.recipe, self._examples
        self.resumed = self._begin()
        keras.utils.set_random_seed(recipe.seed)
        begun = recipe.model.preset is not None
        self.task = self._begun() if begun else self._task(self._tokenizer())
        _keep_tokenizer(self.task.tokenizer, self._work / _TOKENIZER)
        self.tokenizer = self.task.tokenizer
        if recipe.training.word_dropout and self.tokenizer.unknown_token_id is None:
            raise RecipeError(
                "[training] word_dropout: expected a tokenizer with an unknown token, "
                f"which pieces become. That of {recipe.model.preset!r} has none."
            )
        if recipe.training.embeddings == "tf_idf":
            begin_with_tf_idf(self.task, texts_of(recipe, train_examples), recipe.seed)

    @property
    def epochs_done(self):
        """How many whole epochs there are."""
        return self._checkpoint.saved_epoch()

    @property
    def history(self):
        """The rows of the epochs so far, dicts."""
        return json.loads((self.out / HISTORY).read_text(encoding="utf-8"))

    # The folder.

    @contextlib.contextmanager
    def _unlocked_after_errors(self):
        """A notebook keeps what an error left, and other processes may go on."""
        try:
            yield
        except BaseException:
            self._lock.release(force=True)
            raise

    def _begin(self):
        """Writes the settings, or compares them; whether the training goes on."""
        settings = {
            "recipe": _deciding(self.recipe),
            "texts": fingerprint(self._examples, self._held_out),
        }
        path = self._work / "settings.json"
        self._checkpoint = ResumableCheckpoint(self._work / "state.npz")
        resumed = path.is_file()
        if resumed:
            before = json.loads(path.read_text(encoding="utf-8"))
            changed = _changes(before["recipe"], settings["recipe"], self.recipe)
            if before["texts"] != settings["texts"]:
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
        done, training = self.epochs_done, self.recipe.training
        if done > training.epochs:
            raise OtherTraining(
                f"{self.out} was trained for {done} epochs. Give epochs {done} or "
                f"more, or another folder. Received: {training.epochs}."
            )
        kept = CheckpointAverage(self._work / _EPOCHS).begin_behind(done)
        if done and training.average > 1:
            found = kept + training.epochs - done
            if found < min(training.average, training.epochs):
                raise OtherTraining(
                    f"Of {done} epochs, {self.out} keeps weights of the last {kept}: "
                    f"average can be {max(found, 1)} at most, or epochs more. "
                    f"Received: {training.average}."
                )
        write_json(path, settings)
        return resumed

    def _forget(self):
        """Removes what a training left of which no epoch was done, and no more.

        Its settings stay until others are written: with them this can be done again.
        """
        for path in (self.out / HISTORY, self._work / _SPLITS, self._work / _BEST):
            path.unlink(missing_ok=True)
        for name in (_TOKENIZER, _EPOCHS):
            shutil.rmtree(self._work / name, ignore_errors=True)

    # What is trained.

    def _tokenizer(self):
        """The tokenizer of the training before, the given one, or a new one."""
        settings = self.recipe.tokenizer
        folder = self._work / _TOKENIZER
        if folder.is_dir():
            return load_tokenizer(folder)
        if settings.folder is not None:
            return load_tokenizer(settings.folder)
        texts = texts_of(self.recipe, self._examples)
        size, kind = settings.vocabulary_size, settings.kind
        options = {"mask_token": self.recipe.task == "masked_lm"}
        if kind in ("unigram", "sentencepiece-bpe"):
            options["normalization"] = f"nmt_nfkc{'_cf' * settings.lowercase}"
            options["algorithm"] = kind.removeprefix("sentencepiece-")
            options["across_words"] = settings.across_words
            if settings.max_piece_length is not None:
                options["max_piece_length"] = settings.max_piece_length
            return SentencePieceTokenizer.train(texts, size, **options)
        options |= dict(algorithm=kind, lowercase=settings.lowercase)
        return FastTokenizer.train(texts, size, **options)

    def _task(self, tokenizer):
        """A new task; a `compile` later says the rate, which follows from the steps."""
        recipe = self.recipe
        kind, options = getattr(tasks, TASKS[recipe.task]), self._options()
        config = recipe.model_config(tokenizer.vocabulary_size)
        try:
            return kind(config, tokenizer=tokenizer, **options)
        except (TypeError, ValueError) as error:
            raise RecipeError(f"[task_options] {error}") from error

    def _begun(self):
        """The task of a preset; a head that is new is what the recipe is for."""
        model, task = self.recipe.model, self.recipe.task
        folder = self._work / _TOKENIZER  # what the preset's name means may change
        tokenizer = load_tokenizer(folder) if folder.is_dir() else None
        _check_licence(model.preset, self.recipe.data)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".* has no weights for .*", UserWarning)
            made = from_preset(
                model.preset,
                task=task,
                tokenizer=tokenizer,
                **model.fields,
                **self._options(),
            )
        if made.tokenizer is None:
            raise RecipeError(
                "[model] preset: expected one that has a tokenizer. Received: "
                f"{model.preset!r}."
            )
        return made

    def _options(self):
        """Arguments of the task's class."""
        given, known = self.recipe.task_options, _arguments(self.recipe.task)
        unknown = sorted(set(given) - known)
        if unknown:
            raise RecipeError(
                f"[task_options]: expected some of {sorted(known)}. "
                f"Received: {unknown}."
            )
        options = {"dtype": self.recipe.training.precision, **given}
        labels = labels_of(self.recipe, self._examples)
        return options if labels is None else {**options, "labels": labels}

    # How it is trained.

    def fit(self, callbacks=()):
        """Trains to the last epoch.

        Args:
            callbacks: of Keras, besides.
        """
        with self._unlocked_after_errors():
            self._fit(callbacks)

    def _fit(self, callbacks):
        self._compile()
        training = self.recipe.training
        self._check_best()
        batches, steps = self._training_batches()
        self.task.optimizer.learning_rate = _rate(training, steps)
        done = self.epochs_done
        if training.best:
            keeps = [BestEpoch(self._work / _BEST, training.best)]
        else:  # of 1, too: a longer training may average it
            keeps = [CheckpointAverage(self._work / _EPOCHS, training.average)]
        scores = [_Scores(*self._pairs(self._held_out))]
        validation = self._validation_batches()
        self.task.fit(
            self.task.pipeline(batches, start=done * steps),
            steps_per_epoch=steps,
            epochs=training.epochs,
            initial_epoch=done,
            validation_data=validation and self.task.pipeline(validation, epochs=1),
            callbacks=[
                _Finite(),
                *(scores if training.score_validation else []),
                *callbacks,
                EpochHistory(self.out / HISTORY),
                *keeps,
                # The last: what the checkpoint has seen, the others have, too.
                self._checkpoint,
            ],
            shuffle=False,
            verbose=0,
        )

    def finish(self):
        """Writes the model, the recipe and the curve; gives the task."""
        try:
            self.task.save_folder(self.out)
            remove_partial(self.out)  # the former model's, whose place it took
            self.recipe.save(self.out / RECIPE)
            curve = training_curve(self.history, title=self.recipe.name)
            curve.savefig(self.out / CURVE)
        finally:
            self._lock.release(force=True)
        return self.task

    def _compile(self):
        training = self.recipe.training
        optimizer = {
            name: value
            for name, value in vars(training.optimizer).items()
            if value is not None
        }
        loss, smoothing = "auto", training.label_smoothing
        if training.score_range is not None:
            loss = CosineSimilarityLoss(score_range=training.score_range)
        elif training.consistency:
            loss = MaskedCrossEntropy(
                smoothing, self.task.ignore_id, consistency=training.consistency
            )
            smoothing = 0.0  # the loss has it
        self.task.compile(
            Adam(**optimizer),
            loss=loss,
            label_smoothing=smoothing,
            metrics=self._metrics() or None,
        )

    def _metrics(self):
        """The task's; but its perplexity is the loss, for another pass over logits."""
        own = self.task.default_metrics() if self.recipe.training.metrics else []
        return [metric for metric in own if not isinstance(metric, Perplexity)]

    def _check_best(self):
        """Raises `RecipeError` where no epoch will have the measure to choose by."""
        training = self.recipe.training
        if training.best is None:
            return
        known = ["loss", *(metric.name for metric in self._metrics())]
        scored = []
        if training.score_validation:
            different = {str(example[-1]): example for example in self._held_out}
            x, y = self._pairs([*different.values()][:20])
            scored = self.task.score(x) if y is None else self.task.score(x, y)
        known += [f"val_{name}" for name in (*known, *scored) if self._held_out]
        if training.best not in known:
            raise RecipeError(
                f"[training] best: expected a measure of an epoch, one of "
                f"{sorted({*known})}. Received: {training.best!r}."
            )

    def _pairs(self, examples):
        return inputs_and_targets(self.recipe, examples) if examples else (None, None)

    def _training_batches(self):
        """The batches, and how many are an epoch."""
        recipe, training, task = self.recipe, self.recipe.training, self.task
        if recipe.data.is_running:
            batches = RandomStretches(
                self._ids(self._examples),
                training.length,
                self._rows(),
                num_batches=training.steps,
                before=[task.config.start_token_id],
                seed=recipe.seed,
            )
            if recipe.task == "masked_lm":
                batches = task.mask_batches(batches, recipe.seed)
            return batches, len(batches)
        splits = recipe.tokenizer.splits
        if training.teacher is not None:
            features = _kept(self._work / _SPLITS, self._taught_examples)
        elif splits > 1:
            # Another process would draw others, see `SentencePieceTokenizer.sampled`.
            features = _kept(self._work / _SPLITS, self._split_examples)
        else:
            features = task.encode_examples(*self._pairs(self._examples))
        batches = self._batches(features, seed=recipe.seed)
        if training.word_dropout:
            forget = _WordDropout(self.tokenizer, training.word_dropout, recipe.seed)
            batches = batches.map(forget)
        return batches, max(1, len(batches) // splits)

    def _taught_examples(self):
        """Features of the training examples and more, with a teacher's targets."""
        texts, labels = self._pairs(self._examples)
        teacher = self.recipe.training.teacher
        classes = self.task.encode_targets(labels)
        found = taught(
            texts,
            classes,
            self.task.num_classes,
            mixed=teacher.mixed,
            trust=teacher.trust,
            seed=self.recipe.seed,
        )
        return self.task.encode_examples(*found)

    def _split_examples(self):
        """Features of the training examples in several splits, one after another."""
        task, settings = self.task, self.recipe.tokenizer
        if not hasattr(self.tokenizer, "sampled"):
            raise RecipeError(
                "[tokenizer] splits: expected a SentencePieceTokenizer, which draws "
                f"them. Received: {type(self.tokenizer).__name__}."
            )
        pairs = self._pairs(self._examples)
        features = {k: [*rows] for k, rows in task.encode_examples(*pairs).items()}
        task.tokenizer = self.tokenizer.sampled(settings.alpha, self.recipe.seed)
        for _ in range(1, settings.splits):
            for name, rows in task.encode_examples(*pairs).items():
                features[name] += rows
        task.tokenizer = self.tokenizer
        return features

    def _validation_batches(self):
        if self._held_out is None:
            return None
        length = self.recipe.training.length
        try:
            if self.recipe.data.is_running:
                features = stretches(self.task, self._held_out, length)
            else:
                features = self.task.encode_examples(*self._pairs(self._held_out))
        except ValueError as error:
            raise ValueError(f"In the validation examples: {error}") from error
        if self.recipe.data.is_running:
            return self.task.batches(features, batch_size=self._rows(), shuffle=False)
        return self._batches(features, shuffle=False)

    def _batches(self, features, **options):
        """Those of the task, each row twice where two passes are compared."""
        training = self.recipe.training
        options |= dict(batch_size=training.batch_size)
        options |= dict(tokens_per_batch=training.tokens_per_batch)
        batches = self.task.batches(features, **options)
        return batches.map(_twice) if training.consistency else batches

    def _ids(self, examples):
        return np.array(self.tokenizer.encode(examples)[0], "int32")

    def _rows(self):
        training = self.recipe.training
        return training.batch_size or max(
            1, training.tokens_per_batch // training.length
        )


def _arguments(task):
    """Names of what a recipe may give a task's class."""
    classes = getattr(tasks, TASKS[task]).__mro__[:-1]
    names = {
        name
        for each in classes
        if each.__module__.startswith("kzoo.")
        for name in inspect.signature(each.__init__).parameters
    }
    # Other tables say these, a class says its `units`, and the rest are no names.
    own = {"config", "tokenizer", "dtype", "name", "units", "self", "args", "kwargs"}
    return names - own


class _Finite(keras.callbacks.Callback):
    """Ends a training that diverged, before what was kept is overwritten."""

    def on_epoch_end(self, epoch, logs=None):
        measures = {n: float((logs or {}).get(n, 0.0)) for n in ("loss", "val_loss")}
        wrong = [f"{n} is {v}" for n, v in measures.items() if not np.isfinite(v)]
        # What the last step made of the weights no loss has seen.
        broken = self.model.broken_weights()
        wrong += [f"the weight {name} is not finite" for name in broken]
        if wrong:
            kept, then = "No epoch is kept", "run it again"
            if epoch:  # whose settings are other ones
                kept = f"The state of epoch {epoch} is kept"
                then = "name another folder"
            raise Diverged(
                f"The training diverged: in epoch {epoch + 1} {wrong[0]}. {kept}. "
                "Lower the peak of the learning rate, or clip the gradients "
                f"(global_clipnorm), and {then}."
            )


def _keep_tokenizer(tokenizer, folder):
    """Saves it for what a killed training goes on with."""
    if tokenizer is None or folder.is_dir():
        return
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    tokenizer.save(partial)
    partial.rename(folder)


def _check_licence(preset, data):
    """What was trained on research-only texts stays so."""
    began = began_with(preset)
    if began is not None and began.research_only and not data.research_only:
        raise RecipeError(
            f"[data] research_only: expected true, for {preset}, with whose weights "
            f"the training begins, was trained on {began.data or 'texts'} that may be "
            "used for research only. Received: false."
        )


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


def begin_with_tf_idf(task, texts, seed=0):
    """Makes an encoder's token table one of a bag of words, weighted by tf-idf.

    A piece is a random direction, multiplied by the logarithm of how rare it is among
    the texts (Spärck Jones, 1972): the mean over a text, as an embedder takes it, is
    its bag of words, seen from fewer directions. Training moves it from there.

    Args:
        task: with an encoder, and a tokenizer.
        texts: that say how rare a piece is; each counts once.
        seed: of the directions.
    """
    texts, tokenizer = sorted(set(texts)), task.tokenizer
    pieces = np.concatenate([np.unique(ids) for ids in tokenizer.encode(texts)])
    counts = np.bincount(pieces.astype(int), minlength=tokenizer.vocabulary_size)
    length = np.log(len(texts) / (1 + counts))
    around = tokenizer.start_token_id, tokenizer.end_token_id
    length[[i for i in around if i is not None]] = 0.1
    table = task.encoder.token_embedding.embeddings
    directions = np.random.default_rng(seed).normal(size=table.shape)
    directions /= table.shape[1] ** 0.5 * task.encoder.config.embedding_scale
    table.assign(directions * length[:, None])


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


def _rate(training, steps):
    """The learning rate: a number or a schedule of Keras."""
    schedule = training.schedule
    if schedule.kind == "constant":
        return schedule.peak
    warmup = schedule.warmup_steps or (schedule.warmup_epochs or 0) * steps
    if schedule.kind == "inverse_square_root":
        return WarmupInverseSquareRoot.from_peak(schedule.peak, warmup)
    cycle = training.epochs // schedule.cycles * steps
    falls = cycle - warmup
    if falls < 1:
        raise RecipeError(
            f"[training.schedule] the warm-up of {warmup} steps must end before "
            f"{'the training' if schedule.cycles == 1 else 'a cycle'} does. Received: "
            f"{training.epochs} epochs of {steps} steps."
        )
    cosine = keras.optimizers.schedules.CosineDecay
    if not warmup:
        rate = cosine(schedule.peak, falls, schedule.final)
    else:
        rate = cosine(
            0.0, falls, schedule.final, warmup_target=schedule.peak, warmup_steps=warmup
        )
    return Restarts(rate, cycle) if schedule.cycles > 1 else rate


def _twice(batch, index):
    """A batch, and once more all its rows."""
    return {name: np.concatenate([rows, rows]) for name, rows in batch.items()}


class _WordDropout:
    """Makes some pieces of what is read unknown; which, follows from the index."""

    def __init__(self, tokenizer, rate, seed):
        self._unknown, self._rate, self._seed = tokenizer.unknown_token_id, rate, seed
        self._kept = sorted(tokenizer.special_ids)

    def __call__(self, batch, index):
        read = [n for n in batch if "token_ids" in n and not n.startswith("decoder")]
        generator = np.random.default_rng([self._seed, index])
        changed = {}
        for name in read:
            gone = generator.random(batch[name].shape) < self._rate
            gone &= ~np.isin(batch[name], self._kept)
            changed[name] = np.where(gone, self._unknown, batch[name])
        return {**batch, **changed}


class _Scores(keras.callbacks.Callback):
    """Adds the task's `score` of the validation examples to an epoch's measures."""

    def __init__(self, x, y):
        super().__init__()
        self._arguments = (x,) if y is None else (x, y)

    def on_epoch_end(self, epoch, logs=None):
        scores = self.model.score(*self._arguments)
        logs.update({f"val_{k}": v for k, v in scores.items() if isinstance(v, float)})


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


def _changes(before, now, recipe):
    """What differs in `_deciding` of two recipes, but what may."""
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
    before, now = flat(usual) | flat(before), flat(now)
    return [
        f"{key} was {before.get(key)}, now {now.get(key)}"
        for key in sorted({*before, *now} - free)
        if before.get(key) != now.get(key)
    ]
