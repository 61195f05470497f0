"""The position-wise feed-forward sublayer."""

import keras

from kzoo import ops
from kzoo.arguments import check_choice
from kzoo.layers.base import Configured, Dropout, make_dense


@keras.saving.register_keras_serializable("kzoo")
class FeedForward(Configured):
    """act(x W1) W2, or gated (act(x Wg) * x W1) W2.

    Papers: Vaswani et al., 2017, section 3.3; Shazeer, 2020, "GLU Variants Improve
    Transformer", https://arxiv.org/abs/2002.05202.

    Args:
        hidden_dim: D, the width of input and output.
        intermediate_dim: F, the width between.
        activation: a key of `kzoo.ops.ACTIVATIONS`, as in `StackConfig.activation`.
        gated: whether a gate multiplies the inner activations.
        use_bias: the linear layers have a bias.
        dropout: rate on the inner activations while training.
        kernel_initializer: of the linear layers.

    Raises:
        ValueError: unknown activation.
    """

    def __init__(
        self,
        hidden_dim,
        intermediate_dim,
        activation="relu",
        gated=False,
        use_bias=True,
        dropout=0.0,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_choice("FeedForward.activation", activation, ops.ACTIVATIONS)
        self.supports_masking = True
        self.hidden_dim, self.intermediate_dim = hidden_dim, intermediate_dim
        self.activation, self.gated, self.use_bias = activation, gated, use_bias
        self.dropout = dropout
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.intermediate = make_dense(self, "intermediate", intermediate_dim, use_bias)
        self.gate = None
        if gated:
            self.gate = make_dense(self, "gate", intermediate_dim, use_bias)
        self.output_projection = make_dense(self, "output", hidden_dim, use_bias)
        self.inner_dropout = (
            Dropout(dropout, dtype=self.dtype_policy, name="dropout")
            if dropout
            else None
        )

    def build(self, input_shape):
        """Builds the linear layers."""
        self.intermediate.build(input_shape)
        if self.gate is not None:
            self.gate.build(input_shape)
        self.output_projection.build((None, None, self.intermediate_dim))
        self.built = True

    def compute_output_shape(self, input_shape):
        """The input's, but for the width."""
        return (*input_shape[:-1], self.hidden_dim)

    def call(self, x, training=None):
        """float (B, T, D) to float (B, T, D)."""
        activation = ops.ACTIVATIONS[self.activation]
        if training and self._remat_mode and self._remat_mode.mode == "activations":
            activation = keras.remat(activation)
        if self.gate is None:
            x = activation(self.intermediate(x))
        else:
            gate, x = ops.linears(x, [self.gate, self.intermediate])
            x = activation(gate) * x
        if self.inner_dropout is not None:
            x = self.inner_dropout(x, training=training)
        return self.output_projection(x)
