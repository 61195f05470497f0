"""`from_preset`: a checkpoint's folder as a task; `save_hf`: a task as a folder."""

import dataclasses
import json
import math
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import keras

from kzoo import tasks
from kzoo.checkpoints.engine import (
    LoadReport,
    check_sizes,
    has_own_head,
    load_weights,
    tensors_of,
)
from kzoo.checkpoints.files import (
    is_weights,
    open_file,
    open_tensors,
    save_tensors,
)
from kzoo.checkpoints.generation_config import (
    OLDER,
    check_generation,
    read_generation,
    write_generation,
)
from kzoo.checkpoints.hf_config import Unsupported
from kzoo.checkpoints.hub import local_folder
from kzoo.config import DROPOUT_RATES
from kzoo.families import MODULES, family_of
from kzoo.generation import as_defaults
from kzoo.layers.base import make_initializer
from kzoo.layers.blank import blank_weights, fill
from kzoo.layers.lora import lora_merged
from kzoo.tasks.task import (
    CONFIG_FILE,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    load_task,
    read_folder,
)
from kzoo.tasks.weights_file import check_shapes, read_into, stored
from kzoo.tokenizers import (
    load_pretrained_tokenizer,
    load_tokenizer,
    save_pretrained_tokenizer,
)
from kzoo.tokenizers.hf_folder import (
    TEMPLATES_FOLDER,
    has_pretrained_tokenizer,
    read_json,
)
from kzoo.tokenizers.hf_saving import named_padding
from kzoo.zoo.progress import shown
from kzoo.zoo.registry import TASKS, check_preset, located
from kzoo.zoo.sentence_transformers import is_embedder, read_pooling, write_pooling

GENERATION_FILE = "generation_config.json"
_GENERATING = ("CausalLM", "Seq2SeqLM")
# Of keys that say what head there is.
_TYPES = {
    "architectures": (list,),
    "id2label": (dict, list),
    "num_labels": (int,),
    "classifier_dropout": (float, int),
    "problem_type": (str,),
    "model_type": (str,),
}
_LABELLED = ("TextClassifier", "TokenClassifier")
# Sequence classifiers of one number.
_NUMBER = ("TextRegressor", "PairScorer")
# What sentence-transformers names as the activation of a cross-encoder's score.
_ACTIVATIONS = {
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
    "torch.nn.modules.linear.Identity": None,
}
_DTYPES = ("float32", "bfloat16", "float16")
_SIZE = {"labels", "num_classes"}  # of which one says how large a head is
_IDS = ("pad_token_id", "start_token_id", "end_token_id")
# Keys of special tokens, which kzoo may have to see in another way.
_SPECIAL = (
    "bos_token_id",
    "decoder_start_token_id",
    "eos_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "pad_token_id",
)
# What a folder in this layout may hold beside weights: the files' whole names, since
# others are the user's own.
_MODEL_FILES = {
    "1_Pooling/config.json",
    "added_tokens.json",
    "chat_template.jinja",
    "config.json",
    "config_sentence_transformers.json",
    "generation_config.json",
    "merges.txt",
    "modules.json",
    "sentence_bert_config.json",
    "sentencepiece.bpe.model",
    "source.spm",
    "special_tokens_map.json",
    "spiece.model",
    "target.spm",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
}


def from_preset(
    source,
    task=None,
    dtype=None,
    *,
    revision=None,
    token=None,
    tokenizer=None,
    **options,
):
    """A task with the weights of a checkpoint.

    Args:
        source: the name of a preset that kzoo ships (`kzoo.list_presets()`), such as
            `"multi30k-en-de"`; a folder that `save_folder` or `save_preset` wrote, or
            one in Hugging Face's layout; or `hf://owner/name@revision`, which
            huggingface_hub loads and keeps. A folder wins over a preset of its name.
        task: a key of `TASKS`, such as `"text_classifier"`; by default what the
            checkpoint was made for.
        dtype: of the weights and what is computed, such as `"bfloat16"`, or a Keras
            policy; `"auto"` is the checkpoint's. `None` means Keras's, float32.
        revision: of a repository, instead of `@revision`.
        token: for a repository that needs one.
        tokenizer: instead of the checkpoint's.
        **options: arguments of the task, such as `num_classes`, `labels`, `max_length`;
            they win over the checkpoint's. `labels` in another order than there order
            the head; those of other names have a new one. And the rates that training
            may need others of: `dropout`, `attention_dropout`, `feed_forward_dropout`.

    Returns:
        The task. What a `generation_config.json` says, or older keys of `config.json`,
        are a language model's `search_defaults`, see
        `kzoo.checkpoints.generation_config`; keys that cannot be followed are a
        warning. `loaded` says which variables are new (a head that the checkpoint
        lacks, with a warning) and which tensors were not needed.

    Raises:
        ValueError: an unknown task or family; a checkpoint of a head that kzoo has not,
            where no task is given; a key of the config that kzoo does not know, or
            cannot compute; weights that do not fit, all of them named; a file
            of a preset that is not as it was written.
        FileNotFoundError: no such folder or preset, or a file is missing in it.

    Example:
        >>> tagger = kzoo.from_preset("ewt-pos")
        >>> tagger.tag(["The dog sleeps ."])
        [['DET', 'NOUN', 'VERB', 'PUNCT']]
    """
    folder = Path(local_folder(located(source), revision=revision, token=token))
    check_preset(folder, whole=not str(source).startswith("hf://"))
    if options.get("labels") is not None:
        options["labels"] = list(options["labels"])
    keys = read_json(folder / CONFIG_FILE)
    for name, kinds in _TYPES.items():
        if not isinstance(keys.get(name), (*kinds, type(None))):
            expected = " or ".join(kind.__name__ for kind in kinds)
            raise ValueError(
                f"{folder / CONFIG_FILE}: {name} must be {expected}. "
                f"Received: {keys[name]!r}."
            )
    if task is not None and task not in TASKS:
        raise ValueError(f"task must be one of {sorted(TASKS)}. Received: {task!r}.")
    rates = {name: options.pop(name) for name in DROPOUT_RATES if name in options}
    if "model_type" not in keys:
        name = task and TASKS[task]
        return _from_own(folder, name, dtype, tokenizer, rates, options)
    try:
        family = family_of(keys["model_type"])
        config = family.read_config(keys)
    except ValueError as error:
        raise ValueError(f"{folder / CONFIG_FILE}: {error}") from error
    keys["num_labels"] = keys.get("num_labels") or family.num_labels
    config = config.replace_in_stacks(**rates)
    stored = _stored_task(family, keys, folder)
    name = TASKS[task] if task is not None else stored or _default(family, keys, folder)
    said = None
    if name in _GENERATING:
        said = _said_of_searches(folder, family, keys, config)
    if tokenizer is None and has_pretrained_tokenizer(folder):
        tokenizer = load_pretrained_tokenizer(folder, family.tokenizer)
    size = (config.decoder or config.encoder).vocabulary_size
    made_up = config.pad_token_id in (size - 1, size - 2)  # see `special_ids`
    if (
        tokenizer is None
        and made_up
        and keys.get("pad_token_id") in (None, keys.get("eos_token_id"))
    ):
        warnings.warn(
            f"{source} names no padding, or the end of a text as padding: id "
            f"{config.pad_token_id} stands for it, and is left out of lists of ids. "
            "Give a tokenizer, or a padding mask beside ids.",
            stacklevel=2,
        )
    searches, config = _searches(folder, said, config, tokenizer)
    given, own_size = options, bool(_SIZE & set(options))
    labels = (_names(keys), given.get("labels"))
    options = family.head_options(name, keys)
    if not own_size:
        options |= _labels(name, keys)
    if name == "SentenceEmbedder":
        options |= read_pooling(folder, config)
    options = {**options, **searches, **given}
    with open_tensors(folder) as tensors:
        if dtype == "auto":
            dtype = _dtype(family, keys, tensors)
        if family.tied_by_file and name in _GENERATING:
            own = has_own_head(family, name, tensors, config)
            config = config.replace(tie_head=not own)
        check_sizes(family, name, config, tensors)
        with blank_weights():
            kind = getattr(tasks, name)
            try:
                made = kind(config, tokenizer=tokenizer, dtype=dtype, **options)
            except MemoryError as error:
                raise ValueError(
                    f"The model of {folder / 'config.json'} is too large: {error} "
                    "Expected sizes as the checkpoint's tensors have them."
                ) from error
        variables = made.named_variables()
        with shown(fill, variables.values()) as fill_and_show:
            report = load_weights(
                family,
                name,
                variables,
                tensors,
                made.config,
                _tied(made),
                fill_and_show,
                new_head=own_size or stored not in (None, name),
                other_head=family.head(name)
                if _are_others(*labels)
                else _other_head(family, name, keys),
            )
    written = said if (folder / GENERATION_FILE).is_file() else None
    said = {k: keys[k] for k in _SPECIAL if k in keys}
    said = {"config": said, "generation": written}
    made.loaded = dataclasses.replace(report, said={**said, "as": _as_loaded(made)})
    _order_head(made, *labels)
    _begin_new(made)
    _warn_of_new(made, source)
    return made


def _as_loaded(task):
    """What special tokens and searches are, for a look at whether they changed."""
    ids = {name: getattr(task.config, name) for name in _IDS}
    searches = dict(getattr(task, "search_defaults", {}))
    return json.loads(json.dumps({**ids, "searches": searches}))


def _without_size(options, given):
    """Options without the labels, where those given say the size of the head."""
    if not _SIZE & set(given):
        return options
    return {name: value for name, value in options.items() if name not in _SIZE}


def _are_others(stored, asked):
    """Whether labels are asked for that a stored head has not learned.

    Args:
        stored: the checkpoint's labels, or `None`.
        asked: the labels given, or `None`.
    """
    if not stored or not asked or stored == [f"LABEL_{i}" for i in range(len(stored))]:
        return False  # a head without names, as transformers counts them, is named now
    return set(stored) != set(asked)


def _order_head(task, stored, asked):
    """Puts what a loaded head learned of each label where the label is now."""
    if not stored or not asked or set(stored) != set(asked) or stored == asked:
        return
    places, variables = [stored.index(label) for label in asked], task.named_variables()
    for path in ("head/output/kernel", "head/output/bias"):
        if path in variables and path not in task.loaded.new:
            variable = variables[path]
            variable.assign(keras.ops.take(variable.value, places, axis=-1))


def _begin_new(task):
    """Draws new kernels, which began as zeros."""
    draw = make_initializer(task.config.decoder or task.config.encoder)
    variables = task.named_variables()
    for path in task.loaded.new:
        if path.endswith("/kernel"):
            variables[path].assign(draw(variables[path].shape))


def _from_own(folder, name, dtype, tokenizer, rates, options):
    """The task of a folder that `save_folder` wrote, or another one on its stacks."""
    described, kind, config = read_folder(folder)
    config = config.replace_in_stacks(**rates)
    same = name is None or getattr(tasks, name) is kind
    kind = kind if same else getattr(tasks, name)
    own = described["options"] if same else {}
    labels = (own.get("labels"), options.get("labels"))
    if tokenizer is None and (folder / TOKENIZER_FILE).is_file():
        tokenizer = load_tokenizer(folder)
    path = folder / WEIGHTS_FILE
    adapted = described["fine_tuning"]
    if adapted and not same:
        # Of the adapters another task has the sums.
        made = kind(config, tokenizer=tokenizer, dtype=dtype, **options)
        return _on_stacks_of(load_task(folder), made)
    with open_file(path) as file, blank_weights():
        dtype = described.get("dtype") if dtype == "auto" else dtype
        made = kind(
            config,
            tokenizer=tokenizer,
            dtype=dtype,
            **{**_without_size(own, options), **options},
        )
        made.set_fine_tuning(adapted)
        variables = made.named_variables()

        def fits(name):
            if name.startswith("head/output/") and _are_others(*labels):
                return False
            return name in file and file.shape(name) == tuple(variables[name].shape)

        new = [k for k in variables if k.startswith("head/")]
        if same:
            new = [k for k in new if options and not fits(k)]
        kept = {k: v for k, v in variables.items() if k not in new}
        shapes = {k: tuple(v.shape) for k, v in kept.items()}
        check_shapes(file, shapes, path, made.name, others=not same or bool(new))
        with shown(fill, kept.values()) as fill_and_show:
            for name, variable in kept.items():
                read_into(variable, file, name, fill_and_show)
    loaded = described["loaded"]
    made.loaded = LoadReport(
        loaded.get("family"), tuple(sorted(new)), (), loaded.get("said", {})
    )
    _order_head(made, *labels)
    _begin_new(made)
    _warn_of_new(made, folder)
    return made


def _on_stacks_of(saved, made):
    made.load_encoder(saved)
    new = [path for path in made.named_variables() if path.startswith("head/")]
    made.loaded = LoadReport(None, tuple(sorted(new)), ())
    _warn_of_new(made, saved.name)
    return made


def _warn_of_new(task, source):
    if task.loaded.new:
        warnings.warn(
            f"{source} has no weights for {list(task.loaded.new)}: they are new, and "
            "have to be trained.",
            stacklevel=3,
        )


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
        variables = {k: _Stored(*stored(v)) for k, v in task.named_variables().items()}
        prefix = "" if task.head is None else described.prefix_of(name)
        tensors = tensors_of(
            described, name, variables, task.config, _tied(task), prefix
        )
        keys |= _described(task, name) | {"architectures": [head.architecture]}
        files = {CONFIG_FILE: keys}
        if name in _GENERATING:
            files[GENERATION_FILE] = _generation(task)
        if _as_loaded(task) == (loaded.said.get("as") if loaded else None):
            # Nothing of it has changed: it is written in the words in which it came.
            own = dict(loaded.said["config"])
            if name not in _GENERATING:  # transformers finds the last token with it
                own.pop("pad_token_id", None)
            keys |= own
            if loaded.said["generation"]:
                files[GENERATION_FILE] = loaded.said["generation"]
        _write(task, Path(folder), tensors, files, max_shard_bytes)
    return described.model_type


def _write(task, folder, tensors, files, max_shard_bytes):
    """Writes all files beside the folder, then moves them there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        dir=folder.parent, prefix=f".{folder.name}."
    ) as scratch:
        scratch = Path(scratch) / "model"
        save_tensors(scratch, tensors, max_shard_bytes)
        for name, content in files.items():
            text = json.dumps(content, indent=2) + "\n"
            (scratch / name).write_text(text, "utf-8")
        if isinstance(task, tasks.SentenceEmbedder):
            write_pooling(task, scratch)
        if task.tokenizer is not None:
            generates = type(task).__name__ in _GENERATING
            tokenizer = task.tokenizer if generates else named_padding(task.tokenizer)
            save_pretrained_tokenizer(tokenizer, scratch)
        folder.mkdir(exist_ok=True)
        written = {path.relative_to(scratch) for path in scratch.rglob("*")}
        for path in _model_files(folder):  # of a model that stood there before
            if path.relative_to(folder) not in written:
                path.unlink()
        for path in sorted(written):
            target = folder / path
            if (scratch / path).is_dir():
                target.mkdir(exist_ok=True)
            else:
                (scratch / path).replace(target)


def _model_files(folder):
    """The files of a folder that are a model's."""
    found = [folder / name for name in _MODEL_FILES]
    found += [path for path in folder.iterdir() if is_weights(path.name)]
    found += folder.glob(f"{TEMPLATES_FOLDER}/*.jinja")
    return [path for path in found if path.is_file()]


def _described(task, name):
    """Keys of what is neither of the config nor of the head's options."""
    keys = {
        "dtype": task.variable_dtype,
        "is_encoder_decoder": task.config.architecture == "encoder_decoder",
    }
    if name in _LABELLED:
        labels = task.labels or [f"LABEL_{i}" for i in range(task.num_classes)]
        keys["id2label"] = {str(i): label for i, label in enumerate(labels)}
        keys["label2id"] = {label: i for i, label in enumerate(labels)}
    if name in _NUMBER:
        keys |= {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    if name == "TextRegressor":
        keys["problem_type"] = "regression"
    if name == "PairScorer":
        inverse = {own: theirs for theirs, own in _ACTIVATIONS.items()}
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


class _Stored(NamedTuple):
    """A variable as `tensors_of` reads it."""

    shape: tuple
    dtype: Any
    read: Callable


def _stored_task(family, keys, folder):
    """The task that a checkpoint was made for, `None` where none of kzoo's is named."""
    if is_embedder(folder):
        return "SentenceEmbedder"
    named = family.named_heads(_architectures(keys))
    if named and named[0] == "TextClassifier" and _count(keys) == 1:
        return _NUMBER[_activation_name(keys) is not None]
    return named[0] if named else None


def _default(family, keys, folder):
    """The task of a checkpoint that names none.

    Raises:
        ValueError: it names one that kzoo has not.
    """
    unknown = family.unknown_heads(_architectures(keys))
    if unknown:
        known = [head.architecture for head in family.heads.values()]
        own = [key for key, name in TASKS.items() if family.head(name)]
        raise ValueError(
            f"{folder / CONFIG_FILE}: architectures names {unknown[0]}, a head that "
            f"kzoo has not for model_type={family.model_type!r}. Expected: one of "
            f"{known}. For another one on the same stacks say task=, one of {own}."
        )
    return next(iter(family.heads))


def _architectures(keys):
    """Names of classes, of which older files have none."""
    named = keys.get("architectures") or []
    return [named] if isinstance(named, str) else [str(each) for each in named]


def _other_head(family, name, keys):
    """The `Head` of a checkpoint, unless it is that of the task."""
    head = family.head(name)
    if name == "TextClassifier" and _has_several(keys):
        return head  # its layer gives other numbers than one class
    named = [family.heads[each] for each in family.named_heads(_architectures(keys))]
    return None if head in named else next(iter(named), None)


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


def _said_of_searches(folder, family, keys, config):
    """What a checkpoint says about searches.

    Raises:
        ValueError: a value of another type than is expected, or an id outside of the
            vocabulary; the file is named.
    """
    path = folder / GENERATION_FILE
    if path.is_file():
        said = read_json(path)
    else:
        path = folder / CONFIG_FILE
        said = {**family.searches, **{n: v for n, v in keys.items() if n in OLDER}}
        if keys.get("force_bos_token_to_be_generated"):
            said["forced_bos_token_id"] = keys.get("bos_token_id", 0)
        said["eos_token_id"] = keys.get("eos_token_id")
    try:
        check_generation(said, (config.decoder or config.encoder).vocabulary_size)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return said


def _searches(folder, said, config, tokenizer):
    """Options of a task for what the checkpoint says about searches, and its config."""
    if said is None:
        return {}, config
    found, ends, left = read_generation(said, config.encoder is None)
    if left:
        warnings.warn(
            f"generate does not follow what {folder} says about searches: {left}.",
            stacklevel=3,
        )
    start = said.get("decoder_start_token_id")
    if config.encoder and start is not None:
        config = config.replace(start_token_id=start)
    size = (config.decoder or config.encoder).vocabulary_size
    if ends and min(ends) >= size:
        warnings.warn(
            f"The model of {folder} cannot write its end: expected an eos_token_id in "
            f"[0, {size}). Received: {ends}. Here texts end at id "
            f"{config.end_token_id}, too early where it comes.",
            stacklevel=3,
        )
    ends = [token_id for token_id in ends if token_id < size]
    if ends and ends[0] != config.pad_token_id:
        config = config.replace(end_token_id=ends[0])
    if tokenizer is not None:
        # What a target begins with, such as a language, and how texts end, are the
        # tokenizer's to say, which read the same files.
        forced = {k: v for k, v in found.pop("forced_tokens", {}).items() if k != 0}
        found |= {"forced_tokens": forced} if forced else {}
    elif len(ends) > 1:
        found["stop_tokens"] = ends[1:]
    try:
        as_defaults(found)
    except ValueError as error:
        raise ValueError(f"What {folder} says about searches: {error}") from error
    return ({"search_defaults": found} if found else {}), config


def _labels(name, keys):
    """Labels of the config, where the task has some, or what its number is."""
    if name == "TextClassifier" and _has_several(keys):
        raise Unsupported(
            f"problem_type={keys['problem_type']!r} with {_count(keys)} labels is not "
            f"supported: {name} gives a text one class. For a new head give labels=."
        )
    if name == "PairScorer" and _count(keys) == 1:
        named = _activation_name(keys) or next(iter(_ACTIVATIONS))
        if named not in _ACTIVATIONS:
            raise Unsupported(
                f"activation_fn={named!r} is not supported. "
                f"Supported: {list(_ACTIVATIONS)}."
            )
        return {"output_activation": _ACTIVATIONS[named]}
    if name not in _LABELLED:
        return {}
    labels = keys.get("id2label")
    if not labels:
        return {"num_classes": _count(keys)}
    if None in _names(keys):
        raise Unsupported(f"id2label must name 0 to {len(labels) - 1}: {labels}.")
    return {"labels": _names(keys)}


def _names(keys):
    """The labels of a config in order, with `None` where it names other places."""
    labels = keys.get("id2label") or {}
    if not isinstance(labels, dict):
        return [None] * len(labels)
    return [labels.get(str(i)) for i in range(len(labels))]


def _has_several(keys):
    """Whether a classifier gives a text several numbers or classes."""
    kind = keys.get("problem_type")
    several = kind == "regression" and _count(keys) > 1
    return several or kind == "multi_label_classification"


def _count(keys):
    """How many labels a config has."""
    return len(keys.get("id2label") or ()) or keys["num_labels"]


def _activation_name(keys):
    """What a config says of a cross-encoder's score, or `None`."""
    own = keys.get("sentence_transformers") or {}
    return own.get("activation_fn") or keys.get("sbert_ce_default_activation_function")


def _tied(task):
    """The path of the table that is the head, too."""
    if not task.config.tie_head:
        return None
    table = (task.decoder or task.encoder).token_embedding.embeddings
    own = task.named_variables()
    return next((path for path, variable in own.items() if variable is table), None)


def _dtype(family, keys, tensors):
    """The dtype that a config names, or that of most of the weights."""
    named = str(keys.get("dtype") or keys.get("torch_dtype")).removeprefix("torch.")
    if named in _DTYPES:
        return named
    sizes = dict.fromkeys(_DTYPES, 0)
    for name in tensors:
        dtype = tensors.dtype(name)
        if dtype.name in sizes and not family.is_no_weight(name):
            sizes[dtype.name] += math.prod(tensors.shape(name)) * dtype.itemsize
    return max(sizes, key=sizes.get)
