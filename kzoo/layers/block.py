"""One transformer block: self-attention, cross-attention where asked, feed-forward."""

import keras

from kzoo.config import StackConfig
from kzoo.layers.attention import Attention
from kzoo.layers.base import Configured, Dropout, config_norm, make_initializer
from kzoo.layers.feed_forward import FeedForward


@keras.saving.register_keras_serializable("kzoo")
class Block(Configured):
    """Sublayers with residuals, and norms where `StackConfig.norm_position` says.

    Made in a `keras.RematScope` it keeps, in training, what it reads and computes the
    rest again for the gradient (Chen et al., 2016, https://arxiv.org/abs/1604.06174):
    the memory of a layer more, for more time.

    Args:
        config: a `StackConfig`.
        layer: the number of the first layer that it serves.

    Example:
        >>> with keras.RematScope(mode="full"):
        ...     model = kzoo.CausalLM.from_size("base", tokenizer)
    """

    rematerializes = True

    def __init__(self, config, layer=0, **kwargs):
        super().__init__(**kwargs)
        self.config, self.layer = config, layer
        dtype = self.dtype_policy

        def attention(name, soft_cap=None):
            return Attention(
                config.hidden_dim,
                config.num_heads,
                config.num_key_value_heads,
                config.head_dim,
                use_bias=config.use_bias,
                scale=config.attention_scale,
                dropout=config.attention_dropout,
                kernel_initializer=make_initializer(config),
                attention_bias=config.attention_bias,
                attention_output_bias=config.attention_output_bias,
                soft_cap=soft_cap,
                similarity=config.similarity,
                query_key_norm=config.norm if config.query_key_norm else None,
                norm_epsilon=config.norm_epsilon,
                norm_bias=config.norm_bias,
                dtype=dtype,
                name=name,
            )

        self.self_attention = attention("self_attention", config.attention_soft_cap)
        if config.cross_attention:
            self.cross_attention = attention("cross_attention")
        self.feed_forward = FeedForward(
            config.hidden_dim,
            config.intermediate_dim,
            config.activation,
            gated=config.feed_forward == "gated",
            use_bias=config.use_bias,
            dropout=config.feed_forward_dropout,
            kernel_initializer=make_initializer(config),
            dtype=dtype,
            name="feed_forward",
        )
        for name in self._sublayers:
            first = name == "self_attention" and layer == 0
            if config.first_norm or not first:
                norm = config_norm(config, f"{name}_norm", dtype)
                setattr(self, f"{name}_norm", norm)
            if config.norm_position == "both":
                norm = config_norm(config, f"{name}_output_norm", dtype)
                setattr(self, f"{name}_output_norm", norm)
        self.residual_dropout = Dropout(config.dropout, dtype=dtype, name="dropout")

    @property
    def _sublayers(self):
        cross = ["cross_attention"] if self.config.cross_attention else []
        return ["self_attention", *cross, "feed_forward"]

    def build(self, x_shape, memory_shape=None):
        """Builds the sublayers inside this block's name scope."""
        for name in self._sublayers:
            shapes = [x_shape]
            if name == "cross_attention":
                shapes.append(memory_shape or x_shape)
            getattr(self, name).build(*shapes)
            for norm in (f"{name}_norm", f"{name}_output_norm"):
                if hasattr(self, norm):
                    getattr(self, norm).build(x_shape)
        self.built = True

    def _sublayer(self, name, x, training, **kwargs):
        y, extras = self._branch(name, x, training, **kwargs)
        x = x + y
        if self.config.norm_position == "post":
            x = getattr(self, f"{name}_norm")(x)
        return x, extras

    def _branch(self, name, x, training, **kwargs):
        """What a sublayer adds to x, and what else it gives."""
        before = getattr(self, f"{name}_norm", None)
        if before is not None and self.config.norm_position != "post":
            x = before(x)
        y = getattr(self, name)(x, training=training, **kwargs)
        y, *extras = y if isinstance(y, tuple) else (y,)
        if self.config.norm_position == "both":
            y = getattr(self, f"{name}_output_norm")(y)
        return self.residual_dropout(y, training=training), extras

    def predictor(self, x, own=None, cross=None, training=None):
        """Self-attention, and cross-attention where it is asked for.

        The name is of Canziani's lectures (2021, https://atcold.github.io/NYU-DLSP21,
        week 10): what looks at other positions.

        Args:
            x: float (B, T, D), a tensor of the compute dtype.
            own: arguments of self-attention, see `Attention.call`.
            cross: arguments of cross-attention.
            training: whether dropout is applied.

        Returns:
            float (B, T, D), and two lists of what the attentions returned besides.
        """
        x, of_own = self._sublayer("self_attention", x, training, **(own or {}))
        of_cross = []
        if self.config.cross_attention:
            x, of_cross = self._sublayer(
                "cross_attention", x, training, **(cross or {})
            )
        return x, of_own, of_cross

    def decoder(self, x, training=None):
        """The position-wise feed-forward network: float (B, T, D) to float (B, T, D).

        The name is of the same lectures, which write it as a 1-D convolution.
        """
        return self._sublayer("feed_forward", x, training)[0]

    def call(
        self,
        x,
        attention_mask=None,
        causal=False,
        bias=None,
        rotation=None,
        cache=None,
        index=0,
        memory=None,
        cross_attention_mask=None,
        projected=None,
        return_weights=False,
        training=None,
    ):
        """`decoder(predictor(x))`, or the sum of both on x with `parallel_residual`.

        The arguments are those of `Attention.call`.

        Args:
            x: float (B, T, D).
            attention_mask: of self-attention.
            causal: of self-attention.
            bias: of self-attention.
            rotation: of self-attention.
            cache: of self-attention.
            index: of self-attention.
            memory: of cross-attention.
            cross_attention_mask: of cross-attention.
            projected: of cross-attention.
            return_weights: of both.
            training: whether dropout is applied.

        Returns:
            float (B, T, D), and two lists of what the attentions returned besides.
        """
        y, own, cross = self.predictor(
            x,
            own=dict(
                attention_mask=attention_mask,
                causal=causal,
                bias=bias,
                rotation=rotation,
                cache=cache,
                index=index,
                return_weights=return_weights,
            ),
            cross=dict(
                memory=memory,
                attention_mask=cross_attention_mask,
                projected=projected,
                return_weights=return_weights,
            ),
            training=training,
        )
        if self.config.parallel_residual:
            y = y + self._branch("feed_forward", x, training)[0]
        else:
            y = self.decoder(y, training=training)
        return y, own, cross

    @classmethod
    def from_config(cls, config):
        """Builds the layer from `get_config`'s result."""
        config = dict(config)
        return cls(StackConfig.from_dict(config.pop("config")), **config)
