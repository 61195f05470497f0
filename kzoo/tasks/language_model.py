"""What language models share: stacks, the head, next-token targets."""

from kzoo import ops
from kzoo.config import ModelConfig
from kzoo.layers.base import make_initializer
from kzoo.layers.heads import LanguageModelHead
from kzoo.models.encoder_decoder import make_stacks
from kzoo.tasks.exported import Exports
from kzoo.tasks.generates import Generates
from kzoo.tasks.text_data import LearnsText


class LanguageModel(LearnsText, Generates, Exports):
    """Stacks, a head over the decoder's states, and next-token targets.

    Args:
        config: a `ModelConfig` of the class's architecture.
        tokenizer: for strings.
    """

    architecture: str

    def __init__(self, config, tokenizer=None, **kwargs):
        if config.architecture != self.architecture:
            raise ValueError(
                f"{type(self).__name__} needs a config of architecture "
                f"{self.architecture!r}. Received: {config.architecture!r}."
            )
        super().__init__(config, tokenizer=tokenizer, **kwargs)
        self.encoder, self.decoder = make_stacks(self.config, self.dtype_policy)
        decoder = self.config.decoder
        self.head = LanguageModelHead(
            decoder.vocabulary_size,
            decoder.hidden_dim,
            tied_to=self.decoder.token_embedding if self.config.tie_head else None,
            use_bias=self.config.head_bias,
            scale=self.config.head_scale,
            kernel_initializer=make_initializer(decoder),
            dtype=self.dtype_policy,
            name="head",
        )
        self.build()

    @classmethod
    def from_size(cls, size, tokenizer=None, vocabulary_size=None, **changes):
        """A new model of a named size (see `ModelConfig.from_size`).

        Args:
            size: a key of `kzoo.config.SIZES`.
            tokenizer: for strings; it also gives the vocabulary size.
            vocabulary_size: needed without a tokenizer.
            **changes: fields of the configs, or `name` and `dtype` of the model.
        """
        if vocabulary_size is None:
            if tokenizer is None:
                raise ValueError("from_size needs a tokenizer or a vocabulary_size.")
            vocabulary_size = tokenizer.vocabulary_size
        own = {k: changes.pop(k) for k in ("name", "dtype") if k in changes}
        config = ModelConfig.from_size(
            size, cls.architecture, vocabulary_size, **changes
        )
        return cls(config, tokenizer=tokenizer, **own)

    def build(self, *_):
        """Builds stacks and head inside this model's name scope."""
        if self.built:
            return
        for part in (self.encoder, self.decoder, self.head):
            if part is not None:
                part.build()
        self.built = True

    def targets(self, x):
        """What each decoder position should predict: the token after it, then padding.

        Args:
            x: dict of inputs with int (B, T) under the decoder's name.

        Returns:
            int (B, T).
        """
        ids = x[self.decoder_input]
        last = ops.full((ops.dim(ids, 0), 1), self.config.pad_token_id, ids.dtype)
        return ops.concatenate([ids[:, 1:], last], axis=1)

    def compute_loss(self, x=None, y=None, *args, **kwargs):
        """Keras's hook; without `y` the targets are the inputs, one token on."""
        y = self.targets(x) if y is None else y
        return super().compute_loss(x, y, *args, **kwargs)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """Keras's hook; without `y` the targets are the inputs, one token on."""
        y = self.targets(x) if y is None else y
        return super().compute_metrics(x, y, y_pred, sample_weight)
