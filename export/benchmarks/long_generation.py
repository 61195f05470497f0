"""Long generation on one model's weights: kzoo's loop file against onnxruntime-genai.

    python export/benchmarks/long_generation.py
    python export/benchmarks/long_generation.py --layers 4 --width 256 --prompt 64 \
        --new-tokens 64 --turns 3

A decoder with random weights, rotary positions and a context of prompt + new tokens is
exported three times: as generate.onnx, which holds the whole loop, as it is and with
low_memory=True, and with its cache as inputs and outputs for onnxruntime-genai. All
generate greedily from the same random prompt on the same number of threads, in
processes of their own and in turns. A bias keeps the end token from being the best, so
every run has --new-tokens tokens.

Reported: the median of the ratios of neighbouring turns; milliseconds a token of the
first and the last eighth, from runs that stop earlier; and the highest memory of each
process over that before its session was opened, over the bytes of weights and cache.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import _duel

CONTENDERS = ["kzoo", "kzoo_low_memory", "genai"]


def export(folder, args):
    """The artifacts of one model; returns the bytes of weights and full cache."""
    import keras
    import numpy as np

    import kzoo

    keras.utils.set_random_seed(0)
    task = kzoo.CausalLM.from_size(
        "base",
        vocabulary_size=args.vocabulary_size,
        num_layers=args.layers,
        hidden_dim=args.width,
        num_heads=max(1, args.width // 64),
        intermediate_dim=4 * args.width,
        max_sequence_length=args.prompt + args.new_tokens,
        positions="rotary",
        activation="gelu",
        head_bias=True,
    )
    bias = np.zeros(args.vocabulary_size, "float32")
    bias[task.config.end_token_id] = -30.0
    task.head.bias.assign(bias)
    for name in CONTENDERS[:2]:
        task.export(folder / name, format="onnx", low_memory=name.endswith("memory"))
    report = task.export(folder / "genai", format="genai")
    length = args.prompt + args.new_tokens
    return report.weight_bytes, args.layers * 2 * length * args.width * 4


def make_kzoo(folder, name="kzoo"):
    """The whole loop in one session."""
    import numpy as np

    session = _duel.onnx_session(folder / name / "generate.onnx")

    def run(ids, count):
        feed = {"token_ids": np.array([ids]), "max_new_tokens": np.array(count)}
        (sequences,) = session.run(["sequences"], feed)
        return sequences[0, 0].tolist()

    return run


def make_kzoo_low_memory(folder):
    """The same in the file that needs little memory."""
    return make_kzoo(folder, "kzoo_low_memory")


def make_genai(folder):
    """The step in onnxruntime-genai's loop."""
    import json

    import numpy as np
    import onnxruntime_genai

    config = onnxruntime_genai.Config(str(folder / "genai"))
    options = {"intra_op_num_threads": _duel.THREADS}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
    model = onnxruntime_genai.Model(config)

    def run(ids, count):
        params = onnxruntime_genai.GeneratorParams(model)
        params.set_search_options(max_length=len(ids) + count, do_sample=False)
        generator = onnxruntime_genai.Generator(model, params)
        generator.append_tokens(np.array([ids], "int32"))
        while not generator.is_done():
            generator.generate_next_token()
        return generator.get_sequence(0)[len(ids) :].tolist()

    return run


def work(contender, folder):
    """Answers messages: generate, and say how long it took; or the peak of memory."""
    import numpy  # noqa: F401 - what both need is not counted

    __import__("onnxruntime_genai" if contender == "genai" else "onnxruntime")
    before = _duel.peak()
    run = globals()[f"make_{contender}"](Path(folder))

    def answer(verb="generate", ids=None, count=0):
        if verb == "memory":
            return _duel.peak() - before
        if verb == "versions":
            return _duel.versions("onnxruntime", "onnxruntime-genai")
        start = _duel.clock()
        tokens = run(ids, count)
        return {"seconds": _duel.clock() - start, "tokens": tokens}

    _duel.serve(answer)


def main():
    """Exports, compares in turns, writes the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=_duel.count, default=12)
    parser.add_argument("--width", type=_duel.count, default=768)
    parser.add_argument("--prompt", type=_duel.count, default=512)
    parser.add_argument("--new-tokens", type=_duel.count, default=512)
    parser.add_argument("--vocabulary-size", type=_duel.count, default=32_000)
    parser.add_argument("--turns", type=_duel.count, default=5)
    parser.add_argument("--cpu-time", action="store_true", help="one thread, CPU time")
    parser.add_argument(
        "--out",
        type=_duel.results_name,
        default="long_generation",
        help="of the results",
    )
    args = parser.parse_args()
    if args.cpu_time:
        _duel.measure_cpu_time()
    if args.new_tokens < 3:
        parser.error("--new-tokens must be 3 or more, to time early and late ones.")
    part = max(1, args.new_tokens // 8)
    # Runs of these lengths; their differences time the first and the last eighth.
    lengths = [1, 1 + part, args.new_tokens - part, args.new_tokens]
    with tempfile.TemporaryDirectory() as folder:
        weights, cache = export(Path(folder), args)
        workers = [
            _duel.Worker(name, sys.executable, "--work", name, folder)
            for name in CONTENDERS
        ]
        import random

        draws = random.Random(0)
        ids = [draws.randrange(3, args.vocabulary_size) for _ in range(args.prompt)]
        first = [w.ask(ids=ids, count=args.new_tokens)["tokens"] for w in workers]
        messages = [dict(ids=ids, count=count) for count in lengths]
        answers = _duel.take_turns_of(workers, args.turns, messages)
        answers = dict(zip(lengths, answers, strict=True))
        memory = {w.name: w.ask(verb="memory") for w in workers}
        versions = {w.name: w.ask(verb="versions") for w in workers}
        for worker in workers:
            worker.close()

    def seconds(name, count):
        return [answer["seconds"] for answer in answers[count][name]]

    def per_token(name, start, stop):
        pairs = zip(seconds(name, start), seconds(name, stop), strict=True)
        return statistics.median(1000 * (b - a) / (stop - start) for a, b in pairs)

    whole = args.new_tokens
    results = {
        "machine": _duel.machine(),
        "versions": versions,
        "arguments": _duel.settings(args),
        "tokens_equal": all(tokens == first[0] for tokens in first)
        and len(first[0]) == whole,
        "faster_than_genai_by": {
            name: _duel.median_ratio(seconds("genai", whole), seconds(name, whole))
            for name in CONTENDERS[:2]
        },
        "weight_bytes": weights,
        "cache_bytes": cache,
        "contenders": {
            name: {
                "seconds": seconds(name, whole),
                "first_token_ms": 1000 * statistics.median(seconds(name, 1)),
                "early_token_ms": per_token(name, *lengths[:2]),
                "late_token_ms": per_token(name, *lengths[2:]),
                "memory_over_weights_and_cache": memory[name] / (weights + cache),
            }
            for name in CONTENDERS
        },
    }
    print(f"tokens equal: {results['tokens_equal']}")
    columns = ["first_token_ms", "early_token_ms", "late_token_ms"]
    rows = [["", "seconds", "× genai", *columns, "memory / (weights + cache)"]]
    for name, found in results["contenders"].items():
        times = [f"{found[column]:.2f}" for column in columns]
        ratio = f"{found['memory_over_weights_and_cache']:.2f}"
        median = statistics.median(found["seconds"])
        faster = results["faster_than_genai_by"].get(name, 1.0)
        rows.append([name, f"{median:.2f}", f"{faster:.2f}", *times, ratio])
    _duel.write_results(args.out, results, rows)


if __name__ == "__main__":
    _duel.main(main, work)
