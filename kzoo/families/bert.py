"""BERT (Devlin et al., 2019, https://arxiv.org/abs/1810.04805), also MiniLM."""

from kzoo.checkpoints.hf_config import Key, Only, Rule, activation, special_ids
from kzoo.checkpoints.table import Family, Head, Raw

LAYER = "encoder.layer.{i}"
ATTENTION = "encoder/layer_{i}/self_attention"
POOLER = {"head/hidden": "^pooler.dense"}
POOLED = {"pooling": "cls", "hidden_activation": "tanh", "hidden_bias": True}
HEAD_DROPOUT = Rule(
    ("classifier_dropout",),
    lambda keys: {
        "head_dropout": keys.get("hidden_dropout_prob", 0.1)
        if keys.get("classifier_dropout") is None
        else keys["classifier_dropout"]
    },
    lambda field_of: {"classifier_dropout": field_of("head_dropout")},
)
BIASES = {"hidden_bias": True, "output_bias": True}
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
        Key("vocab_size", "vocabulary_size"),
        Key("hidden_size", "hidden_dim", width),
        Key("num_hidden_layers", "num_layers", 12),
        Key("num_attention_heads", "num_heads", heads),
        Key("intermediate_size", "intermediate_dim", inner),
        activation("hidden_act", act),
        Key("hidden_dropout_prob", "dropout", dropout),
        Key("attention_probs_dropout_prob", "attention_dropout", dropout),
        Key("type_vocab_size", "num_segments", 2),
        Key("initializer_range", "initializer_range", 0.02),
        Key("layer_norm_eps", "norm_epsilon", 1e-12),
        Key("tie_word_embeddings", "tie_head", True),
        Only("position_embedding_type", "absolute"),
    )


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
        f"{ATTENTION}/query": f"{LAYER}.attention.self.query",
        f"{ATTENTION}/key": f"{LAYER}.attention.self.key",
        f"{ATTENTION}/value": f"{LAYER}.attention.self.value",
        f"{ATTENTION}/output": f"{LAYER}.attention.output.dense",
        f"{ATTENTION}_norm": f"{LAYER}.attention.output.LayerNorm",
        "encoder/layer_{i}/feed_forward/intermediate": f"{LAYER}.intermediate.dense",
        "encoder/layer_{i}/feed_forward/output": f"{LAYER}.output.dense",
        "encoder/layer_{i}/feed_forward_norm": f"{LAYER}.output.LayerNorm",
    },
    heads={
        "MaskedLM": Head(
            "BertForMaskedLM",
            {
                "head/hidden": "cls.predictions.transform.dense",
                "head/norm": "cls.predictions.transform.LayerNorm",
                "head/output": "cls.predictions.decoder",
                "head/output/bias": Raw("cls.predictions.bias"),
            },
            BIASES,
            (HEAD_ACTIVATION,),
            duplicates={"cls.predictions.decoder.bias": "cls.predictions.bias"},
        ),
        "TextClassifier": Head(
            "BertForSequenceClassification",
            {**POOLER, "head/output": "classifier"},
            POOLED,
            (HEAD_DROPOUT,),
        ),
        "TokenClassifier": Head(
            "BertForTokenClassification",
            {"head/output": "classifier"},
            rules=(HEAD_DROPOUT,),
        ),
        "QuestionAnswering": Head(
            "BertForQuestionAnswering", {"head/output": "qa_outputs"}
        ),
        "SentenceEmbedder": Head("BertModel"),
    },
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
)

FAMILIES = {"bert": BERT}
