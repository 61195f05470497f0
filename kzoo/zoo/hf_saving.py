"""`save_hf`: a task as a folder in Hugging Face's layout."""

import json
import warnings
from pathlib import Path

from kzoo import tasks
from kzoo.checkpoints.engine import tensors_of
from kzoo.checkpoints.files import is_weights, save_tensors
from kzoo.checkpoints.generation_config import write_generation
from kzoo.checkpoints.hf_config import Unsupported
from kzoo.families import MODULES, family_of
from kzoo.files import beside
from kzoo.layers.lora import lora_merged
from kzoo.tasks.saving import CONFIG_FILE
from kzoo.tasks.weights_file import stored
from kzoo.tokenizers import save_pretrained_tokenizer
from kzoo.tokenizers.hf_folder import (
    MODEL_FILES,
    TEMPLATE_FILE,
    TEMPLATES_FOLDER,
    family_name,
)
from kzoo.tokenizers.hf_saving import named_padding
from kzoo.zoo.hf_keys import ACTIVATIONS, GENERATING, GENERATION_FILE, LABELLED, NUMBER
from kzoo.zoo.pretrained import as_loaded, tied
from kzoo.zoo.sentence_transformers import write_pooling

# What a folder in this layout may hold beside weights: the files' whole names, since
# others are the user's own.
_FILES = {
    *MODEL_FILES,
    TEMPLATE_FILE,
    "1_Pooling/config.json",
    "added_tokens.json",
    "config.json",
    "config_sentence_transformers.json",
    "generation_config.json",
    "modules.json",
    "sentence_bert_config.json",
    "special_tokens_map.json",
    "tokenizer_config.json",
}


def save_hf(task, folder, family=None, max_shard_bytes=5 * 10**9):
    """Writes a task in Hugging Face's layout, for transformers, vLLM and others.

    Args:
        task: a kzoo task.
        folder: made when missing.
        family: a `model_type`; by default that of the checkpoint that it was loaded
            from, or the first one that can say its config.
        max_shard_bytes: of a file of weights; more are written beside it.

    Returns:
        The `model_type`.

    Raises:
        ValueError: no family, or not this one, can say the config or has the head;
            nothing is written.
    """
    name = type(task).__name__
    loaded = task.loaded
    family = family or (loaded and loaded.family)
    reasons = {}
    for candidate in [family] if family else MODULES:
        described = family_of(candidate)
        try:
            head = described.head(name)
            if head is None:
                raise Unsupported(f"kzoo knows no head of {name} there.")
            keys = described.write_config(task.config)
            _write_options(described, name, task, keys)
            break
        except ValueError as error:
            reasons[candidate] = str(error)
    else:
        raise ValueError(f"{task.name} cannot be saved as {reasons}.")
    with lora_merged(task):
        variables = {k: stored(v) for k, v in task.named_variables().items()}
        prefix = "" if task.head is None else described.prefix_of(name)
        tensors = tensors_of(
            described, name, variables, task.config, tied(task), prefix
        )
        keys |= _described(task, name) | {"architectures": [head.architecture]}
        files = {CONFIG_FILE: keys}
        if name in GENERATING:
            files[GENERATION_FILE] = _generation(task)
        before, now = loaded and loaded.said.get("as"), as_loaded(task)
        if before and before == {key: now.get(key) for key in before}:
            # Nothing of it has changed: it is written in the words in which it came.
            own = dict(loaded.said["config"])
            if name not in GENERATING:  # transformers finds the last token with it
                own.pop("pad_token_id", None)
            keys |= own
            if loaded.said["generation"]:
                files[GENERATION_FILE] = loaded.said["generation"]
        _write(task, Path(folder), tensors, files, max_shard_bytes)
    if described.model_type == "qwen2" and task.tokenizer is not None:
        _warn_of_class(task.tokenizer)
    return described.model_type


def _warn_of_class(tokenizer):
    """transformers 5 makes any tokenizer of Qwen2 anew, with that one's rules."""
    own = tokenizer.conventions.settings.get("tokenizer_class")
    if family_name(own) != "Qwen2":
        warnings.warn(
            "transformers' AutoTokenizer reads every tokenizer of model_type='qwen2' "
            "as Qwen2's own, and so may give other ids than this one. Read it with "
            "transformers.PreTrainedTokenizerFast.from_pretrained.",
            stacklevel=3,
        )


def _write(task, folder, tensors, files, max_shard_bytes):
    """Writes all files in a hidden folder of the folder, then moves them out."""
    with beside(folder / CONFIG_FILE) as partial:
        scratch = partial / "model"
        save_tensors(scratch, tensors, max_shard_bytes)
        for name, content in files.items():
            text = json.dumps(content, indent=2) + "\n"
            (scratch / name).write_text(text, "utf-8")
        if isinstance(task, tasks.SentenceEmbedder):
            write_pooling(task, scratch)
        if task.tokenizer is not None:
            generates = type(task).__name__ in GENERATING
            tokenizer = task.tokenizer if generates else named_padding(task.tokenizer)
            segments = "segment_ids" in task._signature()
            if tokenizer.conventions.template not in (None, task.template):
                tokenizer = tokenizer.with_conventions(template=task.template)
            save_pretrained_tokenizer(tokenizer, scratch, task.template, segments)
        written = {path.relative_to(scratch) for path in scratch.rglob("*")}
        # Without it, which comes last, a folder is no model: none is a mixture of two.
        (folder / CONFIG_FILE).unlink(missing_ok=True)
        for path in _model_files(folder):  # of a model that stood there before
            if path.relative_to(folder) not in written:
                path.unlink()
        for path in sorted(written, key=lambda path: (path.name == CONFIG_FILE, path)):
            target = folder / path
            if (scratch / path).is_dir():
                target.mkdir(exist_ok=True)
            else:
                (scratch / path).replace(target)


def _model_files(folder):
    """The files of a folder that are a model's."""
    found = [folder / name for name in _FILES]
    found += [path for path in folder.iterdir() if is_weights(path.name)]
    found += folder.glob(f"{TEMPLATES_FOLDER}/*.jinja")
    return [path for path in found if path.is_file()]


def _described(task, name):
    """Keys of what is neither of the config nor of the head's options."""
    keys = {
        "dtype": task.variable_dtype,
        "is_encoder_decoder": task.config.architecture == "encoder_decoder",
    }
    if name in LABELLED:
        labels = task.labels or [f"LABEL_{i}" for i in range(task.num_classes)]
        keys["id2label"] = {str(i): label for i, label in enumerate(labels)}
        keys["label2id"] = {label: i for i, label in enumerate(labels)}
    if name in NUMBER:
        keys |= {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    if name == "TextRegressor":
        keys["problem_type"] = "regression"
    if name == "PairScorer":
        inverse = {own: theirs for theirs, own in ACTIVATIONS.items()}
        named = inverse[task.output_activation]
        keys["sentence_transformers"] = {"activation_fn": named}
    return keys


def _generation(task):
    """What `generation_config.json` holds."""
    stops = [*task.search_defaults.get("stop_tokens", ()), *task.own_stops]
    searches = {**task.search_defaults, **({"stop_tokens": stops} if stops else {})}
    if len(task.target_prefix) == 1:
        forced = {**searches.get("forced_tokens", {}), 0: task.target_prefix[0]}
        searches["forced_tokens"] = forced
    keys, unsaid = write_generation(searches, task.config, task.tokenizer)
    if len(task.target_prefix) > 1:
        unsaid = {**unsaid, "target_prefix": task.target_prefix}
    if unsaid:
        warnings.warn(
            f"{GENERATION_FILE} has no keys for these search_defaults, so they are "
            f"not saved: {unsaid}.",
            stacklevel=3,
        )
    return keys


def _write_options(family, name, task, keys):
    """Adds the keys of a task's head to those of its config.

    Raises:
        Unsupported: the family's head has not what the task has.
    """
    for rule in family.head(name).rules:
        for key, value in rule.write(lambda field: getattr(task, field)).items():
            if keys.setdefault(key, value) != value:
                raise Unsupported(
                    f"{key} is one thing for the stack and the head. "
                    f"Received: {keys[key]!r} and {value!r}."
                )
    for option, value in family.head_options(name, keys).items():
        own = getattr(task, option)
        if own != value and option != "head_dropout":
            raise Unsupported(
                f"model_type={family.model_type!r} has a {name} with "
                f"{option}={value!r}. Received: {own!r}."
            )
