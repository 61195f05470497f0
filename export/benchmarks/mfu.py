"""Training of a decoder on a GPU: tokens per second, and the share of its arithmetic.

    KERAS_BACKEND=jax python export/benchmarks/mfu.py --peak-tflops 989

kzoo with and without its fused kernel of attention, keras-hub on the same backend of
Keras, and transformers on torch, compiled, with its scaled-dot-product attention, take
turns on one device; those that are not installed are left out. A decoder of GPT-2's
small size (124 million parameters) trains on random tokens, in bfloat16 with float32
weights: forward, loss, backward, clipping to norm 1, AdamW. Model FLOPs utilisation
(Chowdhery et al., 2022, https://arxiv.org/abs/2204.02311, appendix B) counts

    6 N + 12 L D T

operations a token, forward and backward: N parameters, L layers, D their width and T
tokens a sequence; what is computed twice or thrown away counts nothing. `--peak-tflops`
is what the device can do in bfloat16 (H100 and H200: 989), without sparsity. `--tiny`
runs anywhere, to see that it runs.
"""

import argparse
import importlib.util
import json
import os
import statistics
import sys

import _duel

SIZES = {
    "small": dict(layers=12, width=768, heads=12, vocabulary=50_304, length=1024),
    "tiny": dict(layers=2, width=32, heads=2, vocabulary=64, length=32),
}
RATE, DECAY = 6e-4, 0.1
# Who takes turns, and the package that it needs.
CONTENDERS = {
    "kzoo": "kzoo",
    "kzoo_parts": "kzoo",
    "keras_hub": "keras_hub",
    "transformers": "transformers",
}


def tokens_of(size, rows, steps):
    """Random ids, int32 (rows * steps, length + 1)."""
    import numpy as np

    shape = (rows * steps, size["length"] + 1)
    return np.random.default_rng(0).integers(3, size["vocabulary"], shape, "int32")


def make_kzoo(size, rows, steps):
    """A CausalLM as `from_size` makes it, in GPT-2's form."""
    import kzoo
    from kzoo.training import Adam

    model = kzoo.CausalLM.from_size(
        "base", vocabulary_size=size["vocabulary"], num_layers=size["layers"],
        hidden_dim=size["width"], num_heads=size["heads"],
        intermediate_dim=4 * size["width"], positions="learned", dropout=0.0,
        max_sequence_length=size["length"], activation="gelu_tanh",
        dtype="mixed_bfloat16",
    )  # fmt: skip
    optimizer = Adam(RATE, weight_decay=DECAY, global_clipnorm=1.0)
    model.compile(optimizer, metrics=None)
    tokens = tokens_of(size, rows, steps)
    return _duel.keras_turn(model, {"token_ids": tokens[:, :-1]}, tokens[:, 1:], rows)


def make_kzoo_parts(size, rows, steps):
    """The same without the fused kernel of attention."""
    from kzoo.ops import heads

    heads.fused_kernel = lambda *args, **options: None
    return make_kzoo(size, rows, steps)


def make_keras_hub(size, rows, steps):
    """keras-hub's GPT2CausalLM."""
    import keras
    import keras_hub
    import numpy as np

    backbone = keras_hub.models.GPT2Backbone(
        size["vocabulary"], size["layers"], size["heads"], size["width"],
        4 * size["width"], dropout=0.0, max_sequence_length=size["length"],
        dtype="mixed_bfloat16",
    )  # fmt: skip
    model = keras_hub.models.GPT2CausalLM(backbone)
    optimizer = keras.optimizers.AdamW(RATE, weight_decay=DECAY, global_clipnorm=1.0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, weighted_metrics=None)
    ids = tokens_of(size, rows, steps)
    inputs = {"token_ids": ids[:, :-1], "padding_mask": np.ones_like(ids[:, :-1])}
    return _duel.keras_turn(model, inputs, ids[:, 1:], rows)


def make_transformers(size, rows, steps):
    """GPT2LMHeadModel, compiled, and torch's fused AdamW in a loop."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    config = GPT2Config(
        vocab_size=size["vocabulary"], n_positions=size["length"], use_cache=False,
        n_embd=size["width"], n_layer=size["layers"], n_head=size["heads"],
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="sdpa",
    )  # fmt: skip
    model = GPT2LMHeadModel(config).to(device).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), RATE, weight_decay=DECAY, fused=True
    )
    compiled = torch.compile(model)
    ids = torch.from_numpy(tokens_of(size, rows, steps)).long()

    def turn():
        start = _duel.clock()
        for batch in ids.split(rows):
            batch = batch.to(device, non_blocking=True)
            with torch.autocast(device, torch.bfloat16):
                logits = compiled(input_ids=batch[:, :-1]).logits
                loss = torch.nn.functional.cross_entropy(
                    logits.flatten(0, 1), batch[:, 1:].flatten()
                )
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        loss.item()
        return _duel.clock() - start

    return turn


def count_parameters(size):
    """N, the shared table of tokens counted once."""
    layers, width = size["layers"], size["width"]
    block = 12 * width**2 + 13 * width
    tables = (size["vocabulary"] + size["length"]) * width
    return tables + layers * block + 2 * width


def work(contender, size, rows, steps):
    """Builds a model and compiles its step; then answers with what turns take."""
    turn = globals()[f"make_{contender}"](SIZES[size], int(rows), int(steps))
    turn()

    def answer(what):
        if what == "turn":
            return turn()
        versions = _duel.versions(
            "kzoo", "keras", "keras-hub", "jax", "tensorflow", "torch", "transformers"
        )
        return {"versions": versions, "device": device()}

    _duel.serve(answer)


def device():
    """The accelerator of the contender's own library, in words."""
    if "kzoo" in sys.modules or "keras_hub" in sys.modules:
        import keras

        if keras.backend.backend() == "jax":
            import jax

            return jax.devices()[0].device_kind
        return ", ".join(keras.distribution.list_devices())
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def main():
    """Starts the contenders together, takes turns, writes the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peak-tflops", type=float, default=989.0)
    parser.add_argument("--rows", type=_duel.count, default=8, help="of a batch")
    parser.add_argument("--steps", type=_duel.count, default=20, help="of a turn")
    parser.add_argument("--turns", type=_duel.count, default=5)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=_duel.results_name, default="mfu")
    args = parser.parse_args()
    name = "tiny" if args.tiny else "small"
    if args.tiny:
        args.rows, args.steps, args.turns = 2, 2, 2
    # All of them on one device: none may take its memory at once.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    task = [name, str(args.rows), str(args.steps)]
    workers = [
        _duel.Worker(who, sys.executable, "--work", who, *task)
        for who, package in CONTENDERS.items()
        if importlib.util.find_spec(package)
    ]
    about = {worker.name: worker.ask(what="about") for worker in workers}
    answers = _duel.take_turns(workers, args.turns, what="turn")
    for worker in workers:
        worker.close()
    size, parameters = SIZES[name], count_parameters(SIZES[name])
    operations = 6 * parameters + 12 * size["layers"] * size["width"] * size["length"]
    tokens = args.rows * args.steps * size["length"]
    rates = {who: [tokens / s for s in found] for who, found in answers.items()}
    rows = [["", "tokens a second", "model FLOPs utilisation", "kzoo ×"]]
    for who, found in rates.items():
        rate = statistics.median(found)
        share = rate * operations / (args.peak_tflops * 1e12)
        ratio = _duel.median_ratio(rates["kzoo"], found)
        rows.append([who, f"{rate:,.0f}", f"{share:.1%}", f"{ratio:.2f}"])
    results = {
        "machine": _duel.machine(),
        "backend": _duel.ENVIRONMENT["KERAS_BACKEND"],
        "contenders": about,
        "arguments": _duel.settings(args),
        "size": size,
        "parameters": parameters,
        "operations_a_token": operations,
        "tokens_per_second": rates,
    }
    if args.tiny:
        print(json.dumps([rows, about], indent=1))
    else:
        _duel.write_results(args.out, results, rows)


if __name__ == "__main__":
    _duel.main(main, work)
