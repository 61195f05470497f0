"""RoBERTa (https://arxiv.org/abs/1907.11692) and XLM-R (https://arxiv.org/abs/1911.02116).

BERT's stack, whose positions count from behind the id of padding.
"""

import dataclasses

from kzoo.checkpoints.hf_config import Rule, special_ids
from kzoo.checkpoints.naming import encoder_heads
from kzoo.checkpoints.table import Family
from kzoo.families.bert import BERT, FIXED, rules, segments

_PAD = 1
POSITIONS = Rule(
    ("max_position_embeddings", "pad_token_id"),
    lambda keys: {
        "first_position": keys.get("pad_token_id", _PAD) + 1,
        "max_sequence_length": keys.get("max_position_embeddings", 512)
        - (keys.get("pad_token_id", _PAD) + 1),
    },
    lambda field_of: {
        "max_position_embeddings": field_of("max_sequence_length")
        + field_of("first_position")
    },
)

ROBERTA = Family(
    model_type="roberta",
    architecture="encoder",
    fixed=FIXED,
    rules=(*rules(), POSITIONS, special_ids(pad=_PAD, start=0, end=2, mask=-1)),
    modules=BERT.modules,
    heads=encoder_heads(
        "Roberta",
        "lm_head.{dense,layer_norm,decoder}",
        bias="lm_head.bias",
        options={"hidden_activation": "gelu"},
        pooler="classifier.dense",
        classifier="classifier.out_proj",
    ),
    prefix="roberta.",
    tokenizer="byte_bpe",
    ignored=(r".*embeddings\.position_ids", r"(roberta\.)?pooler\.dense\..*"),
    checks=(segments,),
)

XLM_ROBERTA = dataclasses.replace(
    ROBERTA,
    model_type="xlm-roberta",
    heads={
        task: dataclasses.replace(head, architecture=f"XLM{head.architecture}")
        for task, head in ROBERTA.heads.items()
    },
    tokenizer="fairseq_sentencepiece",
)

FAMILIES = {"roberta": ROBERTA, "xlm-roberta": XLM_ROBERTA}
