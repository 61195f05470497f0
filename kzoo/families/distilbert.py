"""DistilBERT (Sanh et al., 2019, https://arxiv.org/abs/1910.01108)."""

from kzoo.checkpoints.hf_config import Key, Rule, activation, special_ids
from kzoo.checkpoints.table import Family, Head
from kzoo.families.bert import BIASES, FIXED

LAYER = "transformer.layer.{i}"
ATTENTION = "encoder/layer_{i}/self_attention"

DISTILBERT = Family(
    model_type="distilbert",
    architecture="encoder",
    fixed={**FIXED, "norm_epsilon": 1e-12},
    rules=(
        Key("vocab_size", "vocabulary_size"),
        Key("dim", "hidden_dim", 768),
        Key("n_layers", "num_layers", 6),
        Key("n_heads", "num_heads", 12),
        Key("hidden_dim", "intermediate_dim", 3072),
        activation("activation", "gelu"),
        Key("dropout", "dropout", 0.1),
        Key("attention_dropout", "attention_dropout", 0.1),
        Key("max_position_embeddings", "max_sequence_length", 512),
        Key("initializer_range", "initializer_range", 0.02),
        Key("tie_word_embeddings", "tie_head", True),
        special_ids(pad=0, start=101, end=102, mask=103),
    ),
    modules={
        "encoder/token_embedding": "embeddings.word_embeddings",
        "encoder/position_embedding": "embeddings.position_embeddings",
        "encoder/embedding_norm": "embeddings.LayerNorm",
        f"{ATTENTION}/query": f"{LAYER}.attention.q_lin",
        f"{ATTENTION}/key": f"{LAYER}.attention.k_lin",
        f"{ATTENTION}/value": f"{LAYER}.attention.v_lin",
        f"{ATTENTION}/output": f"{LAYER}.attention.out_lin",
        f"{ATTENTION}_norm": f"{LAYER}.sa_layer_norm",
        "encoder/layer_{i}/feed_forward/intermediate": f"{LAYER}.ffn.lin1",
        "encoder/layer_{i}/feed_forward/output": f"{LAYER}.ffn.lin2",
        "encoder/layer_{i}/feed_forward_norm": f"{LAYER}.output_layer_norm",
    },
    heads={
        "MaskedLM": Head(
            "DistilBertForMaskedLM",
            {
                "head/hidden": "vocab_transform",
                "head/norm": "vocab_layer_norm",
                "head/output": "vocab_projector",
            },
            BIASES,
            (activation("activation", "gelu", "hidden_activation"),),
        ),
        "TextClassifier": Head(
            "DistilBertForSequenceClassification",
            {"head/hidden": "pre_classifier", "head/output": "classifier"},
            {"pooling": "cls", "hidden_activation": "relu", "hidden_bias": True},
            (Key("seq_classif_dropout", "head_dropout", 0.2),),
        ),
        "TokenClassifier": Head(
            "DistilBertForTokenClassification",
            {"head/output": "classifier"},
            rules=(
                Rule(  # the stack's
                    ("dropout",),
                    lambda keys: {"head_dropout": keys.get("dropout", 0.1)},
                    lambda field_of: {},
                ),
            ),
        ),
        "QuestionAnswering": Head(
            "DistilBertForQuestionAnswering",
            {"head/output": "qa_outputs"},
            rules=(Key("qa_dropout", "head_dropout", 0.1),),
        ),
        "SentenceEmbedder": Head("DistilBertModel"),
    },
    prefix="distilbert.",
    tokenizer="wordpiece",
    irrelevant={
        "sinusoidal_pos_embds",  # where the table began; it is stored
        "tie_weights_",
    },
    ignored=(r".*embeddings\.position_ids",),
)

FAMILIES = {"distilbert": DISTILBERT}
