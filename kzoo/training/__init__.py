"""Losses, metrics, schedules and callbacks for `fit`.

B batch, T target length, V vocabulary_size, as in `kzoo.layers`.
"""

from kzoo.training.callbacks import (
    BestEpoch,
    CheckpointAverage,
    EpochHistory,
    ResumableCheckpoint,
)
from kzoo.training.losses import (
    ContrastiveLoss,
    CosineSimilarityLoss,
    MaskedBinaryCrossEntropy,
    MaskedCrossEntropy,
    MaskedLoss,
    MaskedSquaredError,
    SimilarityLoss,
)
from kzoo.training.metrics import Perplexity, TokenAccuracy
from kzoo.training.optimizers import Adam
from kzoo.training.schedules import Restarts, WarmupInverseSquareRoot

__all__ = [
    "Adam",
    "BestEpoch",
    "CheckpointAverage",
    "ContrastiveLoss",
    "CosineSimilarityLoss",
    "EpochHistory",
    "MaskedBinaryCrossEntropy",
    "MaskedCrossEntropy",
    "MaskedLoss",
    "MaskedSquaredError",
    "Perplexity",
    "ResumableCheckpoint",
    "SimilarityLoss",
    "TokenAccuracy",
    "Restarts",
    "WarmupInverseSquareRoot",
]
