"""Trains a character model on Tiny Shakespeare and lets it write.

    python export/recipes/write_shakespeare.py input.txt.gz

The first nine tenths train, the rest gives the validation loss, in nats a character.
Killed at any moment, the same command goes on. The folder gets the curve as JSON and
PNG, the model, and a text that it wrote.
"""

import argparse
import json
from pathlib import Path

import grain
import keras
import numpy as np

import kzoo
from kzoo.data import load_texts, packed_blocks
from kzoo.plots import training_curve
from kzoo.training import Adam, ResumableCheckpoint

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("text")
parser.add_argument("--out", type=Path, default=Path("runs/write_shakespeare"))
parser.add_argument("--epochs", type=int, default=12, help="of 500 steps of 16 rows")
parser.add_argument("--length", type=int, default=128)
parser.add_argument("--layers", type=int, default=4)
parser.add_argument("--width", type=int, default=192)
args = parser.parse_args()

STEPS, BATCH = 500, 16
keras.utils.set_random_seed(1)
(text,) = load_texts(args.text, whole=True)
tokenizer = kzoo.FastTokenizer.train([text], 200, algorithm="character")
ids = np.array(tokenizer.encode([text])[0], "int32")
cut = int(0.9 * len(ids))
held_out = packed_blocks(ids[cut:], args.length + 1, overlap=1)


def batch(index):
    """Random stretches of the text, which follow from the index."""
    starts = np.random.default_rng(index).integers(0, cut - args.length, BATCH)
    rows = ids[starts[:, None] + np.arange(args.length + 1)]
    return {"token_ids": rows[:, :-1]}, rows[:, 1:]


writer = kzoo.CausalLM.from_size(
    "tiny", tokenizer, num_layers=args.layers, hidden_dim=args.width, num_heads=6,
    intermediate_dim=args.width * 8 // 3, feed_forward="gated", activation="silu",
    positions="rotary", norm="rms_norm", use_bias=False, dropout=0.1,
)  # fmt: skip
schedule = keras.optimizers.schedules.CosineDecay(
    0.0, args.epochs * STEPS - 200, 0.05, warmup_target=3e-3, warmup_steps=200
)
writer.compile(Adam(schedule, beta_2=0.99, weight_decay=0.1, global_clipnorm=1.0))
args.out.mkdir(parents=True, exist_ok=True)
checkpoint = ResumableCheckpoint(args.out / "training.npz")
log = keras.callbacks.CSVLogger(args.out / "curve.csv", append=True)
first = checkpoint.saved_epoch() * STEPS
# One batch more than is read: Keras refuses to begin, or go on, with none.
data = grain.MapDataset.range(first, args.epochs * STEPS + 1).map(batch)
writer.fit(
    data,
    steps_per_epoch=STEPS, epochs=args.epochs, callbacks=[checkpoint, log], verbose=2,
    validation_data=({"token_ids": held_out[:, :-1]}, held_out[:, 1:]),
)  # fmt: skip
writer.save_folder(args.out / "model")
names, *rows = (line.split(",") for line in open(args.out / "curve.csv"))
curve = {name.strip(): [float(row[i]) for row in rows] for i, name in enumerate(names)}
training_curve(curve).savefig(args.out / "curve.png")
# It has seen no start token and no more than `length` characters at a time, so it is
# given ids, and writes on from the last ones again and again.
sample, half = tokenizer.encode(["ROMEO:\n"])[0], args.length // 2
for seed in range(8):
    options = dict(max_new_tokens=half, temperature=0.8, top_p=0.95, seed=seed)
    sample += writer.generate([sample[-half:]], **options)[0]
(sample,) = tokenizer.decode([sample])
(args.out / "sample.txt").write_text(sample + "\n")
result = dict(
    parameters=writer.count_params(), curve=curve, sample=sample,
    validation_loss=curve["val_loss"][-1],
    options={**vars(args), "out": None, "text": None},
)  # fmt: skip
(args.out / "result.json").write_text(json.dumps(result, indent=1, default=str) + "\n")
print(f"validation loss {result['validation_loss']:.4f}\n{sample}")
