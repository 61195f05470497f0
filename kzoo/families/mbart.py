"""mBART (Liu et al., 2020, https://arxiv.org/abs/2001.08210)."""

from kzoo.families.bart import named_alike
from kzoo.families.fairseq import rules

MBART = named_alike(
    "mbart",
    "MBartForConditionalGeneration",
    fixed={"norm_position": "pre"},
    rules=rules(dict(pad=1, end=2), pre_norm=True, embedding_norm=True),
    tokenizer="fairseq_sentencepiece",
)

FAMILIES = {"mbart": MBART}
