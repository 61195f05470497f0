"""Sequences per second of an encoder: kzoo's ONNX file, torch's, and torch itself.

    python export/benchmarks/encoder.py --peers PYTHON

--peers names an interpreter with torch, transformers, onnx and onnxruntime; by default
this one. BERT's form (post-norm, learned positions, two segments, exact gelu), 6 layers
of 384 with 12 heads and 30,522 tokens, random weights. All contenders get these weights
and the same ids and masks, in float32, on two threads, and give the mean of the real
tokens' states:

- kzoo: `forward` as a SentenceEmbedder exports it, in onnxruntime;
- optimized: transformers' BertModel by torch.onnx.export, then by onnxruntime's
  optimizer for BERT, in onnxruntime. The TorchScript exporter and eager attention, as
  only in this graph the optimizer finds everything: with torch.export, or with SDPA, it
  fuses no attention. The script ends where it does not find everything;
- exported: the same file without that optimizer, with what onnxruntime fuses itself;
- torch: BertModel in inference mode, with SDPA.

Before they are timed, their vectors are compared. A cell has a batch of --length ids a
row, all of them real, or in every second row from half of them on ("padded"). A padded
place counts in no rate: sequences do.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import _duel

CONTENDERS = ["kzoo", "optimized", "exported", "torch"]
INPUTS = ["input_ids", "attention_mask", "token_type_ids"]


def export(folder, args):
    """Saves a task as kzoo's own folder, and as the ONNX file beside it."""
    import keras

    import kzoo

    keras.utils.set_random_seed(0)
    task = kzoo.SentenceEmbedder.from_size(
        "base",
        vocabulary_size=args.vocabulary_size,
        pooling="mean",
        normalize=False,
        num_layers=args.layers,
        hidden_dim=args.width,
        num_heads=args.width // 32,
        intermediate_dim=4 * args.width,
        max_sequence_length=512,
        positions="learned",
        num_segments=2,
        norm_position="post",
        norm_epsilon=1e-12,
        embedding_norm=True,
        embedding_scale=1.0,
        activation="gelu",
        initializer="truncated_normal",
    )
    task.save_folder(folder)
    task.export(folder / "kzoo.onnx", format="onnx")


def make_kzoo(folder, pooled=None):
    """The exported file in onnxruntime."""
    session = _duel.onnx_session(folder / "kzoo.onnx")

    def run(ids, mask, segments):
        return session.run(None, {"token_ids": ids, "segment_ids": segments})[0]

    return run


def make_exported(folder, pooled):
    """torch's file in onnxruntime."""
    path = folder / "exported.onnx"
    export_torch(pooled(folder, "eager"), path)
    return torch_session(path)


def make_optimized(folder, pooled):
    """torch's file after onnxruntime's optimizer for BERT, in onnxruntime."""
    from onnxruntime.transformers import optimizer

    source, path = folder / "to_optimize.onnx", folder / "optimized.onnx"
    config = export_torch(pooled(folder, "eager"), source)
    layers = config.num_hidden_layers
    model = optimizer.optimize_model(
        str(source),
        model_type="bert",
        num_heads=config.num_attention_heads,
        hidden_size=config.hidden_size,
        opt_level=1,
    )
    found = model.get_fused_operator_statistics()
    wanted = {
        "EmbedLayerNormalization": 1, "Attention": layers, "BiasGelu": layers,
        "SkipLayerNormalization": 2 * layers,
    }  # fmt: skip
    if wanted != {name: count for name, count in found.items() if count}:
        raise RuntimeError(f"The optimizer should have fused {wanted}, not {found}.")
    model.save_model_to_file(str(path))
    return torch_session(path)


def make_torch(folder, pooled):
    """transformers' model in torch."""
    import torch

    torch.set_num_threads(_duel.THREADS)
    model = pooled(folder, "sdpa")

    def run(*arrays):
        with torch.inference_mode():
            return model(*map(torch.from_numpy, arrays)).numpy()

    return run


def pooled_bert(folder, attention):
    """A torch module: kzoo's saved model as transformers' BertModel, and the mean."""
    from _conversions import to_bert

    return mean_of(to_bert(folder, attention))


def mean_of(bert, normalize=False):
    """A torch module: a BertModel, and the mean of real tokens' states."""
    import torch

    class Pooled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bert = bert

        def forward(self, ids, mask, segments):
            states = self.bert(ids, mask, segments).last_hidden_state
            real = mask.to(states.dtype)
            weights = real / real.sum(dim=1, keepdim=True)
            means = torch.matmul(weights.unsqueeze(1), states).squeeze(1)
            return torch.nn.functional.normalize(means) if normalize else means

    return Pooled().eval()


def export_torch(model, path):
    """Writes the ONNX file of `mean_of`; returns transformers' config."""
    import torch

    ids = torch.ones((2, 8), dtype=torch.int64)
    torch.onnx.export(
        model,
        (ids, ids, 0 * ids),
        str(path),
        dynamo=False,
        opset_version=17,
        input_names=INPUTS,
        output_names=["embedding"],
        dynamic_axes={name: {0: "batch", 1: "sequence"} for name in INPUTS},
    )
    return model.bert.config


def torch_session(path):
    """A function that runs a file with BERT's inputs in onnxruntime."""
    session = _duel.onnx_session(path)

    def run(*arrays):
        return session.run(None, dict(zip(INPUTS, arrays, strict=True)))[0]

    return run


def work(contender, folder, pooled=pooled_bert):
    """Answers messages: run `calls` times and say how long it took; or the vectors."""
    import numpy as np

    run = globals()[f"make_{contender}"](Path(folder), pooled)

    def answer(verb="run", ids=None, calls=1):
        if verb == "versions":
            return _duel.versions("onnxruntime", "torch", "transformers")
        ids = np.array(ids, "int64")
        arrays = ids, (ids != 0).astype("int64"), np.zeros_like(ids)
        if verb == "vectors":
            return run(*arrays).tolist()
        start = _duel.clock()
        for _ in range(calls):
            run(*arrays)
        return {"seconds": _duel.clock() - start}

    _duel.serve(answer)


def random_ids(batch, args, padded):
    """Rows of ids, `--length` each; with `padded` every second one ends earlier.

    They end after half of their length and further on, evenly, and 0 stands behind.
    """
    import random

    generator = random.Random(0)
    rows = []
    for row in range(batch):
        real = args.length
        if padded and row % 2 == 0:
            real = args.length * (batch + row) // (2 * batch)
        ids = [generator.randrange(3, args.vocabulary_size) for _ in range(real)]
        rows.append(ids + [0] * (args.length - real))
    return rows


def largest_difference(workers, ids):
    """Between kzoo's vectors and those of each other contender."""
    import numpy as np

    ours, *others = (np.array(w.ask(verb="vectors", ids=ids)) for w in workers)
    return {
        worker.name: float(np.abs(ours - theirs).max())
        for worker, theirs in zip(workers[1:], others, strict=True)
    }


def duel(folder, args):
    """The workers' versions, and the cells of their comparison."""
    workers = [
        _duel.Worker(
            name,
            sys.executable if name == "kzoo" else args.peers,
            *("--work", name, str(folder)),
        )
        for name in CONTENDERS
    ]
    versions, cells = {w.name: w.ask(verb="versions") for w in workers}, []
    for batch in args.batches:
        for padding in ("full", "padded"):
            ids = random_ids(batch, args, padding == "padded")
            differ = largest_difference(workers, ids)
            timing = args.turns, args.seconds
            name = f"batch {batch}, {padding}"
            cell = _duel.compare(name, workers, batch, *timing, ids=ids)
            cells.append({**cell, "vectors_differ_by": differ})
    for worker in workers:
        worker.close()
    return versions, cells


def main():
    """Exports, compares cell by cell, writes the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peers", default=sys.executable)
    parser.add_argument("--layers", type=_duel.count, default=6)
    parser.add_argument("--width", type=_duel.count, default=384)
    parser.add_argument("--vocabulary-size", type=_duel.count, default=30_522)
    parser.add_argument("--length", type=_duel.count, default=128)
    parser.add_argument("--batches", nargs="+", type=_duel.count, default=[8])
    parser.add_argument("--turns", type=_duel.count, default=15)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a turn")
    parser.add_argument("--out", type=_duel.results_name, default="encoder")
    parser.add_argument("--cpu-time", action="store_true", help="on a busy machine")
    args = parser.parse_args()
    if args.cpu_time:
        _duel.measure_cpu_time()
    with tempfile.TemporaryDirectory() as folder:
        export(Path(folder), args)
        versions, cells = duel(folder, args)
    largest = max(d for cell in cells for d in cell["vectors_differ_by"].values())
    print(f"vectors differ by {largest:.1e} at most")
    rows = _duel.table(["cell", "kzoo sequences/s"], cells)
    _duel.write_results(args.out, _duel.results(args, versions, cells), rows)


if __name__ == "__main__":
    _duel.main(main, work)
