"""What every tokenizer can do, and how one is saved to and read from a folder."""

import abc
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

CONFIG_FILE = "tokenizer_config.json"

# The pieces and ids of the special tokens in every tokenizer that kzoo trains, in
# the order of `ModelConfig`'s defaults.
SPECIAL_PIECES = ("<pad>", "<s>", "</s>", "<unk>")
SPECIAL_IDS = dict(pad_token_id=0, start_token_id=1, end_token_id=2, unknown_token_id=3)


class Tokenizer(abc.ABC):
    """Text to token ids and back.

    A subclass wraps one library and says which file of a folder holds its model.
    Pickling, copying and `get_config` all go through the model's own serialised form.

    Args:
        pad_token_id: fills short rows, or `None` when the vocabulary has none; so for
            the next three.
        start_token_id: the decoder's first input.
        end_token_id: ends a sequence.
        unknown_token_id: stands for text that the vocabulary cannot write.
    """

    kind: str
    file_name: str
    _kinds: dict[str, type["Tokenizer"]] = {}

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "kind" in cls.__dict__:
            Tokenizer._kinds[cls.kind] = cls

    def __init__(self, *, pad_token_id, start_token_id, end_token_id, unknown_token_id):
        self._ids = dict(
            pad_token_id=pad_token_id,
            start_token_id=start_token_id,
            end_token_id=end_token_id,
            unknown_token_id=unknown_token_id,
        )
        for name, token_id in self._ids.items():
            if token_id is None:
                continue
            if isinstance(token_id, bool) or not isinstance(token_id, int):
                raise TypeError(
                    f"{type(self).__name__}: {name} must be an int or None. "
                    f"Received: {token_id!r}."
                )
            if not 0 <= token_id < self.vocabulary_size:
                raise ValueError(
                    f"{type(self).__name__}: {name} must be in "
                    f"[0, {self.vocabulary_size}). Received: {token_id}."
                )

    @property
    @abc.abstractmethod
    def vocabulary_size(self) -> int:
        """Number of ids: every id is in [0, vocabulary_size)."""

    @property
    def pad_token_id(self) -> int | None:
        """Id that fills short rows."""
        return self._ids["pad_token_id"]

    @property
    def start_token_id(self) -> int | None:
        """Id that the decoder reads first."""
        return self._ids["start_token_id"]

    @property
    def end_token_id(self) -> int | None:
        """Id that ends a sequence."""
        return self._ids["end_token_id"]

    @property
    def unknown_token_id(self) -> int | None:
        """Id of text that the vocabulary cannot write."""
        return self._ids["unknown_token_id"]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, without special tokens.

        A special token's name in a text, as in "a </s> b", is text like any other.

        Args:
            texts: strings; a single string is refused, since it is a sequence of
                one-character strings.

        Returns:
            One list of ids a text, of different lengths; empty for an empty text.

        Raises:
            TypeError: not a sequence of `str`.
            ValueError: a text holds half of a surrogate pair, which has no UTF-8 form.
        """
        return self._encode(check_texts(texts, f"{type(self).__name__}.encode"))

    def decode(self, sequences) -> list[str]:
        """Texts of sequences of ids.

        Padding and a start token in front, everything from the end token on, and the
        other special tokens are dropped. An unknown token is shown the way the
        library shows it, so that a gap is not hidden.

        Args:
            sequences: int (B, T) array, or a sequence of lists or arrays of ids.

        Returns:
            One string a sequence.

        Raises:
            TypeError: a flat sequence of ids, or ids that are not integers.
            ValueError: an id outside the vocabulary.
        """
        return self._decode([self._content(ids) for ids in self._rows(sequences)])

    def tokens(self, ids) -> list[str]:
        """The piece of each id of one sequence, special tokens too, as plots label it.

        Args:
            ids: int (T,), a list or an array.

        Raises:
            TypeError: ids that are not integers.
            ValueError: an id outside the vocabulary.
        """
        return [self._piece(token_id) for token_id in self._check_ids(ids)]

    def get_config(self) -> dict:
        """A JSON-serialisable dict from which `from_config` builds an equal one."""
        return {"kind": self.kind, "model": self._model_text(), **self._ids}

    @classmethod
    def from_config(cls, config) -> "Tokenizer":
        """Builds the tokenizer from `get_config`'s result.

        Raises:
            ValueError: an unknown kind, a key missing or not known, or a model that
                the library cannot read.
        """
        config = dict(config)
        expected = {"kind", "model", *SPECIAL_IDS}
        if set(config) != expected:
            raise ValueError(
                f"A tokenizer config has the keys {sorted(expected)}. "
                f"Received: {sorted(config)}."
            )
        kind = _class_of(config.pop("kind"))
        if not issubclass(kind, cls):
            raise ValueError(
                f"The config is of a {kind.__name__}, not of a {cls.__name__}; use "
                f"{kind.__name__}.from_config."
            )
        return kind(kind._model_from_text(config.pop("model")), **config)

    def save(self, folder):
        """Writes the library's model file and `tokenizer_config.json`.

        Args:
            folder: made when missing; `load_tokenizer` reads it.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / self.file_name).write_bytes(self._model_bytes())
        config = {"kind": self.kind, **self._ids}
        (folder / CONFIG_FILE).write_text(
            json.dumps(config, indent=2) + "\n", encoding="utf-8"
        )

    def __reduce__(self):
        return Tokenizer.from_config, (self.get_config(),)

    def __repr__(self):
        return f"<{type(self).__name__} vocabulary_size={self.vocabulary_size}>"

    @abc.abstractmethod
    def _encode(self, texts):
        """Ids of each of the checked texts."""

    @abc.abstractmethod
    def _decode(self, sequences):
        """Texts of lists of ids without special tokens, but with unknown ones."""

    @abc.abstractmethod
    def _piece(self, token_id):
        """The piece of one id."""

    @abc.abstractmethod
    def _is_special(self, token_id):
        """Whether the id writes no text; the unknown token's does."""

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

    def _rows(self, sequences):
        if isinstance(sequences, (str, bytes)) or not hasattr(sequences, "__len__"):
            raise TypeError(
                "decode expects a sequence of id sequences. "
                f"Received: {_describe(sequences)}."
            )
        flat = [row for row in sequences if np.ndim(row) == 0]
        if flat:
            raise TypeError(
                "decode expects a sequence of id sequences, such as [[5, 6, 2]]; "
                f"wrap a single one in a list. Received: {_describe(flat[0])} in it."
            )
        return [self._check_ids(row) for row in sequences]

    def _check_ids(self, ids):
        array = np.asarray(ids)
        if array.size == 0:
            return []
        if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
            raise TypeError(
                "Expected one flat sequence of integer ids. Received: "
                f"dtype {array.dtype}, shape {array.shape}."
            )
        outside = array[(array < 0) | (array >= self.vocabulary_size)]
        if outside.size:
            raise ValueError(
                f"Ids must be in [0, {self.vocabulary_size}). Received: "
                f"{int(outside[0])}; the model's vocabulary may be larger than this "
                "tokenizer's."
            )
        return array.tolist()

    def _content(self, ids):
        first = 0
        while first < len(ids) and ids[first] == self.pad_token_id:
            first += 1
        # Some families start with the id that also ends (BART) or pads (T5), so the
        # start token goes before the end token is looked for.
        if first < len(ids) and ids[first] == self.start_token_id:
            first += 1
        ids = ids[first:]
        if self.end_token_id in ids:
            ids = ids[: ids.index(self.end_token_id)]
        return [token_id for token_id in ids if not self._is_special(token_id)]


def load_tokenizer(folder) -> Tokenizer:
    """Reads a tokenizer that `Tokenizer.save` wrote.

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
    if not isinstance(config, dict) or set(config) != expected:
        raise ValueError(
            f"{path} must hold exactly the keys {sorted(expected)}, as Tokenizer.save "
            "writes them. For a file of another library, build FastTokenizer or "
            "SentencePieceTokenizer from its model file and save it again."
        )
    try:
        kind = _class_of(config.pop("kind"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    model_path = Path(folder) / kind.file_name
    content = _read(model_path)
    try:
        return kind(kind._model_from_bytes(content), **config)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{model_path} with {path}: {error}") from error


def check_texts(texts, caller) -> list[str]:
    """The texts as a list of `str` that all have a UTF-8 form.

    Raises:
        TypeError: not a sequence of `str`.
        ValueError: a lone surrogate; the text's index is named.
    """
    if isinstance(texts, (str, bytes)) or not hasattr(texts, "__iter__"):
        raise TypeError(
            f"{caller} expects a list of strings; wrap a single one in a list. "
            f"Received: {_describe(texts)}."
        )
    texts = list(texts)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(
                f"{caller} expects a list of strings. "
                f"Received: {_describe(text)} at index {index}."
            )
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{caller}: the text at index {index} has no UTF-8 form (a lone "
                f"surrogate at character {error.start}). Decode the source with "
                "errors='replace'."
            ) from error
    return texts


def _class_of(kind):
    if kind not in Tokenizer._kinds:
        raise ValueError(
            f"Unknown kind of tokenizer {kind!r}. Known: {sorted(Tokenizer._kinds)}."
        )
    return Tokenizer._kinds[kind]


def _describe(value):
    shown = repr(value)
    shown = shown if len(shown) <= 40 else shown[:37] + "..."
    return f"{shown} of type {type(value).__name__}"


def _read(path):
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path} does not exist. Expected a folder that Tokenizer.save wrote."
        ) from None
