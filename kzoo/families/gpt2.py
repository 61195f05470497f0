"""GPT-2 (Radford et al., 2019, "Language Models are Unsupervised Multitask ...")."""

from kzoo.checkpoints.hf_config import Key, Only, Rule, activation, special_ids
from kzoo.checkpoints.naming import decoder_heads, layers
from kzoo.checkpoints.table import Family

INNER = Rule(  # left out, or None: four times the width
    ("n_inner", "n_embd"),
    lambda keys: {"intermediate_dim": keys.get("n_inner") or 4 * keys["n_embd"]},
    lambda field_of: {"n_inner": field_of("intermediate_dim")},
)

GPT2 = Family(
    model_type="gpt2",
    architecture="decoder",
    fixed=dict(positions="learned", initializer="truncated_normal"),
    rules=(
        Key("vocab_size", "vocabulary_size"),
        Key("n_embd", "hidden_dim", 768),
        Key("n_layer", "num_layers", 12),
        Key("n_head", "num_heads", 12),
        INNER,
        activation("activation_function", "gelu_new"),
        Key("resid_pdrop", "dropout", 0.1),
        Key("attn_pdrop", "attention_dropout", 0.1),
        Key("n_positions", "max_sequence_length", 1024),
        Key("initializer_range", "initializer_range", 0.02),
        Key("layer_norm_epsilon", "norm_epsilon", 1e-5),
        Key("tie_word_embeddings", "tie_head", True),
        Only("scale_attn_weights", True),
        Only("scale_attn_by_inverse_layer_idx", False),
        special_ids(start=50256, end=50256),
    ),
    modules={
        "decoder/token_embedding": "wte",
        "decoder/position_embedding": "wpe",
        **layers(
            "decoder",
            "h.{i}",
            self_attention_norm="ln_1",
            self_attention="attn.{c_attn,c_attn,c_attn,c_proj}",
            feed_forward_norm="ln_2",
            feed_forward="mlp.{c_fc,c_proj}",
        ),
        "decoder/final_norm": "ln_f",
    },
    heads=decoder_heads("GPT2", language_model="GPT2LMHeadModel", tagger="classifier"),
    prefix="transformer.",
    tokenizer="byte_bpe",
    irrelevant={
        "embd_pdrop",  # kzoo has one rate for what is added to the residual stream
        "n_ctx",
        "n_special",  # of the first release's code, as predict_special_tokens
        "predict_special_tokens",
        "reorder_and_upcast_attn",  # the same numbers in another order
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
    },
    ignored=(r".*\.attn\.(bias|masked_bias)",),
    kernels_in_out=True,
)

FAMILIES = {"gpt2": GPT2}
