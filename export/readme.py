"""Writes the README's tables from what was measured: presets, exports, comparisons.

    python export/readme.py

Each stands between `<!-- name -->` and `<!-- /name -->`. The first is of the presets'
manifests; `matrix.py` wrote `results/matrix.json`, and the scripts of `benchmarks` the
JSON in `benchmarks/results`, with machine and versions.
"""

import argparse
import json
import re
import statistics
from pathlib import Path

from kzoo.zoo.cards import markdown_table
from kzoo.zoo.registry import list_presets

EXPORT = Path(__file__).parent
README = EXPORT.parent / "README.md"
MATRIX = EXPORT / "results" / "matrix.json"
BENCHMARKS = EXPORT / "benchmarks" / "results"
# A column, and what `matrix.py` calls it.
FORMS = {
    "ONNX": "onnx",
    "SavedModel": "tf_saved_model",
    "little memory": "onnx low_memory",
    "text in ONNX": "onnx text",
    "text in SavedModel": "tf_saved_model text",
    "float16": "onnx float16",
    "int8": "onnx int8",
    "int4": "onnx int4",
    "genai": "genai",
}


def presets():
    """Every preset, with its main score, interval, and the licence of its data."""
    rows = [["preset", "what it does", "task", "size", "score", "data's licence"]]
    for preset in list_presets():
        score, said = preset.score, "not measured"
        if score is not None:
            between = f" ({score.low:.4g} to {score.high:.4g})" if score.low else ""
            measure = score.measure.replace("_", " ")
            said = f"{measure} {score.value:.4g}{between} on `{score.test}`"
        licence = preset.licence or "not stated"
        rows.append(
            [
                f"[`{preset.name}`](kzoo/zoo/presets/{preset.name}/README.md)",
                preset.title,
                f"`{preset.task}`",
                f"{preset.parameters / 1e6:.1f} M, {preset.bytes / 1e6:.1f} MB",
                said,
                licence + (" (research only)" if preset.research_only else ""),
            ]
        )
    return markdown_table(rows[0], rows[1:])


def matrix():
    """For architecture and task, how many models each form was compared for."""
    results = json.loads(MATRIX.read_text(encoding="utf-8"))
    cells = {cell for form in FORMS.values() for cell in results.get(form, ())}
    pairs = {tuple(cell.split()[:2]) for cell in cells}
    rows = [["variant", "task", *FORMS]]
    for name, architecture in sorted(pairs, key=lambda pair: pair[::-1]):
        row = [architecture.replace("_", "-"), f"`{name}`"]
        for form in FORMS.values():
            found = [
                value
                for cell, value in results.get(form, {}).items()
                if cell.split()[:2] == [name, architecture]
            ]
            passed = sum(isinstance(value, float) for value in found)
            left = ", the rest not run" if None in found else ""
            said = f"{passed} of {len(found)}{left}" if passed else "not run"
            row.append(said if found else "–")
        rows.append(row)
    numbers = [
        [value for value in results[form].values() if isinstance(value, float)]
        for form in ("onnx", "tf_saved_model")
    ]
    largest, usual = ([*map(of, numbers)] for of in (max, statistics.median))
    said = (
        f"The largest difference from Keras's numbers in a model is {usual[0]:.0e} and "
        f"{usual[1]:.0e} in the first two (median), and {largest[0]:.0e} and "
        f"{largest[1]:.0e} at most."
    )
    for format, form in (("ONNX", "onnx"), ("SavedModel", "tf_saved_model")):
        found = results.get(f"checkpoint {form}", {}).values()
        passed = [value for value in found if isinstance(value, float)]
        if passed:
            said += (
                f" Of the {len(found)} kinds of checkpoints below {len(passed)} were "
                f"compared in {format}, whole loop included: at most "
                f"{max(passed):.0e}."
            )
    return f"{markdown_table(rows[0], rows[1:])}\n\n{said}"


def comparisons():
    """Geometric means over a benchmark's cells of how many times as fast kzoo is."""
    machines, rows = {}, []  # of each machine the versions

    def read(name):
        found = json.loads((BENCHMARKS / f"{name}.json").read_text(encoding="utf-8"))
        machine = f"{found['machine']['cores']} cores of an {found['machine']['cpu']}"
        versions = machines.setdefault(machine, {})
        for each in found["versions"].values():
            versions.update(each if isinstance(each, dict) else {})

        def add(what, ratios):
            rows.append((what, ratios, [*machines].index(machine) + 1))

        return found, add

    def mean(cells, peer):
        return statistics.geometric_mean(cell["faster_by"][peer] for cell in cells)

    found, add = read("generate_two_threads")
    for size, means in found["geometric_means"].items():
        if size == "all":
            continue
        add(f"generating with the ONNX file, {size} translator", means)
        in_8_bits = {"ctranslate2": means["ctranslate2_int8"]}
        add(f"the same in 8 bits, {size}", in_8_bits)
    found, add = read("keras_generate")
    for name in ("no XLA", "XLA"):
        cells = [c for c in found["cells"] if c["cell"].split(",")[0] == name]
        add(f"`generate` in Keras, {name}", {"keras-hub": mean(cells, "keras-hub")})
    found, add = read("fit")
    for cell in found["cells"]:
        size, mode = cell["cell"].split(", ")
        if mode == "default":
            add(f"`fit`, {size} translator", cell["kzoo_is_faster_by"])
    for name, what in (("encoder", "an encoder of 6 layers"), ("minilm", "MiniLM")):
        found, add = read(name)
        add(f"{what}, the ONNX file", {"torch": mean(found["cells"], "torch")})
    found, add = read("load")
    loading = statistics.geometric_mean(c["faster_by"] for c in found["cells"])
    add("loading a checkpoint", {"keras-hub": loading})

    peers = ("ctranslate2", "transformers", "keras-hub", "torch")
    head, lines = ["", *(f"× {peer}" for peer in peers), "measured on"], []
    for what, ratios, number in rows:
        own = {name.replace("_", "-"): ratio for name, ratio in ratios.items()}
        shown = (f"{own[peer]:.2f}" if peer in own else "" for peer in peers)
        lines.append([what, *shown, str(number)])
    wanted = ("tensorflow", "keras", "onnxruntime", *peers)
    said = [
        f"{number}: {machine}, with "
        + ", ".join(f"{name} {versions[name]}" for name in wanted if name in versions)
        for number, (machine, versions) in enumerate(machines.items(), 1)
    ]
    return f"{markdown_table(head, lines)}\n\nMeasured on {'; on '.join(said)}."


SECTIONS = {"presets": presets, "matrix": matrix, "comparisons": comparisons}


def written(text):
    """The README with its tables made anew."""
    for name, make in SECTIONS.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        made = f"\n{make()}\n\n"
        text, number = re.subn(
            pattern, lambda m, made=made: m[1] + made + m[2], text, flags=re.DOTALL
        )
        if number != 1:
            raise SystemExit(
                f"{README.name}: expected <!-- {name} --> and <!-- /{name} --> once. "
                f"Received: {number} times."
            )
    return text


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()
    README.write_text(written(README.read_text(encoding="utf-8")), encoding="utf-8")
