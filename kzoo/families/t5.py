"""T5 (Raffel et al., 2020, https://arxiv.org/abs/1910.10683), v1.1 and Flan-T5."""

from kzoo.checkpoints.hf_config import Key, Rule, gated_activation, special_ids
from kzoo.checkpoints.naming import encoder_decoder_heads, layers
from kzoo.checkpoints.rows import Choice
from kzoo.checkpoints.table import Family

# The sublayers of each stack's blocks, in their order.
ENCODER = {"self_attention": "SelfAttention", "feed_forward": "DenseReluDense"}
DECODER = {"self_attention": "SelfAttention", "cross_attention": "EncDecAttention"}
SUBLAYERS = {"encoder": ENCODER, "decoder": DECODER | ENCODER}
TOKENS = ("shared", "encoder.embed_tokens", "decoder.embed_tokens")
FIRST = "block.0.layer.0.SelfAttention.relative_attention_bias"


def _block(stack):
    """The rows of a stack's blocks."""
    for place, (own, theirs) in enumerate(SUBLAYERS[stack].items()):
        parts = "{wi_0,wi_1,wo}" if own == "feed_forward" else "{q,k,v,o}"
        names = {own: f"{theirs}.{parts}", f"{own}_norm": "layer_norm"}
        yield from layers(stack, f"{stack}.block.{{i}}.layer.{place}", **names).items()
    inner = f"{stack}.block.{{i}}.layer.{place}.{theirs}"
    kinds = {"plain": f"{inner}.wi", "gated": f"{inner}.wi_1"}
    yield f"{stack}/layer_{{i}}/{own}/intermediate", Choice("feed_forward", kinds)


DROPOUT = Rule(
    ("dropout_rate",),
    lambda keys: dict.fromkeys(
        ("dropout", "attention_dropout", "feed_forward_dropout"),
        keys.get("dropout_rate", 0.1),
    ),
    lambda field_of: {"dropout_rate": field_of("dropout")},
)
# Older files scale what a tied head reads; newer ones have a key for that alone.
HEAD_SCALE = Rule(
    ("scale_decoder_outputs", "d_model"),
    lambda keys: {
        "head_scale": keys["d_model"] ** -0.5
        if keys.get("scale_decoder_outputs", keys.get("tie_word_embeddings", True))
        else 1.0
    },
    lambda field_of: {"scale_decoder_outputs": field_of("head_scale") != 1.0},
)
RULES = (
    Key("vocab_size", "vocabulary_size"),
    Key("d_model", "hidden_dim"),
    Key("d_kv", "head_dim", 64),
    Key("d_ff", "intermediate_dim"),
    Key("num_heads", "num_heads"),
    Key("num_layers", "encoder.num_layers"),
    Key("num_decoder_layers", "decoder.num_layers", lambda keys: keys["num_layers"]),
    Key("relative_attention_num_buckets", "relative_buckets", 32),
    Key("relative_attention_max_distance", "relative_max_distance", 128),
    Key("layer_norm_epsilon", "norm_epsilon", 1e-6),
    Key("tie_word_embeddings", "tie_head", True),
    DROPOUT,
    special_ids(pad=0, start=0, end=1, start_key="decoder_start_token_id"),
)

T5 = Family(
    model_type="t5",
    architecture="encoder_decoder",
    fixed=dict(
        positions="relative",
        norm="rms_norm",
        attention_scale=1.0,
        use_bias=False,
        share_embeddings=True,
    ),
    rules=(*RULES, gated_activation("relu"), HEAD_SCALE),
    modules={
        "encoder/token_embedding": TOKENS,
        **dict(row for stack in SUBLAYERS for row in _block(stack)),
        **{f"{stack}/position_bias": f"{stack}.{FIRST}" for stack in SUBLAYERS},
        **{f"{stack}/final_norm": f"{stack}.final_layer_norm" for stack in SUBLAYERS},
    },
    heads=encoder_decoder_heads("T5", prefix="transformer."),
    irrelevant={
        "bos_token_id",
        "classifier_dropout",
        "initializer_factor",
        "n_positions",  # there is no limit
    },
    ignored=(  # one that was never used, and another head
        r".*decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
        r"classifier\..*",
    ),
    tied_by_file=True,
)

FAMILIES = {"t5": T5}
