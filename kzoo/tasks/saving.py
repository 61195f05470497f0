"""Tasks in folders, and in Keras's files: what `load_task` and `load_model` read."""

import inspect
import json
from pathlib import Path

import keras

from kzoo.checkpoints.engine import LoadReport
from kzoo.checkpoints.files import SAFETENSORS, open_file
from kzoo.config import TRAINING_FIELDS, ModelConfig
from kzoo.files import beside, install, write_json
from kzoo.layers.lora import lora_merged, merged_variables
from kzoo.models.turns import reading, training, wait_for_values
from kzoo.tasks.weights_file import check_shapes, read_into, write_safetensors
from kzoo.tokenizers import Tokenizer, load_tokenizer
from kzoo.tokenizers.conventions import CONFIG_FILE as TOKENIZER_FILE

CONFIG_FILE, WEIGHTS_FILE = "config.json", SAFETENSORS
# What a folder's config may say of a task, and what has to be in it.
_SAID = {"options": (), "fine_tuning": ("frozen", "lora"), "loaded": ("family", "said")}


class Saves(keras.Model):
    """Mixin of tasks: weights by path, in files and folders, and Keras's config."""

    def named_variables(self):
        """The weights by path below the model: `decoder/layer_0/.../kernel`."""
        wait_for_values(self)
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

    def save_safetensors(self, path, dtype=None):
        """Writes the weights under their paths.

        Args:
            path: the file.
            dtype: `"float32"`, `"float16"` or `"bfloat16"`; as they are by default.
        """
        with reading(self):
            write_safetensors(path, self.named_variables(), dtype=dtype)

    def load_safetensors(self, path):
        """Reads weights written by `save_safetensors`.

        Raises:
            ValueError: a weight is missing, unknown, of another shape or no float; all
                are named and nothing is loaded.
        """
        own = self.named_variables()
        with open_file(path) as file, training(self):
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
        other = source if isinstance(source, Saves) else load_task(source)
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
        with training(self), reading(other):
            for name, variable in self.named_variables().items():
                if name.startswith(("encoder/", "decoder/")) and name in weights:
                    # On JAX the value itself would be taken; a training uses it up.
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
        import kzoo.tasks

        if getattr(kzoo.tasks, type(self).__name__, None) is not type(self):
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


def _seed_states(layer):
    for sublayer in layer._flatten_layers():
        generator = getattr(sublayer, "seed_generator", None)
        if generator is not None:
            yield generator.state


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


def _checked(described, kind, config):
    if not (isinstance(kind, type) and issubclass(kind, Saves)):
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
