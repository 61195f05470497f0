"""BART (Lewis et al., 2020, https://arxiv.org/abs/1910.13461).

Also the base of other encoder-decoders that were trained by fairseq, or named alike.
"""

import dataclasses
import math

from kzoo.checkpoints.hf_config import Key, Only, Rule, activation, special_ids
from kzoo.checkpoints.naming import layers
from kzoo.checkpoints.table import Choice, Family, Head, Raw

STACKS = ("encoder", "decoder")
BLOCK = dict(
    self_attention_norm="self_attn_layer_norm",
    self_attention="self_attn.{q,k,v,out}_proj",
    feed_forward_norm="final_layer_norm",
    feed_forward="fc1 fc2",
)
CROSS = dict(
    cross_attention_norm="encoder_attn_layer_norm",
    cross_attention="encoder_attn.{q,k,v,out}_proj",
)
STACK = {
    "position_embedding": "embed_positions",
    "embedding_norm": "layernorm_embedding",
    "final_norm": "layer_norm",
}


def scaled(default):
    """The rule of the embedding's scale, where the key is left out `default`."""
    return Rule(
        ("scale_embedding", "d_model"),
        lambda keys: {
            "embedding_scale": math.sqrt(keys["d_model"])
            if keys.get("scale_embedding", default)
            else 1.0
        },
        lambda field_of: {"scale_embedding": field_of("embedding_scale") != 1.0},
    )


RULES = (
    Key("vocab_size", "vocabulary_size"),
    Key("d_model", "hidden_dim"),
    *(Key(f"{stack}_layers", f"{stack}.num_layers", 12) for stack in STACKS),
    *(Key(f"{stack}_ffn_dim", f"{stack}.intermediate_dim", 4096) for stack in STACKS),
    *(Key(f"{stack}_attention_heads", f"{stack}.num_heads", 16) for stack in STACKS),
    Key("max_position_embeddings", "max_sequence_length", 1024),
    Key("dropout", "dropout", 0.1),
    Key("attention_dropout", "attention_dropout", 0.0),
    Key("activation_dropout", "feed_forward_dropout", 0.0),
    Key("init_std", "initializer_range", 0.02),
    Only("tie_word_embeddings", True),
)


def rules(ids, pre_norm, embedding_norm, sines=False, keys=RULES):
    """All rules of a family. Older files say of norms and positions what it has."""
    older = dict(
        normalize_before=pre_norm,
        add_final_layer_norm=pre_norm,
        normalize_embedding=embedding_norm,
        static_position_embeddings=sines,
    )
    return (
        *keys,
        activation("activation_function", "gelu"),
        scaled(False),
        special_ids(**ids, start_key="decoder_start_token_id"),
        *(Only(k, v, (None,), written=False) for k, v in older.items()),
    )


BART = Family(
    model_type="bart",
    architecture="encoder_decoder",
    fixed=dict(
        positions="learned",
        first_position=2,
        norm_position="post",
        norm_epsilon=1e-5,
        embedding_norm=True,
        share_embeddings=True,
        head_bias=True,
        initializer="truncated_normal",
    ),
    rules=rules(dict(pad=1, start=2, end=2), pre_norm=False, embedding_norm=True),
    modules={
        "encoder/token_embedding": Choice(
            "share_embeddings",
            {
                True: ("shared", "encoder.embed_tokens", "decoder.embed_tokens"),
                False: "encoder.embed_tokens",
            },
        ),
        "decoder/token_embedding": "decoder.embed_tokens",
        **{f"{s}/{own}": f"{s}.{name}" for s in STACKS for own, name in STACK.items()},
        **layers("encoder", "encoder.layers.{i}", **BLOCK),
        **layers("decoder", "decoder.layers.{i}", **BLOCK, **CROSS),
    },
    heads={
        "Seq2SeqLM": Head(
            "BartForConditionalGeneration",
            {"head": "lm_head", "head/bias": Raw("final_logits_bias", (1, -1), True)},
        )
    },
    prefix="model.",
    tokenizer="byte_bpe",
    irrelevant={
        "add_bias_logits",  # there always are some
        "bos_token_id",  # the decoder begins with decoder_start_token_id
        "classif_dropout",
        "classifier_dropout",
        "decoder_layerdrop",  # of training, as the encoder's
        "encoder_layerdrop",
        "extra_pos_embeddings",
        "force_bos_token_to_be_generated",  # of searches
        "num_hidden_layers",  # repeats encoder_layers
        "replacing_rate",  # of distillation, as the next three
        "save_step",
        "student_decoder_layers",
        "student_encoder_layers",
    },
    searches={"forced_eos_token_id": 2},
    ignored=(r"classification_head\..*", r"qa_outputs\..*", r".*coder\.version"),
)


def named_alike(model_type, architecture, fixed, **changes):
    """Another family whose weights have BART's names."""
    head = dataclasses.replace(BART.heads["Seq2SeqLM"], architecture=architecture)
    return dataclasses.replace(
        BART,
        model_type=model_type,
        fixed={**BART.fixed, **fixed},
        heads={"Seq2SeqLM": head},
        **changes,
    )


FAMILIES = {"bart": BART}
