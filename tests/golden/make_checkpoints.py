"""Writes two epochs of a training on this backend, for callbacks_test.py.

KERAS_BACKEND=jax python -m tests.golden.make_checkpoints
"""

from pathlib import Path

import keras

from kzoo.training import ResumableCheckpoint
from tests.training.callbacks_test import drawn_model, fit

FOLDER = Path(__file__).parent / "checkpoints"

if __name__ == "__main__":
    path = FOLDER / f"{keras.backend.backend()}.npz"
    path.unlink(missing_ok=True)
    keras.utils.set_random_seed(0)
    fit(drawn_model(), 2, ResumableCheckpoint(path))
