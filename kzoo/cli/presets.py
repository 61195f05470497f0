"""`kzoo presets`."""

import json
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from kzoo.cli.console import note, out, print_table

HELP = """
List the presets: small models that kzoo trained and ships, which need no network.

A preset's name stands wherever a command takes a model. Below its size is how many
weights it has. Its licence is that of the texts it was trained on; what is marked
"research only" may be used for nothing else. The score is the main one of its card,
README.md in the preset's folder; --json says where that is, and all else.

[bold]Examples[/bold]

  kzoo presets
  kzoo presets --task seq2seq_lm
  kzoo presets --architecture decoder --json
  kzoo export ewt-pos --format onnx --out tagger
"""


def presets(
    task: Annotated[
        str | None,
        typer.Option(
            metavar="TASK", help="Only of this task, such as text_classifier."
        ),
    ] = None,
    architecture: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="Only encoder, decoder or encoder_decoder."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, with all that is known.")
    ] = False,
):
    """Runs the command."""
    from kzoo.zoo.registry import list_presets

    found = list_presets(task, architecture)
    if as_json:
        shown = [preset.to_dict() for preset in found]
        out.print_json(json.dumps(shown, ensure_ascii=False))
        return
    if not found:
        note("No preset: none of these is shipped with this installation.")
        return
    table = Table(
        box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False
    )
    for name, width in (("preset", None), ("task", None), ("size", 6), ("score", 16)):
        table.add_column(name, min_width=width, no_wrap=width is None)
    table.add_column("licence", min_width=13)
    for preset in found:
        table.add_row(
            _cell(preset.name, preset.architecture, "bold"),
            _cell(preset.task, ", ".join(preset.language)),
            _cell(f"{preset.bytes / 1e6:.1f} MB", f"{preset.parameters / 1e6:.1f} M"),
            _score(preset.score),
            _cell(
                preset.licence or "not stated",
                "research only" if preset.research_only else "",
                below="yellow",
            ),
        )
    print_table(table)


def _cell(first, second, above="", below="dim"):
    return Text.assemble((first, above), "\n" if second else "", (second, below))


def _score(score):
    if score is None:
        return _cell("not measured", "", "dim")
    from kzoo.zoo.registry import shown

    measure = score.measure.replace("_", " ")
    return _cell(f"{measure} {shown(score.value)}", score.test)
