"""Texts in, texts out: the commands `translate` and `generate`."""

import gzip
import os
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from kzoo.cli.console import Failure, ModelFolder, load_model, note, progress, said
from kzoo.cli.reports import check_file, check_kept
from kzoo.files import replacing, write_text

_TYPE = "Type a text and Enter; Ctrl-D ends."


def _number(help, name="N", **limits):
    return typer.Option(metavar=name, help=help, **limits)


def command(task_name, results, pieces, verb):
    """A command that generates: texts in, a line out for each.

    Options that are not given are as the model's `search_defaults` say.

    Args:
        task_name: the class of the models that it takes.
        results: function (task, texts, generate, options) to (results, scores), where
            `generate` is `task.generate` with the options, of texts or ids.
        pieces: function (task, text, options) to pieces of one text's result.
        verb: for the progress bar.
    """

    def run(
        model: ModelFolder,
        text: Annotated[
            list[str] | None, typer.Argument(help="Texts.", show_default=False)
        ] = None,
        input: Annotated[
            Path | None,
            typer.Option("--input", "-i", help="A text file (or .gz), a text a line."),
        ] = None,
        output: Annotated[
            Path | None,
            typer.Option(
                "--output",
                "-o",
                help="Write here (.gz is packed), not to standard output.",
            ),
        ] = None,
        max_new_tokens: Annotated[
            int | None,
            _number(
                "The most tokens of a result, the end included; where neither this "
                "nor the model says, 128, or what learned positions leave.",
                min=1,
            ),
        ] = None,
        min_new_tokens: Annotated[
            int | None, _number("So many tokens come before an end.", min=0)
        ] = None,
        beams: Annotated[int | None, _number("1 is greedy search.", min=1)] = None,
        length_penalty: Annotated[
            float | None,
            _number(
                "A result's score is log p / tokens ** PENALTY: higher favours long "
                "ones.",
                "PENALTY",
            ),
        ] = None,
        n_best: Annotated[
            int,
            _number(
                "Results a text, best first; raises --beams to it. Lines then begin "
                "with the text's number and a tab.",
                min=1,
            ),
        ] = 1,
        temperature: Annotated[
            float | None,
            _number(
                "Above 0, each token is drawn: at 1 as the model says, below more "
                "surely.",
                "T",
                min=0.0,
            ),
        ] = None,
        top_k: Annotated[
            int | None, _number("Draw among so many most probable tokens.", "K", min=0)
        ] = None,
        top_p: Annotated[
            float | None,
            _number("Draw among the fewest with so much probability.", "P"),
        ] = None,
        min_p: Annotated[
            float | None,
            _number("Draw among those at least P times the best one's.", "P"),
        ] = None,
        seed: Annotated[int | None, _number("Of the draws.")] = None,
        repetition_penalty: Annotated[
            float | None, _number("Above 1, what occurred gets less likely.", "PENALTY")
        ] = None,
        no_repeat_ngram_size: Annotated[
            int | None, _number("No N tokens in a row come twice.", min=0)
        ] = None,
        ban: Annotated[
            list[str] | None,
            _number("A token that never comes; may be given often.", "TOKEN"),
        ] = None,
        stop: Annotated[
            list[str] | None,
            _number("End a result before this; may be given often.", "TEXT"),
        ] = None,
        prefix: Annotated[
            str | None, _number("What every result begins with.", "TEXT")
        ] = None,
        constraint: Annotated[
            str | None, _number("A regular expression that results match.", "REGEX")
        ] = None,
        stream: Annotated[
            bool, typer.Option("--stream", help="Show one text's result as it comes.")
        ] = False,
        scores: Annotated[
            bool,
            typer.Option("--scores", help="Begin each line with the score and a tab."),
        ] = False,
        batch_size: Annotated[int, _number("Texts computed at a time.", min=1)] = 32,
    ):
        """Runs the command."""
        check_output(output, model, input)
        sources = read_texts(text, input, at_once=output is not None)
        task = load_model(model, task_name)
        from kzoo.generation import SearchOptions  # now that Keras is loaded anyway

        if n_best > 1 and temperature:
            raise Failure("--n-best is of beam search: leave out --temperature.")
        if n_best > 1:
            beams = max(beams or task.search_defaults.get("beams", 1), n_best)
        given = dict(
            max_new_tokens=max_new_tokens,
            min_new_tokens=min_new_tokens,
            beams=beams,
            length_penalty=length_penalty,
            num_return_sequences=n_best,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=seed,
            repetition_penalty=repetition_penalty,
            no_repeat_ngram_size=no_repeat_ngram_size,
            banned_tokens=ban,
            stop=stop,
            forced_prefix=prefix,
            constraint=constraint,
        )
        options = {name: value for name, value in given.items() if value is not None}
        # `generate` of ids leaves stop strings to who joins their texts.
        options["stop"] = SearchOptions.over(task.search_defaults, options).stop
        if stream:
            several = (beams or 1) > 1  # as many as --n-best at least
            if not sources or len(sources) > 1 or output or scores or several:
                raise Failure(
                    "--stream shows one text's result: give one text, and none of "
                    "--output, --scores, --beams and --n-best."
                )
            options.setdefault("beams", 1)  # whatever the model's own
            for piece in pieces(task, sources[0], options):
                sys.stdout.write(piece)
                sys.stdout.flush()
            sys.stdout.write("\n")
            return

        def generate(sources, progress):
            def run(prompts):
                return task.generate(
                    prompts,
                    return_scores=True,
                    batch_size=batch_size,
                    progress=progress,
                    **options,
                )

            return results(task, sources, run, options)

        write(sources, output, generate, description=verb, n_best=n_best, scores=scores)

    return run


def check_output(path, *kept):
    """Refuses an output that cannot be written, before anything is computed.

    Args:
        path: of the output, or `None` for standard output.
        *kept: see `kzoo.cli.reports.check_kept`.
    """
    # What `main` puts in a closed stream's place; one sent there is "<stdout>".
    if path is None and getattr(sys.stdout, "name", "") == os.devnull:
        raise Failure("Give --output a file: standard output is closed.")
    if path is None:
        return
    check_file("--output", path)
    own = path.suffix == ".txt" and path.name not in ("vocab.txt", "merges.txt")
    files = [each for each in kept if each and not (own and Path(each).is_dir())]
    check_kept("--output", path, *files)


def read_texts(arguments, input_path, at_once=True):
    """Texts of the arguments, a file, or standard input.

    Args:
        arguments: strings, or `None`.
        input_path: of a file, or `None`.
        at_once: whether what is typed is read to its end, too.

    Returns:
        list of strings; `None` for a terminal, unless `at_once`.
    """
    from kzoo.data.sources import decoded, lines_of

    if arguments and input_path:
        raise Failure(
            f"Give texts as arguments or --input, not both. Received: {len(arguments)} "
            f"texts and --input {input_path}."
        )
    if arguments and list(arguments) != ["-"]:
        if "-" in arguments:
            raise Failure(
                "- is standard input, alone: give it, or texts. Received: "
                f"{len(arguments)} arguments."
            )
        return list(arguments)
    if input_path:
        content = Path(input_path).read_bytes()
        where = str(input_path)
    elif sys.stdin is None:  # closed
        raise Failure("Give texts as arguments or --input: standard input is closed.")
    elif sys.stdin.isatty() and not at_once:
        return None
    else:
        if sys.stdin.isatty():
            note(_TYPE)
        content, where = sys.stdin.buffer.read(), "standard input"
    text = decoded(content, where)
    if not text.strip():
        raise Failure(f"{where} has no text. Expected a text a line.")
    return list(lines_of(text, where))


def write(texts, output, generate, *, description, n_best, scores):
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
        _answer_what_is_typed(generate, n_best, scores)
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


def _answer_what_is_typed(generate, n_best, scores):
    """Writes a line's results before it reads the next, also behind a refused one."""
    from kzoo.data.sources import decoded

    note(_TYPE)
    for number, line in enumerate(iter(sys.stdin.buffer.readline, b""), 1):
        try:
            text = decoded(line, f"text {number}").strip()
            groups = _groups(*generate([text], None), n_best) if text else []
        except ValueError as error:
            said(error)
            continue
        for group in groups:
            _write(_format(group, n_best, scores, number), None)


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
            + [re.sub(r"\r\n?|\n", " ", text)]
        )
        for text, score in group
    ]


def _write(lines, output):
    text = "".join(line + "\n" for line in lines)
    if output is None:
        sys.stdout.write(text)
        sys.stdout.flush()
    elif output.suffix.lower() == ".gz":
        with replacing(output) as partial:
            partial.write_bytes(gzip.compress(text.encode()))
    else:
        write_text(output, text)
