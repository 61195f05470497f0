"""Marian (Junczys-Dowmunt et al., 2018, https://arxiv.org/abs/1804.00344), OPUS-MT."""

import numpy as np

from kzoo.checkpoints.hf_config import Rule, Unsupported
from kzoo.families.bart import named_alike
from kzoo.families.fairseq import RULES, rules

KEYS = (
    "vocab_size",
    "decoder_vocab_size",
    "share_encoder_decoder_embeddings",
    "tie_word_embeddings",
)


def _vocabularies(keys):
    share = keys.get("share_encoder_decoder_embeddings", True)
    tied = keys.get("tie_word_embeddings", True)
    if share and not tied:
        raise Unsupported(
            "tie_word_embeddings=False goes with share_encoder_decoder_embeddings="
            "False alone: transformers would share no table."
        )
    size = keys["vocab_size"]
    return {
        "encoder.vocabulary_size": size,
        "decoder.vocabulary_size": keys.get("decoder_vocab_size") or size,
        "share_embeddings": share,
        "tie_head": tied,
    }


VOCABULARIES = Rule(
    KEYS,
    _vocabularies,
    lambda field_of: {
        "vocab_size": field_of("encoder.vocabulary_size"),
        "decoder_vocab_size": field_of("decoder.vocabulary_size"),
        "share_encoder_decoder_embeddings": field_of("share_embeddings"),
        "tie_word_embeddings": field_of("tie_head"),
    },
)
SINUSOIDAL = dict(
    positions="sinusoidal",
    sinusoidal_layout="halves",
    first_position=0,
    embedding_norm=False,
)


def sines(shape):
    """The table of the layout `halves` that a checkpoint may hold: float64 (T, D)."""
    length, width = shape
    half = (width + 1) // 2
    wavelengths = 10_000.0 ** (np.arange(half) / (width / 2))
    angles = np.arange(length)[:, None] / wavelengths
    return np.concatenate([np.sin(angles), np.cos(angles)], -1)[:, :width]


TABLES = {r".*coder\.embed_positions\.weight": sines}

MARIAN = named_alike(
    "marian",
    "MarianMTModel",
    fixed=SINUSOIDAL,
    rules=rules(
        dict(pad=58100, start=58100, end=0),
        pre_norm=False,
        embedding_norm=False,
        sines=True,
        keys=(VOCABULARIES, *(rule for rule in RULES if rule.names[0] not in KEYS)),
    ),
    tokenizer="marian",
    searches={"forced_eos_token_id": 0},
    computed=TABLES,
)

FAMILIES = {"marian": MARIAN}
