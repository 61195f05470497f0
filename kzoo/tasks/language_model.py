"""What language models share: stacks, the head, next-token targets."""

from kzoo import ops
from kzoo.layers.base import make_initializer
from kzoo.layers.heads import LanguageModelHead
from kzoo.tasks.exported import ExportsGeneration
from kzoo.tasks.generates import Generates
from kzoo.tasks.text_data import LearnsText
from kzoo.training import Adam, Perplexity, TokenAccuracy, WarmupInverseSquareRoot


class LanguageModel(LearnsText, Generates, ExportsGeneration):
    """Stacks, a head over the decoder's states, and next-token targets.

    Args:
        config: a `ModelConfig` of the class's architecture.
        tokenizer: for strings.
    """

    def __init__(self, config, tokenizer=None, **kwargs):
        super().__init__(config, tokenizer=tokenizer, **kwargs)
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

    @property
    def ignore_id(self):
        """Padding, which the loss and the metrics leave out."""
        return self.config.pad_token_id

    def default_optimizer(self):
        """The paper's (section 5.3), with gradients clipped to norm 1."""
        return Adam(
            WarmupInverseSquareRoot(self.config.decoder.hidden_dim),
            beta_2=0.98,
            epsilon=1e-9,
            global_clipnorm=1.0,
        )

    def default_metrics(self):
        """Token accuracy and perplexity."""
        return [TokenAccuracy(self.ignore_id), Perplexity(self.ignore_id)]

    def _max_lengths(self):
        lengths = {}
        for name in self._signature():
            is_decoder = name == self.decoder_input
            stack = self.config.decoder if is_decoder else self.config.encoder
            if stack.positions == "learned":
                # The decoder reads all but the last id, which is only predicted.
                lengths[name] = stack.max_sequence_length + is_decoder
        return lengths or None

    def _inputs_and_targets(self, batch):
        full = batch[self.decoder_input]
        return {**batch, self.decoder_input: full[:, :-1]}, full[:, 1:]

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
