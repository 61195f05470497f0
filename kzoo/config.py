"""What a model is: frozen, validated data. No field is a family's name.

`StackConfig` describes one stack from token ids to hidden states;
`ModelConfig` joins one or two stacks into an architecture with a language-model
head. Two exclusive options are one `Literal`; a combination that cannot work
raises `ValueError` when it is built, naming both fields.
"""

import dataclasses
import json
from pathlib import Path
from typing import Literal, get_args, get_type_hints

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "linear"]
Architecture = Literal["encoder", "decoder", "encoder_decoder"]
Initializer = Literal["xavier", "truncated_normal"]
Norm = Literal["layer_norm", "rms_norm", "std_norm"]
NormPosition = Literal["pre", "post"]
Positions = Literal["none", "learned", "sinusoidal", "rotary", "relative", "alibi"]
Similarity = Literal["scaled_dot", "dot", "general", "additive", "additive_tanh"]


class _Config:
    """Dictionary round trip and type checks shared by both configs."""

    def __post_init__(self):
        hints = get_type_hints(type(self))
        for field in dataclasses.fields(self):
            _check_type(
                type(self).__name__,
                field.name,
                getattr(self, field.name),
                hints[field.name],
            )

    def to_dict(self):
        """A JSON-serialisable dict; `from_dict` gives an equal config back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values):
        """Builds the config from `to_dict`'s result.

        Raises:
            ValueError: not a dict, or a key is unknown; it is named, with the known
                ones.
        """
        _check_dict(cls.__name__, values)
        known = [field.name for field in dataclasses.fields(cls)]
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise ValueError(
                f"{cls.__name__} has no field {unknown}. Known fields: {known}."
            )
        return cls(**values)

    def replace(self, **changes):
        """A copy with some fields changed, validated again."""
        return dataclasses.replace(self, **changes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StackConfig(_Config):
    """One transformer stack: embedding, positions, `num_layers` blocks, final norm.

    The defaults are the encoder of "Attention Is All You Need" (Vaswani et al.,
    2017, base size) with the norm in front, which trains without a fragile warm-up.

    Args:
        vocabulary_size: rows of the token embedding.
        num_layers: blocks.
        hidden_dim: width D of the residual stream.
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
        rope_max_wavelength: in tokens; 10 000 in RoFormer, 500 000 in Llama 3.
        rotary_dim: how many of a head's dimensions rotate, the first ones; `None`
            means all. GPT-NeoX rotates a quarter (Black et al., 2022, section 2.1).
        relative_buckets: rows of the relative-bias table (T5: 32).
        relative_max_distance: in tokens; farther ones share a bucket (T5: 128).
        num_segments: rows of a segment table that is added to the token embedding, as
            BERT has for its two sentences (Devlin et al., 2019); 0 for none.
        norm: `"layer_norm"` (Ba et al., 2016), `"rms_norm"` (Zhang and Sennrich, 2019)
            or `"std_norm"`, see `kzoo.layers.StdNormalization`.
        norm_position: `"pre"` is x + f(norm(x)), `"post"` is norm(x + f(x)).
        norm_epsilon: added to the variance (mean square for RMS) under the root, or to
            the standard deviation of `"std_norm"`.
        final_norm: a norm after the last block; `None` means "with `"pre"`".
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
            `use_bias`. The output projection follows `use_bias`.
        similarity: what a query and a key score, see `kzoo.layers.similarity`.
        attention_scale: dot products are multiplied by it; `None` means
            head_dim ** -0.5 with `"scaled_dot"`, and 1 with the others, which have no
            other scale.
        attention_window: a token attends to those less than so many tokens away, itself
            among them: on both sides, or with `causal` to the past (Longformer, Beltagy
            et al., 2020, section 3.1; Mistral 7B, Jiang et al., 2023, section 2).
            `None` for no limit. Cross-attention has none, and a cache keeps all.
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
    num_heads: int = 8
    intermediate_dim: int = 2048
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_sequence_length: int = 512
    positions: Positions = "sinusoidal"
    rope_max_wavelength: float = 10_000.0
    rotary_dim: int | None = None
    relative_buckets: int = 32
    relative_max_distance: int = 128
    num_segments: int = 0
    norm: Norm = "layer_norm"
    norm_position: NormPosition = "pre"
    norm_epsilon: float = 1e-6
    final_norm: bool | None = None
    embedding_norm: bool = False
    embedding_scale: float = 1.0
    feed_forward: Literal["plain", "gated"] = "plain"
    activation: Activation = "relu"
    use_bias: bool = True
    attention_bias: bool | None = None
    similarity: Similarity = "scaled_dot"
    attention_scale: float | None = None
    attention_window: int | None = None
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
        for name in (
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
        ):
            if not getattr(self, name) > 0:
                raise ValueError(
                    f"StackConfig.{name} must be positive. "
                    f"Received: {getattr(self, name)!r}."
                )
        if self.head_dim is None:
            if self.hidden_dim % self.num_heads:
                raise ValueError(
                    "StackConfig.hidden_dim must be a multiple of num_heads, or "
                    f"head_dim be given. Received: hidden_dim={self.hidden_dim}, "
                    f"num_heads={self.num_heads}."
                )
            object.__setattr__(self, "head_dim", self.hidden_dim // self.num_heads)
        if self.head_dim <= 0:
            raise ValueError(
                f"StackConfig.head_dim must be positive. Received: {self.head_dim}."
            )
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
        if self.rotary_dim is not None:
            if self.positions != "rotary":
                raise ValueError(
                    "StackConfig.rotary_dim needs positions='rotary'. Received: "
                    f"rotary_dim={self.rotary_dim}, positions={self.positions!r}."
                )
            if self.rotary_dim % 2 or not 0 < self.rotary_dim <= self.head_dim:
                raise ValueError(
                    "StackConfig.rotary_dim must be even, positive and at most "
                    f"head_dim. Received: rotary_dim={self.rotary_dim}, "
                    f"head_dim={self.head_dim}."
                )
        if self.positions == "sinusoidal" and self.hidden_dim % 2:
            raise ValueError(
                "positions='sinusoidal' needs an even hidden_dim. "
                f"Received: hidden_dim={self.hidden_dim}."
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
        if self.attention_window is not None and self.attention_window < 1:
            raise ValueError(
                "StackConfig.attention_window must be at least 1 (a token sees itself)"
                f", or None. Received: {self.attention_window}."
            )
        normalized = (
            ["hidden_dim", "head_dim"] if self.query_key_norm else ["hidden_dim"]
        )
        for name in normalized if self.norm == "std_norm" else []:
            if getattr(self, name) < 2:
                raise ValueError(
                    f"norm='std_norm' needs {name} to be at least 2: one number has no "
                    f"deviation. Received: {name}={getattr(self, name)}."
                )
        for name in ("dropout", "attention_dropout", "feed_forward_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(
                    f"StackConfig.{name} must be a rate in [0, 1). "
                    f"Received: {getattr(self, name)!r}."
                )
        if self.final_norm is None:
            object.__setattr__(self, "final_norm", self.norm_position == "pre")
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
            for name in ("vocabulary_size", "hidden_dim"):
                if getattr(encoder, name) != getattr(decoder, name):
                    raise ValueError(
                        f"share_embeddings=True needs equal {name}. Received: encoder "
                        f"{getattr(encoder, name)}, decoder {getattr(decoder, name)}."
                    )
        vocabulary_size = (decoder or encoder).vocabulary_size
        for name in ("pad_token_id", "start_token_id", "end_token_id", "mask_token_id"):
            token = getattr(self, name)
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

    @classmethod
    def from_dict(cls, values):
        """Builds the config, and its stacks, from `to_dict`'s result."""
        _check_dict(cls.__name__, values)
        stacks = {
            name: StackConfig.from_dict(values[name])
            for name in ("encoder", "decoder")
            if isinstance(values.get(name), dict)
        }
        return super().from_dict({**values, **stacks})

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
        stack.setdefault("embedding_scale", float(stack["hidden_dim"]) ** 0.5)
        both = architecture == "encoder_decoder"
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


def _check_dict(owner, values):
    """Raises `ValueError` when `values` is no dict, as a JSON file may hold."""
    if not isinstance(values, dict):
        raise ValueError(f"{owner}.from_dict expects a dict. Received: {values!r}.")


def _check_type(owner, name, value, hint):
    """Raises `ValueError` when `value` is not what the annotation `hint` says."""
    choices = get_args(hint)
    if choices and not isinstance(choices[0], type):  # a Literal
        if value not in choices:
            raise ValueError(
                f"{owner}.{name} must be one of {list(choices)}. Received: {value!r}."
            )
        return
    kinds = choices or (hint,)
    if isinstance(value, bool) and bool not in kinds:
        kinds = ()
    if float in kinds:
        kinds = (*kinds, int)
    if not isinstance(value, kinds):
        raise ValueError(f"{owner}.{name} must be {hint}. Received: {value!r}.")
