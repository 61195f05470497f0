"""Decoders, see `row`."""

from tests.parity.row import SMALL, row

DECODER = dict(
    **SMALL, intermediate_size=48, num_key_value_heads=2, max_position_embeddings=64,
    bos_token_id=1, eos_token_id=2, pad_token_id=0,
)  # fmt: skip

DECODERS = {
    "gpt2": row(
        "GPT2Config",
        "GPT2LMHeadModel",
        "causal_lm",
        dict(
            vocab_size=97,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=64,
            bos_token_id=1,
            eos_token_id=1,
            pad_token_id=0,
        ),
    ),  # fmt: skip
    "llama": row(
        "LlamaConfig",
        "LlamaForCausalLM",
        "causal_lm",
        DECODER,
        generation=dict(
            eos_token_id=[2, 60, 81],
            max_length=20,
            do_sample=False,
            repetition_penalty=1.3,
        ),
    ),
    "llama3": row(
        "LlamaConfig",
        "LlamaForCausalLM",
        "causal_lm",
        {
            **DECODER,
            "tie_word_embeddings": True,
            "head_dim": 12,
            "attention_bias": True,
            "rms_norm_eps": 1e-4,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
    ),
}
