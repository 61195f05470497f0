"""Heads: from hidden states to what a task predicts."""

import keras

from kzoo import ops
from kzoo.config import StackConfig
from kzoo.layers.base import (
    Configured,
    Dense,
    Dropout,
    config_norm,
    make_dense,
    make_initializer,
)


@keras.saving.register_keras_serializable("kzoo")
class LanguageModelHead(Configured):
    """Logits of every token: the embedding table transposed, or a kernel of its own.

    Paper: Press and Wolf, 2017, https://arxiv.org/abs/1608.05859 (tying).

    Args:
        vocabulary_size: V.
        hidden_dim: D; a tied head takes that of its table.
        tied_to: the `Embedding` whose table is used, or `None`. A copy of a functional
            model that Keras makes of its config alone, such as `clone_model`'s, has two
            tables; one from a `.keras` file has one.
        use_bias: adds a bias.
        scale: multiplies the logits before the bias.
        soft_cap: bounds the logits, see `ops.soft_capped`; `None` for none.
        kernel_initializer: of an own kernel.

    Raises:
        ValueError: `tied_to` has a table of other than V rows, or a `soft_cap` that is
            not positive.
    """

    def __init__(
        self,
        vocabulary_size,
        hidden_dim,
        tied_to=None,
        use_bias=False,
        scale=1.0,
        soft_cap=None,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        if soft_cap is not None and not soft_cap > 0:
            raise ValueError(
                "LanguageModelHead.soft_cap must be positive, or None. "
                f"Received: {soft_cap!r}."
            )
        if tied_to is not None and tied_to.input_dim != vocabulary_size:
            raise ValueError(
                "LanguageModelHead.vocabulary_size must be that of tied_to, "
                f"{tied_to.input_dim}. Received: {vocabulary_size}."
            )
        self.vocabulary_size, self.hidden_dim = vocabulary_size, hidden_dim
        self.tied_to, self.use_bias, self.scale = tied_to, use_bias, scale
        self.soft_cap = soft_cap
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
            logits = ops.linear(x, self.kernel, self.bias)
        else:
            logits = self.tied_to.attend(x)
            if self.use_bias:
                logits = ops.add_bias(logits, self.bias)
        if self.soft_cap is not None:
            logits = ops.soft_capped(logits, self.soft_cap)
        return logits

    @classmethod
    def from_config(cls, config):
        """Builds the head from `get_config`'s result."""
        tied_to = keras.saving.deserialize_keras_object(config.get("tied_to"))
        return cls(**{**config, "tied_to": tied_to})

    def log_probabilities(self, x):
        """float (..., D) to log softmax of the logits, float (..., V).

        The "generator" of "The Annotated Transformer"; losses and search take logits.
        """
        return ops.log_softmax(self(x))


@keras.saving.register_keras_serializable("kzoo")
class PredictionHead(Configured):
    """Numbers of a state or a pooled vector: one linear layer, or two.

    Paper: Devlin et al., 2019, https://arxiv.org/abs/1810.04805, whose pooler is the
    inner layer, with "tanh".

    Args:
        units: C, how many numbers.
        hidden_dim: D.
        hidden_activation: adds an inner linear layer (D, D) with it, one of
            `ops.ACTIVATIONS`; `None` for none.
        dropout: rate on what the outer linear layer reads, while training.
        kernel_initializer: of the linear layers.
        hidden_bias: the inner layer has a bias.
        hidden_norm: a `StackConfig`, whose norm stands behind the activation, or
            `None` for none.
        use_bias: the outer linear layer has a bias.

    Raises:
        ValueError: an unknown activation, or a norm without an inner layer.
    """

    def __init__(
        self,
        units,
        hidden_dim,
        hidden_activation=None,
        dropout=0.0,
        kernel_initializer="glorot_uniform",
        hidden_bias=True,
        hidden_norm=None,
        use_bias=True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if hidden_activation not in (None, *ops.ACTIVATIONS):
            raise ValueError(
                "PredictionHead.hidden_activation must be None or one of "
                f"{list(ops.ACTIVATIONS)}. Received: {hidden_activation!r}."
            )
        if hidden_norm is not None and hidden_activation is None:
            raise ValueError(
                "PredictionHead.hidden_norm stands behind an inner layer, so it needs "
                "a hidden_activation. Received: None."
            )
        self.units, self.hidden_dim = units, hidden_dim
        self.hidden_activation, self.dropout = hidden_activation, dropout
        self.hidden_bias, self.hidden_norm = hidden_bias, hidden_norm
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.use_bias = use_bias
        self.hidden = self.norm = None
        if hidden_activation:
            self.hidden = make_dense(self, "hidden", hidden_dim, hidden_bias)
        if hidden_norm is not None:
            self.norm = config_norm(hidden_norm, "norm", self.dtype_policy)
        self.input_dropout = Dropout(dropout, dtype=self.dtype_policy, name="dropout")
        self.output_projection = make_dense(self, "output", units, use_bias)

    def build(self, *_):
        """Builds the linear layers."""
        shape = (None, self.hidden_dim)
        if self.hidden is not None:
            self.hidden.build(shape)
        if self.norm is not None:
            self.norm.build(shape)
        self.output_projection.build(shape)
        self.built = True

    def call(self, x, training=None):
        """float (..., D) to float (..., C)."""
        if self.hidden is not None:
            x = ops.ACTIVATIONS[self.hidden_activation](self.hidden(x))
        if self.norm is not None:
            x = self.norm(x)
        return self.output_projection(self.input_dropout(x, training=training))

    @classmethod
    def from_config(cls, config):
        """Builds the layer from `get_config`'s result."""
        norm = config.get("hidden_norm")
        return cls(**{**config, "hidden_norm": norm and StackConfig.from_dict(norm)})


@keras.saving.register_keras_serializable("kzoo")
class MaskedLanguageModelHead(Configured):
    """Logits of every token from a state: linear, activation, norm, token table, bias.

    Paper: Devlin et al., 2019, https://arxiv.org/abs/1810.04805, and its code, which
    has the layers before the table.

    Args:
        config: the `StackConfig` of the stack below.
        tied_to: the `Embedding` whose table is used, or `None` for a kernel of its own.
        activation: one of `ops.ACTIVATIONS`; `None` means the stack's.
        hidden_bias: the first linear layer has a bias; `None` means `config.use_bias`.
        output_bias: the logits have one.

    Raises:
        ValueError: an unknown activation.
    """

    def __init__(
        self,
        config,
        tied_to=None,
        activation=None,
        hidden_bias=None,
        output_bias=True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if activation not in (None, *ops.ACTIVATIONS):
            raise ValueError(
                "MaskedLanguageModelHead.activation must be None or one of "
                f"{list(ops.ACTIVATIONS)}. Received: {activation!r}."
            )
        self.config, self.tied_to, self.output_bias = config, tied_to, output_bias
        self.activation = activation or config.activation
        self.hidden_bias = config.use_bias if hidden_bias is None else hidden_bias
        self.hidden = Dense(
            config.embedding_width,
            use_bias=self.hidden_bias,
            kernel_initializer=make_initializer(config),
            dtype=self.dtype_policy,
            name="hidden",
        )
        self.norm = config_norm(config, "norm", self.dtype_policy)
        self.output_projection = LanguageModelHead(
            config.vocabulary_size,
            config.embedding_width,
            tied_to=tied_to,
            use_bias=output_bias,
            kernel_initializer=make_initializer(config),
            dtype=self.dtype_policy,
            name="output",
        )

    def build(self, *_):
        """Builds the layers."""
        self.hidden.build((None, self.config.hidden_dim))
        self.norm.build((None, None, self.config.embedding_width))
        self.output_projection.build()
        self.built = True

    def call(self, x):
        """float (..., D) to logits float (..., V)."""
        x = ops.ACTIVATIONS[self.activation](self.hidden(x))
        return self.output_projection(self.norm(x))

    @classmethod
    def from_config(cls, config):
        """Builds the head from `get_config`'s result."""
        tied_to = keras.saving.deserialize_keras_object(config["tied_to"])
        stack = StackConfig.from_dict(config["config"])
        return cls(**{**config, "config": stack, "tied_to": tied_to})
