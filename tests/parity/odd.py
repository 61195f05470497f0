"""Odd but legal values of config keys, by row, and values that kzoo has to refuse."""

ACTIVATIONS = ["relu", "gelu", "gelu_new", "silu", "swish", "tanh", "gelu_pytorch_tanh"]
EPSILONS = [1e-12, 1e-6, 1e-3]
BOTH = [False, True]


def rope(**more):
    return {"rope_theta": 700.0, "rope_type": "default", **more}


ROPES = [
    rope(),
    rope(rope_theta=10_000.0),
    rope(rope_type="linear", factor=3.0),
    rope(
        rope_type="llama3",
        factor=4.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=24,
    ),
    rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=16),
    rope(
        rope_type="yarn",
        factor=2.0,
        original_max_position_embeddings=32,
        beta_fast=16.0,
        attention_factor=1.2,
    ),
]
BERT = {
    "hidden_act": ACTIVATIONS,
    "tie_word_embeddings": BOTH,
    "layer_norm_eps": EPSILONS,
    "num_attention_heads": [1, 2, 8],
    "intermediate_size": [8, 50],
    "num_hidden_layers": [1, 3],
}
LLAMA = {
    "hidden_act": ACTIVATIONS,
    "rms_norm_eps": EPSILONS,
    "num_key_value_heads": [1, 2, 4],
    "head_dim": [4, 10, 16],
    "tie_word_embeddings": BOTH,
    "rope_parameters": ROPES,
}
WINDOWS = {
    "use_sliding_window": BOTH,
    "sliding_window": [3, 5],
    "max_window_layers": [0, 2, 4],
}
BART = {
    "activation_function": ACTIVATIONS,
    "scale_embedding": BOTH,
    "encoder_layers": [1, 3],
    "decoder_layers": [1, 3],
    "encoder_attention_heads": [2, 8],
    "decoder_attention_heads": [1, 4],
    "encoder_ffn_dim": [24, 40],
    "decoder_ffn_dim": [24, 56],
}
T5 = {
    "layer_norm_epsilon": EPSILONS,
    "d_kv": [4, 10],
    "num_decoder_layers": [1, 3],
    "relative_attention_num_buckets": [8, 16],
    "relative_attention_max_distance": [20, 64],
    "feed_forward_proj": ["relu", "gated-gelu", "gated-silu", "gelu"],
}
# By model_type; the row is the first one of it.
LEGAL = {
    "albert": {
        **BERT,
        "embedding_size": [8, 32],
        "num_hidden_layers": [2, 4],
        "num_hidden_groups": [1, 2],
    },
    "bart": BART,
    "bert": {**BERT, "type_vocab_size": [1, 3]},
    "distilbert": {
        "activation": ["relu", "gelu"],
        "n_heads": [1, 8],
        "hidden_dim": [40],
    },
    "electra": {**BERT, "embedding_size": [8, 32]},
    "gemma2": {
        **{k: v for k, v in LLAMA.items() if k != "hidden_act"},
        "layer_types": [["full_attention"] * 4, ["sliding_attention"] * 4],
        "hidden_activation": ["gelu", "gelu_pytorch_tanh", "relu"],
        "query_pre_attn_scalar": [4, 20],
        "attn_logit_softcapping": [None, 3.0],
        "final_logit_softcapping": [None, 4.0],
        "sliding_window": [3, 6],
        "attention_bias": BOTH,
    },
    "gemma3_text": {
        "rope_parameters": [
            {"full_attention": full, "sliding_attention": rope(rope_theta=50.0)}
            for full in ROPES
        ],
        "layer_types": [["full_attention"] * 4, ["sliding_attention"] * 4],
        "hidden_activation": ["gelu", "gelu_pytorch_tanh", "relu"],
        "attention_bias": BOTH,
        "tie_word_embeddings": BOTH,
        "final_logit_softcapping": [None, 4.0],
        "rms_norm_eps": EPSILONS,
        "num_key_value_heads": [1, 4],
        "head_dim": [4, 10],
        "query_pre_attn_scalar": [4, 20],
        "sliding_window": [3, 6],
    },
    "gpt2": {
        "activation_function": ACTIVATIONS,
        "layer_norm_epsilon": EPSILONS,
        "n_inner": [None, 40],
        "n_head": [1, 8],
        "tie_word_embeddings": BOTH,
    },
    "gpt_neox": {
        "hidden_act": ["relu", "gelu", "gelu_new"],
        "layer_norm_eps": EPSILONS,
        "use_parallel_residual": BOTH,
        "attention_bias": BOTH,
        "tie_word_embeddings": BOTH,
        "num_attention_heads": [2, 4],
        "rope_parameters": [
            {**scaled, "partial_rotary_factor": part}
            for scaled in ROPES
            for part in (0.25, 0.5)
        ],
    },
    "llama": {**LLAMA, "attention_bias": BOTH, "mlp_bias": BOTH},
    "m2m_100": BART,
    "marian": BART,
    "mbart": BART,
    "mistral": {**LLAMA, "sliding_window": [None, 3, 5]},
    "modernbert": {
        "hidden_activation": ["gelu", "relu", "silu"],
        "norm_eps": EPSILONS,
        "norm_bias": BOTH,
        "attention_bias": BOTH,
        "mlp_bias": BOTH,
        "local_attention": [4, 8],
    },
    "mt5": T5,
    "opt": {
        "activation_function": ["relu", "gelu"],
        "do_layer_norm_before": BOTH,
        "enable_bias": BOTH,
        "tie_word_embeddings": BOTH,
        "ffn_dim": [24, 40],
        "num_attention_heads": [1, 8],
    },
    "pegasus": BART,
    "phi3": {
        **{k: v for k, v in LLAMA.items() if k != "head_dim"},
        "rope_parameters": [rope(), rope(partial_rotary_factor=0.25)],
        "sliding_window": [None, 3],
    },
    "qwen2": {**{k: v for k, v in LLAMA.items() if k != "head_dim"}, **WINDOWS},
    "qwen3": {**LLAMA, **WINDOWS, "attention_bias": BOTH},
    "roberta": BERT,
    "t5": T5,
    "xlm-roberta": BERT,
}
DYNAMIC = rope(rope_type="dynamic", factor=2.0)
# Of these families transformers turns whole heads, and does not read the key.
PART = {"partial_rotary_factor": 0.5}
# Refused, whatever else the config says.
ILLEGAL_EVERYWHERE = {
    "a_key_of_tomorrow": True,
    "quantization_config": {"quant_method": "gptq", "bits": 4},
}
SHORT = ["sliding_attention"]  # one type, of more layers
ILLEGAL = {
    "albert": {"inner_group_num": 2, "hidden_act": "mish"},
    "bart": {"activation_function": "mish"},
    "bert": {"hidden_act": "mish", "position_embedding_type": "relative_key"},
    "distilbert": {"activation": "mish"},
    "electra": {"hidden_act": "mish", "position_embedding_type": "relative_key"},
    "gemma2": {"hidden_activation": "mish", **PART, "layer_types": 9 * SHORT},
    "gemma3_text": {"use_bidirectional_attention": True, "layer_types": []},
    "gpt2": {"scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False},
    "gpt_neox": {"hidden_act": "mish"},
    "llama": {"hidden_act": "mish", **PART, "rope_parameters": DYNAMIC},
    "m2m_100": {"activation_function": "mish"},
    "marian": {"activation_function": "mish"},
    "mbart": {"activation_function": "mish"},
    "mistral": {
        "hidden_act": "mish",
        **PART,
        "rope_parameters": DYNAMIC,
        "layer_types": SHORT,
    },
    "modernbert": {"hidden_activation": "mish", "layer_types": []},
    "mt5": {"dense_act_fn": "mish"},
    "opt": {"word_embed_proj_dim": 16, "layer_norm_elementwise_affine": False},
    "pegasus": {"activation_function": "mish"},
    "phi3": {
        "rope_parameters": rope(
            rope_type="longrope", short_factor=[1.0] * 4, long_factor=[2.0] * 4
        )
    },
    "qwen2": {**PART, "rope_parameters": DYNAMIC, "layer_types": "sliding_attention"},
    "qwen3": {**PART, "rope_parameters": DYNAMIC, "layer_types": SHORT},
    "roberta": {"hidden_act": "mish"},
    "t5": {"dense_act_fn": "mish"},
    "xlm-roberta": {"hidden_act": "mish"},
}
