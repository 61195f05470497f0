"""The models: token ids in, hidden states out."""

from kzoo.models.encoder_decoder import EncoderDecoder
from kzoo.models.stack import Decoder, Encoder

__all__ = ["Decoder", "Encoder", "EncoderDecoder"]
