"""What the files of a Hugging Face tokenizer say, and whose class they are of."""

import json
import re
from pathlib import Path
from typing import Literal

from tokenizers import AddedToken

from kzoo.tokenizers.conventions import CONFIG_FILE, SPECIAL_IDS

Kind = Literal[
    "wordpiece",
    "byte_bpe",
    "sentencepiece",
    "fairseq_sentencepiece",
    "pegasus",
    "marian",
    "m2m100",
]

FAST_FILE = "tokenizer.json"
# Of chat templates beside the default one, a file each.
TEMPLATES_FOLDER = "additional_chat_templates"
DEFAULT_TEMPLATE, TEMPLATE_FILE = "default", "chat_template.jinja"
# The files of each layout, as alternatives, the first of which is written.
LAYOUT_FILES = {
    "wordpiece": [["vocab.txt"]],
    "byte_bpe": [["vocab.json"], ["merges.txt"]],
    "sentencepiece": [["tokenizer.model", "spiece.model", "sentencepiece.bpe.model"]],
    "fairseq_sentencepiece": [["sentencepiece.bpe.model", "spiece.model"]],
    "pegasus": [["spiece.model"]],
    "marian": [["vocab.json"], ["source.spm"], ["target.spm"]],
    "m2m100": [["vocab.json"], ["sentencepiece.bpe.model"]],
}
MODEL_FILES = {FAST_FILE}.union(*(n for each in LAYOUT_FILES.values() for n in each))
# Special tokens that a folder of old may leave to the class that reads it.
_BERT = dict(unk="[UNK]", sep="[SEP]", pad="[PAD]", cls="[CLS]", mask="[MASK]")
_ROBERTA = dict(
    bos="<s>",
    eos="</s>",
    sep="</s>",
    cls="<s>",
    unk="<unk>",
    pad="<pad>",
    mask="<mask>",
)
_GPT2 = dict.fromkeys(("bos", "eos", "unk"), "<|endoftext|>")
_T5 = dict(eos="</s>", unk="<unk>", pad="<pad>")
_LLAMA = dict(bos="<s>", eos="</s>", unk="<unk>")
_GEMMA = dict(bos="<bos>", eos="<eos>", unk="<unk>", pad="<pad>", mask="<mask>")
_ALBERT = dict(_BERT, bos="[CLS]", eos="[SEP]", unk="<unk>", pad="<pad>")
_NAMES = {
    **dict.fromkeys(("Bert", "DistilBert", "Electra", "MobileBert", "MPNet"), _BERT),
    **dict.fromkeys(("Roberta", "Bart", "Longformer", "LED"), _ROBERTA),
    **dict.fromkeys(("XLMRoberta", "MBart", "Nllb"), _ROBERTA),
    "MBart50": {role: name for role, name in _ROBERTA.items() if role != "bos"},
    "M2M100": dict(_T5, bos="<s>", sep="</s>"),
    "GPT2": _GPT2,
    "GPTNeoX": _GPT2,
    "T5": _T5,
    "Marian": _T5,
    "Pegasus": dict(_T5, mask="<mask_2>"),
    "Llama": _LLAMA,
    "Gemma": _GEMMA,
    "Albert": _ALBERT,
}
# Whose tokenizer a `model_type` of config.json has, where no class is named.
_CLASSES = {
    **dict.fromkeys(("bert", "distilbert", "electra"), "Bert"),
    **dict.fromkeys(("roberta", "bart"), "Roberta"),
    **dict.fromkeys(("gpt2", "opt", "gpt_neox"), "GPT2"),
    **dict.fromkeys(("t5", "mt5", "umt5"), "T5"),
    **dict.fromkeys(("llama", "mistral", "phi3"), "Llama"),
    **dict.fromkeys(("gemma", "gemma2", "gemma3", "gemma3_text"), "Gemma"),
    **dict.fromkeys(("qwen2", "qwen3"), "Qwen2"),
    "modernbert": "ModernBert",
    "albert": "Albert",
    "xlm-roberta": "XLMRoberta",
    "mbart": "MBart",
    "marian": "Marian",
    "pegasus": "Pegasus",
    "m2m_100": "M2M100",
}
# Which classes each layout is of; the first where nothing says which.
_OF_LAYOUT = {
    "wordpiece": ("Bert", "DistilBert", "Electra", "MobileBert"),
    "byte_bpe": ("GPT2", "Roberta", "Bart", "Longformer", "LED"),
    "sentencepiece": ("T5", "Llama", "Gemma"),
    "fairseq_sentencepiece": ("XLMRoberta", "MBart", "MBart50", "Nllb"),
    "pegasus": ("Pegasus",),
    "marian": ("Marian",),
    "m2m100": ("M2M100",),
}
# Which classes follow their settings where a tokenizer.json says how texts are made
# uniform, and how they are split; the others, and the library's own, follow the file.
NORMALIZING = tuple(name for name, own in _NAMES.items() if own is _BERT)
SPLITTING = ("GPT2", "Roberta", "Bart", "Longformer", "LED", "Qwen2", "GPTNeoX")
GENERIC = ("PreTrained", "TokenizersBackend")  # of no family
# Whose texts have segments in transformers 5 where the settings do not name inputs.
SEGMENTED = ("Bert", "Electra", "MobileBert")
SEGMENTS = "token_type_ids"
INPUTS = ("input_ids", SEGMENTS, "attention_mask")
MOST_IDS = 2**24  # ids: a file that claims more would take all memory
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
ROLE_KEYS = {f"{role}_token" for role in ROLES}


def has_pretrained_tokenizer(folder):
    """Whether a folder has a file that `load_pretrained_tokenizer` reads."""
    return any((Path(folder) / name).exists() for name in MODEL_FILES)


def is_laid_out(folder, kind):
    """Whether all files of a layout are there."""
    return all(
        any((Path(folder) / name).exists() for name in names)
        for names in LAYOUT_FILES[kind]
    )


def read_json(path, kind=dict):
    """What a JSON file holds, an object or, with `kind=list`, a list.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it holds something else; the file is named.
    """
    if not path.is_file():
        raise FileNotFoundError(f"No {path.name} in {path.parent}.")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, kind):
        expected = "an object" if kind is dict else f"a {kind.__name__}"
        raise ValueError(
            f"{path} must hold {expected}. Received: {type(found).__name__}."
        )
    return found


def searches_said(folder):
    """The one file that says how a model is searched, and its keys.

    It is `generation_config.json`, or `config.json` of older checkpoints.
    """
    path = folder / "generation_config.json"
    if path.is_file():
        return path, read_json(path)
    path = folder / "config.json"
    keys = read_json(path) if path.is_file() else {}
    if keys.get("force_bos_token_to_be_generated"):  # BART's
        keys["forced_bos_token_id"] = keys.get("bos_token_id", 0)
    return path, keys


class TokenizerFolder:
    """What the JSON files of a folder say."""

    def __init__(self, path, kind):
        self.path = Path(path)
        self.config = self.json("config.json")
        self.generation = self.json("generation_config.json")
        self.searches = searches_said(self.path)[1]
        self.settings = self.json(CONFIG_FILE)
        if set(SPECIAL_IDS) <= set(self.settings) and "kind" in self.settings:
            raise ValueError(
                f"{self.path} was written by Tokenizer.save: read it with "
                "load_tokenizer."
            )
        if "added_tokens_decoder" not in self.settings:
            mapped = self.json("special_tokens_map.json").items()
            self.settings |= {name: _typed(token) for name, token in mapped}
        if isinstance(self.settings.get("additional_special_tokens"), dict):
            named = self.settings.pop("additional_special_tokens")  # as now written
            self.settings["extra_special_tokens"] = (
                self.settings.get("extra_special_tokens") or named
            )
        self.name = self._class(kind)
        names = dict(_NAMES.get(self.name, {}))
        self.names = {role: names.get(role) for role in ROLES}
        said = self.settings | named_tokens(self.settings)
        for role in ROLES:
            if f"{role}_token" in said:
                self.names[role] = content_of(said[f"{role}_token"])
        self.added = self._added()

    def _class(self, kind):
        """Whose tokenizer it is, such as "Bert", or `None`."""
        name = self.settings.get("tokenizer_class") or self.config.get(
            "tokenizer_class"
        )
        if name:
            name = family_name(name)
        of_model = _CLASSES.get(self.config.get("model_type"))
        self.makes = name or of_model  # which class reads a tokenizer.json
        if not name or name in GENERIC:
            name = of_model
            if name == "M2M100" and kind == "fairseq_sentencepiece":
                name = "Nllb"
            if name == "MBart" and self.settings.get("language_codes") == "ML50":
                name = "MBart50"
        if kind is None or (self.path / FAST_FILE).exists():
            return name
        allowed = _OF_LAYOUT[kind]
        if name is None:
            name = allowed[0]
            if kind == "byte_bpe" and "<|endoftext|>" not in self.json("vocab.json"):
                name = "Roberta"
        if name not in allowed:
            raise ValueError(
                f"The files of {name}Tokenizer in {self.path} cannot be read exactly "
                f"as {kind!r}, which is of {list(allowed)}. Save the tokenizer with "
                "transformers as tokenizer.json, which is read as it is."
            )
        return name

    def _added(self):
        """id -> AddedToken of the files, and special ones without an id."""
        tokens = {}
        for token_id, token in self.settings.get("added_tokens_decoder", {}).items():
            tokens[int(token_id)] = added_token(token)
        extra = [content_of(token) for token in self.extra]
        for name, token_id in self.json("added_tokens.json").items():
            special = name in extra or name in self.names.values()
            own = AddedToken(name, special=special, normalized=not special)
            tokens.setdefault(token_id, own)
        if any(not 0 <= token_id <= MOST_IDS for token_id in tokens):
            raise ValueError(
                f"Added tokens of {self.path} must have ids in [0, {MOST_IDS}]. "
                f"Received: {max(tokens)}."
            )
        return dict(sorted(tokens.items()))

    @property
    def extra(self):
        """More special tokens, as they stand in the settings."""
        return [*self.named.values(), *self.listed]

    @property
    def named(self):
        """Those of them that have a name, as they stand in the settings, by it."""
        every = named_tokens(self.settings)
        return {name: token for name, token in every.items() if name not in ROLE_KEYS}

    @property
    def listed(self):
        """Those without a name, as they stand in the settings."""
        keys = "additional_special_tokens", "extra_special_tokens"
        some = [self.settings.get(key) for key in keys]
        return [token for each in some if isinstance(each, list) for token in each]

    @property
    def stated(self):
        """All special tokens as they stand in the settings, strings or dicts."""
        return [*named_tokens(self.settings).values(), *self.listed]

    @property
    def special(self):
        """Names of all special tokens."""
        named = [name for name in self.names.values() if name]
        added = [str(token.content) for token in self.added.values() if token.special]
        return list(dict.fromkeys([*named, *map(content_of, self.extra), *added]))

    @property
    def has_segments(self):
        """Whether texts have the segments that stand in a template.

        Where the settings do not name inputs, a class of a family leaves them to the
        model; another one, which transformers 5 reads with its class for all, has none.
        """
        said = self.settings.get("model_input_names")
        if said is not None:
            return SEGMENTS in said
        return self.makes in (None, *_NAMES, *_CLASSES.values())

    def json(self, name):
        """A file's dict, or an empty one where there is none."""
        path = self.path / name
        return read_json(path) if path.exists() else {}

    def file(self, kind, index):
        """The path of one of a layout's files."""
        names = LAYOUT_FILES[kind][index]
        for name in names:
            if (self.path / name).exists():
                return self.path / name
        raise FileNotFoundError(
            f"{self.path} holds none of {names}, which tokenizers of the kind {kind!r} "
            "are read from."
        )

    def chat_templates(self):
        """Fields of `Conventions`: the default template, or `None`, and the others."""
        found = self.settings.get("chat_template")
        if isinstance(found, list):  # several, each with a name
            found = {each["name"]: each["template"] for each in found}
        found = dict(found) if isinstance(found, dict) else {DEFAULT_TEMPLATE: found}
        wrong = [name for name in found if not re.fullmatch(r"\w[\w.-]*", name)]
        if wrong:  # they become names of files
            raise ValueError(
                f"Chat templates of {self.path} must have names of letters, digits, "
                f"dots and dashes. Received: {wrong}."
            )
        files = {
            path.stem: path for path in self.path.glob(f"{TEMPLATES_FOLDER}/*.jinja")
        }
        files[DEFAULT_TEMPLATE] = self.path / TEMPLATE_FILE
        files = {name: path for name, path in files.items() if path.exists()}
        if files:  # then transformers reads no others
            found = {n: read_text(path) for n, path in sorted(files.items())}
        default = found.pop(DEFAULT_TEMPLATE, None)
        return {"chat_template": default, "named_templates": found}

    def number(self, name):
        """An id of the model's configs, or `None`; that for generation comes first."""
        found = *_ids(self.generation, name), *_ids(self.config, name)
        return next(iter(found), None)

    def searched(self, name):
        """Ids of what is said of searches."""
        return _ids(self.searches, name)


def _ids(config, name):
    found = config.get(name)
    found = found if isinstance(found, list) else [found]
    return [] if None in found else found


def family_name(tokenizer_class):
    """Such as "Bert" of "BertTokenizerFast"."""
    return re.sub(r"Tokenizer(Fast)?$", "", str(tokenizer_class))


def _typed(token):
    """A token of a special_tokens_map.json as the other file has one."""
    is_one = isinstance(token, dict) and "content" in token
    return {"__type": "AddedToken", **token} if is_one else token


def named_tokens(settings):
    """Special tokens as they stand in the settings, by the names that templates know.

    Such as "bos_token", and "image_token" of models that read more than text.
    """
    found = {
        name: token
        for name, token in settings.items()
        if name.endswith("_token")
        and token
        and (
            isinstance(token, str)
            or isinstance(token, dict)
            and (name in ROLE_KEYS or "__type" in token)
        )
    }
    extra = settings.get("extra_special_tokens")
    found |= extra if isinstance(extra, dict) else {}
    if not set(found) - ROLE_KEYS:  # else these are replaced
        found |= settings.get("model_specific_special_tokens") or {}
    return found


def content_of(token):
    """The name of a special token, which files hold as a string or a dict."""
    return token["content"] if isinstance(token, dict) else token


def added_token(token):
    """The library's form of such a token."""
    names = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
    if isinstance(token, str):
        return AddedToken(token, special=True, normalized=False)
    return AddedToken(**{name: token[name] for name in names if name in token})


def read_text(path):
    """The text of a file; a `ValueError` names one that is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}") from error
