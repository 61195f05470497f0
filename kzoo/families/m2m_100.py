"""M2M-100 (Fan et al., 2021, https://arxiv.org/abs/2010.11125) and NLLB (2022).

https://arxiv.org/abs/2207.04672
"""

import dataclasses

from kzoo.checkpoints.hf_config import Rule, activation, special_ids
from kzoo.checkpoints.table import Head
from kzoo.families.bart import BART
from kzoo.families.fairseq import dimensions, scaled

FIRST_POSITION = Rule(  # numbers up to that of padding stand for padding
    ("pad_token_id",),
    lambda keys: {"first_position": keys.get("pad_token_id", 1) + 1},
    lambda field_of: {"pad_token_id": field_of("first_position") - 1},
)

M2M_100 = dataclasses.replace(
    BART,
    model_type="m2m_100",
    fixed=dict(
        positions="sinusoidal",
        sinusoidal_layout="tensor2tensor",
        norm_epsilon=1e-5,
        share_embeddings=True,
        initializer="truncated_normal",
    ),
    rules=(
        *dimensions(attention_dropout=0.1),
        activation("activation_function", "relu"),
        scaled(True),
        FIRST_POSITION,
        special_ids(pad=1, start=2, end=2, start_key="decoder_start_token_id"),
    ),
    heads={"Seq2SeqLM": Head("M2M100ForConditionalGeneration", {"head": "lm_head"})},
    tokenizer=("m2m100", "fairseq_sentencepiece"),  # NLLB's is the second
    searches={},
    ignored=(r".*coder\.embed_positions\.weights", r".*coder\.version"),
)

FAMILIES = {"m2m_100": M2M_100}
