"""ELECTRA (Clark et al., 2020, https://arxiv.org/abs/2003.10555).

BERT's stack. Of the two models that are trained together the generator is a `MaskedLM`;
the discriminator's own head, which is trained to find replaced tokens, kzoo has not.
"""

from kzoo.checkpoints.hf_config import Key, Rule, special_ids
from kzoo.checkpoints.naming import encoder_heads
from kzoo.checkpoints.table import Family
from kzoo.families.bert import BERT, FIXED, rules, segments


def _embedding_dim(keys):
    width, hidden = keys.get("embedding_size", 128), keys.get("hidden_size", 256)
    return {"embedding_dim": None if width == hidden else width}


ELECTRA = Family(
    model_type="electra",
    architecture="encoder",
    fixed=FIXED,
    rules=(
        *rules(width=256, heads=4, inner=1024),
        Rule(
            ("embedding_size", "hidden_size"),
            _embedding_dim,
            lambda field_of: {
                "embedding_size": field_of("embedding_dim") or field_of("hidden_dim")
            },
        ),
        Key("max_position_embeddings", "max_sequence_length", 512),
        special_ids(pad=0, start=101, end=102, mask=103),
    ),
    modules={**BERT.modules, "encoder/embedding_projection": "embeddings_project"},
    heads=encoder_heads(
        "Electra",
        "generator_predictions.{dense,LayerNorm} generator_lm_head",
        options={"hidden_activation": "gelu"},
        pooler="classifier.dense",
        classifier="classifier.out_proj",
        pooled={"hidden_activation": "gelu"},
    ),
    prefix="electra.",
    tokenizer="wordpiece",
    irrelevant={  # of multiple choice
        "summary_activation",
        "summary_first_dropout",
        "summary_last_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
    },
    ignored=(
        r".*embeddings\.position_ids",
        r"discriminator_predictions\.dense(_prediction)?\.(weight|bias)",
    ),
    checks=(segments,),
)

FAMILIES = {"electra": ELECTRA}
