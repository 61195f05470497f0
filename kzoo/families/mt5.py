"""mT5 (Xue et al., 2021, https://arxiv.org/abs/2010.11934)."""

from dataclasses import replace

from kzoo.checkpoints.hf_config import gated_activation
from kzoo.checkpoints.naming import encoder_decoder_heads
from kzoo.families.t5 import RULES, T5

MT5 = replace(
    T5,
    model_type="mt5",
    rules=(*RULES, gated_activation("gated-gelu")),
    heads=encoder_decoder_heads("MT5", prefix="transformer."),
)

FAMILIES = {"mt5": MT5}
