"""Tokenizers as Hugging Face folders, which transformers reads."""

import itertools
import json
from pathlib import Path

import tokenizers

from kzoo.tokenizers.base import Tokenizer
from kzoo.tokenizers.conventions import CONFIG_FILE, Template
from kzoo.tokenizers.fast import FastTokenizer
from kzoo.tokenizers.hf_folder import (
    DEFAULT_TEMPLATE,
    FAST_FILE,
    INPUTS,
    LAYOUT_FILES,
    ROLE_KEYS,
    SEGMENTED,
    TEMPLATE_FILE,
    TEMPLATES_FOLDER,
    family_name,
)
from kzoo.tokenizers.pretrained import template_of


def named_padding(tokenizer: Tokenizer) -> Tokenizer:
    """A copy whose settings name its padding, where its files named none or the end.

    transformers makes no batch of texts without it.
    """
    pad = tokenizer.pad_token_id
    if pad is None or pad == tokenizer.original_pad_token_id:
        return tokenizer
    (piece,) = tokenizer.tokens([pad])
    settings = {**tokenizer.conventions.settings, "pad_token": piece}
    return tokenizer.with_conventions(settings=settings)


def save_pretrained_tokenizer(
    tokenizer: Tokenizer, folder, template=None, segments=False
):
    """Writes a folder that transformers' `AutoTokenizer` reads, with equal ids.

    Args:
        tokenizer: one that `load_pretrained_tokenizer` read, which is written in the
            layout that it had, or a `FastTokenizer`.
        folder: made when missing.
        template: a `Template` for a tokenizer that has none; by default start and end
            token stand around a text, as kzoo's encoders read it.
        segments: whether the model reads segments, which most classes of transformers
            give only where the settings name them.

    Raises:
        ValueError: transformers has no layout for such a tokenizer.
    """
    conventions, folder = tokenizer.conventions, Path(folder)
    layout, settings = conventions.layout, dict(conventions.settings)
    files = {}
    if isinstance(tokenizer, FastTokenizer):
        files[FAST_FILE] = _json_with_template(tokenizer, template, segments)
        if layout is None:
            settings = _own_settings(tokenizer)
    elif layout is None:
        raise ValueError(
            f"transformers has no layout for {tokenizer!r}, whose model's ids are "
            "kzoo's own. Train a FastTokenizer, or give the model token ids."
        )
    else:
        names = [each[0] for each in LAYOUT_FILES[layout]]
        if settings.get("tokenizer_class", "").startswith("T5"):
            names = ["spiece.model"]
        for name in names:
            files[name] = _content_of(tokenizer, name)
    if segments and family_name(settings.get("tokenizer_class")) not in SEGMENTED:
        settings.setdefault("model_input_names", list(INPUTS))
    files |= _templates(conventions, settings)
    named = ROLE_KEYS | {"additional_special_tokens"}
    special = {name: value for name, value in settings.items() if name in named}
    folder.mkdir(parents=True, exist_ok=True)
    files[CONFIG_FILE] = _text(settings)
    files["special_tokens_map.json"] = _text(special)
    for name, content in files.items():
        content = content if isinstance(content, bytes) else content.encode("utf-8")
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)


def _templates(conventions, settings):
    """Files of chat templates; settings say the same, for programs that read these."""
    default, named = conventions.chat_template, conventions.named_templates
    if settings.get("chat_template") == default and not named:
        return {}
    files = {f"{TEMPLATES_FOLDER}/{name}.jinja": text for name, text in named.items()}
    every = {**({DEFAULT_TEMPLATE: default} if default else {}), **named}
    if default:
        files[TEMPLATE_FILE] = default
    settings.pop("chat_template", None)
    if named:
        each = [{"name": name, "template": text} for name, text in every.items()]
        settings["chat_template"] = each
    return files


def _content_of(tokenizer, name):
    """A file of a SentencePiece layout."""
    if name == "target.spm":
        return tokenizer._target.serialized_model_proto()
    if name != "vocab.json":
        return tokenizer._model_bytes()
    # Codes of languages, and what is added, follow what M2M100's file lists.
    codes = {f"__{code}__" for code in tokenizer.languages}
    pieces = itertools.takewhile(lambda piece: piece not in codes, tokenizer.pieces)
    return _text({p: i for i, p in enumerate(pieces) if p is not None})


def _json_with_template(tokenizer, template, segments):
    described = json.loads(tokenizer._model_text())
    described |= tokenizer.conventions.batching
    own = tokenizer.conventions.template
    if own is not None:
        library = tokenizers.Tokenizer.from_str(tokenizer._model_text())
        found = template_of(library)
        if found == own or not segments and found.in_one_segment() == own:
            return _text(described)
    elif template is not None:
        own = template
    else:
        start, end = tokenizer.start_token_id, tokenizer.end_token_id
        own = Template.of([start], [end], [end])
    names = {i: tokenizer._tokenizer.id_to_token(i) for i in own.ids()}
    described["post_processor"] = own.processor(names)
    return _text(described)


def _own_settings(tokenizer):
    """Of a tokenizer that kzoo trained."""
    names = dict(bos="start", eos="end", pad="pad", unk="unknown", mask="mask")
    found = {"tokenizer_class": "PreTrainedTokenizerFast"}
    for role, name in names.items():
        token_id = getattr(tokenizer, f"{name}_token_id")
        if token_id is not None:
            found[f"{role}_token"] = tokenizer._tokenizer.id_to_token(token_id)
    return {**found, "clean_up_tokenization_spaces": False}


def _text(content):
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
