"""Tiny Shakespeare by characters: kzoo beside nanoGPT's training on torch, in turns.

    python export/benchmarks/shakespeare.py input.txt.gz --peers PYTHON

nanoGPT's CPU setting (its README): 4 layers of width 128, 4 heads, 64 characters of
context, 2,000 steps of 12 rows, AdamW with a warm-up of 100 steps and a cosine to a
tenth, gradients clipped to norm 1. --peers names an interpreter with torch; there the
same model and loop are written with torch's own modules: learned positions, layer norm
without bias, GELU, tied head, `scaled_dot_product_attention`. kzoo's differs where
that learns better in as many steps: rotary positions, SwiGLU of the same number of
weights, and XLA, since all batches have one shape. "kzoo_short" is the same with half
the steps and a schedule of that length. Only training steps are timed, not compilation,
in `--turns` stretches, A B C, C B A; the loss is that of the whole validation part, the
last tenth, in stretches of 64 characters.
"""

import argparse
import gzip
import math
import sys

import _duel

STEPS = {"kzoo": 2000, "kzoo_short": 1000, "torch": 2000}
BATCH, LENGTH, LAYERS, WIDTH, HEADS = 12, 64, 4, 128, 4
PEAK = {"kzoo": 3e-3, "torch": 1e-3}
WARMUP, DECAY = 100, 0.1


def corpus(path):
    """Characters as ids for training and validation, and how many kinds there are."""
    import numpy as np

    opened = gzip.open if path.endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8", newline="") as file:
        text = file.read()
    kinds = {character: i for i, character in enumerate(sorted(set(text)))}
    ids = np.array([kinds[character] for character in text])
    cut = int(0.9 * len(ids))
    return ids[:cut], ids[cut:], len(kinds)


def crops(ids, steps, seed):
    """Random stretches of LENGTH + 1 ids, int32 (steps * BATCH, LENGTH + 1)."""
    import numpy as np

    starts = np.random.default_rng(seed).integers(0, len(ids) - LENGTH, steps * BATCH)
    return ids[starts[:, None] + np.arange(LENGTH + 1)].astype("int32")


def stretches(ids):
    """The text once, int32 (N, LENGTH + 1), neighbours sharing one id."""
    count = (len(ids) - 1) // LENGTH
    return ids[[range(i * LENGTH, (i + 1) * LENGTH + 1) for i in range(count)]].astype(
        "int32"
    )


def rate(step, peak):
    """nanoGPT's schedule: a linear warm-up, then a cosine to a tenth."""
    if step < WARMUP:
        return peak * step / WARMUP
    share = (step - WARMUP) / (STEPS["torch"] - WARMUP)
    return peak * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * share)))


def kzoo_worker(path, turns, steps):
    """CausalLM trained by `fit` on arrays."""
    import keras

    import kzoo

    keras.utils.set_random_seed(1337)
    train, held_out, kinds = corpus(path)
    # Id 0 is padding's, so characters count from 1.
    config = kzoo.ModelConfig(
        decoder=kzoo.StackConfig(
            vocabulary_size=kinds + 3, num_layers=LAYERS, hidden_dim=WIDTH,
            num_heads=HEADS, intermediate_dim=WIDTH * 8 // 3, feed_forward="gated",
            activation="silu", positions="rotary", norm="rms_norm", use_bias=False,
            dropout=0.0, causal=True, initializer="truncated_normal",
        ),
        start_token_id=kinds + 1, end_token_id=kinds + 2,
    )  # fmt: skip
    model = kzoo.CausalLM(config)
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, steps - WARMUP, 0.1, warmup_target=PEAK["kzoo"], warmup_steps=WARMUP
    )
    optimizer = kzoo.training.Adam(
        schedule, beta_2=0.99, weight_decay=DECAY, global_clipnorm=1.0
    )
    optimizer.exclude_from_weight_decay(var_names=["scale"])
    steps //= turns
    model.compile(optimizer, metrics=[], steps_per_execution=steps, jit_compile=True)
    ends = []
    end = keras.callbacks.LambdaCallback(
        on_train_end=lambda logs: ends.append(_duel.clock())
    )
    # Traced before the clock starts, on a copy of the weights.
    before = model.get_weights()
    rows = crops(train, steps, 0) + 1
    model.fit({"token_ids": rows[:, :-1]}, rows[:, 1:], batch_size=BATCH, verbose=0)
    model.set_weights(before)
    for variable in optimizer.variables:
        if not variable.path.endswith("learning_rate"):
            variable.assign(keras.ops.zeros_like(variable))

    def answer(turn=None):
        if turn is None:
            rows = stretches(held_out) + 1
            inputs = {"token_ids": rows[:, :-1]}
            loss = model.evaluate(inputs, rows[:, 1:], batch_size=BATCH, verbose=0)
            return {"loss": loss, "parameters": model.count_params()}
        rows = crops(train, steps, turn) + 1
        start = _duel.clock()
        history = model.fit(
            {"token_ids": rows[:, :-1]}, rows[:, 1:], batch_size=BATCH,
            shuffle=False, verbose=0, callbacks=[end],
        )  # fmt: skip
        return {"seconds": ends[-1] - start, "train": history.history["loss"][-1]}

    return answer


def torch_worker(path, turns, steps):
    """nanoGPT's model and loop."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    torch.manual_seed(1337)
    torch.set_num_threads(_duel.THREADS)
    train, held_out, kinds = corpus(path)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm_1 = nn.LayerNorm(WIDTH, bias=False)
            self.attention = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
            self.projection = nn.Linear(WIDTH, WIDTH, bias=False)
            self.norm_2 = nn.LayerNorm(WIDTH, bias=False)
            self.inner = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
            self.outer = nn.Linear(4 * WIDTH, WIDTH, bias=False)

        def forward(self, x):
            sizes = (*x.shape[:2], HEADS, WIDTH // HEADS)
            parts = self.attention(self.norm_1(x)).split(WIDTH, dim=2)
            q, k, v = (part.view(sizes).transpose(1, 2) for part in parts)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.projection(y.transpose(1, 2).reshape(x.shape))
            return x + self.outer(F.gelu(self.inner(self.norm_2(x))))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(kinds, WIDTH)
            self.positions = nn.Embedding(LENGTH, WIDTH)
            self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
            self.norm = nn.LayerNorm(WIDTH, bias=False)
            for name, weight in self.named_parameters():
                if weight.ndim == 2:
                    last = name.endswith(("projection.weight", "outer.weight"))
                    scale = math.sqrt(2 * LAYERS) if last else 1.0
                    nn.init.normal_(weight, std=0.02 / scale)

        def forward(self, ids, targets):
            x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
            logits = self.norm(self.blocks(x)) @ self.tokens.weight.T
            return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    model = GPT()
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": DECAY},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.99), fused=True)
    steps //= turns

    def answer(turn=None):
        if turn is None:
            rows = torch.from_numpy(stretches(held_out)).long()
            with torch.no_grad():
                losses = [
                    float(model(part[:, :-1], part[:, 1:])) * len(part)
                    for part in rows.split(BATCH)
                ]
            size = sum(p.numel() for p in model.parameters())
            return {"loss": sum(losses) / len(rows), "parameters": size}
        rows = torch.from_numpy(crops(train, steps, turn)).long()
        start = _duel.clock()
        for step, part in enumerate(rows.split(BATCH)):
            for group in optimizer.param_groups:
                group["lr"] = rate(turn * steps + step, PEAK["torch"])
            loss = model(part[:, :-1], part[:, 1:])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return {"seconds": _duel.clock() - start, "train": loss.item()}

    return answer


def main():
    """Trains both and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("text")
    parser.add_argument("--peers", default=sys.executable)
    parser.add_argument("--turns", type=_duel.count, default=8)
    parser.add_argument("--worker", choices=STEPS)
    parser.add_argument("--out", type=_duel.results_name, default="shakespeare")
    args = parser.parse_args()
    if any(steps % args.turns for steps in STEPS.values()):
        parser.error(f"--turns must divide {sorted({*STEPS.values()})} steps.")
    if args.worker:
        make = torch_worker if args.worker == "torch" else kzoo_worker
        return _duel.serve(make(args.text, args.turns, STEPS[args.worker]))
    options = (args.text, "--turns", str(args.turns), "--worker")
    pythons = {name: sys.executable for name in STEPS} | {"torch": args.peers}
    workers = [
        _duel.Worker(name, python, *options, name) for name, python in pythons.items()
    ]
    turns = {name: [] for name in STEPS}
    for turn in range(args.turns):
        for worker in workers if turn % 2 == 0 else reversed(workers):
            turns[worker.name].append(worker.ask(turn=turn))
            print(turn, worker.name, turns[worker.name][-1], flush=True)
    final = {worker.name: worker.ask() for worker in workers}
    for worker in workers:
        worker.close()
    seconds = {name: [t["seconds"] for t in turns[name]] for name in turns}
    ratios = {
        name: _duel.median_ratio(seconds[name], seconds["torch"]) for name in STEPS
    }
    rows = [["", "steps", "validation loss", "parameters", "seconds", "/ torch's"]]
    for name, label in (
        ("kzoo", "kzoo"),
        ("kzoo_short", "kzoo, half the steps"),
        ("torch", "nanoGPT's on torch"),
    ):
        end = final[name]
        rows.append(
            [label, str(STEPS[name]), f"{end['loss']:.4f}", str(end["parameters"])]
            + [f"{sum(seconds[name]):.1f}", f"{ratios[name]:.2f}"]
        )
    _duel.write_results(
        args.out,
        {
            "machine": _duel.machine(),
            "versions": _duel.versions("keras", "tensorflow", "kzoo"),
            "turns": turns,
            "final": final,
            "ratios_of_seconds": ratios,
        },
        rows,
    )


if __name__ == "__main__":
    main()
