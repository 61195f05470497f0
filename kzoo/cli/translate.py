"""`kzoo translate`."""

from kzoo.cli import texts

HELP = """
Translate texts with an encoder-decoder.

Texts are arguments, the lines of --input, or standard input, one a line; a line of
the result belongs to each. What no option says is as the model says: a checkpoint has
beams, penalties and the like of its own.

[bold]Examples[/bold]

  kzoo translate translator "A man rides a bike." "Two dogs play."
  kzoo translate translator --beams 4 --input test.en --output test.de
  cat test.en | kzoo translate translator > test.de
  kzoo translate translator --n-best 3 --scores "A man rides a bike."
"""


translate = texts.command(
    "Seq2SeqLM",
    lambda task, sources, generate, options: generate(sources),
    lambda task, source, options: task.generate(source, stream=True, **options),
    "Translating",
)
