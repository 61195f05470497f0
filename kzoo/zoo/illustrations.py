"""What a preset shows of itself: outputs for the examples of its card, pictures."""

import numpy as np

from kzoo import plots
from kzoo.files import write_json
from kzoo.models import AttentionRecorder
from kzoo.tasks import Seq2SeqLM
from kzoo.tasks.token_classifier import split_words
from kzoo.zoo.registry import ATTENTION, CURVE, EXAMPLES, HISTORY, RECIPE, read_record

_TOKENS = 48  # the most of a side of a picture
_TOP = 3  # candidates of a mask


def illustrate(task, folder):
    """Writes what a preset's card shows, as far as its records allow.

    `curve.png` of the history, and of the recipe's examples `examples.json` and, of the
    first one, `attention.png`.

    Args:
        task: the preset's, with the weights as they are in the folder.
        folder: of the preset.
    """
    history = read_record(folder, HISTORY)
    if history:
        plots.training_curve(history).savefig(folder / CURVE)
    recipe = read_record(folder, RECIPE) or {}
    given = recipe.get("card", {}).get("examples", [])
    if not given or task.tokenizer is None:
        return
    options = recipe["card"].get("options", {})
    if isinstance(task, Seq2SeqLM):  # which is scored by what it generates
        options = {**recipe.get("evaluation", {}).get("options", {}), **options}
        options.pop("batch_size", None)
    outputs = outputs_of(task, given, **options)
    pairs = [dict(input=i, output=o) for i, o in zip(given, outputs, strict=True)]
    write_json(folder / EXAMPLES, {"options": options, "examples": pairs})
    weights, written, read = attention_of(task, given[0], **options)
    written, read = written[:_TOKENS], read and read[:_TOKENS]
    figure = plots.attention(weights, written, read, heads="mean")
    figure.savefig(folder / ATTENTION)


def outputs_of(task, given, **options):
    """What a task answers, as text: a string for each example.

    Args:
        task: a task with a tokenizer.
        given: strings, or pairs of strings where the task reads those; of an embedder
            pairs, or two strings at least.
        **options: of the verb that answers.
    """
    given = [x if isinstance(x, str) else tuple(x) for x in given]
    if hasattr(task, "generate"):
        return task.generate(given, **options)
    return _ANSWERS[type(task).__name__](task, given, **options)


def _classes(task, given, **options):
    names, shares = task.classify(given, return_probabilities=True, **options)
    return [f"{name} ({row.max():.1%})" for name, row in zip(names, shares)]


def _labels(task, given, **options):
    labels = task.tag(given, **options)
    return [
        " ".join(f"{word}/{label}" for word, label in zip(words, row))
        for words, row in zip(split_words(given), labels)
    ]


def _cosines(task, given, **options):
    """Of pairs their cosine; of single texts that with the nearest other one."""
    if isinstance(given[0], str):
        if len(given) < 2:
            raise ValueError(
                f"Single texts are compared with each other: two at least. Received: "
                f"{given}."
            )
        cosines = task.similarity(given, given, **options)
        np.fill_diagonal(cosines, -np.inf)
        return [f"cosine {row.max():.3f}: {given[row.argmax()]}" for row in cosines]
    first, second = (task.embed(list(side), **options) for side in zip(*given))
    cosines = np.diag(task.similarity(first, second))
    return [f"cosine {cosine:.3f}" for cosine in cosines]


def _candidates(task, given, **options):
    return [
        "; ".join(
            ", ".join(f"{c.token} ({c.probability:.1%})" for c in candidates)
            for candidates in masks
        )
        for masks in task.fill(given, top_k=_TOP, **options)
    ]


def _numbers(task, given, **options):
    return [f"{row[0]:.3f}" for row in task.predict(given, verbose=0, **options)]


_ANSWERS = {
    "MaskedLM": _candidates,
    "PairScorer": _numbers,
    "QuestionAnswering": lambda task, given, **options: [
        answer.text for answer in task.answer(given, **options)
    ],
    "SentenceEmbedder": _cosines,
    "TextClassifier": _classes,
    "TextRegressor": _numbers,
    "TokenClassifier": _labels,
}


def attention_of(task, example, **options):
    """What a task attends to while it reads an example, or writes its result.

    Args:
        task: a task with a tokenizer.
        example: a string, or a pair where the task reads those.
        **options: of `generate`, where the task has it.

    Returns:
        A list, a layer each, of float (1, N, T, S): of an encoder-decoder the
        cross-attention, else the self-attention. T labels, the tokens written or read;
        and S labels, the tokens read, `None` where they are the same.
    """
    config = task.config
    if not isinstance(example, str):  # an embedder reads the texts of a pair apart
        example = tuple(example) if 2 in task.texts_per_example else example[0]
    found = []
    if hasattr(task, "generate"):
        (ids,) = task.encode_prompts([example])
        (found,) = task.generate([ids], **options)
    if config.architecture == "encoder_decoder":
        # Row t of the weights chose token t of the result, which the end follows.
        inputs = {
            "encoder_token_ids": ids,
            "decoder_token_ids": [config.start_token_id, *found],
        }
        written, read, part = [*found, config.end_token_id], ids, ["cross_attention"]
    else:
        inputs = dict(task.export_rows(example)[0])
        inputs["token_ids"] = [*inputs["token_ids"], *found]
        written, read, part = inputs["token_ids"], None, []
    with AttentionRecorder(task) as recorder:
        task({name: np.array([ids], "int32") for name, ids in inputs.items()})
    return (
        recorder.maps(*part),
        _names(task, written),
        None if read is None else _names(task, read),
    )


def _names(task, ids):
    end = task.config.end_token_id
    return ["end" if i == end else task.tokenizer.tokens([i])[0] for i in ids]
