"""Pegasus (Zhang et al., 2020, https://arxiv.org/abs/1912.08777)."""

from kzoo.families.bart import named_alike
from kzoo.families.fairseq import rules
from kzoo.families.marian import SINUSOIDAL, TABLES

PEGASUS = named_alike(
    "pegasus",
    "PegasusForConditionalGeneration",
    fixed={**SINUSOIDAL, "norm_position": "pre"},
    rules=rules(
        dict(pad=0, start=0, end=1), pre_norm=True, embedding_norm=False, sines=True
    ),
    tokenizer="pegasus",
    searches={"forced_eos_token_id": 1},
    computed=TABLES,
)

FAMILIES = {"pegasus": PEGASUS}
