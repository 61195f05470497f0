"""What kzoo writes, transformers reads with equal ids; where it is installed."""

import pytest

from kzoo.tokenizers import (
    FastTokenizer,
    load_pretrained_tokenizer,
    save_pretrained_tokenizer,
)
from tests.golden import folders as golden

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore")


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
