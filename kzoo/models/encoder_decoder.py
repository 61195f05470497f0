"""Encoder and decoder joined by cross-attention."""

import keras

from kzoo.config import ModelConfig
from kzoo.models.stack import Decoder, Encoder, Model


def make_stacks(config, dtype=None):
    """The encoder and the decoder of a `ModelConfig` (`None` where it has none).

    With `share_embeddings` the decoder uses the encoder's token table.
    """
    encoder = decoder = None
    if config.encoder:
        encoder = Encoder(config.encoder, dtype=dtype, name="encoder")
    if config.decoder:
        decoder = Decoder(
            config.decoder,
            token_embedding=encoder.token_embedding
            if config.share_embeddings
            else None,
            memory_dim=config.encoder.hidden_dim if config.encoder else None,
            dtype=dtype,
            name="decoder",
        )
    return encoder, decoder


@keras.saving.register_keras_serializable("kzoo")
class EncoderDecoder(Model):
    """The paper's architecture without its head: hidden states of the decoder.

    Paper: Vaswani et al., 2017, https://arxiv.org/abs/1706.03762, figure 1.

    Args:
        config: a `ModelConfig` with both stacks.
    """

    def __init__(self, config, **kwargs):
        if config.architecture != "encoder_decoder":
            raise ValueError(
                "EncoderDecoder needs a config with an encoder and a decoder. "
                f"Received: {config.architecture}."
            )
        super().__init__(**kwargs)
        self.config = config
        self.encoder, self.decoder = make_stacks(config, self.dtype_policy)

    def build(self, *_):
        """Builds both stacks."""
        self.encoder.build()
        self.decoder.build()
        self.built = True

    def call(
        self,
        encoder_token_ids,
        decoder_token_ids,
        encoder_padding_mask=None,
        decoder_padding_mask=None,
        training=None,
    ):
        """Decoder states of `decoder_token_ids`, reading `encoder_token_ids`.

        Args:
            encoder_token_ids: int (B, S).
            decoder_token_ids: int (B, T).
            encoder_padding_mask: bool (B, S), `True` at real tokens.
            decoder_padding_mask: bool (B, T).
            training: whether dropout is applied.

        Returns:
            float (B, T, D).
        """
        memory = self.encoder(
            encoder_token_ids, padding_mask=encoder_padding_mask, training=training
        )
        return self.decoder(
            decoder_token_ids,
            padding_mask=decoder_padding_mask,
            memory=memory,
            memory_padding_mask=encoder_padding_mask,
            training=training,
        )

    def get_config(self):
        """The config, for `from_config`."""
        return {**super().get_config(), "config": self.config.to_dict()}

    @classmethod
    def from_config(cls, config):
        """Builds the model from `get_config`'s result."""
        config = dict(config)
        return cls(ModelConfig.from_dict(config.pop("config")), **config)
