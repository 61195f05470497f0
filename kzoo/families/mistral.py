"""Mistral (Jiang et al., 2023, https://arxiv.org/abs/2310.06825)."""

from dataclasses import replace

from kzoo.checkpoints.hf_config import Key, activation, special_ids
from kzoo.checkpoints.hf_positions import rotary, window
from kzoo.checkpoints.naming import decoder_heads
from kzoo.families.llama import LLAMA, RULES

MISTRAL = replace(
    LLAMA,
    model_type="mistral",
    fixed={**LLAMA.fixed, "use_bias": False},
    rules=(
        *RULES,
        activation("hidden_act", "silu"),
        Key("num_key_value_heads", "num_key_value_heads", 8),
        Key("head_dim", "head_dim", None),
        Key("max_position_embeddings", "max_sequence_length", 4096 * 32),
        window(default=4096),
        rotary(),
        special_ids(start=1, end=2),
    ),
    heads=decoder_heads("Mistral", answers="model."),
    irrelevant=set(),
)

FAMILIES = {"mistral": MISTRAL}
