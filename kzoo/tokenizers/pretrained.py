"""Tokenizers of Hugging Face folders: read exactly, and written back."""

import json
import re
from pathlib import Path
from typing import Literal, get_args

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from kzoo.tokenizers.base import CONFIG_FILE, SPECIAL_IDS, Tokenizer
from kzoo.tokenizers.conventions import Conventions, Template
from kzoo.tokenizers.converted import CLASSES, converted
from kzoo.tokenizers.fast import FastTokenizer
from kzoo.tokenizers.sentence_piece import SentencePieceTokenizer

Kind = Literal[
    "wordpiece",
    "byte_bpe",
    "sentencepiece",
    "fairseq_sentencepiece",
    "pegasus",
    "marian",
    "m2m100",
]

_FAST = "tokenizer.json"
# Of chat templates beside the default one, a file each.
TEMPLATES_FOLDER = "additional_chat_templates"
_DEFAULT, _TEMPLATE = "default", "chat_template.jinja"
# The files of each layout, as alternatives, the first of which is written.
_FILES = {
    "wordpiece": [["vocab.txt"]],
    "byte_bpe": [["vocab.json"], ["merges.txt"]],
    "sentencepiece": [["tokenizer.model", "spiece.model", "sentencepiece.bpe.model"]],
    "fairseq_sentencepiece": [["sentencepiece.bpe.model", "spiece.model"]],
    "pegasus": [["spiece.model"]],
    "marian": [["vocab.json"], ["source.spm"], ["target.spm"]],
    "m2m100": [["vocab.json"], ["sentencepiece.bpe.model"]],
}
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
_GEMMA = dict(bos="<bos>", eos="<eos>", unk="<unk>", pad="<pad>")
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
_NORMALIZING = tuple(name for name, own in _NAMES.items() if own is _BERT)
_SPLITTING = ("GPT2", "Roberta", "Bart", "Longformer", "LED", "Qwen2", "GPTNeoX")
_MOST = 2**24  # ids: a file that claims more would take all memory
_BATCHING = ("padding", "truncation")
_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
# Codes of languages in the order of their ids, for folders that do not list them.
_MBART = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ "
    "ko_KR lt_LT lv_LV my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"
).split()
_MBART50 = (
    "af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN "
    "pl_PL ps_AF pt_XX sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES "
    "sl_SI"
).split()
_M2M100 = {
    "m2m100": (
        "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr "
        "fy ga gd gl gu ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb "
        "lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si "
        "sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu"
    ).split(),
    "wmt21": "en ha is ja cs ru zh de".split(),
}
_LANGUAGE = re.compile(
    r"__(?P<m2m>[a-z]{2,3})__|>>(?P<marian>[^<>]+)<<"
    r"|(?P<own>[a-z]{2,3}_([A-Z]{2}|[A-Z][a-z]{3}))"
)


def has_pretrained_tokenizer(folder):
    """Whether a folder has a file that `load_pretrained_tokenizer` reads."""
    layouts = [[[_FAST]], *_FILES.values()]
    names = {name for files in layouts for names in files for name in names}
    return any((Path(folder) / name).exists() for name in names)


def load_pretrained_tokenizer(
    folder, kind: Kind | tuple[Kind, ...] | None = None, *, convert: bool = True
) -> Tokenizer:
    """Reads the tokenizer of a Hugging Face folder.

    Its ids are those that the class which the folder names gives in transformers 5, but
    for names of special tokens in a text, which are text here; and it knows what stands
    around texts, see `Conventions`. A `tokenizer.json` is read where there is one.
    Llama's and Gemma's models have a start token in front where the settings say so.

    Args:
        folder: with the tokenizer's files.
        kind: how the files are laid out where there is no `tokenizer.json`:
            `"wordpiece"` (`vocab.txt`), `"byte_bpe"` (`vocab.json`, `merges.txt`),
            `"sentencepiece"` (a model with its own ids), `"fairseq_sentencepiece"`
            (ids shifted by one, as XLM-R, mBART and NLLB have them), `"pegasus"`
            (shifted by 103), `"marian"` (two models, one table) or `"m2m100"` (one).
            Of several it is the first one whose files are there, or the last one.
        convert: a SentencePiece model becomes a `FastTokenizer`, as in transformers 5
            (but of Marian and M2M-100, which stay there, too). Else SentencePiece
            reads it, which gives other ids for some odd texts; where ids are the
            model's own, it can stand in artifacts of text.

    Raises:
        FileNotFoundError: there is no tokenizer, or a file of it is missing.
        ValueError: a file is not what it should be; kzoo's own `Tokenizer.save` wrote
            the folder; or nothing reads such a tokenizer exactly, and it is said what.
    """
    if isinstance(kind, tuple):
        kind = next((each for each in kind if _is_laid_out(folder, each)), kind[-1])
    if kind is not None and kind not in get_args(Kind):
        raise ValueError(
            f"kind must be one of {list(get_args(Kind))}, or None. Received: {kind!r}."
        )
    try:
        return _loaded(_Folder(folder, kind), kind, convert)
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        # A value of another type than these files have, anywhere in them.
        raise ValueError(
            f"The files of {folder} are no tokenizer's: {type(error).__name__}: {error}"
        ) from error


def _is_laid_out(folder, kind):
    """Whether all files of a layout are there."""
    return all(
        any((Path(folder) / name).exists() for name in names) for names in _FILES[kind]
    )


def _loaded(folder, kind, convert):
    if (folder.path / _FAST).exists():
        tokenizer = _from_json(folder, kind)
    elif kind is None:
        raise FileNotFoundError(
            f"{folder.path} holds no tokenizer.json. Say with kind= how its files are "
            f"to be read: one of {list(get_args(Kind))}."
        )
    else:
        build = {"wordpiece": _wordpiece, "byte_bpe": _byte_bpe}
        if kind in build:
            tokenizer = build[kind](folder, kind)
        else:
            tokenizer = _sentence_piece(folder, kind, convert)
    source, target = (folder.settings.get(f"{side}_lang") for side in ("src", "tgt"))
    if tokenizer.languages and kind != "marian" and (source or target):
        tokenizer = tokenizer.for_languages(source, target)
    known = tokenizer.conventions
    prefix, forced = known.target_prefix, folder.number("forced_bos_token_id")
    if forced is not None and forced != tokenizer.start_token_id:
        prefix = (forced,)  # what generate begins with there, whatever the settings say
    if not prefix and not known.languages and folder.config.get("is_encoder_decoder"):
        prefix = known.template.around()[0]  # BART's targets are as its sources
    ends = folder.numbers("eos_token_id")
    ends = [i for i in ends if i != tokenizer.end_token_id]
    ends = [i for i in ends if 0 <= i < tokenizer.vocabulary_size]
    return tokenizer.with_conventions(target_prefix=prefix, stop_token_ids=ends)


def read_json(path):
    """The object of a JSON file.

    Raises:
        FileNotFoundError: there is none.
        ValueError: not an object of JSON; the file is named.
    """
    if not path.is_file():
        raise FileNotFoundError(f"No {path.name} in {path.parent}.")
    try:
        keys = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(keys, dict):
        raise ValueError(
            f"{path} must hold an object. Received: {type(keys).__name__}."
        )
    return keys


class _Folder:
    """What the JSON files of a folder say."""

    def __init__(self, path, kind):
        self.path = Path(path)
        self.config = self.json("config.json")
        self.generation = self.json("generation_config.json")
        self.settings = self.json(CONFIG_FILE)
        if set(SPECIAL_IDS) <= set(self.settings) and "kind" in self.settings:
            raise ValueError(
                f"{self.path} was written by Tokenizer.save: read it with "
                "load_tokenizer."
            )
        if "added_tokens_decoder" not in self.settings:
            self.settings = self.settings | self.json("special_tokens_map.json")
        self.name = self._class(kind)
        names = dict(_NAMES.get(self.name, {}))
        self.names = {role: names.get(role) for role in _ROLES}
        for role in _ROLES:
            if f"{role}_token" in self.settings:
                self.names[role] = _content(self.settings[f"{role}_token"])
        self.added = self._added()

    def _class(self, kind):
        """Whose tokenizer it is, such as "Bert", or `None`."""
        name = self.settings.get("tokenizer_class") or self.config.get(
            "tokenizer_class"
        )
        if name:
            name = re.sub(r"Tokenizer(Fast)?$", "", str(name))
        of_model = _CLASSES.get(self.config.get("model_type"))
        self.makes = name or of_model  # which class reads a tokenizer.json
        if not name or name in ("PreTrained", "TokenizersBackend"):
            name = of_model
            if name == "M2M100" and kind == "fairseq_sentencepiece":
                name = "Nllb"
            if name == "MBart" and self.settings.get("language_codes") == "ML50":
                name = "MBart50"
        if kind is None or (self.path / _FAST).exists():
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
            tokens[int(token_id)] = _added_token(token)
        extra = [_content(token) for token in self.extra]
        for name, token_id in self.json("added_tokens.json").items():
            special = name in extra or name in self.names.values()
            own = AddedToken(name, special=special, normalized=not special)
            tokens.setdefault(token_id, own)
        if any(not 0 <= token_id <= _MOST for token_id in tokens):
            raise ValueError(
                f"Added tokens of {self.path} must have ids in [0, {_MOST}]. "
                f"Received: {max(tokens)}."
            )
        return dict(sorted(tokens.items()))

    @property
    def extra(self):
        """More special tokens, as they stand in the settings."""
        found = []
        for key in ("additional_special_tokens", "extra_special_tokens"):
            some = self.settings.get(key) or []
            found += some.values() if isinstance(some, dict) else some
        return found

    @property
    def stated(self):
        """All special tokens as they stand in the settings, strings or dicts."""
        roles = (self.settings.get(f"{role}_token") for role in _ROLES)
        return [token for token in (*roles, *self.extra) if token]

    @property
    def special(self):
        """Names of all special tokens."""
        named = [name for name in self.names.values() if name]
        added = [str(token.content) for token in self.added.values() if token.special]
        return list(dict.fromkeys([*named, *map(_content, self.extra), *added]))

    def json(self, name):
        """A file's dict, or an empty one where there is none."""
        path = self.path / name
        return read_json(path) if path.exists() else {}

    def file(self, kind, index):
        """The path of one of a layout's files."""
        names = _FILES[kind][index]
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
        found = dict(found) if isinstance(found, dict) else {_DEFAULT: found}
        wrong = [name for name in found if not re.fullmatch(r"\w[\w.-]*", name)]
        if wrong:  # they become names of files
            raise ValueError(
                f"Chat templates of {self.path} must have names of letters, digits, "
                f"dots and dashes. Received: {wrong}."
            )
        files = {
            path.stem: path for path in self.path.glob(f"{TEMPLATES_FOLDER}/*.jinja")
        }
        files[_DEFAULT] = self.path / _TEMPLATE
        files = {name: path for name, path in files.items() if path.exists()}
        if files:  # then transformers reads no others
            found = {n: _read_text(path) for n, path in sorted(files.items())}
        default = found.pop(_DEFAULT, None)
        return {"chat_template": default, "named_templates": found}

    def numbers(self, name):
        """Ids of the model's configs; those for generation come first."""
        for config in (self.generation, self.config):
            found = config.get(name)
            found = found if isinstance(found, list) else [found]
            if found and None not in found:
                return found
        return []

    def number(self, name):
        """The first of them, or `None`."""
        return next(iter(self.numbers(name)), None)


def _content(token):
    return token["content"] if isinstance(token, dict) else token


def _added_token(token):
    names = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
    if isinstance(token, str):
        return AddedToken(token, special=True, normalized=False)
    return AddedToken(**{name: token[name] for name in names if name in token})


def _special_ids(folder, id_of, template, kind):
    """The five ids of kzoo's tokenizers, from names and the model's configs."""
    ids = {role: id_of(name) if name else None for role, name in folder.names.items()}
    start = folder.number("decoder_start_token_id")
    decoders_start = {"T5": "pad", "Marian": "pad", "Pegasus": "pad"}
    decoders_start |= dict.fromkeys(("MBart", "MBart50", "Nllb", "M2M100"), "eos")
    if start is None and folder.name in decoders_start:
        start = ids[decoders_start[folder.name]]
    if start is None:
        before = template.around()[0] if template else []
        start = next(iter(before), ids["bos"])
    start = folder.number("bos_token_id") if start is None else start
    end = ids["sep"] if ids["eos"] is None else ids["eos"]
    end = folder.number("eos_token_id") if end is None else end
    # A class that needs one names the end as the unknown token, which no text becomes.
    unknown = None if ids["unk"] in (start, end) else ids["unk"]
    return dict(
        pad_token_id=ids["pad"],
        start_token_id=start,
        end_token_id=end,
        unknown_token_id=unknown,
        mask_token_id=ids["mask"],
    )


def _padding(ids, id_of, special, byte_level):
    """An id for padding that no text has.

    Where files name none, or the end token, as those of GPT-2 and Llama do, that would
    hide where sequences end: kzoo masks padding by its id. UTF-8 has no byte 0xFF, so
    the piece of that byte stands in no text; nor does a token that is reserved.
    """
    pad = ids["pad_token_id"]
    if pad is not None and pad != ids["end_token_id"]:
        return pad
    named = [name for name in special if re.search("pad(ding)?[^a-z]", name)]
    kept = [name for name in special if re.search("reserved|unused", name)]
    byte = "\N{LATIN SMALL LETTER Y WITH DIAERESIS}" if byte_level else "<0xFF>"
    used = {token_id for name, token_id in ids.items() if name != "pad_token_id"}
    for name in (*named, byte, *kept):
        found = id_of(name)
        if found is not None and found not in used:
            return found
    return None


def _languages(names):
    """dict from a language's name to its id, of pieces and ids."""
    found = {}
    for name, token_id in names.items():
        code = _LANGUAGE.fullmatch(name)
        if code:
            found[code["m2m"] or code["marian"] or code["own"]] = token_id
    return found


# Tokenizers of the `tokenizers` library.


def _from_json(folder, kind):
    path = folder.path / _FAST
    library = _asked(path, lambda: tokenizers.Tokenizer.from_str(_read_text(path)))
    described = json.loads(library.to_str())
    # Some classes make these parts anew, of settings and their own defaults.
    normalizer, splitter = described["normalizer"], described["pre_tokenizer"]
    if folder.makes in _NORMALIZING and _type(normalizer) == "BertNormalizer":
        for name, key, default in (
            ("do_lower_case", "lowercase", True),
            ("strip_accents", "strip_accents", None),
            ("tokenize_chinese_chars", "handle_chinese_chars", True),
        ):
            normalizer[key] = folder.settings.get(name, default)
    if folder.makes in _SPLITTING and _type(splitter) == "ByteLevel":
        splitter["add_prefix_space"] = bool(folder.settings.get("add_prefix_space"))
    batching = {name: described[name] for name in _BATCHING if described[name]}
    if json.loads(library.to_str()) != described:
        library = tokenizers.Tokenizer.from_str(json.dumps(described))
    library.no_padding()
    library.no_truncation()
    template = _asked(path, lambda: _template_of(library))
    return _fast(folder, library, "fast", template, batching)


def _type(part):
    return part and part["type"]


def _asked(path, function):
    """What a function of the library gives, whose errors are bare, or panics."""
    try:
        return function()
    except BaseException as error:
        panics = type(error).__name__ == "PanicException"
        if not (panics or isinstance(error, Exception)):
            raise
        raise ValueError(f"{path} is not a tokenizer.json: {error}") from error


def _read_text(path):
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}") from error


def _wordpiece(folder, kind):
    lines = _read_text(folder.file(kind, 0)).split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    vocabulary = {piece.rstrip("\r"): i for i, piece in enumerate(lines)}
    settings, names = folder.settings, folder.names
    library = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=names["unk"]))
    library.normalizer = normalizers.BertNormalizer(
        lowercase=settings.get("do_lower_case", True),
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
    )
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece(prefix="##")
    start, end = (_known(vocabulary, names[role]) for role in ("cls", "sep"))
    template = Template.of([start], [end], [end], segments=(0, 1))
    return _fast(folder, library, kind, template)


def _byte_bpe(folder, kind):
    vocabulary = folder.json(folder.file(kind, 0).name)
    lines = _read_text(folder.file(kind, 1)).split("\n")
    lines = lines[1:] if lines[0].startswith("#version") else lines
    merges = [tuple(line.rstrip("\r").split(" ")) for line in lines if line.strip()]
    library = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=bool(folder.settings.get("add_prefix_space"))
    )
    library.decoder = decoders.ByteLevel()
    names = folder.names
    if folder.name == "GPT2":
        template = _begun(folder, lambda name: _known(vocabulary, name))
    else:
        start, end = (_known(vocabulary, names[role]) for role in ("cls", "sep"))
        template = Template.of([start], [end], [end, end])
    return _fast(folder, library, kind, template)


def _begun(folder, id_of):
    """The template of a decoder, with a start or an end where the settings say so."""
    settings = folder.settings
    bos, eos = (id_of(folder.names[role]) for role in ("bos", "eos"))
    before = [bos] if settings.get("add_bos_token") else []
    behind = [eos] if settings.get("add_eos_token") else []

    def around(text, segment):
        return [(part, segment) for part in (*before, text, *behind)]

    return Template(around("A", 0), [*around("A", 0), *around("B", 1)])


def _known(vocabulary, name):
    if name not in vocabulary:
        raise ValueError(f"The vocabulary lacks the special token {name!r}.")
    return vocabulary[name]


def _template_of(library):
    """What a post-processor puts around texts, found with a text of any token."""
    if library.post_processor is None:
        return Template.of(between=())
    texts = (text for text in ("a", "1", ".") if library.encode(text).tokens)
    text = next((t for t in texts if 0 in library.encode(t).special_tokens_mask), None)
    if text is None:
        raise ValueError(f"The vocabulary writes no text: {library}.")
    count = library.encode(text).special_tokens_mask.count(0)

    def parts(*texts):
        encoding, found, seen = library.encode(*texts), [], 0
        for token_id, segment, special in zip(
            encoding.ids, encoding.type_ids, encoding.special_tokens_mask
        ):
            if special:
                found.append((token_id, segment))
                continue
            if seen % count == 0:
                found.append(("AB"[seen // count], segment))
            seen += 1
        return tuple(found)

    return Template(parts(text), parts(text, text))


def _fast(folder, library, layout, template, batching=None):
    """A `FastTokenizer` with all the special tokens that the folder names."""
    known = library.get_added_tokens_decoder()
    for token_id, token in folder.added.items():
        own = known.get(token_id)
        if own is None or own.content == token.content and _flags(own) != _flags(token):
            library.add_tokens([token])
            if library.token_to_id(token.content) != token_id:
                raise ValueError(
                    f"The added token {token.content!r} of {folder.path} must have the "
                    f"id {token_id}. Received: {library.token_to_id(token.content)}, "
                    "since ids before it are missing."
                )
    special = {token.content: token for token in known.values()}
    named = [name for name in folder.names.values() if name]
    if layout == "fast":  # those that a class would name, where they are
        stated = {_content(token) for token in folder.stated}
        named = [n for n in named if library.token_to_id(n) is not None or n in stated]
        folder.names = {r: n if n in named else None for r, n in folder.names.items()}
    for name in dict.fromkeys([*named, *map(_content, folder.extra)]):
        token = special.get(name)
        if token is None or not token.special:
            own = {} if token is None else _flags(token)
            if token is None:
                own = dict(normalized=False)
                given = [t for t in folder.stated if _content(t) == name]
                if given and isinstance(given[0], dict):
                    own = _flags(_added_token(given[0]))
            library.add_special_tokens([AddedToken(name, **own, special=True)])
    ids = _special_ids(folder, library.token_to_id, template, layout)
    added = library.get_added_tokens_decoder()
    names = [token.content for token in added.values() if token.special]
    byte_level = isinstance(library.decoder, decoders.ByteLevel)
    ids["pad_token_id"] = _padding(ids, library.token_to_id, names, byte_level)
    conventions = Conventions(
        template=template,
        languages=_languages({n: library.token_to_id(n) for n in names}),
        **folder.chat_templates(),
        layout=layout,
        settings=_settings(folder, layout),
        batching=batching or {},
    )
    return FastTokenizer(library.to_str(), conventions=conventions, **ids)


def _flags(token):
    names = ("single_word", "lstrip", "rstrip", "normalized")
    return {name: getattr(token, name) for name in names}


def _settings(folder, layout):
    """What is written again: the settings, with the names that classes know."""
    named = {f"{role}_token": name for role, name in folder.names.items() if name}
    if folder.name == "Pegasus":
        named.pop("mask_token", None)  # transformers 5 loses an id where it is stated
    # Of a tokenizer.json any other class may change what the file says.
    name = "PreTrainedTokenizerFast" if layout == "fast" else f"{folder.name}Tokenizer"
    return {**named, "tokenizer_class": name, **folder.settings}


# SentencePiece models.


def _sentence_piece(folder, kind, convert):
    """Any of the layouts: the library's pieces under the folder's ids."""
    names, number = folder.names, {"marian": 1, "m2m100": 1}.get(kind, 0)
    model = folder.file(kind, number).read_bytes()
    options, special = {}, list(folder.special)
    own = SentencePieceTokenizer(model, pad_token_id=None, mask_token_id=None)
    pieces = own.tokens(range(own.vocabulary_size))
    if kind in ("marian", "m2m100"):
        pieces = _listed(folder.json(folder.file(kind, 0).name), folder.path)
    if kind == "marian":
        if folder.settings.get("separate_vocabs"):
            raise ValueError(
                f"{folder.path} has a vocabulary for sources and another for targets, "
                "which kzoo does not read: one table of ids is for both."
            )
        options["target_model"] = folder.file(kind, 2).read_bytes()
    elif kind == "m2m100":
        codes = _M2M100[folder.settings.get("language_codes", "m2m100")]
        codes = [f"__{code}__" for code in codes]
        pieces, special = [*pieces, *codes], [*special, *codes]
    elif kind == "fairseq_sentencepiece":
        first = [names[role] for role in ("cls", "pad", "eos", "unk")]
        codes = _codes(folder)
        pieces = [*first, *pieces[3:], *codes, names["mask"]]
        special += codes
    elif kind == "pegasus":
        offset = folder.settings.get("offset", 103)
        kept = [folder.settings.get("mask_token_sent", "<mask_1>"), names["mask"]]
        kept = [_content(token) for token in kept if token]
        kept += [f"<unk_{i}>" for i in range(2, offset)]
        pieces = [names["pad"], names["eos"], *kept, *pieces[2:]]
        special += kept
    elif folder.name == "T5":
        extra = folder.settings.get("extra_ids", 100)
        if extra < 0:
            raise ValueError(
                f"{folder.path}: extra_ids must be 0 or more. Received: {extra}."
            )
        extra = [f"<extra_id_{i}>" for i in reversed(range(extra))]
        pieces, special = [*pieces, *extra], [*special, *extra]
    pieces = _with_added(pieces, folder, special)
    ids_of = {piece: i for i, piece in reversed([*enumerate(pieces)])}
    for name in names.values():
        if name and name not in ids_of:
            ids_of[name] = len(pieces)
            pieces.append(name)
    languages = _languages({p: i for p, i in ids_of.items() if p})
    template = _around(folder, kind, ids_of, languages)
    if convert and folder.name in CLASSES:
        settings, unknown = folder.settings, names["unk"]
        library = converted(
            model, pieces, folder.name, settings, unknown, symbols=not folder.extra
        )
        added = [AddedToken(each, normalized=False) for each in special]
        library.add_special_tokens([each for each in added if each.content in ids_of])
        return _fast(folder, library, kind, template)
    ids = _special_ids(folder, ids_of.get, template, kind)
    ids["pad_token_id"] = _padding(ids, ids_of.get, special, False)
    if pieces != own.tokens(range(own.vocabulary_size)):
        options["pieces"] = pieces
    some = {ids_of[name] for name in special if name in ids_of} - {ids_of[names["unk"]]}
    conventions = Conventions(
        template=template,
        languages=languages,
        **folder.chat_templates(),
        layout=kind,
        settings=_settings(folder, kind),
    )
    return SentencePieceTokenizer(
        model, special_token_ids=some, conventions=conventions, **options, **ids
    )


def _listed(vocabulary, path):
    """The pieces of a dict from pieces to ids, in order; `None` for a gap."""
    numbers = all(isinstance(i, int) and i >= 0 for i in vocabulary.values())
    if not vocabulary or not numbers or max(vocabulary.values()) > _MOST:
        raise ValueError(f"{path}/vocab.json must map pieces to ids.")
    pieces = [None] * (max(vocabulary.values()) + 1)
    for piece, token_id in vocabulary.items():
        pieces[token_id] = piece
    return pieces


def _codes(folder):
    """Names of languages behind a fairseq vocabulary, in the order of their ids."""
    if folder.name == "XLMRoberta":
        return []
    known = {"MBart": _MBART, "MBart50": _MBART + _MBART50}
    if folder.name in known:
        return known[folder.name]
    listed = [_content(token) for token in folder.extra]
    listed = [name for name in listed if _LANGUAGE.fullmatch(name)]
    if not listed:
        raise ValueError(
            f"{folder.path} must list the codes of languages as "
            "additional_special_tokens, in special_tokens_map.json or "
            "tokenizer_config.json. Received: none."
        )
    return listed


def _with_added(pieces, folder, special):
    """Pieces with what the files add to them."""
    pieces = list(pieces)
    for token_id, token in folder.added.items():
        name = token.content
        if token_id < len(pieces) and pieces[token_id] in (name, None):
            pieces[token_id] = name
            continue
        if token_id < len(pieces):
            raise ValueError(
                f"{folder.path} gives the id {token_id} to {name!r}, which is "
                f"{pieces[token_id]!r}. Save the tokenizer as tokenizer.json."
            )
        if not token.special and name not in special:
            raise ValueError(
                f"{folder.path} adds {name!r}, which is no special token, to a "
                "SentencePiece model. Save the tokenizer as tokenizer.json."
            )
        pieces += [None] * (token_id - len(pieces)) + [name]
    return pieces


def _around(folder, kind, ids_of, languages):
    """The template of a SentencePiece layout."""
    end = [ids_of[folder.names["eos"]]]
    if kind in ("pegasus", "marian"):
        return Template.of((), end, ())
    if folder.name in ("Llama", "Gemma"):
        return _begun(folder, ids_of.get)
    if folder.name == "T5":
        return Template.of((), end, end)
    if folder.name == "XLMRoberta":
        return Template.of([ids_of[folder.names["cls"]]], end, end * 2)
    first = {"MBart": "en_XX", "MBart50": "en_XX", "Nllb": "eng_Latn", "M2M100": "en"}
    code = [languages.get(first[folder.name], min(languages.values()))]
    if folder.name == "MBart" or folder.settings.get("legacy_behaviour"):
        return Template.of((), [*end, *code], ())
    return Template.of(code, end, ())


# And back.


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


def save_pretrained_tokenizer(tokenizer: Tokenizer, folder, template=None):
    """Writes a folder that transformers' `AutoTokenizer` reads, with equal ids.

    Args:
        tokenizer: one that `load_pretrained_tokenizer` read, which is written in the
            layout that it had, or a `FastTokenizer`.
        folder: made when missing.
        template: a `Template` for a tokenizer that has none; by default start and end
            token stand around a text, as kzoo's encoders read it.

    Raises:
        ValueError: transformers has no layout for such a tokenizer.
    """
    conventions, folder = tokenizer.conventions, Path(folder)
    layout, settings = conventions.layout, dict(conventions.settings)
    files = {}
    if isinstance(tokenizer, FastTokenizer):
        files[_FAST] = _json_with_template(tokenizer, template)
        if layout is None:
            settings = _own_settings(tokenizer)
    elif layout is None:
        raise ValueError(
            f"transformers has no layout for {tokenizer!r}, whose model's ids are "
            "kzoo's own. Train a FastTokenizer, or give the model token ids."
        )
    else:
        names = [each[0] for each in _FILES[layout]]
        if settings.get("tokenizer_class", "").startswith("T5"):
            names = ["spiece.model"]
        for name in names:
            files[name] = _content_of(tokenizer, name)
    files |= _templates(conventions, settings)
    named = {f"{r}_token" for r in _ROLES} | {"additional_special_tokens"}
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
    every = {**({_DEFAULT: default} if default else {}), **named}
    if default:
        files[_TEMPLATE] = default
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
    # Codes of languages follow what M2M100's file lists.
    codes = {f"__{code}__" for code in tokenizer.languages}
    pieces = enumerate(tokenizer.pieces)
    return _text({p: i for i, p in pieces if p is not None and p not in codes})


def _json_with_template(tokenizer, template):
    described = json.loads(tokenizer._model_text())
    described |= tokenizer.conventions.batching
    own = tokenizer.conventions.template
    if own is not None:
        library = tokenizers.Tokenizer.from_str(tokenizer._model_text())
        if _template_of(library) == own:
            return _text(described)
    elif template is not None:
        own = template
    else:
        start, end = tokenizer.start_token_id, tokenizer.end_token_id
        own = Template.of([start], [end], [end])
    token = {i: tokenizer._tokenizer.id_to_token(i) for i in own.ids()}

    def parts(row):
        return [
            {"Sequence": {"id": part, "type_id": segment}}
            if part in ("A", "B")
            else {"SpecialToken": {"id": token[part], "type_id": segment}}
            for part, segment in row
        ]

    described["post_processor"] = {
        "type": "TemplateProcessing",
        "single": parts(own.single),
        "pair": parts(own.pair or (*own.single, ("B", 1))),
        "special_tokens": {
            name: {"id": name, "ids": [i], "tokens": [name]}
            for i, name in token.items()
        },
    }
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
