"""Heads: from hidden states to what a task predicts."""

import keras

from kzoo import ops
from kzoo.layers.base import Layer


@keras.saving.register_keras_serializable("kzoo")
class LanguageModelHead(Layer):
    """Logits of every token: the embedding table transposed, or a kernel of its own.

    Paper: Press and Wolf, 2017, https://arxiv.org/abs/1608.05859 (tying).

    Args:
        vocabulary_size: V.
        hidden_dim: D.
        tied_to: the `Embedding` whose table is used, or `None`.
        use_bias: adds a bias.
        scale: multiplies the logits before the bias.
        kernel_initializer: of an own kernel.
    """

    def __init__(
        self,
        vocabulary_size,
        hidden_dim,
        tied_to=None,
        use_bias=False,
        scale=1.0,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.vocabulary_size, self.hidden_dim = vocabulary_size, hidden_dim
        self.tied_to, self.use_bias, self.scale = tied_to, use_bias, scale
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.kernel = self.bias = None

    def build(self, *_):
        """Creates the kernel (D, V) unless tied, and the bias (V,)."""
        if self.tied_to is None:
            self.kernel = self.add_weight(
                shape=(self.hidden_dim, self.vocabulary_size),
                initializer=self.kernel_initializer,
                name="kernel",
            )
        if self.use_bias:
            self.bias = self.add_weight(
                shape=(self.vocabulary_size,), initializer="zeros", name="bias"
            )
        self.built = True

    def call(self, x):
        """float (..., D) to logits float (..., V)."""
        if self.scale != 1.0:
            x = x * self.scale
        if self.tied_to is None:
            return ops.linear(x, self.kernel, self.bias)
        logits = self.tied_to.attend(x)
        return ops.add_bias(logits, self.bias) if self.use_bias else logits
