"""`kzoo translate`."""

from typing import Annotated

import typer

from kzoo.cli import texts
from kzoo.cli.console import ModelFolder, help_text, load_model, one_line_errors

HELP = help_text("""
Translate texts with an encoder-decoder.

Texts are arguments, the lines of --input, or standard input, one a line; a line of
the result belongs to each.

[bold]Examples[/bold]

  kzoo translate translator "A man rides a bike." "Two dogs play."
  kzoo translate translator --beams 4 --input test.en --output test.de
  cat test.en | kzoo translate translator > test.de
  kzoo translate translator --n-best 3 --scores "A man rides a bike."
""")


@one_line_errors
def translate(
    model: ModelFolder,
    text: Annotated[
        list[str] | None, typer.Argument(help="Texts.", show_default=False)
    ] = None,
    input: texts.Input = None,
    output: texts.Output = None,
    max_new_tokens: texts.MaxNewTokens = 128,
    beams: texts.Beams = 1,
    length_penalty: texts.LengthPenalty = 1.0,
    n_best: texts.NBest = 1,
    scores: texts.Scores = False,
    batch_size: texts.BatchSize = 32,
):
    """Runs the command."""
    texts.check_output(output, input)
    sources = texts.read_texts(text, input)
    task = load_model(model, "Seq2SeqLM", "generate")

    def generate(sources, progress):
        return task.generate(
            sources,
            max_new_tokens=max_new_tokens,
            beams=max(beams, n_best),
            length_penalty=length_penalty,
            num_return_sequences=n_best,
            return_scores=True,
            batch_size=batch_size,
            progress=progress,
        )

    texts.run(
        sources,
        output,
        generate,
        description="Translating",
        n_best=n_best,
        scores=scores,
    )
