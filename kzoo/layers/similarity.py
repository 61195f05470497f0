"""What a query and a key score where that is no mere dot product.

Every layer takes query (B, N, T, H) and key (B, N, S, H) with the heads split and gives
scores (B, N, T, S); each head has weights of its own. `kzoo.ops.attention` takes dot
products by itself, in one kernel where the runtime has it.
"""

import keras

from kzoo import ops
from kzoo.layers.base import Configured


class Similarity(Configured):
    """Base: a function of a query and a key, both (H,), in each of N heads.

    Args:
        kernel_initializer: of the weights, a head at a time.
    """

    def __init__(self, kernel_initializer="glorot_uniform", **kwargs):
        super().__init__(**kwargs)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def _add_weight(self, name, shape):
        """A weight (N, ...) whose heads are drawn apart, with fans of their own."""

        def initializer(shape, dtype=None):
            heads = [self.kernel_initializer.clone() for _ in range(shape[0])]
            return keras.ops.stack([head(shape[1:], dtype=dtype) for head in heads])

        return self.add_weight(name=name, shape=shape, initializer=initializer)


@keras.saving.register_keras_serializable("kzoo")
class General(Similarity):
    """q^T W k (Luong et al., 2015, https://arxiv.org/abs/1508.04025, section 3.1)."""

    def build(self, query_shape, key_shape=None):
        """Creates `kernel` (N, H, H)."""
        _, num_heads, _, head_dim = query_shape
        self.kernel = self._add_weight("kernel", (num_heads, head_dim, head_dim))
        self.built = True

    def call(self, query, key):
        """float (B, N, T, H) and (B, N, S, H) to float (B, N, T, S)."""
        query = ops.linear_by_head(query, self.kernel)
        return ops.matmul(query, ops.transpose(key, (0, 1, 3, 2)))


@keras.saving.register_keras_serializable("kzoo")
class Additive(Similarity):
    """w^T q + w^T k.

    Softmax over the keys takes the query's term away, which is the same for all of
    them: every query ends with the same weights. `AdditiveTanh` has none of that.
    """

    def build(self, query_shape, key_shape=None):
        """Creates `vector` (N, H, 1)."""
        _, num_heads, _, head_dim = query_shape
        self.vector = self._add_weight("vector", (num_heads, head_dim, 1))
        self.built = True

    def call(self, query, key):
        """float (B, N, T, H) and (B, N, S, H) to float (B, N, T, S)."""
        of_keys = ops.linear_by_head(key, self.vector)
        of_queries = ops.linear_by_head(query, self.vector)
        return of_queries + ops.transpose(of_keys, (0, 1, 3, 2))


@keras.saving.register_keras_serializable("kzoo")
class AdditiveTanh(Similarity):
    """v^T tanh(Wq^T q + Wk^T k).

    Paper: Bahdanau et al., 2015, https://arxiv.org/abs/1409.0473, section A.1.2.
    """

    def build(self, query_shape, key_shape=None):
        """Creates `query_kernel` and `key_kernel` (N, H, H), `vector` (N, H, 1)."""
        _, num_heads, _, head_dim = query_shape
        square = (num_heads, head_dim, head_dim)
        self.query_kernel = self._add_weight("query_kernel", square)
        self.key_kernel = self._add_weight("key_kernel", square)
        self.vector = self._add_weight("vector", (num_heads, head_dim, 1))
        self.built = True

    def call(self, query, key):
        """float (B, N, T, H) and (B, N, S, H) to float (B, N, T, S)."""
        query = ops.linear_by_head(query, self.query_kernel)
        key = ops.linear_by_head(key, self.key_kernel)
        inner = ops.tanh(ops.expand_dims(query, 3) + ops.expand_dims(key, 2))
        batch, num_heads, length, memory_length, head_dim = ops.shape(inner)
        rows = ops.reshape(inner, (batch, num_heads, -1, head_dim))
        scores = ops.linear_by_head(rows, self.vector)
        return ops.reshape(scores, (batch, num_heads, length, memory_length))


# By the names of `StackConfig.similarity`; `None` where it is a dot product.
SIMILARITIES = {
    "scaled_dot": None,
    "dot": None,
    "general": General,
    "additive": Additive,
    "additive_tanh": AdditiveTanh,
}
