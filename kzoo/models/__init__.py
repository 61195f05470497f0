"""The models: token ids in, hidden states out; and what they attend to."""

from kzoo.models.encoder_decoder import EncoderDecoder
from kzoo.models.introspection import AttentionRecorder, token_saliency
from kzoo.models.stack import Decoder, Encoder

__all__ = [
    "AttentionRecorder",
    "Decoder",
    "Encoder",
    "EncoderDecoder",
    "token_saliency",
]
