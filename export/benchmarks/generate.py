"""Tokens per second of generation: kzoo's ONNX files against other libraries.

    python export/benchmarks/generate.py --peers PYTHON --hub PYTHON
    python export/benchmarks/generate.py --peers PYTHON --model FOLDER --texts FILE \\
        --references FILE --sentences 1000

--peers names an interpreter with ctranslate2, torch and transformers, by default this
one; --hub one with keras-hub, which is left out without it. All get the same ids, and
all but keras-hub the same weights. A file in float32 is compared with the others'
float32, one in 8 bits with CTranslate2 in 8 bits (`PAIRS`).

Without --model the weights are random, the sources have 20 tokens, and every sequence
has --new-tokens tokens: the end token's row of the tied table is zero, in 8 bits, too,
so its logit is 0 and never among the best. With --model, a trained translator
translates the lines of FILE; real tokens are counted, the end token among them, and
agreement is reported, and with --references sacrebleu's score (detokenised, cased).

Two threads are not always quicker than one. Where a library can be told, it is tried
in each cell with both (kzoo's files and CTranslate2 also with a half of the batch on
each), and has the quickest; with --fixed-threads all have two for one batch.
"""

import argparse
import functools
import itertools
import statistics
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import _duel

CONFIGS = {
    "small": dict(size="mini", vocabulary_size=6000),
    "base": dict(size="base", vocabulary_size=32000),
}
LENGTH = 20
# Which of kzoo's files each other contender is compared with.
PAIRS = {
    "keras": "onnx",
    "ctranslate2": "onnx",
    "transformers": "onnx",
    "keras_hub": "onnx",
    "ctranslate2_int8": "onnx_int8",
}
CONTENDERS = ["onnx", "onnx_int8", *PAIRS]


def export(folder, config):
    """Saves a task as kzoo's own folder, and as the ONNX files beside it."""
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
    task.export(folder / "onnx.onnx", format="onnx")
    task.export(folder / "onnx_int8.onnx", format="onnx", quantize="int8")
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

    return {"": run}, logits, encode, task.tokenizer and task.tokenizer.decode


def make_onnx(folder, _, name="onnx"):
    """The exported file in onnxruntime."""
    import numpy as np
    import onnxruntime

    _, pad, end = special_tokens(folder)

    def runner(threads):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(str(folder / f"{name}.onnx"), options)

        def run(ids, beams, limit):
            feed = {
                "encoder_token_ids": np.array(padded(ids, pad), "int64"),
                "max_new_tokens": np.array(limit, "int64"),
                "beams": np.array(beams, "int64"),
            }
            (sequences,) = session.run(["sequences"], feed)
            return [until(row, end) for row in sequences[:, 0].tolist()]

        return run

    runs = {f"{n} threads": runner(n) for n in threads()}
    if _duel.THREADS > 1:
        pool = ThreadPoolExecutor(_duel.THREADS)
        alone = runs["1 threads"]  # whose session all share

        def shared(ids, beams, limit):
            size = -(-len(ids) // _duel.THREADS)
            parts = [ids[i : i + size] for i in range(0, len(ids), size)]
            rows = pool.map(lambda part: alone(part, beams, limit), parts)
            return list(itertools.chain.from_iterable(rows))

        runs[f"{_duel.THREADS} runs at once"] = shared
    return (runs,)


def make_onnx_int8(folder, config):
    """The file with 8-bit matrices, exported with `quantize="int8"`."""
    return make_onnx(folder, config, "onnx_int8")


def make_ctranslate2(folder, _, compute_type="float32"):
    """The same weights in CTranslate2."""
    import ctranslate2
    from _conversions import to_ctranslate2

    output = folder / f"ctranslate2_{compute_type}"
    to_ctranslate2(folder, output)

    def runner(copies, threads):
        translator = ctranslate2.Translator(
            str(output),
            compute_type=compute_type,
            inter_threads=copies,
            intra_threads=threads,
        )

        def run(ids, beams, limit):
            results = translator.translate_batch(
                [[str(i) for i in row] for row in ids],
                beam_size=beams,
                max_decoding_length=limit,
                max_batch_size=0 if copies == 1 else -(-len(ids) // copies),
            )
            return [[int(token) for token in r.hypotheses[0]] for r in results]

        return run

    runs = {f"intra_threads={n}": runner(1, n) for n in threads()}
    if _duel.THREADS > 1:
        runs[f"inter_threads={_duel.THREADS}"] = runner(_duel.THREADS, 1)
    return (runs,)


def make_ctranslate2_int8(folder, config):
    """The same model, which CTranslate2 quantises when it loads it."""
    return make_ctranslate2(folder, config, "int8")


def make_transformers(folder, _):
    """The same weights in transformers' M2M100."""
    import torch
    from _conversions import to_transformers

    model = to_transformers(folder)
    start, pad, end = special_tokens(folder)

    def run(ids, beams, limit, threads):
        torch.set_num_threads(threads)
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

    runs = {f"{n} threads": functools.partial(run, threads=n) for n in threads()}
    return runs, logits


def make_keras_hub(folder, _):
    """keras-hub's BART with as many weights, which are random, compiled as it is."""
    import numpy as np
    from keras_hub.models import BartBackbone, BartSeq2SeqLM
    from keras_hub.samplers import BeamSampler, GreedySampler

    config = model_config(folder)
    start, pad, _ = special_tokens(folder)
    names = "vocabulary_size", "num_layers", "num_heads", "hidden_dim"
    sizes = {name: config["encoder"][name] for name in (*names, "intermediate_dim")}
    model, compiled = BartSeq2SeqLM(BartBackbone(**sizes, max_sequence_length=512)), 0

    def run(ids, beams, limit):
        nonlocal compiled
        if beams != compiled:
            sampler = GreedySampler() if beams == 1 else BeamSampler(num_beams=beams)
            model.compile(sampler=sampler)
            compiled = beams
        source = np.array(ids, "int32")
        target = np.full((len(ids), 1 + limit), pad, "int32")
        target[:, 0] = start
        inputs = {
            "encoder_token_ids": source,
            "encoder_padding_mask": np.ones_like(source),
            "decoder_token_ids": target,
            "decoder_padding_mask": (np.arange(1 + limit) < 1) * np.ones_like(target),
        }
        found = model.generate(inputs, stop_token_ids=None)["decoder_token_ids"]
        return found[:, 1:].tolist()

    return ({"": run},)


def threads():
    """How many threads a library is tried with, which can be told per call."""
    return sorted({1, _duel.THREADS}, reverse=True)


def model_config(folder):
    """The config of a saved task's model, a dict."""
    import json

    return json.loads((folder / "config.json").read_text())["model"]


def special_tokens(folder):
    """The start, padding and end ids of a saved task."""
    config = model_config(folder)
    return [config[f"{name}_token_id"] for name in ("start", "pad", "end")]


def padded(rows, pad):
    """Rows of equal length, padded on the right."""
    length = max(map(len, rows))
    return [list(row) + [pad] * (length - len(row)) for row in rows]


def until(row, end):
    """The ids before the end token."""
    return row[: row.index(end)] if end in row else row


def work(contender, folder, config, fixed_threads):
    """Answers messages: generate for `seconds` and say how long a call took; check."""
    runs, *more = globals()[f"make_{contender}"](Path(folder), config)
    chosen = next(iter(runs))  # all threads for one batch
    if fixed_threads:
        runs = {chosen: runs[chosen]}

    def generate(run, batches, *options, seconds=0):
        start, calls = _duel.clock(), 0
        while not calls or _duel.clock() - start < seconds:
            sequences = [run(batch, *options) for batch in batches]
            calls += 1
        taken = (_duel.clock() - start) / calls
        rows = [row for batch in sequences for row in batch]
        return {"seconds": taken, "sequences": rows, "setting": chosen}

    def answer(verb="generate", batches=None, beams=1, limit=0, seconds=0, ids=None):
        if verb == "versions":
            return _duel.versions(
                "kzoo", "keras", "tensorflow", "onnxruntime",
                "ctranslate2", "torch", "transformers", "keras-hub",
            )  # fmt: skip
        if verb == "logits":
            import numpy as np

            pair = [np.array(rows, "int32") for rows in ids]
            return more[0](pair).astype(float).tolist()
        if verb in ("encode", "decode"):
            return more[1 if verb == "encode" else 2](ids)
        nonlocal chosen
        work = batches, beams, limit
        if not seconds:  # a new cell
            for run in runs.values():
                generate(run, *work)  # compiles, warms up
            if len(runs) > 1:
                taken = {n: generate(runs[n], *work, seconds=1) for n in runs}
                chosen = min(runs, key=lambda n: taken[n]["seconds"])
        return generate(runs[chosen], *work, seconds=seconds)

    _duel.serve(answer)


def random_batches(config, batch):
    """One batch of sources of the fixed length, without special tokens."""
    import random

    generator = random.Random(0)
    high = CONFIGS[config]["vocabulary_size"] - 1
    return [[[generator.randint(3, high) for _ in range(LENGTH)] for _ in range(batch)]]


def compare(workers, name, batches, beams, limit, args, score=None):
    """One cell of the table: the contenders in turns on the same batches.

    Args:
        workers: the contenders.
        name: of the cell.
        batches: lists of lists of ids.
        beams: of the search.
        limit: new tokens of a sequence at most; without `score` of every one.
        args: of the command line.
        score: a function of all sequences to their BLEU.
    """
    message = dict(batches=batches, beams=beams, limit=limit)
    first = {w.name: w.ask(**message) for w in workers}  # compiles, chooses threads
    answers = _duel.take_turns(workers, args.turns, seconds=args.seconds, **message)
    cell = {"cell": name, "beams": beams, "contenders": {}}
    rates = {}
    for worker, found in first.items():
        sequences = found["sequences"]
        tokens = sum(min(len(s) + 1, limit) for s in sequences)
        if not args.model and tokens != limit * sum(map(len, batches)):
            raise RuntimeError(
                f"{name}: {worker} gave {tokens} tokens, not {limit} each"
            )
        rates[worker] = [tokens / a["seconds"] for a in answers[worker]]
        cell["contenders"][worker] = found = {
            "setting": found["setting"],
            "tokens": tokens,
            "tokens_per_second": [round(rate, 1) for rate in rates[worker]],
        }
        if worker != "keras_hub" and "onnx" in first:
            same = sum(map(list.__eq__, sequences, first["onnx"]["sequences"]))
            found["equal_to_onnx"] = same / len(sequences)
        if score:
            found["bleu"] = score(sequences)
    cell["faster_by"] = {
        other: _duel.median_ratio(rates[ours], rates[other])
        for other, ours in PAIRS.items()
        if {ours, other} <= set(rates)
    }
    print(name, {k: round(v, 2) for k, v in cell["faster_by"].items()}, flush=True)
    return cell


def largest_difference(workers, ids):
    """Between Keras's logits and transformers', both fed the same ids."""
    import numpy as np

    ours, theirs = (
        np.array(workers[name].ask(verb="logits", ids=ids))
        for name in ("keras", "transformers")
    )
    return float(np.abs(ours - theirs).max())


def geometric_means(cells):
    """Of `faster_by`: over the cells of each model, and over all."""
    models = {}
    for cell in cells:
        models.setdefault(cell["cell"].split(",")[0], []).append(cell)
    if len(models) > 1:
        models["all"] = cells
    return {
        model: {
            other: _duel.geometric_mean([cell["faster_by"][other] for cell in some])
            for other in cells[0]["faster_by"]
        }
        for model, some in models.items()
    }


def table(cells, means):
    """The rows of the markdown table, geometric means last."""
    contenders, pairs = cells[0]["contenders"], cells[0]["faster_by"]
    columns = []  # head, what it shows, of which contender
    for ours in ("onnx", "onnx_int8"):
        if ours in contenders:
            columns.append((f"{ours} tokens/s", "rate", ours))
        columns += [(f"× {other}", "ratio", other)
                    for other in pairs if PAIRS[other] == ours]  # fmt: skip
    columns += [(f"BLEU {c}", "bleu", c) for c in contenders if "bleu" in contenders[c]]

    def entry(cell, what, name):
        if what == "ratio":
            return f"{cell['faster_by'][name]:.2f}"
        found = cell["contenders"][name]
        if what == "bleu":
            return f"{found['bleu']:.2f}"
        return f"{statistics.median(found['tokens_per_second']):,.0f}"

    rows = [["model, search, batch", *(head for head, *_ in columns)]]
    for cell in cells:
        rows.append([cell["cell"], *(entry(cell, *column) for _, *column in columns)])
    for model, mean in means.items():
        ratios = (f"**{mean[n]:.2f}**" if w == "ratio" else "" for _, w, n in columns)
        rows.append([f"**{model}, geometric mean**", *ratios])
    return rows


def main():
    """Starts the contenders, compares them cell by cell, writes the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peers", default=sys.executable)
    parser.add_argument("--hub", help="an interpreter with keras-hub")
    parser.add_argument("--configs", nargs="+", choices=CONFIGS, default=[*CONFIGS])
    parser.add_argument("--beams", nargs="+", type=_duel.count, default=[1, 4])
    parser.add_argument("--batches", nargs="+", type=_duel.count, default=[1, 8, 32])
    parser.add_argument("--new-tokens", type=_duel.count, default=32)
    parser.add_argument("--turns", type=_duel.count, default=7)
    parser.add_argument("--seconds", type=float, default=0.3, help="of a turn at least")
    parser.add_argument(
        "--contenders", nargs="+", choices=CONTENDERS, default=CONTENDERS
    )
    parser.add_argument(
        "--model", type=_duel.folder, help="a folder of a trained translator"
    )
    parser.add_argument("--texts", type=_duel.file, help="a file with a source a line")
    parser.add_argument("--references", type=_duel.file, help="their translations")
    parser.add_argument(
        "--sentences", type=_duel.count, default=200, help="the first lines"
    )
    parser.add_argument("--out", type=_duel.results_name, default="generate")
    parser.add_argument("--fixed-threads", action="store_true")
    parser.add_argument("--cpu-time", action="store_true", help="on a busy machine")
    args = parser.parse_args()
    if bool(args.model) != bool(args.texts) or args.references and not args.texts:
        parser.error("--model and --texts go together, and --references with them.")
    texts, references = (
        _duel.lines(path)[: args.sentences] if path else []
        for path in (args.texts, args.references)
    )
    if references and len(references) != len(texts):
        parser.error(f"{len(texts)} --texts, but {len(references)} --references.")
    if args.cpu_time:
        _duel.measure_cpu_time()
    peers = ["ctranslate2", "ctranslate2_int8", "transformers"]
    pythons = dict.fromkeys(peers, args.peers) | {"keras_hub": args.hub}
    contenders = list(args.contenders)
    if "keras_hub" in contenders and (args.model or not args.hub):
        contenders.remove("keras_hub")
    configs = [str(args.model)] if args.model else args.configs
    cells, differences, versions = [], {}, {}
    for config in configs:
        with tempfile.TemporaryDirectory() as folder:
            workers = {}
            # Keras makes what the others read, so it is there, compared or not.
            for name in ["keras", *(n for n in contenders if n != "keras")]:
                python = pythons.get(name, sys.executable)
                fixed = "fixed" if args.fixed_threads else ""
                worker = _duel.Worker(
                    name, python, "--work", name, folder, config, fixed
                )
                versions[name] = worker.ask(verb="versions")
                workers[name] = worker
            label = "real text" if args.model else config
            if "transformers" in workers:
                ids = [[5, 9, 4, 2, 0], [7, 3, 8, 6, 2]], [[1, 4, 9], [1, 11, 5]]
                differences[label] = largest_difference(workers, ids)
            rivals = [workers[name] for name in contenders]
            for beams in args.beams:
                for batch in args.batches:
                    if args.model:
                        batches, score = text_batches(
                            workers["keras"], batch, texts, references
                        )
                        limit = 80
                    else:
                        batches, score = random_batches(config, batch), None
                        limit = args.new_tokens
                    search = "greedy" if beams == 1 else f"beam {beams}"
                    name = f"{label}, {search}, {batch}"
                    cells.append(
                        compare(rivals, name, batches, beams, limit, args, score)
                    )
            for worker in workers.values():
                worker.close()
    means = geometric_means(cells)
    results = {
        "machine": _duel.machine(),
        "versions": versions,
        "logits_differ_from_transformers_by": differences,
        "geometric_means": means,
        "cells": cells,
    }
    _duel.write_results(args.out, results, table(cells, means))


def text_batches(keras_worker, batch, texts, references):
    """Sentences as ids, sorted by length, in batches; their score.

    Returns:
        The batches, and a function of all translations (ids) to BLEU, or `None`.
    """
    ids = keras_worker.ask(verb="encode", ids=texts)
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))

    def score(sequences):
        import sacrebleu

        translations = keras_worker.ask(verb="decode", ids=sequences)
        wanted = [references[i] for i in order]
        return sacrebleu.corpus_bleu(translations, [wanted]).score

    rows = [ids[i] for i in order]
    batches = [rows[i : i + batch] for i in range(0, len(rows), batch)]
    return batches, score if references else None


if __name__ == "__main__":
    _duel.main(main, work)
