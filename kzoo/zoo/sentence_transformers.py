"""The files that sentence-transformers has beside a model: pooling and what follows."""

import json

from kzoo.checkpoints.hf_config import Unsupported
from kzoo.tokenizers.hf_folder import read_json

MODULES_FILE, POOLING_FILE = "modules.json", "config.json"
LENGTH_FILE, PROMPTS_FILE = (
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
)
_PLACES = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
# What a task has as `settings`, to be written again.
_KEPT = ("prompts", "similarity_fn_name")
# Pooling kinds of kzoo, and their names in a file of one and of several switches.
_KINDS = {
    "mean": "pooling_mode_mean_tokens",
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "last": "pooling_mode_lasttoken",
}
_NAMES = {"mean": "mean", "cls": "cls", "max": "max", "lasttoken": "last"}


def is_embedder(folder):
    """Whether a folder says that its model is for embeddings."""
    return "Pooling" in dict(_modules(folder))


def read_pooling(folder, config):
    """Arguments of a `SentenceEmbedder`; none where the folder has no such files.

    Args:
        folder: a `Path`.
        config: the `ModelConfig`.

    Raises:
        Unsupported: modules, or a pooling, that kzoo has not.
    """
    modules = _modules(folder)
    if not modules:
        return {}
    kinds = [kind for kind, _ in modules]
    if kinds not in (["Transformer", "Pooling"], [*_PLACES]):
        raise Unsupported(
            f"{MODULES_FILE} has the modules {kinds}. Supported: {[*_PLACES]}, "
            "the last one or not."
        )
    for kind, path in modules:
        place, root = (folder / path).resolve(), folder.resolve()
        if not place.is_relative_to(root) or kind == "Transformer" and place != root:
            raise Unsupported(
                f"{MODULES_FILE} has the {kind} in {path!r}. Supported: the "
                "Transformer in the folder itself, and the others in folders inside it."
            )
    pooling = _read(folder / dict(modules)["Pooling"] / POOLING_FILE)
    options = {
        "pooling": _pooling(pooling),
        "normalize": "Normalize" in kinds,
    }
    prompts = _read(folder / PROMPTS_FILE)
    if prompts.get("default_prompt_name"):
        raise Unsupported(
            f"default_prompt_name={prompts['default_prompt_name']!r} is not supported: "
            "give texts with what is to stand before them."
        )
    texts = prompts.get("prompts")
    named = [n for n, x in texts.items() if x] if isinstance(texts, dict) else []
    if named and pooling.get("include_prompt") is False:
        raise Unsupported(
            f"include_prompt=False of {POOLING_FILE} is not supported, for kzoo does "
            f"not know where the prompts {named} end."
        )
    kept = {name: prompts[name] for name in _KEPT if prompts.get(name)}
    if kept:
        options["settings"] = kept
    settings = _read(folder / LENGTH_FILE)
    if settings.get("do_lower_case"):
        raise Unsupported(f"do_lower_case=True of {LENGTH_FILE} is not supported.")
    length = settings.get("max_seq_length")
    if length is not None:
        stack = config.encoder or config.decoder
        if stack.positions == "learned":
            length = min(length, stack.max_sequence_length)
        options["max_length"] = length
    return options


def write_pooling(task, folder):
    """Writes these files for a `SentenceEmbedder`.

    Args:
        task: the `SentenceEmbedder`.
        folder: a `Path`, that of its model.
    """
    places = [*_PLACES.items()][: 3 if task.normalize else 2]
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": path,
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, (kind, path) in enumerate(places)
    ]
    pooling = {"word_embedding_dimension": task.stack.config.hidden_dim}
    pooling |= {key: kind == task.pooling for kind, key in _KINDS.items()}
    length = {"max_seq_length": task.max_length, "do_lower_case": False}
    for _, path in places:
        (folder / path).mkdir(exist_ok=True)
    contents = {
        MODULES_FILE: modules,
        f"{_PLACES['Pooling']}/{POOLING_FILE}": pooling,
        LENGTH_FILE: length,
    }
    if task.settings:
        contents[PROMPTS_FILE] = task.settings
    for path, content in contents.items():
        text = json.dumps(content, indent=2) + "\n"
        (folder / path).write_text(text, encoding="utf-8")


def _modules(folder):
    """Kinds of the modules, and their folders."""
    found = _read(folder / MODULES_FILE, list)
    for module in found:
        named = isinstance(module, dict) and (module.get("type"), module.get("path"))
        if not named or not all(isinstance(each, str) for each in named):
            raise ValueError(
                f"{folder / MODULES_FILE} must hold objects with a type and a path. "
                f"Received: {module!r}."
            )
    return [(m["type"].rpartition(".")[2], m["path"]) for m in found]


def _pooling(keys):
    """The kind of pooling that a file asks for."""
    if "pooling_mode" in keys:
        named = keys["pooling_mode"]
        if named in _NAMES:
            return _NAMES[named]
    else:
        switches = {k for k, v in keys.items() if k.startswith("pooling_mode_") and v}
        kinds = [kind for kind, key in _KINDS.items() if switches == {key}]
        if kinds:
            return kinds[0]
        named = sorted(switches)
    raise Unsupported(
        f"pooling_mode={named!r} is not supported. Supported: {list(_NAMES)}."
    )


def _read(path, kind=dict):
    """What a JSON file holds; an empty dict, or list, where there is none."""
    return read_json(path, kind) if path.is_file() else kind()
