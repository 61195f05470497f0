"""Phi-3 (Abdin et al., 2024, https://arxiv.org/abs/2404.14219), also Phi-4."""

from dataclasses import replace

from kzoo.checkpoints.hf_config import Key, Only, Unsupported, activation, special_ids
from kzoo.checkpoints.hf_positions import rotary, window
from kzoo.checkpoints.naming import decoder_heads, layers
from kzoo.families.llama import LLAMA, RULES


def _rope(keys):
    rope = keys.get("rope_scaling") or keys.get("rope_parameters") or {}
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind != "default":  # here "su" and "yarn" are older names of "longrope"
        raise Unsupported(f"rope_type={kind!r} is not supported. Supported: 'default'.")


PHI3 = replace(
    LLAMA,
    model_type="phi3",
    fixed={**LLAMA.fixed, "use_bias": False},
    rules=(
        *RULES,
        Key("rms_norm_eps", "norm_epsilon", 1e-5),
        activation("hidden_act", "silu"),
        Key("resid_pdrop", "dropout", 0.0),
        Key("num_key_value_heads", "num_key_value_heads", None),
        Key("max_position_embeddings", "max_sequence_length", 4096),
        Only("attention_bias", False),
        Only("mlp_bias", False),
        Only("lm_head_bias", False),
        window(),
        rotary(part="partial_rotary_factor"),
        special_ids(pad=32000, start=1, end=32000),
    ),
    modules={
        **LLAMA.modules,
        **layers(
            "decoder",
            "layers.{i}",
            self_attention="self_attn.{qkv,qkv,qkv,o}_proj",
            feed_forward="mlp.{gate_up,gate_up,down}_proj",
        ),
    },
    heads=decoder_heads("Phi3", answers=None),
    irrelevant={
        "embd_pdrop",  # kzoo has one rate for what is added to the residual stream
        "full_attn_mod",  # no class reads these two
        "interpolate_factor",
    },
    checks=(_rope,),
)

FAMILIES = {"phi3": PHI3}
