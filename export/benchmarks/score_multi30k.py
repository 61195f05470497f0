"""BLEU of a trained translator on a test set, and whether its ONNX file agrees.

    python export/benchmarks/score_multi30k.py runs/multi30k/model DATA/test_2016_flickr

Reads DATA/test_2016_flickr.en.gz and .de.gz. Prints a JSON line for greedy search and
one for 4 beams: sacrebleu's score (detokenised, cased) with its signature, and how many
sentences have other tokens in onnxruntime than in Keras.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
import sacrebleu

from kzoo.data import load_pairs, padded_batch
from kzoo.tasks import load_task

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("model", type=Path)
parser.add_argument("test", help="the files' path without .en.gz")
parser.add_argument("--length-penalty", type=float, default=1.0)
parser.add_argument("--sentences", type=int, default=None, help="only the first ones")
args = parser.parse_args()

translator = load_task(args.model)
pairs = load_pairs((f"{args.test}.en.gz", f"{args.test}.de.gz"))[: args.sentences]
sources, references = zip(*pairs, strict=True)
prompts = translator.encode_prompts(sources)
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "model.onnx"
    translator.export(path, format="onnx")
    session = onnxruntime.InferenceSession(path)
    for beams in (1, 4):
        options = dict(beams=beams, length_penalty=args.length_penalty)
        found = translator.generate(prompts, max_new_tokens=100, **options)
        different = 0
        for first in range(0, len(prompts), 32):
            feed = {k: np.asarray(v) for k, v in options.items()}
            feed["length_penalty"] = np.array(args.length_penalty, "float32")
            feed["max_new_tokens"] = np.array(100)
            ids = padded_batch(prompts[first : first + 32]).astype("int64")
            sequences, _ = session.run(None, {"encoder_token_ids": ids, **feed})
            texts = translator.tokenizer.decode(sequences[:, 0])
            expected = translator.tokenizer.decode(found[first : first + 32])
            different += sum(a != b for a, b in zip(texts, expected, strict=True))
        metric = sacrebleu.metrics.BLEU()
        bleu = metric.corpus_score(translator.tokenizer.decode(found), [references])
        row = {"beams": beams, "bleu": bleu.score, "onnx_differs": different}
        print(json.dumps({**row, "signature": str(metric.get_signature())}))
