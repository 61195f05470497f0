"""Tokenizers of the `tokenizers` library, one `tokenizer.json` each."""

import functools
import json
from collections import Counter
from collections.abc import Iterable
from typing import Literal, get_args

import tokenizers
from tokenizers import (
    AddedToken,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from kzoo.tokenizers.base import Tokenizer
from kzoo.tokenizers.conventions import (
    MASK_ID,
    MASK_PIECE,
    SPECIAL_IDS,
    SPECIAL_PIECES,
)
from kzoo.tokenizers.texts import check_texts

Algorithm = Literal["bpe", "wordpiece", "character"]

_CONTINUES = "##"

_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = sorted(set(range(256)) - set(_PRINTABLE))


class FastTokenizer(Tokenizer):
    """A `tokenizer.json` of the `tokenizers` library.

    Truncation, padding and special tokens that the file asks for are left to
    `kzoo.data` and the tasks, so that `encode` gives the ids of the text alone.

    Args:
        model: the text of a `tokenizer.json`.
        pad_token_id: fills short rows, or `None`; so for the next four.
        start_token_id: the decoder's first input.
        end_token_id: ends a sequence.
        unknown_token_id: stands for text that the vocabulary cannot write.
        mask_token_id: stands for a token to be guessed.
        conventions: see `Tokenizer`.

    Raises:
        TypeError: `model` is not `str`.
        ValueError: `model` is not a `tokenizer.json`, or an id is outside it.
    """

    # The byte of each character of a byte-level piece: printable ones are themselves,
    # the others count from 256 on (Radford et al., 2019, section 2.2, and its code).
    byte_of = {chr(value): value for value in _PRINTABLE}
    byte_of |= {chr(256 + place): value for place, value in enumerate(_OTHERS)}

    kind = "fast"
    file_name = "tokenizer.json"

    def __init__(
        self,
        model: str,
        *,
        pad_token_id: int | None = None,
        start_token_id: int | None = None,
        end_token_id: int | None = None,
        unknown_token_id: int | None = None,
        mask_token_id: int | None = None,
        conventions=None,
    ):
        if not isinstance(model, str):
            raise TypeError(
                "FastTokenizer expects the text of a tokenizer.json. "
                f"Received: {type(model).__name__}."
            )
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(model)
        except Exception as error:  # the library raises bare Exception
            raise ValueError(f"Not a tokenizer.json: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        # "</s>" typed by a user must not end a sequence.
        self._tokenizer.encode_special_tokens = True
        # A vocabulary may have gaps (ids of added tokens), and ids must stay below.
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self._vocabulary_size = max(vocabulary.values(), default=-1) + 1
        self._byte_level = isinstance(self._tokenizer.decoder, decoders.ByteLevel)
        super().__init__(
            pad_token_id=pad_token_id,
            start_token_id=start_token_id,
            end_token_id=end_token_id,
            unknown_token_id=unknown_token_id,
            mask_token_id=mask_token_id,
            conventions=conventions,
        )
        added = self._tokenizer.get_added_tokens_decoder()
        # That of kzoo's own byte-level models does, whatever their older files say.
        own = self._byte_level and not self.conventions.layout
        lstrip = mask_token_id in added and added[mask_token_id].lstrip
        self.mask_takes_space = own or lstrip
        special = {token_id for token_id, token in added.items() if token.special}
        self._special = (special | set(self._ids.values())) - {unknown_token_id, None}
        # Names that other pieces can write, too, as they cannot a single character.
        self._named = {i: added[i].content for i in special - {unknown_token_id}}
        self._named = {i: name for i, name in self._named.items() if len(name) > 1}

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        vocabulary_size: int,
        *,
        algorithm: Algorithm = "bpe",
        lowercase: bool = False,
        mask_token: bool = False,
    ) -> "FastTokenizer":
        """Learns the vocabulary from texts; equal arguments give equal files.

        Unigram is not among the algorithms: the library's trainer gives another
        vocabulary in every process; `SentencePieceTokenizer` has it.

        Args:
            texts: strings.
            vocabulary_size: the most ids, special ones included. A small corpus
                gives fewer: read `vocabulary_size` of the result.
            algorithm: `"bpe"` is byte-level byte-pair encoding (Radford et al.,
                2019) and writes any text exactly; `"wordpiece"` splits at white space
                and punctuation as BERT does (Devlin et al., 2019), so that decoding
                restores words but not spacing; `"character"` has an id a character,
                and writes text of known characters exactly.
            lowercase: lower-case the text, and strip accents in `"wordpiece"`.
            mask_token: the vocabulary has a mask token, for `kzoo.MaskedLM`.

        Raises:
            TypeError: `texts` is not an iterable of `str`.
            ValueError: an unknown algorithm; no text; or a `vocabulary_size` too
                small for the alphabet, with the size that it needs.
        """
        if algorithm not in get_args(Algorithm):
            raise ValueError(
                f"algorithm must be one of {list(get_args(Algorithm))}; for 'unigram' "
                f"use SentencePieceTokenizer. Received: {algorithm!r}."
            )
        texts = check_texts(texts, "FastTokenizer.train")
        if not any(texts):
            raise ValueError(
                "FastTokenizer.train needs at least one text that is not empty. "
                "Received: none."
            )
        build = {"bpe": _bpe, "wordpiece": _wordpiece, "character": _character}
        special = [*SPECIAL_PIECES, MASK_PIECE] if mask_token else [*SPECIAL_PIECES]
        tokenizer = build[algorithm](texts, vocabulary_size, lowercase, special)
        own = {**SPECIAL_IDS, **MASK_ID} if mask_token else SPECIAL_IDS
        return cls(tokenizer.to_str(), **own)

    @property
    def vocabulary_size(self) -> int:
        """Number of ids: every id is in [0, vocabulary_size)."""
        return self._vocabulary_size

    def token_id(self, piece: str) -> int | None:
        """The id of a piece as the vocabulary writes it, or `None`."""
        return self._tokenizer.token_to_id(piece)

    def _encode(self, texts):
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [ids for _, ids in self._as_text(texts, encodings)]

    def _encode_with_offsets(self, texts):
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        pairs = [*self._as_text(texts, encodings)]
        return [ids for _, ids in pairs], [e.offsets for e, _ in pairs]

    def _as_text(self, texts, encodings):
        """Each encoding and its ids, made again where names became special tokens."""
        for text, encoding in zip(texts, encodings, strict=True):
            ids = encoding.ids  # a new list each time
            if not self._named.keys().isdisjoint(ids):
                encoding = self._nameless.encode(text, add_special_tokens=False)
                ids = encoding.ids
            yield encoding, ids

    @functools.cached_property
    def _nameless(self):
        """The library's tokenizer, of whose special pieces no text becomes one.

        Unigram models have them in their vocabulary like others, where a name in a
        text is the best piece for it. Spaces are written otherwise in such models, so
        a piece with some stands in no text.
        """
        described = json.loads(self._model_text())
        model = described["model"]
        names = {piece: f" {token_id} " for token_id, piece in self._named.items()}
        names.pop(model.get("unk_token"), None)  # the model looks it up
        vocabulary = model["vocab"]
        model["vocab"] = (
            [[names.get(piece, piece), score] for piece, score in vocabulary]
            if isinstance(vocabulary, list)
            else {names.get(piece, piece): i for piece, i in vocabulary.items()}
        )
        if "merges" in model:
            model["merges"] = [
                pair
                for pair in model["merges"]
                if names.keys().isdisjoint([*pair, "".join(pair)])
            ]
        for token in described["added_tokens"]:
            token["content"] = names.get(token["content"], token["content"])
        described["post_processor"] = None
        library = tokenizers.Tokenizer.from_str(json.dumps(described))
        library.encode_special_tokens = True
        return library

    def _decode(self, sequences):
        return self._tokenizer.decode_batch(sequences, skip_special_tokens=False)

    def _piece(self, token_id):
        piece = self._tokenizer.id_to_token(token_id)
        if piece is None:  # a gap in the vocabulary
            return f"<{token_id}>"
        if self._byte_level and token_id not in self._special:
            # "Ġbike" is " bike"; part of a character stays as the library writes it.
            text = self._tokenizer.decoder.decode([piece])
            return piece if "\N{REPLACEMENT CHARACTER}" in text else text
        return piece

    def _bytes(self, token_id, text):
        if self._byte_level:
            piece = self._tokenizer.id_to_token(token_id) or ""
            if set(piece) <= set(self.byte_of):
                return bytes(self.byte_of[character] for character in piece)
            return piece.encode()  # an added token, as it is
        return super()._bytes(token_id, text)

    def _model_bytes(self):
        return self._model_text().encode("utf-8")

    def _model_text(self):
        return self._tokenizer.to_str()

    @classmethod
    def _model_from_text(cls, text):
        return text

    @classmethod
    def _model_from_bytes(cls, content):
        return content.decode("utf-8")


def _bpe(texts, vocabulary_size, lowercase, special):
    """Byte-level byte-pair encoding: the alphabet is the 256 bytes."""
    _check_size(vocabulary_size, 256, special)
    # A word's piece holds the space before it, so that the mask stands for both.
    special = [AddedToken(name, lstrip=name == MASK_PIECE) for name in special]
    tokenizer = tokenizers.Tokenizer(models.BPE())
    if lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer, length=len(texts))
    return tokenizer


def _character(texts, vocabulary_size, lowercase, special):
    """An id a character, frequent ones first."""
    counts = Counter()
    for text in texts:
        counts.update(text.lower() if lowercase else text)
    _check_size(vocabulary_size, 1, special)
    frequent = sorted(counts, key=lambda character: (-counts[character], character))
    pieces = [*special, *frequent][:vocabulary_size]
    tokenizer = tokenizers.Tokenizer(
        models.WordLevel(
            {piece: index for index, piece in enumerate(pieces)},
            unk_token=SPECIAL_PIECES[3],
        )
    )
    tokenizer.add_special_tokens(special)
    if lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def _wordpiece(texts, vocabulary_size, lowercase, special):
    """WordPiece: the longest piece that fits, from the left of each word.

    The library's own trainer numbers the `##` characters in the order of a hash table
    with a random seed, and breaks ties between merges by these numbers. So a plain
    byte-pair encoding is trained on words whose inner characters stand in a private
    range of Unicode, and its pieces are written with `##` again.
    """
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token=SPECIAL_PIECES[3]))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=lowercase
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=_CONTINUES, cleanup=True)
    words = Counter()
    for text in texts:
        text = tokenizer.normalizer.normalize_str(text)
        words.update(word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text))
    inner = sorted({character for word in words for character in word[1:]})
    private = {character: chr(0xF0000 + i) for i, character in enumerate(inner)}
    public = {code: character for character, code in private.items()}
    alphabet = len({word[0] for word in words}) + len(inner)
    _check_size(vocabulary_size, alphabet, special)

    learner = tokenizers.Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=special,
        show_progress=False,
    )
    coded = {
        word: word[0] + "".join(private[character] for character in word[1:])
        for word in words
    }
    learner.train_from_iterator(
        (" ".join([coded[word]] * count) for word, count in words.items()), trainer
    )
    vocabulary = {}
    for piece, token_id in learner.get_vocab().items():
        prefix = _CONTINUES if piece[0] in public else ""
        text = "".join(public.get(character, character) for character in piece)
        vocabulary[prefix + text] = token_id
    tokenizer.model = models.WordPiece(
        vocabulary,
        unk_token=SPECIAL_PIECES[3],
        continuing_subword_prefix=_CONTINUES,
    )
    tokenizer.add_special_tokens(special)
    return tokenizer


def _check_size(vocabulary_size, alphabet, special):
    smallest = alphabet + len(special)
    if vocabulary_size < smallest:
        raise ValueError(
            f"vocabulary_size must hold the {len(special)} special tokens and "
            f"the alphabet: at least {smallest}. Received: {vocabulary_size}."
        )
