"""The one stack: token ids to hidden states, with or without a cache."""

import functools
import operator

import keras
from keras.src.backend.common.symbolic_scope import in_symbolic_scope  # no public name

from kzoo import ops
from kzoo.config import StackConfig
from kzoo.layers.base import Dense, Dropout, config_norm, make_initializer
from kzoo.layers.base import Embedding as TokenEmbedding
from kzoo.layers.block import Block
from kzoo.layers.positions import (
    RelativeBias,
    alibi_bias,
    rotary_angles,
    sinusoidal_positions,
)
from kzoo.models.model import Model


class Stack(Model):
    """Embedding, positions, blocks and final norm, as a `StackConfig` says.

    Args:
        config: the `StackConfig`.
        token_embedding: an `Embedding` to share, or `None` for an own one.
        memory_dim: width of the encoder output that cross-attention reads; `None`
            means `config.hidden_dim`.
    """

    def __init__(self, config, token_embedding=None, memory_dim=None, **kwargs):
        super().__init__(**kwargs)
        self.config = config
        self.memory_dim = memory_dim or config.hidden_dim
        dtype = self.dtype_policy
        initializer = make_initializer(config)
        self.shares_embedding = token_embedding is not None

        def table(name, rows, initializer):
            return TokenEmbedding(
                rows,
                config.embedding_width,
                embeddings_initializer=initializer,
                dtype=dtype,
                name=name,
            )

        self.token_embedding = token_embedding or table(
            "token_embedding", config.vocabulary_size, initializer
        )
        if config.positions == "learned":
            rows = config.max_sequence_length + config.first_position
            self.position_embedding = table(
                "position_embedding", rows, initializer.clone()
            )
        if config.num_segments:
            self.segment_embedding = table(
                "segment_embedding", config.num_segments, initializer.clone()
            )
        if config.embedding_dim:
            self.embedding_projection = Dense(
                config.hidden_dim,
                kernel_initializer=initializer.clone(),
                dtype=dtype,
                name="embedding_projection",
            )
        if config.positions == "relative":
            self.position_bias = RelativeBias(
                config.num_heads,
                config.relative_buckets,
                config.relative_max_distance,
                bidirectional=not config.causal,
                embeddings_initializer=initializer.clone(),
                dtype=dtype,
                name="position_bias",
            )
        if config.embedding_norm:
            self.embedding_norm = config_norm(config, "embedding_norm", dtype)
        self.embedding_dropout = Dropout(config.dropout, dtype=dtype, name="dropout")
        groups = config.layer_groups or config.num_layers
        self.blocks = [
            Block(config, layer=i, dtype=dtype, name=f"layer_{i}")
            for i in range(groups)
        ]
        if config.final_norm:
            self.final_norm = config_norm(config, "final_norm", dtype)
        if not self.trainable:
            learns = self.token_embedding.trainable  # what another model has decides
            self._freeze_parts()
            if self.shares_embedding:
                self.token_embedding.trainable = learns

    def build(self, *_):
        """Builds every child inside this stack's name scope."""
        config = self.config
        shape = (None, None, config.hidden_dim)
        if not (self.shares_embedding or self.token_embedding.built):
            self.token_embedding.build((None, None))
        if config.positions == "learned":
            self.position_embedding.build((None, None))
        if config.num_segments:
            self.segment_embedding.build((None, None))
        if config.positions == "relative":
            self.position_bias.build()
        if config.embedding_norm:
            self.embedding_norm.build((None, None, config.embedding_width))
        if config.embedding_dim:
            self.embedding_projection.build((None, None, config.embedding_width))
        for block in self.blocks:
            block.build(shape, (None, None, self.memory_dim))
        if config.final_norm:
            self.final_norm.build(shape)
        self.built = True

    def call(
        self,
        token_ids,
        padding_mask=None,
        segment_ids=None,
        memory=None,
        memory_padding_mask=None,
        positions=None,
        places=None,
        attention_mask=None,
        cache=None,
        index=0,
        projected=None,
        return_weights=False,
        training=None,
    ):
        """Hidden states of the tokens.

        Args:
            token_ids: int (B, T).
            padding_mask: bool (B or 1, S), `True` at real tokens, or 1 as other
                libraries have it; with a cache S counts the cached tokens, too. `None`
                means that all are real.
            segment_ids: int (B or 1, T or 1), each less than `num_segments`; `None`
                means 0.
            memory: float (B, S', D'), what cross-attention reads.
            memory_padding_mask: bool (B, S'), `True` at real positions.
            positions: int (B or 1, T or 1), each less than S, that learned and
                sinusoidal vectors are of; by default the first of `places`, or else
                each row counts its real tokens from 0, so that padding may stand on
                either side.
            places: a pair, of the tokens and of every key, cached ones included, int
                (B or 1, T) and (B or 1, S), or without the first axis, each less than
                S. All that depends on distance (rotary positions, the biases, the
                window) follows from them; by default a token's place is its index.
            attention_mask: bool (B or 1, N or 1, T, S), `True` = may attend, instead of
                `padding_mask` and of what the order of the tokens says: so T tokens may
                be alternatives of one another.
            cache: from `empty_cache` or an earlier call.
            index: int scalar, how many entries of the cache are filled; where buffers
                grow, all that it has.
            projected: from `project_memory`, instead of `memory`.
            return_weights: whether the attention weights are wanted.
            training: whether dropout is applied.

        Returns:
            float (B, T, D); with a cache (that, new cache); with `return_weights` a
            last item: dict of `"self_attention"` and `"cross_attention"`, lists of
            float (B, N, T, S), one a layer.

        Raises:
            ValueError: the sequence is longer than the learned positions; memory is
                missing where there is cross-attention, or given where there is none;
                segments are given where there are none; `places` is no pair;
                `attention_mask` has not four axes, or comes with a `padding_mask`; ids,
                `padding_mask` or `segment_ids` have another shape, as far as it is
                known; a mask is of floats; or `index` is not what the cache holds.
        """
        config = self.config
        padding_mask, memory_padding_mask, attention_mask = map(
            ops.as_bool, (padding_mask, memory_padding_mask, attention_mask)
        )
        self._check_given(padding_mask, attention_mask, places)
        if config.cross_attention == (memory is None and projected is None):
            raise ValueError(
                f"{self.name} has {'' if config.cross_attention else 'no '}"
                "cross-attention, so it must be called with"
                f"{'' if config.cross_attention else 'out'} memory (or projected). "
                f"Received: memory={memory}."
            )
        if segment_ids is not None and not config.num_segments:
            raise ValueError(
                f"{self.name} has num_segments=0, so it must be called without "
                f"segment_ids. Received: segment_ids={segment_ids}."
            )
        self._check_shape("token_ids", token_ids, ("batch", None), ("tokens", None))
        length = key_length = ops.dim(token_ids, 1)
        if cache is not None:
            key_length = ops.cached_length(cache[0])
            if ops.buffers_grow():
                self._check_index(index, key_length)
                key_length = key_length + length
        rows = "batch", token_ids.shape[0], 1
        self._check_shape("padding_mask", padding_mask, rows, ("keys", key_length))
        self._check_shape("segment_ids", segment_ids, rows, ("tokens", length, 1))
        # A fixed cache has a capacity of keys, and alternatives share a position.
        if cache is None or (ops.buffers_grow() and attention_mask is None):
            self._check_length(key_length)
        query_index = ops.arange(length)
        if cache is not None:
            query_index = query_index + index
        key_index = query_index if cache is None else ops.arange(key_length)
        limit = key_length
        if places is None:
            places = query_index, key_index
        else:
            positions = places[0] if positions is None else positions
            if not isinstance(limit, int):
                limit = None  # not to be trusted

        x = self.token_embedding(token_ids)
        if config.embedding_scale != 1.0:
            x = x * config.embedding_scale
        if config.num_segments:
            if segment_ids is None:
                segment_ids = ops.full((1, 1), 0, "int32")
            x = x + self.segment_embedding(segment_ids)
        if config.positions in ("learned", "sinusoidal"):
            if positions is None:
                positions = _row_positions(query_index, padding_mask)
            x = x + ops.cast(self._position_vectors(positions, limit), x.dtype)
        if config.embedding_norm:
            x = self.embedding_norm(x)
        x = self.embedding_dropout(x, training=training)
        if config.embedding_dim:
            x = self.embedding_projection(x)

        @functools.cache
        def of_kind(windowed):
            """What the layers with a window, or those without, are given."""
            mask, causal = self._self_mask(
                query_index,
                key_index,
                places if windowed else None,
                padding_mask,
                attention_mask,
                cache,
                token_ids.shape[1],
            )
            rotation = self._rotation(places[0], limit, windowed)
            return dict(attention_mask=mask, causal=causal, rotation=rotation)

        shared = dict(
            index=index, return_weights=return_weights, bias=self._bias(*places)
        )
        if config.cross_attention:
            shared["memory"] = memory
            if memory_padding_mask is not None:
                shared["cross_attention_mask"] = _key_mask(memory_padding_mask)

        caches, weights = [], {"self_attention": [], "cross_attention": []}
        for i in range(config.num_layers):
            x, own, other = self.blocks[i * len(self.blocks) // config.num_layers](
                x,
                cache=cache[i] if cache else None,
                projected=projected[i] if projected else None,
                training=training,
                **of_kind(config.is_windowed(i)),
                **shared,
            )
            if cache is not None:
                caches.append(own[0])
            if return_weights:
                weights["self_attention"].append(own[-1])
                weights["cross_attention"] += other
        if config.final_norm:
            x = self.final_norm(x)
        results = [x]
        if cache is not None:
            results.append(caches)
        if return_weights:
            results.append(weights)
        return tuple(results) if len(results) > 1 else x

    def empty_cache(self, batch, capacity):
        """A cache without content: a list of (keys, values), one a layer.

        Args:
            batch: int or scalar, B.
            capacity: int, the most positions it will hold (where buffers are fixed).

        Returns:
            Lists of two float (B, K, 0 or capacity, H).
        """
        shape = (batch, self.config.num_key_value_heads, 0, self.config.head_dim)
        dtype = self.compute_dtype

        def make():
            return ops.buffer(shape, 2, capacity, dtype)

        return [(make(), make()) for _ in range(self.config.num_layers)]

    def project_memory(self, memory):
        """Cross-attention's keys and values, once for many steps; see `Attention`."""
        if not self.built:
            self.build()
        made = [block.cross_attention.project_memory(memory) for block in self.blocks]
        number = self.config.num_layers
        return [made[i * len(made) // number] for i in range(number)]

    def _check_given(self, padding_mask, attention_mask, places):
        if attention_mask is not None:
            if len(attention_mask.shape) != 4:
                raise ValueError(
                    f"{self.name}: attention_mask must have the axes (batch, heads, "
                    "queries, keys), some of length 1. Received: shape "
                    f"{tuple(attention_mask.shape)}."
                )
            if padding_mask is not None:
                raise ValueError(
                    f"{self.name}: attention_mask says what padding_mask would, so one "
                    "of the two can be given. Received: both."
                )
        if places is not None:
            pair = isinstance(places, (tuple, list)) and len(places) == 2
            if not pair or not all(len(x.shape) in (1, 2) for x in places):
                shapes = [tuple(x.shape) for x in places] if pair else type(places)
                raise ValueError(
                    f"{self.name}: places must be a pair, int (B, T) of the tokens and "
                    "(B, S) of the keys, or without the first axis. Received: "
                    f"{shapes}."
                )

    def _check_index(self, index, filled):
        both = isinstance(index, int) and isinstance(filled, int)
        if both and index != filled:
            raise ValueError(
                f"{self.name}: index must say how many tokens the cache holds, here "
                f"{filled}. Received: index={index}."
            )

    def _check_shape(self, name, x, *axes):
        """Raises `ValueError` where a shape, as far as it is known, is another.

        Args:
            name: of the argument.
            x: the argument, or `None`.
            *axes: of each the name and the lengths that it may have; with an unknown
                one it may have any.
        """
        if x is None:
            return
        if hasattr(x, "row_splits"):
            raise ValueError(
                f"{self.name}: {name} must be padded. Received: a ragged tensor; its "
                "to_tensor() fills short rows."
            )
        try:
            shape = tuple(x.shape)
        except ValueError:  # TensorFlow's, of unknown rank
            shape = None

        def are_known(lengths):
            return all(isinstance(length, int) for length in lengths)

        def fits(length, axis):
            return not are_known([length, *axis[1:]]) or length in axis[1:]

        if shape is None or len(shape) != len(axes) or not all(map(fits, shape, axes)):
            said = (
                f"{axis} {' or '.join(map(str, dict.fromkeys(lengths)))}"
                if lengths and are_known(lengths)
                else axis
                for axis, *lengths in axes
            )
            raise ValueError(
                f"{self.name}: {name} must have the axes ({', '.join(said)}). "
                f"Received: shape {x.shape if shape is None else shape}."
            )

    def _check_length(self, length):
        config = self.config
        if config.positions == "learned" and isinstance(length, int):
            if length > config.max_sequence_length and not _is_made_up():
                raise ValueError(
                    f"{self.name} has {config.max_sequence_length} learned positions. "
                    f"Received: a sequence of length {length}. Shorten it, or build "
                    "the model with a larger max_sequence_length."
                )

    def _position_vectors(self, positions, limit):
        config = self.config
        if config.first_position:
            positions = positions + config.first_position
            limit = None if limit is None else limit + config.first_position
        if config.positions == "learned":
            return self.position_embedding(positions)
        return sinusoidal_positions(
            positions, config.embedding_width, limit, config.sinusoidal_layout
        )

    def _rotation(self, positions, limit, windowed):
        config = self.config
        if config.positions != "rotary":
            return None
        wavelength, scaling = config.rope_max_wavelength, config.rope_scaling
        if windowed and config.window_rope_max_wavelength is not None:
            wavelength, scaling = config.window_rope_max_wavelength, None
        return rotary_angles(
            positions, config.rotary_dim or config.head_dim, wavelength, limit, scaling
        )

    def _bias(self, query_index, key_index):
        if self.config.positions == "relative":
            return self.position_bias(query_index, key_index=key_index)
        if self.config.positions == "alibi":
            return alibi_bias(query_index, key_index, self.config.num_heads)
        return None

    def _self_mask(
        self, query_index, key_index, places, padding_mask, given, cache, static_length
    ):
        """Who attends to whom, bool; and `causal` of `Attention.call`.

        `places` are those of queries and keys, where a window counts; `given` is a mask
        instead of padding and order.
        """
        window = self.config.attention_window

        def every_pair(related, query, key):
            pairs = related(ops.expand_dims(key, -2), ops.expand_dims(query, -1))
            pairs = ops.expand_dims(pairs, -3)
            return pairs if len(pairs.shape) == 4 else ops.expand_dims(pairs, 0)

        masks = [] if given is None else [given]
        is_last = cache is not None and static_length == 1 and ops.buffers_grow()
        # The last token sees all there is.
        causal = self.config.causal and not is_last and given is None
        if causal:
            masks.append(every_pair(operator.le, query_index, key_index))
        if places is not None:
            masks.append(
                every_pair(
                    lambda key, query: ops.absolute(key - query) < window, *places
                )
            )
        if padding_mask is not None:
            masks.append(_key_mask(padding_mask))
        mask = functools.reduce(operator.and_, masks) if masks else None
        is_exact = causal and cache is None and len(masks) == 1
        return mask, "given" if is_exact else False

    def get_config(self):
        """The arguments of `__init__`; the token table is named where it is shared."""
        return {
            **super().get_config(),
            "config": self.config.to_dict(),
            "memory_dim": self.memory_dim,
            "token_embedding": self.described_table(),
            "shares_embedding": self.shares_embedding,
        }

    def described_table(self):
        """The token table as Keras names it, for the config of who makes this stack."""
        table = self.token_embedding
        # Of an object inside a config Keras notes that it is shared from the second on,
        # so that the first, of the stack whose it is, would become another one.
        keras.saving.serialize_keras_object(table)
        table = keras.saving.serialize_keras_object(table)
        if not self.shares_embedding:
            table.pop("build_config", None)  # built with this stack, below its path
        return table

    def fits(self, table):
        """Whether a token table is of the sizes and the dtype of this stack."""
        config = self.config
        own = config.vocabulary_size, config.embedding_width, self.dtype_policy.name
        return own == (table.input_dim, table.output_dim, table.dtype_policy.name)

    @classmethod
    def from_config(cls, config):
        """Builds the model from `get_config`'s result."""
        config = dict(config)
        shares = config.pop("shares_embedding", False)
        table = config.pop("token_embedding", None)
        config["config"] = StackConfig.from_dict(config["config"])
        table = keras.saving.deserialize_keras_object(table)
        stack = cls(token_embedding=table, **config)
        if table is None:
            return stack
        if not (shares or stack.fits(table)):  # the config was edited
            return cls(**config)
        stack.shares_embedding = shares and table.built
        return stack


def _is_made_up():
    """Whether Keras, which infers shapes on torch, may have chosen a length itself."""
    return keras.backend.backend() == "torch" and in_symbolic_scope()


def _check_kind(config):
    if not isinstance(config, StackConfig):
        raise TypeError(
            "config must be a StackConfig, such as config.encoder of a ModelConfig. "
            f"Received: {type(config).__name__}."
        )


def _key_mask(padding_mask):
    """bool (B, S) to (B, 1, 1, S)."""
    return ops.expand_dims(ops.expand_dims(padding_mask, 1), 1)


def _row_positions(query_index, padding_mask):
    """How many real tokens stand before each query, int (B or 1, T)."""
    if padding_mask is None:
        return ops.expand_dims(query_index, 0)
    counted = ops.cumsum(ops.cast(padding_mask, "int32"), axis=1) - 1
    return ops.take(ops.maximum(counted, 0), query_index, axis=1)


@keras.saving.register_keras_serializable("kzoo")
class Encoder(Stack):
    """An encoder: every token sees every other one.

    Args:
        config: a `StackConfig` with `causal=False` and `cross_attention=False`.

    Example:
        >>> encoder = kzoo.Encoder(kzoo.StackConfig(vocabulary_size=100, num_layers=2))
        >>> encoder(np.array([[4, 7, 9]])).shape
        (1, 3, 512)
    """

    def __init__(self, config, **kwargs):
        _check_kind(config)
        if config.causal or config.cross_attention:
            raise ValueError(
                "Encoder needs causal=False and cross_attention=False. Received: "
                f"causal={config.causal}, cross_attention={config.cross_attention}."
            )
        super().__init__(config, **kwargs)


@keras.saving.register_keras_serializable("kzoo")
class Decoder(Stack):
    """A decoder: every token sees itself and those before it.

    Args:
        config: a `StackConfig` with `causal=True`; with `cross_attention=True` it also
            reads an encoder's output.
    """

    def __init__(self, config, **kwargs):
        _check_kind(config)
        if not config.causal:
            raise ValueError("Decoder needs a config with causal=True.")
        super().__init__(config, **kwargs)
