"""The notebooks run from top to bottom, and are kept without outputs.

Here cells are executed in this process, with the smaller settings that the cell tagged
`parameters` has in its metadata (`tiny`): importing TensorFlow once is most of the
time, and a warning is an error. `export/recipes/run_notebooks.py` runs them in full, in
kernels.
"""

import ast
import json
import re
from pathlib import Path

import matplotlib
import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def read(path):
    return json.loads(path.read_text("utf-8"))


def code_cells(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run(cell, names, file):
    """Executes a cell as a kernel does: its last value is shown."""
    tree = ast.parse("".join(cell["source"]))
    *statements, last = tree.body
    shown = isinstance(last, ast.Expr)
    body = ast.Module(statements if shown else tree.body, [])
    exec(compile(body, file, "exec"), names)
    if not shown:
        return
    value = eval(compile(ast.Expression(last.value), file, "eval"), names)
    if hasattr(value, "_repr_mimebundle_"):  # a figure is drawn only now
        assert len(value._repr_mimebundle_()[0]["image/png"]) > 1000


def draw_all():
    """What the kernel does behind a cell with the figures of pyplot."""
    from matplotlib import pyplot

    for number in pyplot.get_fignums():
        pyplot.figure(number).canvas.draw()
    pyplot.close("all")


@pytest.mark.tensorflow
@pytest.mark.usefixtures("greedy")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    with matplotlib.rc_context():
        for cell in code_cells(read(path)):
            run(cell, names, f"{path.name}[{cell['id']}]")
            draw_all()
            tiny = cell["metadata"].get("tiny", {})
            assert set(tiny) <= set(names), "a parameter has another name in its cell"
            names.update(tiny)


def test_there_are_six_and_each_leads_to_the_next():
    assert [path.name[:2] for path in NOTEBOOKS] == [f"{n:02}" for n in range(1, 7)]
    for path, following in zip(NOTEBOOKS, NOTEBOOKS[1:]):
        assert f"({following.name})" in "".join(read(path)["cells"][-1]["source"])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stripped_and_ids_stay(path):
    notebook = read(path)
    for cell in code_cells(notebook):
        assert cell["outputs"] == [] and cell["execution_count"] is None, cell["id"]
        assert set(cell["metadata"]) <= {"tags", "tiny"}, cell["id"]
    # Ids are words of the text, not drawn anew by the editor that saved it.
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch("[a-z]+(-[a-z]+)*", name) for name in ids)
    assert path.read_text("utf-8") == (
        json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_first_cell_says_how_long_each_part_takes(path):
    intro, *others = read(path)["cells"]
    text = "".join(intro["source"])
    assert text.startswith("# ")
    (line,) = re.findall(r"^\*Time \(.+\): (.+); [0-9]+ s in all\.\*$", text, re.M)
    others = "\n".join("".join(cell["source"]) for cell in others)
    headings = re.findall(r"^## (.+)$", others, re.MULTILINE)
    # A heading may have a comma; so each known one is taken away.
    for heading in ["imports", *headings]:
        line = re.sub(rf"(^|, ){re.escape(heading)} [0-9]+ s(?=,|$)", "", line, count=1)
    assert not line, "the parts have other names: run_notebooks.py --write-times"
