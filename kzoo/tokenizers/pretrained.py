"""Tokenizers of Hugging Face folders, read exactly."""

import json
import re
from typing import get_args

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from kzoo.tokenizers.base import Tokenizer
from kzoo.tokenizers.conventions import Conventions, Template
from kzoo.tokenizers.converted import CLASSES, converted
from kzoo.tokenizers.fast import FastTokenizer
from kzoo.tokenizers.hf_folder import (
    FAST_FILE,
    INPUTS,
    MOST_IDS,
    NORMALIZING,
    SEGMENTED,
    SPLITTING,
    Kind,
    TokenizerFolder,
    added_token,
    content_of,
    is_laid_out,
    read_text,
)
from kzoo.tokenizers.sentence_piece import SentencePieceTokenizer

_BATCHING = ("padding", "truncation")
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


def load_pretrained_tokenizer(
    folder, kind: Kind | tuple[Kind, ...] | None = None, *, convert: bool = True
) -> Tokenizer:
    """Reads the tokenizer of a Hugging Face folder.

    Its ids are those that the class which the folder names gives in transformers 5, but
    for names of special tokens in a text, which are text here; and it knows what stands
    around texts, see `Conventions`. A `tokenizer.json` is read where there is one, and
    followed where classes of transformers 5 make it anew with other rules than it
    states: of settings that contradict it only those of BERT's way to make texts
    uniform, and the space in front of byte-level BPE, are heeded. Llama's and Gemma's
    models have a start token in front where the settings say so. The second text of a
    pair has the segment that the folder states, but the first one's where
    `model_input_names` lacks `token_type_ids`, or is left out and the class is of no
    family: transformers 5 gives none then (nor with ALBERT's class, whose checkpoints
    are of versions that did).

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
        kind = next((each for each in kind if is_laid_out(folder, each)), kind[-1])
    if kind is not None and kind not in get_args(Kind):
        raise ValueError(
            f"kind must be one of {list(get_args(Kind))}, or None. Received: {kind!r}."
        )
    try:
        return _loaded(TokenizerFolder(folder, kind), kind, convert)
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        # A value of another type than these files have, anywhere in them.
        raise ValueError(
            f"The files of {folder} are no tokenizer's: {type(error).__name__}: {error}"
        ) from error


def _loaded(folder, kind, convert):
    if (folder.path / FAST_FILE).exists():
        tokenizer = _from_json(folder)
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
        codes = {*tokenizer.conventions.languages.values()}
        starts = codes & {*tokenizer.conventions.template.around()[-1]}
        if starts and folder.number("decoder_start_token_id") is not None:
            target = None  # it is said there, whatever the settings say
        tokenizer = tokenizer.for_languages(source, target)
    known, learned = tokenizer.conventions, ()
    prefix, forced = known.target_prefix, folder.searched("forced_bos_token_id")
    if forced and forced[0] != tokenizer.start_token_id:
        prefix = forced  # so here
    if not prefix and not known.languages and folder.config.get("is_encoder_decoder"):
        learned = known.template.around()[0]  # BART's targets are as its sources
    ends = folder.searched("eos_token_id")
    ends = [i for i in ends if i != tokenizer.end_token_id]
    ends = [i for i in ends if 0 <= i < tokenizer.vocabulary_size]
    return tokenizer.with_conventions(
        target_prefix=prefix, learned_prefix=learned, stop_token_ids=ends
    )


def _special_ids(folder, id_of, template, special, byte_level):
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
    found = dict(
        pad_token_id=ids["pad"],
        start_token_id=start,
        end_token_id=end,
        unknown_token_id=unknown,
        mask_token_id=ids["mask"],
    )
    return found | dict(pad_token_id=_padding(found, id_of, special, byte_level))


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


def _from_json(folder):
    path = folder.path / FAST_FILE
    library = _asked(path, lambda: tokenizers.Tokenizer.from_str(read_text(path)))
    described = json.loads(library.to_str())
    # Some classes make these parts anew, of settings and their own defaults.
    normalizer, splitter = described["normalizer"], described["pre_tokenizer"]
    if folder.makes in NORMALIZING and _type(normalizer) == "BertNormalizer":
        normalizer |= _bert_normalizing(folder.settings)
    if folder.makes in SPLITTING and _type(splitter) == "ByteLevel":
        splitter["add_prefix_space"] = bool(folder.settings.get("add_prefix_space"))
    batching = {name: described[name] for name in _BATCHING if described[name]}
    if json.loads(library.to_str()) != described:
        library = tokenizers.Tokenizer.from_str(json.dumps(described))
    library.no_padding()
    library.no_truncation()
    template = _asked(path, lambda: template_of(library))
    return _fast(folder, library, "fast", template, batching)


def _bert_normalizing(settings):
    """How texts are made uniform, in the library's words."""
    return dict(
        lowercase=settings.get("do_lower_case", True),
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
    )


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


def _wordpiece(folder, kind):
    lines = read_text(folder.file(kind, 0)).split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    vocabulary = {piece.rstrip("\r"): i for i, piece in enumerate(lines)}
    settings = folder.settings
    (unknown,) = _named(folder, "unk")
    library = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
    library.normalizer = normalizers.BertNormalizer(**_bert_normalizing(settings))
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece(prefix="##")
    start, end = (_id_of(role, folder, vocabulary) for role in ("cls", "sep"))
    template = Template.of([start], [end], [end], segments=(0, 1))
    return _fast(folder, library, kind, template)


def _byte_bpe(folder, kind):
    vocabulary = folder.json(folder.file(kind, 0).name)
    lines = read_text(folder.file(kind, 1)).split("\n")
    lines = lines[1:] if lines[0].startswith("#version") else lines
    merges = [tuple(line.rstrip("\r").split(" ")) for line in lines if line.strip()]
    library = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=bool(folder.settings.get("add_prefix_space"))
    )
    library.decoder = decoders.ByteLevel()
    if folder.name == "GPT2":
        template = _begun(folder, vocabulary)
    else:
        start, end = (_id_of(role, folder, vocabulary) for role in ("cls", "sep"))
        template = Template.of([start], [end], [end, end])
    return _fast(folder, library, kind, template)


def _begun(folder, ids_of):
    """The template of a decoder, with a start or an end where the settings say so."""
    before, behind = (
        [_id_of(role, folder, ids_of)]
        if folder.settings.get(f"add_{role}_token") and folder.names[role]
        else []
        for role in ("bos", "eos")
    )

    def around(text, segment):
        return [(part, segment) for part in (*before, text, *behind)]

    return Template(around("A", 0), [*around("A", 0), *around("B", 1)])


def _id_of(role, folder, ids_of):
    """The id of a special token that texts have around them."""
    name = folder.names[role]
    if name not in ids_of:
        raise ValueError(
            f"{folder.path}: {role}_token must be in the vocabulary. Received: "
            f"{name!r}."
        )
    return ids_of[name]


def _named(folder, *roles):
    """Names of special tokens whose places a layout fixes."""
    for role in roles:
        if not folder.names[role]:
            raise ValueError(
                f"{folder.path}: {role}_token must be named, for this layout has a "
                f"place for it. Received: {folder.names[role]!r}."
            )
    return [folder.names[role] for role in roles]


def template_of(library):
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
    template = template if folder.has_segments else template.in_one_segment()
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
    added = library.get_added_tokens_decoder().values()
    by_name = {token.content: token for token in added}
    named = [name for name in folder.names.values() if name]
    if layout == "fast":  # those that a class would name, where they are
        stated = {content_of(token) for token in folder.stated}
        named = [n for n in named if library.token_to_id(n) is not None or n in stated]
        folder.names = {r: n if n in named else None for r, n in folder.names.items()}
    words = set(map(content_of, folder.named.values())) - set(named)
    for name in dict.fromkeys([*named, *map(content_of, folder.extra)]):
        token = by_name.get(name)
        if token is None and name in words and library.token_to_id(name) is not None:
            continue  # texts have it, too
        # As transformers 5: what a tokenizer.json says of one without a role stays.
        kept = layout == "fast" and name not in named
        if token is None or not (token.special or kept):
            own = {} if token is None else _flags(token)
            if token is None:
                own = dict(normalized=False)
                given = [t for t in folder.stated if content_of(t) == name]
                if given and isinstance(given[0], dict):
                    own = _flags(added_token(given[0]))
            library.add_special_tokens([AddedToken(name, **own, special=True)])
    added = library.get_added_tokens_decoder()
    names = [token.content for token in added.values() if token.special]
    byte_level = isinstance(library.decoder, decoders.ByteLevel)
    ids = _special_ids(folder, library.token_to_id, template, names, byte_level)
    languages = _languages({n: library.token_to_id(n) for n in names})
    conventions = _conventions(folder, layout, template, languages, batching)
    return FastTokenizer(library.to_str(), conventions=conventions, **ids)


def _flags(token):
    names = ("single_word", "lstrip", "rstrip", "normalized")
    return {name: getattr(token, name) for name in names}


def _conventions(folder, layout, template, languages, batching=None):
    """`Conventions`; settings are written again, with the names that classes know."""
    named = {f"{role}_token": name for role, name in folder.names.items() if name}
    if folder.name == "Pegasus":
        named.pop("mask_token", None)  # transformers 5 loses an id where it is stated
    # Of a tokenizer.json any other class may change what the file says.
    name = "PreTrainedTokenizerFast" if layout == "fast" else f"{folder.name}Tokenizer"
    if "tokenizer_class" not in folder.settings and folder.makes in SEGMENTED:
        named["model_input_names"] = list(INPUTS)
    return Conventions(
        template=template,
        languages=languages,
        **folder.chat_templates(),
        layout=layout,
        settings={**named, "tokenizer_class": name, **folder.settings},
        batching=batching or {},
    )


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
        first = _named(folder, "cls", "pad", "eos", "unk")
        codes = _codes(folder)
        pieces = [*first, *pieces[3:], *codes, names["mask"]]
        special += codes
    elif kind == "pegasus":
        offset = folder.settings.get("offset", 103)
        kept = [folder.settings.get("mask_token_sent", "<mask_1>"), names["mask"]]
        kept = [content_of(token) for token in kept if token]
        kept += [f"<unk_{i}>" for i in range(2, offset)]
        pieces = [*_named(folder, "pad", "eos"), *kept, *pieces[2:]]
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
    ids_of = {piece: i for i, piece in reversed([*enumerate(pieces)]) if piece}
    converts = convert and folder.name in CLASSES
    # The library's tokenizer gets more of them with their flags.
    more = [] if converts else map(content_of, folder.extra)
    for name in (*names.values(), *more):
        if name and name not in ids_of:
            ids_of[name] = len(pieces)
            pieces.append(name)
    languages = _languages(ids_of)
    template = _around(folder, kind, ids_of, languages)
    if converts:
        settings, unknown = folder.settings, names["unk"]
        library = converted(
            model, pieces, folder.name, settings, unknown, symbols=not folder.listed
        )
        added = [AddedToken(each, normalized=False) for each in special]
        library.add_special_tokens([each for each in added if each.content in ids_of])
        return _fast(folder, library, kind, template)
    ids = _special_ids(folder, ids_of.get, template, special, byte_level=False)
    if pieces != own.tokens(range(own.vocabulary_size)):
        options["pieces"] = pieces
    (unknown,) = _named(folder, "unk")
    some = {ids_of[name] for name in special if name in ids_of} - {ids_of[unknown]}
    conventions = _conventions(folder, kind, template, languages)
    return SentencePieceTokenizer(
        model, special_token_ids=some, conventions=conventions, **options, **ids
    )


def _listed(vocabulary, path):
    """The pieces of a dict from pieces to ids, in order; `None` for a gap."""
    numbers = all(isinstance(i, int) and i >= 0 for i in vocabulary.values())
    if not vocabulary or not numbers or max(vocabulary.values()) > MOST_IDS:
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
    listed = [content_of(token) for token in folder.listed]
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
    if folder.name in ("Llama", "Gemma"):
        return _begun(folder, ids_of)
    end = [_id_of("eos", folder, ids_of)]
    if kind in ("pegasus", "marian"):
        return Template.of((), end, ())
    if folder.name == "T5":
        return Template.of((), end, end)
    if folder.name == "XLMRoberta":
        return Template.of([_id_of("cls", folder, ids_of)], end, end * 2)
    first = {"MBart": "en_XX", "MBart50": "en_XX", "Nllb": "eng_Latn", "M2M100": "en"}
    code = [languages.get(first[folder.name], min(languages.values()))]
    legacy = folder.name == "Nllb" and folder.settings.get("legacy_behaviour")
    if folder.name == "MBart" or legacy:
        return Template.of((), [*end, *code], ())
    return Template.of(code, end, ())
