"""ModernBERT (Warner et al., 2024, https://arxiv.org/abs/2412.13663)."""

from dataclasses import replace

from kzoo.checkpoints.hf_config import (
    Key,
    activation,
    dimensions,
    full_every,
    ropes_of_types,
    special_ids,
    window,
)
from kzoo.checkpoints.naming import layers
from kzoo.checkpoints.table import Family, Head

LAYERS = ropes_of_types(
    window(
        "local_attention",
        full_every(3, "global_attn_every_n_layers", first=True),
        default=128,
        both_sides=True,
    ),
    full=("global_rope_theta", 160_000.0),
    sliding=("local_rope_theta", 10_000.0),
    scaled=("full_attention", "sliding_attention"),
)
INNER = {"head/hidden": "head.dense", "head/norm": "head.norm"}
INNER_RULES = (
    activation("classifier_activation", "gelu", "hidden_activation"),
    Key("classifier_bias", "hidden_bias", False),
)
POOLING = Key("classifier_pooling", "pooling", "cls", {"cls": "cls", "mean": "mean"})
CLASSIFIER = Head(
    "ModernBertForTokenClassification",
    {**INNER, "head/output": "classifier"},
    {"hidden_norm": True},
    (*INNER_RULES, Key("classifier_dropout", "head_dropout", 0.0)),
)

MODERNBERT = Family(
    model_type="modernbert",
    architecture="encoder",
    fixed=dict(
        positions="rotary",
        embedding_norm=True,
        first_norm=False,
        feed_forward="gated",
        initializer="truncated_normal",
        head_bias=False,
    ),
    rules=(
        *dimensions(768, heads=12, intermediate=1152),
        Key("max_position_embeddings", "max_sequence_length", 8192),
        activation("hidden_activation", "gelu"),
        Key("norm_eps", "norm_epsilon", 1e-5),
        Key("norm_bias", "norm_bias", False),
        Key("attention_bias", "attention_bias attention_output_bias", False),
        Key("mlp_bias", "use_bias", False),
        Key("embedding_dropout", "dropout", 0.0),
        Key("attention_dropout", "attention_dropout", 0.0),
        Key("mlp_dropout", "feed_forward_dropout", 0.0),
        Key("tie_word_embeddings", "tie_head", True),
        LAYERS,
        special_ids(pad=50_283, start=50_281, end=50_282, mask=50_284),
    ),
    modules={
        "encoder/token_embedding": "embeddings.tok_embeddings",
        "encoder/embedding_norm": "embeddings.norm",
        **layers(
            "encoder",
            "layers.{i}",
            self_attention_norm="attn_norm",
            self_attention="attn.{Wqkv,Wqkv,Wqkv,Wo}",
            feed_forward_norm="mlp_norm",
            feed_forward="mlp.{Wi,Wi,Wo}",
        ),
        "encoder/final_norm": "final_norm",
    },
    heads={
        "MaskedLM": Head(
            "ModernBertForMaskedLM",
            {**INNER, "head/output": "decoder"},
            rules=(*INNER_RULES, Key("decoder_bias", "output_bias", True)),
        ),
        "TextClassifier": replace(
            CLASSIFIER,
            architecture="ModernBertForSequenceClassification",
            rules=(*CLASSIFIER.rules, POOLING),
        ),
        "TokenClassifier": CLASSIFIER,
        "QuestionAnswering": replace(
            CLASSIFIER, architecture="ModernBertForQuestionAnswering"
        ),
        "SentenceEmbedder": Head("ModernBertModel"),
    },
    prefix="model.",
    tokenizer="byte_bpe",
    irrelevant={
        "cls_token_id",  # that of the start
        "deterministic_flash_attn",
        "initializer_cutoff_factor",
        "layer_norm_eps",  # of the class that it was written with; norm_eps is read
        "position_embedding_type",  # likewise: positions are rotary
        "reference_compile",
        "repad_logits_with_grad",
        "sparse_pred_ignore_index",  # of training, where logits are for some places
        "sparse_prediction",
    },
)

FAMILIES = {"modernbert": MODERNBERT}
