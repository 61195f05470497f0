"""Loading checkpoints: time and memory, and what a family costs in lines.

    python export/benchmarks/load.py --hub PYTHON

--hub names an interpreter with keras-hub; without it kzoo stands alone. Each family
gets a checkpoint of its own with random float32 weights of 600 to 900 MB, written by
`kzoo.save_hf`, and both libraries load its stacks, in turns, in processes that have
imported everything: the model is built, its weights are set, a tokenizer there is none.

Memory is that of a process of its own: how far loading in float32 lifts the highest
resident size above what it was before, over the size of the weights. The machine keeps
the mapped file's pages, too, while it has room; they are counted. Lines are those of
code, without comments, docstrings and blank lines: kzoo's family file, keras-hub's
folder of the family and its converter.
"""

import argparse
import ast
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
import tokenize
from pathlib import Path

import _duel

SMALL = dict(vocab_size=20_000, hidden_size=1024, num_hidden_layers=12)
ENCODER = dict(
    **SMALL, num_attention_heads=16, intermediate_size=4096, hidden_act="gelu",
    max_position_embeddings=512,
)  # fmt: skip
DECODER = dict(
    **SMALL, num_attention_heads=16, num_key_value_heads=8, intermediate_size=3072,
    max_position_embeddings=1024, bos_token_id=1, eos_token_id=2, pad_token_id=0,
)  # fmt: skip
# model_type: config.json, keras-hub's class, its folder and converter.
FAMILIES = {
    "bert": (ENCODER, "BertBackbone", "bert", "bert"),
    "distilbert": (
        dict(vocab_size=20_000, dim=1024, n_layers=12, n_heads=16, hidden_dim=4096),
        "DistilBertBackbone", "distil_bert", "distilbert",
    ),
    "roberta": (
        {**ENCODER, "pad_token_id": 1, "type_vocab_size": 1},
        "RobertaBackbone", "roberta", "roberta",
    ),
    "gpt2": (
        dict(vocab_size=20_000, n_embd=1024, n_layer=12, n_head=16, n_positions=1024),
        "GPT2Backbone", "gpt2", "gpt2",
    ),
    "llama": (
        {**DECODER, "rms_norm_eps": 1e-6, "rope_theta": 10_000.0},
        "Llama3Backbone", "llama3", "llama3",
    ),
    "mistral": (
        {**DECODER, "rms_norm_eps": 1e-6, "rope_theta": 1e4, "sliding_window": 512},
        "MistralBackbone", "mistral", "mistral",
    ),
    "bart": (
        dict(
            vocab_size=20_000, d_model=1024, encoder_layers=6, decoder_layers=6,
            encoder_attention_heads=16, decoder_attention_heads=16,
            encoder_ffn_dim=4096, decoder_ffn_dim=4096, max_position_embeddings=512,
        ),
        "BartBackbone", "bart", "bart",
    ),
}  # fmt: skip


def write(family, folder):
    """A checkpoint with random weights; its size in bytes."""
    from kzoo import tasks, zoo
    from kzoo.families import family_of

    described = family_of(family)
    config = described.read_config({"model_type": family, **FAMILIES[family][0]})
    # With BERT's pooler, which keras-hub's encoders cannot do without.
    name = "TextClassifier" if family == "bert" else next(iter(described.heads))
    more = {"num_classes": 2} if family == "bert" else {}
    task = getattr(tasks, name)(config, **described.heads[name].options, **more)
    zoo.save_hf(task, folder, family)
    if family == "bart":  # a key of older files, without which keras-hub reads none
        path = Path(folder) / "config.json"
        keys = json.loads(path.read_text())
        path.write_text(json.dumps({**keys, "num_hidden_layers": 6}))
    return sum(path.stat().st_size for path in Path(folder).glob("*.safetensors"))


def load_kzoo(folder, family):
    """The seconds that `from_preset` takes."""
    import kzoo

    started = time.perf_counter()
    task = kzoo.from_preset(folder)
    seconds = time.perf_counter() - started
    assert not task.loaded.new
    return seconds


def load_keras_hub(folder, family):
    """Likewise, of keras-hub's backbone."""
    import keras_hub

    started = time.perf_counter()
    getattr(keras_hub.models, FAMILIES[family][1]).from_preset(folder)
    return time.perf_counter() - started


LOAD = {"kzoo": load_kzoo, "keras-hub": load_keras_hub}


def work(contender):
    """A worker: loads what it is asked for."""

    def answer(folder, family):
        seconds = LOAD[contender](folder, family)
        gc.collect()
        return seconds

    _duel.serve(answer)


def memory(folder, family):
    """Peak above what stood before, in bytes, of this process."""
    import kzoo
    from kzoo import tasks, zoo  # noqa: F401  imported, as before a second load

    kzoo.CausalLM.from_size("tiny", vocabulary_size=9)
    gc.collect()
    before = _duel.resident()
    kzoo.from_preset(folder)
    return _duel.peak() - before


def code_lines(path):
    """Lines that hold code: no comment, docstring or blank one."""
    source = path.read_text(encoding="utf-8")
    documented = ast.Module | ast.ClassDef | ast.FunctionDef
    ignored = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            text = node.body[0]
            ignored |= set(range(text.lineno, text.end_lineno + 1))
    lines = set()
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER)
    with open(path, "rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type not in (
                *skipped,
                tokenize.INDENT,
                tokenize.DEDENT,
                tokenize.ENCODING,
            ):
                lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - ignored - {0})


def lines_of(family, hub):
    """kzoo's lines, and keras-hub's or `None`."""
    import kzoo.families

    folder = Path(kzoo.families.__file__).parent
    own = code_lines(folder / f"{kzoo.families.MODULES[family]}.py")
    if not hub:
        return own, None
    command = "import keras_hub; print(keras_hub.__file__)"
    found = subprocess.run(
        [hub, "-c", command], capture_output=True, text=True, check=True
    )
    root = Path(found.stdout.split()[-1]).parent / "src"
    _, _, models, converter = FAMILIES[family]
    files = [
        path
        for path in (root / "models" / models).glob("*.py")
        if not path.name.endswith("_test.py")
    ]
    files.append(root / "utils" / "transformers" / f"convert_{converter}.py")
    return own, sum(map(code_lines, files))


def compare():
    """Loads every family in turns and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hub", help="an interpreter with keras-hub")
    parser.add_argument("--turns", type=_duel.count, default=5)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=[*FAMILIES])
    parser.add_argument(
        "--out", type=_duel.results_name, default="load", help="name of the results"
    )
    args = parser.parse_args()
    pythons = {"kzoo": sys.executable, "keras-hub": args.hub}
    cells = []
    with tempfile.TemporaryDirectory() as scratch:
        sizes = {}
        for family in args.families:
            sizes[family] = write(family, Path(scratch) / family)
        workers = [
            _duel.Worker(name, python, "--work", name)
            for name, python in pythons.items()
            if python
        ]
        for family in args.families:
            asked = dict(folder=str(Path(scratch) / family), family=family)
            _duel.take_turns(workers, 1, **asked)  # the file's pages, and first uses
            seconds = _duel.take_turns(workers, args.turns, **asked)
            peak = subprocess.run(
                [sys.executable, sys.argv[0], "--memory", asked["folder"], family],
                capture_output=True, text=True, check=True,
            ).stdout.split()[-1]  # fmt: skip
            own, theirs = lines_of(family, args.hub)
            cell = {
                "family": family,
                "megabytes": round(sizes[family] / 1e6),
                "seconds": seconds,
                "peak": int(peak) / sizes[family],
                "lines": own,
                "lines_keras_hub": theirs,
            }
            if args.hub:
                cell["faster_by"] = _duel.median_ratio(
                    seconds["keras-hub"], seconds["kzoo"]
                )
            cells.append(cell)
            print(cell, flush=True)
        for worker in workers:
            worker.close()
    head = "family", "MB", "seconds", "× keras-hub", "peak / weights", "lines"
    rows = [[*head, "keras-hub's lines"]]
    for cell in cells:
        rows.append(
            [
                cell["family"],
                cell["megabytes"],
                f"{statistics.median(cell['seconds']['kzoo']):.2f}",
                f"{cell['faster_by']:.1f}" if args.hub else "",
                f"{cell['peak']:.2f}",
                cell["lines"],
                cell["lines_keras_hub"] or "",
            ]
        )
    results = {
        "machine": _duel.machine(),
        "versions": _duel.versions("kzoo", "keras", "tensorflow", "numpy"),
        "arguments": _duel.settings(args),
        "cells": cells,
    }
    _duel.write_results(args.out, results, [list(map(str, row)) for row in rows])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--memory"]:
        print(memory(*sys.argv[2:]))
    else:
        _duel.main(compare, work)
