"""SentencePiece models for the `tokenizers` library, as transformers converts them.

SentencePiece itself splits some texts otherwise: another arithmetic decides between
splits of equal score, and its rules for white space and for what NFKC joins differ. A
folder without a `tokenizer.json` is still read by its users through transformers, so
kzoo gives their ids.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from kzoo.tokenizers.sentence_piece import SPACE

_CONTROL, _USER_DEFINED = 3, 4  # types of a SentencePiece model's pieces


def _metaspace(scheme="always", split=True):
    return pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme, split=split)


def _words(scheme="always"):
    return pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), _metaspace(scheme)]
    )


class _Rules(NamedTuple):
    """How a class of transformers 5 converts a model.

    Args:
        split: from the settings to the pre-tokenizer.
        folded: characters are made uniform by the model's table.
        squeezed: spaces in a row are one.
        lines: line ends are spaces where the model has no table.
        spaced: spaces are written as the model does before texts are split.
        pairs: pairs of pieces are merged (BPE), instead of the best split of all.
        bytes: what no piece writes is written with pieces of bytes.
        unknown: the id of what cannot be written; `None` where it is looked up by its
            name, and -1 where it is left out.
        lacking: the score of pieces that the model lacks.
        symbols: those that the model's maker defined are cut out of texts first,
            unless the settings have special tokens of their own.
    """

    split: Callable[[dict], Any]
    folded: bool = True
    squeezed: bool = False
    lines: bool = False
    spaced: bool = False
    pairs: bool = False
    bytes: bool = False
    unknown: int | None = None
    lacking: float = 0.0
    symbols: bool = True


def _prefixed(settings):
    """Whether Llama's class puts a space in front."""
    said = settings.get("add_prefix_space")
    return said is None or bool(said)


def _llama(settings):
    scheme = "always" if settings.get("legacy") else "first"
    return _metaspace(scheme if _prefixed(settings) else "never", split=False)


def _xlm_roberta(settings):
    return _words("always" if settings.get("add_prefix_space", True) else "never")


_RULES = {
    "T5": _Rules(lambda _: _words(), unknown=2),
    "XLMRoberta": _Rules(_xlm_roberta, unknown=3),
    "MBart": _Rules(lambda _: _words(), folded=False, unknown=3),
    "MBart50": _Rules(lambda _: _metaspace(), squeezed=True, unknown=3),
    "Pegasus": _Rules(
        lambda _: _metaspace(),
        squeezed=True,
        lines=True,
        lacking=-100.0,
        symbols=False,
    ),
    "Nllb": _Rules(lambda _: _metaspace(), squeezed=True, pairs=True, symbols=False),
    "Llama": _Rules(_llama, folded=False, pairs=True, bytes=True, unknown=-1),
    "Gemma": _Rules(
        lambda _: pre_tokenizers.Split(" ", "merged_with_previous"),
        folded=False,
        spaced=True,
        pairs=True,
        bytes=True,
    ),
}
CLASSES = tuple(_RULES)


def converted(model, pieces, name, settings, unknown, symbols=True):
    """A tokenizer of the library.

    Args:
        model: bytes of the SentencePiece model.
        pieces: list, the piece of each id, or `None`; those that the model lacks are
            special.
        name: one of `CLASSES`.
        settings: of `tokenizer_config.json`, of which `add_prefix_space` and `legacy`
            decide where a space is put in front.
        unknown: the piece that stands for what cannot be written.
        symbols: whether those that the model's maker defined are cut out of texts, if
            the class does so.

    Returns:
        `tokenizers.Tokenizer`, without a template.
    """
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    rules, table = _RULES[name], proto.normalizer_spec.precompiled_charsmap
    ids_of = {piece: i for i, piece in reversed([*enumerate(pieces)])}
    ids_of.pop(None, None)
    if rules.pairs:
        merges = _merges({piece.piece: i for i, piece in enumerate(proto.pieces)})
        of_library = models.BPE(
            vocab=ids_of,
            merges=merges,
            unk_token=unknown if rules.unknown is None else None,
            fuse_unk=True,
            byte_fallback=rules.bytes,
        )
    else:
        scores = {piece.piece: piece.score for piece in proto.pieces}
        vocabulary = [
            (f" {i} " if piece is None else piece, scores.get(piece, rules.lacking))
            for i, piece in enumerate(pieces)
        ]
        place = ids_of[unknown] if rules.unknown is None else rules.unknown
        of_library = models.Unigram(vocabulary, unk_id=place)
    library = tokenizers.Tokenizer(of_library)
    steps = [normalizers.Precompiled(table)] if rules.folded and table else []
    if rules.lines and not table:
        steps.append(normalizers.Replace("\n", " "))
    if rules.squeezed and (table or not rules.pairs):
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
    if rules.spaced:
        steps.append(normalizers.Replace(" ", SPACE))
    if steps:
        library.normalizer = normalizers.Sequence(steps)
    library.pre_tokenizer = rules.split(settings)
    if rules.bytes:
        space, strip = decoders.Replace(SPACE, " "), decoders.Strip(" ", 1, 0)
        decoder = [space, decoders.ByteFallback(), decoders.Fuse()]
        decoder += [strip] if _prefixed(settings) and not rules.spaced else []
        library.decoder = decoders.Sequence(decoder)
    else:
        library.decoder = decoders.Metaspace(SPACE, prepend_scheme="always")
    added = (_CONTROL, _USER_DEFINED) if rules.symbols and symbols else (_CONTROL,)
    library.add_tokens(
        [
            AddedToken(piece.piece, normalized=False, special=piece.type == _CONTROL)
            for piece in proto.pieces
            if piece.type in added and piece.piece in ids_of
        ]
    )
    return library


def _merges(ids_of):
    """All pairs of pieces that make a piece; those of low ids come first."""
    found = [
        (token_id, left, right)
        for piece, token_id in ids_of.items()
        for i in range(1, len(piece))
        if (left := piece[:i]) in ids_of and (right := piece[i:]) in ids_of
    ]
    found.sort(key=lambda pair: (pair[0], len(pair[1]), len(pair[2])))
    return [(left, right) for _, left, right in found]
