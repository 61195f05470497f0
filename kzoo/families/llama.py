"""Llama 2 and 3 (https://arxiv.org/abs/2307.09288, https://arxiv.org/abs/2407.21783).

Also SmolLM; the base of other decoders with rotary positions and a gate.
"""

from kzoo.checkpoints.hf_config import Key, Only, activation, dimensions, special_ids
from kzoo.checkpoints.hf_positions import full_attention, rotary
from kzoo.checkpoints.naming import decoder_heads, layers
from kzoo.checkpoints.table import Family

RULES = (
    *dimensions(),
    Key("attention_dropout", "attention_dropout", 0.0),
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
        activation("hidden_act", "silu"),
        Key("num_key_value_heads", "num_key_value_heads", None),
        Key("head_dim", "head_dim", None),
        Key("max_position_embeddings", "max_sequence_length", 2048),
        Key("attention_bias", "attention_bias attention_output_bias", False),
        Key("mlp_bias", "use_bias", False),
        Only("pretraining_tp", 1, (2, 4, 8)),  # of the same sums, in another order
        Only("rope_interleaved", False),
        full_attention(),
        rotary(),
        special_ids(start=1, end=2),
    ),
    modules={
        "decoder/token_embedding": "embed_tokens",
        **layers(
            "decoder",
            "layers.{i}",
            self_attention_norm="input_layernorm",
            self_attention="self_attn.{q,k,v,o}_proj",
            feed_forward_norm="post_attention_layernorm",
            feed_forward="mlp.{gate,up,down}_proj",
        ),
        "decoder/final_norm": "norm",
    },
    heads=decoder_heads("Llama"),
    prefix="model.",
    irrelevant={
        "is_llama_config",  # of SmolLM's training code
        "max_sequence_length",  # of early conversions; the class has no such key
    },
    ignored=(r".*rotary_emb\.inv_freq",),
)

# Of families that norm queries and keys.
QUERY_KEY_NORMS = layers(
    "decoder",
    "layers.{i}",
    **{
        f"self_attention/{own}_norm": f"self_attn.{own[0]}_norm"
        for own in ("query", "key")
    },
)

FAMILIES = {"llama": LLAMA}
