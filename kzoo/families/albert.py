"""ALBERT (Lan et al., 2020, https://arxiv.org/abs/1909.11942)."""

from kzoo.checkpoints.hf_config import Key, Only, Rule, Unsupported, special_ids
from kzoo.checkpoints.naming import encoder_heads, layers
from kzoo.checkpoints.table import Family
from kzoo.families.bert import BERT, FIXED, HEAD_ACTIVATION, rules, segments

TABLES = {k: v for k, v in BERT.modules.items() if v.startswith("embeddings.")}


def _groups(keys):
    groups, count = keys.get("num_hidden_groups", 1), keys.get("num_hidden_layers", 12)
    if not groups or groups < 1 or count % groups:
        raise Unsupported(
            f"num_hidden_groups={groups} is not supported. Supported: a number that "
            f"divides num_hidden_layers={count}."
        )
    return {"layer_groups": None if groups == count else groups}


GROUPS = Rule(
    ("num_hidden_groups", "num_hidden_layers"),
    _groups,
    lambda field_of: {
        "num_hidden_groups": field_of("layer_groups") or field_of("num_layers")
    },
)


def _embeddings(keys):
    if keys["embedding_size"] is None:
        raise Unsupported("embedding_size=None is not supported. Supported: a number.")


ALBERT = Family(
    model_type="albert",
    architecture="encoder",
    fixed=FIXED,
    rules=(
        *rules(width=4096, heads=64, inner=16_384, act="gelu_new", dropout=0.0),
        Key("embedding_size", "embedding_dim", 128),
        Key("max_position_embeddings", "max_sequence_length", 512),
        GROUPS,
        Only("inner_group_num", 1),
        special_ids(pad=0, start=2, end=3, mask=4),
    ),
    modules={
        **TABLES,
        "encoder/embedding_projection": "encoder.embedding_hidden_mapping_in",
        **layers(
            "encoder",
            "encoder.albert_layer_groups.{i}.albert_layers.0",
            self_attention="attention.{query,key,value,dense}",
            self_attention_norm="attention.LayerNorm",
            feed_forward="ffn ffn_output",
            feed_forward_norm="full_layer_layer_norm",
        ),
    },
    heads=encoder_heads(
        "Albert",
        "predictions.{dense,LayerNorm,decoder}",
        bias="predictions.bias",
        rules=(HEAD_ACTIVATION,),
        pooler="^pooler",
        dropout=Key("classifier_dropout_prob", "head_dropout", 0.1),
    ),
    prefix="albert.",
    irrelevant={  # of the first release's code; transformers reads none of them
        "down_scale_factor",
        "gap_size",
        "layers_to_keep",
        "net_structure_type",
        "num_memory_blocks",
    },
    ignored=(
        r".*embeddings\.position_ids",
        r"(albert\.)?pooler\.(weight|bias)",
        r"sop_classifier\.classifier\.(weight|bias)",
    ),
    checks=(segments, _embeddings),
)

FAMILIES = {"albert": ALBERT}
