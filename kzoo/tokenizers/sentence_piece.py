"""SentencePiece tokenizers: unigram and byte-pair encoding in one `.model` file."""

import base64
import io
import itertools
import re
from collections.abc import Iterable
from typing import Literal, get_args

import sentencepiece

from kzoo.tokenizers.base import (
    MASK_PIECE,
    SPECIAL_IDS,
    SPECIAL_PIECES,
    Tokenizer,
    check_texts,
)

Algorithm = Literal["unigram", "bpe"]
Normalization = Literal["nmt_nfkc", "nmt_nfkc_cf", "identity"]

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # what SentencePiece writes for one
_ELSEWHERE = "\N{OBJECT REPLACEMENT CHARACTER}"  # joins no piece with its neighbour


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model (Kudo and Richardson, 2018).

    Paper: https://arxiv.org/abs/1808.06226.

    Args:
        model: the bytes of a `.model` file.
        **special_ids: `pad_token_id`, `start_token_id`, `end_token_id`,
            `unknown_token_id` and `mask_token_id`; those left out are read from the
            model.

    Raises:
        TypeError: `model` is not bytes.
        ValueError: `model` is not a SentencePiece model.
    """

    kind = "sentencepiece"
    file_name = "tokenizer.model"
    spaces_in_pieces = True

    def __init__(self, model: bytes, **special_ids):
        if not isinstance(model, bytes):
            raise TypeError(
                "SentencePieceTokenizer expects the bytes of a .model file. "
                f"Received: {type(model).__name__}."
            )
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.load_from_serialized_proto(model)
        except RuntimeError as error:
            raise ValueError(
                f"Not a SentencePiece model ({len(model)} bytes): {error}"
            ) from error
        self._model, self._sampling = model, {}
        own = dict(
            pad_token_id=self._processor.pad_id(),
            start_token_id=self._processor.bos_id(),
            end_token_id=self._processor.eos_id(),
            unknown_token_id=self._processor.unk_id(),
        )
        mask = self._processor.piece_to_id(MASK_PIECE)
        own["mask_token_id"] = mask if self._processor.is_control(mask) else -1
        own = {name: None if id_ < 0 else id_ for name, id_ in own.items()}
        super().__init__(**{**own, **special_ids})

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        vocabulary_size: int,
        *,
        algorithm: Algorithm = "unigram",
        byte_fallback: bool = False,
        character_coverage: float = 1.0,
        normalization: Normalization = "nmt_nfkc",
        mask_token: bool = False,
    ) -> "SentencePieceTokenizer":
        """Learns the pieces from texts, in memory; equal arguments give equal bytes.

        Runs of white space become one space and white space at the ends goes, in
        training and in `encode`.

        Args:
            texts: strings, e.g. sentences; empty ones are left out.
            vocabulary_size: the most ids, special ones included. A small corpus
                gives fewer: read `vocabulary_size` of the result.
            algorithm: `"unigram"` (Kudo, 2018) or `"bpe"` (Sennrich et al., 2016).
            byte_fallback: text outside the vocabulary is written in 256 byte pieces
                instead of the unknown token.
            character_coverage: share of the characters' mass that gets pieces of its
                own; below 1.0 for large alphabets, such as 0.9995 for Japanese.
            normalization: `"nmt_nfkc"` is Unicode NFKC with white space made
                uniform, `"nmt_nfkc_cf"` lower-cases too, `"identity"` changes no
                character.
            mask_token: the vocabulary has a mask token, for `kzoo.MaskedLM`.

        Raises:
            TypeError: `texts` is not an iterable of `str`.
            ValueError: an unknown option; no text; or a `vocabulary_size` below the
                corpus's alphabet, whose size is named.
        """
        _check_choice("algorithm", algorithm, get_args(Algorithm))
        _check_choice("normalization", normalization, get_args(Normalization))
        texts = check_texts(texts, "SentencePieceTokenizer.train")
        texts = [text for text in texts if text.strip()]
        if not texts:
            raise ValueError(
                "SentencePieceTokenizer.train needs at least one text that is not "
                "empty. Received: none."
            )
        pad, start, end, unknown = SPECIAL_PIECES
        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(texts),
                model_writer=model,
                vocab_size=vocabulary_size,
                model_type=algorithm,
                byte_fallback=byte_fallback,
                character_coverage=character_coverage,
                normalization_rule_name=normalization,
                hard_vocab_limit=False,
                # Longer texts than this are left out without a word.
                max_sentence_length=max(
                    10, *(len(text.encode()) + 1 for text in texts)
                ),
                # The threads' partial sums are floats: with another number of
                # threads the model may differ.
                num_threads=1,
                minloglevel=2,
                pad_id=SPECIAL_IDS["pad_token_id"],
                bos_id=SPECIAL_IDS["start_token_id"],
                eos_id=SPECIAL_IDS["end_token_id"],
                unk_id=SPECIAL_IDS["unknown_token_id"],
                pad_piece=pad,
                bos_piece=start,
                eos_piece=end,
                unk_piece=unknown,
                control_symbols=[MASK_PIECE] if mask_token else [],
            )
        except RuntimeError as error:
            small = re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error))
            if small:
                raise ValueError(
                    "vocabulary_size must hold the corpus's characters and the special "
                    f"tokens: at least {small[1]}. Received: {vocabulary_size}. Raise "
                    "it, or lower character_coverage."
                ) from error
            raise ValueError(f"SentencePiece could not train: {error}") from error
        return cls(model.getvalue())

    def sampled(self, alpha: float = 0.1, seed: int = 0) -> "SentencePieceTokenizer":
        """A copy that draws how it splits a text, for training ("subword sampling").

        Paper: Kudo, 2018, https://arxiv.org/abs/1804.10959, section 3.2. A text has
        other pieces every time, so that a model learns words from all their parts. The
        copy is not made to be saved: `get_config` gives the tokenizer that it is of.

        Args:
            alpha: how sharp the draw is: 0 makes all splits alike, a large one takes
                the most probable. Of byte-pair encoding the rate of merges left out.
            seed: of the draws; every call of `encode` has others, in the same order.
        """
        twin = type(self).from_config(self.get_config())
        twin._sampling = dict(enable_sampling=True, nbest_size=-1, alpha=alpha)
        twin._sampling["num_threads"] = 1  # each would draw the same
        twin._seeds = itertools.count(seed)
        return twin

    def _drawn(self):
        """Options of the library; each of its calls begins again at the seed."""
        if self._sampling:
            sentencepiece.set_random_generator_seed(next(self._seeds))
        return self._sampling

    @property
    def vocabulary_size(self) -> int:
        """Number of ids: every id is in [0, vocabulary_size)."""
        return self._processor.get_piece_size()

    def _encode(self, texts):
        return self._processor.encode(texts, **self._drawn()) if texts else []

    def _encode_with_offsets(self, texts):
        encode = self._processor.encode_as_offset_mapping
        encoded = encode(texts, **self._drawn()) if texts else []
        for each in encoded:
            offsets, pieces = each["offsets"], each["pieces"]
            # Of the pieces that write one character the last one alone has its offsets.
            for i in reversed(range(len(offsets) - 1)):
                start, end = offsets[i]
                if start == end == offsets[i + 1][0] and pieces[i] != _SPACE:
                    offsets[i] = offsets[i + 1]
        return [each["ids"] for each in encoded], [each["offsets"] for each in encoded]

    def _encode_continued(self, texts):
        # At the start of a text the library writes a space.
        encoded = self._encode_with_offsets([_ELSEWHERE + text for text in texts])
        return [
            [token_id for token_id, (_, end) in zip(ids, offsets) if end > 1]
            for ids, offsets in zip(*encoded, strict=True)
        ]

    def _decode(self, sequences):
        return self._processor.decode(sequences) if sequences else []

    def _piece(self, token_id):
        return self._processor.id_to_piece(token_id)

    def _is_special(self, token_id):
        if token_id == self.unknown_token_id:
            return False
        return self._processor.is_control(token_id) or token_id in self._ids.values()

    def _model_bytes(self):
        return self._model

    def _model_text(self):
        return base64.b64encode(self._model).decode("ascii")

    @classmethod
    def _model_from_text(cls, text):
        return base64.b64decode(text, validate=True)

    @classmethod
    def _model_from_bytes(cls, content):
        return content


def _check_choice(name, value, choices):
    if value not in choices:
        raise ValueError(f"{name} must be one of {list(choices)}. Received: {value!r}.")
