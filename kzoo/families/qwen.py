"""Qwen 2, 2.5 and 3 (https://arxiv.org/abs/2412.15115, https://arxiv.org/abs/2505.09388)."""

from dataclasses import replace

from kzoo.checkpoints.hf_config import Key, Only, activation, special_ids
from kzoo.checkpoints.hf_positions import rotary, window
from kzoo.checkpoints.naming import decoder_heads
from kzoo.families.llama import LLAMA, QUERY_KEY_NORMS, RULES


def _types(keys):
    first = keys.get("max_window_layers", 28)
    return [
        "full_attention" if i < first else "sliding_attention"
        for i in range(keys["num_hidden_layers"])
    ]


QWEN2 = replace(
    LLAMA,
    model_type="qwen2",
    fixed={
        **LLAMA.fixed,
        "use_bias": False,
        "attention_bias": True,
        "attention_output_bias": False,
    },
    rules=(
        *RULES,
        activation("hidden_act", "silu"),
        Key("num_key_value_heads", "num_key_value_heads", 32),
        Key("max_position_embeddings", "max_sequence_length", 32768),
        Only("use_mrope", False),
        window(
            default=4096,
            switch="use_sliding_window",
            types=(("max_window_layers",), _types),
        ),
        rotary(),
        special_ids(),
    ),
    heads=decoder_heads("Qwen2"),
    tokenizer="byte_bpe",
    irrelevant=set(),
)
QWEN3 = replace(
    QWEN2,
    model_type="qwen3",
    fixed={**LLAMA.fixed, "use_bias": False, "query_key_norm": True},
    rules=(
        *QWEN2.rules,
        Key("head_dim", "head_dim", 128),
        Key("attention_bias", "attention_bias attention_output_bias", False),
    ),
    modules={**LLAMA.modules, **QUERY_KEY_NORMS},
    heads=decoder_heads("Qwen3"),
)

FAMILIES = {"qwen2": QWEN2, "qwen3": QWEN3}
