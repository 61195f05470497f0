"""mBART (Liu et al., 2020, https://arxiv.org/abs/2001.08210)."""

from kzoo.families.bart import BART, named_alike
from kzoo.families.fairseq import rules

MBART = named_alike(
    "mbart",
    "MBartForConditionalGeneration",
    fixed={"norm_position": "pre"},
    rules=rules(dict(pad=1, end=2), pre_norm=True, embedding_norm=True),
    tokenizer="fairseq_sentencepiece",
    # Other heads, whose decoders begin with a text's last token, as kzoo's do not.
    ignored=(*BART.ignored, r"classification_head\..*", r"qa_outputs\..*"),
)

FAMILIES = {"mbart": MBART}
