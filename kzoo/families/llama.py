"""Llama 2 and 3 (https://arxiv.org/abs/2307.09288, https://arxiv.org/abs/2407.21783).

Also SmolLM; the base of other decoders with rotary positions and a gate.
"""

from dataclasses import replace

from kzoo.checkpoints.hf_config import (
    Key,
    Only,
    activation,
    full_attention,
    rotary,
    special_ids,
)
from kzoo.checkpoints.table import Family, Head

LAYER = "layers.{i}"
ATTENTION = "decoder/layer_{i}/self_attention"

RULES = (
    Key("vocab_size", "vocabulary_size"),
    Key("hidden_size", "hidden_dim"),
    Key("num_hidden_layers", "num_layers"),
    Key("num_attention_heads", "num_heads"),
    Key("intermediate_size", "intermediate_dim"),
    Key("attention_dropout", "attention_dropout", 0.0),
    Key("initializer_range", "initializer_range", 0.02),
    Key("rms_norm_eps", "norm_epsilon", 1e-6),
    Key("tie_word_embeddings", "tie_head", False),
)
# The last token's state and a linear layer; transformers has no dropout there.
SCORE = Head(
    "LlamaForSequenceClassification",
    {"head/output": "score"},
    {"pooling": "last", "head_use_bias": False, "head_dropout": 0.0},
)


def heads(name, other=None):
    """The heads that transformers has of a decoder, by the names of its classes."""
    other = other or name
    return {
        "CausalLM": Head(f"{name}ForCausalLM", {"head": "lm_head"}),
        "TextClassifier": replace(
            SCORE, architecture=f"{other}ForSequenceClassification"
        ),
        "SentenceEmbedder": Head(f"{other}Model", options={"pooling": "last"}),
    }


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
    heads=heads("Llama"),
    prefix="model.",
    irrelevant={
        "is_llama_config",  # of SmolLM's training code
        "max_sequence_length",  # of early conversions; the class has no such key
    },
    ignored=(r".*rotary_emb\.inv_freq",),
)

FAMILIES = {"llama": LLAMA}
