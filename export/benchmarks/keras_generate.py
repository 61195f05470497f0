"""Tokens per second of Keras's `generate`: CausalLM and keras-hub's GPT2CausalLM.

    python export/benchmarks/keras_generate.py --hub PYTHON

--hub names an interpreter with keras-hub; by default this one. Both run on the
TensorFlow backend, or that of KERAS_BACKEND (JAX has --modes XLA alone), with the same
random weights, in float32, on two threads, as GPT-2 is built: pre-norm, learned
positions, gelu by tanh, a tied table; in the two sizes of `generate.py`. Both search
greedily from the same prompts of 32 ids, to 64 new tokens, both without XLA and both
with it (`jit_compile`); compiling is not counted.

Both make exactly --new-tokens tokens a row: keras-hub has no stop token, and in the
tied table the rows of the end token and of padding are zero, so that their logits are 0
and never the best. Only new tokens count; how many rows are equal to kzoo's, token by
token, is reported. keras-hub's model has as many positions as prompt and new tokens
are, and its inputs are of that length, so its cache is no longer than it has to be.
"""

import argparse
import itertools
import random
import sys
import tempfile
from pathlib import Path

import _duel

CONTENDERS = ["kzoo", "keras-hub"]
MODES = ["no XLA", "XLA"]
CONFIGS = {  # of `generate.py`: "mini" and "base" of kzoo's sizes
    "small": dict(
        vocabulary_size=6000,
        num_layers=4,
        num_heads=4,
        hidden_dim=128,
        intermediate_dim=256,
        dropout=0.0,
    ),
    "base": dict(
        vocabulary_size=32_000,
        num_layers=6,
        num_heads=8,
        hidden_dim=512,
        intermediate_dim=2048,
        dropout=0.0,
    ),
}


def make_kzoo(folder, config, prompt, new, jit_compile):
    """`CausalLM.generate`; writes the weights that the others read."""
    import keras
    import numpy as np

    import kzoo

    keras.utils.set_random_seed(0)
    task = kzoo.CausalLM.from_size(
        "base",
        **CONFIGS[config],
        max_sequence_length=prompt + new,
        positions="learned",
        embedding_scale=1.0,
        norm_epsilon=1e-5,
        activation="gelu_tanh",
        initializer="truncated_normal",
    )
    weights = {
        path: keras.ops.convert_to_numpy(variable).copy()
        for path, variable in task.named_variables().items()
    }
    table = weights["decoder/token_embedding/embeddings"]
    table[[task.config.pad_token_id, task.config.end_token_id]] = 0.0
    task.named_variables()["decoder/token_embedding/embeddings"].assign(table)
    np.savez(folder / "weights.npz", **weights)

    def run(ids):
        return task.generate(
            ids, max_new_tokens=new, batch_size=len(ids), jit_compile=jit_compile
        )

    return run


def make_hub(folder, config, prompt, new, jit_compile):
    """keras-hub's model without a preprocessor, with kzoo's weights."""
    import keras_hub
    import numpy as np

    backbone = keras_hub.models.GPT2Backbone(
        **CONFIGS[config], max_sequence_length=prompt + new
    )
    task = keras_hub.models.GPT2CausalLM(backbone=backbone)
    task.compile(sampler="greedy", jit_compile=jit_compile)
    with np.load(folder / "weights.npz") as weights:
        for variable in backbone.variables:
            value = weights[path_in_kzoo(variable.path)]
            variable.assign(value.reshape(variable.shape))

    def run(ids):
        shape = len(ids), prompt + new
        tokens, mask = np.zeros(shape, "int32"), np.zeros(shape, "int32")
        tokens[:, :prompt], mask[:, :prompt] = ids, 1
        result = task.generate(
            {"token_ids": tokens, "padding_mask": mask}, stop_token_ids=None
        )
        return result["token_ids"][:, prompt:].tolist()

    return run


def path_in_kzoo(path):
    """What kzoo calls a weight of keras-hub's GPT-2."""
    for theirs, ours in {
        "transformer_layer_": "layer_",
        "attention_output": "output",
        "_layer_norm/": "_norm/",
        "feedforward_norm": "feed_forward_norm",
        "feedforward_intermediate_dense": "feed_forward/intermediate",
        "feedforward_output_dense": "feed_forward/output",
    }.items():
        path = path.replace(theirs, ours)
    return "decoder/" + path.replace("layer_norm/", "final_norm/")


def work(contender, folder, config, prompt, new, mode):
    """Answers messages: generate `calls` times and say how long it took."""
    make = make_kzoo if contender == "kzoo" else make_hub
    run = make(Path(folder), config, int(prompt), int(new), mode == "XLA")

    def answer(verb="generate", ids=None, calls=1):
        if verb == "versions":
            return _duel.versions("kzoo", "keras", "tensorflow", "jax", "keras-hub")
        if verb == "sequences":
            return run(ids)
        start = _duel.clock()
        for _ in range(calls):
            run(ids)
        return {"seconds": _duel.clock() - start}

    _duel.serve(answer)


def equal_rows(workers, ids, new):
    """The share of rows that each other contender continues as kzoo does.

    Raises:
        RuntimeError: a contender does not give `new` tokens a row.
    """
    found = {worker.name: worker.ask(verb="sequences", ids=ids) for worker in workers}
    for name, rows in found.items():
        if [len(row) for row in rows] != [new] * len(ids):
            raise RuntimeError(f"{name} did not make {new} tokens a row: {rows}.")
    ours = found.pop(workers[0].name)
    return {
        name: sum(a == b for a, b in zip(ours, rows, strict=True)) / len(ours)
        for name, rows in found.items()
    }


def main():
    """Starts the contenders, compares them cell by cell, writes the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hub", default=sys.executable)
    parser.add_argument("--configs", nargs="+", choices=CONFIGS, default=[*CONFIGS])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--batches", nargs="+", type=_duel.count, default=[1, 8, 32])
    parser.add_argument("--prompt", type=_duel.count, default=32)
    parser.add_argument("--new-tokens", type=_duel.count, default=64)
    parser.add_argument("--turns", type=_duel.count, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn")
    parser.add_argument("--out", type=_duel.results_name, default="keras_generate")
    parser.add_argument("--cpu-time", action="store_true", help="on a busy machine")
    args = parser.parse_args()
    if args.cpu_time:
        _duel.measure_cpu_time()
    generator = random.Random(0)
    lengths = args.prompt, args.new_tokens
    cells, versions = {mode: [] for mode in args.modes}, {}
    for mode, config in itertools.product(args.modes, args.configs):
        with tempfile.TemporaryDirectory() as folder:
            workers = []
            for name in CONTENDERS:
                python = sys.executable if name == "kzoo" else args.hub
                given = name, folder, config, *map(str, lengths), mode
                workers.append(_duel.Worker(name, python, "--work", *given))
                # Its first answer also says that kzoo has written the weights.
                versions[name] = workers[-1].ask(verb="versions")
            for batch in args.batches:
                size = CONFIGS[config]["vocabulary_size"]
                ids = [
                    [generator.randrange(3, size) for _ in range(args.prompt)]
                    for _ in range(batch)
                ]
                equal = equal_rows(workers, ids, args.new_tokens)
                cell = _duel.compare(
                    f"{mode}, {config}, batch {batch}",
                    workers,
                    batch * args.new_tokens,
                    args.turns,
                    args.seconds,
                    ids=ids,
                )
                cells[mode].append({**cell, "equal_rows": equal})
            for worker in workers:
                worker.close()
    every = list(itertools.chain(*cells.values()))
    equal = min(share for cell in every for share in cell["equal_rows"].values())
    print(f"rows equal token by token: {equal:.0%} at least")
    head = ["cell", "kzoo tokens/s"]
    rows = [_duel.table(head, every)[0]]
    for some in cells.values():
        rows += _duel.table(head, some)[1:]
    _duel.write_results(args.out, _duel.results(args, versions, every), rows)


if __name__ == "__main__":
    _duel.main(main, work)
