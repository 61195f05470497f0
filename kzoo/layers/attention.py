"""Multi-head, grouped-query and multi-query attention; self and cross."""

import itertools
import math

import keras

from kzoo import ops
from kzoo.arguments import check_choice
from kzoo.layers.base import NORMS, Configured, Dropout, make_dense, make_norm
from kzoo.layers.similarity import SIMILARITIES


@keras.saving.register_keras_serializable("kzoo")
class Attention(Configured):
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
        scale: multiplies dot products; `None` means H ** -0.5 with `"scaled_dot"`, and
            1 with the other similarities, which have no other scale.
        dropout: rate on the attention weights while training.
        kernel_initializer: of the four projections, and of a similarity with weights.
        attention_bias: query, key and value have a bias; `None` means `use_bias`.
        similarity: `"scaled_dot"`, `"dot"`, `"general"`, `"additive"` or
            `"additive_tanh"`, see `kzoo.layers.similarity`.
        attention_output_bias: the output projection has a bias; `None` means
            `use_bias`.
        soft_cap: bounds the scores, see `ops.soft_capped`; `None` for none.
        query_key_norm: a norm over every head of query and key, `"layer_norm"`,
            `"rms_norm"` or `"std_norm"` (Henry et al., 2020,
            https://arxiv.org/abs/2010.04245); `None` for none.
        norm_epsilon: of that norm.
        norm_bias: whether a `"layer_norm"` has a bias.

    Raises:
        ValueError: N is not a multiple of K, or D of N without a `head_dim`; the
            similarity or norm is unknown, or has no scale.
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
        attention_bias=None,
        similarity="scaled_dot",
        query_key_norm=None,
        norm_epsilon=1e-6,
        attention_output_bias=None,
        soft_cap=None,
        norm_bias=True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        for name, value in (
            ("hidden_dim", hidden_dim),
            ("num_heads", num_heads),
            ("num_key_value_heads", num_key_value_heads),
            ("head_dim", head_dim),
            ("soft_cap", soft_cap),
        ):
            if value is not None and not 0 < value < math.inf:
                raise ValueError(
                    f"Attention.{name} must be more than 0, and finite. "
                    f"Received: {value}."
                )
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
        check_choice("Attention.similarity", similarity, SIMILARITIES)
        check_choice("Attention.query_key_norm", query_key_norm, {None: None, **NORMS})
        scaled = similarity == "scaled_dot"
        if not scaled and scale not in (None, 1.0):
            raise ValueError(
                "Attention.scale goes with similarity='scaled_dot'; leave it None with "
                f"the others. Received: scale={scale}, similarity={similarity!r}."
            )
        self.use_bias = use_bias
        self.attention_bias = use_bias if attention_bias is None else attention_bias
        default = self.head_dim**-0.5 if scaled else 1.0
        self.scale = default if scale is None else scale
        self.dropout = dropout
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.similarity = similarity
        self.query_key_norm, self.norm_epsilon = query_key_norm, norm_epsilon
        self.attention_output_bias, self.norm_bias = attention_output_bias, norm_bias
        if attention_output_bias is None:
            self.attention_output_bias = use_bias
        self.soft_cap = soft_cap

        key_value_width = self.num_key_value_heads * self.head_dim
        query_width = num_heads * self.head_dim
        self.query = make_dense(self, "query", query_width, self.attention_bias)
        self.key = make_dense(self, "key", key_value_width, self.attention_bias)
        self.value = make_dense(self, "value", key_value_width, self.attention_bias)
        self.output_projection = make_dense(
            self, "output", hidden_dim, self.attention_output_bias
        )
        self.query_norm, self.key_norm = (
            make_norm(query_key_norm, norm_epsilon, norm_bias, name, self.dtype_policy)
            if query_key_norm
            else None
            for name in ("query_norm", "key_norm")
        )
        self.scores = None
        if SIMILARITIES[similarity]:
            self.scores = SIMILARITIES[similarity](
                kernel_initializer=self.kernel_initializer.clone(),
                dtype=self.dtype_policy,
                name="similarity",
            )
        self.weights_dropout = (
            Dropout(dropout, dtype=self.dtype_policy, name="dropout")
            if dropout
            else None
        )

    def build(self, query_shape, memory_shape=None, value_shape=None):
        """Builds the projections from the inputs' widths."""
        memory_shape = memory_shape or query_shape
        self.query.build(query_shape)
        self.key.build(memory_shape)
        self.value.build(value_shape or memory_shape)
        self.output_projection.build((None, None, self.num_heads * self.head_dim))
        heads = (None, self.num_heads, None, self.head_dim)
        for layer in (self.query_norm, self.key_norm, self.scores):
            if layer is not None:
                layer.build(heads)
        self.built = True

    def _project(self, inputs):
        """`query`, `key` and `value`, or the last ones of them, of as many inputs.

        Neighbours that read the same tensor are one product where that is faster.
        """
        layers = [self.query, self.key, self.value][-len(inputs) :]
        results = []
        for _, pairs in itertools.groupby(
            zip(inputs, layers), key=lambda pair: id(pair[0])
        ):
            sources, together = zip(*pairs)
            results += ops.linears(sources[0], list(together))
        return results

    def _normalize(self, norm, x, num_heads):
        """The norm of every head of x, (B, T, N*H), where there is a norm."""
        if norm is None:
            return x
        batch, length, width = ops.shape(x)
        heads = ops.reshape(x, (batch, length, num_heads, self.head_dim))
        return ops.reshape(norm(heads), (batch, length, width))

    def project_memory(self, memory, value=None):
        """Keys and values of `memory`, to attend to many times.

        Before it is built, this builds it, for queries of width `hidden_dim`.

        Args:
            memory: float (B, S, D').
            value: float (B, S, D''), what the values are made of; `None` means
                `memory`.

        Returns:
            Two float (B, K, S, H), for `call(..., projected=...)`.
        """
        value = memory if value is None else value
        if not self.built:
            queries = (*memory.shape[:-1], self.hidden_dim)
            self.build(queries, tuple(memory.shape), tuple(value.shape))
        key, value = self._project([memory, value])
        key = self._normalize(self.key_norm, key, self.num_key_value_heads)
        return (
            ops.memory_heads(key, self.num_key_value_heads),
            ops.memory_heads(value, self.num_key_value_heads),
        )

    def compute_output_shape(self, query_shape, memory_shape=None, value_shape=None):
        """The queries', but for the width; without what `call` gives on request."""
        return (*query_shape[:-1], self.hidden_dim)

    def compute_output_spec(self, *args, **kwargs):
        """What `call` gives, on request several."""
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def call(
        self,
        query,
        memory=None,
        value=None,
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
            value: float (B, S, D''), what the values are made of; `None` means
                `memory`.
            attention_mask: bool, broadcastable to (B, N, T, S), `True` = may attend.
            bias: float, broadcastable to (B, N, T, S), added to the scores.
            rotation: cosine and sine, float (T, R/2) each, for rotary positions in the
                first R dimensions of a head.
            causal: query t attends to the keys 0 to t alone, of those that the mask
                allows. Where there is a cache, the mask has to say it. `"given"` where
                the mask says exactly this, made once for many layers.
            cache: keys and values before `query`, float (B, K, P, H) each; the result
                then has the cache with those of `query` behind them; in ONNX in parts,
                too, see `ops.attention`.
            index: int scalar, how much of the cache is filled.
            projected: keys and values from `project_memory`, instead of `memory`.
            return_weights: whether the attention weights are returned, too.
            training: whether dropout is applied.

        Returns:
            float (B, T, D); with a cache (that, cache); with `return_weights` a last
            item float (B, N, T, S).

        Raises:
            ValueError: a mask or a bias has three axes, which could be rows or heads; a
                mask is of floats; or there is a cache, and `causal`.
        """
        attention_mask = ops.as_bool(attention_mask)
        for name, given in (("attention_mask", attention_mask), ("bias", bias)):
            if given is not None and len(given.shape) == 3:
                raise ValueError(
                    f"{self.name}: {name} must have the axes (batch, heads, "
                    "queries, keys), some of length 1; one of (batch, queries, keys) "
                    f"is given as {name}[:, None]. Received: shape "
                    f"{tuple(given.shape)}."
                )
        if causal and cache is not None:
            raise ValueError(
                f"{self.name}: with a cache the places of queries are not known here: "
                "give the causal mask as attention_mask. Received: causal=True."
            )
        if projected is not None:
            key, value = projected
            query = self.query(query)
        else:
            memory = query if memory is None else memory
            value = memory if value is None else value
            query, key, value = self._project([query, memory, value])
            key = self._normalize(self.key_norm, key, self.num_key_value_heads)
        query = self._normalize(self.query_norm, query, self.num_heads)
        if rotation is not None:
            query = ops.rotate(query, *rotation, num_heads=self.num_heads)
            key = ops.rotate(key, *rotation, num_heads=self.num_key_value_heads)
        dropout = None
        if self.weights_dropout is not None:

            def dropout(weights):
                return self.weights_dropout(weights, training=training)

        is_causal = bool(causal) and (causal == "given" or attention_mask is None)
        if causal and causal != "given":
            keys = ops.arange(ops.dim(key, 1 if len(key.shape) == 3 else 2))
            queries = ops.arange(ops.dim(query, 1))
            mask = ops.expand_dims(keys, 0) <= ops.expand_dims(queries, 1)
            mask = ops.expand_dims(ops.expand_dims(mask, 0), 0)
            if not is_causal:
                mask = mask & attention_mask
            attention_mask = mask

        output, cache, weights = ops.attention(
            query,
            key,
            value,
            attention_mask,
            bias,
            num_heads=self.num_heads,
            num_key_value_heads=self.num_key_value_heads,
            scale=self.scale,
            causal=is_causal,
            cache=cache,
            index=index,
            similarity=self.scores,
            soft_cap=self.soft_cap,
            dropout=dropout,
            return_weights=return_weights,
        )
        output = self.output_projection(output)
        extras = [x for x in (cache, weights) if x is not None]
        return (output, *extras) if extras else output
