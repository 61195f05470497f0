"""What a model is: frozen, validated data. No field is a family's name.

`StackConfig` describes one stack from token ids to hidden states;
`ModelConfig` joins one or two stacks into an architecture with a language-model
head. Two exclusive options are one `Literal`; a combination that cannot work
raises `ValueError` when it is built, naming both fields.
"""

from kzoo.config.model import SIZES, Architecture, ModelConfig, load_config
from kzoo.config.stack import (
    DROPOUT_RATES,
    TRAINING_FIELDS,
    Activation,
    Initializer,
    Norm,
    NormPosition,
    Positions,
    RopeScaling,
    Similarity,
    SinusoidalLayout,
    StackConfig,
)

__all__ = [
    "DROPOUT_RATES",
    "SIZES",
    "TRAINING_FIELDS",
    "Activation",
    "Architecture",
    "Initializer",
    "ModelConfig",
    "Norm",
    "NormPosition",
    "Positions",
    "RopeScaling",
    "Similarity",
    "SinusoidalLayout",
    "StackConfig",
    "load_config",
]
