"""OPT (Zhang et al., 2022, https://arxiv.org/abs/2205.01068)."""

from kzoo.checkpoints.hf_config import (
    Key,
    Only,
    Rule,
    Unsupported,
    activation,
    special_ids,
)
from kzoo.checkpoints.naming import decoder_heads, layers
from kzoo.checkpoints.table import Family


def _projection(keys):
    width = keys.get("word_embed_proj_dim") or keys["hidden_size"]
    if width != keys["hidden_size"]:
        raise Unsupported(
            f"word_embed_proj_dim={width} is not supported: it has to be hidden_size, "
            f"{keys['hidden_size']}."
        )


def _norms(keys):
    before = keys.get("do_layer_norm_before", True)
    last = before and not keys.get("_remove_final_layer_norm", False)
    return {"norm_position": "pre" if before else "post", "final_norm": last}


def _written(field_of):
    before = field_of("norm_position") == "pre"
    removed = before and not field_of("final_norm")
    return {"do_layer_norm_before": before, "_remove_final_layer_norm": removed}


OPT = Family(
    model_type="opt",
    architecture="decoder",
    fixed=dict(
        positions="learned",
        first_position=2,
        norm_epsilon=1e-5,
        initializer="truncated_normal",
    ),
    rules=(
        Key("vocab_size", "vocabulary_size"),
        Key("hidden_size", "hidden_dim", 768),
        Key("num_hidden_layers", "num_layers", 12),
        Key("num_attention_heads", "num_heads", 12),
        Key("ffn_dim", "intermediate_dim", 3072),
        activation("activation_function", "relu"),
        Key("dropout", "dropout", 0.1),
        Key("attention_dropout", "attention_dropout", 0.0),
        Key("max_position_embeddings", "max_sequence_length", 2048),
        Key("init_std", "initializer_range", 0.02),
        Key("enable_bias", "use_bias attention_bias attention_output_bias", True),
        Key("tie_word_embeddings", "tie_head", True),
        Only("layer_norm_elementwise_affine", True),
        Rule(("do_layer_norm_before", "_remove_final_layer_norm"), _norms, _written),
        special_ids(pad=1, start=2, end=2),
    ),
    modules={
        "decoder/token_embedding": "decoder.embed_tokens",
        "decoder/position_embedding": "decoder.embed_positions",
        **layers(
            "decoder",
            "decoder.layers.{i}",
            self_attention_norm="self_attn_layer_norm",
            self_attention="self_attn.{q,k,v,out}_proj",
            feed_forward_norm="final_layer_norm",
            feed_forward="fc1 fc2",
        ),
        "decoder/final_norm": "decoder.final_layer_norm",
    },
    heads=decoder_heads("OPT", tagger=None, answers="model."),
    prefix="model.",
    tokenizer="byte_bpe",
    irrelevant={
        "activation_dropout",  # no class reads it
        "layerdrop",  # of training
        "word_embed_proj_dim",  # checked
    },
    checks=(_projection,),
)

FAMILIES = {"opt": OPT}
