"""The card of a preset, `README.md`, written from its records and nothing else.

The form is the Hugging Face Hub's: a YAML head, which huggingface_hub writes, then
sections (Mitchell et al., 2019, https://arxiv.org/abs/1810.03993). What was not
measured is left out, or said to be so.
"""

import re
import shlex
from pathlib import Path

from huggingface_hub import EvalResult, ModelCardData

from kzoo.zoo.registry import (
    ATTENTION,
    COMMANDS,
    CURVE,
    EXAMPLES,
    EXPORTS,
    HISTORY,
    RECIPE,
    SCORES,
    all_scores,
    began_with,
    main_score,
    measured,
    read_preset,
    read_record,
    shown,
)

# The Hub's names: https://huggingface.co/tasks,
# https://huggingface.co/docs/hub/repositories-licenses, https://huggingface.co/metrics
_PIPELINES = {
    "causal_lm": "text-generation",
    "masked_lm": "fill-mask",
    "pair_scorer": "text-ranking",
    "question_answering": "question-answering",
    "sentence_embedder": "sentence-similarity",
    "seq2seq_lm": "translation",
    "text_classifier": "text-classification",
    "text_regressor": "text-classification",
    "token_classifier": "token-classification",
}
_LICENCES = re.compile(
    r"apache-2\.0|mit|cc0-1\.0|cc-by(-nc)?(-sa|-nd)?-[234]\.[05]|gpl-[23]\.0|bsd-.*|odbl"
)
_METRICS = {
    "bleu_lowercased": "bleu",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
    "matthews": "matthews_correlation",
}
# What a user does with a task, in Python and with the command.
_USES = {
    "causal_lm": "model.generate({}{})",
    "masked_lm": "model.fill([{}]{})",
    "pair_scorer": "model.predict([{}]{})",
    "question_answering": "model.answer([{}]{})",
    "sentence_embedder": "model.similarity([{}], [{}]{})",
    "seq2seq_lm": "model.generate({}{})",
    "text_classifier": "model.classify([{}]{})",
    "text_regressor": "model.predict([{}]{})",
    "token_classifier": "model.tag([{}]{})",
}
# Options that the command calls otherwise.
_OPTIONS = {
    "banned_tokens": "ban",
    "forced_prefix": "prefix",
    "num_return_sequences": "n_best",
}


def card(folder, preset=None):
    """The card of a preset.

    Args:
        folder: of the preset, with its records.
        preset: a `Preset`; by default what the folder's manifest says.

    Returns:
        What `README.md` holds.
    """
    folder = Path(folder)
    preset = preset or read_preset(folder)
    records = {name: read_record(folder, name) for name in (RECIPE, HISTORY, EXAMPLES)}
    records |= {name: measured(folder, name) for name in (SCORES, EXPORTS)}
    recipe = records[RECIPE] or {}
    said = recipe.get("card", {})
    sections = {
        "Use": _use(preset, records[EXAMPLES]),
        "Examples": _examples(records[EXAMPLES]),
        "Intended use": said.get("intended_use") or "Not stated.",
        "Limits": said.get("limits") or "Not stated.",
        "Model": _model(preset, read_record(folder, "config.json")),
        "Data": _data(preset, recipe),
        "Training": _training(recipe, records[HISTORY], folder),
        "Scores": _scores(recipe, records[SCORES]),
        "Speed": _speed(records[SCORES]),
        "Exported forms": _exports(preset, records[EXPORTS]),
        "Attention": _attention(folder),
    }
    parts = [
        f"---\n{_head(preset, records[SCORES]).to_yaml()}\n---",
        f"# {preset.title}",
    ]
    parts.append(said.get("description"))
    if preset.research_only:
        parts.append(
            "> **For research only.** The weights were trained on "
            f"{_data_name(preset)}, whose texts may be used for research only, and so "
            "may they."
        )
    for title, text in sections.items():
        parts.append(text and f"## {title}\n\n{text.strip()}")
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _head(preset, scores):
    """The metadata that the Hub reads."""
    licence = (preset.licence or "unknown").lower().replace(" ", "-")
    known = bool(_LICENCES.fullmatch(licence)) or preset.licence is None
    results = [
        EvalResult(
            task_type=_PIPELINES[preset.task],
            dataset_type=_slug(preset.data or score.test),
            dataset_name=preset.data or score.test,
            dataset_split=score.test,
            metric_type=_METRICS.get(score.measure, score.measure),
            metric_name=_words(score.measure),
            metric_value=score.value,
            metric_args={"signature": score.signature} if score.signature else None,
        )
        for score in (all_scores(scores) if scores else [])
        if score.value is not None
    ]
    return ModelCardData(
        language=list(preset.language) or None,
        license=licence if known else "other",
        license_name=None if known else _slug(preset.licence),
        library_name="kzoo",
        pipeline_tag=_PIPELINES[preset.task],
        tags=["keras", "kzoo", preset.architecture]
        + ["research-only"] * preset.research_only,
        metrics=list(dict.fromkeys(r.metric_type for r in results)) or None,
        model_name=preset.name,
        eval_results=results or None,
    )


def _use(preset, examples):
    examples = examples or {"options": {}, "examples": [{"input": "..."}]}
    given, options = examples["examples"][0]["input"], examples["options"]
    shown = [repr(given if isinstance(given, str) else tuple(given))]
    if preset.task == "sentence_embedder":  # one text beside another
        other = examples["examples"][-1]["input"]
        pair = (given, other) if isinstance(given, str) else given
        shown = list(map(repr, pair))
    asked = "".join(f", {name}={value!r}" for name, value in options.items())
    lines = [
        "import kzoo",
        "",
        f'model = kzoo.from_preset("{preset.name}")  # or the path of this folder',
        _USES[preset.task].format(*shown, asked),
    ]
    blocks = [_fenced("\n".join(lines), "python")]
    if preset.task in COMMANDS:
        words = ["kzoo", COMMANDS[preset.task], preset.name, given]
        for name, value in options.items():
            option = f"--{_OPTIONS.get(name, name).replace('_', '-')}"
            for each in value if isinstance(value, list) else [value]:
                words += [option, str(each)]
        blocks.append(_fenced(shlex.join(words), "sh"))
    return "\n\n".join(blocks)


def _examples(examples):
    if not examples:
        return None
    blocks = []
    for pair in examples["examples"]:
        given = pair["input"]
        given = [given] if isinstance(given, str) else given
        blocks.append(_fenced("\n".join([*given, f"→ {pair['output']}"]), "text"))
    options = _options(examples["options"])
    asked = f", with {options}" if options else ""
    return "\n\n".join([f"What the weights in this folder give{asked}:", *blocks])


def _model(preset, config):
    rows = [
        ("task", f"`{config['task']}`"),
        ("architecture", preset.architecture),
        ("parameters", f"{preset.parameters:,}"),
        ("weights", f"{config['dtype']}; the folder has {preset.bytes / 1e6:.1f} MB"),
    ]
    for side in ("encoder", "decoder"):
        stack = config["model"].get(side)
        if stack:
            layers = stack["num_layers"]
            rows.append(
                (
                    side,
                    f"{layers} layer{'s' * (layers != 1)} of width "
                    f"{stack['hidden_dim']}, {stack['num_heads']} heads, "
                    f"{stack['vocabulary_size']:,} tokens",
                )
            )
    return markdown_table(("", ""), rows)


def _data(preset, recipe):
    used = recipe.get("data", {})
    rows = [
        ("name", _data_name(preset)),
        ("from", used.get("url")),
        ("layout", used.get("layout")),
        ("licence", preset.licence or "not stated"),
        ("languages", ", ".join(preset.language)),
        ("use", "research only" if preset.research_only else None),
        ("begun with", _begun_with(recipe)),
    ]
    return markdown_table(("", ""), [row for row in rows if row[1]])


def _begun_with(recipe):
    """The presets whose weights a training began with, and what each was trained on."""
    found = {}
    while (name := recipe.get("model", {}).get("preset")) and name not in found:
        found[name], began = name, began_with(name)
        if not began:
            break
        data, licence = _data_name(began), began.licence or "not stated"
        found[name] = f"`{name}`, trained on {data} ({licence})"
        recipe = read_record(began.folder, RECIPE) or {}
    return ", and that with ".join(found.values())


def _data_name(preset):
    return preset.data or "data that is not named"


def _training(recipe, history, folder):
    parts = []
    if recipe:
        parts.append(
            "`recipe.toml` says all of it; this trains the model again:\n\n"
            + _fenced("kzoo train recipe.toml --data DATA --out FOLDER", "sh")
        )
    if history:
        last = history[-1]
        numbers = [
            f"{_words(name)} {value:.4g}"
            for name, value in last.items()
            if isinstance(value, float) and name not in ("seconds", "learning_rate")
        ]
        seconds = sum(row.get("seconds") or 0 for row in history)
        took = f" in {_duration(seconds)}" if seconds else ""
        parts.append(
            f"{len(history)} epochs{took}; in the last one {', '.join(numbers)}."
        )
    if (folder / CURVE).is_file():
        parts.append(f"![The training's curves]({CURVE})")
    return "\n\n".join(parts) or "Not recorded."


def _scores(recipe, scores):
    parts = []
    if scores:
        if "command" in scores:
            parts.append("Measured by\n\n" + _fenced(scores["command"], "sh"))
        main, rows = main_score(scores), []
        for score in all_scores(scores):
            test = scores["tests"][score.test]
            bold = "**" if score == main else ""
            rows.append(
                (
                    score.test,
                    f"{test['rows']:,}",
                    _words(score.measure),
                    f"{bold}{shown(score.value)}{bold}",
                    _interval(score),
                    _options(test.get("options")),
                )
            )
        names = ("test", "rows", "measure", "value", "interval", "options")
        parts.append(markdown_table(names, rows))
        for signature in dict.fromkeys(s.signature for s in all_scores(scores)):
            parts.append(f"sacrebleu: `{signature}`" if signature else None)
    else:
        parts.append("Not measured.")
    stated = recipe.get("evaluation", {}).get("interval")
    if stated:
        low, high = stated
        parts.append(
            f"The recipe accepts {low:g} to {high:g} in the main measure, and `kzoo "
            "evaluate` fails outside: the interval over examples of what ships. How "
            "far seeds and machines spread was not measured."
        )
    published = recipe.get("card", {}).get("published")
    if published:
        rows = [(each["what"], each["score"], each["source"]) for each in published]
        parts.append(
            "Published for comparison:\n\n"
            + markdown_table(("what", "score", "source"), rows)
        )
    return "\n\n".join(part for part in parts if part)


def _interval(score):
    if score.low is None or score.high is None:
        return ""
    sure = f" ({score.confidence:.0%})" if score.confidence else ""
    return f"{score.low:.4g} to {score.high:.4g}{sure}"


def _options(options):
    return ", ".join(f"{_words(k)} {v}" for k, v in (options or {}).items())


def _speed(scores):
    rows = [
        (
            test,
            f"{found['rows']:,}",
            f"{found['seconds']:.1f}",
            f"{found['rows'] / found['seconds']:.4g}",
        )
        for test, found in (scores or {}).get("tests", {}).items()
        if found.get("seconds")
    ]
    if not rows:
        return None
    table = markdown_table(("test", "rows", "seconds", "rows a second"), rows)
    return f"{table}\n\nWith what was compiled on the way. {_machine(scores)}"


def _machine(record):
    versions = ", ".join(f"{k} {v}" for k, v in record.get("versions", {}).items())
    said = "; ".join(part for part in (record.get("machine"), versions) if part)
    return said and f"Measured on: {said}."


def _exports(preset, exports):
    if not exports:
        command = f"kzoo export {preset.name} --out FOLDER"
        return f"Not measured. `{command}` writes and verifies one."
    measures = list(exports["score"])
    names = ("form", "MB", "largest difference", *map(_words, measures), "seconds")
    own = [f"{exports['score'][measure]:.4g}" for measure in measures]
    rows = [("the model in Keras", "", "", *own, f"{exports['seconds']:.0f}")]
    left = []
    for form in exports["forms"]:
        for reason in ("refused", "not_scored"):
            if reason in form:
                left.append(f"- {form['form']}, {_words(reason)}: {form[reason]}")
        if "refused" in form:
            continue
        score = form.get("score") or {}
        rows.append(
            (
                form["form"],
                f"{form['bytes'] / 1e6:.1f}",
                f"{form['difference']:.1e}",
                *(f"{score[m]:.4g}" if m in score else "" for m in measures),
                f"{form['seconds']:.0f}" if score else "",
            )
        )
    on = (
        f" on {exports['rows']:,} rows of {exports['test']}"
        if "test" in exports
        else ""
    )
    parts = [
        "Each was run in its own runtime and compared with the model before it was "
        f"kept; then it was scored{on}, in as many seconds as the last column says.",
        markdown_table(names, rows),
        _machine(exports),
        "\n".join(left),
    ]
    return "\n\n".join(part for part in parts if part)


def _attention(folder):
    if not (folder / ATTENTION).is_file():
        return None
    return (
        "The mean of each layer's heads, for the first example.\n\n"
        f"![Attention weights]({ATTENTION})"
    )


def markdown_table(names, rows):
    """A table in Markdown, of what prints on one line."""
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(value):
    return " ".join(str(value).split()).replace("|", "\\|")


def _fenced(text, language):
    """A block of text as it is, within more backticks than stand in it."""
    runs = [len(run) for run in re.findall("`+", text)]
    fence = "`" * max([3, *(n + 1 for n in runs)])
    return f"{fence}{language}\n{text}\n{fence}"


def _words(name):
    return name.replace("_", " ")


def _slug(name):
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")


def _duration(seconds):
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    if seconds < 7200:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours"
