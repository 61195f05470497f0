"""Tokenizers of Hugging Face folders equal transformers, as golden files have it."""

import json
import pickle
import random
import shutil

import pytest
import tokenizers

from kzoo.tokenizers import (
    FastTokenizer,
    SentencePieceTokenizer,
    Template,
    Tokenizer,
    load_pretrained_tokenizer,
    load_tokenizer,
    save_pretrained_tokenizer,
)
from kzoo.tokenizers.hf_saving import named_padding
from tests.golden import folders as golden

NAMES = golden.names()
# Which are SentencePiece models without a tokenizer.json.
MODELS = [
    name
    for name in NAMES
    if "sentencepiece" in json.loads(golden.content(name, "cases.json"))
]
CHATS = [name for name in NAMES if name.startswith(("llama_", "qwen"))]


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    known = {}

    def loaded(name):
        if name not in known:
            folder = tmp_path_factory.mktemp(name)
            cases = golden.unpack(name, folder)
            tokenizer = load_pretrained_tokenizer(folder, cases["kind"])
            known[name] = tokenizer, cases, folder
        return known[name]

    return loaded


def written_again(tokenizer, folder):
    save_pretrained_tokenizer(tokenizer, folder)
    return load_pretrained_tokenizer(folder)


def with_template(tokenizer, *texts):
    return tokenizer.conventions.template.join(tokenizer.encode(texts))


@pytest.mark.parametrize("name", NAMES)
def test_ids_equal_transformers(load, name):
    tokenizer, cases, _ = load(name)
    assert tokenizer.encode(cases["texts"]) == cases["inner"]


@pytest.mark.parametrize("name", MODELS)
def test_unconverted_models_give_what_sentencepiece_does(name, tmp_path):
    cases = golden.unpack(name, tmp_path)
    tokenizer = load_pretrained_tokenizer(tmp_path, cases["kind"], convert=False)
    assert isinstance(tokenizer, SentencePieceTokenizer)
    own = cases["sentencepiece"]
    assert tokenizer.encode(cases["texts"])[: len(own)] == own
    converted = load_pretrained_tokenizer(tmp_path, cases["kind"])
    assert converted.special_ids == tokenizer.special_ids
    assert converted._ids == tokenizer._ids
    assert converted.vocabulary_size == tokenizer.vocabulary_size
    assert converted.conventions.template == tokenizer.conventions.template
    save_pretrained_tokenizer(tokenizer, tmp_path / "written")
    again = load_pretrained_tokenizer(
        tmp_path / "written", cases["kind"], convert=False
    )
    assert again.encode(cases["texts"]) == tokenizer.encode(cases["texts"])


def test_a_piece_of_a_text_is_not_special_for_the_config_alone(load, tmp_path):
    # As LlamaConfig has them where nothing is said: ids of characters here.
    described = library_of("gpt2_json", load)
    config = dict(model_type="llama", bos_token_id=1, eos_token_id=2)
    (tmp_path / "config.json").write_text(json.dumps(config))
    tokenizer = read(tmp_path, described)
    before, _, _ = load("gpt2_json")
    texts = ['say "hello" #1', "a#b", '"']
    assert tokenizer.encode(texts) == before.encode(texts)


def test_special_tokens_of_a_word_that_merges_make_are_text_in_texts(load, tmp_path):
    settings = dict(additional_special_tokens=["he"], tokenizer_class="GPT2Tokenizer")
    described = library_of("gpt2_json", load)
    assert "he" in described["model"]["vocab"]
    tokenizer = read(tmp_path, described, **settings)
    (ids,) = tokenizer.encode(["he ate hers"])
    assert tokenizer.token_id("he") in tokenizer.special_ids
    assert tokenizer.special_ids.isdisjoint(ids)
    assert b"".join(tokenizer.token_bytes()[1][i] for i in ids) == b"he ate hers"


@pytest.mark.parametrize("key", ["additional_special_tokens", "extra_special_tokens"])
def test_an_added_token_of_texts_is_none_for_being_listed(key, load, tmp_path):
    # As transformers 5 writes the symbols of a SentencePiece model.
    described = library_of("gpt2_json", load)
    new = dict(id=len(described["model"]["vocab"]), content="<turn>", special=False)
    flags = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False)
    described["added_tokens"].append({**new, **flags})
    tokenizer = read(tmp_path, described, **{key: ["<turn>", "<late>"]})
    assert tokenizer.token_id("<late>") in tokenizer.special_ids
    assert new["id"] not in tokenizer.special_ids
    (ids,) = tokenizer.encode(["a<turn>b"])
    assert ids[1] == new["id"] and tokenizer.decode([ids]) == ["a<turn>b"]
    save_pretrained_tokenizer(tokenizer, tmp_path / "written")
    written = json.loads((tmp_path / "written" / "tokenizer.json").read_text())
    special = {t["content"]: t["special"] for t in written["added_tokens"]}
    assert special["<late>"] and not special["<turn>"]


def test_a_special_character_that_nothing_else_writes_is_kept(load, tmp_path):
    described = library_of("gpt2_json", load)
    tokenizer = read(tmp_path, described, pad_token="!")
    (ids,) = tokenizer.encode(["hello! world"])
    assert described["model"]["vocab"]["!"] in ids


@pytest.mark.parametrize("name", NAMES)
def test_names_of_special_tokens_in_a_text_are_text(load, name):
    tokenizer, cases, _ = load(name)
    known = sorted(tokenizer.special_ids)
    texts = [f"a {piece} b{piece}" for piece in tokenizer.tokens(known)]
    rows = tokenizer.encode(texts)
    assert all(tokenizer.special_ids.isdisjoint(row) for row in rows)
    again, offsets = tokenizer.encode_with_offsets(texts)
    assert again == rows and all(len(a) == len(b) for a, b in zip(rows, offsets))
    # Their neighbours in a batch are not changed by them.
    mixed = tokenizer.encode([cases["texts"][1], texts[0], cases["texts"][2]])
    assert mixed == [cases["inner"][1], rows[0], cases["inner"][2]]


@pytest.mark.parametrize("name", NAMES)
def test_templates_stand_around_texts_as_transformers_has_them(load, name):
    tokenizer, cases, _ = load(name)
    for text, whole in zip(cases["texts"], cases["ids"], strict=True):
        assert with_template(tokenizer, text)[0] == whole
    for pair, ids, segments in zip(
        cases["pairs"], cases["pair_ids"], cases["pair_segments"], strict=True
    ):
        found = with_template(tokenizer, *pair)
        if cases["kind"] in ("marian", "m2m100"):  # their models have no segments
            found, segments = (found[0], None), None
        elif name in ("llama3", "llama_metaspace", "llama_prepend", "qwen"):
            # Of no family's class, which tells texts apart only when it is asked to.
            segments = [0] * len(ids)
        assert found == (ids, segments)


@pytest.mark.parametrize("name", NAMES)
def test_decoded_texts_equal_transformers(load, name):
    tokenizer, cases, _ = load(name)
    compared = 0
    for inner, ids, text in zip(cases["inner"], cases["ids"], cases["decoded"]):
        # An unknown token is shown here, and left out there.
        if tokenizer.unknown_token_id not in inner:
            assert tokenizer.decode([ids]) == [text]
            compared += 1
    assert compared >= 4


@pytest.mark.parametrize("name", NAMES)
def test_special_ids_are_those_of_the_files(load, name):
    tokenizer, cases, _ = load(name)
    end = cases["eos"] if cases["eos"] is not None else cases["sep"]
    assert tokenizer.end_token_id == end
    assert tokenizer.mask_token_id == cases["mask"]
    assert tokenizer.original_pad_token_id == cases["pad"]
    if cases["pad"] not in (None, end):
        assert tokenizer.pad_token_id == cases["pad"]
    if name != "m2m100":  # transformers leaves the codes of languages out
        assert tokenizer.vocabulary_size == cases["size"]
    assert tokenizer.pad_token_id != tokenizer.end_token_id
    # No text has it.
    for ids in tokenizer.encode(cases["texts"]):
        assert tokenizer.pad_token_id not in ids


@pytest.mark.parametrize("name", NAMES)
def test_targets_begin_with_their_language(load, name):
    tokenizer, cases, _ = load(name)
    if "targets" not in cases:
        return
    known = tokenizer.conventions
    prefix = [*known.target_prefix, *known.learned_prefix]
    for text, target in zip(cases["texts"], cases["targets"]):
        ids = tokenizer.encode_targets([text])[0]
        whole = [*prefix, *ids, tokenizer.end_token_id]
        if name == "mbart":  # the code stands behind, and is what a target starts with
            whole.append(tokenizer.start_token_id)
        assert whole == target


@pytest.mark.parametrize("name", NAMES)
def test_saved_tokenizers_are_loaded_again(load, name, tmp_path):
    tokenizer, cases, _ = load(name)
    tokenizer.save(tmp_path)
    for again in (
        load_tokenizer(tmp_path),
        Tokenizer.from_config(json.loads(json.dumps(tokenizer.get_config()))),
        pickle.loads(pickle.dumps(tokenizer)),
    ):
        assert again.conventions == tokenizer.conventions
        assert again.get_config() == tokenizer.get_config()
        assert again.special_ids == tokenizer.special_ids
        assert again.encode(cases["texts"]) == tokenizer.encode(cases["texts"])


@pytest.mark.parametrize("name", NAMES)
def test_written_folders_are_read_again(load, name, tmp_path):
    tokenizer, cases, folder = load(name)
    save_pretrained_tokenizer(tokenizer, tmp_path)
    if (folder / "config.json").exists():  # the model's, beside the tokenizer's
        shutil.copy(folder / "config.json", tmp_path)
    again = load_pretrained_tokenizer(tmp_path, cases["kind"])
    assert again.encode(cases["texts"]) == tokenizer.encode(cases["texts"])
    assert again.conventions.template == tokenizer.conventions.template
    assert again._ids == tokenizer._ids
    assert again.original_pad_token_id == tokenizer.original_pad_token_id
    assert again.chat_template == tokenizer.chat_template


@pytest.mark.parametrize("name", ["mbart50", "mbart50_json", "nllb", "m2m100", "mbart"])
def test_languages_change_source_and_target(load, name):
    tokenizer, _, _ = load(name)
    source, target = {"nllb": ("fra_Latn", "zho_Hans"), "m2m100": ("fr", "zh")}.get(
        name, ("fr_XX", "zh_CN")
    )
    changed = tokenizer.for_languages(source=source, target=target)
    codes = [tokenizer.conventions.languages[code] for code in (source, target)]
    end = tokenizer.end_token_id
    if name == "mbart":
        assert changed.conventions.template.around() == [[], [end, codes[0]]]
        assert changed.start_token_id == codes[1]
    else:
        assert changed.conventions.template.around() == [[codes[0]], [end]]
        assert changed.conventions.target_prefix == (codes[1],)
    assert set(codes) <= changed.special_ids
    assert pickle.loads(pickle.dumps(changed)).conventions == changed.conventions


def test_a_language_that_is_not_known_is_an_error_with_near_ones(load):
    tokenizer, _, _ = load("nllb")
    with pytest.raises(ValueError, match=r"deu_Latn.*Received: 'de_Latn'"):
        tokenizer.for_languages(source="de_Latn")
    with pytest.raises(ValueError, match="no codes of languages"):
        load("bert")[0].for_languages(target="de")


def test_marian_is_told_the_target_in_the_source(load):
    tokenizer, cases, _ = load("marian")
    changed = tokenizer.for_languages(target="deu")
    at = cases["texts"].index(">>deu<< Hello world")
    assert with_template(changed, "Hello world")[0] == cases["ids"][at]
    ids, offsets = tokenizer.encode_with_offsets([">>deu<< Hello world"])
    assert ids == [cases["inner"][at]]
    assert offsets[0][0] == (0, 7) and offsets[0][-1][1] == 19
    with pytest.raises(ValueError, match="target's language alone"):
        tokenizer.for_languages(source="deu")


@pytest.mark.parametrize("name", CHATS)
def test_chats_equal_transformers(load, name):
    pytest.importorskip("jinja2")
    tokenizer, cases, _ = load(name)
    for chat, text, ids in zip(
        cases["chats"], cases["chat_texts"], cases["chat_ids"], strict=True
    ):
        assert tokenizer.apply_chat_template(chat) == text
        assert tokenizer.encode_chat(chat) == ids


@pytest.mark.parametrize(
    "settings",
    [
        {"image_token": "<img>"},
        {"image_token": {"__type": "AddedToken", "content": "<img>", "lstrip": False}},
        {"model_specific_special_tokens": {"image_token": "<img>"}},
        {"extra_special_tokens": {"image_token": "<img>"}},
        {"additional_special_tokens": {"image_token": "<img>"}},
    ],
    ids=str,
)
def test_chat_templates_know_all_tokens_that_have_a_name(settings, load, tmp_path):
    """`live_test.py` has them beside transformers."""
    pytest.importorskip("jinja2")
    template = "{{ eos_token }}{{ image_token }}{{ messages[0].content }}"
    described = library_of("gpt2_json", load)
    settings = dict(eos_token="<|endoftext|>", chat_template=template, **settings)
    before = load("gpt2_json")[0]
    for tokenizer in (
        read(tmp_path, described, **settings),
        written_again(read(tmp_path, described, **settings), tmp_path / "again"),
    ):
        assert tokenizer.vocabulary_size == before.vocabulary_size + 1
        new = tokenizer.token_id("<img>")
        assert new == before.vocabulary_size and new in tokenizer.special_ids
        assert tokenizer.apply_chat_template(chat("hi")) == "<|endoftext|><img>hi"
        ids = [before.end_token_id, new, *before.encode(["hi"])[0]]
        assert tokenizer.encode_chat(chat("hi")) == ids


def test_a_word_that_has_a_name_is_a_word_in_texts(load, tmp_path):
    pytest.importorskip("jinja2")
    template = "{{ image_token }}{{ messages[0].content }}"
    settings = dict(image_token="he", chat_template=template)
    tokenizer = read(tmp_path, library_of("gpt2_json", load), **settings)
    before, texts = load("gpt2_json")[0], ["he ate hers", "the"]
    assert tokenizer.encode(texts) == before.encode(texts)
    assert tokenizer.vocabulary_size == before.vocabulary_size
    assert tokenizer.apply_chat_template(chat("hi")) == "hehi"


@pytest.mark.parametrize("name", ["marian", "m2m100"])
def test_special_tokens_that_a_model_lacks_get_ids(name, load, tmp_path):
    """As `live_test.py` has it; M2M100's stand behind its languages, as they are."""
    before, cases, folder = load(name)
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "tokenizer_config.json"
    settings = json.loads(path.read_text()) if path.exists() else {}
    listed = ["<sep1>", dict(content="<sep2>", lstrip=False)]
    settings["additional_special_tokens"] = listed
    path.write_text(json.dumps(settings))
    tokenizer = load_pretrained_tokenizer(tmp_path, cases["kind"])
    save_pretrained_tokenizer(tokenizer, tmp_path / "again")
    count = before.vocabulary_size
    again = load_pretrained_tokenizer(tmp_path / "again", cases["kind"])
    for each in tokenizer, again:
        assert each.tokens(range(count)) == before.tokens(range(count))
        assert each.tokens([count, count + 1]) == ["<sep1>", "<sep2>"]
        assert each.vocabulary_size == count + 2
        assert {
            count,
            count + 1,
        } < each.special_ids and each.languages == before.languages
        assert each.encode(cases["texts"]) == before.encode(cases["texts"])


def test_padding_is_named_for_readers_that_need_one(load, tmp_path):
    tokenizer, cases, _ = load("gpt2_json")
    assert tokenizer.original_pad_token_id is None
    (end,) = tokenizer.tokens([tokenizer.end_token_id])
    settings = {**tokenizer.conventions.settings, "pad_token": end}
    for known in (tokenizer, tokenizer.with_conventions(settings=settings)):
        save_pretrained_tokenizer(named_padding(known), tmp_path)
        again = load_pretrained_tokenizer(tmp_path, cases["kind"])
        assert again.original_pad_token_id == again.pad_token_id == known.pad_token_id
        assert again.encode(cases["texts"]) == tokenizer.encode(cases["texts"])
        assert named_padding(again) is again


NAMED = {"default": "D{{ messages[0].content }}", "tool_use": "T{{ tools[0] }}"}


@pytest.fixture(params=["settings", "files"])
def with_templates(request, load, tmp_path):
    """A folder whose tokenizer has several chat templates."""
    folder = tmp_path / "in"
    shutil.copytree(load("qwen")[2], folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    settings.pop("chat_template", None)
    if request.param == "settings":
        every = [{"name": n, "template": text} for n, text in NAMED.items()]
        settings["chat_template"] = every
    else:
        (folder / "additional_chat_templates").mkdir()
        (folder / "chat_template.jinja").write_text(NAMED["default"])
        own = folder / "additional_chat_templates" / "tool_use.jinja"
        own.write_text(NAMED["tool_use"])
    path.write_text(json.dumps(settings))
    return folder


def test_chats_with_tools_have_the_template_for_them(with_templates, tmp_path):
    pytest.importorskip("jinja2")
    tokenizer = load_pretrained_tokenizer(with_templates)
    save_pretrained_tokenizer(tokenizer, tmp_path / "out")
    tokenizer.save(tmp_path / "own")
    for known in (
        tokenizer,
        load_pretrained_tokenizer(tmp_path / "out"),
        load_tokenizer(tmp_path / "own"),
    ):
        assert known.apply_chat_template(chat("hi")) == "Dhi"
        assert known.apply_chat_template(chat("hi"), tools=["f"]) == "Tf"
        ids = known.encode_chat(chat("hi"), tools=["f"])
        assert known.decode([ids]) == ["Tf"]


def test_all_chat_templates_are_written_as_every_reader_expects_them(
    with_templates, tmp_path
):
    out = tmp_path / "out"
    save_pretrained_tokenizer(load_pretrained_tokenizer(with_templates), out)
    own = out / "additional_chat_templates" / "tool_use.jinja"
    assert own.read_text() == NAMED["tool_use"]
    assert (out / "chat_template.jinja").read_text() == NAMED["default"]
    settings = json.loads((out / "tokenizer_config.json").read_text())
    every = {each["name"]: each["template"] for each in settings["chat_template"]}
    assert every == NAMED


def test_a_chat_template_whose_name_leads_elsewhere_is_refused(load, tmp_path):
    folder = tmp_path / "in"
    shutil.copytree(load("qwen")[2], folder)
    path = folder / "tokenizer_config.json"
    every = [{"name": "../../mine", "template": "a"}]
    path.write_text(
        json.dumps({**json.loads(path.read_text()), "chat_template": every})
    )
    with pytest.raises(ValueError, match=r"must have names.*Received: \['../../mine'"):
        load_pretrained_tokenizer(folder)


@pytest.mark.parametrize("name", ["continue_final_message", "tokenize", "padding"])
def test_an_argument_of_transformers_that_kzoo_has_not_is_refused(load, name):
    tokenizer, _, _ = load("qwen")
    for write in (tokenizer.apply_chat_template, tokenizer.encode_chat):
        with pytest.raises(ValueError, match=f"Received: {name}=True. Instead, "):
            write(chat("hi"), **{name: True})


def chat(content):
    return [{"role": "user", "content": content}]


@pytest.mark.parametrize("name", CHATS)
def test_special_tokens_of_users_stay_text_in_chats(load, name):
    pytest.importorskip("jinja2")
    tokenizer, _, _ = load(name)
    ids = sorted(tokenizer.special_ids)
    names = tokenizer.tokens([i for i in ids if i != tokenizer.pad_token_id])
    plain = tokenizer.encode_chat(chat("hello"))
    for content in (
        "".join(names),
        f"hello {names[0]} there{names[-1]}\n",
        f"  {names[-1][1:]}{names[-1]}{names[-1][:-1]} ",
    ):
        found = tokenizer.encode_chat(chat(content))
        for special in ids:
            assert found.count(special) == plain.count(special)
        rendered = tokenizer.apply_chat_template(chat(content))
        assert content.strip() in rendered


def test_a_chat_template_that_does_what_none_may_is_an_error(load):
    pytest.importorskip("jinja2")
    config = load("qwen")[0].get_config()

    def of(template):
        own = {**config["conventions"], "chat_template": template}
        return FastTokenizer.from_config({**config, "conventions": own})

    for bad in (
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception('no') }}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{{ messages[0",
        "{{ unknown.attribute }}",
        "{{ 'x' * 10**10 }}",
        "{{ [1] * 10**10 }}",
        "{{ 10 ** 9999 }}",
    ):
        with pytest.raises(ValueError, match="chat template"):
            of(bad).apply_chat_template(chat("hi"))
    with pytest.raises(ValueError, match="no chat template"):
        of(None).apply_chat_template(chat("hi"))


BOMBS = (
    '{% set a = "%200000000d" % 1 %}',
    '{% set a = "%(a)-200000000d" % {"a": 1} %}',
    '{% set a = "%.200000000f" % 1 %}',
    '{% set a = "%*d" % (200000000, 1) %}',
    '{% set a = "x".ljust(200000000) %}',
    '{% set a = "x".rjust(200000000) %}',
    '{% set a = "x"["zfill"](200000000) %}',
    '{% set a = "{:>200000000}".format(1) %}',
    '{% set a = "{a:>200000000}".format_map({"a": 1}) %}',
    '{% set a = "x\\t".expandtabs(200000000) %}',
    '{% set a = "x"|center(200000000) %}',
    '{% set a = "x"|center(width=200000000) %}',
    '{% set a = "x"|indent(200000000, true) %}',
    '{% set a = "%200000000d"|format(1) %}',
    '{% set a = ["x"]|batch(200000000, "x")|list %}',
    '{% set a = ["x"]|slice(200000000)|list %}',
    '{% set a = ["x"]|tojson(indent=200000000) %}',
    "{% set a = lipsum(n=200000000) %}",
    '{% set a = "x" * 9000000 %}{% set a = a + a %}',
    '{% set a = "x" * 9000000 %}{% set a = a ~ a %}',
    '{% set a = "x" * 9000000 %}{% set a %}{{ a }}{{ a }}{% endset %}',
    '{% set a = "x" * 9000 %}{% set a = a.replace("x", a) %}',
    '{% set a = "x" * 9000 %}{% set a = a|replace("x", a) %}',
    '{% set a = "x" * 9000 %}{% set a = a.join(a) %}',
    "{% set a = 2 ** 999 %}{% set a = a ** 999 %}",
    "{% for i in range(3000) %}{% for j in range(3000) %}{% endfor %}{% endfor %}",
    "{% for i in range(3000) %}{% for j in 'x' * 3000 if false %}{% endfor %}"
    "{% endfor %}",
    "{% for i in [1] recursive %}{% if loop.depth < 8 %}{{ loop([1] * 9) }}{% endif %}"
    "{% endfor %}",
    "{% macro f(n) %}{% if n %}{% set a = f(n - 1) ~ f(n - 1) %}{% endif %}"
    "{% endmacro %}{{ f(25) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
)


@pytest.mark.parametrize("template", BOMBS)
def test_a_chat_template_cannot_take_all_memory_or_time(load, template, monkeypatch):
    pytest.importorskip("jinja2")
    monkeypatch.setattr("kzoo.tokenizers.chat._STEPS", 50_000)
    config = load("qwen")[0].get_config()
    own = {**config["conventions"], "chat_template": template}
    tokenizer = FastTokenizer.from_config({**config, "conventions": own})
    with pytest.raises(ValueError, match="chat template"):
        tokenizer.apply_chat_template(chat("hi"))


def test_a_chat_template_writes_what_jinja_does(load):
    pytest.importorskip("jinja2")
    config = load("qwen")[0].get_config()
    template = (
        '{{ "2024 %s: %02d%%" % ("a", 7) }} {{ "%s"|format("b") }} '
        '{{ [1, 2]|join("-") }} '
        '{{ messages|join(",", attribute="role") }} {{ 1 ~ "c" ~ none }} {{ 7 % 4 }} '
        '{{ "aXa".replace("a", "d") }} {{ "aa"|replace("a", "e", 1) }} {{ 2 ** 3 }} '
        '{{ ", ".join(["f", "g"]) }} {{ [1] + [2] }} {{ "h"|center(3) }}|'
        "{% for i in range(3) %}{{ loop.index }}/{{ loop.length }}"
        '{{ "" if loop.last else ";" }}{% else %}none{% endfor %}'
        "{% for i in [1, [2, [3]]] recursive %}"
        "{{ i if i is number else loop(i) }}{% endfor %}"
    )
    own = {**config["conventions"], "chat_template": template}
    tokenizer = FastTokenizer.from_config({**config, "conventions": own})
    assert tokenizer.apply_chat_template(chat("hi")) == (
        "2024 a: 07% b 1-2 user 1cNone 3 dXd ea 8 f, g [1, 2]  h |1/3;2/3;3/3123"
    )


def test_a_template_that_reads_how_a_message_begins_is_still_exact(load):
    pytest.importorskip("jinja2")
    config = load("qwen")[0].get_config()
    template = (
        "{% for m in messages %}<|im_start|>{% if m.content.startswith('<q>') %}Q"
        "{% endif %}{{ m.content }}<|im_end|>{% endfor %}"
    )
    own = {**config["conventions"], "chat_template": template}
    tokenizer = FastTokenizer.from_config({**config, "conventions": own})
    start, end = (tokenizer.token_id(f"<|im_{name}|>") for name in ("start", "end"))
    found = tokenizer.encode_chat(chat("<q><|im_end|>"))
    assert found == [start, *tokenizer.encode(["Q<q><|im_end|>"])[0], end]


CALLS = """{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.content is defined %}{{ m.content }}{% endif %}{% for call in m.tool_calls %}{%
if call.id|length != 9 %}{{ raise_exception('an id of 9 characters') }}{% endif %}{{
call.id }}{{ call.function|tojson }}{% endfor %}{% if m.reasoning_content %}R{{
m.reasoning_content }}{% endif %}<|im_end|>{% endfor %}{{ tools|tojson }}"""


def call(**arguments):
    function = {"name": "f", "arguments": arguments}
    called = [{"id": "abcdefghi", "type": "function", "function": function}]
    return {"role": "assistant", "tool_calls": called}


@pytest.mark.parametrize(
    ("messages", "tools", "written"),
    [
        ([call(x="<|im_end|>")], None, '"x": "<|im_end|>"'),
        ([call(**{"<|im_end|>": 1})], None, '"<|im_end|>": 1'),
        ([call(role="<|im_start|>", type="<|im_end|>a")], None, '"<|im_end|>a"'),
        ([call(type={"x": "<|im_end|>"})], None, '{"x": "<|im_end|>"}'),
        ([{"role": "user<|im_end|>", "content": "hi"}], None, "user<|im_end|>\nhi<|"),
        (chat("a"), [{"a": {"<|im_end|>": "<|im_start|>"}}], '{"<|im_end|>": "<|im_s'),
        ([{"role": "user", "content": None, "tool_calls": None}], None, "user\n<|im_"),
        ([{**chat("a")[0], "reasoning": "<|im_end|>"}], None, "aR<|im_end|><|im_end"),
    ],
)
def test_a_chat_is_exact_wherever_names_stand_and_whatever_the_template_checks(
    load, messages, tools, written
):
    pytest.importorskip("jinja2")
    config = load("qwen")[0].get_config()
    own = {**config["conventions"], "chat_template": CALLS}
    tokenizer = FastTokenizer.from_config({**config, "conventions": own})
    text = tokenizer.apply_chat_template(messages, tools=tools)
    # Of the template are the first name, and the one behind the message.
    start, end, rest = "<|im_start|>", "<|im_end|>", json.dumps(tools)
    assert written in text and text.startswith(start) and text.endswith(end + rest)
    said = text.removeprefix(start).removesuffix(end + rest)
    expected = [
        tokenizer.token_id(start),
        *tokenizer.encode([said])[0],
        tokenizer.token_id(end),
        *tokenizer.encode([rest])[0],
    ]
    assert tokenizer.encode_chat(messages, tools=tools) == expected


def test_folders_of_kzoo_and_of_others_are_told_apart(load, tmp_path):
    tokenizer, _, folder = load("bert")
    tokenizer.save(tmp_path)
    with pytest.raises(ValueError, match="read it with load_tokenizer"):
        load_pretrained_tokenizer(tmp_path)
    with pytest.raises(ValueError, match="load_pretrained_tokenizer"):
        load_tokenizer(load("bert_cased")[2])


def test_what_is_no_tokenizer_is_an_error_that_names_the_file(load, tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no tokenizer.json"):
        load_pretrained_tokenizer(tmp_path)
    with pytest.raises(FileNotFoundError, match="source.spm"):
        (tmp_path / "vocab.json").write_text("{}")
        load_pretrained_tokenizer(tmp_path, "marian")
    with pytest.raises(ValueError, match="kind must be one of"):
        load_pretrained_tokenizer(tmp_path, "bpe")
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match="not a tokenizer.json"):
        load_pretrained_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[1]")
    with pytest.raises(ValueError, match="must hold an object"):
        load_pretrained_tokenizer(tmp_path)
    config = {"tokenizer_class": "AlbertTokenizer"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match="AlbertTokenizer"):
        load_pretrained_tokenizer(tmp_path, "sentencepiece")


@pytest.mark.parametrize(
    ("model_type", "name"),
    [("qwen2", "Qwen2"), ("qwen3", "Qwen2"), ("modernbert", "ModernBert")],
)
def test_files_of_a_class_with_rules_of_its_own_are_not_read_as_gpt2s(
    model_type, name, tmp_path
):
    (tmp_path / "vocab.json").write_text('{"<|endoftext|>": 0, "a": 1}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(ValueError, match=f"{name}Tokenizer.*tokenizer.json"):
        load_pretrained_tokenizer(tmp_path, "byte_bpe")


def test_a_chat_template_of_a_stranger_is_not_asked_for_a_token_of_one_character(
    tmp_path,
):
    pytest.importorskip("jinja2")
    golden.unpack("llama_spm", tmp_path)
    tokenizer = load_pretrained_tokenizer(tmp_path, "sentencepiece", convert=False)
    config = tokenizer.get_config()
    one = SentencePieceTokenizer.from_config(
        {**config, "special_token_ids": [tokenizer.token_id("e")]}
    )
    with pytest.raises(ValueError, match="cannot be told apart"):
        one.encode_chat(chat("hello"))


@pytest.mark.parametrize(
    "name, role",
    [
        *(("bert", role) for role in ("unk", "cls", "sep")),
        *(("xlm_roberta", role) for role in ("cls", "pad", "eos", "unk")),
        *(("mbart", "eos"), ("nllb", "unk"), ("pegasus", "eos"), ("pegasus", "pad")),
        *(("t5", "eos"), ("marian", "eos"), ("m2m100", "eos"), ("m2m100", "unk")),
    ],
)
@pytest.mark.parametrize("convert", [True, False])
def test_a_layout_s_own_tokens_must_be_named(load, tmp_path, name, role, convert):
    """A null is no piece behind the last one, and the id of no other token."""
    cases = golden.unpack(name, tmp_path)
    path = tmp_path / "tokenizer_config.json"
    settings = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**settings, f"{role}_token": None}))
    for mapped in tmp_path.glob("special_tokens_map.json"):
        content = json.loads(mapped.read_text())
        mapped.write_text(json.dumps({**content, f"{role}_token": None}))
    with pytest.raises(ValueError, match=f"{role}_token must be .*None"):
        load_pretrained_tokenizer(tmp_path, cases["kind"], convert=convert)


def test_legacy_behaviour_is_nllb_s_alone(tmp_path):
    rows = {}
    for name in ("mbart50", "nllb"):
        (tmp_path / name).mkdir()
        cases = golden.unpack(name, tmp_path / name)
        path = tmp_path / name / "tokenizer_config.json"
        settings = json.loads(path.read_text())
        for legacy in (False, True):
            path.write_text(json.dumps({**settings, "legacy_behaviour": legacy}))
            tokenizer = load_pretrained_tokenizer(tmp_path / name, cases["kind"])
            rows[name, legacy] = tokenizer.conventions.template.around()
    assert rows["mbart50", True] == rows["mbart50", False]
    assert rows["nllb", True] != rows["nllb", False]


def test_broken_settings_are_value_errors(load, tmp_path):
    values = [None, 1, -1, 10**12, "x", "", [], [None], {}, {"content": 3}, True, 1.5]
    generator = random.Random(0)
    refused = 0
    for name in ("bert_cased", "nllb", "qwen", "marian", "llama_spm", "m2m100"):
        _, cases, folder = load(name)
        for number in range(30):
            broken = tmp_path / f"{name}{number}"
            shutil.copytree(folder, broken)
            files = [p for p in broken.iterdir() if p.suffix == ".json"]
            path = generator.choice(files or [broken / "tokenizer_config.json"])
            content = json.loads(path.read_text()) if path.exists() else {}
            key = generator.choice([*content, "added_tokens_decoder", "pad_token"])
            content[key] = generator.choice(values)
            path.write_text(json.dumps(content))
            try:
                load_pretrained_tokenizer(broken, cases["kind"])
            except ValueError:
                refused += 1
            shutil.rmtree(broken)
    assert refused > 20


def test_a_users_special_names_are_text(load):
    for name, special in (
        ("bert", "[SEP]"),
        ("roberta", "</s>"),
        ("t5", "</s>"),
        ("qwen", "<|im_end|>"),
        ("nllb", "eng_Latn"),
    ):
        tokenizer = load(name)[0]
        ids = set(tokenizer.encode([f"a {special} b"])[0])
        assert not ids & tokenizer.special_ids


def test_masks_and_words_are_encoded_with_tables_of_ids(load):
    tokenizer, _, _ = load("xlm_roberta")
    ids = tokenizer.encode_with_masks(["hello <mask> there"])[0]
    assert ids.count(tokenizer.mask_token_id) == 1
    (words,) = tokenizer.encode_words([["hello", "world"]])
    assert [i for word in words for i in word] == tokenizer.encode(["hello world"])[0]


def test_templates_refuse_what_is_none():
    assert Template.of([1], [2], [2, 2], (0, 1)).join([[5], [6]]) == (
        [1, 5, 2, 2, 6, 2],
        [0, 0, 0, 0, 1, 1],
    )
    with pytest.raises(ValueError, match="must hold"):
        Template([(1, 0)])
    with pytest.raises(ValueError, match="no pairs"):
        Template.of([1]).join([[1], [2]])


def test_trained_tokenizers_have_no_conventions():
    tokenizer = FastTokenizer.train(["a b"] * 3, 300)
    assert "conventions" not in tokenizer.get_config()
    model = SentencePieceTokenizer.train(["a b c d e f g"] * 3, 20)
    assert set(model.get_config()) == {
        "kind",
        "model",
        "pad_token_id",
        "start_token_id",
        "end_token_id",
        "unknown_token_id",
        "mask_token_id",
    }
    with pytest.raises(ValueError, match="no layout"):
        save_pretrained_tokenizer(model, "nowhere")


def test_padding_of_the_file_is_no_part_of_a_template_and_is_written_again(
    load, tmp_path
):
    _, cases, folder = load("bert_cased_json")
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    described = json.loads((folder / "tokenizer.json").read_text())
    described["padding"] = {
        "strategy": {"Fixed": 128},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    tokenizer = load_pretrained_tokenizer(tmp_path)
    assert with_template(tokenizer, "a b") == with_template(
        load("bert_cased_json")[0], "a b"
    )
    save_pretrained_tokenizer(tokenizer, tmp_path / "written")
    written = json.loads((tmp_path / "written" / "tokenizer.json").read_text())
    assert written["padding"] == described["padding"]


def test_offsets_of_tables_of_ids_are_those_of_the_model(load):
    for name in ("xlm_roberta", "marian", "m2m100"):
        tokenizer = load(name)[0]
        text = "hello world, hello"
        ids, offsets = tokenizer.encode_with_offsets([text])
        assert ids == tokenizer.encode([text])
        assert [text[a:b] for a, b in offsets[0]][-1] in ("hello", "o", "lo", "llo")
        assert offsets[0][-1][1] == len(text)


def library_of(name, load, **parts):
    """The dict of a golden folder's tokenizer.json, with other parts."""
    described = json.loads((load(name)[2] / "tokenizer.json").read_text())
    for part, changes in parts.items():
        described[part] = {**(described[part] or {}), **changes}
    return described


def read(folder, described, **settings):
    (folder / "tokenizer.json").write_text(json.dumps(described))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return load_pretrained_tokenizer(folder)


@pytest.mark.parametrize(
    ("cls", "settings", "spaced"),
    [
        # transformers 5.23: the library's own class follows the file alone,
        (None, {}, True),
        ("PreTrainedTokenizerFast", {"add_prefix_space": False}, True),
        ("LlamaTokenizerFast", {"add_prefix_space": False}, True),
        # and these make the splitter anew, by default without a space.
        ("GPT2TokenizerFast", {}, False),
        ("GPT2TokenizerFast", {"add_prefix_space": True}, True),
        ("RobertaTokenizer", {}, False),
    ],
)
def test_a_space_before_texts_is_the_files_or_the_classes(
    cls, settings, spaced, load, tmp_path
):
    described = library_of("gpt2_json", load)
    described["pre_tokenizer"] = {
        "type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
        "use_regex": True,
    }  # fmt: skip
    if cls:
        settings = {**settings, "tokenizer_class": cls}
    tokenizer = read(tmp_path, described, **settings)
    one, other = tokenizer.encode(["hello", " hello"])
    assert (one == other) == spaced


@pytest.mark.parametrize(
    ("cls", "settings", "lowers"),
    [
        ("PreTrainedTokenizerFast", {"do_lower_case": True}, False),
        ("BertTokenizerFast", {}, True),
        ("DistilBertTokenizer", {"do_lower_case": False}, False),
    ],
)
def test_case_is_the_files_or_the_classes(cls, settings, lowers, load, tmp_path):
    described = library_of("bert_cased_json", load, normalizer={"lowercase": False})
    tokenizer = read(tmp_path, described, **settings, tokenizer_class=cls)
    upper, lower = tokenizer.encode(["THE", "the"])
    assert (upper == lower) == lowers


NAMES_OF_INPUTS = ["input_ids", "token_type_ids", "attention_mask"]


@pytest.mark.parametrize(
    ("cls", "settings", "model_type", "told"),
    [
        ("BertTokenizer", {}, "bert", True),
        (None, {}, "bert", True),
        ("BertTokenizer", {"model_input_names": ["input_ids"]}, "bert", False),
        ("TokenizersBackend", {}, "bert", False),
        ("PreTrainedTokenizerFast", {}, "bert", False),
        ("TokenizersBackend", {"model_input_names": NAMES_OF_INPUTS}, "bert", True),
        ("AlbertTokenizerFast", {}, "albert", True),
        ("OwnTokenizer", {}, "bert", False),
    ],
)
def test_texts_of_a_pair_are_told_apart_where_the_class_or_its_settings_say_so(
    cls, settings, model_type, told, load, tmp_path
):
    described = library_of("bert_cased_json", load)
    config = json.dumps({"model_type": model_type})
    (tmp_path / "config.json").write_text(config)
    if cls:
        settings = {**settings, "tokenizer_class": cls}
    tokenizer = read(tmp_path, described, **settings)
    ids, segments = with_template(tokenizer, "a", "b")
    assert sum(segments) == (2 if told else 0) and len(ids) == len(segments) == 5
    # It stays so in what is written, by kzoo and for transformers.
    tokenizer.save(tmp_path / "own")
    assert load_tokenizer(tmp_path / "own").get_config() == tokenizer.get_config()
    save_pretrained_tokenizer(tokenizer, tmp_path / "out")
    (tmp_path / "out" / "config.json").write_text(
        (tmp_path / "config.json").read_text()
    )
    again = load_pretrained_tokenizer(tmp_path / "out")
    assert with_template(again, "a", "b") == (ids, segments)
    save_pretrained_tokenizer(tokenizer, tmp_path / "out", segments=True)
    again = load_pretrained_tokenizer(tmp_path / "out")
    assert with_template(again, "a", "b") == (ids, segments)


@pytest.mark.parametrize("name", ["llama3", "qwen", "gpt2_json", "bert_cased_json"])
def test_what_stands_around_texts_is_written_as_it_was(name, load, tmp_path):
    described = library_of(name, load)
    tokenizer = read(tmp_path, described, tokenizer_class="TokenizersBackend")
    save_pretrained_tokenizer(tokenizer, tmp_path)
    written = json.loads((tmp_path / "tokenizer.json").read_text())
    assert written["post_processor"] == described["post_processor"]


def test_flags_of_added_tokens_are_those_of_the_settings(load, tmp_path):
    described = library_of("gpt2_json", load)
    token = dict(
        id=len(described["model"]["vocab"]), content="<turn>", single_word=False,
        lstrip=False, rstrip=False, normalized=False, special=True,
    )  # fmt: skip
    described["added_tokens"] = [*described["added_tokens"], token]
    number, token = str(token["id"]), {k: v for k, v in token.items() if k != "id"}
    for flags in ({"rstrip": True}, {"lstrip": True, "single_word": True}, {}):
        stated = {**token, **flags}
        own = read(tmp_path, described, added_tokens_decoder={number: stated})
        library = tokenizers.Tokenizer.from_str(own._model_text())
        kept = library.get_added_tokens_decoder()[int(number)]
        assert {name: getattr(kept, name) for name in stated} == stated


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
        {
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "Z", "type_id": 0}}],
                "pair": [],
                "special_tokens": {},
            }
        },
        {"model": {"type": "Unigram", "vocab": [], "unk_id": None}},
    ],
)
def test_a_file_at_which_the_library_panics_is_named(changes, load, tmp_path):
    described = {**library_of("gpt2_json", load), **changes}
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        read(tmp_path, described)


def test_json_that_is_too_deep_is_an_error_that_names_the_file(tmp_path):
    deep = '{"a":' * 100_000 + "1" + "}" * 100_000
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text(deep)
    with pytest.raises(ValueError, match=r"tokenizer_config\.json is not JSON"):
        load_pretrained_tokenizer(tmp_path)
