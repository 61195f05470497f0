"""Trains a sentiment classifier on IMDB's reviews and scores it on the test set.

    python export/recipes/classify_reviews.py              # a small encoder
    python export/recipes/classify_reviews.py --model page_004

The data come through TensorFlow Datasets, or from `--train` and `--test`, tab-separated
files with the label in column 0 and the text in column 4. The last tenth of the
training rows, other films in the files, chooses the epoch; the test set is read once.
`core_minutes` is CPU time over cores, which other load does not lengthen.
`page_004` is the classifier of the "Encoder-predictor-decoder" lecture at its size.
"""

import argparse
import json
import os
import time
from pathlib import Path

import keras

import kzoo
from kzoo.data import load_pairs
from kzoo.training import Adam

MODELS = {
    "page_004": dict(
        stack=dict(
            vocabulary_size=50_002, num_layers=1, hidden_dim=32, num_heads=2,
            intermediate_dim=128, norm_position="post", embedding_norm=True,
            attention_bias=False, dropout=0.1,
        ),
        task=dict(pooling="max_logits", head_dropout=0.0),
        rate=1e-3, decay=False, epochs=5,
    ),
    "small": dict(
        stack=dict(
            vocabulary_size=20_000, num_layers=1, hidden_dim=48, num_heads=3,
            intermediate_dim=96, norm_position="post", dropout=0.3,
        ),
        task=dict(pooling="mean", hidden_activation="relu", head_dropout=0.3),
        rate=1.5e-3, decay=True, epochs=3,
    ),
}  # fmt: skip
BATCH, WORDS = 32, 400

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--train", default="tfds:imdb_reviews")
parser.add_argument("--test", default="tfds:imdb_reviews")
parser.add_argument("--model", choices=MODELS, default="small")
parser.add_argument("--out", type=Path, default=Path("runs/classify_reviews"))
args = parser.parse_args()

keras.utils.set_random_seed(1)
recipe, out = MODELS[args.model], args.out / args.model
rows = {}
for split, source in (("train", args.train), ("test", args.test)):
    columns = None if source.startswith("tfds:") else (4, 0)
    pairs = load_pairs(source, split=split, columns=columns)
    texts, labels = zip(*pairs, strict=True)
    # A review's end says most about its author's mind.
    texts = [" ".join(t.replace("<br />", " ").split()[-WORDS:]) for t in texts]
    rows[split] = texts, list(map(int, labels))
texts, labels = rows["train"]
held_out = len(texts) // 10
started = time.time(), time.process_time()
tokenizer = kzoo.FastTokenizer.train(
    texts, recipe["stack"]["vocabulary_size"], algorithm="wordpiece", lowercase=True
)
config = kzoo.ModelConfig(encoder=kzoo.StackConfig(**recipe["stack"]))
classifier = kzoo.TextClassifier(
    config, ["negative", "positive"], tokenizer=tokenizer, max_length=512,
    **recipe["task"],
)  # fmt: skip
steps = recipe["epochs"] * (len(texts) - held_out) // BATCH
rate = recipe["rate"]
if recipe["decay"]:
    rate = keras.optimizers.schedules.CosineDecay(rate, steps)
classifier.compile(Adam(rate, global_clipnorm=1.0))
best = keras.callbacks.ModelCheckpoint(
    out / "best.weights.h5", "val_accuracy", save_best_only=True, save_weights_only=True
)
history = classifier.fit(
    texts[:-held_out], labels[:-held_out], batch_size=BATCH, epochs=recipe["epochs"],
    validation_data=(texts[-held_out:], labels[-held_out:]), callbacks=[best],
    verbose=2,
)  # fmt: skip
minutes, core_minutes = time.time() - started[0], time.process_time() - started[1]
classifier.load_weights(best.filepath)
classifier.save_folder(out / "model")
result = dict(
    model=args.model,
    parameters=classifier.count_params(),
    minutes=round(minutes / 60, 1),
    core_minutes=round(core_minutes / 60 / os.cpu_count(), 1),
    validation_accuracy=max(history.history["val_accuracy"]),
    test=classifier.score(*rows["test"], batch_size=64),
    history={k: [round(v, 4) for v in h] for k, h in history.history.items()},
)
(out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
print(json.dumps(result, indent=1))
