"""`kzoo generate`."""

from kzoo.cli import texts

HELP = """
Continue texts with a decoder-only language model.

Prompts are arguments, the lines of --input, or standard input, one a line. A result is
the prompt, as the model reads it, and what follows it; line breaks in it are written as
spaces. What no option says is as the model says: a checkpoint has beams, penalties and
the like of its own.

[bold]Examples[/bold]

  kzoo generate writer "Once upon a time"
  kzoo generate writer --max-new-tokens 200 --beams 4 --input prompts.txt
  kzoo generate writer --n-best 3 --scores "Once upon a time"
  kzoo generate writer --temperature 0.8 --top-p 0.9 --seed 3 "Once upon a time"
  kzoo generate writer --stream --stop "." "Once upon a time"
  kzoo generate writer --constraint "[0-9]{1,2} (cats|dogs)" "There were"
"""


def _results(task, prompts, generate, options):
    # As ids, because a continuation's first piece alone does not tell whether a space
    # stands before it.
    ids = task.encode_prompts(prompts)
    found, scores = generate(ids)
    if options["num_return_sequences"] == 1:
        return [_text(task, *pair, options) for pair in zip(ids, found)], scores
    return [
        [_text(task, before, after, options) for after in group]
        for before, group in zip(ids, found)
    ], scores


def _text(task, before, after, options):
    from kzoo.generation.streaming import before_stop

    start, rest = _parts(task, before, after)
    return start + before_stop(rest, options["stop"])


def _parts(task, before, after):
    start, whole = task.decode([before, before + after])
    return start, whole.removeprefix(start)


def _pieces(task, prompt, options):
    from kzoo.generation.streaming import TextStream

    (before,) = task.encode_prompts([prompt])
    rest = TextStream(lambda ids: _parts(task, before, ids)[1], options["stop"])
    yield _parts(task, before, [])[0]
    for (ids,) in task.generate([before], stream=True, **options):
        yield rest.push(ids)
    yield rest.push([], last=True)


generate = texts.command("CausalLM", _results, _pieces, "Generating")
