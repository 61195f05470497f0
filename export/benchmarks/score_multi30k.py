"""BLEU of a trained translator, and whether ONNX and SavedModel agree with Keras.

    python export/benchmarks/score_multi30k.py runs/multi30k DATA/test_2016_flickr

Reads what `multi30k.py` left, and DATA/test_2016_flickr.en.gz and .de.gz. For greedy
search and 4 beams it gives sacrebleu's score (detokenised, cased), and how many
sentences have other tokens in onnxruntime and in TensorFlow's SavedModel than in Keras.
Where tokens differ, Keras scores both: in greedy search the two tokens after their
common beginning, by log p; with beams the two sequences, by the search's own score.
Within 1e-5 they are tied, and either is right. Writes `results/multi30k.*`.
"""

import argparse
import json
import tempfile
from pathlib import Path

import _duel
import numpy as np
import onnxruntime
import sacrebleu
import tensorflow as tf

from kzoo.data import load_pairs, padded_batch
from kzoo.plots import training_curve
from kzoo.tasks import load_task

LIMIT, BATCH, TIE = 100, 32, 1e-5


def onnx_runner(path):
    """A function from a dict of numpy inputs to sequences, in onnxruntime."""
    session = onnxruntime.InferenceSession(path / "generate.onnx")
    kinds = {"tensor(int64)": "int64", "tensor(float)": "float32"}
    inputs = [*session.get_inputs(), *session.get_overridable_initializers()]
    dtypes = {i.name: kinds.get(i.type) for i in inputs}

    def run(feed):
        feed = {name: np.asarray(value, dtypes[name]) for name, value in feed.items()}
        return session.run(["sequences"], feed)[0]

    return run


def saved_model_runner(path, defaults):
    """The same in TensorFlow, whose signatures know no defaults."""
    signature = tf.saved_model.load(str(path)).signatures["generate"]
    specs = signature.structured_input_signature[1]

    def run(feed):
        feed = {**defaults, **feed}
        tensors = {n: tf.convert_to_tensor(v, specs[n].dtype) for n, v in feed.items()}
        return signature(**tensors)["sequences"].numpy()

    return run


def translations(translator, run, prompts, options):
    """Lists of ids without end and padding, batches sorted by length."""
    config = translator.config
    found = [None] * len(prompts)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for first in range(0, len(order), BATCH):
        rows = order[first : first + BATCH]
        ids = padded_batch([prompts[i] for i in rows])
        sequences = run({"encoder_token_ids": ids, "max_new_tokens": LIMIT, **options})
        for row, sequence in zip(rows, sequences[:, 0].tolist(), strict=True):
            if config.end_token_id in sequence:
                sequence = sequence[: sequence.index(config.end_token_id)]
            found[row] = [i for i in sequence if i != config.pad_token_id]
    return found


def gap(translator, prompt, one, two, options):
    """How far apart Keras scores two translations of one sentence."""
    config = translator.config

    def log_p(ids):
        ids = [*ids, config.end_token_id][:LIMIT]
        inputs = {
            "encoder_token_ids": np.array([prompt]),
            "decoder_token_ids": np.array([[config.start_token_id, *ids[:-1]]]),
        }
        logits = translator(inputs).numpy()[0].astype("float64")
        top = logits.max(-1, keepdims=True)
        rows = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
        return rows[np.arange(len(ids)), ids]

    one_p, two_p = log_p(one), log_p(two)
    if options["beams"] == 1:
        pairs = zip([*one, -1], [*two, -1], strict=False)
        first = next(i for i, (a, b) in enumerate(pairs) if a != b)
        return abs(one_p[first] - two_p[first])
    penalty = options["length_penalty"]
    return abs(
        one_p.sum() / len(one_p) ** penalty - two_p.sum() / len(two_p) ** penalty
    )


parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("run", type=_duel.folder, help="the folder that multi30k.py wrote")
parser.add_argument("test", help="the files' path without .en.gz")
parser.add_argument("--length-penalty", type=float, default=1.0)
parser.add_argument(
    "--sentences", type=_duel.count, default=None, help="only the first ones"
)
parser.add_argument("--out", type=_duel.results_name, default="multi30k")
args = parser.parse_args()

translator = load_task(args.run / "model")
pairs = load_pairs((f"{args.test}.en.gz", f"{args.test}.de.gz"))[: args.sentences]
sources, references = zip(*pairs, strict=True)
prompts = translator.encode_prompts(sources)
curve = json.loads((args.run / "curve.json").read_text())
results = {
    "machine": _duel.machine(),
    "versions": _duel.versions(
        "kzoo", "keras", "tensorflow", "onnxruntime", "sacrebleu"
    ),
    "test": f"{Path(args.test).name}, {len(pairs)} sentences",
    "model": translator.config.to_dict(),
    "parameters": translator.count_params(),
    "curve": curve,
    "scores": [],
}
rows = [["search", "BLEU", "ONNX differs", "of them tied", "SavedModel", "tied"]]
with tempfile.TemporaryDirectory() as folder:
    runners = {}
    for name in ("onnx", "tf_saved_model"):
        translator.export(Path(folder) / name, format=name)
    runners["onnx"] = onnx_runner(Path(folder) / "onnx")
    runners["tf_saved_model"] = saved_model_runner(
        Path(folder) / "tf_saved_model", translator.search_inputs("tf_saved_model")
    )
    for beams in (1, 4):
        options = dict(
            beams=beams, length_penalty=args.length_penalty, num_return_sequences=1
        )
        keras_ids = translator.generate(prompts, max_new_tokens=LIMIT, **options)
        metric = sacrebleu.metrics.BLEU()
        texts = translator.tokenizer.decode(keras_ids)
        row = {"beams": beams, "bleu": metric.corpus_score(texts, [references]).score}
        row["signature"] = str(metric.get_signature())
        for name, run in runners.items():
            found = translations(translator, run, prompts, options)
            gaps = [
                gap(translator, prompt, a, b, options)
                for prompt, a, b in zip(prompts, keras_ids, found, strict=True)
                if a != b
            ]
            row[name] = {"different": len(gaps), "tied": sum(g <= TIE for g in gaps)}
            row[name]["largest_gap"] = float(max(gaps, default=0))
        print(json.dumps(row), flush=True)
        results["scores"].append(row)
        counts = [row[n][k] for n in runners for k in ("different", "tied")]
        rows.append([f"{beams} beams" if beams > 1 else "greedy", f"{row['bleu']:.2f}"])
        rows[-1] += map(str, counts)
_duel.write_results(args.out, results, rows)
losses = [{"loss": row["loss"], "val_loss": row["val_loss"]} for row in curve]
figure = training_curve(losses, title="Multi30k English to German")
figure.savefig(_duel.RESULTS / f"{args.out}.png", dpi=120)
