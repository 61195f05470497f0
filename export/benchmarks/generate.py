"""Tokens per second of generation: kzoo's ONNX file, Keras, CTranslate2, transformers.

    python export/benchmarks/generate.py --peers PYTHON
    python export/benchmarks/generate.py --peers PYTHON --model FOLDER --texts FILE

--peers names an interpreter with ctranslate2, torch and transformers; by default this
one. All contenders get the same weights and ids, in float32, on two threads.

Without --model the weights are random, the sources have 20 tokens, and every sequence
has --new-tokens tokens: the end token's row of the tied table is zero, so its logit is
0 and never among the best. With --model, a trained translator translates the lines of
FILE; real tokens are counted, the end token among them, and agreement is reported.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import _duel

CONFIGS = {
    "small": dict(size="mini", vocabulary_size=6000),
    "base": dict(size="base", vocabulary_size=32000),
}
LENGTH = 20
CONTENDERS = ["onnx", "keras", "ctranslate2", "transformers"]


def export(folder, config):
    """Saves a task as kzoo's own folder, and as the ONNX file beside it."""
    import keras

    import kzoo

    if config in CONFIGS:
        keras.utils.set_random_seed(0)
        task = kzoo.Seq2SeqLM.from_size(**CONFIGS[config])
        table = task.named_variables()["encoder/token_embedding/embeddings"]
        rows = keras.ops.convert_to_numpy(table).copy()
        rows[[task.config.pad_token_id, task.config.end_token_id]] = 0.0
        table.assign(rows)
    else:
        task = kzoo.load_task(config)
    task.save_folder(folder)
    task.export(folder / "generate.onnx", format="onnx")
    return task


def make_keras(folder, config):
    """`task.generate` on TensorFlow; makes the folder that the others read."""
    task = export(folder, config)

    def run(ids, beams, limit):
        return task.generate(
            ids, beams=beams, max_new_tokens=limit, batch_size=len(ids)
        )

    def logits(inputs):
        return task.predict(
            dict(encoder_token_ids=inputs[0], decoder_token_ids=inputs[1]), verbose=0
        )

    def encode(texts):
        end = [task.config.end_token_id]
        return [ids + end for ids in task.tokenizer.encode(texts)]

    return run, logits, encode


def make_onnx(folder, _):
    """The exported file in onnxruntime."""
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = _duel.THREADS
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(folder / "generate.onnx"), options)
    _, pad, end = special_tokens(folder)

    def run(ids, beams, limit):
        feed = {
            "encoder_token_ids": np.array(padded(ids, pad), "int64"),
            "max_new_tokens": np.array(limit, "int64"),
            "beams": np.array(beams, "int64"),
        }
        (sequences,) = session.run(["sequences"], feed)
        return [until(row, end) for row in sequences[:, 0].tolist()]

    return (run,)


def make_ctranslate2(folder, _):
    """The same weights in CTranslate2."""
    import ctranslate2
    from _conversions import to_ctranslate2

    output = folder / "ctranslate2"
    to_ctranslate2(folder, output)
    translator = ctranslate2.Translator(
        str(output),
        compute_type="float32",
        inter_threads=1,
        intra_threads=_duel.THREADS,
    )

    def run(ids, beams, limit):
        results = translator.translate_batch(
            [[str(i) for i in row] for row in ids],
            beam_size=beams,
            max_decoding_length=limit,
        )
        return [[int(token) for token in r.hypotheses[0]] for r in results]

    return (run,)


def make_transformers(folder, _):
    """The same weights in transformers' M2M100."""
    import torch
    from _conversions import to_transformers

    torch.set_num_threads(_duel.THREADS)
    model = to_transformers(folder)
    start, pad, end = special_tokens(folder)

    def run(ids, beams, limit):
        ids = torch.tensor(padded(ids, pad))
        with torch.inference_mode():
            sequences = model.generate(
                input_ids=ids,
                attention_mask=(ids != pad).long(),
                num_beams=beams,
                max_new_tokens=limit,
                do_sample=False,
                early_stopping=beams > 1,
            )
        return [until(row[1:], end) for row in sequences.tolist()]

    def logits(inputs):
        source, target = (torch.tensor(ids).long() for ids in inputs)
        with torch.inference_mode():
            return model(
                input_ids=source,
                attention_mask=(source != pad).long(),
                decoder_input_ids=target,
            ).logits.numpy()

    return run, logits


def special_tokens(folder):
    """The start, padding and end ids of a saved task."""
    import json

    config = json.loads((folder / "config.json").read_text())["model"]
    return [config[f"{name}_token_id"] for name in ("start", "pad", "end")]


def padded(rows, pad):
    """Rows of equal length, padded on the right."""
    length = max(map(len, rows))
    return [list(row) + [pad] * (length - len(row)) for row in rows]


def until(row, end):
    """The ids before the end token."""
    return row[: row.index(end)] if end in row else row


def work(contender, folder, config):
    """Answers messages: generate `calls` times and say how long it took; or check."""
    run, *more = globals()[f"make_{contender}"](Path(folder), config)

    def answer(verb="generate", batches=None, beams=1, limit=0, calls=1, ids=None):
        if verb == "versions":
            return _duel.versions(
                "kzoo", "keras", "tensorflow", "onnxruntime",
                "ctranslate2", "torch", "transformers",
            )  # fmt: skip
        if verb == "logits":
            import numpy as np

            pair = [np.array(rows, "int32") for rows in ids]
            return more[0](pair).astype(float).tolist()
        if verb == "encode":
            return more[1](ids)
        start = _duel.clock()
        for _ in range(calls):
            sequences = [run(batch, beams, limit) for batch in batches]
        seconds = _duel.clock() - start
        rows = [row for batch in sequences for row in batch]
        return {"seconds": seconds, "sequences": rows}

    _duel.serve(answer)


def random_batches(config, batch, _):
    """One batch of sources of the fixed length, without special tokens."""
    import random

    generator = random.Random(0)
    high = CONFIGS[config]["vocabulary_size"] - 1
    return [[[generator.randint(3, high) for _ in range(LENGTH)] for _ in range(batch)]]


def compare(workers, name, batches, beams, limit, turns, seconds):
    """One cell of the table: the contenders in turns on the same batches."""
    message = dict(batches=batches, beams=beams, limit=limit)
    first = {w.name: w.ask(**message) for w in workers}  # compiles, warms up
    quickest = min(w.ask(**message)["seconds"] for w in workers if w.name == "onnx")
    calls = max(1, round(seconds / quickest))
    answers = _duel.take_turns(workers, turns, calls=calls, **message)
    ours = first["onnx"]["sequences"]
    cell = {"cell": name, "beams": beams, "calls": calls, "contenders": {}}
    rates = {}
    for worker, sequences in ((w.name, first[w.name]["sequences"]) for w in workers):
        tokens = sum(min(len(s) + 1, limit) for s in sequences)
        rates[worker] = [tokens * calls / a["seconds"] for a in answers[worker]]
        same = sum(a == b for a, b in zip(sequences, ours, strict=True))
        cell["contenders"][worker] = {
            "tokens": tokens,
            "equal_sequences": same / len(ours),
            "tokens_per_second": [round(rate, 1) for rate in rates[worker]],
        }
    for worker, found in cell["contenders"].items():
        found["onnx_is_faster_by"] = _duel.median_ratio(rates["onnx"], rates[worker])
    print(name, {k: round(v["onnx_is_faster_by"], 2) for k, v in
                 cell["contenders"].items()}, flush=True)  # fmt: skip
    return cell


def largest_difference(workers, ids):
    """Between Keras's logits and transformers', both fed the same ids."""
    import numpy as np

    ours, theirs = (
        np.array(worker.ask(verb="logits", ids=ids))
        for worker in workers
        if worker.name in ("keras", "transformers")
    )
    return float(np.abs(ours - theirs).max())


def table(cells, peers):
    """The rows of the markdown table, geometric means last."""
    rows = [["model, search, batch", "ONNX tokens/s", *(f"× {p}" for p in peers)]]
    for cell in cells:
        found = cell["contenders"]
        rate = sorted(found["onnx"]["tokens_per_second"])
        ratios = [f"{found[p]['onnx_is_faster_by']:.2f}" for p in peers]
        rows.append([cell["cell"], f"{rate[len(rate) // 2]:,.0f}", *ratios])
    means = [
        _duel.geometric_mean([c["contenders"][p]["onnx_is_faster_by"] for c in cells])
        for p in peers
    ]
    rows.append(["**geometric mean**", "", *(f"**{mean:.2f}**" for mean in means)])
    return rows


def main():
    """Starts the contenders, compares them cell by cell, writes the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peers", default=sys.executable)
    parser.add_argument("--configs", nargs="+", default=list(CONFIGS))
    parser.add_argument("--beams", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3, help="of a turn")
    parser.add_argument("--contenders", nargs="+", default=CONTENDERS)
    parser.add_argument("--model", type=Path, help="a folder of a trained translator")
    parser.add_argument("--texts", type=Path, help="a file with a source a line")
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--out", default="generate")
    parser.add_argument("--cpu-time", action="store_true", help="on a busy machine")
    args = parser.parse_args()
    if args.cpu_time:
        _duel.measure_cpu_time()
    configs = [str(args.model)] if args.model else args.configs
    cells, differences, versions = [], {}, {}
    for config in configs:
        with tempfile.TemporaryDirectory() as folder:
            pythons = {"ctranslate2": args.peers, "transformers": args.peers}
            workers = []
            # Keras comes first: it makes what the others read.
            for name in sorted(args.contenders, key=lambda n: n != "keras"):
                python = pythons.get(name, sys.executable)
                worker = _duel.Worker(name, python, "--work", name, folder, config)
                versions[name] = worker.ask(verb="versions")
                workers.append(worker)
            label = "real text" if args.model else config
            if {"keras", "transformers"} <= set(args.contenders):
                ids = [[5, 9, 4, 2, 0], [7, 3, 8, 6, 2]], [[1, 4, 9], [1, 11, 5]]
                differences[label] = largest_difference(workers, ids)
            for beams in args.beams:
                for batch in args.batches:
                    if args.model:
                        batches = text_batches(workers[0], batch, args)
                        limit = 80
                    else:
                        batches = random_batches(config, batch, args)
                        limit = args.new_tokens
                    search = "greedy" if beams == 1 else f"beam {beams}"
                    name = f"{label}, {search}, {batch}"
                    timing = args.turns, args.seconds
                    cells.append(compare(workers, name, batches, beams, limit, *timing))
            for worker in workers:
                worker.close()
    results = {
        "machine": _duel.machine(),
        "versions": versions,
        "logits_differ_from_transformers_by": differences,
        "cells": cells,
    }
    peers = [name for name in args.contenders if name != "onnx"]
    _duel.write_results(args.out, results, table(cells, peers))


def text_batches(keras_worker, batch, args):
    """The first sentences of a file as ids, sorted by length, in batches."""
    texts = args.texts.read_text(encoding="utf-8").splitlines()[: args.sentences]
    ids = sorted(keras_worker.ask(verb="encode", ids=texts), key=len)
    return [ids[i : i + batch] for i in range(0, len(ids), batch)]


if __name__ == "__main__":
    _duel.main(main, work)
