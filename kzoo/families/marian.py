"""Marian, as OPUS-MT (Junczys-Dowmunt et al., 2018), and Pegasus (Zhang et al., 2020).

https://arxiv.org/abs/1804.00344, https://arxiv.org/abs/1912.08777
"""

import dataclasses

from kzoo.checkpoints.hf_config import Only, Rule, Unsupported, activation, special_ids
from kzoo.families.bart import BART, RULES, older, scaled

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
TABLES = Only("static_position_embeddings", True, (None,), written=False)

MARIAN = dataclasses.replace(
    BART,
    model_type="marian",
    fixed={**BART.fixed, **SINUSOIDAL},
    rules=(
        VOCABULARIES,
        *(rule for rule in RULES if rule.names[0] not in KEYS),
        activation("activation_function", "gelu"),
        scaled(False),
        special_ids(pad=58100, start=58100, end=0, start_key="decoder_start_token_id"),
        *older(normalize_before=False, normalize_embedding=False),
        TABLES,
    ),
    heads={
        "Seq2SeqLM": dataclasses.replace(
            BART.heads["Seq2SeqLM"], architecture="MarianMTModel"
        )
    },
    tokenizer="marian",
    searches={"forced_eos_token_id": 0},
    # Stored or not, the tables of sines are what kzoo computes.
    ignored=(r".*coder\.embed_positions\.weight",),
)

PEGASUS = dataclasses.replace(
    MARIAN,
    model_type="pegasus",
    fixed={**MARIAN.fixed, "norm_position": "pre"},
    rules=(
        *RULES,
        activation("activation_function", "gelu"),
        scaled(False),
        special_ids(pad=0, start=0, end=1, start_key="decoder_start_token_id"),
        *older(normalize_before=True, normalize_embedding=False),
        TABLES,
    ),
    heads={
        "Seq2SeqLM": dataclasses.replace(
            BART.heads["Seq2SeqLM"], architecture="PegasusForConditionalGeneration"
        )
    },
    tokenizer="pegasus",
    searches={"forced_eos_token_id": 1},
)

FAMILIES = {"marian": MARIAN, "pegasus": PEGASUS}
