"""One stack, from token ids to hidden states."""

import dataclasses
import math
from typing import Literal

from kzoo.config.base import Config

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "linear"]
Initializer = Literal["xavier", "truncated_normal"]
Norm = Literal["layer_norm", "rms_norm", "offset_rms_norm", "std_norm"]
NormPosition = Literal["pre", "post", "both"]
Positions = Literal["none", "learned", "sinusoidal", "rotary", "relative", "alibi"]
Similarity = Literal["scaled_dot", "dot", "general", "additive", "additive_tanh"]
SinusoidalLayout = Literal["interleaved", "halves", "tensor2tensor"]

# Fields of a stack that what it computes does not depend on, and its training does.
DROPOUT_RATES = ("dropout", "attention_dropout", "feed_forward_dropout")
TRAINING_FIELDS = {*DROPOUT_RATES, "initializer", "initializer_range"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RopeScaling(Config):
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
class StackConfig(Config):
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
        self._check_positive(
            "embedding_dim",
            "window_rope_max_wavelength",
            "attention_soft_cap",
            optional=True,
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
        self._check_positions()
        self._check_windows()
        self._check_blocks()
        if self.num_segments < 0:
            raise ValueError(
                "StackConfig.num_segments must be 0 (none) or positive. "
                f"Received: {self.num_segments}."
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

    def _check_positions(self):
        """Raises `ValueError` where fields of positions do not go together."""
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
        if self.first_position < 0:
            raise ValueError(
                "StackConfig.first_position must not be negative. "
                f"Received: {self.first_position}."
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

    def _check_windows(self):
        """Raises `ValueError` where a window is none, or not of these layers."""
        for name in ("windowed_layers", "window_rope_max_wavelength"):
            if getattr(self, name) is not None and self.attention_window is None:
                raise ValueError(
                    f"StackConfig.{name} needs an attention_window. "
                    f"Received: {name}={getattr(self, name)}, attention_window=None."
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
        window = self.attention_window
        if window is not None and not 1 <= window < 2**31:  # positions are int32
            raise ValueError(
                "StackConfig.attention_window must be at least 1 (a token sees itself) "
                f"and below 2**31, or None. Received: {window}."
            )

    def _check_blocks(self):
        """Raises `ValueError` where blocks and their norms do not go together."""
        if self.layer_groups is not None and (
            self.layer_groups < 1 or self.num_layers % self.layer_groups
        ):
            raise ValueError(
                "StackConfig.layer_groups must divide num_layers. Received: "
                f"layer_groups={self.layer_groups}, num_layers={self.num_layers}."
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
