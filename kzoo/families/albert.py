"""ALBERT (Lan et al., 2020, https://arxiv.org/abs/1909.11942)."""

from kzoo.checkpoints.hf_config import Key, Only, Rule, special_ids
from kzoo.checkpoints.table import Family, Head, Raw
from kzoo.families.bert import BERT, BIASES, FIXED, HEAD_ACTIVATION, POOLED, rules

LAYER = "encoder.albert_layer_groups.{i}.albert_layers.0"
ATTENTION = "encoder/layer_{i}/self_attention"
TABLES = {k: v for k, v in BERT.modules.items() if v.startswith("embeddings.")}
HEAD_DROPOUT = Key("classifier_dropout_prob", "head_dropout", 0.1)
GROUPS = Rule(
    ("num_hidden_groups", "num_hidden_layers"),
    lambda keys: {
        "layer_groups": None
        if keys.get("num_hidden_groups", 1) == keys.get("num_hidden_layers", 12)
        else keys.get("num_hidden_groups", 1)
    },
    lambda field_of: {
        "num_hidden_groups": field_of("layer_groups") or field_of("num_layers")
    },
)

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
        f"{ATTENTION}/query": f"{LAYER}.attention.query",
        f"{ATTENTION}/key": f"{LAYER}.attention.key",
        f"{ATTENTION}/value": f"{LAYER}.attention.value",
        f"{ATTENTION}/output": f"{LAYER}.attention.dense",
        f"{ATTENTION}_norm": f"{LAYER}.attention.LayerNorm",
        "encoder/layer_{i}/feed_forward/intermediate": f"{LAYER}.ffn",
        "encoder/layer_{i}/feed_forward/output": f"{LAYER}.ffn_output",
        "encoder/layer_{i}/feed_forward_norm": f"{LAYER}.full_layer_layer_norm",
    },
    heads={
        "MaskedLM": Head(
            "AlbertForMaskedLM",
            {
                "head/hidden": "predictions.dense",
                "head/norm": "predictions.LayerNorm",
                "head/output": "predictions.decoder",
                "head/output/bias": Raw("predictions.bias"),
            },
            BIASES,
            (HEAD_ACTIVATION,),
            duplicates={"predictions.decoder.bias": "predictions.bias"},
        ),
        "TextClassifier": Head(
            "AlbertForSequenceClassification",
            {"head/hidden": "^pooler", "head/output": "classifier"},
            POOLED,
            (HEAD_DROPOUT,),
        ),
        "TokenClassifier": Head(
            "AlbertForTokenClassification",
            {"head/output": "classifier"},
            rules=(HEAD_DROPOUT,),
        ),
        "QuestionAnswering": Head(
            "AlbertForQuestionAnswering", {"head/output": "qa_outputs"}
        ),
        "SentenceEmbedder": Head("AlbertModel"),
    },
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
)

FAMILIES = {"albert": ALBERT}
