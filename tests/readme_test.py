"""The README's Python examples run as they stand."""

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_python_examples_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 6
    names = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
    assert (
        names["model"].generate("le 3 mars 1998", max_new_tokens=12, beams=4)
        == (names["tokenizer"].decode(names["sequences"][0])[0])
    )
    (written,) = names["tokenizer"].decode(names["dates"][0])
    assert re.fullmatch(names["date"], written)
    options = dict(max_new_tokens=12, constraint=names["date"])
    assert names["model"].generate("le 3 mars 1998", **options) == written
    assert "tokens equal" in capsys.readouterr().out
    assert names["classifier"].classify(["good", "bad"]) == ["positive", "negative"]
    assert (tmp_path / "attention.png").stat().st_size > 5000
    assert "<html" in (tmp_path / "attention.html").read_text("utf-8")
