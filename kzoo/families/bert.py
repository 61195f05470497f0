"""BERT (Devlin et al., 2019, https://arxiv.org/abs/1810.04805), also MiniLM."""

from kzoo.checkpoints.hf_config import (
    Key,
    Only,
    Unsupported,
    activation,
    dimensions,
    special_ids,
)
from kzoo.checkpoints.naming import encoder_heads, layers
from kzoo.checkpoints.table import Family

# The head's activation is that of the stack.
HEAD_ACTIVATION = activation("hidden_act", "gelu", "hidden_activation")

FIXED = dict(
    positions="learned",
    norm_position="post",
    embedding_norm=True,
    initializer="truncated_normal",
    head_bias=False,
)


def rules(width=768, heads=12, inner=3072, act="gelu", dropout=0.1):
    """What BERT's relatives have in common, with their defaults."""
    return (
        *dimensions(width, 12, heads, inner),
        activation("hidden_act", act),
        Key("hidden_dropout_prob", "dropout", dropout),
        Key("attention_probs_dropout_prob", "attention_dropout", dropout),
        Key("type_vocab_size", "num_segments", 2),
        Key("layer_norm_eps", "norm_epsilon", 1e-12),
        Key("tie_word_embeddings", "tie_head", True),
        Only("position_embedding_type", "absolute"),
    )


def segments(keys):
    """Refuses what the classes of transformers cannot be run with."""
    if not keys["type_vocab_size"]:
        raise Unsupported("type_vocab_size=0 is not supported. Supported: 1 or more.")


BERT = Family(
    model_type="bert",
    architecture="encoder",
    fixed=FIXED,
    rules=(
        *rules(),
        Key("max_position_embeddings", "max_sequence_length", 512),
        special_ids(pad=0, start=101, end=102, mask=103),
    ),
    modules={
        "encoder/token_embedding": "embeddings.word_embeddings",
        "encoder/position_embedding": "embeddings.position_embeddings",
        "encoder/segment_embedding": "embeddings.token_type_embeddings",
        "encoder/embedding_norm": "embeddings.LayerNorm",
        **layers(
            "encoder",
            "encoder.layer.{i}",
            self_attention="attention.self.{query,key,value} attention.output.dense",
            self_attention_norm="attention.output.LayerNorm",
            feed_forward="intermediate.dense output.dense",
            feed_forward_norm="output.LayerNorm",
        ),
    },
    heads=encoder_heads(
        "Bert",
        "cls.predictions.transform.{dense,LayerNorm} cls.predictions.decoder",
        bias="cls.predictions.bias",
        rules=(HEAD_ACTIVATION,),
    ),
    prefix="bert.",
    tokenizer="wordpiece",
    irrelevant={  # of the first release's code; transformers reads none of them
        "directionality",
        "pooler_fc_size",
        "pooler_num_attention_heads",
        "pooler_num_fc_layers",
        "pooler_size_per_head",
        "pooler_type",
    },
    ignored=(r".*embeddings\.position_ids", r"(bert\.)?pooler\..*", r"cls\.seq_.*"),
    checks=(segments,),
)

FAMILIES = {"bert": BERT}
