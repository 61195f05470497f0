"""How much of a GPU's arithmetic a training of kzoo's decoder uses.

    KERAS_BACKEND=jax python export/benchmarks/mfu.py --peak-tflops 989

A decoder of GPT-2's small size (124 million parameters) trains on random tokens,
sequences of 1,024, in bfloat16 with float32 weights; on a GPU its attention is cuDNN's
fused kernel. Data cost nothing and no step is left out but those of the first epoch,
which compiles. Model FLOPs utilisation (Chowdhery et al., 2022,
https://arxiv.org/abs/2204.02311, appendix B) counts

    6 N + 12 L D T

operations a token, forward and backward: N parameters, L layers, D their width and T
tokens a sequence; what is computed twice or thrown away counts nothing. `--peak-tflops`
is what the device can do in bfloat16 (H100 and H200: 989), without sparsity. `--tiny`
runs anywhere, to see that it runs.
"""

import argparse
import json
import statistics
import time

import _duel
import keras
import numpy as np

import kzoo
from kzoo.ops.heads import fused_kernel
from kzoo.training import Adam
from kzoo.zoo.evaluation import machine


class Decoder(kzoo.CausalLM):
    """A language model of rows without padding, whose attention is causal alone."""

    def call(self, inputs, training=None):
        """float (B, T, V)."""
        return self.head(self.decoder(inputs["token_ids"], training=training))


class Clock(keras.callbacks.Callback):
    """Seconds of each epoch."""

    def __init__(self):
        super().__init__()
        self.seconds = []

    def on_epoch_begin(self, epoch, logs=None):
        self.start = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        # The loss is a number by now, so the device is done.
        self.seconds.append(time.perf_counter() - self.start)


parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--peak-tflops", type=float, default=989.0)
parser.add_argument("--rows", type=int, default=32)
parser.add_argument("--steps", type=int, default=20, help="of an epoch")
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--tiny", action="store_true")
parser.add_argument("--out", default="mfu")
args = parser.parse_args()

size = dict(num_layers=12, hidden_dim=768, num_heads=12, intermediate_dim=3072)
vocabulary_size, length = 50_304, 1024
if args.tiny:
    size = dict(num_layers=2, hidden_dim=32, num_heads=2, intermediate_dim=64)
    vocabulary_size, length, args.rows, args.steps, args.epochs = 64, 32, 2, 2, 3
keras.utils.set_random_seed(0)
model = Decoder.from_size(
    "base", vocabulary_size=vocabulary_size, dtype="mixed_bfloat16", dropout=0.0,
    positions="learned", max_sequence_length=length, activation="gelu_tanh", **size,
)  # fmt: skip
model.compile(Adam(6e-4, weight_decay=0.1, global_clipnorm=1.0), metrics=None)
shape = (args.rows * args.steps, length + 1)
tokens = np.random.default_rng(0).integers(3, vocabulary_size, shape, "int32")
clock = Clock()
model.fit(
    {"token_ids": tokens[:, :-1]}, tokens[:, 1:], batch_size=args.rows,
    epochs=args.epochs, shuffle=False, verbose=2, callbacks=[clock],
)  # fmt: skip
seconds = statistics.median(clock.seconds[1:])
rate = args.rows * args.steps * length / seconds
attention = 12 * size["num_layers"] * size["hidden_dim"] * length
operations = 6 * model.count_params() + attention
head_dim = size["hidden_dim"] // size["num_heads"]
result = dict(
    machine=machine(),
    versions=_duel.versions("kzoo", "keras", "jax", "jaxlib"),
    backend=keras.backend.backend(),
    fused_attention=fused_kernel("bfloat16", head_dim) is not None,
    parameters=model.count_params(),
    arguments=vars(args),
    size=size,
    sequence=length,
    seconds_an_epoch=clock.seconds,
    tokens_per_second=rate,
    operations_a_token=operations,
    model_flops_utilisation=rate * operations / (args.peak_tflops * 1e12),
)
if args.tiny:
    print(json.dumps(result, indent=1))
else:
    head = ["parameters", "tokens a second", "model FLOPs utilisation"]
    utilisation = f"{result['model_flops_utilisation']:.1%}"
    row = [f"{model.count_params():,}", f"{rate:,.0f}", utilisation]
    _duel.write_results(args.out, result, [head, row])
