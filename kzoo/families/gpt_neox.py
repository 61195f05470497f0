"""GPT-NeoX (https://arxiv.org/abs/2204.06745), also Pythia."""

from kzoo.checkpoints.hf_config import Key, activation, dimensions, special_ids
from kzoo.checkpoints.hf_positions import rotary
from kzoo.checkpoints.naming import decoder_heads, layers
from kzoo.checkpoints.rows import ByHead
from kzoo.checkpoints.table import Family

FUSED = ByHead("layers.{i}.attention.query_key_value")

GPT_NEOX = Family(
    model_type="gpt_neox",
    architecture="decoder",
    fixed=dict(positions="rotary", initializer="truncated_normal"),
    rules=(
        *dimensions(),
        Key("max_position_embeddings", "max_sequence_length", 2048),
        activation("hidden_act", "gelu"),
        Key("hidden_dropout", "dropout", 0.0),
        Key("attention_dropout", "attention_dropout", 0.0),
        Key("layer_norm_eps", "norm_epsilon", 1e-5),
        Key("tie_word_embeddings", "tie_head", False),
        Key("use_parallel_residual", "parallel_residual", True),
        Key("attention_bias", "attention_bias attention_output_bias", True),
        rotary(part="rotary_pct", parted=0.25, older="rotary_emb_base"),
        special_ids(start=0, end=2),
    ),
    modules={
        "decoder/token_embedding": "embed_in",
        **layers(
            "decoder",
            "layers.{i}",
            self_attention_norm="input_layernorm",
            self_attention="attention.{q,k,v,dense}",
            feed_forward_norm="post_attention_layernorm",
            feed_forward="mlp.{dense_h_to_4h,dense_4h_to_h}",
        ),
        **{
            f"decoder/layer_{{i}}/self_attention/{own}": FUSED
            for own in ("query", "key", "value")
        },
        "decoder/final_norm": "final_layer_norm",
    },
    heads=decoder_heads(
        "GPTNeoX",
        head=("embed_out", "lm_head"),
        tagger="classifier",
        answers="gpt_neox.",
    ),
    prefix="gpt_neox.",
    irrelevant={
        "attention_probs_dropout_prob",  # no class reads these two
        "hidden_dropout_prob",
    },
    ignored=(r".*\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",),
)

FAMILIES = {"gpt_neox": GPT_NEOX}
