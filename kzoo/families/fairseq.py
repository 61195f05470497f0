"""What encoder-decoders have in common that were trained by fairseq, or named alike.

Ott et al., 2019, https://arxiv.org/abs/1904.01038. BART's names, and those of others.
"""

import math

from kzoo.checkpoints.hf_config import Key, Only, Rule, activation, special_ids
from kzoo.checkpoints.naming import layers

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
MODULES = {
    **{f"{s}/{own}": f"{s}.{name}" for s in STACKS for own, name in STACK.items()},
    **layers("encoder", "encoder.layers.{i}", **BLOCK),
    **layers("decoder", "decoder.layers.{i}", **BLOCK, **CROSS),
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


def dimensions(attention_dropout=0.0):
    """The rules of what all configs name alike; a rate where the key is left out."""
    return (
        Key("vocab_size", "vocabulary_size"),
        Key("d_model", "hidden_dim"),
        *(Key(f"{stack}_layers", f"{stack}.num_layers", 12) for stack in STACKS),
        *(
            Key(f"{stack}_ffn_dim", f"{stack}.intermediate_dim", 4096)
            for stack in STACKS
        ),
        *(
            Key(f"{stack}_attention_heads", f"{stack}.num_heads", 16)
            for stack in STACKS
        ),
        Key("max_position_embeddings", "max_sequence_length", 1024),
        Key("dropout", "dropout", 0.1),
        Key("attention_dropout", "attention_dropout", attention_dropout),
        Key("activation_dropout", "feed_forward_dropout", 0.0),
        Key("init_std", "initializer_range", 0.02),
        Only("tie_word_embeddings", True),
    )


RULES = dimensions()


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
