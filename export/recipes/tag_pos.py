"""Trains a part-of-speech tagger on UD English EWT from scratch; scores dev and test.

    python export/recipes/tag_pos.py DATA

DATA is a folder with train.tsv.gz, dev.tsv.gz and test.tsv.gz: a line a word with its
label, an empty line after each sentence (`kzoo.data.load_tagged`). Settings are chosen
on dev; test is read once, at the end.
"""

import argparse
import json
import time
from pathlib import Path

import keras
import numpy as np

import kzoo
from kzoo.data import bucketed_batches, load_tagged
from kzoo.training import Adam, CheckpointAverage

MODEL = dict(num_layers=2, hidden_dim=128, num_heads=4, intermediate_dim=256,
             positions="relative", activation="gelu", dropout=0.2)  # fmt: skip


def train(folder, out, epochs, splits, word_dropout=0.1, **options):
    """A tagger, trained, and what there is to say of it.

    Each sentence comes in several splits into pieces, one of them the most probable.
    """
    keras.utils.set_random_seed(0)
    data = {
        split: list(zip(*load_tagged(folder / f"{split}.tsv.gz"), strict=True))
        for split in ("train", "dev", "test")
    }
    sentences, labels = data["train"]
    tokenizer = kzoo.SentencePieceTokenizer.train(map(" ".join, sentences), 4000)
    names = sorted({label for row in labels for label in row})
    tagger = kzoo.TokenClassifier.from_size(
        "mini", tokenizer, labels=names, head_dropout=0.2, **MODEL
    )
    examples = tagger.encode_examples(sentences, labels)
    tagger.tokenizer = tokenizer.sampled(alpha=0.3)
    for _ in range(1, splits):
        for name, rows in tagger.encode_examples(sentences, labels).items():
            examples[name] += rows
    tagger.tokenizer = tokenizer
    batches = bucketed_batches(
        examples, batch_size=32, pad_ids=dict(token_ids=0, targets=-1)
    )

    def forget_words(batch, index):
        """Some pieces become unknown, so that the context is learned, too."""
        ids = batch["token_ids"]
        gone = np.random.default_rng(index).random(ids.shape) < word_dropout
        unknown = tokenizer.unknown_token_id
        return {**batch, "token_ids": np.where(gone & (ids > unknown), unknown, ids)}

    batches, steps = batches.map(forget_words), len(batches) // splits
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, (epochs - 1) * steps, warmup_target=2e-3, warmup_steps=steps
    )
    tagger.compile(Adam(rate, global_clipnorm=1.0), **options)
    started, cpu = time.time(), time.process_time()
    history = tagger.fit(
        tagger.pipeline(batches), steps_per_epoch=steps, epochs=epochs, verbose=2,
        callbacks=[CheckpointAverage(out / "epochs", last=5)], shuffle=False,
    )  # fmt: skip
    result = dict(
        parameters=tagger.count_params(), epochs=epochs, splits=splits,
        minutes=(time.time() - started) / 60,
        cpu_minutes=(time.process_time() - cpu) / 60,
        dev=tagger.score(*data["dev"]), test=tagger.score(*data["test"]),
        losses=[round(loss, 4) for loss in history.history["loss"]],
    )  # fmt: skip
    tagger.save_folder(out / "model")
    (out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/tag_pos"))
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--splits", type=int, default=8)
    args = parser.parse_args()
    train(args.data, args.out, args.epochs, args.splits, label_smoothing=0.1)
