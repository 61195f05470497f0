"""How a tokenizer becomes a dict or a folder, and comes back from it."""

import abc
import json
from pathlib import Path
from typing import Self

from kzoo.tokenizers.conventions import CONFIG_FILE, MASK_ID, SPECIAL_IDS


class Serializes(abc.ABC):
    """Config, pickles and folders of a tokenizer, by its model's own serialised form.

    A subclass with a `kind` is what configs and folders of that kind are read as.
    """

    kind: str
    file_name: str
    # What a subclass's constructor takes besides, under the names of its attributes.
    options: tuple[str, ...] = ()
    _kinds: dict[str, type["Serializes"]] = {}

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "kind" in cls.__dict__:
            Serializes._kinds[cls.kind] = cls

    def get_config(self) -> dict:
        """A JSON-serialisable dict from which `from_config` builds an equal one."""
        return {"kind": self.kind, "model": self._model_text(), **self._described()}

    def _described(self):
        """What `get_config` and `save` hold besides the kind and the model."""
        found = dict(self._ids)
        for name in self.options:
            if getattr(self, name):
                found[name] = getattr(self, name)
        conventions = self.conventions.get_config()
        return {**found, "conventions": conventions} if conventions else found

    @classmethod
    def from_config(cls, config) -> Self:
        """Builds the tokenizer from `get_config`'s result.

        Raises:
            ValueError: an unknown kind, a key missing or not known, or a model that
                the library cannot read.
        """
        config = dict(config)
        expected = {"kind", "model", *SPECIAL_IDS}
        if not expected <= set(config):
            raise ValueError(
                f"A tokenizer config has the keys {sorted(expected)}. "
                f"Received: {sorted(config)}."
            )
        kind = _class_of(config.pop("kind"))
        kind._check_keys(set(config) - expected)
        if not issubclass(kind, cls):
            raise ValueError(
                f"The config is of a {kind.__name__}, not of a {cls.__name__}; use "
                f"{kind.__name__}.from_config."
            )
        return kind(kind._model_from_text(config.pop("model")), **config)

    @classmethod
    def _check_keys(cls, names):
        unknown = names - {*MASK_ID, *cls.options, "conventions"}
        if unknown:
            raise ValueError(
                f"A {cls.__name__}'s config has no such keys. "
                f"Received: {sorted(unknown)}."
            )

    def save(self, folder):
        """Writes the library's model file and `tokenizer_config.json`.

        Args:
            folder: made when missing; `load_tokenizer` reads it.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / self.file_name).write_bytes(self._model_bytes())
        config = {"kind": self.kind, **self._described()}
        (folder / CONFIG_FILE).write_text(
            json.dumps(config, indent=2) + "\n", encoding="utf-8"
        )

    def __reduce__(self):
        return type(self).from_config, (self.get_config(),)

    @abc.abstractmethod
    def _model_bytes(self):
        """The model file's content."""

    @abc.abstractmethod
    def _model_text(self):
        """The model as a string for JSON."""

    @classmethod
    @abc.abstractmethod
    def _model_from_text(cls, text):
        """The constructor's first argument from `_model_text`'s result."""

    @classmethod
    @abc.abstractmethod
    def _model_from_bytes(cls, content):
        """The constructor's first argument from the model file's content."""


def load_tokenizer(folder):
    """Reads a tokenizer that `Tokenizer.save` wrote.

    Returns:
        A `Tokenizer`, of the class that the folder names.

    Raises:
        FileNotFoundError: the folder or a file in it is missing; it is named.
        ValueError: a file cannot be read as what it should be; it is named.
    """
    path = Path(folder) / CONFIG_FILE
    try:
        config = json.loads(_read(path).decode("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    expected = {"kind", *SPECIAL_IDS}
    if not isinstance(config, dict) or not expected <= set(config):
        raise ValueError(
            f"{path} must hold the keys {sorted(expected)}, as Tokenizer.save writes "
            "them. A Hugging Face folder is read by load_pretrained_tokenizer."
        )
    try:
        kind = _class_of(config.pop("kind"))
        kind._check_keys(set(config) - expected)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    model_path = Path(folder) / kind.file_name
    content = _read(model_path)
    try:
        return kind(kind._model_from_bytes(content), **config)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{model_path} with {path}: {error}") from error


def _class_of(kind):
    if kind not in list(Serializes._kinds):  # JSON may give a list, which has no hash
        raise ValueError(
            f"Unknown kind of tokenizer {kind!r}. Known: {sorted(Serializes._kinds)}."
        )
    return Serializes._kinds[kind]


def _read(path):
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path} does not exist. Expected a folder that Tokenizer.save wrote."
        ) from None
