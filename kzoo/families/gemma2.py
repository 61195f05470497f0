"""Gemma 2 (https://arxiv.org/abs/2408.00118)."""

from dataclasses import replace

from kzoo.checkpoints.hf_config import Key, Only, Rule, activation, special_ids
from kzoo.checkpoints.hf_positions import full_every, rotary, window
from kzoo.checkpoints.naming import decoder_heads, layers
from kzoo.families.llama import LLAMA, RULES

SHARED = (
    *RULES,
    Key("tie_word_embeddings", "tie_head", True),
    activation("hidden_activation", "gelu_pytorch_tanh"),
    Key("num_key_value_heads", "num_key_value_heads", 4),
    Key("head_dim", "head_dim", 256),
    Key("attention_bias", "attention_bias attention_output_bias", False),
    Only("use_bidirectional_attention", None, (False,)),
    Rule(
        ("query_pre_attn_scalar",),
        lambda keys: {
            "attention_scale": keys.get("query_pre_attn_scalar", 256) ** -0.5
        },
        lambda field_of: {
            "query_pre_attn_scalar": round(field_of("attention_scale") ** -2)
        },
    ),
    Rule(
        ("hidden_size",), lambda keys: {"embedding_scale": keys["hidden_size"] ** 0.5}
    ),
    special_ids(pad=0, start=2, end=1),
)

GEMMA2 = replace(
    LLAMA,
    model_type="gemma2",
    fixed={
        **LLAMA.fixed,
        "norm": "offset_rms_norm",
        "norm_position": "both",
        "use_bias": False,
    },
    rules=(
        *SHARED,
        Key("max_position_embeddings", "max_sequence_length", 8192),
        Key("attn_logit_softcapping", "attention_soft_cap", 50.0),
        Key("final_logit_softcapping", "head_soft_cap", 30.0),
        window(default=4096, types=full_every(2)),
        rotary(),
    ),
    modules={
        **LLAMA.modules,
        **layers(
            "decoder",
            "layers.{i}",
            self_attention_output_norm="post_attention_layernorm",
            feed_forward_norm="pre_feedforward_layernorm",
            feed_forward_output_norm="post_feedforward_layernorm",
        ),
    },
    heads=decoder_heads("Gemma2", answers=None),
    irrelevant={"hidden_act"},  # the class reads hidden_activation
)

FAMILIES = {"gemma2": GEMMA2}
