"""What all tasks share: compile defaults, weights by name, saving, export."""

import inspect
import json
import types
import warnings
from pathlib import Path

import keras
import numpy as np

from kzoo import ops
from kzoo.checkpoints.engine import LoadReport
from kzoo.checkpoints.files import SAFETENSORS, open_file
from kzoo.config import TRAINING_FIELDS, ModelConfig
from kzoo.files import beside, install, write_json
from kzoo.generation import CompiledFunction
from kzoo.layers.lora import alpha_of, lora_merged, merged_matrices, merged_variables
from kzoo.models.encoder_decoder import make_stacks
from kzoo.models.stack import Model
from kzoo.tasks.fine_tuning import FineTunes
from kzoo.tasks.weights_file import check_shapes, read_into, write_safetensors
from kzoo.tokenizers import Tokenizer, load_tokenizer
from kzoo.tokenizers.base import CONFIG_FILE as TOKENIZER_FILE
from kzoo.training import Adam, MaskedCrossEntropy, MaskedLoss, TokenAccuracy
from kzoo.training.loss_tracker import WeightedLoss
from kzoo.training.metrics import TokenMean
from kzoo.training.optimizers import LossScaleOptimizer

_KEPT = 32  # compiled functions of a model; those used last
# What computes losses and metrics of a batch; the last ones are JAX's.
_STEPS = (
    *("train_step", "test_step", "compute_loss", "compute_metrics"),
    *("make_train_function", "make_test_function"),
    *("compute_loss_and_updates", "stateless_compute_loss"),
)
CONFIG_FILE, WEIGHTS_FILE = "config.json", SAFETENSORS


class Task(FineTunes, Model):
    """Stacks, a head, a tokenizer and the verbs of a user.

    A subclass makes `self.head` and calls `self.build()`; it says which
    `architectures` it can have, the first by default, and in `own_options` what it
    is given besides. Layers of its own are made and built in `build`, before
    `super().build()`, with names, by which files know their weights.

    Args:
        config: a `ModelConfig`.
        tokenizer: a `kzoo.tokenizers.Tokenizer`, needed for strings.
    """

    architectures: tuple[str, ...]
    ignore_id = -1  # the target that losses and metrics leave out
    _losses_leave_out_filling = True  # whether all losses and metrics do
    target_per_example = False  # else a sequence of them, some of `ignore_id`
    needs_targets = False  # else they do not follow from the inputs
    scored_by = "forward"  # the exported function that `score` asks for
    own_options = ()  # arguments that a class adds, attributes of their names
    loaded = None  # the `LoadReport` of a pretrained one

    def __init__(self, config, tokenizer=None, **kwargs):
        if config.architecture not in self.architectures:
            raise ValueError(
                f"{type(self).__name__} needs a config of architecture "
                f"{' or '.join(map(repr, self.architectures))}. "
                f"Received: {config.architecture!r}."
            )
        super().__init__(**kwargs)
        if tokenizer is not None:
            smallest = smallest_table(config)
            if tokenizer.vocabulary_size > smallest:
                _refuse_or_warn(tokenizer, smallest)
            names = ("pad_token_id", "start_token_id", "end_token_id", "mask_token_id")
            own = {name: getattr(tokenizer, name) for name in names}
            # What a vocabulary lacks, such as a mask, the model has from its config.
            own = {name: found for name, found in own.items() if found is not None}
            for name in ("pad_token_id", "mask_token_id"):  # of which texts have none
                if own.get(name, 0) >= smallest:
                    del own[name]
            config = config.replace(**own)
        self.config = config
        self.tokenizer = tokenizer
        self.encoder, self.decoder = make_stacks(config, self.dtype_policy)

    @classmethod
    def from_size(
        cls, size, tokenizer=None, vocabulary_size=None, architecture=None, **changes
    ):
        """A new model of a named size (see `ModelConfig.from_size`).

        Args:
            size: a key of `kzoo.config.SIZES`.
            tokenizer: for strings; it also gives the vocabulary size.
            vocabulary_size: needed without a tokenizer.
            architecture: one of the class's `architectures`; the first by default.
            **changes: fields of the configs, or other arguments of the class.
        """
        if vocabulary_size is None:
            if tokenizer is None:
                raise ValueError("from_size needs a tokenizer or a vocabulary_size.")
            vocabulary_size = tokenizer.vocabulary_size
        own = {"name", "dtype"}.union(
            *(inspect.signature(kind.__init__).parameters for kind in cls.__mro__[:-1])
        )
        own = {name: changes.pop(name) for name in list(changes) if name in own}
        config = ModelConfig.from_size(
            size, architecture or cls.architectures[0], vocabulary_size, **changes
        )
        return cls(config, tokenizer=tokenizer, **own)

    def build(self, *_):
        """Builds stacks and head inside this model's name scope."""
        if self.built:
            return
        for part in (self.encoder, self.decoder, self.head):
            if part is not None:
                part.build()
        self.built = True

    @property
    def stack(self):
        """The stack that the head reads."""
        return self.decoder or self.encoder

    @property
    def options(self):
        """What the task was given beside config and tokenizer, as JSON can hold it."""
        kinds = reversed(type(self).__mro__)
        names = [name for kind in kinds for name in vars(kind).get("own_options", ())]
        return {name: getattr(self, name) for name in names}

    def compiled_function(self, key, function, signature):
        """A function of tensors that reads this model's weights, compiled once.

        Args:
            key: what it is kept under.
            function: of tensors, to a structure of tensors.
            signature: (shape, dtype) of every argument, `None` for a free axis.

        Returns:
            `kzoo.generation.CompiledFunction`.
        """
        if merged_matrices():  # which are gone soon
            return CompiledFunction(self, function, signature)
        # A graph reads the variables of when it was traced, and LoRA adds some; of the
        # adapters' alpha it holds the number.
        read = (*map(id, self.variables), *map(alpha_of, self._flatten_layers()))
        kept = getattr(self, "_compiled_functions", None)
        if kept is None or kept.read != read:
            # Where Keras does not look into.
            kept = types.SimpleNamespace(read=read, functions={})
            self._compiled_functions = kept
        made = kept.functions.pop(key, None)
        if made is None:
            made = CompiledFunction(self, function, signature)
        kept.functions[key] = made  # the last one is the one used last
        while len(kept.functions) > _KEPT:
            del kept.functions[next(iter(kept.functions))]
        return made

    def _check_keys(self, inputs, required, optional):
        """Raises `ValueError` unless inputs are a dict of these, and maybe those."""
        if not isinstance(inputs, dict):
            raise ValueError(
                f"{self.name} reads a dict with {' and '.join(required)}, int (batch, "
                f"length). Received: {type(inputs).__name__}."
            )
        if not set(required) <= set(inputs) <= {*required, *optional}:
            raise ValueError(
                f"{self.name} reads {' and '.join(required)}, and {optional} where "
                f"given. Received the keys {sorted(inputs)}."
            )

    def _padding_mask(self, ids, mask=None):
        """Where ids are real: as the mask says, or where the id is not padding's."""
        return ops.not_equal(ids, self.config.pad_token_id) if mask is None else mask

    # Weights under their contract names.

    def named_variables(self):
        """The weights by path below the model: `decoder/layer_0/.../kernel`."""
        seeds, named = {id(v) for v in _seed_states(self)}, {}
        for variable in self.weights:
            if id(variable) in seeds:
                continue
            name = f"/{variable.path}".split(f"/{self.name}/", 1)[-1]
            if named.setdefault(name, variable) is not variable:
                raise ValueError(
                    f"{self.name} has two weights named {name}, which files and "
                    "patterns could not tell apart. Give the layers other names."
                )
        return merged_variables(named)

    def broken_weights(self):
        """Yields the names of weights that hold NaN or infinity."""
        for name, variable in self.named_variables().items():
            if not np.isfinite(np.asarray(variable)).all():
                yield name

    def _explain_numbers(self, purpose, outputs):
        """Says why numbers are not finite.

        Args:
            purpose: what cannot be done with them, such as `"predicted"`.
            outputs: what they are, such as `"logits"`; `None` where only a weight may
                be the reason.

        Raises:
            ValueError: a weight is not finite, which is named; or else `outputs`.
        """
        for name in self.broken_weights():
            raise ValueError(
                f"The weight {name} holds NaN or infinity, so that nothing can be "
                f"{purpose}. Load weights from before training diverged."
            )
        if outputs is not None:
            raise ValueError(
                f"The {outputs} of {self.name} are NaN or infinite, though all weights "
                f"are finite: what it computes in {self.compute_dtype} becomes too "
                "large. "
                + (
                    "Look for a weight that is far too large."
                    if self.compute_dtype == "float32"
                    else "Load it with dtype='float32', or 'bfloat16'."
                )
            )

    def save_safetensors(self, path, dtype=None):
        """Writes the weights under their paths.

        Args:
            path: the file.
            dtype: `"float32"`, `"float16"` or `"bfloat16"`; as they are by default.
        """
        write_safetensors(path, self.named_variables(), dtype=dtype)

    def load_safetensors(self, path):
        """Reads weights written by `save_safetensors`.

        Raises:
            ValueError: a weight is missing, unknown, of another shape or no float; all
                are named and nothing is loaded.
        """
        own = self.named_variables()
        with open_file(path) as file:
            check_shapes(file, {k: v.shape for k, v in own.items()}, path, self.name)
            for name, variable in own.items():
                read_into(variable, file, name)

    def load_encoder(self, source):
        """Copies the stacks' weights from another task, such as a pre-trained one.

        The head keeps its own. Both tasks need the same stacks, but for dropout, and
        the same tokenizer where both have one. Adapters of the other task are merged
        into what is copied; those of this one stay as they are.

        Args:
            source: a task, or a folder that `save_folder` wrote.

        Returns:
            This task.

        Raises:
            ValueError: the stacks or the tokenizers differ; nothing is loaded.

        Example:
            >>> tagger = kzoo.TokenClassifier(mlm.config, labels, tokenizer=tokenizer)
            >>> tagger.load_encoder(mlm)
        """
        other = source if isinstance(source, Task) else load_task(source)
        for side in ("encoder", "decoder"):
            mine, theirs = getattr(self.config, side), getattr(other.config, side)
            mine, theirs = (each and each.to_dict() for each in (mine, theirs))
            if (mine is None) != (theirs is None):
                raise ValueError(
                    f"{self.name} and {other.name} must have the same stacks. Received:"
                    f" {self.config.architecture!r} and {other.config.architecture!r}."
                )
            different = {
                name: (mine[name], theirs[name])
                for name in mine or ()
                if mine[name] != theirs[name] and name not in TRAINING_FIELDS
            }
            if different:
                raise ValueError(
                    f"The {side}s of {self.name} and {other.name} must be alike. "
                    f"Received: {different}."
                )
        tokenizers = [t.get_config() for t in (self.tokenizer, other.tokenizer) if t]
        if len(tokenizers) == 2 and tokenizers[0] != tokenizers[1]:
            raise ValueError(
                f"{self.name} and {other.name} have different tokenizers, so an id "
                "means another token. Build this one with the other's tokenizer."
            )
        with lora_merged(other):
            weights = other.named_variables()
        for name, variable in self.named_variables().items():
            if name.startswith(("encoder/", "decoder/")) and name in weights:
                # On JAX the value itself would be taken, and a training uses it up.
                variable.assign(keras.ops.copy(weights[name]))
        return self

    def save_folder(self, folder, dtype=None):
        """Writes config, weights and tokenizer; `load_task` reads them back.

        Not the optimizer's state: a training goes on from a `ResumableCheckpoint`, or
        from a `.keras` file.

        Args:
            folder: made when missing.
            dtype: of the weights in the file, as in `save_safetensors`.

        Raises:
            ValueError: a class of your own, which `load_task` would not find.
            OSError: a file cannot be written; what stood there stays as it was.
        """
        from kzoo import tasks

        if getattr(tasks, type(self).__name__, None) is not type(self):
            raise ValueError(
                f"A folder is of one of kzoo's tasks. Received: {type(self).__name__}. "
                "Use save_safetensors, or Keras's save of a registered class."
            )
        described = {
            "task": type(self).__name__,
            "model": self.config.to_dict(),
            "options": self.options,
            "dtype": dtype or self.variable_dtype,
            "tokenizer": self.tokenizer is not None,
            **self.fine_tuning_config(),
        }
        if self.loaded is not None:
            described["loaded"] = {
                "family": self.loaded.family,
                "said": self.loaded.said,
            }
        folder = Path(folder)
        with beside(folder / CONFIG_FILE) as partial:
            write_json(partial / CONFIG_FILE, described)
            self.save_safetensors(partial / WEIGHTS_FILE, dtype)
            if self.tokenizer is not None:
                self.tokenizer.save(partial)
            names = {path.name for path in partial.iterdir()} | {TOKENIZER_FILE}
            install(partial, [folder / name for name in sorted(names)])

    def export(self, path, format="tf_saved_model", **options):
        """Writes a verified artifact; see `kzoo.exporters.export`."""
        from kzoo.exporters import export

        return export(self, path, format, **options)

    # Training.

    def compile(
        self,
        optimizer="auto",
        loss="auto",
        metrics="auto",
        label_smoothing=0.0,
        **kwargs,
    ):
        """Keras's `compile`; what is left out suits the task.

        Args:
            optimizer: by default Adam with gradients clipped to norm 1; in a language
                model as in the paper (beta_2 0.98, epsilon 1e-9, section 5.3's
                schedule), else with a learning rate of 5e-4.
            loss: by default the task's, such as `MaskedCrossEntropy`, which is reported
                as a mean over the targets of an epoch; another loss is as Keras does,
                over its rows, and has to leave out targets of `ignore_id` by itself;
                one of Keras that does not, or a cross-entropy without
                `from_logits=True`, is a warning.
            metrics: by default the task's, such as accuracy; weighted by targets. Of a
                task whose targets are sequences `"accuracy"` leaves out those of
                `ignore_id`, and Keras's other metrics, which do not, are a warning.
            label_smoothing: of a default loss that is a cross-entropy.
            **kwargs: of Keras's `compile`.

        Raises:
            ValueError: `label_smoothing` with a loss of your own; or a loss or a metric
                whose `ignore_id` is not the task's.
        """
        if label_smoothing and loss != "auto":
            advice = f"Give MaskedCrossEntropy({label_smoothing}, ignore_id="
            advice += f"{self.ignore_id}), or leave out one of the two."
            raise ValueError(
                f"label_smoothing={label_smoothing} is of the default loss, and a loss "
                f"was given: {loss!r}. "
                + (advice if self.ignore_id == self.ignore_id else "Leave it out.")
            )
        choose = kwargs.get("jit_compile", "auto") == "auto"
        if choose and keras.backend.backend() == "tensorflow":
            # Buckets have many shapes and XLA compiles each; on CPUs TensorFlow's own
            # kernels are also the faster ones (export/benchmarks/fit.py).
            import tensorflow as tf

            kwargs["jit_compile"] = bool(tf.config.list_physical_devices("GPU"))
        if optimizer == "auto":
            optimizer = self.default_optimizer()
        optimizer = keras.optimizers.get(optimizer)
        scales = kwargs.get("auto_scale_loss", True) and optimizer is not None
        if scales and self.dtype_policy.name == "mixed_float16":
            optimizer = LossScaleOptimizer.around(optimizer)
        if loss == "auto":
            loss = self.default_loss(label_smoothing)
        if metrics == "auto":
            metrics = self.default_metrics()
        metrics = self._without_filling(metrics)
        if "weighted_metrics" in kwargs:
            kwargs["weighted_metrics"] = self._without_filling(
                kwargs["weighted_metrics"]
            )
        given = keras.tree.flatten([loss, metrics, kwargs.get("weighted_metrics")])
        self._check_ignored(given)
        self._check_reads_logits(keras.tree.flatten(loss))
        super().compile(optimizer=optimizer, loss=loss, metrics=metrics, **kwargs)
        if choose:  # where the file is loaded may have another backend
            self._compile_config.config["jit_compile"] = "auto"
        all_metrics = keras.tree.flatten([metrics, kwargs.get("weighted_metrics")])
        self._losses_leave_out_filling = isinstance(loss, MaskedLoss) and all(
            metric is None or isinstance(metric, TokenMean) for metric in all_metrics
        )
        if isinstance(loss, MaskedLoss):
            # Past Layer.__setattr__, which would list it a second time in `metrics`.
            object.__setattr__(self, "_loss_tracker", WeightedLoss(loss.weights))

    @property
    def leaves_out_filling(self):
        """Whether all losses and metrics do, and all steps are kzoo's or Keras's."""
        kinds = type(self).__mro__
        own = [k for k in kinds if not k.__module__.startswith(("kzoo.", "keras."))]
        given = {*vars(self)}.union(*map(vars, own))
        return self._losses_leave_out_filling and given.isdisjoint(_STEPS)

    def _check_ignored(self, given):
        """Raises `ValueError` where a loss or metric leaves out a class, or no padding.

        Args:
            given: losses and metrics.
        """
        for each in given:
            ignored = getattr(each, "ignore_id", None)
            if ignored is not None and ignored != self.ignore_id:
                raise ValueError(
                    f"{self.name} leaves out targets of ignore_id={self.ignore_id}. "
                    f"Received: {type(each).__name__} with ignore_id={ignored}, which "
                    f"would count those and leave out others. Give it ignore_id="
                    f"{self.ignore_id}."
                )

    def _check_reads_logits(self, losses):
        """Warns of a loss of Keras that takes logits for probabilities, or padding."""
        for each in losses:
            loss = keras.losses.get(each) if isinstance(each, str) else each
            parts = loss, getattr(loss, "fn", loss)  # a class, and what it wraps
            modules = [getattr(part, "__module__", "") for part in parts]
            if not all(module.startswith("keras.") for module in modules):
                continue
            reads_logits = getattr(loss, "from_logits", True)
            if not isinstance(loss, keras.losses.Loss):
                known = inspect.signature(loss).parameters.get("from_logits")
                reads_logits = known is None or known.default
            if not reads_logits:
                warnings.warn(
                    f"{self.name} gives logits, and the loss reads probabilities: "
                    f"{each!r}. Leave the loss out, or give a class of keras.losses "
                    "with from_logits=True.",
                    stacklevel=3,
                )
            elif (
                self.ignore_id == self.ignore_id
                and not self.target_per_example
                and getattr(loss, "ignore_class", None) is None
            ):
                warnings.warn(
                    f"{self.name} has targets of {self.ignore_id} where there is none, "
                    f"and this loss of Keras counts them: {each!r}. Leave the loss out,"
                    " or give SparseCategoricalCrossentropy(from_logits=True, "
                    f"ignore_class={self.ignore_id}).",
                    stacklevel=3,
                )

    def _without_filling(self, metrics):
        """Metrics with Keras's accuracy as one that leaves out padding."""
        own = any(isinstance(each, TokenAccuracy) for each in self.default_metrics())
        if not own or isinstance(metrics, str):  # which Keras refuses
            return metrics

        def replaced(metric):
            if isinstance(metric, str) and metric.lower() in ("accuracy", "acc"):
                return TokenAccuracy(self.ignore_id, name=metric)
            return metric

        metrics = keras.tree.map_structure(replaced, metrics)
        counting = [each for each in keras.tree.flatten(metrics) if _of_keras(each)]
        if counting and not self.target_per_example:
            names = [getattr(each, "name", each) for each in counting]
            warnings.warn(
                f"These metrics of Keras count padding, too: {names}. Those that leave "
                'it out are "accuracy" and the metrics of kzoo.training.',
                stacklevel=3,
            )
        return metrics

    def default_optimizer(self):
        """What `compile` uses where none is given; so for the next two."""
        return Adam(5e-4, global_clipnorm=1.0)

    def default_loss(self, label_smoothing):
        """Cross-entropy of the targets that are not `ignore_id`."""
        return MaskedCrossEntropy(label_smoothing, ignore_id=self.ignore_id)

    def default_metrics(self):
        """The share of those targets that is right."""
        return [TokenAccuracy(ignore_id=self.ignore_id, name="accuracy")]

    def _compared(self, x, y):
        """What the loss and the metrics compare, of a batch's inputs and targets."""
        return y

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        """Keras's hook; a task may make the targets of the inputs."""
        y = self._compared(x, y)
        if y is None and self.needs_targets and self.loss is not None:
            raise ValueError(
                f"{self.name} has no targets: a pipeline or generator gives (inputs, "
                "targets)."
            )
        return super().compute_loss(x, y, y_pred, sample_weight, training)

    def _symbolic_build(self, *args, **kwargs):
        """Keras's, which computes metrics of no batch."""
        if isinstance(self._loss_tracker, WeightedLoss):
            self._loss_tracker.forget()
        super()._symbolic_build(*args, **kwargs)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """Keras's hook, after the loss of the batch; on some backends also before."""
        y = self._compared(x, y)
        if isinstance(self._loss_tracker, WeightedLoss):
            self._loss_tracker.reweigh(y, sample_weight)
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def __setattr__(self, name, value):
        """Keras's; metrics may come after `build`, which `__init__` calls."""
        values = value if isinstance(value, (list, tuple)) else [value]
        late = all(isinstance(each, keras.Metric) for each in values)
        if not (late and values and vars(self).get("built")):
            return super().__setattr__(name, value)
        self._tracker.unlock()
        try:
            super().__setattr__(name, value)
        finally:
            self._lock_state()

    def _lock_state(self):
        """Keras's, after `build`; says where a subclass makes its layers."""
        if not self._tracker.locked:
            self._tracker.lock(
                "A task is built in its __init__. Make and build layers of your own in "
                "build(), before super().build(), with names; metrics may come later."
            )

    def quantize(self, *_, **__):
        """Keras's; refused.

        Raises:
            ValueError: always; files of small weights are exported.
        """
        raise ValueError(
            f"{self.name}: kzoo's layers are not quantised in Keras. Export it with "
            'export(path, format="onnx", quantize="int8"), or "int4".'
        )

    def compile_from_config(self, config):
        """Keras's hook: compiles as the model in a `.keras` file was."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built:
            self.optimizer.build(self.trainable_variables)

    def get_config(self):
        """The config and the tokenizer, for `from_config`."""
        tokenizer = self.tokenizer
        return {
            **super().get_config(),
            "config": self.config.to_dict(),
            "tokenizer": tokenizer and tokenizer.get_config(),
            **self.options,
            **self.fine_tuning_config(),
        }

    @classmethod
    def from_config(cls, config):
        """Builds the task from `get_config`'s result."""
        config = dict(config)
        fine_tuning = config.pop("fine_tuning", None)
        model = ModelConfig.from_dict(config.pop("config"))
        tokenizer = config.pop("tokenizer", None)
        if tokenizer is not None:
            tokenizer = Tokenizer.from_config(tokenizer)
        task = cls(model, tokenizer=tokenizer, **config)
        task.set_fine_tuning(fine_tuning)
        return task


def _of_keras(metric):
    """Whether a metric is Keras's own, and counts every target."""
    function = getattr(metric, "_fn", metric)  # what a metric is the mean of
    module = getattr(function, "__module__", None) or ""
    ignores = getattr(metric, "ignore_class", None) is not None
    return isinstance(metric, str) or (module.startswith("keras.") and not ignores)


def _seed_states(layer):
    for sublayer in layer._flatten_layers():
        generator = getattr(sublayer, "seed_generator", None)
        if generator is not None:
            yield generator.state


def load_model(path, **kwargs):
    """The model of a `.keras` file, as `keras.saving.load_model` loads it.

    That function finds kzoo's classes only after their import, which a process that
    just reads a file has not done; this one comes with them.

    Args:
        path: the file.
        **kwargs: of `keras.saving.load_model`.

    Raises:
        ValueError: it is a folder, which `load_task` reads.
    """
    if (Path(path) / WEIGHTS_FILE).is_file():
        raise ValueError(
            f"load_model reads a .keras file. Received: {path}, a folder, which "
            "kzoo.load_task reads."
        )
    return keras.saving.load_model(path, **kwargs)


def out_of_table(ids, size):
    """An id that is not in [0, size), or `None`; of a list or an array of integers."""
    array = np.asarray(ids)
    if not array.size:
        return None
    lowest, highest = array.min(), array.max()
    if lowest < 0:
        return lowest
    return highest if highest >= size else None


def smallest_table(config):
    """How many tokens each of a config's stacks has."""
    stacks = (config.encoder, config.decoder)
    return min(stack.vocabulary_size for stack in stacks if stack)


def _refuse_or_warn(tokenizer, size):
    said = (
        f"The tokenizer has {tokenizer.vocabulary_size} tokens, the model only {size}"
    )
    if tokenizer.conventions.layout is None:
        raise ValueError(
            f"{said}. Build the model with vocabulary_size={tokenizer.vocabulary_size}."
        )
    # Published models have added tokens that they never saw, such as one of images.
    warnings.warn(f"{said}: texts with one of the others are refused.", stacklevel=4)


def load_task(folder):
    """The task that `save_folder` wrote.

    Raises:
        FileNotFoundError: no folder, or a file is missing in it.
        ValueError: a file does not fit; it is named.
    """
    folder = Path(folder)
    described, kind, config = read_folder(folder)
    tokenizer = read_tokenizer(folder, described)
    try:
        task = kind(config, tokenizer=tokenizer, **described["options"])
        task.set_fine_tuning(described["fine_tuning"])
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{folder / CONFIG_FILE}: {error}") from error
    task.load_safetensors(folder / WEIGHTS_FILE)
    loaded = described["loaded"]
    if loaded:
        task.loaded = LoadReport(loaded["family"], (), (), loaded["said"])
    return task


def read_tokenizer(folder, described):
    """The tokenizer of such a folder, or `None` where it has none.

    Raises:
        FileNotFoundError: a file of it is missing.
    """
    # Folders of before this key was known have the file or none.
    has = described.get("tokenizer", (folder / TOKENIZER_FILE).is_file())
    return load_tokenizer(folder) if has else None


# What a folder's config may say of a task, and what has to be in it.
_SAID = {"options": (), "fine_tuning": ("frozen", "lora"), "loaded": ("family", "said")}


def _checked(described, kind, config):
    if not (isinstance(kind, type) and issubclass(kind, Task)):
        raise ValueError(f"{described['task']} is no task")
    if config.architecture not in kind.architectures:
        raise ValueError(f"{kind.__name__} has no {config.architecture!r} model")
    said = {name: described.get(name) or {} for name in _SAID}
    for name, value in said.items():
        keys = [*_SAID[name]] if value else []
        if not isinstance(value, dict) or not set(keys) <= set(value):
            raise ValueError(f"{name} must be an object, with {keys}, not {value!r}")
    options = said["options"]
    signatures = [inspect.signature(base) for base in kind.__mro__[:-1]]
    unknown = set(options).difference(*(each.parameters for each in signatures))
    if unknown:
        raise ValueError(f"{kind.__name__} has no options {sorted(unknown)}")
    return described | said


def read_folder(folder):
    """What a folder of `save_folder` says: all of it, the task's class, its config.

    Raises:
        FileNotFoundError: no folder, or no config in it.
        ValueError: it does not describe a task.
    """
    import kzoo.tasks

    path = folder / CONFIG_FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"No {CONFIG_FILE} in {folder}: expected a folder written by kzoo."
        )
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
        if "model_type" in described:
            raise ValueError("it is of Hugging Face's layout, which from_preset reads")
        config = ModelConfig.from_dict(described["model"])
        kind = getattr(kzoo.tasks, described["task"])
        return _checked(described, kind, config), kind, config
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} does not describe a kzoo task: {error}") from error
