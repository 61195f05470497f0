"""A card says what the records say, in the Hub's form, and no more."""

import contextlib
import json
import re
import shlex
import shutil
from copy import deepcopy as copy_of
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from typer.testing import CliRunner

import kzoo
from kzoo.cli import app
from kzoo.zoo import saving
from kzoo.zoo.cards import card
from kzoo.zoo.registry import SHIPPED
from tests.harness import perturb

RECIPE = """
name = "en-xx"
title = "English | Xx"
task = "seq2seq_lm"
[data]
name = "Multi30k"
url = "https://github.com/multi30k/dataset"
licence = "no explicit licence; research"
research_only = true
languages = ["en", "de"]
[evaluation]
options = {beams = 2, max_new_tokens = 5, batch_size = 8}
main = ["flickr", "bleu_lowercased"]
interval = [38.5, 41.5]
[card]
description = "A small translator."
intended_use = "To look at."
limits = "Captions only."
published = [{score = 41.02, what = "Transformer-Tiny", source = "arXiv 2105.14462"}]
examples = ["a ```b``` | c", "b a"]
"""
HISTORY = [
    {"epoch": 1, "loss": 3.5, "val_loss": 3.25, "seconds": 200.0},
    {"epoch": 2, "loss": 2.5, "val_loss": 2.75, "seconds": 220.0},
]
SCORES = {
    "command": "kzoo evaluate en-xx --data multi30k",
    "machine": "two cores",
    "versions": {"keras": "3.15.0"},
    "tests": {
        "flickr": {
            "rows": 1000,
            "options": {"beams": 2},
            "seconds": 12.5,
            "measures": {
                "bleu_lowercased": {
                    "value": 40.125,
                    "low": 38.7,
                    "high": 41.2,
                    "confidence": 0.95,
                    "signature": "nrefs:1|case:lc",
                },
                "chrf": {"value": 61.0},
            },
        }
    },
    "main": ["flickr", "bleu_lowercased"],
}
EXPORTS = {
    "machine": "two cores",
    "versions": {"onnxruntime": "1.31"},
    "test": "flickr",
    "rows": 1000,
    "score": {"bleu": 40.0},
    "seconds": 12.0,
    "forms": [
        {
            "form": "ONNX int8",
            "bytes": 3_210_000,
            "difference": 0.0123,
            "score": {"bleu": 39.9},
            "seconds": 7.0,
        },
        {"form": "SavedModel", "refused": "it is not TensorFlow"},
        {"form": "ONNX", "bytes": 9, "difference": 1e-6, "not_scored": "no forward"},
    ],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A preset with all records."""
    folder = tmp_path_factory.mktemp("cards")
    tokenizer = kzoo.FastTokenizer.train(["abc |`"], 30, algorithm="character")
    task = kzoo.Seq2SeqLM.from_size(
        "tiny", tokenizer, num_layers=1, hidden_dim=8, intermediate_dim=8
    )
    perturb(task.weights)
    records = folder / "records"
    records.mkdir()
    (records / "recipe.toml").write_text(RECIPE)
    for name, record in (
        ("history", HISTORY),
        ("scores", SCORES),
        ("exports", EXPORTS),
    ):
        (records / f"{name}.json").write_text(json.dumps(record))
    kzoo.save_preset(task, folder / "en-xx", records=records)
    return folder / "en-xx"


@pytest.fixture(scope="module")
def written(folder):
    return (folder / "README.md").read_text("utf-8")


def section(text, title):
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_the_card_follows_from_the_folder(folder, written):
    assert card(folder) == written


def test_the_hub_reads_its_head(written):
    head = ModelCard(written).data
    assert head.language == ["en", "de"]
    assert (head.license, head.license_name) == (
        "other",
        "no-explicit-licence-research",
    )
    assert (head.library_name, head.pipeline_tag) == ("kzoo", "translation")
    assert head.metrics == ["bleu", "chrf"]
    assert "research-only" in head.tags
    bleu, chrf = head.eval_results
    assert (bleu.metric_type, bleu.metric_value) == ("bleu", 40.125)
    assert bleu.metric_name == "bleu lowercased" and bleu.dataset_split == "flickr"
    assert bleu.metric_args == {"signature": "nrefs:1|case:lc"}
    assert (chrf.metric_type, chrf.metric_value) == ("chrf", 61.0)


@pytest.mark.parametrize(
    ("licence", "expected"),
    [
        ("CC BY-SA 3.0", "cc-by-sa-3.0"),
        ("CC BY 2.0", "cc-by-2.0"),
        ("public domain", "other"),
    ],
)
def test_licences_have_the_hub_s_names(folder, licence, expected):
    saving.update_preset(folder, licence=licence)
    try:
        assert ModelCard(card(folder)).data.license == expected
    finally:
        saving.update_preset(folder, licence="no explicit licence; research")


def test_numbers_are_those_of_the_records(written):
    scores = section(written, "Scores")
    assert "kzoo evaluate en-xx --data multi30k" in scores
    row = (
        "| flickr | 1,000 | bleu lowercased | **40.12** | 38.7 to 41.2 (95%) | beams 2"
    )
    assert row in scores
    assert "| flickr | 1,000 | chrf | 61 |  | beams 2 |" in scores
    assert "`nrefs:1|case:lc`" in scores
    assert "38.5 to 41.5" in scores
    assert "| Transformer-Tiny | 41.02 | arXiv 2105.14462 |" in scores
    assert "| flickr | 1,000 | 12.5 | 80 |" in section(written, "Speed")
    training = section(written, "Training")
    assert "2 epochs in 7 minutes; in the last one loss 2.5, val loss 2.75." in training
    exports = section(written, "Exported forms")
    assert "| the model in Keras |  |  | 40 | 12 |" in exports
    assert "| ONNX int8 | 3.2 | 1.2e-02 | 39.9 | 7 |" in exports
    assert "- SavedModel, refused: it is not TensorFlow" in exports
    assert "- ONNX, not scored: no forward" in exports


def test_what_is_for_research_only_says_so(written):
    assert "**For research only.** The weights were trained on Multi30k" in written
    data = section(written, "Data")
    assert "no explicit licence; research" in data and "| use | research only |" in data


def test_all_data_is_named_that_weights_were_trained_on(tmp_path):
    said = card(SHIPPED / "ewt-entities")
    assert (
        "| begun with | `ewt-pos`, trained on Universal Dependencies English EWT 2.16 "
        "(CC BY-SA 4.0), and that with `wikitext2-mlm`, trained on WikiText-2, "
        "tokenised (CC BY-SA 3.0) |"
    ) in said
    shutil.copytree(SHIPPED / "ewt-entities", tmp_path / "own")
    recipe = '[model]\npreset = "own"\n'  # its weights have long been others
    (tmp_path / "own" / "recipe.toml").write_text(recipe)
    with contextlib.chdir(tmp_path):
        assert "| begun with | `own`, trained on Universal NER" in card(Path("own"))


def test_examples_are_what_the_saved_weights_give(folder, written):
    task = kzoo.from_preset(folder)
    examples = section(written, "Examples")
    given = ["a ```b``` | c", "b a"]
    outputs = task.generate(given, beams=2, max_new_tokens=5)
    assert "with beams 2, max new tokens 5:" in examples
    for text, output in zip(given, outputs, strict=True):
        assert f"{text}\n→ {output}\n" in examples
    assert "````text\na ```b```" in examples  # a longer fence than what is within


def test_use_is_code_that_runs(folder, written):
    (code,) = re.findall("`{3,}python\n(.*?)\n`{3,}\n\n", written, re.DOTALL)
    code = code.replace('"en-xx"', repr(str(folder)))
    *lines, last = code.split("\n")
    names = {}
    exec("\n".join(lines), names)
    assert isinstance(eval(last, names), str)


def test_the_command_gives_what_the_code_gives(folder, written):
    (line,) = re.findall("^kzoo translate .*$", written, re.MULTILINE)
    _, command, name, *words = shlex.split(line)
    assert name == "en-xx"
    result = CliRunner().invoke(app, [command, str(folder), *words])
    (pair, _) = json.loads((folder / "examples.json").read_text())["examples"]
    assert result.stdout == pair["output"] + "\n"
    assert words == [pair["input"], "--beams", "2", "--max-new-tokens", "5"]


def test_options_have_the_names_of_the_command(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "en-xx")
    options = {"stop": ["a", "b"], "forced_prefix": "c", "num_return_sequences": 2}
    examples = {"options": options, "examples": [{"input": "a", "output": "c"}]}
    (copy / "examples.json").write_text(json.dumps(examples))
    assert "en-xx a --stop a --stop b --prefix c --n-best 2\n" in card(copy)


def test_a_measure_that_is_not_defined_is_no_result(folder, tmp_path):
    copy, scores = shutil.copytree(folder, tmp_path / "en-xx"), copy_of(SCORES)
    row = {"value": None, "low": None, "high": None, "confidence": 0.95}
    scores["tests"]["flickr"]["measures"]["pearson"] = row
    (copy / "scores.json").write_text(json.dumps(scores))
    text = card(copy)
    assert "| pearson | not defined |  |" in text
    names = [result.metric_name for result in ModelCard(text).data.eval_results]
    assert names == ["bleu lowercased", "chrf"]


@pytest.mark.parametrize("examples", ['["ab", "cb"]', '[["ab", "cb"]]'])
def test_an_embedder_is_used_on_two_texts(tmp_path, examples):
    tokenizer = kzoo.FastTokenizer.train(["abc"], 30, algorithm="character")
    task = kzoo.SentenceEmbedder.from_size(
        "tiny", tokenizer, num_layers=1, hidden_dim=8
    )
    (tmp_path / "recipe.toml").write_text(f"[card]\nexamples = {examples}\n")
    kzoo.save_preset(task, tmp_path / "preset", records=tmp_path)
    text = (tmp_path / "preset" / "README.md").read_text("utf-8")
    assert "model.similarity(['ab'], ['cb'])" in text and "→ cosine" in text


def test_pictures_are_drawn(folder, written):
    for name in ("curve.png", "attention.png"):
        assert f"]({name})" in written
        assert (folder / name).read_bytes().startswith(b"\x89PNG")


def test_what_was_not_measured_is_not_said(folder, tmp_path):
    task = kzoo.from_preset(folder)
    kzoo.save_preset(task, tmp_path / "bare")
    text = (tmp_path / "bare" / "README.md").read_text("utf-8")
    assert section(text, "Scores").strip() == "Not measured."
    assert section(text, "Exported forms").startswith("\nNot measured.")
    assert section(text, "Training").strip() == "Not recorded."
    assert "| licence | not stated |" in section(text, "Data")
    for title in ("Examples", "Speed", "Attention"):
        assert f"## {title}" not in text
    head = ModelCard(text).data
    assert head.license == "unknown" and head.eval_results is None
