"""Encoder and decoder joined by cross-attention."""

import keras

from kzoo.config import ModelConfig
from kzoo.models.model import Model
from kzoo.models.stack import Decoder, Encoder


def make_stacks(config, dtype=None, tables=(None, None)):
    """The encoder and the decoder of a `ModelConfig` (`None` where it has none).

    With `share_embeddings` the decoder uses the encoder's token table. `tables` are
    those of both, made where they are `None`.
    """
    encoder = decoder = None
    if config.encoder:
        encoder = Encoder(
            config.encoder, token_embedding=tables[0], dtype=dtype, name="encoder"
        )
    if config.decoder:
        decoder = Decoder(
            config.decoder,
            token_embedding=encoder.token_embedding
            if config.share_embeddings
            else tables[1],
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
        token_embeddings: the token tables of encoder and decoder, `TokenEmbedding`
            that somebody builds, or `None` for its own.
    """

    def __init__(self, config, token_embeddings=(None, None), **kwargs):
        found = getattr(config, "architecture", type(config).__name__)
        if found != "encoder_decoder":
            raise ValueError(
                "EncoderDecoder needs a ModelConfig with an encoder and a decoder. "
                f"Received: {found}."
            )
        super().__init__(**kwargs)
        self.config = config
        self.encoder, self.decoder = make_stacks(
            config, self.dtype_policy, token_embeddings
        )
        self._freeze_parts()

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
        """The arguments of `__init__`; Keras knows the token tables by name."""
        stacks = [
            self.encoder,
            *([] if self.config.share_embeddings else [self.decoder]),
        ]
        return {
            **super().get_config(),
            "config": self.config.to_dict(),
            "token_embeddings": [stack.described_table() for stack in stacks],
        }

    @classmethod
    def from_config(cls, config):
        """Builds the model from `get_config`'s result."""
        config = dict(config)
        described = config.pop("token_embeddings", ())
        config["config"] = ModelConfig.from_dict(config["config"])
        tables = [keras.saving.deserialize_keras_object(each) for each in described]
        made = cls(token_embeddings=(*tables, None, None)[:2], **config)
        stacks = [made.encoder, made.decoder][: len(tables)]
        if not all(s.fits(t) for s, t in zip(stacks, tables)):  # the config was edited
            return cls(**config)
        for stack in stacks:
            stack.shares_embedding = False  # built with its stack, as before
        return made
