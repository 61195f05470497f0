"""SentencePiece tokenizers: unigram and byte-pair encoding in one `.model` file."""

import base64
import io
import itertools
import math
import re
from collections.abc import Iterable
from typing import Literal, get_args

import sentencepiece

from kzoo.arguments import check_choice, check_count, is_number
from kzoo.tokenizers.base import Tokenizer
from kzoo.tokenizers.conventions import MASK_PIECE, SPECIAL_IDS, SPECIAL_PIECES
from kzoo.tokenizers.texts import check_texts

Algorithm = Literal["unigram", "bpe"]
Normalization = Literal["nmt_nfkc", "nmt_nfkc_cf", "identity"]

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # what SentencePiece writes for one
_CODE = re.compile(r">>(?s:.*?)<<")  # of the language that Marian writes
_ELSEWHERE = "\N{OBJECT REPLACEMENT CHARACTER}"  # joins no piece with its neighbour


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model (Kudo and Richardson, 2018).

    Paper: https://arxiv.org/abs/1808.06226.

    Args:
        model: the bytes of a `.model` file.
        pieces: the piece of each id, or `None` for none, where ids are not the model's
            own; what the model writes and these lack is the unknown token.
        target_model: bytes (or base64) of a second model, for what is generated; of
            such a pair of models ids are of both, and a text may begin with a code
            like ">>deu<<", one piece.
        special_token_ids: more ids that write no text.
        conventions: see `Tokenizer`.
        **special_ids: `pad_token_id`, `start_token_id`, `end_token_id`,
            `unknown_token_id` and `mask_token_id`; those left out are read from the
            model.

    Raises:
        TypeError: `model` is not bytes.
        ValueError: `model` is not a SentencePiece model.
    """

    options = ("pieces", "target_model", "special_token_ids")

    kind = "sentencepiece"
    file_name = "tokenizer.model"
    mask_takes_space = True

    def __init__(
        self,
        model: bytes,
        *,
        pieces=None,
        target_model=None,
        special_token_ids=(),
        conventions=None,
        **special_ids,
    ):
        self._processor = _processor(model)
        self._target = self._processor
        self.target_model = target_model
        if target_model is not None:
            if isinstance(target_model, bytes):
                self.target_model = base64.b64encode(target_model).decode("ascii")
            self._target = _processor(base64.b64decode(self.target_model))
        self._model, self._sampling = model, {}
        self.pieces = None if pieces is None else list(pieces)
        own = dict(
            pad_token_id=self._processor.pad_id(),
            start_token_id=self._processor.bos_id(),
            end_token_id=self._processor.eos_id(),
            unknown_token_id=self._processor.unk_id(),
        )
        mask = self._processor.piece_to_id(MASK_PIECE)
        own["mask_token_id"] = mask if self._processor.is_control(mask) else -1
        own = {name: None if id_ < 0 else id_ for name, id_ in own.items()}
        if pieces is not None:
            own = dict.fromkeys(own)
        super().__init__(**{**own, **special_ids}, conventions=conventions)
        self.special_token_ids = sorted(special_token_ids)
        self._tables = [None, None]
        if pieces is not None:
            if self.unknown_token_id is None:
                raise ValueError("pieces need an unknown_token_id for what they lack.")
            self._ids_of = {p: i for i, p in reversed([*enumerate(self.pieces)])}
            self._tables = [self._table(p) for p in (self._processor, self._target)]
        self._special = {*self.special_token_ids, *self._ids.values()}
        for token_id in range(self.vocabulary_size):
            own_id = self._processor.piece_to_id(self._piece(token_id))
            if self._processor.is_control(own_id):
                self._special.add(token_id)
        gaps = (i for i, piece in enumerate(self.pieces or ()) if piece is None)
        self._special.update(gaps)
        self._special -= {None, self.unknown_token_id}

    def _table(self, processor):
        """The id of each of a model's own."""
        known = (processor.id_to_piece(i) for i in range(processor.get_piece_size()))
        return [self._ids_of.get(piece, self.unknown_token_id) for piece in known]

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
        max_piece_length: int = 16,
        across_words: bool = False,
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
                own, 0.98 to 1; less than 1 for large alphabets, such as 0.9995 for
                Japanese.
            normalization: `"nmt_nfkc"` is Unicode NFKC with white space made
                uniform, `"nmt_nfkc_cf"` lower-cases too, `"identity"` changes no
                character.
            mask_token: the vocabulary has a mask token, for `kzoo.MaskedLM`.
            max_piece_length: the most characters of a piece.
            across_words: a piece may hold several words, such as "not very good".

        Raises:
            TypeError: `texts` is not an iterable of `str`.
            ValueError: an unknown option; no text; or a `vocabulary_size` below the
                corpus's alphabet, whose size is named.
        """
        check_choice("algorithm", algorithm, get_args(Algorithm))
        check_choice("normalization", normalization, get_args(Normalization))
        if not (is_number(character_coverage) and 0.98 <= character_coverage <= 1):
            raise ValueError(
                "character_coverage must be a number from 0.98, the least that "
                f"SentencePiece takes, to 1. Received: {character_coverage!r}."
            )
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
                max_sentencepiece_length=max_piece_length,
                split_by_whitespace=not across_words,
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
                Another process has others still: the library adds something of its own
                to a seed. What has to be repeated there is kept in a file.

        Raises:
            ValueError: `alpha` is negative or not finite, or `seed` no integer from 0
                to 2**32 - 1.
        """
        if not 0 <= alpha < math.inf:
            raise ValueError(f"alpha must be 0 or more. Received: {alpha!r}.")
        check_count("seed", seed, 0, 2**32 - 1)
        twin = type(self).from_config(self.get_config())
        twin._sampling = dict(enable_sampling=True, nbest_size=-1, alpha=alpha)
        twin._sampling["num_threads"] = 1  # each would draw the same
        twin._seeds = itertools.count(seed)
        return twin

    def _drawn(self):
        """Options of the library; each of its calls begins again at the seed."""
        if self._sampling:
            sentencepiece.set_random_generator_seed(next(self._seeds) % 2**32)
        return self._sampling

    @property
    def vocabulary_size(self) -> int:
        """Number of ids: every id is in [0, vocabulary_size)."""
        if self.pieces is not None:
            return len(self.pieces)
        return self._processor.get_piece_size()

    def token_id(self, piece: str) -> int | None:
        """The id of a piece as the vocabulary writes it, or `None`."""
        if self.pieces is not None:
            return self._ids_of.get(piece)
        found = self._processor.piece_to_id(piece)
        return found if self._processor.id_to_piece(found) == piece else None

    def _encode(self, texts):
        return self._encoded(self._processor, self._tables[0], texts)

    def _encode_targets(self, texts):
        return self._encoded(self._target, self._tables[1], texts)

    def _encoded(self, processor, table, texts):
        """A model's pieces of texts, under our ids."""
        codes, texts = self._codes(texts)
        encoded = processor.encode(texts, **self._drawn()) if texts else []
        if table is None:
            return encoded
        return [[*code, *(table[i] for i in ids)] for code, ids in zip(codes, encoded)]

    def _codes(self, texts):
        """Lists: the ids of the code in front of each text, and the texts behind."""
        ids, behind = [[] for _ in texts], list(texts)
        for i, text in enumerate(texts if self.target_model is not None else ()):
            if code := _CODE.match(text):
                ids[i] = [self._ids_of.get(code[0], self.unknown_token_id)]
                behind[i] = text[code.end() :]
        return ids, behind

    def _encode_with_offsets(self, texts):
        codes, behind = self._codes(texts)
        starts = [len(a) - len(b) for a, b in zip(texts, behind, strict=True)]
        encode = self._processor.encode_as_offset_mapping
        encoded = encode(behind, **self._drawn()) if behind else []
        rows, spans = [], []
        for each, code, begin in zip(encoded, codes, starts, strict=True):
            ids, offsets, pieces = each["ids"], each["offsets"], each["pieces"]
            # Of the pieces that write one character the last one alone has its offsets.
            for i in reversed(range(len(offsets) - 1)):
                start, end = offsets[i]
                if start == end == offsets[i + 1][0] and pieces[i] != SPACE:
                    offsets[i] = offsets[i + 1]
            if self._tables[0] is not None:
                ids = [self._tables[0][i] for i in ids]
            if begin:
                offsets = [(0, begin), *((a + begin, b + begin) for a, b in offsets)]
            rows.append([*code, *ids])
            spans.append(offsets)
        return rows, spans

    def _encode_continued(self, texts):
        # At the start of a text the library writes a space.
        encoded = self._encode_with_offsets([_ELSEWHERE + text for text in texts])
        return [
            [token_id for token_id, (_, end) in zip(ids, offsets) if end > 1]
            for ids, offsets in zip(*encoded, strict=True)
        ]

    def _decode(self, sequences):
        if self.pieces is None:
            return self._processor.decode(sequences) if sequences else []
        rows = ([self._piece(i) for i in ids] for ids in sequences)
        # Of an empty list the library does not know that it is one of pieces.
        texts = [self._target.decode(row) if row else "" for row in rows]
        if self.target_model is None:
            return texts
        # Pieces of the other model are written as they are.
        return [text.replace(SPACE, " ").strip() for text in texts]

    def _piece(self, token_id):
        if self.pieces is None:
            return self._processor.id_to_piece(token_id)
        piece = self.pieces[token_id]
        return f"<{token_id}>" if piece is None else piece

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


def _processor(model):
    if not isinstance(model, bytes):
        raise TypeError(
            "SentencePieceTokenizer expects the bytes of a .model file. "
            f"Received: {type(model).__name__}."
        )
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.load_from_serialized_proto(model)
    except RuntimeError as error:
        raise ValueError(
            f"Not a SentencePiece model ({len(model)} bytes): {error}"
        ) from error
    return processor
