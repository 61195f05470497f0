"""Gemma 3, of text alone (https://arxiv.org/abs/2503.19786)."""

from dataclasses import replace

from kzoo.checkpoints.hf_config import Key, Only
from kzoo.checkpoints.hf_positions import full_every, ropes_of_types, window
from kzoo.checkpoints.naming import decoder_heads
from kzoo.families.gemma2 import GEMMA2, SHARED
from kzoo.families.llama import QUERY_KEY_NORMS

GEMMA3 = replace(
    GEMMA2,
    model_type="gemma3_text",
    fixed={**GEMMA2.fixed, "query_key_norm": True},
    rules=(
        *SHARED,
        Key("max_position_embeddings", "max_sequence_length", 131_072),
        Only("attn_logit_softcapping", None),  # the class does not read it
        Key("final_logit_softcapping", "head_soft_cap", None),
        ropes_of_types(
            window(
                default=4096,
                types=full_every(6, "sliding_window_pattern"),
            ),
            full=("rope_theta", 1e6),
            sliding=("rope_local_base_freq", 1e4),
        ),
    ),
    modules={**GEMMA2.modules, **QUERY_KEY_NORMS},
    heads=decoder_heads("Gemma3", "Gemma3Text", tagger=None, answers=None),
    irrelevant={"_sliding_window_pattern"},  # layer_types says it
)

FAMILIES = {"gemma3_text": GEMMA3}
