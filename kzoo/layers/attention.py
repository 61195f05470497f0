"""Multi-head, grouped-query and multi-query attention; self and cross."""

import keras

from kzoo import ops
from kzoo.layers.base import Dense, Dropout, Layer


@keras.saving.register_keras_serializable("kzoo")
class Attention(Layer):
    """Attention by heads over `query`, `key`, `value` and `output` projections.

    Papers: Vaswani et al., 2017, section 3.2.2 (multi-head); Shazeer, 2019,
    https://arxiv.org/abs/1911.02150 (multi-query); Ainslie et al., 2023,
    https://arxiv.org/abs/2305.13245 (grouped-query).

    Args:
        hidden_dim: D, the width of the output.
        num_heads: N query heads.
        num_key_value_heads: K; `None` means N.
        head_dim: H; `None` means D // N.
        use_bias: the four projections have a bias.
        scale: multiplies the scores; `None` means H ** -0.5.
        dropout: rate on the attention weights while training.
        kernel_initializer: of the four projections.

    Raises:
        ValueError: N is not a multiple of K, or D of N without a `head_dim`.
    """

    def __init__(
        self,
        hidden_dim,
        num_heads,
        num_key_value_heads=None,
        head_dim=None,
        use_bias=True,
        scale=None,
        dropout=0.0,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        if head_dim is None and hidden_dim % num_heads:
            raise ValueError(
                "Attention needs hidden_dim to be a multiple of num_heads, or a "
                f"head_dim. Received: hidden_dim={hidden_dim}, num_heads={num_heads}."
            )
        self.hidden_dim, self.num_heads = hidden_dim, num_heads
        self.num_key_value_heads = num_key_value_heads or num_heads
        if num_heads % self.num_key_value_heads:
            raise ValueError(
                "Attention needs num_heads to be a multiple of num_key_value_heads. "
                f"Received: num_heads={num_heads}, "
                f"num_key_value_heads={num_key_value_heads}."
            )
        self.head_dim = head_dim or hidden_dim // num_heads
        self.use_bias = use_bias
        self.scale = self.head_dim**-0.5 if scale is None else scale
        self.dropout = dropout
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

        def projection(name, width):
            return Dense(
                width,
                use_bias=use_bias,
                kernel_initializer=self.kernel_initializer.clone(),
                dtype=self.dtype_policy,
                name=name,
            )

        key_value_dim = self.num_key_value_heads * self.head_dim
        self.query = projection("query", num_heads * self.head_dim)
        self.key = projection("key", key_value_dim)
        self.value = projection("value", key_value_dim)
        self.output_projection = projection("output", hidden_dim)
        self.weights_dropout = (
            Dropout(dropout, dtype=self.dtype_policy, name="dropout")
            if dropout
            else None
        )

    def build(self, query_shape, memory_shape=None):
        """Builds the projections from the inputs' widths."""
        self.query.build(query_shape)
        self.key.build(memory_shape or query_shape)
        self.value.build(memory_shape or query_shape)
        self.output_projection.build((None, None, self.num_heads * self.head_dim))
        self.built = True

    def project_memory(self, memory):
        """Keys and values of `memory`, to attend to many times.

        Args:
            memory: float (B, S, D').

        Returns:
            Two float (B, K, S, H), for `call(..., projected=...)`.
        """
        key, value = ops.linears(memory, [self.key, self.value])
        return (
            ops.memory_heads(key, self.num_key_value_heads),
            ops.memory_heads(value, self.num_key_value_heads),
        )

    def call(
        self,
        query,
        memory=None,
        attention_mask=None,
        bias=None,
        rotation=None,
        causal=False,
        cache=None,
        index=0,
        projected=None,
        return_weights=False,
        training=None,
    ):
        """Attends from `query` to `memory`, or to itself.

        Args:
            query: float (B, T, D).
            memory: float (B, S, D'), or `None` for self-attention.
            attention_mask: bool, broadcastable to (B, N, T, S), `True` = may attend.
            bias: float, broadcastable to (B, N, T, S), added to the scores.
            rotation: cosine and sine, float (T, H/2) each, for rotary positions.
            causal: the mask is exactly the causal one.
            cache: keys and values before `query`, float (B, K, P, H) each; the result
                then has the cache with those of `query` behind them.
            index: int scalar, how much of the cache is filled.
            projected: keys and values from `project_memory`, instead of `memory`. Its
                batch may be B / M: the M rows of a group then attend to one memory.
            return_weights: whether the attention weights are returned, too.
            training: whether dropout is applied.

        Returns:
            float (B, T, D); with a cache (that, cache); with `return_weights` a last
            item float (B, N, T, S).
        """
        shape = None
        if projected is not None:
            key, value = projected
            # Rows that share a memory become longer queries: nothing is repeated.
            shape = ops.shape(query)
            query = ops.reshape(query, (ops.dim(key, 0), -1, query.shape[-1]))
            query = self.query(query)
        elif memory is not None:
            query = self.query(query)
            key, value = ops.linears(memory, [self.key, self.value])
        else:
            query, key, value = ops.linears(query, [self.query, self.key, self.value])
        if rotation is not None:
            query = ops.rotate(query, *rotation, num_heads=self.num_heads)
            key = ops.rotate(key, *rotation, num_heads=self.num_key_value_heads)
        dropout = None
        if self.weights_dropout is not None:

            def dropout(weights):
                return self.weights_dropout(weights, training=training)

        output, cache, weights = ops.attention(
            query,
            key,
            value,
            attention_mask,
            bias,
            num_heads=self.num_heads,
            num_key_value_heads=self.num_key_value_heads,
            scale=self.scale,
            causal=causal,
            cache=cache,
            index=index,
            dropout=dropout,
            return_weights=return_weights,
        )
        output = self.output_projection(output)
        if shape is not None:
            output = ops.reshape(output, (shape[0], shape[1], self.hidden_dim))
        extras = [x for x in (cache, weights) if x is not None]
        return (output, *extras) if extras else output

    def get_config(self):
        """The arguments of `__init__`."""
        return {
            **super().get_config(),
            "hidden_dim": self.hidden_dim,
            "num_heads": self.num_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "use_bias": self.use_bias,
            "scale": self.scale,
            "dropout": self.dropout,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }
