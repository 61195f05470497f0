"""The training of a recipe: one road for every task and for `kzoo train`.

    read_training ► Run: tokenizer ► task ► batches ► compile ► fit ► finish

What batch i is follows from the seed and i, and a `TrainingFolder` keeps all else, so
that the same call gives the same weights whenever it was killed.
"""

import inspect
import json
import warnings

import keras
import numpy as np

from kzoo import tasks
from kzoo.config import ModelConfig
from kzoo.data import RandomStretches
from kzoo.files import remove_partial
from kzoo.plots import training_curve
from kzoo.tokenizers import FastTokenizer, SentencePieceTokenizer, load_tokenizer
from kzoo.training import (
    Adam,
    CosineSimilarityLoss,
    EpochHistory,
    MaskedCrossEntropy,
    Perplexity,
    Restarts,
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
from kzoo.zoo.registry import CURVE, HISTORY, RECIPE, TASKS, began_with
from kzoo.zoo.tables import RecipeError
from kzoo.zoo.teacher import taught
from kzoo.zoo.training_folder import TrainingFolder


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
        self.recipe, self._folder = recipe, TrainingFolder(out)
        self._examples, self._held_out = train_examples, held_out
        with self._folder.released_after_errors():
            self._prepare()

    def _prepare(self):
        recipe, train_examples = self.recipe, self._examples
        texts = fingerprint(train_examples, self._held_out)
        self.resumed = self._folder.begin(recipe, texts)
        keras.utils.set_random_seed(recipe.seed)
        begun = recipe.model.preset is not None
        self.task = self._begun() if begun else self._task(self._tokenizer())
        self._folder.keep_tokenizer(self.task.tokenizer)
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
        return self._folder.epochs_done

    @property
    def history(self):
        """The rows of the epochs so far, dicts."""
        return json.loads((self._folder.out / HISTORY).read_text(encoding="utf-8"))

    # What is trained.

    def _tokenizer(self):
        """The tokenizer of the training before, the given one, or a new one."""
        settings, kept = self.recipe.tokenizer, self._folder.tokenizer()
        if kept is not None:
            return kept
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
        start = config.start_token_id
        given = {} if start == ModelConfig.start_token_id else {"start_token_id": start}
        try:  # a config says an end always, be it none of this tokenizer's
            config = config.replace(**kind.begins(tokenizer, given))
        except ValueError as error:
            raise RecipeError(f"[tokenizer] {error}") from error
        try:
            return kind(config, tokenizer=tokenizer, **options)
        except (TypeError, ValueError) as error:
            raise RecipeError(f"[task_options] {error}") from error

    def _begun(self):
        """The task of a preset; a head that is new is what the recipe is for."""
        model, task = self.recipe.model, self.recipe.task
        _check_licence(model.preset, self.recipe.data)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".* has no weights for .*", UserWarning)
            made = from_preset(
                model.preset,
                task=task,
                tokenizer=self._folder.tokenizer(),  # what a name means may change
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
        with self._folder.released_after_errors():
            self._fit(callbacks)

    def _fit(self, callbacks):
        self._compile()
        training = self.recipe.training
        self._check_best()
        batches, steps = self._training_batches()
        self.task.optimizer.learning_rate = _rate(training, steps)
        done = self.epochs_done
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
                EpochHistory(self._folder.out / HISTORY),
                self._folder.keeps(training),
                # The last: what the checkpoint has seen, the others have, too.
                self._folder.checkpoint,
            ],
            shuffle=False,
            verbose=0,
        )

    def finish(self):
        """Writes the model, the recipe and the curve; gives the task."""
        out = self._folder.out
        try:
            self.task.save_folder(out)
            remove_partial(out)  # the former model's, whose place it took
            self.recipe.save(out / RECIPE)
            curve = training_curve(self.history, title=self.recipe.name)
            curve.savefig(out / CURVE)
        finally:
            self._folder.release()
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
            features = self._folder.features(self._taught_examples)
        elif splits > 1:
            # Another process would draw others, see `SentencePieceTokenizer.sampled`.
            features = self._folder.features(self._split_examples)
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


def _check_licence(preset, data):
    """What was trained on research-only texts stays so."""
    began = began_with(preset)
    if began is not None and began.research_only and not data.research_only:
        raise RecipeError(
            f"[data] research_only: expected true, for {preset}, with whose weights "
            f"the training begins, was trained on {began.data or 'texts'} that may be "
            "used for research only. Received: false."
        )


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
