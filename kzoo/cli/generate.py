"""`kzoo generate`."""

from typing import Annotated

import typer

from kzoo.cli import texts
from kzoo.cli.console import ModelFolder, help_text, load_model, one_line_errors

HELP = help_text("""
Continue texts with a decoder-only language model.

Prompts are arguments, the lines of --input, or standard input, one a line. A result is
the prompt and what follows it; line breaks in it are written as spaces.

[bold]Examples[/bold]

  kzoo generate writer "Once upon a time"
  kzoo generate writer --max-new-tokens 200 --beams 4 --input prompts.txt
  kzoo generate writer --n-best 3 --scores "Once upon a time"
  kzoo generate writer --temperature 0.8 --seed 3 "Once upon a time"
""")


@one_line_errors
def generate(
    model: ModelFolder,
    prompt: Annotated[
        list[str] | None, typer.Argument(help="Prompts.", show_default=False)
    ] = None,
    input: texts.Input = None,
    output: texts.Output = None,
    max_new_tokens: texts.MaxNewTokens = 64,
    beams: texts.Beams = 1,
    length_penalty: texts.LengthPenalty = 1.0,
    n_best: texts.NBest = 1,
    temperature: texts.Temperature = 0.0,
    seed: texts.Seed = 0,
    scores: texts.Scores = False,
    batch_size: texts.BatchSize = 32,
):
    """Runs the command."""
    texts.check_output(output, input)
    prompts = texts.read_texts(prompt, input)
    task = load_model(model, "CausalLM", "translate")

    def continue_texts(prompts, progress):
        # As ids, because a continuation's first piece alone does not tell whether a
        # space stands before it.
        ids = task.encode_prompts(prompts)
        found, values = task.generate(
            ids,
            max_new_tokens=max_new_tokens,
            beams=max(beams, n_best),
            length_penalty=length_penalty,
            num_return_sequences=n_best,
            temperature=temperature,
            seed=seed,
            return_scores=True,
            batch_size=batch_size,
            progress=progress,
        )
        decode = task.tokenizer.decode
        if n_best == 1:
            return decode([a + b for a, b in zip(ids, found, strict=True)]), values
        return [
            decode([before + after for after in group])
            for before, group in zip(ids, found, strict=True)
        ], values

    texts.run(
        prompts,
        output,
        continue_texts,
        description="Generating",
        n_best=n_best,
        scores=scores,
    )
