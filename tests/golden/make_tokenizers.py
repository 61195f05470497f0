"""Small tokenizers of every kind, and what transformers gives with them.

Run where transformers, sentencepiece and jinja2 are installed:

    python tests/golden/make_tokenizers.py

It writes tokenizers.zip beside itself: folders as the hub has them, and for each a
cases.json that tests/tokenizers/pretrained_test.py compares kzoo with.
"""

import io
import json
import sys
import tempfile
import zipfile
from pathlib import Path

import sentencepiece
import tokenizers
import transformers
from tokenizers import (
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

TRAINING = [
    "A man rides a bike down the street, and 3 women look at him.",
    "The quick brown fox jumps over the lazy dog. It's 12.50 dollars!",
    "Ein Mann fährt über die große Straße zum schönen Häuschen.",
    "L'été, les élèves mangent à la cantine où ça sent bon.",
    "def f(x):\n    return x + 1  # code\n\tprint('hello')",
    "Привет, мир! Как дела сегодня?",
    "日本語のテスト。中文也在这里。한국어 테스트",
    "مرحبا بالعالم שלום עולם हिन्दी ภาษาไทย",
    "hello world hello there, the world is the world",
    "one two three four five six seven eight nine ten 0123456789",
] * 3

TORTURE = [
    "A man rides a bike.",
    "",
    " ",
    "a",
    " leading",
    "trailing ",
    "   several   spaces   inside   ",
    "\n",
    "line one\nline two\r\n\r\nline three\n\n\n",
    "\t\ttabs\tand\tmore",
    "don't I'll we've they're he'd I'm 'S ''x",
    "...!!!??? --- $5.00 #tag @me a_b \\ / [x] {y} <z>",
    "1234567 12,345.67 ½ Ⅷ ١٢٣ 1a2b 0x1F",
    "ÀÉÎÕÜ Straße İstanbul ẞ ǅ ﬁ Σίσυφος ΟΔΟΣ ЁЖ",
    "e\u0301 a\u0308 n\u0303 a\u0300\u0316\u0301b \u0301x q\u0323\u0307",
    "日本語のテスト。中文，𠀀漢字かな交じり文カタカナ",
    "한국어 테스트 각 각",
    "😀👩\u200d👩\u200d👧\u200d👦 👋🏽🇩🇪 ☺\ufe0f ok",
    "مرحبا بالعالم ﷺ 2024",
    "שָׁלוֹם עולם \u202bmix ltr\u202c end",
    "हिन्दी ภาษาไทย தமிழ் ქართული Ελληνικά",
    "a\u200eb\u200f c\u202ed zero\u200bwidth soft\u00adhyphen",
    "a\x01b\x7fc\x85d\x0be\x0cf\x1cg",
    "\u00a0\u2003\u3000x\u2028y\u2029z\ufeffv",
    "\ufffd \ud7ff\ue000 \ufdd0 \U0010fffd \u0378",
    "𝒜𝓑𝒞 𐍈 ＦＵＬＬ ｶﾀｶﾅ №5 ™ ㎏",
    "x" * 120 + " " + "y" * 99,
    "ab" * 90 + " c",
    "é" * 60,
    "def f(x):\n    if x:\n        return {'a': [1, 2.5]}  # done\n",
    "https://example.org/a?b=c&d=%20e#f mail@example.org",
    "▁under ▁▁ ## ##a Ġx <0x41>",
    "The Hello HELLO hello world World WORLD",
    "Привет, мир! ПРИВЕТ МИР Україна",
]
PAIRS = [
    ("A man rides a bike.", "The world is here."),
    ("", "second"),
    ("日本語", "Привет"),
]
CHATS = [
    [{"role": "user", "content": "Hello there"}],
    [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "  What is 1 + 1?\n"},
        {"role": "assistant", "content": "It is 2."},
        {"role": "user", "content": "日本語 😀 <tool_call>thanks </tool_call>"},
    ],
]
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] "
    "+ '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LLAMA_CHAT = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}"
    "{{ '[INST] ' + m.content.strip() + ' [/INST]' }}{% elif m.role == 'assistant' %}"
    "{{ ' ' + (m.content | trim) + eos_token }}{% else %}"
    "{{ '<<SYS>>' + m.content + '<</SYS>>' }}{% endif %}{% endfor %}"
)
NLLB_CODES = ["ace_Arab", "deu_Latn", "eng_Latn", "fra_Latn", "zho_Hans"]
MARIAN_CODES = [">>deu<<", ">>fra<<"]


def spm(size, kind="unigram", rule="nmt_nfkc", **options):
    """Bytes of a trained model, in fairseq's order of ids unless told otherwise."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TRAINING),
        model_writer=out,
        vocab_size=size,
        model_type=kind,
        normalization_rule_name=rule,
        hard_vocab_limit=False,
        character_coverage=1.0,
        minloglevel=2,
        num_threads=1,
        **options,
    )
    return out.getvalue()


def pieces_of(model):
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(i) for i in range(processor.get_piece_size())]


def byte_bpe(special, splitter=None):
    """A trained byte-level library tokenizer."""
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = splitter or pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    library.train_from_iterator(TRAINING, trainer)
    return library


def text(content):
    return json.dumps(content, ensure_ascii=False, indent=1)


def folders():
    """name -> (kind, class, dict of files, more texts)."""
    found = {}

    # WordPiece.
    library = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer(lowercase=True)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(
        vocab_size=500, special_tokens=names, show_progress=False
    )
    library.train_from_iterator(TRAINING, trainer)
    words = sorted(library.get_vocab(), key=library.get_vocab().get)
    words += ["Hello", "The", "WORLD", "é", "##é"]
    words = "\n".join(dict.fromkeys(words)) + "\n"
    own = {"do_lower_case": True, "tokenizer_class": "BertTokenizer"}
    cased = {**own, "do_lower_case": False, "strip_accents": False}
    cased["tokenize_chinese_chars"] = False
    bert = transformers.BertTokenizer
    found["bert"] = "wordpiece", bert, {"vocab.txt": words}
    found["bert_cased"] = (
        "wordpiece",
        bert,
        {"vocab.txt": words, "tokenizer_config.json": text(cased)},
    )

    # Byte-level byte-pair encoding.
    library = byte_bpe(["<|endoftext|>"])
    model = json.loads(library.to_str())["model"]
    merges = "#version: 0.2\n" + "\n".join(" ".join(m) for m in model["merges"]) + "\n"
    files = {"vocab.json": text(model["vocab"]), "merges.txt": merges}
    found["gpt2"] = "byte_bpe", transformers.GPT2Tokenizer, files
    library = byte_bpe(["<s>", "<pad>", "</s>", "<unk>"])
    library.add_special_tokens(["<mask>"])
    model = json.loads(library.to_str())["model"]
    merges = "#version: 0.2\n" + "\n".join(" ".join(m) for m in model["merges"]) + "\n"
    vocabulary = {**model["vocab"], "<mask>": len(model["vocab"])}
    roberta = {"vocab.json": text(vocabulary), "merges.txt": merges}
    spaced = {"add_prefix_space": True, "tokenizer_class": "RobertaTokenizer"}
    found["roberta"] = "byte_bpe", transformers.RobertaTokenizer, roberta
    found["roberta_prefix_space"] = (
        "byte_bpe",
        transformers.RobertaTokenizer,
        {**roberta, "tokenizer_config.json": text(spaced)},
    )
    bart = {"tokenizer_class": "BartTokenizer"}
    model = {"model_type": "bart", "decoder_start_token_id": 2}
    found["bart"] = (
        "byte_bpe",
        transformers.BartTokenizer,
        {
            **roberta,
            "tokenizer_config.json": text(bart),
            "config.json": text({**model, "is_encoder_decoder": True}),
        },
    )
    opt = dict(tokenizer_class="GPT2Tokenizer", add_bos_token=True, pad_token="<pad>")
    opt |= dict.fromkeys(("bos_token", "eos_token", "unk_token"), "</s>")
    found["opt"] = (
        "byte_bpe",
        transformers.GPT2Tokenizer,
        {**roberta, "tokenizer_config.json": text(opt)},
    )

    # SentencePiece.
    ids = dict(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    unigram = spm(380, **ids)
    found["t5"] = "sentencepiece", transformers.T5Tokenizer, {"spiece.model": unigram}
    ids = dict(byte_fallback=True, remove_extra_whitespaces=False)
    llama = spm(640, "bpe", "identity", pad_id=-1, **ids)
    settings = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True}
    settings |= {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    settings["chat_template"] = LLAMA_CHAT
    found["llama_spm"] = (
        "sentencepiece",
        transformers.LlamaTokenizer,
        {"tokenizer.model": llama, "tokenizer_config.json": text(settings)},
    )
    fairseq = spm(380)
    found["xlm_roberta"] = (
        "fairseq_sentencepiece",
        transformers.XLMRobertaTokenizer,
        {"sentencepiece.bpe.model": fairseq},
    )
    for name, of in (
        ("mbart", transformers.MBartTokenizer),
        ("mbart50", transformers.MBart50Tokenizer),
        ("nllb", transformers.NllbTokenizer),
    ):
        settings = {"tokenizer_class": of.__name__, "src_lang": "en_XX"}
        settings["tgt_lang"] = "de_DE"
        if name == "nllb":
            settings |= {"src_lang": "eng_Latn", "tgt_lang": "deu_Latn"}
            settings["additional_special_tokens"] = NLLB_CODES
        model = spm(460, "bpe") if name == "nllb" else fairseq
        if name == "nllb":  # where fairseq has them; transformers would guess otherwise
            first = len(pieces_of(model)) + 1
            flags = dict(special=True, normalized=False, lstrip=False, rstrip=False)
            settings["added_tokens_decoder"] = {
                str(first + i): {"content": code, "single_word": False, **flags}
                for i, code in enumerate([*NLLB_CODES, "<mask>"])
            }
        found[name] = (
            "fairseq_sentencepiece",
            of,
            {"sentencepiece.bpe.model": model, "tokenizer_config.json": text(settings)},
        )
    pegasus = spm(380, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    found["pegasus"] = (
        "pegasus",
        transformers.PegasusTokenizer,
        {"spiece.model": pegasus},
    )
    source = spm(300)
    target = spm(340, "bpe")
    joint = ["</s>", "<unk>", *MARIAN_CODES, *pieces_of(source)[3:]]
    joint = list(dict.fromkeys([*joint, *pieces_of(target)[3:]]))
    joint = [piece for piece in joint if piece != "▁the"] + ["<pad>"]
    joint = {piece: i for i, piece in enumerate(joint)}
    found["marian"] = (
        "marian",
        transformers.MarianTokenizer,
        {"vocab.json": text(joint), "source.spm": source, "target.spm": target},
    )
    one = ["<s>", "<pad>", "</s>", "<unk>", *pieces_of(target)[3:-5]]
    settings = {"tokenizer_class": "M2M100Tokenizer", "src_lang": "en"}
    found["m2m100"] = (
        "m2m100",
        transformers.M2M100Tokenizer,
        {
            "vocab.json": text({piece: i for i, piece in enumerate(one)}),
            "sentencepiece.bpe.model": target,
            "tokenizer_config.json": text({**settings, "tgt_lang": "de"}),
        },
    )

    # tokenizer.json.
    fast = transformers.PreTrainedTokenizerFast
    for name in ("bert_cased", "gpt2", "t5", "mbart50"):
        kind, of, files = found[name]
        with tempfile.TemporaryDirectory() as folder:
            for file, content in files.items():
                write(Path(folder) / file, content)
            known = of.from_pretrained(folder)
            with tempfile.TemporaryDirectory() as saved:
                known.save_pretrained(saved)
                files = {p.name: p.read_bytes() for p in Path(saved).iterdir()}
        found[f"{name}_json"] = None, of, files
    qwen = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(
                tokenizers.Regex(
                    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
                    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
                ),
                "isolated",
            ),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    library = byte_bpe([], qwen)
    library.normalizer = normalizers.NFC()
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    library.add_special_tokens(names)
    library.add_tokens([tokenizers.AddedToken("<tool_call>", normalized=False)])
    library.post_processor = processors.ByteLevel(trim_offsets=False)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "bos_token": None,
        "additional_special_tokens": names[1:],
        "chat_template": CHATML,
        "clean_up_tokenization_spaces": False,
    }
    found["qwen"] = (
        None,
        fast,
        {
            "tokenizer.json": library.to_str(),
            "tokenizer_config.json": text(settings),
        },
    )
    library = byte_bpe(["<|begin_of_text|>", "<|end_of_text|>", "<|reserved_0|>"])
    start = [("<|begin_of_text|>", 0)]
    library.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single="<|begin_of_text|> $A",
                pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
                special_tokens=start,
            ),
        ]
    )
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|begin_of_text|>",
        "eos_token": "<|end_of_text|>",
        "clean_up_tokenization_spaces": False,
    }
    found["llama3"] = (
        None,
        fast,
        {
            "tokenizer.json": library.to_str(),
            "tokenizer_config.json": text(settings),
        },
    )
    for name in ("llama_metaspace", "llama_prepend"):
        vocabulary = {piece: i for i, piece in enumerate(pieces_of(llama))}
        merges = [
            (piece[:i], piece[i:])
            for piece in vocabulary
            for i in range(1, len(piece))
            if piece[:i] in vocabulary and piece[i:] in vocabulary
        ]
        merges.sort(key=lambda pair: vocabulary["".join(pair)])
        library = tokenizers.Tokenizer(
            models.BPE(
                vocab=vocabulary,
                merges=merges,
                unk_token="<unk>",
                fuse_unk=True,
                byte_fallback=True,
            )
        )
        if name == "llama_prepend":
            library.normalizer = normalizers.Sequence(
                [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
            )
        else:
            library.pre_tokenizer = pre_tokenizers.Metaspace(
                prepend_scheme="first", split=False
            )
        library.decoder = decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )
        library.add_special_tokens(["<unk>", "<s>", "</s>"])
        library.post_processor = processors.TemplateProcessing(
            single="<s> $A",
            pair="<s> $A <s>:1 $B:1",
            special_tokens=[("<s>", 1)],
        )
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "unk_token": "<unk>",
            "chat_template": LLAMA_CHAT,
            "clean_up_tokenization_spaces": False,
        }
        found[name] = (
            None,
            fast,
            {
                "tokenizer.json": library.to_str(),
                "tokenizer_config.json": text(settings),
            },
        )
    return found


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def cases(name, kind, of, folder):
    """What transformers gives."""
    known = of.from_pretrained(folder)
    plain = {"clean_up_tokenization_spaces": False, "skip_special_tokens": True}
    texts = list(TORTURE)
    if name == "marian":
        texts += [">>deu<< Hello world", ">>fra<<hello", ">>xxx<< hello", ">> no <"]
    rows = [known(each)["input_ids"] for each in texts]
    pairs = [known(*pair, return_token_type_ids=True) for pair in PAIRS]
    inner = [known(t, add_special_tokens=False)["input_ids"] for t in texts]
    # M2M100Tokenizer does not know its codes of languages for special.
    written = inner if name == "m2m100" else rows
    models = [p for p in Path(folder).iterdir() if p.suffix in (".model", ".spm")]
    own = {}
    if models and kind:
        # transformers 5 converts most models for another library, and not exactly:
        # what SentencePiece gives, with the ids that transformers has for its pieces.
        (model,) = (p for p in models if p.name != "target.spm")
        processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
        own["sentencepiece"] = [
            known.convert_tokens_to_ids(processor.encode(each, out_type=str))
            for each in TORTURE
        ]
    found = {
        **own,
        "kind": kind,
        "texts": texts,
        "ids": rows,
        "inner": inner,
        "decoded": [known.decode(row, **plain) for row in written],
        "pairs": PAIRS,
        "pair_ids": [pair["input_ids"] for pair in pairs],
        "pair_segments": [pair["token_type_ids"] for pair in pairs],
        "size": len(known),
        "class": of.__name__,
    }
    if name in ("marian", "m2m100", "bart", "t5", "pegasus") or known.__dict__.get(
        "tgt_lang"
    ):
        found["targets"] = [known(text_target=t)["input_ids"] for t in texts]
    for role in ("pad", "bos", "eos", "unk", "mask", "cls", "sep"):
        found[role] = getattr(known, f"{role}_token_id")
    if known.chat_template:
        options = {"tokenize": False, "add_generation_prompt": True}
        some = [c for c in CHATS]
        found["chats"] = some
        found["chat_texts"] = [known.apply_chat_template(c, **options) for c in some]
        found["chat_ids"] = [
            known(t, add_special_tokens=False)["input_ids"] for t in found["chat_texts"]
        ]
    return found


def main():
    path = Path(__file__).with_name("tokenizers.zip")
    stored, files = {}, {}
    for name, (kind, of, content) in folders().items():
        print(name, file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder:
            for file, data in content.items():
                write(Path(folder) / file, data)
            found = cases(name, kind, of, folder)
        data = {**content, "cases.json": json.dumps(found, ensure_ascii=False)}
        for file, each in data.items():
            each = each if isinstance(each, bytes) else each.encode()
            # A model of several folders is stored once; others say where.
            first = stored.setdefault(each, f"{name}/{file}")
            if first == f"{name}/{file}":
                files[first] = each
            else:
                files[f"{name}/{file}.same"] = first.encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        for name, content in files.items():
            # The epoch of zip files: equal content makes equal files.
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_LZMA)
    print(path, path.stat().st_size, file=sys.stderr)


if __name__ == "__main__":
    main()
