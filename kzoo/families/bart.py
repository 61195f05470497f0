"""BART (Lewis et al., 2020, https://arxiv.org/abs/1910.13461)."""

import dataclasses

from kzoo.checkpoints.hf_config import Unsupported
from kzoo.checkpoints.naming import encoder_decoder_heads
from kzoo.checkpoints.rows import Choice, Raw
from kzoo.checkpoints.table import Family
from kzoo.families.fairseq import MODULES, rules


def _depth(keys):
    said, layers = keys.get("num_hidden_layers"), keys["encoder_layers"]
    if said not in (None, layers):
        raise Unsupported(
            f"num_hidden_layers={said} is not supported beside encoder_layers={layers}:"
            " one is to repeat the other."
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
        **MODULES,
    },
    heads=encoder_decoder_heads("Bart", Raw("final_logits_bias", (1, -1), True)),
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
        "num_hidden_layers",  # repeats encoder_layers: `_depth`
        "replacing_rate",  # of distillation, as the next three
        "save_step",
        "student_decoder_layers",
        "student_encoder_layers",
    },
    searches={"forced_eos_token_id": 2},
    num_labels=3,
    ignored=(r".*coder\.version",),
    checks=(_depth,),
)


def named_alike(model_type, architecture, fixed, **changes):
    """Another family whose weights have BART's names: a language model."""
    head = dataclasses.replace(BART.heads["Seq2SeqLM"], architecture=architecture)
    return dataclasses.replace(
        BART,
        model_type=model_type,
        fixed={**BART.fixed, **fixed},
        heads={"Seq2SeqLM": head},
        **{"ignored": (), **changes},
    )


FAMILIES = {"bart": BART}
