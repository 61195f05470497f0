"""Trains a sentence embedder on the STS benchmark from scratch; scores dev and test.

    python export/recipes/embed_sentences.py DATA

DATA is a folder with sts-train.tsv.gz, sts-dev.tsv.gz and sts-test.tsv.gz: columns 4
to 6 are score (0 to 5) and sentences, separated by tabs and without quoting. At the
start a piece of a word is a random direction, as long as the piece is rare: the mean of
those is a text's bag of words, weighted by tf-idf, and training moves it from there.
Dev chooses the epoch; test is read once, at the end.
"""

import argparse
import json
from pathlib import Path

import keras
import numpy as np

import kzoo
from kzoo.data import load_pairs
from kzoo.training import Adam, CosineSimilarityLoss

# Without a norm behind, a token counts in the mean by its length.
MODEL = dict(num_layers=1, hidden_dim=256, num_heads=4, intermediate_dim=256,
             positions="none", final_norm=False, dropout=0.3, attention_dropout=0.1,
             feed_forward_dropout=0.1, initializer="truncated_normal",
             initializer_range=0.005)  # fmt: skip
OUT = Path(__file__).parent / "results" / "embed_sentences.json"

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("data", type=Path)
parser.add_argument("--epochs", type=int, default=3)
args = parser.parse_args()

keras.utils.set_random_seed(0)
data = {}
for split in ("train", "dev", "test"):
    file, options = args.data / f"sts-{split}.tsv.gz", dict(extra_columns=True)
    scores = [float(score) for score, _ in load_pairs(file, columns=(4, 5), **options)]
    data[split] = load_pairs(file, columns=(5, 6), **options), scores
texts = sorted({text for pair in data["train"][0] for text in pair})
tokenizer = kzoo.FastTokenizer.train(texts, 1500, algorithm="wordpiece", lowercase=True)
embedder = kzoo.SentenceEmbedder.from_size("tiny", tokenizer, **MODEL)

pieces = np.concatenate([np.unique(ids) for ids in tokenizer.encode(texts)])
texts_with = np.bincount(pieces, minlength=tokenizer.vocabulary_size)
length = np.log(len(texts) / (1 + texts_with))
length[[tokenizer.start_token_id, tokenizer.end_token_id]] = 0.1
table = embedder.encoder.token_embedding.embeddings
# Multiplied by embedding_scale, sqrt(256), a row is as long as `length` says.
directions = np.random.default_rng(0).normal(size=table.shape) / table.shape[1]
table.assign(directions * length[:, None])
result = {"start": {split: embedder.score(*data[split]) for split in ("dev", "test")}}
epochs, best = [], embedder.get_weights()


def keep_best(epoch, logs):
    epochs.append({**logs, **embedder.score(*data["dev"])})
    print(epochs[-1], flush=True)
    if epochs[-1]["spearman"] == max(row["spearman"] for row in epochs):
        best[:] = embedder.get_weights()


steps = args.epochs * -(-len(data["train"][0]) // 64)
rate = keras.optimizers.schedules.CosineDecay(1e-3, steps)
loss = CosineSimilarityLoss(score_range=(0, 5))
embedder.compile(Adam(rate, global_clipnorm=1.0), loss=loss)
callback = keras.callbacks.LambdaCallback(on_epoch_end=keep_best)
embedder.fit(*data["train"], batch_size=64, epochs=args.epochs, callbacks=[callback])
embedder.set_weights(best)
result |= {split: embedder.score(*data[split]) for split in ("dev", "test")}
result |= dict(parameters=embedder.count_params(), epochs=epochs)
OUT.parent.mkdir(exist_ok=True)
OUT.write_text(json.dumps(result, indent=1) + "\n")
print(json.dumps(result, indent=1))
