"""ModernBERT (Warner et al., 2024, https://arxiv.org/abs/2412.13663)."""

from kzoo.checkpoints.hf_config import Key, activation, dimensions, special_ids
from kzoo.checkpoints.hf_positions import full_every, ropes_of_types, window
from kzoo.checkpoints.naming import layers, names
from kzoo.checkpoints.table import Family, Head

TYPES = full_every(3, "global_attn_every_n_layers", first=True)
LAYERS = ropes_of_types(
    window("local_attention", TYPES, default=128, both_sides=True),
    full=("global_rope_theta", 160_000.0),
    sliding=("local_rope_theta", 10_000.0),
    scaled=("full_attention", "sliding_attention"),
)
DROPOUT = Key("classifier_dropout", "head_dropout", 0.0)
POOLING = Key("classifier_pooling", "pooling", "cls", {"cls": "cls", "mean": "mean"})


def _head(name, output, *rules, **options):
    """A head: a layer and a norm that all of them have, and a layer to what it says."""
    own = {"head/hidden": "head.dense", "head/norm": "head.norm", "head/output": output}
    inner = activation("classifier_activation", "gelu", "hidden_activation")
    rules = (inner, Key("classifier_bias", "hidden_bias", False), *rules)
    return Head(f"ModernBertFor{name}", own, options, rules)


def _classifier(name, *rules):
    return _head(name, "classifier", DROPOUT, *rules, hidden_norm=True)


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
        "MaskedLM": _head(
            "MaskedLM", "decoder", Key("decoder_bias", "output_bias", True)
        ),
        "TextClassifier": _classifier("SequenceClassification", POOLING),
        "TokenClassifier": _classifier("TokenClassification"),
        "QuestionAnswering": _classifier("QuestionAnswering"),
        "SentenceEmbedder": Head("ModernBertModel"),
    },
    prefix="model.",
    tokenizer="byte_bpe",
    irrelevant={
        # That of the start; and of the class that it was written with: norm_eps is
        # read, and positions are rotary.
        *names("cls_token_id layer_norm_eps position_embedding_type"),
        # Of training, of how it is computed, and of logits for some places alone.
        *names("initializer_cutoff_factor deterministic_flash_attn reference_compile"),
        *names("repad_logits_with_grad sparse_pred_ignore_index sparse_prediction"),
    },
)

FAMILIES = {"modernbert": MODERNBERT}
