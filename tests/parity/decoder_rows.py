"""Decoders, see `row`."""

from tests.parity.row import SMALL, row

DECODER = dict(
    **SMALL, intermediate_size=48, num_key_value_heads=2, max_position_embeddings=64,
    bos_token_id=1, eos_token_id=2, pad_token_id=0,
)  # fmt: skip

SCORED = dict(num_labels=3, id2label={0: "a", 1: "b", 2: "c"})
YARN = {"rope_type": "yarn", "rope_theta": 300.0, "factor": 4.0}


def decoder(config_class, name, config, generation=None, **changes):
    """A row of a class of transformers: a language model."""
    config = {**config, **changes}
    said = {"generation": generation} if generation else {}
    return row(config_class, f"{name}ForCausalLM", "causal_lm", config, **said)


def classifier(config_class, name, config, **changes):
    """A row of a class of transformers: a classifier of texts."""
    config = {**config, **SCORED, **changes}
    return row(
        config_class, f"{name}ForSequenceClassification", "text_classifier", config
    )


def tagger(config_class, name, config):
    """A row of a class of transformers: classes of tokens."""
    config = {**config, **SCORED, "classifier_dropout": 0.2}
    return row(
        config_class, f"{name}ForTokenClassification", "token_classifier", config
    )


def reader(config_class, name, config):
    """A row of a class of transformers: answers to questions."""
    kind = f"{name}ForQuestionAnswering"
    end = config["eos_token_id"]
    return row(config_class, kind, "question_answering", config, end=end)


def llama(**changes):
    return decoder("LlamaConfig", "Llama", DECODER, **changes)


GPT2 = dict(
    vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=1,
    eos_token_id=1, pad_token_id=0,
)  # fmt: skip
NEOX = {
    **DECODER,
    "rope_parameters": {"rope_theta": 300.0, "partial_rotary_factor": 0.5},
    "layer_norm_eps": 1e-3,
}
NEOX.pop("num_key_value_heads")
OPT = dict(
    **SMALL, ffn_dim=48, max_position_embeddings=40, bos_token_id=2, eos_token_id=2,
    pad_token_id=1,
)  # fmt: skip
QWEN = {**DECODER, "num_hidden_layers": 4, "rms_norm_eps": 1e-3}
WINDOWS = dict(use_sliding_window=True, sliding_window=4)
GEMMA = {**QWEN, "head_dim": 12, "query_pre_attn_scalar": 20, "sliding_window": 4}
PHI = {**DECODER, "resid_pdrop": 0.1}

DECODERS = {
    "gpt2": row("GPT2Config", "GPT2LMHeadModel", "causal_lm", GPT2),
    "gpt2_untied": row(
        "GPT2Config",
        "GPT2LMHeadModel",
        "causal_lm",
        {
            **GPT2,
            "tie_word_embeddings": False,
            "n_inner": 40,
            "layer_norm_epsilon": 1e-3,
            "activation_function": "relu",
        },
    ),
    "gpt2_classifier": classifier("GPT2Config", "GPT2", GPT2),
    "gpt2_tagger": tagger("GPT2Config", "GPT2", GPT2),
    "gpt2_reader": reader("GPT2Config", "GPT2", {**GPT2, "bos_token_id": 2}),
    "gpt_neox": decoder("GPTNeoXConfig", "GPTNeoX", NEOX),
    "gpt_neox_serial": decoder(
        "GPTNeoXConfig",
        "GPTNeoX",
        NEOX,
        use_parallel_residual=False,
        attention_bias=False,
        tie_word_embeddings=True,
        hidden_act="gelu_new",
        rope_parameters={"rope_type": "linear", "rope_theta": 1000.0, "factor": 2.0},
    ),
    "gpt_neox_classifier": classifier("GPTNeoXConfig", "GPTNeoX", NEOX),
    "gpt_neox_tagger": tagger("GPTNeoXConfig", "GPTNeoX", NEOX),
    "gpt_neox_reader": reader("GPTNeoXConfig", "GPTNeoX", NEOX),
    "opt": decoder("OPTConfig", "OPT", OPT),
    "opt_post": decoder(
        "OPTConfig",
        "OPT",
        OPT,
        do_layer_norm_before=False,
        enable_bias=False,
        activation_function="gelu",
        tie_word_embeddings=False,
    ),
    "opt_bare": decoder("OPTConfig", "OPT", OPT, _remove_final_layer_norm=True),
    "opt_classifier": classifier("OPTConfig", "OPT", OPT),
    "opt_reader": reader("OPTConfig", "OPT", {**OPT, "bos_token_id": 3}),
    "llama": llama(
        generation=dict(
            eos_token_id=[2, 60, 81],
            max_length=20,
            do_sample=False,
            repetition_penalty=1.3,
        )
    ),
    "llama3": llama(
        tie_word_embeddings=True,
        head_dim=12,
        attention_bias=True,
        rms_norm_eps=1e-4,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ),
    "llama_linear": llama(
        num_key_value_heads=1,
        mlp_bias=True,
        hidden_act="gelu",
        rope_parameters={"rope_type": "linear", "rope_theta": 1000.0, "factor": 3.0},
    ),
    "llama_yarn": llama(
        num_key_value_heads=4,
        hidden_size=48,
        head_dim=16,
        rope_parameters={**YARN, "original_max_position_embeddings": 16},
    ),
    "llama_yarn_mscale": llama(
        num_key_value_heads=None,
        rope_parameters={
            **YARN,
            "original_max_position_embeddings": 32,
            "beta_fast": 4.0,
            "beta_slow": 0.5,
            "mscale": 0.7,
            "mscale_all_dim": 1.3,
            "truncate": False,
        },
    ),
    "llama_model": row("LlamaConfig", "LlamaModel", "sentence_embedder", DECODER),
    "llama_classifier": classifier("LlamaConfig", "Llama", DECODER, head_dim=6),
    "llama_tagger": tagger("LlamaConfig", "Llama", DECODER),
    "llama_reader": reader("LlamaConfig", "Llama", DECODER),
    "mistral": decoder("MistralConfig", "Mistral", DECODER, sliding_window=4),
    "mistral_full": decoder(
        "MistralConfig",
        "Mistral",
        DECODER,
        sliding_window=None,
        head_dim=10,
        num_key_value_heads=1,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    ),
    "mistral_tagger": tagger("MistralConfig", "Mistral", DECODER),
    "mistral_reader": reader("MistralConfig", "Mistral", DECODER),
    "mistral_classifier": classifier(
        "MistralConfig", "Mistral", DECODER, sliding_window=3
    ),
    "qwen2": decoder("Qwen2Config", "Qwen2", QWEN, tie_word_embeddings=True),
    "qwen2_windows": decoder(
        "Qwen2Config", "Qwen2", QWEN, max_window_layers=3, **WINDOWS
    ),
    "qwen2_classifier": classifier("Qwen2Config", "Qwen2", DECODER),
    "qwen2_tagger": tagger("Qwen2Config", "Qwen2", DECODER),
    "qwen2_reader": reader("Qwen2Config", "Qwen2", DECODER),
    "qwen3": decoder("Qwen3Config", "Qwen3", QWEN, head_dim=12),
    "qwen3_windows": decoder(
        "Qwen3Config",
        "Qwen3",
        QWEN,
        head_dim=8,
        attention_bias=True,
        tie_word_embeddings=True,
        layer_types=["sliding_attention", "full_attention"] * 2,
        **WINDOWS,
    ),
    "qwen3_classifier": classifier("Qwen3Config", "Qwen3", DECODER, head_dim=12),
    "qwen3_tagger": tagger("Qwen3Config", "Qwen3", DECODER),
    "qwen3_reader": reader("Qwen3Config", "Qwen3", DECODER),
    "gemma2": decoder("Gemma2Config", "Gemma2", GEMMA),
    "gemma2_caps": decoder(
        "Gemma2Config",
        "Gemma2",
        GEMMA,
        num_key_value_heads=1,
        attention_bias=True,
        tie_word_embeddings=False,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=None,
        hidden_activation="silu",
        layer_types=["full_attention", *["sliding_attention"] * 3],
    ),
    "gemma2_classifier": classifier("Gemma2Config", "Gemma2", GEMMA),
    "gemma2_tagger": tagger("Gemma2Config", "Gemma2", GEMMA),
    "gemma3": decoder(
        "Gemma3TextConfig",
        "Gemma3",
        GEMMA,
        layer_types=[*["sliding_attention"] * 2, "full_attention", "sliding_attention"],
        rope_parameters={
            "full_attention": {
                "rope_type": "linear",
                "rope_theta": 5000.0,
                "factor": 8.0,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        },
    ),
    "gemma3_capped": decoder(
        "Gemma3TextConfig",
        "Gemma3",
        GEMMA,
        num_hidden_layers=6,
        num_key_value_heads=1,
        attention_bias=True,
        final_logit_softcapping=3.0,
    ),
    "gemma3_model": row(
        "Gemma3TextConfig", "Gemma3TextModel", "sentence_embedder", GEMMA
    ),
    "gemma3_classifier": classifier("Gemma3TextConfig", "Gemma3Text", GEMMA),
    "phi3": decoder(
        "Phi3Config",
        "Phi3",
        PHI,
        num_key_value_heads=1,
        rope_parameters={"rope_theta": 300.0, "partial_rotary_factor": 0.5},
    ),
    "phi3_window": decoder(
        "Phi3Config", "Phi3", PHI, sliding_window=3, tie_word_embeddings=True
    ),
    "phi3_classifier": classifier("Phi3Config", "Phi3", PHI),
    "phi3_tagger": tagger("Phi3Config", "Phi3", PHI),
}
for name in ("llama3", "gemma2", "gemma3"):
    DECODERS[name]["bfloat16"] = True
