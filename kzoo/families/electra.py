"""ELECTRA (Clark et al., 2020, https://arxiv.org/abs/2003.10555).

BERT's stack. Of the two models that are trained together the generator is a `MaskedLM`;
the discriminator's own head, which is trained to find replaced tokens, kzoo has not.
"""

from kzoo.checkpoints.hf_config import Key, Rule, special_ids
from kzoo.checkpoints.table import Family, Head
from kzoo.families.bert import BERT, BIASES, FIXED, HEAD_DROPOUT, POOLED, rules


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
    heads={
        "MaskedLM": Head(
            "ElectraForMaskedLM",
            {
                "head/hidden": "generator_predictions.dense",
                "head/norm": "generator_predictions.LayerNorm",
                "head/output": "generator_lm_head",
            },
            {"hidden_activation": "gelu", **BIASES},
        ),
        "TextClassifier": Head(
            "ElectraForSequenceClassification",
            {"head/hidden": "classifier.dense", "head/output": "classifier.out_proj"},
            {**POOLED, "hidden_activation": "gelu"},
            (HEAD_DROPOUT,),
        ),
        "TokenClassifier": Head(
            "ElectraForTokenClassification",
            {"head/output": "classifier"},
            rules=(HEAD_DROPOUT,),
        ),
        "QuestionAnswering": Head(
            "ElectraForQuestionAnswering", {"head/output": "qa_outputs"}
        ),
        "SentenceEmbedder": Head("ElectraModel"),
    },
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
)

FAMILIES = {"electra": ELECTRA}
