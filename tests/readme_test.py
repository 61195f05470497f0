"""The README's Python examples run as they stand; its tables are what was measured."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")


def test_the_python_examples_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 3
    names = {}
    with pytest.warns(UserWarning, match="has no weights for .*head/output"):
        for block in blocks:
            exec(compile(block, "README.md", "exec"), names)
    printed = capsys.readouterr().out
    written = names["translator"].generate("A man rides a bike.", max_new_tokens=40)
    assert written and written in printed
    assert "tokens equal" in printed
    (in_file,) = names["tokenizer"].decode(names["sequences"][0])
    options = dict(max_new_tokens=12, constraint=names["date"])
    assert names["model"].generate("le 3 mars 1998", **options) == in_file
    assert re.fullmatch(names["date"], in_file)
    asked = ["Who is there ?", "He is there ."]
    assert names["classifier"].classify(asked) == ["question", "answer"]
    assert (tmp_path / "attention.png").stat().st_size > 5000


def test_the_tables_are_what_was_measured():
    script = runpy.run_path(str(ROOT / "export" / "readme.py"))
    assert script["written"](README) == README, "run python export/readme.py"


def test_its_pictures_and_pages_are_there():
    for name in re.findall(r"\]\(([^):]+)\)", README):
        assert (ROOT / name).exists(), name
