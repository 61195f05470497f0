"""Tokens per second of `fit`: kzoo, keras-hub and transformers, same model and batches.

    python export/benchmarks/fit.py --peers PYTHON --hub PYTHON

--peers names an interpreter with torch and transformers, --hub one with keras-hub; by
default this one. Every contender trains a pre-norm encoder-decoder with sinusoidal
positions and one shared, tied table on random ids. A turn is `fit` over `--steps`
batches: forward, loss, backward, Adam. Tokens are those of encoder and decoder.

Mode "default" has what each library does unasked: kzoo accuracy, perplexity and
clipping to norm 1; keras-hub accuracy; transformers clipping to norm 1 (its Trainer).
Mode "lean" has loss and Adam alone. torch's Adam is its fused one.
"""

import argparse
import statistics
import sys

import _duel

MODES = ["default", "lean"]
CONFIGS = {
    "small": dict(layers=4, width=128, heads=4, inner=256, vocabulary=6000, batch=192),
    "base": dict(layers=6, width=512, heads=8, inner=2048, vocabulary=32000, batch=16),
}
LENGTH, DROPOUT, RATE = 20, 0.1, 1e-4


def data(config, steps):
    """Random ids: encoder inputs, decoder inputs, targets; int32 (rows, LENGTH)."""
    import numpy as np

    shape = (3, steps * config["batch"], LENGTH)
    return np.random.default_rng(0).integers(
        3, config["vocabulary"], shape, dtype="int32"
    )


def keras_turn(model, config, steps):
    """A turn of a compiled Keras model, see `_duel.keras_turn`."""
    source, target, labels = data(config, steps)
    inputs = {"encoder_token_ids": source, "decoder_token_ids": target}
    return _duel.keras_turn(model, inputs, labels, config["batch"])


def make_kzoo(config, steps, lean):
    """Seq2SeqLM as `compile()` makes it; lean: without metrics and clipping."""
    import kzoo

    model = kzoo.Seq2SeqLM.from_size(
        "base",
        vocabulary_size=config["vocabulary"],
        num_layers=config["layers"],
        hidden_dim=config["width"],
        num_heads=config["heads"],
        intermediate_dim=config["inner"],
        dropout=DROPOUT,
        attention_dropout=DROPOUT,
    )
    if lean:
        model.compile(optimizer=kzoo.training.Adam(RATE), metrics=None)
    else:
        model.compile()
    return keras_turn(model, config, steps)


def make_keras_hub(config, steps, lean):
    """The same from keras-hub's layers, compiled as keras-hub's own tasks are."""
    import keras
    from keras_hub import layers

    source = keras.Input((LENGTH,), dtype="int32", name="encoder_token_ids")
    target = keras.Input((LENGTH,), dtype="int32", name="decoder_token_ids")
    embedding = layers.ReversibleEmbedding(config["vocabulary"], config["width"])
    block = dict(
        intermediate_dim=config["inner"],
        num_heads=config["heads"],
        dropout=DROPOUT,
        layer_norm_epsilon=1e-6,
        normalize_first=True,
    )

    def embed(ids):
        x = embedding(ids) * config["width"] ** 0.5
        x = x + layers.SinePositionEncoding()(x)
        return keras.layers.Dropout(DROPOUT)(x)

    real = keras.ops.not_equal(source, 0)
    memory = embed(source)
    for _ in range(config["layers"]):
        memory = layers.TransformerEncoder(**block)(memory, padding_mask=real)
    memory = keras.layers.LayerNormalization(epsilon=1e-6)(memory)
    x = embed(target)
    for _ in range(config["layers"]):
        x = layers.TransformerDecoder(**block)(x, memory, encoder_padding_mask=real)
    x = keras.layers.LayerNormalization(epsilon=1e-6)(x)
    model = keras.Model([source, target], embedding(x, reverse=True))
    accuracy = keras.metrics.SparseCategoricalAccuracy()
    model.compile(
        optimizer=keras.optimizers.Adam(RATE),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=None if lean else [accuracy],
    )
    return keras_turn(model, config, steps)


def make_transformers(config, steps, lean):
    """M2M100, transformers' model of this form, and torch's fused Adam in a loop."""
    import torch
    from transformers import M2M100Config, M2M100ForConditionalGeneration

    torch.set_num_threads(_duel.THREADS)
    sizes = {
        f"{side}_{name}": config[value]
        for side in ("encoder", "decoder")
        for name, value in [
            ("layers", "layers"), ("attention_heads", "heads"), ("ffn_dim", "inner")
        ]
    }  # fmt: skip
    model = M2M100ForConditionalGeneration(
        M2M100Config(
            vocab_size=config["vocabulary"],
            d_model=config["width"],
            dropout=DROPOUT,
            attention_dropout=DROPOUT,
            activation_dropout=0.0,
            encoder_layerdrop=0.0,
            decoder_layerdrop=0.0,
            use_cache=False,
            **sizes,
        )
    ).train()
    optimizer = torch.optim.AdamW(model.parameters(), RATE, fused=True)
    ids = torch.from_numpy(data(config, steps)).long()
    mask = torch.ones((config["batch"], LENGTH), dtype=torch.long)

    def turn():
        start = _duel.clock()
        for source, target, labels in zip(
            *(part.split(config["batch"]) for part in ids), strict=True
        ):
            loss = model(
                input_ids=source,
                attention_mask=mask,
                decoder_input_ids=target,
                labels=labels,
            ).loss
            loss.backward()
            if not lean:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return _duel.clock() - start

    return turn


def work(contender):
    """Answers messages: build a model, or train a turn and say how long it took."""
    turn = None

    def answer(steps, config=None, lean=False):
        nonlocal turn
        if config:
            turn = globals()[f"make_{contender}"](CONFIGS[config], steps, lean)
            turn()
            return _duel.versions(
                "kzoo", "keras", "tensorflow", "keras-hub", "torch", "transformers"
            )
        return turn()

    _duel.serve(answer)


def main():
    """Starts the contenders, compares them cell by cell, writes the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peers", default=sys.executable)
    parser.add_argument("--hub", default=sys.executable)
    parser.add_argument("--configs", nargs="+", choices=CONFIGS, default=[*CONFIGS])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--turns", type=_duel.count, default=7)
    parser.add_argument(
        "--steps", type=_duel.count, help="of a turn; by default 10, base 4"
    )
    parser.add_argument("--out", type=_duel.results_name, default="fit")
    parser.add_argument("--cpu-time", action="store_true", help="on a busy machine")
    args = parser.parse_args()
    if args.cpu_time:
        _duel.measure_cpu_time()
    pythons = {
        "kzoo": sys.executable, "keras_hub": args.hub, "transformers": args.peers
    }  # fmt: skip
    results = {"machine": _duel.machine(), "versions": {}, "cells": []}
    rows = [["model, mode", "kzoo tokens/s", "× keras-hub", "× transformers"]]
    for config in args.configs:
        for mode in args.modes:
            steps = args.steps or (4 if config == "base" else 10)
            workers = [_duel.Worker(n, p, "--work", n) for n, p in pythons.items()]
            for worker in workers:
                results["versions"][worker.name] = worker.ask(
                    steps=steps, config=config, lean=mode == "lean"
                )
            answers = _duel.take_turns(workers, args.turns, steps=steps)
            for worker in workers:
                worker.close()
            tokens = 2 * LENGTH * CONFIGS[config]["batch"] * steps
            rates = {n: [tokens / s for s in found] for n, found in answers.items()}
            ratios = {n: _duel.median_ratio(rates["kzoo"], r) for n, r in rates.items()}
            results["cells"].append(
                {
                    "cell": f"{config}, {mode}",
                    "tokens_per_second": rates,
                    "kzoo_is_faster_by": ratios,
                }
            )
            rows.append(
                [
                    f"{config}, {mode}",
                    f"{statistics.median(rates['kzoo']):,.0f}",
                    f"{ratios['keras_hub']:.2f}",
                    f"{ratios['transformers']:.2f}",
                ]
            )
            print(rows[-1], flush=True)
    _duel.write_results(args.out, results, rows)


if __name__ == "__main__":
    _duel.main(main, work)
