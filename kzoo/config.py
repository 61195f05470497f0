"""What a model is: frozen, validated data. No field is a family's name.

`StackConfig` describes one stack from token ids to hidden states;
`ModelConfig` joins one or two stacks into an architecture with a language-model
head. Two exclusive options are one `Literal`; a combination that cannot work
raises `ValueError` when it is built, naming both fields.
"""

import dataclasses
import json
import math
from pathlib import Path
from typing import Literal, get_args, get_type_hints

from kzoo.arguments import check_type

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "linear"]
Architecture = Literal["encoder", "decoder", "encoder_decoder"]
Initializer = Literal["xavier", "truncated_normal"]
Norm = Literal["layer_norm", "rms_norm", "offset_rms_norm", "std_norm"]
NormPosition = Literal["pre", "post", "both"]
Positions = Literal["none", "learned", "sinusoidal", "rotary", "relative", "alibi"]
Similarity = Literal["scaled_dot", "dot", "general", "additive", "additive_tanh"]
SinusoidalLayout = Literal["interleaved", "halves", "tensor2tensor"]

# Fields of a stack that what it computes does not depend on, and its training does.
DROPOUT_RATES = ("dropout", "attention_dropout", "feed_forward_dropout")
TRAINING_FIELDS = {*DROPOUT_RATES, "initializer", "initializer_range"}


class _Config:
    """Dictionary round trip and type checks shared by both configs."""

    def __post_init__(self):
        hints = get_type_hints(type(self))
        for field in dataclasses.fields(self):
            check_type(
                type(self).__name__,
                field.name,
                getattr(self, field.name),
                hints[field.name],
            )

    def _check_positive(self, *names, optional=False):
        """Raises `ValueError` where a field is 0 or less; `None` is let through."""
        for name in names:
            value = getattr(self, name)
            if not (optional and value is None) and not value > 0:
                raise ValueError(
                    f"{type(self).__name__}.{name} must be positive"
                    f"{', or None' if optional else ''}. Received: {value!r}."
                )

    def to_dict(self):
        """A JSON-serialisable dict; `from_dict` gives an equal config back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values):
        """Builds the config from `to_dict`'s result, or what JSON makes of it.

        Raises:
            ValueError: not a dict, or a key is unknown; it is named, with the known
                ones.
        """
        if not isinstance(values, dict):
            raise ValueError(
                f"{cls.__name__}.from_dict expects a dict. Received: {values!r}."
            )
        values = dict(values)
        for name, hint in get_type_hints(cls).items():
            if name in values:
                values[name] = _of_json(values[name], hint)
        known = [field.name for field in dataclasses.fields(cls)]
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise ValueError(
                f"{cls.__name__} has no field {unknown}. Known fields: {known}."
            )
        return cls(**values)

    def replace(self, **changes):
        """A copy with some fields changed, validated again.

        What is as it follows from other fields follows from the new ones, also where
        it was given: equal configs give equal ones.
        """
        following = {
            field.name: None
            for field in dataclasses.fields(self)
            if field.default is None and self._follows(field.name)
        }
        return dataclasses.replace(self, **following | changes)

    def _follows(self, name):
        """Whether a field is what it would be if it were left out."""
        if getattr(self, name) is None:
            return True
        try:
            return dataclasses.replace(self, **{name: None}) == self
        except (TypeError, ValueError):
            return False


@dataclasses.dataclass(frozen=True, kw_only=True)
class RopeScaling(_Config):
    """How rotary frequencies are stretched for more positions than were trained.

    Args:
        kind: `"linear"` divides all frequencies by `factor` (Chen et al., 2023,
            https://arxiv.org/abs/2306.15595); `"bands"` those of wavelengths above
            `original_length / low_frequency_factor` tokens, with a smooth change up to
            `original_length / high_frequency_factor` (Grattafiori et al., 2024,
            https://arxiv.org/abs/2407.21783); `"yarn"` those that turn fewer than
            `beta_slow` times in `original_length`, with a ramp up to `beta_fast` (Peng
            et al., 2023, https://arxiv.org/abs/2309.00071, section 3.2).
        factor: at least 1.
        original_length: how many positions were trained, in tokens; not for "linear".
        low_frequency_factor: of "bands".
        high_frequency_factor: of "bands", above `low_frequency_factor`.
        beta_fast: of "yarn", in turns.
        beta_slow: of "yarn", in turns.
        attention_factor: of "yarn": multiplies rotated queries and keys; `None` means
            0.1 ln(factor) + 1 (section 3.4).
        truncate: of "yarn": the ramp's ends are whole dimensions.
    """

    kind: Literal["linear", "bands", "yarn"]
    factor: float
    original_length: int | None = None
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True

    def __post_init__(self):
        super().__post_init__()
        if not self.factor >= 1:
            raise ValueError(
                f"RopeScaling.factor must be at least 1. Received: {self.factor}."
            )
        if (self.original_length is None) != (self.kind == "linear"):
            raise ValueError(
                "RopeScaling.original_length goes with kind='bands' or 'yarn', and "
                f"has to be given there. Received: kind={self.kind!r}, "
                f"original_length={self.original_length}."
            )
        if self.original_length is not None:
            self._check_positive("original_length")
        for low, high in (
            ("low_frequency_factor", "high_frequency_factor"),
            ("beta_slow", "beta_fast"),
        ):
            if not 0 < getattr(self, low) < getattr(self, high):
                raise ValueError(
                    f"RopeScaling.{low} must be positive and less than {high}. "
                    f"Received: {getattr(self, low)} and {getattr(self, high)}."
                )
        if self.attention_factor is not None and (
            self.kind != "yarn" or not self.attention_factor > 0
        ):
            raise ValueError(
                "RopeScaling.attention_factor is positive and goes with kind='yarn'. "
                f"Received: {self.attention_factor}, kind={self.kind!r}."
            )
        if self.attention_factor is None and self.kind == "yarn":
            factor = 0.1 * math.log(self.factor) + 1.0
            object.__setattr__(self, "attention_factor", factor)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StackConfig(_Config):
    """One transformer stack: embedding, positions, `num_layers` blocks, final norm.

    The defaults are the encoder of "Attention Is All You Need" (Vaswani et al.,
    2017, base size) with the norm in front, which trains without a fragile warm-up.

    Args:
        vocabulary_size: rows of the token embedding.
        num_layers: blocks.
        hidden_dim: width D of the residual stream.
        embedding_dim: width of the embedding tables and of `embedding_norm`; a linear
            layer with a bias makes D of it (Lan et al., 2020, section 3.1). `None`
            means D, without that layer.
        layer_groups: how many different blocks there are; each serves
            `num_layers / layer_groups` layers in turn (Lan et al., 2020, section 3.1).
            `None` means `num_layers`.
        num_heads: query heads N.
        intermediate_dim: width F inside the feed-forward.
        num_key_value_heads: key and value heads K; `num_heads` is multi-head, 1 is
            multi-query (Shazeer, 2019), between is grouped-query attention
            (Ainslie et al., 2023). `None` means `num_heads`.
        head_dim: width H of a head; `None` means `hidden_dim // num_heads`.
        max_sequence_length: rows of a learned position table, in tokens; the other
            position kinds have no limit of their own.
        positions: `"learned"` and `"sinusoidal"` are added to the embedding;
            `"rotary"` rotates query and key; `"relative"` (T5 buckets) and `"alibi"`
            add a bias to the attention scores; `"none"`.
        first_position: the number of the first token, for learned and sinusoidal
            positions; a learned table has as many rows more.
        sinusoidal_layout: `"interleaved"` is the paper's; `"halves"` has all sines
            before all cosines; `"tensor2tensor"`, too, with frequencies whose last one
            is 1 / 10 000 itself, as that library has them.
        rope_max_wavelength: in tokens; 10 000 in RoFormer, 500 000 in Llama 3.
        rope_scaling: a `RopeScaling`, or `None`.
        window_rope_max_wavelength: in layers with a window, which then have no
            `rope_scaling`; `None` means that they are as the others (Gemma 3, 2025,
            https://arxiv.org/abs/2503.19786, section 2).
        rotary_dim: how many of a head's dimensions rotate, the first ones; `None`
            means all. GPT-NeoX rotates a quarter (Black et al., 2022, section 2.1).
        relative_buckets: rows of the relative-bias table (T5: 32).
        relative_max_distance: in tokens; farther ones share a bucket (T5: 128).
        num_segments: rows of a segment table that is added to the token embedding, as
            BERT has for its two sentences (Devlin et al., 2019); 0 for none.
        norm: `"layer_norm"` (Ba et al., 2016), `"rms_norm"` (Zhang and Sennrich, 2019),
            `"offset_rms_norm"`, whose scale is stored less 1, or `"std_norm"`, see
            `kzoo.layers.StdNormalization`.
        norm_bias: `"layer_norm"` adds a bias.
        norm_position: `"pre"` is x + f(norm(x)), `"post"` is norm(x + f(x)), `"both"`
            is x + norm(f(norm(x))) (Gemma 2, 2024, https://arxiv.org/abs/2408.00118).
        first_norm: the first block has a norm before its self-attention, with "pre";
            ModernBERT leaves it out behind `embedding_norm`.
        parallel_residual: x + attention(norm(x)) + feed_forward(norm'(x)), with "pre"
            and without cross-attention (Black et al., 2022, section 2.1).
        norm_epsilon: added to the variance (mean square for RMS) under the root, or to
            the standard deviation of `"std_norm"`.
        final_norm: a norm after the last block; `None` means "unless `"post"`".
        embedding_norm: a norm after the embedding and positions, as BERT and BART have.
        embedding_scale: the token embedding is multiplied by it; the paper has
            sqrt(hidden_dim) (section 3.4).
        feed_forward: `"plain"` act(x W1) W2, or `"gated"` (act(x Wg) * x W1) W2
            (Shazeer, 2020, "GLU Variants Improve Transformer").
        activation: `"gelu"` is exact (erf), `"gelu_tanh"` its tanh approximation. With
            `"gated"`, Shazeer's GLU is `"sigmoid"`, Bilinear `"linear"`, ReGLU
            `"relu"`, GEGLU `"gelu"` and SwiGLU `"silu"`.
        use_bias: linear layers have a bias.
        attention_bias: query, key and value projections have a bias; `None` means
            `use_bias`.
        attention_output_bias: the output projection has one; `None` means `use_bias`.
        similarity: what a query and a key score, see `kzoo.layers.similarity`.
        attention_scale: dot products are multiplied by it; `None` means
            head_dim ** -0.5 with `"scaled_dot"`, and 1 with the others, which have no
            other scale.
        attention_soft_cap: scores of self-attention become cap * tanh(scores / cap),
            before masks (Gemma 2, 2024, section 2); `None` for none.
        attention_window: a token attends to those less than so many tokens away, itself
            among them: on both sides, or with `causal` to the past (Longformer, Beltagy
            et al., 2020, section 3.1; Mistral 7B, Jiang et al., 2023, section 2).
            `None` for no limit. Cross-attention has none, and a cache keeps all.
        windowed_layers: the numbers of the layers with that window, rising from 0;
            `None` means all.
        query_key_norm: `norm` over every head of query and key, before rotation (Henry
            et al., 2020, "Query-Key Normalization for Transformers").
        dropout: rate on every sublayer's output and on the embedding (section 5.4).
        attention_dropout: rate on the attention weights.
        feed_forward_dropout: rate on the feed-forward's inner activations.
        causal: position t attends to positions <= t only.
        cross_attention: every block also attends to an encoder's output.
        initializer: `"xavier"` (Glorot uniform) or `"truncated_normal"`.
        initializer_range: standard deviation of `"truncated_normal"`.
    """

    vocabulary_size: int
    num_layers: int = 6
    hidden_dim: int = 512
    embedding_dim: int | None = None
    layer_groups: int | None = None
    num_heads: int = 8
    intermediate_dim: int = 2048
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_sequence_length: int = 512
    positions: Positions = "sinusoidal"
    first_position: int = 0
    sinusoidal_layout: SinusoidalLayout = "interleaved"
    rope_max_wavelength: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    window_rope_max_wavelength: float | None = None
    rotary_dim: int | None = None
    relative_buckets: int = 32
    relative_max_distance: int = 128
    num_segments: int = 0
    norm: Norm = "layer_norm"
    norm_bias: bool = True
    norm_position: NormPosition = "pre"
    first_norm: bool = True
    parallel_residual: bool = False
    norm_epsilon: float = 1e-6
    final_norm: bool | None = None
    embedding_norm: bool = False
    embedding_scale: float = 1.0
    feed_forward: Literal["plain", "gated"] = "plain"
    activation: Activation = "relu"
    use_bias: bool = True
    attention_bias: bool | None = None
    attention_output_bias: bool | None = None
    similarity: Similarity = "scaled_dot"
    attention_scale: float | None = None
    attention_soft_cap: float | None = None
    attention_window: int | None = None
    windowed_layers: tuple | None = None
    query_key_norm: bool = False
    dropout: float = 0.1
    attention_dropout: float = 0.0
    feed_forward_dropout: float = 0.0
    causal: bool = False
    cross_attention: bool = False
    initializer: Initializer = "xavier"
    initializer_range: float = 0.02

    def __post_init__(self):
        super().__post_init__()
        if self.num_key_value_heads is None:
            object.__setattr__(self, "num_key_value_heads", self.num_heads)
        self._check_positive(
            "vocabulary_size",
            "num_layers",
            "hidden_dim",
            "num_heads",
            "num_key_value_heads",
            "intermediate_dim",
            "max_sequence_length",
            "relative_max_distance",
            "rope_max_wavelength",
            "norm_epsilon",
            "initializer_range",
        )
        if self.head_dim is None:
            if self.hidden_dim % self.num_heads:
                raise ValueError(
                    "StackConfig.hidden_dim must be a multiple of num_heads, or "
                    f"head_dim be given. Received: hidden_dim={self.hidden_dim}, "
                    f"num_heads={self.num_heads}."
                )
            object.__setattr__(self, "head_dim", self.hidden_dim // self.num_heads)
        self._check_positive("head_dim")
        if self.num_heads % self.num_key_value_heads:
            raise ValueError(
                "StackConfig.num_heads must be a multiple of num_key_value_heads. "
                f"Received: num_heads={self.num_heads}, "
                f"num_key_value_heads={self.num_key_value_heads}."
            )
        if self.positions == "rotary" and not self.rotary_dim and self.head_dim % 2:
            raise ValueError(
                "positions='rotary' needs an even head_dim, or a rotary_dim. "
                f"Received: head_dim={self.head_dim}."
            )
        dot_products = ("scaled_dot", "dot")
        if self.positions == "rotary" and self.similarity not in dot_products:
            raise ValueError(
                "positions='rotary' needs a similarity of 'scaled_dot' or 'dot': no "
                "other one turns rotations into relative positions. "
                f"Received: similarity={self.similarity!r}."
            )
        for name, other, value in (
            ("rotary_dim", "positions", "rotary"),
            ("rope_scaling", "positions", "rotary"),
            ("window_rope_max_wavelength", "positions", "rotary"),
            ("attention_soft_cap", "similarity", "scaled_dot"),
        ):
            if getattr(self, name) is not None and getattr(self, other) != value:
                raise ValueError(
                    f"StackConfig.{name} needs {other}={value!r}. Received: "
                    f"{name}={getattr(self, name)}, {other}={getattr(self, other)!r}."
                )
        rotary_dim = self.rotary_dim
        if rotary_dim is not None and (
            rotary_dim % 2 or not 0 < rotary_dim <= self.head_dim
        ):
            raise ValueError(
                "StackConfig.rotary_dim must be even, positive and at most head_dim. "
                f"Received: rotary_dim={rotary_dim}, head_dim={self.head_dim}."
            )
        if self.positions == "sinusoidal" and self.embedding_width % 2:
            raise ValueError(
                "positions='sinusoidal' needs an even hidden_dim, or embedding_dim. "
                f"Received: hidden_dim={self.hidden_dim}, "
                f"embedding_dim={self.embedding_dim}."
            )
        if self.sinusoidal_layout == "tensor2tensor" and self.embedding_width < 4:
            raise ValueError(
                "sinusoidal_layout='tensor2tensor' needs two frequencies, a width of 4 "
                f"at least. Received: {self.embedding_width}."
            )
        for name in ("windowed_layers", "window_rope_max_wavelength"):
            if getattr(self, name) is not None and self.attention_window is None:
                raise ValueError(
                    f"StackConfig.{name} needs an attention_window. "
                    f"Received: {name}={getattr(self, name)}, attention_window=None."
                )
        self._check_positive(
            "embedding_dim",
            "window_rope_max_wavelength",
            "attention_soft_cap",
            optional=True,
        )
        layers, number = self.windowed_layers, self.num_layers
        if layers is not None and not (
            all(type(i) is int and 0 <= i < number for i in layers)
            and list(layers) == sorted(set(layers))
        ):
            raise ValueError(
                "StackConfig.windowed_layers must be rising numbers of layers, from 0 "
                f"to {number - 1}. Received: {layers}."
            )
        if self.layer_groups is not None and (
            self.layer_groups < 1 or self.num_layers % self.layer_groups
        ):
            raise ValueError(
                "StackConfig.layer_groups must divide num_layers. Received: "
                f"layer_groups={self.layer_groups}, num_layers={self.num_layers}."
            )
        if self.first_position < 0:
            raise ValueError(
                "StackConfig.first_position must not be negative. "
                f"Received: {self.first_position}."
            )
        if not self.norm_bias and self.norm != "layer_norm":
            raise ValueError(
                "StackConfig.norm_bias=False goes with norm='layer_norm'. "
                f"Received: norm={self.norm!r}."
            )
        for name, value in (("first_norm", False), ("parallel_residual", True)):
            if getattr(self, name) is value and self.norm_position != "pre":
                raise ValueError(
                    f"StackConfig.{name}={value} needs norm_position='pre'. "
                    f"Received: {self.norm_position!r}."
                )
        if not self.first_norm and self.layer_groups not in (None, self.num_layers):
            raise ValueError(
                "StackConfig.first_norm=False needs a first block that serves one "
                f"layer. Received: layer_groups={self.layer_groups}, "
                f"num_layers={self.num_layers}."
            )
        if self.parallel_residual and self.cross_attention:
            raise ValueError(
                "StackConfig.parallel_residual=True needs cross_attention=False."
            )
        smallest = 2 if self.causal else 4
        if self.relative_buckets < smallest or self.relative_buckets % 2:
            raise ValueError(
                f"StackConfig.relative_buckets must be even and at least {smallest} "
                f"(causal={self.causal}). Received: {self.relative_buckets}."
            )
        exact = self.relative_buckets // (2 if self.causal else 4)
        if self.relative_max_distance <= exact:
            raise ValueError(
                "StackConfig.relative_max_distance must exceed the number of exact "
                f"buckets, {exact} with relative_buckets={self.relative_buckets}. "
                f"Received: {self.relative_max_distance}."
            )
        if self.num_segments < 0:
            raise ValueError(
                "StackConfig.num_segments must be 0 (none) or positive. "
                f"Received: {self.num_segments}."
            )
        window = self.attention_window
        if window is not None and not 1 <= window < 2**31:  # positions are int32
            raise ValueError(
                "StackConfig.attention_window must be at least 1 (a token sees itself) "
                f"and below 2**31, or None. Received: {window}."
            )
        for name, is_normalized in (
            ("hidden_dim", True),
            ("head_dim", self.query_key_norm),
            ("embedding_width", self.embedding_norm),
        ):
            if self.norm == "std_norm" and is_normalized and getattr(self, name) < 2:
                raise ValueError(
                    f"norm='std_norm' needs {name} to be at least 2: one number has no "
                    f"deviation. Received: {name}={getattr(self, name)}."
                )
        for name in DROPOUT_RATES:
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(
                    f"StackConfig.{name} must be a rate in [0, 1). "
                    f"Received: {getattr(self, name)!r}."
                )
        if self.final_norm is None:
            object.__setattr__(self, "final_norm", self.norm_position != "post")
        scaled = self.similarity == "scaled_dot"
        if self.attention_scale is None:
            scale = self.head_dim**-0.5 if scaled else 1.0
            object.__setattr__(self, "attention_scale", scale)
        if not scaled and self.attention_scale != 1.0:
            raise ValueError(
                "StackConfig.attention_scale goes with similarity='scaled_dot'; give "
                "attention_scale=None with the others. Received: "
                f"attention_scale={self.attention_scale}, "
                f"similarity={self.similarity!r}."
            )

    @property
    def embedding_width(self) -> int:
        """Width of the embedding tables."""
        return self.embedding_dim or self.hidden_dim

    def is_windowed(self, layer):
        """Whether the layer of this number has the `attention_window`."""
        layers = self.windowed_layers
        return self.attention_window is not None and (layers is None or layer in layers)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(_Config):
    """An architecture: its stacks, how embeddings are shared, the special tokens.

    Which stacks are given decides the architecture: `encoder` alone (BERT's form),
    `decoder` alone (GPT's form), or both (the paper's form).

    Args:
        encoder: a stack that is not causal and has no cross-attention, or `None`.
        decoder: a causal stack, with cross-attention exactly when `encoder` is given,
            or `None`.
        share_embeddings: encoder and decoder use one token table (section 3.4).
        tie_head: the head multiplies by the transposed token table.
        head_bias: the head adds a bias.
        head_scale: logits are multiplied by it before the bias (T5 ties the head and
            scales by hidden_dim ** -0.5).
        head_soft_cap: logits become cap * tanh(logits / cap); `None` for none.
        pad_token_id: fills short rows; never attended to, never scored.
        start_token_id: the decoder's first input.
        end_token_id: ends a sequence.
        mask_token_id: stands for a token to be guessed in masked language modelling
            (Devlin et al., 2019, section 3.1), or `None`.
    """

    encoder: StackConfig | None = None
    decoder: StackConfig | None = None
    share_embeddings: bool = False
    tie_head: bool = True
    head_bias: bool = False
    head_scale: float = 1.0
    head_soft_cap: float | None = None
    pad_token_id: int = 0
    start_token_id: int = 1
    end_token_id: int = 2
    mask_token_id: int | None = None

    def __post_init__(self):
        super().__post_init__()
        encoder, decoder = self.encoder, self.decoder
        if encoder is None and decoder is None:
            raise ValueError("ModelConfig needs an encoder, a decoder, or both.")
        if encoder and (encoder.causal or encoder.cross_attention):
            raise ValueError(
                "ModelConfig.encoder must have causal=False and cross_attention=False. "
                f"Received: causal={encoder.causal}, "
                f"cross_attention={encoder.cross_attention}."
            )
        if decoder and not decoder.causal:
            raise ValueError("ModelConfig.decoder must have causal=True.")
        if decoder and decoder.cross_attention != bool(encoder):
            raise ValueError(
                "ModelConfig.decoder.cross_attention must be True exactly when an "
                f"encoder is given. Received: cross_attention="
                f"{decoder.cross_attention}, encoder={'given' if encoder else None}."
            )
        if self.share_embeddings:
            if not (encoder and decoder):
                raise ValueError(
                    "share_embeddings=True needs an encoder and a decoder."
                )
            for name in ("vocabulary_size", "embedding_width"):
                if getattr(encoder, name) != getattr(decoder, name):
                    raise ValueError(
                        f"share_embeddings=True needs equal {name}. Received: encoder "
                        f"{getattr(encoder, name)}, decoder {getattr(decoder, name)}."
                    )
        self._check_positive("head_soft_cap", optional=True)
        sizes = [stack.vocabulary_size for stack in (decoder, encoder) if stack]
        for name in ("pad_token_id", "start_token_id", "end_token_id", "mask_token_id"):
            token = getattr(self, name)
            # Both sides are padded and ended.
            both = name in ("pad_token_id", "end_token_id")
            vocabulary_size = min(sizes) if both else sizes[0]
            if token is not None and not 0 <= token < vocabulary_size:
                raise ValueError(
                    f"ModelConfig.{name} must be in [0, {vocabulary_size}). "
                    f"Received: {token}."
                )
        if self.pad_token_id == self.end_token_id:
            raise ValueError(
                "ModelConfig.pad_token_id and end_token_id must differ, or the end "
                f"would be masked as padding. Received: {self.pad_token_id} twice."
            )
        if self.pad_token_id == self.mask_token_id:
            raise ValueError(
                "ModelConfig.pad_token_id and mask_token_id must differ, or what is to "
                "be guessed would be taken for padding. "
                f"Received: {self.pad_token_id} twice."
            )

    @property
    def architecture(self) -> Architecture:
        """Which stacks there are."""
        if self.encoder and self.decoder:
            return "encoder_decoder"
        return "encoder" if self.encoder else "decoder"

    def replace_in_stacks(self, **changes):
        """A copy with some fields of `StackConfig` changed in each stack."""
        stacks = {"encoder": self.encoder, "decoder": self.decoder}
        changed = {k: s.replace(**changes) for k, s in stacks.items() if s is not None}
        return self.replace(**changed)

    @classmethod
    def from_size(cls, size, architecture, vocabulary_size, **changes):
        """A named size from `SIZES`, e.g. `"base"` of the paper.

        Args:
            size: a key of `SIZES`.
            architecture: `"encoder"`, `"decoder"` or `"encoder_decoder"`.
            vocabulary_size: of every stack; stacks of an encoder-decoder share it.
            **changes: fields of `StackConfig` (for all stacks) or of `ModelConfig`.

        Raises:
            ValueError: an unknown size, architecture or field.
        """
        if size not in SIZES:
            raise ValueError(f"Unknown size {size!r}. Known sizes: {list(SIZES)}.")
        if architecture not in get_args(Architecture):
            raise ValueError(
                f"Unknown architecture {architecture!r}. "
                f"Known: {list(get_args(Architecture))}."
            )
        own = {field.name for field in dataclasses.fields(cls)}
        model = {name: value for name, value in changes.items() if name in own}
        stack = {name: value for name, value in changes.items() if name not in own}
        stack = {**SIZES[size], "vocabulary_size": vocabulary_size, **stack}
        if (
            isinstance(stack["hidden_dim"], int) and stack["hidden_dim"] > 0
        ):  # else the stack says what is wrong
            stack.setdefault("embedding_scale", float(stack["hidden_dim"]) ** 0.5)
        both = architecture == "encoder_decoder"
        for name, right in (("causal", True), ("cross_attention", both)):
            if architecture != "encoder" and stack.get(name, right) != right:
                raise ValueError(
                    f"{name} of the decoder follows from architecture="
                    f"{architecture!r}: {right}. Received: {stack[name]!r}."
                )
        if architecture != "decoder":
            model.setdefault("encoder", StackConfig.from_dict(stack))
        if architecture != "encoder":
            decoder = {**stack, "causal": True, "cross_attention": both}
            model.setdefault("decoder", StackConfig.from_dict(decoder))
        model.setdefault("share_embeddings", both)
        return cls(**model)


# The published sizes (Vaswani et al., 2017, table 3), and small ones for small data.
SIZES = {
    "tiny": dict(num_layers=2, hidden_dim=64, num_heads=4, intermediate_dim=256),
    "mini": dict(num_layers=4, hidden_dim=128, num_heads=4, intermediate_dim=256),
    "small": dict(num_layers=4, hidden_dim=256, num_heads=4, intermediate_dim=1024),
    "base": dict(num_layers=6, hidden_dim=512, num_heads=8, intermediate_dim=2048),
    "big": dict(num_layers=6, hidden_dim=1024, num_heads=16, intermediate_dim=4096),
}


def load_config(path):
    """Reads a `ModelConfig` from a JSON file.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not JSON, or not a config; the file is named.
    """
    path = Path(path)
    try:
        return ModelConfig.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is not a kzoo config: {error}") from error


def _of_json(value, hint):
    """A field's value, of what JSON has for it: dicts for configs, lists for tuples."""
    for kind in get_args(hint):  # such as those of `StackConfig | None`
        if isinstance(value, list) and kind is tuple:
            return tuple(value)
        is_config = isinstance(kind, type) and issubclass(kind, _Config)
        if isinstance(value, dict) and is_config:
            return kind.from_dict(value)
    return value
