"""Runs a SavedModel in a process that has nothing but TensorFlow and numpy.

    python saved_model_runner.py FOLDER REQUESTS.npz ANSWERS.npz

The requests are arrays called `<number>/<signature>/<input>`; the answers
`<number>/<output>`, and `signatures`, a JSON of what the SavedModel declares.
"""

import json
import sys

import numpy as np


def main(folder, requests, answers):
    """Loads the SavedModel, answers the requests."""
    import tensorflow as tf

    loaded = tf.saved_model.load(folder)
    declared = {
        name: {
            "inputs": {
                key: [spec.dtype.name, spec.shape.as_list()]
                for key, spec in signature.structured_input_signature[1].items()
            },
            "outputs": {
                key: [spec.dtype.name, spec.shape.as_list()]
                for key, spec in signature.structured_outputs.items()
            },
        }
        for name, signature in loaded.signatures.items()
    }
    calls, results = {}, {"signatures": np.array(json.dumps(declared))}
    with np.load(requests) as arrays:
        for key in arrays.files:
            number, signature, name = key.split("/")
            calls.setdefault((number, signature), {})[name] = tf.constant(arrays[key])
    for (number, signature), inputs in calls.items():
        for name, value in loaded.signatures[signature](**inputs).items():
            results[f"{number}/{name}"] = value.numpy()
    np.savez(answers, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
