"""One or two stacks in an architecture, and the sizes that have names."""

import dataclasses
import json
from pathlib import Path
from typing import Literal, get_args

from kzoo.config.base import Config
from kzoo.config.stack import StackConfig

Architecture = Literal["encoder", "decoder", "encoder_decoder"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(Config):
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
        own, of_stacks = (
            [field.name for field in dataclasses.fields(kind)]
            for kind in (cls, StackConfig)
        )
        unknown = sorted(set(changes) - {*own, *of_stacks})
        if unknown:
            raise ValueError(
                f"Neither {cls.__name__} nor StackConfig has a field {unknown}. Known "
                f"fields: {own} and {of_stacks}."
            )
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
