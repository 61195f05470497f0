"""The `kzoo` command, a file a command.

Only typer and rich are imported here: a command imports what it needs when it runs, so
that `kzoo --help` answers at once.
"""

import os
import sys
from typing import Annotated

import typer

from kzoo import __version__
from kzoo.cli import (
    console,
    demo,
    evaluate,
    export,
    generate,
    presets,
    train,
    translate,
    verify,
)

HELP = """
Transformers for Keras 3: train on text, generate, and export files that have been
run and compared before you get them.

[dim]Begin with[/dim]  kzoo demo  [dim]which does all of it in two minutes; or[/dim]

  kzoo train pairs.tsv --out translator
  kzoo translate translator "A man rides a bike."
  kzoo export translator --format onnx --out translator.onnx
"""

app = typer.Typer(
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
for module in (
    demo,
    presets,
    train,
    evaluate,
    translate,
    generate,
    export,
    verify,
):
    name = module.__name__.rpartition(".")[2]
    command = console.one_line_errors(getattr(module, name))
    app.command(name, help=console.help_text(module.HELP))(command)


def _version(wanted):
    if wanted:
        print(f"kzoo {__version__}")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version."
        ),
    ] = False,
):
    """The command without a subcommand."""


def _write_any_text():
    """Has results leave as UTF-8, as they do into files, whatever the locale is."""
    if sys.stderr is None:  # closed
        sys.stderr = open(os.devnull, "w", encoding="utf-8")
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")
    elif sys.stdout.isatty():  # which shows what it can
        sys.stdout.reconfigure(errors="replace")
    elif "PYTHONIOENCODING" not in os.environ:
        sys.stdout.reconfigure(encoding="utf-8")


def main():
    """What the console script runs."""
    _write_any_text()
    console.end_on_signals()
    try:
        console.one_line_errors(app)(prog_name="kzoo")  # its help is written, too
    except typer.Exit as end:
        sys.exit(end.exit_code)
