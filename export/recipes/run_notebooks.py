"""Runs the notebooks in full, each in a kernel of its own, and says how long they take.

    python export/recipes/run_notebooks.py                  # all of them
    python export/recipes/run_notebooks.py 05 --write-times

The folder `--out` gets every notebook with its outputs, the same as HTML, what the
notebook wrote, and `times.json`: seconds of each part, which is what follows a heading.
They are CPU time, which other programs on the machine hardly lengthen. With
`--write-times` the line about time in the notebooks themselves is written anew.
Needs `kzoo[notebooks]`.
"""

import argparse
import json
import os
import platform
import re
from pathlib import Path

try:
    import nbformat
    import psutil
    from nbclient import NotebookClient
    from nbconvert import HTMLExporter
except ImportError as error:
    raise SystemExit(f"{error}: pip install 'kzoo[notebooks]' brings it.") from error

from kzoo.files import write_json
from kzoo.zoo.evaluation import versions

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
TIME_LINE = re.compile(r"^\*Time.*\*$", re.MULTILINE)
# What TensorFlow's C++ writes when it starts, whatever it is told.
NOTICES = re.compile(r"^(WARNING: All log messages|[IWE]0000 |To enable the following)")


def executed(path, folder):
    """The notebook with its outputs, and CPU seconds of each code cell by its id.

    An error in a cell is raised.
    """
    notebook = nbformat.read(path, as_version=4)
    folder.mkdir(parents=True, exist_ok=True)
    used = {}

    def cpu_seconds():  # of the kernel, and of processes that it has waited for
        times = psutil.Process(client.km.provisioner.pid).cpu_times()
        return times.user + times.system + times.children_user + times.children_system

    def begin(cell, **_):
        used[cell["id"]] = -cpu_seconds()

    def end(cell, **_):
        used[cell["id"]] += cpu_seconds()

    client = NotebookClient(
        notebook,
        timeout=None,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
        on_cell_execute=begin,
        on_cell_executed=end,
    )
    client.execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [o for o in cell.outputs if not is_notice(o)]
    return notebook, used


def is_notice(output):
    """Whether an output is nothing but notices of TensorFlow's."""
    lines = output.get("text", "").strip().split("\n")
    return output.get("name") == "stderr" and all(
        NOTICES.match(line) or not line for line in lines
    )


def seconds_by_part(notebook, used):
    """Heading -> CPU seconds of the code that follows it."""
    part, seconds = "imports", {}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            part = next(iter(re.findall(r"^## (.+)$", cell.source, re.M)), part)
        else:
            seconds[part] = seconds.get(part, 0.0) + used[cell["id"]]
    return seconds


def time_line(seconds):
    """The notebook's own sentence on how long it takes."""
    parts = [f"{name} {took:.0f} s" for name, took in seconds.items() if took >= 1]
    return (
        "*Time (CPU seconds; two free cores need less by the clock): "
        f"{', '.join(parts)}; {sum(seconds.values()):.0f} s in all.*"
    )


def write_time(path, line):
    """Puts the sentence where the old one is; nothing else changes."""
    notebook = json.loads(path.read_text("utf-8"))
    intro = notebook["cells"][0]
    text, count = TIME_LINE.subn(lambda _: line, "".join(intro["source"]))
    assert count == 1, f"{path.name} needs one line '*Time ...*' in its first cell"
    intro["source"] = text.splitlines(keepends=True)
    path.write_text(
        json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="how they begin, such as 05")
    parser.add_argument("--out", type=Path, default=Path("runs/notebooks"))
    parser.add_argument("--write-times", action="store_true")
    args = parser.parse_args()

    paths = sorted(NOTEBOOKS.glob("*.ipynb"))
    chosen = [
        p for p in paths if not args.names or p.name.startswith(tuple(args.names))
    ]
    if not chosen:
        parser.error(f"no notebook begins with {args.names}: {[p.name for p in paths]}")
    results = {
        "cores": os.cpu_count(),
        "machine": platform.platform(),
        "versions": versions(),
        "seconds": {},
    }
    for path in chosen:
        notebook, used = executed(path, args.out / path.stem)
        seconds = seconds_by_part(notebook, used)
        nbformat.write(notebook, args.out / path.name)
        page, _ = HTMLExporter().from_notebook_node(notebook)
        (args.out / f"{path.stem}.html").write_text(page, encoding="utf-8")
        if args.write_times:
            write_time(path, time_line(seconds))
        results["seconds"][path.stem] = {k: round(v, 1) for k, v in seconds.items()}
        print(f"{path.name}: {time_line(seconds)}")
        write_json(args.out / "times.json", results)
