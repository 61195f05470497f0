"""What kzoo writes, transformers reads with equal ids; where it is installed."""

import io
import itertools
import json
from random import Random

import pytest
import sentencepiece
from tokenizers.pre_tokenizers import ByteLevel

from kzoo.tokenizers import (
    FastTokenizer,
    load_pretrained_tokenizer,
    save_pretrained_tokenizer,
)
from kzoo.tokenizers.conventions import Template
from tests.golden import folders as golden

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore")


# Ranges of characters: Latin, marks, Greek to Thai, Hangul, spaces and signs, kana,
# Han, ligatures, wide forms, flags, emoji, mathematical letters, control characters.
RANGES = (
    "20-7e a0-17f 300-36f 370-4ff 590-6ff 900-97f e00-e7f 1100-11ff 2000-206f "
    "20a0-218f 3000-30ff 4e00-4eff ac00-acff fb00-fb4f fe00-fe0f ff00-ffef 1f1e6-1f1ff "
    "1f300-1f64f 1d400-1d4ff 1-1f"
)
WORDS = (
    "the hello world a man rides größer été 日本語 привет שלום مرحبا ﬁ Å ① ½".split()
)


def drawn(count):
    """Texts of words, of characters of a range in a row, and of all kinds of spaces."""
    random = Random(0)
    ranges = [[int(end, 16) for end in each.split("-")] for each in RANGES.split()]

    def part():
        if random.random() < 0.5:
            return random.choice(WORDS)
        first, last = random.choice(ranges)
        return "".join(chr(random.randint(first, last)) for _ in range(3))

    spaces = ["", " ", " ", "  ", "\n", "\t", "\r\n", "\u00a0", "\u3000", "\u200d"]
    return [
        "".join(part() + random.choice(spaces) for _ in range(random.randint(0, 12)))
        for _ in range(count)
    ]


def check(folder, cases):
    """AutoTokenizer gives what transformers gave before, special tokens and all."""
    known = transformers.AutoTokenizer.from_pretrained(folder)
    assert [known(text)["input_ids"] for text in cases["texts"]] == cases["ids"]
    for pair, ids in zip(cases["pairs"], cases["pair_ids"], strict=True):
        assert known(*pair)["input_ids"] == ids
    for role in ("pad", "bos", "eos", "unk", "mask", "cls", "sep"):
        assert getattr(known, f"{role}_token_id") == cases[role]
    for chat, text in zip(cases.get("chats", ()), cases.get("chat_texts", ())):
        options = {"tokenize": False, "add_generation_prompt": True}
        assert known.apply_chat_template(chat, **options) == text
    return known


@pytest.mark.parametrize("name", golden.names())
def test_written_folders_are_read_by_transformers(name, tmp_path):
    cases = golden.unpack(name, tmp_path)
    tokenizer = load_pretrained_tokenizer(tmp_path, cases["kind"])
    folder = tmp_path / "written"
    save_pretrained_tokenizer(tokenizer, folder)
    check(folder, cases)


@pytest.mark.parametrize("name", golden.names())
def test_ids_and_texts_equal_transformers_for_drawn_texts(name, tmp_path):
    cases = golden.unpack(name, tmp_path)
    tokenizer = load_pretrained_tokenizer(tmp_path, cases["kind"])
    known = getattr(transformers, cases["class"]).from_pretrained(tmp_path)
    names = {*tokenizer.tokens(sorted(tokenizer.special_ids)), "<unk>", "[UNK]"}
    texts = [text for text in drawn(300) if not any(name in text for name in names)]
    assert len(texts) > 250
    rows = [known(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert tokenizer.encode(texts) == rows
    options = dict(clean_up_tokenization_spaces=False, skip_special_tokens=True)
    for text, row in zip(tokenizer.decode(rows), rows):
        if tokenizer.unknown_token_id not in row:  # shown here, left out there
            assert text == known.decode(row, **options)


SYMBOLS = ["<turn>", "hello"]
# Of a class: the file, the kind, the first ids, the algorithm, and settings.
T5_IDS = dict(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
GEMMA_IDS = dict(pad_id=0, eos_id=1, bos_id=2, unk_id=3)
GEMMA_IDS |= dict(pad_piece="<pad>", bos_piece="<bos>", eos_piece="<eos>")
CLASSES = {
    "T5": ("spiece.model", "sentencepiece", "unigram", T5_IDS),
    "XLMRoberta": ("sentencepiece.bpe.model", "fairseq_sentencepiece", "unigram", {}),
    "Pegasus": ("spiece.model", "pegasus", "unigram", T5_IDS),
    "Llama": ("tokenizer.model", "sentencepiece", "bpe", {}),
    "Gemma": ("tokenizer.model", "sentencepiece", "bpe", GEMMA_IDS),
}
SETTINGS = [
    {},
    {"additional_special_tokens": ["<x1>"]},
    {"additional_special_tokens": ["<turn>"]},
    {"image_token": "<x1>"},
    {"extra_special_tokens": {"image_token": "<turn>"}},
    {"add_prefix_space": False},
    {"add_prefix_space": None, "legacy": True},
]


@pytest.mark.parametrize(
    "name, settings",
    [
        *itertools.product(CLASSES, SETTINGS),
        ("Llama", {"eos_token": None}),
        ("Gemma", {"eos_token": None, "add_eos_token": True}),
    ],
    ids=str,
)
def test_models_with_symbols_of_their_own_are_read_alike(name, settings, tmp_path):
    file, kind, algorithm, own = CLASSES[name]
    model = io.BytesIO()
    corpus = ["a man rides a bike", "hello hellos", "<turn> the world", "größer été"]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus * 9),
        model_writer=model,
        vocab_size=400,
        model_type=algorithm,
        byte_fallback=algorithm == "bpe",
        user_defined_symbols=SYMBOLS,
        hard_vocab_limit=False,
        minloglevel=2,
        **own,
    )
    (tmp_path / file).write_bytes(model.getvalue())
    described = {"tokenizer_class": f"{name}Tokenizer", **settings}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(described))
    tokenizer = load_pretrained_tokenizer(tmp_path, kind)
    known = getattr(transformers, f"{name}Tokenizer").from_pretrained(tmp_path)
    texts = ["<turn>hello hellos", "x<turn>", " hello  world", *drawn(40)]
    names = {"\x00", *(text for text in ("<x1>", "<turn>") if text in str(settings))}
    texts = [text for text in texts if not any(name in text for name in names)]
    rows = [known(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert tokenizer.encode(texts) == rows
    for each in tokenizer, load_pretrained_tokenizer(tmp_path, kind, convert=False):
        special = known.all_special_tokens
        assert each.vocabulary_size == len(known)
        ids = [each.token_id(name) for name in special]
        assert ids == known.convert_tokens_to_ids(special)
        added = {each.token_id("<x1>")} - {None}
        assert bool(added) == ("<x1>" in str(settings)) and added <= each.special_ids
    known.save_pretrained(tmp_path / "saved")
    saved = load_pretrained_tokenizer(tmp_path / "saved", kind)
    assert saved.encode(texts) == rows
    for text, row in zip(saved.decode(rows), rows):
        if tokenizer.unknown_token_id not in row:
            assert text == known.decode(row, skip_special_tokens=True)


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"bos_token": None},
        {"eos_token": None},
        {"bos_token": None, "eos_token": None},
        {"bos_token": None, "add_bos_token": True},
        {"eos_token": None, "add_eos_token": True},
        {"add_bos_token": True},
    ],
    ids=str,
)
def test_roles_that_vocabularies_or_settings_lack_are_read_alike(
    settings, listed, tmp_path
):
    pieces = [*sorted(ByteLevel.alphabet()), "he", *["<|endoftext|>"] * listed]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    described = {"tokenizer_class": "GPT2Tokenizer", **settings}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("h e\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(described))
    if settings == {"add_bos_token": True} and not listed:
        with pytest.raises(ValueError, match="bos_token must be in the vocabulary"):
            load_pretrained_tokenizer(tmp_path, "byte_bpe")
        return
    tokenizer = load_pretrained_tokenizer(tmp_path, "byte_bpe")
    known = transformers.GPT2Tokenizer.from_pretrained(tmp_path)
    (ids,) = tokenizer.encode(["he 日"])
    before, behind = tokenizer.conventions.template.around()
    assert [*before, *ids, *behind] == known("he 日")["input_ids"]
    assert tokenizer.end_token_id == known.eos_token_id
    assert tokenizer.vocabulary_size == len(known)


@pytest.mark.parametrize(
    "settings",
    [
        {"image_token": "<x1>", "audio_token": None},
        {"extra_special_tokens": {"image_token": "<x1>", "x": "<x2>"}},
        {"extra_special_tokens": ["<x2>"], "image_token": "<x1>"},
        {"additional_special_tokens": {"x": "<x1>"}, "image_token": "<x2>"},
        {"additional_special_tokens": {"x": "<x1>"}, "extra_special_tokens": []},
        {"image_token": {"__type": "AddedToken", "content": "<x1>", "lstrip": True}},
        {"image_token": {"content": "<x2>"}, "x_token": "<x1>"},
        {"model_specific_special_tokens": {"x": "<x1>"}},
        {"model_specific_special_tokens": {"x": "<x2>"}, "image_token": "<x1>"},
        {"extra_special_tokens": {"bos_token": "<x1>"}},
    ],
    ids=str,
)
def test_chat_templates_know_the_same_tokens(settings, tmp_path):
    pytest.importorskip("jinja2")
    own = FastTokenizer.train(["A man rides a bike.", "hello there, World!"] * 3, 300)
    save_pretrained_tokenizer(own, tmp_path)
    template = "{{ bos_token }}{{ image_token }}{{ x }}{{ x_token }}"
    template += "{{ extra_special_tokens }}{{ messages[0] }}"
    (tmp_path / "chat_template.jinja").write_text(template)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    tokenizer = load_pretrained_tokenizer(tmp_path)
    save_pretrained_tokenizer(tokenizer, tmp_path / "written")
    known = transformers.AutoTokenizer.from_pretrained(tmp_path)
    known.save_pretrained(tmp_path / "theirs")  # which may lose a name
    for folder in (tmp_path, tmp_path / "written", tmp_path / "theirs"):
        known = transformers.AutoTokenizer.from_pretrained(folder)
        tokenizer = load_pretrained_tokenizer(folder)
        assert tokenizer.vocabulary_size == len(known)
        chat = [dict(role="user", content="hello there")]
        text = known.apply_chat_template(chat, tokenize=False)
        assert tokenizer.apply_chat_template(chat) == text
        assert "<x1>" in text or folder.name == "theirs"
        ids = known.apply_chat_template(chat, return_dict=False)
        assert tokenizer.encode_chat(chat) == ids


def test_marian_s_special_tokens_that_its_model_lacks_have_the_same_ids(tmp_path):
    cases = golden.unpack("marian", tmp_path)
    settings = dict(additional_special_tokens=["<sep1>", "<sep2>"])
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    known = transformers.MarianTokenizer.from_pretrained(tmp_path)
    tokenizer = load_pretrained_tokenizer(tmp_path, cases["kind"])
    assert tokenizer.vocabulary_size == len(known)
    for name in known.all_special_tokens:
        assert tokenizer.token_id(name) == known.convert_tokens_to_ids(name)


def test_languages_are_written(tmp_path):
    cases = golden.unpack("mbart50_json", tmp_path)
    tokenizer = load_pretrained_tokenizer(tmp_path, cases["kind"])
    tokenizer = tokenizer.for_languages(source="fr_XX", target="zh_CN")
    folder = tmp_path / "written"
    save_pretrained_tokenizer(tokenizer, folder)
    known = transformers.AutoTokenizer.from_pretrained(folder)
    template = tokenizer.conventions.template
    for text in cases["texts"]:
        assert known(text)["input_ids"] == template.join(tokenizer.encode([text]))[0]
    prefix = tokenizer.conventions.target_prefix
    assert known(text_target="a")["input_ids"][:1] == list(prefix)


@pytest.mark.parametrize("algorithm", ["bpe", "wordpiece", "character"])
def test_trained_tokenizers_are_read_by_transformers(algorithm, tmp_path):
    texts = ["A man rides a bike.", "hello there, World!", "ein Häuschen"] * 3
    own = FastTokenizer.train(texts, 400, algorithm=algorithm, mask_token=True)
    save_pretrained_tokenizer(own, tmp_path)
    known = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in (*texts, "", "  x y\n", "日本"):
        (ids,) = own.encode([text])
        whole = [own.start_token_id, *ids, own.end_token_id]
        assert known(text)["input_ids"] == whole
    assert known.pad_token_id == own.pad_token_id
    assert known.mask_token_id == own.mask_token_id
    again = load_pretrained_tokenizer(tmp_path)
    assert again._ids == own._ids
    assert "token_type_ids" not in known("A man", "rides")
    end = [own.end_token_id]
    template = Template.of([own.start_token_id], end, end, segments=(0, 1))
    save_pretrained_tokenizer(own, tmp_path, template, segments=True)
    read = transformers.AutoTokenizer.from_pretrained(tmp_path)("A man", "rides")
    again = load_pretrained_tokenizer(tmp_path)
    joined = again.conventions.template.join(again.encode(["A man", "rides"]))
    assert joined == (read["input_ids"], read["token_type_ids"])
    assert joined == template.join(own.encode(["A man", "rides"]))
