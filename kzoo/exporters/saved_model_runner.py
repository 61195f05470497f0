"""Runs SavedModels in processes that have nothing but TensorFlow and numpy.

Reads requests from its input, a line of JSON each: the folder of a SavedModel, a file
of the arrays `<number>/<signature>/<input>`, a file for the answers
`<number>/<output>` and for `signatures`, a JSON of what the SavedModel declares, and
modules that have operators it needs. Answers each with a line: a JSON string that says
what was wrong, or null.

Importing TensorFlow takes longer than most requests. So it is done once, and every
request gets a process of its own that begins from there. Ends after minutes
without a request.
"""

import importlib
import json
import os
import select
import sys
import traceback

import numpy as np

_PATIENCE = 180  # seconds


def main():
    """Answers requests as long as there are any."""
    importlib.import_module("tensorflow")  # before the forks

    answers, sys.stdout = sys.stdout, sys.stderr
    apart = hasattr(os, "fork")  # or else this process answers one, and ends
    while not apart or select.select([sys.stdin], [], [], _PATIENCE)[0]:
        line = sys.stdin.readline()
        if not line:
            return
        request = json.loads(line)
        problem = _in_a_fork(request) if apart else _answer(**request)
        print(json.dumps(problem), file=answers, flush=True)
        if not apart:
            return


def _in_a_fork(request):
    """What `_answer` says in a process of its own."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        with open(writing, "w") as said:
            json.dump(_answer(**request), said)
        os._exit(0)  # what was imported before the fork is not torn down twice
    os.close(writing)
    with open(reading) as said:
        problem = said.read()
    _, status = os.waitpid(child, 0)
    if status:
        return f"it ended with {os.waitstatus_to_exitcode(status)}"
    return json.loads(problem)


def _answer(folder, asked, answered, modules):
    try:
        for module in modules:
            importlib.import_module(module)
        np.savez(answered, **_results(folder, asked))
    except Exception as error:  # told to who asked
        return traceback.format_exception_only(error)[-1].strip()
    return None


def _results(folder, asked):
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
    with np.load(asked, allow_pickle=True) as arrays:
        for key in arrays.files:
            number, signature, name = key.split("/")
            calls.setdefault((number, signature), {})[name] = tf.constant(arrays[key])
    for (number, signature), inputs in calls.items():
        for name, value in loaded.signatures[signature](**inputs).items():
            results[f"{number}/{name}"] = value.numpy()
    return results


if __name__ == "__main__":
    main()
