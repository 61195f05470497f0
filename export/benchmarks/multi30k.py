"""Trains a small translator on Multi30k and keeps its curve.

    python export/benchmarks/multi30k.py DATA --minutes 60

DATA holds train.en.gz, train.de.gz, val.en.gz and val.de.gz. The minutes are those of
the machine's cores (CPU time / cores), so that other load does not shorten training;
wall-clock time is recorded beside. Killed at any moment, the same command goes on.
Scores are taken by `score_multi30k.py`.
"""

import argparse
import json
import os
import time
from pathlib import Path

import keras

import kzoo
from kzoo.data import load_pairs
from kzoo.files import write_json
from kzoo.training import (
    Adam,
    CheckpointAverage,
    ResumableCheckpoint,
    WarmupInverseSquareRoot,
)


class Clock(keras.callbacks.Callback):
    """Writes the curve, and stops when the minutes are used up."""

    def __init__(self, path, minutes):
        super().__init__()
        self.path, self.minutes = path, minutes
        self.rows = json.loads(path.read_text()) if path.exists() else []
        self.start = time.time(), time.process_time()

    def on_epoch_end(self, epoch, logs=None):
        """Adds the epoch's row."""
        # A kill may have come between a row and its checkpoint.
        self.rows = [row for row in self.rows if row["epoch"] <= epoch]
        before = self.rows[-1] if self.rows else dict(wall_minutes=0, cpu_minutes=0)
        now = time.time(), time.process_time()
        wall, cpu = (n - s for n, s in zip(now, self.start, strict=True))
        self.start = now
        row = dict(
            epoch=epoch + 1,
            wall_minutes=before["wall_minutes"] + wall / 60,
            cpu_minutes=before["cpu_minutes"] + cpu / 60 / os.cpu_count(),
            **{k: float(v) for k, v in logs.items()},
        )
        self.rows.append(row)
        write_json(self.path, self.rows)
        print({k: round(v, 3) for k, v in row.items()}, flush=True)
        self.model.stop_training = self.done

    @property
    def done(self):
        """Whether another epoch would take more minutes than there are."""
        if not self.rows:
            return False
        last = self.rows[-1]
        return last["cpu_minutes"] * (1 + 1 / last["epoch"]) > self.minutes


parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("data", type=Path)
parser.add_argument("--out", type=Path, default=Path("runs/multi30k"))
parser.add_argument("--minutes", type=float, default=60)
parser.add_argument("--size", default="mini")
parser.add_argument("--vocabulary-size", type=int, default=6000)
parser.add_argument("--peak", type=float, default=4e-3)
parser.add_argument("--dropout", type=float, default=0.3)
args = parser.parse_args()
if args.minutes <= 0:
    parser.error(f"--minutes must be more than 0. Received: {args.minutes}.")

keras.utils.set_random_seed(1)
train, val = (
    load_pairs((args.data / f"{split}.en.gz", args.data / f"{split}.de.gz"))
    for split in ("train", "val")
)
args.out.mkdir(parents=True, exist_ok=True)
texts = [text for pair in train for text in pair]
tokenizer = kzoo.SentencePieceTokenizer.train(texts, args.vocabulary_size)
translator = kzoo.Seq2SeqLM.from_size(args.size, tokenizer, dropout=args.dropout)
translator.compile(
    optimizer=Adam(
        WarmupInverseSquareRoot.from_peak(args.peak, 1000), beta_2=0.98, epsilon=1e-9
    ),
    label_smoothing=0.1,
    metrics=None,  # a pass over the logits each; the loss tells enough
)
clock = Clock(args.out / "curve.json", args.minutes)
translator.fit(
    train,
    tokens_per_batch=4096,
    epochs=clock.rows[-1]["epoch"] if clock.done else 1000,
    validation_data=tuple(zip(*val, strict=True)),
    callbacks=[
        clock,
        CheckpointAverage(args.out / "epochs", last=10),
        ResumableCheckpoint(args.out / "training.npz"),
    ],
    verbose=0,
)
translator.save_folder(args.out / "model")
