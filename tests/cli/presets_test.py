"""`kzoo presets`, and presets where a command takes a model."""

import json
import os
import subprocess
import sys

import pytest

import kzoo
from kzoo.zoo import registry, saving


@pytest.fixture
def shipped(translator, tmp_path, monkeypatch):
    """One preset, as if kzoo shipped it."""
    monkeypatch.setattr(registry, "SHIPPED", tmp_path)
    folder = tmp_path / "en-xx-of-captions"
    kzoo.save_preset(
        translator,
        folder,
        title="En [to] xx",
        licence="none [at all]",
        research_only=True,
        language=["en", "xx"],
    )
    measures = {"bleu_lowercased": {"value": 41.25, "low": 40.0, "high": 42.5}}
    tests = {"flickr": {"rows": 3, "measures": measures}}
    scores = {"command": "-", "tests": tests, "main": ["flickr", "bleu_lowercased"]}
    (folder / "scores.json").write_text(json.dumps(scores))
    saving.update_preset(folder)
    return folder


def test_the_table_says_what_to_choose_by(run, shipped):
    output = run("presets").stdout
    for said in (
        "en-xx-of-captions",
        "en, xx",
        "41.25",
        "seq2seq_lm",
        "encoder_decoder",
        "bleu lowercased",
        "flickr",
        "none [at all]",
        "research only",
        f"{registry.read_preset(shipped).bytes / 1e6:.1f} MB",
    ):
        assert said in output
    assert max(map(len, output.split("\n"))) <= 80


def test_json_has_all_that_is_known(run, shipped):
    (preset,) = json.loads(run("presets", "--json").stdout)
    assert preset["name"] == "en-xx-of-captions" and preset["title"] == "En [to] xx"
    assert preset["score"]["value"] == 41.25


def test_what_is_not_there_is_said(run, refused, shipped):
    result = run("presets", "--architecture", "encoder")
    assert result.stdout == "" and "No preset" in result.stderr
    assert "seq2seq_lm" in refused("presets", "--task", "translation")


def test_a_command_takes_a_preset_by_name(run, shipped, translator):
    text = ["abc", "--max-new-tokens", "3"]
    by_name = run("translate", "en-xx-of-captions", *text)
    assert by_name.exit_code == 0
    assert by_name.stdout == run("translate", shipped, *text).stdout


def test_a_name_that_is_nearly_right_is_refused_with_the_right_one(refused, shipped):
    assert "Did you mean en-xx-of-captions?" in refused(
        "translate", "en-xx-captions", "abc"
    )


def test_a_damaged_preset_is_refused_by_its_file(refused, shipped):
    with open(shipped / "tokenizer.json", "a") as file:
        file.write(" ")
    assert "tokenizer.json was cut short or changed" in refused(
        "translate", "en-xx-of-captions", "abc"
    )


@pytest.mark.parametrize("width", ["30", "80"])
def test_a_narrow_terminal_loses_nothing(width):
    command = [sys.executable, "-m", "kzoo", "presets"]
    env = {**os.environ, "COLUMNS": width}
    shown = subprocess.run(command, env=env, capture_output=True, text=True).stdout
    found = kzoo.list_presets()
    assert shown.count("research only") == sum(p.research_only for p in found) > 0
    assert all(f"{p.parameters / 1e6:.1f} M" in shown for p in found)
    assert max(map(len, shown.splitlines())) <= 80
