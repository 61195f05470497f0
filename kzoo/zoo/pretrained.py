"""`from_preset`: a checkpoint's folder as a task."""

import dataclasses
import json
import warnings
from pathlib import Path

import keras

from kzoo import tasks
from kzoo.checkpoints.engine import LoadReport, check_sizes, has_own_head, load_weights
from kzoo.checkpoints.files import open_file, open_tensors
from kzoo.checkpoints.hub import local_folder
from kzoo.config import DROPOUT_RATES
from kzoo.families import family_of
from kzoo.layers.base import make_initializer
from kzoo.layers.blank import blank_weights, fill
from kzoo.tasks.saving import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    load_task,
    read_folder,
    read_tokenizer,
)
from kzoo.tasks.weights_file import check_shapes, read_into
from kzoo.tokenizers import load_pretrained_tokenizer
from kzoo.tokenizers.hf_folder import has_pretrained_tokenizer, read_json
from kzoo.zoo.hf_keys import (
    GENERATING,
    GENERATION_FILE,
    default_task,
    dtype_of,
    label_names,
    labels_of,
    other_head,
    said_of_searches,
    searches_of,
    stored_task,
)
from kzoo.zoo.progress import shown
from kzoo.zoo.registry import TASKS, check_preset, located
from kzoo.zoo.sentence_transformers import read_pooling

# Of keys that say what head there is.
_TYPES = {
    "architectures": (list,),
    "id2label": (dict, list),
    "num_labels": (int,),
    "classifier_dropout": (float, int),
    "problem_type": (str,),
    "model_type": (str,),
}
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
    stored = stored_task(family, keys, folder)
    name = (
        TASKS[task]
        if task is not None
        else stored or default_task(family, keys, folder)
    )
    said = said_of_searches(folder, family, config) if name in GENERATING else None
    other = tokenizer is not None
    if not other and has_pretrained_tokenizer(folder):
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
    searches, config = searches_of(folder, said, config, tokenizer)
    if other and config.architecture == "encoder_decoder":
        known = config.start_token_id, *tokenizer.conventions.languages.values()
        if tokenizer.start_token_id not in known:
            tokenizer = tokenizer.starting_with(config.start_token_id)
    given, own_size = options, bool(_SIZE & set(options))
    labels = (label_names(keys), given.get("labels"))
    options = family.head_options(name, keys)
    if not own_size:
        options |= labels_of(name, keys)
    if name == "SentenceEmbedder":
        options |= read_pooling(folder, config)
    options = {**options, **searches, **given}
    with open_tensors(folder) as tensors:
        if dtype == "auto":
            dtype = dtype_of(family, keys, tensors)
        if family.tied_by_file and name in GENERATING:
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
                tied(made),
                fill_and_show,
                new_head=own_size or stored not in (None, name),
                other_head=family.head(name)
                if _are_others(*labels)
                else other_head(family, name, keys),
            )
    words = {
        "config": {k: keys[k] for k in _SPECIAL if k in keys},
        "generation": said if (folder / GENERATION_FILE).is_file() else None,
    }
    if not (other and _tells_another(tokenizer, said)):
        words["as"] = as_loaded(made)  # while it is so, these are saved again
    made.loaded = dataclasses.replace(report, said=words)
    _order_head(made, *labels)
    _begin_new(made)
    _warn_of_new(made, source)
    return made


def _tells_another(tokenizer, said):
    """Whether a tokenizer was told another language than a checkpoint's files say."""
    codes = {*tokenizer.conventions.languages.values()}
    told = {tokenizer.start_token_id, *tokenizer.conventions.target_prefix} & codes
    keys = ("forced_bos_token_id", "decoder_start_token_id")
    return bool(told - {(said or {}).get(key) for key in keys})


def as_loaded(task):
    """What special tokens and searches are, for a look at whether they changed."""
    ids = {name: getattr(task.config, name) for name in _IDS}
    searches = dict(getattr(task, "search_defaults", {}))
    own = {n: [*getattr(task, n, ())] for n in ("target_prefix", "own_stops")}
    start = task.tokenizer and task.tokenizer.start_token_id
    found = {**ids, **own, "start": start, "searches": searches}
    return json.loads(json.dumps(found))


def tied(task):
    """The path of the table that is the head, too."""
    if not task.config.tie_head:
        return None
    table = (task.decoder or task.encoder).token_embedding.embeddings
    own = task.named_variables()
    return next((path for path, variable in own.items() if variable is table), None)


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
    if _SIZE & set(options):  # which say how large the head is
        own = {name: value for name, value in own.items() if name not in _SIZE}
    if tokenizer is None:
        tokenizer = read_tokenizer(folder, described)
    path = folder / WEIGHTS_FILE
    adapted = described["fine_tuning"]
    if adapted and not same:
        # Of the adapters another task has the sums.
        made = kind(config, tokenizer=tokenizer, dtype=dtype, **options)
        return _on_stacks_of(load_task(folder), made)
    with open_file(path) as file, blank_weights():
        dtype = described.get("dtype") if dtype == "auto" else dtype
        own = {**own, **options}
        made = kind(config, tokenizer=tokenizer, dtype=dtype, **own)
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
