"""What a checkpoint's files say of its head, its labels and its searches."""

import math
import warnings

from kzoo.checkpoints.generation_config import OLDER, check_generation, read_generation
from kzoo.checkpoints.hf_config import Unsupported
from kzoo.generation import as_defaults
from kzoo.tasks.saving import CONFIG_FILE
from kzoo.tokenizers.hf_folder import searches_said
from kzoo.zoo.registry import TASKS
from kzoo.zoo.sentence_transformers import is_embedder

GENERATION_FILE = "generation_config.json"
GENERATING = ("CausalLM", "Seq2SeqLM")
LABELLED = ("TextClassifier", "TokenClassifier")
# Sequence classifiers of one number.
NUMBER = ("TextRegressor", "PairScorer")
# What sentence-transformers names as the activation of a cross-encoder's score.
ACTIVATIONS = {
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
    "torch.nn.modules.linear.Identity": None,
}
_DTYPES = ("float32", "bfloat16", "float16")


def stored_task(family, keys, folder):
    """The task that a checkpoint was made for, `None` where none of kzoo's is named."""
    if is_embedder(folder):
        return "SentenceEmbedder"
    named = family.named_heads(_architectures(keys))
    if named and named[0] == "TextClassifier" and _count(keys) == 1:
        return NUMBER[_activation_name(keys) is not None]
    return named[0] if named else None


def default_task(family, keys, folder):
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


def other_head(family, name, keys):
    """The `Head` of a checkpoint, unless it is that of the task."""
    head = family.head(name)
    if name == "TextClassifier" and _has_several(keys):
        return head  # its layer gives other numbers than one class
    named = [family.heads[each] for each in family.named_heads(_architectures(keys))]
    return None if head in named else next(iter(named), None)


def said_of_searches(folder, family, config):
    """What a checkpoint says about searches.

    Raises:
        ValueError: a value of another type than is expected, or an id outside of the
            vocabulary; the file is named.
    """
    path, said = searches_said(folder)
    if path.name == CONFIG_FILE:
        known = {*OLDER, "eos_token_id"}
        said = {**family.searches, **{n: v for n, v in said.items() if n in known}}
    try:
        check_generation(said, (config.decoder or config.encoder).vocabulary_size)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return said


def searches_of(folder, said, config, tokenizer):
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
    known = [config.end_token_id]
    if tokenizer is not None:  # whose own end always ends
        conventions = tokenizer.conventions
        known = tokenizer.end_token_id, *conventions.stop_token_ids
        if conventions.target_prefix:  # the language that it has been told
            forced = {k: v for k, v in found.pop("forced_tokens", {}).items() if k != 0}
            found |= {"forced_tokens": forced} if forced else {}
    if {*ends} - {*known}:
        found["stop_tokens"] = [token_id for token_id in ends if token_id not in known]
    try:
        as_defaults(found)
    except ValueError as error:
        raise ValueError(f"What {folder} says about searches: {error}") from error
    return ({"search_defaults": found} if found else {}), config


def labels_of(name, keys):
    """Labels of the config, where the task has some, or what its number is."""
    if name == "TextClassifier" and _has_several(keys):
        raise Unsupported(
            f"problem_type={keys['problem_type']!r} with {_count(keys)} labels is not "
            f"supported: {name} gives a text one class. For a new head give labels=."
        )
    if name == "PairScorer" and _count(keys) == 1:
        named = _activation_name(keys) or next(iter(ACTIVATIONS))
        if named not in ACTIVATIONS:
            raise Unsupported(
                f"activation_fn={named!r} is not supported. "
                f"Supported: {list(ACTIVATIONS)}."
            )
        return {"output_activation": ACTIVATIONS[named]}
    if name not in LABELLED:
        return {}
    labels = keys.get("id2label")
    if not labels:
        return {"num_classes": _count(keys)}
    if None in label_names(keys):
        raise Unsupported(f"id2label must name 0 to {len(labels) - 1}: {labels}.")
    return {"labels": label_names(keys)}


def label_names(keys):
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


def dtype_of(family, keys, tensors):
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
