"""DistilBERT (Sanh et al., 2019, https://arxiv.org/abs/1910.01108)."""

from dataclasses import replace

from kzoo.checkpoints.hf_config import Key, Rule, activation, special_ids
from kzoo.checkpoints.naming import encoder_heads, layers
from kzoo.checkpoints.table import Family
from kzoo.families.bert import FIXED

HEADS = encoder_heads(
    "DistilBert",
    "vocab_transform vocab_layer_norm vocab_projector",
    rules=(activation("activation", "gelu", "hidden_activation"),),
    pooler="pre_classifier",
    pooled={"hidden_activation": "relu"},
    dropout=Key("seq_classif_dropout", "head_dropout", 0.2),
)
DROPOUTS = {
    "TokenClassifier": Rule(  # the stack's
        ("dropout",), lambda keys: {"head_dropout": keys.get("dropout", 0.1)}
    ),
    "QuestionAnswering": Key("qa_dropout", "head_dropout", 0.1),
}
HEADS |= {task: replace(HEADS[task], rules=(rule,)) for task, rule in DROPOUTS.items()}

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
        **layers(
            "encoder",
            "transformer.layer.{i}",
            self_attention="attention.{q,k,v,out}_lin",
            self_attention_norm="sa_layer_norm",
            feed_forward="ffn.lin1 ffn.lin2",
            feed_forward_norm="output_layer_norm",
        ),
    },
    heads=HEADS,
    prefix="distilbert.",
    tokenizer="wordpiece",
    irrelevant={
        "sinusoidal_pos_embds",  # where the table began; it is stored
        "tie_weights_",
    },
    ignored=(r".*embeddings\.position_ids",),
)

FAMILIES = {"distilbert": DISTILBERT}
