"""Texts in, texts out: what `translate` and `generate` share."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from kzoo.cli.console import Failure, err, progress

Input = Annotated[
    Path | None,
    typer.Option("--input", "-i", help="A text file (or .gz), a text a line."),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Write here instead of standard output."),
]
MaxNewTokens = Annotated[
    int,
    typer.Option(
        metavar="N", min=1, help="The most tokens of a result, the end included."
    ),
]
Beams = Annotated[int, typer.Option(metavar="N", min=1, help="1 is greedy search.")]
LengthPenalty = Annotated[
    float,
    typer.Option(
        metavar="PENALTY",
        help="A result's score is log p / tokens ** PENALTY: higher favours long ones.",
    ),
]
NBest = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=1,
        help="Results a text, best first; raises --beams to it. Lines then begin with "
        "the text's number and a tab.",
    ),
]
Temperature = Annotated[
    float,
    typer.Option(
        metavar="T",
        min=0.0,
        help="Above 0, each token is drawn: at 1 as the model says, below more surely.",
    ),
]
Seed = Annotated[int, typer.Option(metavar="N", help="Of the draws.")]
Scores = Annotated[
    bool, typer.Option("--scores", help="Begin each line with the score and a tab.")
]
BatchSize = Annotated[
    int, typer.Option(metavar="N", min=1, help="Texts computed at a time.")
]


def check_output(path, input_path):
    """Refuses an output that cannot be written, before anything is computed."""
    if path is None:
        return
    if path.is_dir() or not path.parent.is_dir():
        raise Failure(
            f"--output {path}: expected a file in a folder that exists. Received: "
            + ("a folder." if path.is_dir() else f"no folder {path.parent}.")
        )
    if input_path is not None and path.resolve() == input_path.resolve():
        raise Failure(f"--output {path} is the input. Give another file.")


def read_texts(arguments, input_path):
    """Texts of the arguments, a file, or standard input; `None` for a terminal."""
    from kzoo.data.sources import decoded

    if arguments and input_path:
        raise Failure(
            f"Give texts as arguments or --input, not both. Received: {len(arguments)} "
            f"texts and --input {input_path}."
        )
    if arguments:
        return list(arguments)
    if input_path:
        content = Path(input_path).read_bytes()
        where = str(input_path)
    elif sys.stdin.isatty():
        return None
    else:
        content, where = sys.stdin.buffer.read(), "standard input"
    text = decoded(content, where)
    if not text.strip():
        raise Failure(f"{where} has no text. Expected a text a line.")
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def run(texts, output, generate, *, description, n_best, scores):
    """Generates for all texts and writes a line a result.

    Args:
        texts: from `read_texts`; `None` reads lines as they are typed.
        output: a path or `None`.
        generate: function (texts, progress) to (results, scores): strings a text, or
            lists of them with `n_best > 1`.
        description: of the progress bar.
        n_best: results a text.
        scores: whether lines begin with the score.
    """
    if texts is None:
        err.print("[dim]Type a text and Enter; Ctrl-D ends.[/dim]")
        for number, line in enumerate(iter(sys.stdin.readline, ""), 1):
            if line.strip():
                _write(
                    _lines(*generate([line.strip()], None), n_best, scores, number),
                    None,
                )
        return
    # An empty line is no text, but its line in the output keeps the files parallel.
    full = [text for text in texts if text.strip()]
    if not full:
        raise Failure("Expected a text. Received: nothing but white space.")
    with progress(description, total=len(full)) as advance:
        results, values = generate(full, advance)
    found = iter(_groups(results, values, n_best))
    lines = []
    for number, text in enumerate(texts, 1):
        if text.strip():
            lines += _format(next(found), n_best, scores, number)
        else:
            lines.append("")
    _write(lines, output)


def _lines(results, values, n_best, scores, number):
    (group,) = _groups(results, values, n_best)
    return _format(group, n_best, scores, number)


def _groups(results, values, n_best):
    """[(text, score), ...] a text."""
    if n_best == 1:
        results, values = [[r] for r in results], [[v] for v in values]
    return [list(zip(*pair, strict=True)) for pair in zip(results, values, strict=True)]


def _format(group, n_best, scores, number):
    return [
        "\t".join(
            ([str(number)] if n_best > 1 else [])
            + ([f"{score:.4f}"] if scores else [])
            # A result is one line, whatever the model has written.
            + [" ".join(text.split("\n"))]
        )
        for text, score in group
    ]


def _write(lines, output):
    text = "".join(line + "\n" for line in lines)
    if output is None:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    partial = output.with_name(f".{output.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(output)
    finally:
        partial.unlink(missing_ok=True)
