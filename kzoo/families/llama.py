"""Llama 2 and 3 (https://arxiv.org/abs/2307.09288, https://arxiv.org/abs/2407.21783).

Also SmolLM; the base of other decoders with rotary positions and a gate.
"""

from kzoo.checkpoints.hf_config import Key, Only, activation, rotary, special_ids
from kzoo.checkpoints.table import Family, Head

LAYER = "layers.{i}"
ATTENTION = "decoder/layer_{i}/self_attention"

RULES = (
    Key("vocab_size", "vocabulary_size"),
    Key("hidden_size", "hidden_dim"),
    Key("num_hidden_layers", "num_layers"),
    Key("num_attention_heads", "num_heads"),
    Key("intermediate_size", "intermediate_dim"),
    activation("hidden_act", "silu"),
    Key("attention_dropout", "attention_dropout", 0.0),
    Key("initializer_range", "initializer_range", 0.02),
    Key("rms_norm_eps", "norm_epsilon", 1e-6),
    Key("tie_word_embeddings", "tie_head", False),
)

LLAMA = Family(
    model_type="llama",
    architecture="decoder",
    fixed=dict(
        positions="rotary",
        norm="rms_norm",
        feed_forward="gated",
        initializer="truncated_normal",
    ),
    rules=(
        *RULES,
        Key("num_key_value_heads", "num_key_value_heads", None),
        Key("head_dim", "head_dim", None),
        Key("max_position_embeddings", "max_sequence_length", 2048),
        Key("attention_bias", "attention_bias attention_output_bias", False),
        Key("mlp_bias", "use_bias", False),
        Only("pretraining_tp", 1, (2, 4, 8)),  # of the same sums, in another order
        rotary(),
        special_ids(start=1, end=2),
    ),
    modules={
        "decoder/token_embedding": "embed_tokens",
        f"{ATTENTION}_norm": f"{LAYER}.input_layernorm",
        f"{ATTENTION}/query": f"{LAYER}.self_attn.q_proj",
        f"{ATTENTION}/key": f"{LAYER}.self_attn.k_proj",
        f"{ATTENTION}/value": f"{LAYER}.self_attn.v_proj",
        f"{ATTENTION}/output": f"{LAYER}.self_attn.o_proj",
        "decoder/layer_{i}/feed_forward_norm": f"{LAYER}.post_attention_layernorm",
        "decoder/layer_{i}/feed_forward/gate": f"{LAYER}.mlp.gate_proj",
        "decoder/layer_{i}/feed_forward/intermediate": f"{LAYER}.mlp.up_proj",
        "decoder/layer_{i}/feed_forward/output": f"{LAYER}.mlp.down_proj",
        "decoder/final_norm": "norm",
    },
    heads={"CausalLM": Head("LlamaForCausalLM", {"head": "lm_head"})},
    prefix="model.",
    ignored=(r".*rotary_emb\.inv_freq",),
)

FAMILIES = {"llama": LLAMA}
