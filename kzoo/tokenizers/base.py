"""What every tokenizer can do."""

import abc
import dataclasses
import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from kzoo.tokenizers.conventions import Conventions
from kzoo.tokenizers.saving import Serializes
from kzoo.tokenizers.texts import check_texts, describe, trimmed


def _id(name, meaning):
    """A property of a tokenizer: one of its ids, or `None`."""
    return property(lambda self: self._ids[name], doc=meaning)


class Tokenizer(Serializes):
    """Text to token ids and back.

    A subclass wraps one library and says which file of a folder holds its model.
    Pickling, copying and `get_config` all go through the model's own serialised form.

    Args:
        pad_token_id: fills short rows, or `None` when the vocabulary has none; so for
            the next four.
        start_token_id: the decoder's first input.
        end_token_id: ends a sequence.
        unknown_token_id: stands for text that the vocabulary cannot write.
        mask_token_id: stands for a token to be guessed.
        conventions: `kzoo.tokenizers.Conventions`, or its `get_config`; what a
            pretrained model's authors settled. By default that of kzoo's own models.
    """

    _special: set[int]  # ids that write no text; the unknown token's does
    # Whether the mask token stands for the space before it, too, as a word's piece may.
    mask_takes_space = False

    def __init__(
        self,
        *,
        pad_token_id,
        start_token_id,
        end_token_id,
        unknown_token_id,
        mask_token_id=None,
        conventions=None,
    ):
        if not isinstance(conventions, Conventions):
            conventions = Conventions(**(conventions or {}))
        self._conventions = conventions
        self._ids = dict(
            pad_token_id=pad_token_id,
            start_token_id=start_token_id,
            end_token_id=end_token_id,
            unknown_token_id=unknown_token_id,
            mask_token_id=mask_token_id,
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

    pad_token_id = _id("pad_token_id", "Id that fills short rows.")
    start_token_id = _id("start_token_id", "Id that the decoder reads first.")
    end_token_id = _id("end_token_id", "Id that ends a sequence.")
    unknown_token_id = _id(
        "unknown_token_id", "Id of text that the vocabulary cannot write."
    )
    mask_token_id = _id("mask_token_id", "Id of a token to be guessed.")

    @property
    def conventions(self) -> Conventions:
        """Templates, languages and chats of a pretrained model."""
        return self._conventions

    @property
    def original_pad_token_id(self) -> int | None:
        """The padding token's id that a pretrained model's files name, if any does.

        `pad_token_id` is another where that one would hide the end of a sequence.
        """
        if not self.conventions.layout:
            return self.pad_token_id
        token = self.conventions.settings.get("pad_token")
        name = token["content"] if isinstance(token, dict) else token
        return None if name is None else self.token_id(name)

    @property
    def languages(self) -> list[str]:
        """Names that `for_languages` knows."""
        return sorted(self.conventions.languages)

    def for_languages(self, source: str | None = None, target: str | None = None):
        """A copy for texts of one language and their translations into another.

        The model is told the languages by codes before or behind the text. A model
        with one code for all, as Marian's has, is told the target's in the source.

        Args:
            source: of `languages`; `None` leaves it as it is, so for the next.
            target: of what is to be generated.

        Raises:
            ValueError: a name is not known, or the model is not told it.
        """
        known = self.conventions
        template, prefix = known.template, known.target_prefix
        start = self.start_token_id
        codes = set(known.languages.values())
        if source is not None:
            code = known.language_id(source)
            if not codes & template.ids():
                raise ValueError(
                    "This model is told the target's language alone. Received: "
                    f"source={source!r}."
                )
            template = template.replaced(codes, [code])
        if target is not None:
            code = known.language_id(target)
            before, behind = template.around()
            if not codes & {*before, *behind} or self._piece(code).startswith(">>"):
                kept = [i for i in before if i not in codes]
                template = type(template).of([code, *kept], behind)
            elif codes & {*before}:
                prefix = (code,)
            else:  # what stands behind a source is what a target begins with
                start = code
        own = {"src_lang": source, "tgt_lang": target}
        own = {name: value for name, value in own.items() if value is not None}
        return self.with_conventions(
            template=template,
            target_prefix=prefix,
            settings={**known.settings, **own},
        ).starting_with(start)

    def starting_with(self, token_id: int) -> "Tokenizer":
        """A copy for a model that begins with another start token.

        Args:
            token_id: of the start token.
        """
        twin = self.with_conventions()
        twin._ids = {**self._ids, "start_token_id": token_id}
        return twin

    def with_conventions(self, **changes) -> "Tokenizer":
        """A copy with other `Conventions`, which shares the model.

        Args:
            **changes: fields of `Conventions`.
        """
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._conventions = dataclasses.replace(self.conventions, **changes)
        return twin

    @property
    def chat_template(self) -> str | None:
        """How the model's chats are written, in Jinja."""
        return self.conventions.chat_template

    def apply_chat_template(
        self, messages, add_generation_prompt: bool = True, **variables
    ) -> str:
        """The text of a chat, as the model's template writes it.

        As transformers does it: what is `None` in a message is left out, and a model's
        reasoning, also as `reasoning`, is `reasoning_content` and `thinking`. The
        template runs in a sandbox, without methods that fill a text up, such as
        `format` and `zfill`.

        Args:
            messages: dicts of `role` and `content`, and what else the template reads.
            add_generation_prompt: ends with what an answer begins with.
            **variables: of the template, such as `tools`, for which a model may have a
                template of its own.

        Raises:
            ImportError: jinja2 is missing.
            ValueError: there is no template, or it refuses the messages; an argument
                that transformers has and kzoo has not, such as `tokenize`.
        """
        from kzoo.tokenizers.chat import render

        return render(self, messages, add_generation_prompt, variables)

    def encode_chat(
        self, messages, add_generation_prompt: bool = True, **variables
    ) -> list[int]:
        """Ids of a chat, with the special tokens that the model's template writes.

        A special token's name in a message is text, as it is in `encode`, wherever it
        stands there: in keys and roles, too.

        Args:
            messages: see `apply_chat_template`; so for the others.
            add_generation_prompt: ends with what an answer begins with.
            **variables: of the template.

        Raises:
            ImportError: jinja2 is missing.
            ValueError: as `apply_chat_template`.
        """
        from kzoo.tokenizers.chat import encode

        return encode(self, messages, add_generation_prompt, variables)

    @property
    def special_ids(self) -> set[int]:
        """The ids that write no text; the unknown token's is not among them."""
        return {i for i in range(self.vocabulary_size) if i in self._special}

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

    def encode_targets(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of texts that are to be generated; `encode`, but for two models in one.

        Args:
            texts: as in `encode`.

        Raises:
            TypeError: as in `encode`; so for `ValueError`.
        """
        texts = check_texts(texts, f"{type(self).__name__}.encode_targets")
        return self._encode_targets(texts)

    def encode_with_offsets(self, texts: Sequence[str]):
        """Ids of each text, and which characters of it each id stands for.

        Offsets count the characters of the text as it was given, before any
        normalisation. White space at the ends of a piece is left out; a piece of
        nothing else is empty, before the next piece. Pieces that write one character
        together, as bytes do, have that character's offsets each.

        Args:
            texts: as in `encode`.

        Returns:
            The lists of ids that `encode` gives, and as many lists of (start, end).

        Raises:
            TypeError: as in `encode`; so for `ValueError`.
        """
        texts = check_texts(texts, f"{type(self).__name__}.encode_with_offsets")
        ids, offsets = self._encode_with_offsets(texts)
        return ids, [
            [trimmed(text, start, end) for start, end in spans]
            for text, spans in zip(texts, offsets, strict=True)
        ]

    def encode_words(self, sentences) -> list[list[list[int]]]:
        """Ids of each word, as they are in its sentence: words joined by spaces.

        A word that gives no piece, such as white space or what the normalisation drops,
        is unknown (the end token, where a vocabulary has no unknown one), so that words
        and pieces stay aligned.

        Args:
            sentences: lists of words, `str`.

        Returns:
            For each sentence a list of ids a word, none of them empty.

        Raises:
            TypeError: not lists of `str`.
        """
        sentences = [
            check_texts(words, f"{type(self).__name__}.encode_words")
            for words in sentences
        ]
        filler = self.unknown_token_id
        filler = self.end_token_id if filler is None else filler
        encoded, offsets = self.encode_with_offsets(map(" ".join, sentences))
        result = []
        for words, ids, spans in zip(sentences, encoded, offsets, strict=True):
            starts = list(accumulate((len(word) + 1 for word in words), initial=0))
            pieces = [[] for _ in words]
            for token_id, (start, end) in zip(ids, spans, strict=True):
                # By its last character: before a word may be what is normalised away.
                # White space behind the last word belongs to it.
                last = max(start, end - 1)
                word = min(bisect_right(starts, last), len(words)) - 1
                pieces[word].append(token_id)
            result.append([piece or [filler] for piece in pieces])
        return result

    def encode_with_masks(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of texts in which the mask token's name, `<mask>`, is the mask token.

        Where a word's piece holds the space before it, a mask stands for that, too; in
        a pretrained tokenizer.json the mask token's `lstrip` says so.

        Args:
            texts: as in `encode`.

        Raises:
            ValueError: there is no mask token.
        """
        if self.mask_token_id is None:
            raise ValueError(
                f"{self!r} has no mask token. Train one with mask_token=True, or give "
                "mask_token_id."
            )
        texts = check_texts(texts, f"{type(self).__name__}.encode_with_masks")
        rows = []
        for text in texts:
            parts = text.split(self._piece(self.mask_token_id))
            if self.mask_takes_space:
                parts = [*(part.rstrip() for part in parts[:-1]), parts[-1]]
            (row,) = self._encode(parts[:1])
            for ids in self._encode_continued(parts[1:]):
                row = [*row, self.mask_token_id, *ids]
            rows.append(row)
        return rows

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

    @abc.abstractmethod
    def token_id(self, piece: str) -> int | None:
        """The id of a piece as the vocabulary writes it, or `None`."""

    def token_bytes(self) -> tuple[list, list]:
        """The UTF-8 bytes that each token writes: first in a text, and after others.

        Returns:
            Two lists of `bytes`, an entry an id; `None` for special tokens, which write
            no text.
        """
        ids = range(self.vocabulary_size)
        silent = self.special_ids
        first = self._decode([[i] for i in ids])
        # A piece's space is left out at the start of a text alone. What they are behind
        # is a token that is its own text: others may write more inside of one.
        writes = [i for i in ids if i not in silent and first[i].strip()]
        plain = (i for i in writes if first[i] == self._piece(i))
        anchor = next(plain, next(iter(writes), None))
        after = first
        if anchor is not None:
            size = len(first[anchor])
            after = self._decode([[anchor, i] for i in ids])
            after = [text[size:] for text in after]
            # A space alone may be left out at the end of a text, too.
            for i in (i for i in ids if not after[i] and i not in silent):
                (inside,) = self._decode([[anchor, i, anchor]])
                after[i] = inside[size:].removesuffix(after[anchor])
        return tuple(
            [None if i in silent else self._bytes(i, texts[i]) for i in ids]
            for texts in (first, after)
        )

    def _bytes(self, token_id, text):
        """The bytes of one token, given the text that the library makes of it."""
        piece = self._piece(token_id)
        byte = re.fullmatch(r"<0x([89A-F][0-9A-F])>", piece)  # part of a character
        return bytes.fromhex(byte[1]) if byte and text != piece else text.encode()

    def __repr__(self):
        return f"<{type(self).__name__} vocabulary_size={self.vocabulary_size}>"

    @abc.abstractmethod
    def _encode(self, texts):
        """Ids of each of the checked texts."""

    @abc.abstractmethod
    def _encode_with_offsets(self, texts):
        """Ids of each of the checked texts, and (start, end) of each id."""

    def _encode_targets(self, texts):
        """Ids of texts that are to be generated."""
        return self._encode(texts)

    def _encode_continued(self, texts):
        """Ids of texts that go on after something else, not at the start of a word."""
        return self._encode(texts)

    @abc.abstractmethod
    def _decode(self, sequences):
        """Texts of lists of ids without special tokens, but with unknown ones."""

    @abc.abstractmethod
    def _piece(self, token_id):
        """The piece of one id."""

    def _rows(self, sequences):
        if isinstance(sequences, (str, bytes)) or not hasattr(sequences, "__len__"):
            raise TypeError(
                "decode expects a sequence of id sequences. "
                f"Received: {describe(sequences)}."
            )
        flat = [row for row in sequences if np.ndim(row) == 0]
        if flat:
            raise TypeError(
                "decode expects a sequence of id sequences, such as [[5, 6, 2]]; "
                f"wrap a single one in a list. Received: {describe(flat[0])} in it."
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
        return [token_id for token_id in ids if token_id not in self._special]
