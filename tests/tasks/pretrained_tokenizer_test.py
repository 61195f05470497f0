"""Tasks put around texts what a pretrained tokenizer's model expects."""

import json
import re

import keras
import numpy as np
import pytest
import tokenizers

import kzoo
from kzoo.config import ModelConfig
from kzoo.exporters import ExportError, onnx_session
from kzoo.tokenizers import load_pretrained_tokenizer
from kzoo.zoo import training
from kzoo.zoo.recipes import Recipe
from kzoo.zoo.tables import RecipeError
from tests.golden import folders as golden
from tests.harness import perturb

SMALL = dict(num_layers=1, hidden_dim=16, intermediate_dim=16, num_heads=2, dropout=0.0)


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    known = {}

    def loaded(name):
        if name not in known:
            folder = tmp_path_factory.mktemp(name)
            cases = golden.unpack(name, folder)
            known[name] = load_pretrained_tokenizer(folder, cases["kind"]), cases
        return known[name]

    return loaded


def make(kind, tokenizer, **changes):
    model = kind.from_size("tiny", tokenizer, **{**SMALL, **changes})
    perturb(model.named_variables().values())
    return model


def rows(values):
    return [np.asarray(row).tolist() for row in values]


@pytest.mark.parametrize(
    ("name", "segments"), [("bert", 2), ("bert_cased_json", 2), ("roberta", 0)]
)
def test_encoders_read_texts_and_pairs_as_transformers_has_them(load, name, segments):
    tokenizer, cases = load(name)
    model = make(
        kzoo.TextClassifier,
        tokenizer,
        num_classes=2,
        num_segments=segments,
        positions="rotary",
    )
    features = model.encode_texts(cases["texts"])
    assert rows(features["token_ids"]) == cases["ids"]
    features = model.encode_texts([tuple(pair) for pair in cases["pairs"]])
    assert rows(features["token_ids"]) == cases["pair_ids"]
    if segments:
        assert rows(features["segment_ids"]) == cases["pair_segments"]


@pytest.mark.parametrize("kind", [kzoo.CausalLM, kzoo.TokenClassifier])
def test_tokens_beyond_the_table_are_refused_where_a_text_has_them(load, kind):
    tokenizer, _ = load("qwen")
    size = tokenizer.vocabulary_size
    last = tokenizer.tokens([size - 1])[0]
    options = dict(num_classes=2) if kind is kzoo.TokenClassifier else {}
    with pytest.warns(UserWarning, match=f"{size} tokens, the model only {size - 1}"):
        model = make(kind, tokenizer, vocabulary_size=size - 1, **options)

    def encode(text):
        given = ([[text]], [[0]]) if options else ([text],)
        return model.encode_examples(*given)

    encode("hello")
    with pytest.raises(ValueError, match=f"below {size - 1}.*ids .{size - 1}"):
        encode(f"hello{last}")


def test_cut_pairs_keep_all_that_stands_around_them(load):
    tokenizer, _ = load("roberta")
    model = make(kzoo.TextClassifier, tokenizer, num_classes=2, max_length=12)
    (row,) = rows(
        model.encode_texts([("hello world " * 5, "one two three " * 5)])["token_ids"]
    )
    assert len(row) == 12
    assert row[0] == tokenizer.start_token_id
    ends = [i for i, token in enumerate(row) if token == tokenizer.end_token_id]
    assert len(ends) == 3 and ends[1] == ends[0] + 1 and ends[2] == 11


def test_masked_models_and_taggers_have_the_models_specials(load):
    tokenizer, _ = load("roberta")
    model = make(kzoo.MaskedLM, tokenizer)
    start, end = tokenizer.start_token_id, tokenizer.end_token_id
    inner = tokenizer.encode(["hello world"])[0]
    found = model.encode_examples(["hello world"])["token_ids"]
    assert found == [[start, *inner, end]]
    assert model.config.mask_token_id == tokenizer.mask_token_id
    tagger = make(kzoo.TokenClassifier, tokenizer, num_classes=2)
    features = tagger.encode_examples([["hello", "world"]], [[0, 1]])
    assert rows(features["token_ids"]) == [[start, *inner, end]]


def test_answers_stand_behind_two_ends_of_roberta(load):
    tokenizer, _ = load("roberta")
    model = make(kzoo.QuestionAnswering, tokenizer)
    (logits,) = model.predict([("Who?", "A man rides")], verbose=0)
    assert logits.shape == (2, len(tokenizer.encode(["A man rides"])[0]))
    assert (logits > -1e4).all()
    (answer,) = model.answer([("Who?", "A man rides")])
    assert answer.text in "A man rides"


def test_gpt2_begins_without_a_start_token(load):
    tokenizer, _ = load("gpt2")
    model = make(kzoo.CausalLM, tokenizer, positions="rotary")
    (inner,) = tokenizer.encode(["hello world"])
    assert model.encode_prompts(["hello world"]) == [inner]
    end = tokenizer.end_token_id
    assert model.encode_examples(["hello world"])["token_ids"] == [[*inner, end]]
    # An empty prompt begins with the model's start token.
    empty, one = model.generate(["", "hello"], max_new_tokens=4)
    assert model.generate([""], max_new_tokens=4) == [empty]
    start = tokenizer.start_token_id
    ids = model.generate([[start]], max_new_tokens=4)
    assert tokenizer.decode(ids) == [empty]
    assert model.score(["hello world", "one two"])["perplexity"] > 1


def test_llama_begins_with_its_start_token(load):
    tokenizer, cases = load("llama3")
    model = make(kzoo.CausalLM, tokenizer)
    assert model.encode_prompts(cases["texts"]) == cases["ids"]
    qwen = make(kzoo.CausalLM, load("qwen")[0])  # which has none
    assert qwen.encode_prompts([""]) == [[]]
    assert isinstance(qwen.generate("", max_new_tokens=3), str)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("name", ["mbart50_json", "nllb", "m2m100"])
def test_targets_begin_with_their_languages_code(load, name):
    tokenizer, cases = load(name)
    model = make(kzoo.Seq2SeqLM, tokenizer)
    text = cases["texts"][0]
    features = model.encode_examples([text], [text])
    assert rows(features["encoder_token_ids"]) == cases["ids"][:1]
    start = tokenizer.start_token_id
    assert rows(features["decoder_token_ids"]) == [[start, *cases["targets"][0]]]

    (code,) = tokenizer.conventions.target_prefix
    (found,) = model.generate(cases["ids"][:1], max_new_tokens=4)
    assert found[0] == code


def test_what_a_user_forces_stands_behind_the_languages_code(load):
    tokenizer, cases = load("m2m100")
    model = make(kzoo.Seq2SeqLM, tokenizer)
    (code,), prompts = tokenizer.conventions.target_prefix, cases["ids"][:1]
    options = dict(max_new_tokens=5, min_new_tokens=3, beams=2)
    inner = tokenizer.encode(["hello"])[0]
    (found,) = model.generate(prompts, forced_prefix="hello", **options)
    assert found[: 1 + len(inner)] == [code, *inner][:5]
    (found,) = model.generate(prompts, forced_tokens={0: inner[-1]}, **options)
    assert found[:2] == [code, inner[-1]]
    # As checkpoints say it that force their end where the room ends.
    model.search_defaults = {"forced_tokens": {-1: tokenizer.end_token_id}}
    (found,) = model.generate(prompts, forced_prefix="hello", **options)
    assert found[: 1 + len(inner)] == [code, *inner][:5]
    assert isinstance(model.generate(cases["texts"][0], **options), str)


def test_what_a_model_has_learned_to_write_first_stands_before_what_it_must(load):
    tokenizer, cases = load("bart")
    model = make(kzoo.Seq2SeqLM, tokenizer)
    begin, text = tokenizer.token_id("<s>"), "hello"
    features = model.encode_examples([text], [text])
    ids, end = tokenizer.encode([text])[0], tokenizer.end_token_id
    start = tokenizer.start_token_id
    assert rows(features["decoder_token_ids"]) == [[start, begin, *ids, end]]
    assert not model.search_inputs("onnx")["forced_token_ids"].size
    for options, expected in (
        (dict(constraint="[a-z]+"), [begin]),
        (dict(forced_prefix=text), [begin, *ids]),
        (dict(forced_tokens={0: ids[0]}), [begin, ids[0]]),
        (dict(forced_tokens={0: begin}), [begin]),  # no more than once
        (dict(forced_prefix=[begin, *ids]), [begin, *ids]),
        (dict(forced_tokens={-1: end}, constraint="[a-z]+"), [begin]),
    ):
        options |= dict(max_new_tokens=8)
        found = model.search_inputs("onnx", **options)["forced_token_ids"][0]
        assert [i for i in found.tolist() if i >= 0][:9] == expected + [end] * (
            -1 in options.get("forced_tokens", ())
        )
        written = model.generate([text], **options)[0]
        assert "constraint" not in options or re.fullmatch("[a-z]+", written)


def test_a_language_that_a_model_starts_with_needs_a_model_of_it(load):
    tokenizer, cases = load("mbart")
    model = make(kzoo.Seq2SeqLM, tokenizer)
    text = cases["texts"][0]
    features = model.encode_examples([text], [text])
    code, end = tokenizer.start_token_id, tokenizer.end_token_id
    ids = tokenizer.encode([text])[0]
    assert rows(features["decoder_token_ids"]) == [[code, *ids, end]]
    model.tokenizer = tokenizer.for_languages(target="fr_XX")
    with pytest.raises(ValueError, match="fr_XX"):
        model.generate(text)


def test_marian_writes_targets_with_its_second_model(load):
    tokenizer, cases = load("marian")
    model = make(kzoo.Seq2SeqLM, tokenizer)
    text = cases["texts"][0]
    features = model.encode_examples([text], [text])
    start = tokenizer.start_token_id
    assert rows(features["encoder_token_ids"]) == cases["ids"][:1]
    assert rows(features["decoder_token_ids"]) == [[start, *cases["targets"][0]]]
    assert cases["ids"][0] != cases["targets"][0]


def test_what_a_vocabulary_lacks_the_config_has(load):
    tokenizer, _ = load("qwen")
    assert tokenizer.start_token_id is None
    model = make(kzoo.CausalLM, tokenizer)
    assert model.config.start_token_id == tokenizer.end_token_id
    assert model.config.pad_token_id == tokenizer.pad_token_id
    config = model.config.replace(start_token_id=7)
    assert kzoo.CausalLM(config, tokenizer=tokenizer).config.start_token_id == 7


def test_files_begin_with_the_languages_code_by_themselves(load, tmp_path):
    tokenizer, cases = load("mbart50")
    model = make(kzoo.Seq2SeqLM, tokenizer, positions="rotary")
    model.export(tmp_path / "m", format="onnx", functions=["generate"])
    session = onnx_session.open_session(tmp_path / "m" / "generate.onnx")
    ids = np.array(cases["ids"][:1])
    (sequences, *_) = session.run(
        ["sequences"], {"encoder_token_ids": ids, "max_new_tokens": np.array(4)}
    )
    (expected,) = model.generate(cases["ids"][:1], max_new_tokens=4)
    assert sequences[0, 0].tolist()[: len(expected)] == expected
    assert expected[0] == tokenizer.conventions.target_prefix[0]
    with pytest.raises(ExportError, match="does: the normalizer .*Precompiled") as info:
        model.export(tmp_path / "text", format="onnx", text=True)
    assert len(str(info.value)) < 600  # without the table of characters
    golden.unpack("mbart50", tmp_path)
    kind = "fairseq_sentencepiece"
    tokenizer = kzoo.tokenizers.load_pretrained_tokenizer(tmp_path, kind, convert=False)
    model = make(kzoo.Seq2SeqLM, tokenizer, positions="rotary")
    with pytest.raises(ExportError, match="ids that are not those of its model"):
        model.export(tmp_path / "text", format="onnx", text=True)


def test_texts_in_files_begin_as_the_tokenizer_has_them(load, tmp_path):
    pytest.importorskip("onnxruntime_extensions")
    tokenizer, _ = load("gpt2")
    model = make(kzoo.CausalLM, tokenizer, positions="rotary")
    model.export(tmp_path / "m", format="onnx", text=True)  # verified, empty texts, too
    tokenizer, _ = load("roberta")
    model = make(kzoo.PairScorer, tokenizer, positions="rotary")
    model.export(tmp_path / "p", format="onnx", text=True)


@pytest.mark.usefixtures("eager", "greedy")
def test_more_ends_of_a_models_config_end_what_is_generated(load, tmp_path):
    pytest.importorskip("onnxruntime_extensions")
    folder = tmp_path / "gpt2"
    folder.mkdir()
    cases = golden.unpack("gpt2", folder)
    plain = make(kzoo.CausalLM, load("gpt2")[0], positions="rotary")
    (found,) = plain.generate([cases["ids"][0]], max_new_tokens=6)
    stop = found[2]
    config = {"eos_token_id": [0, stop, 10**9]}
    (folder / "generation_config.json").write_text(json.dumps(config))
    tokenizer = load_pretrained_tokenizer(folder, cases["kind"])
    assert tokenizer.conventions.stop_token_ids == (stop,)
    model = make(kzoo.CausalLM, tokenizer, positions="rotary")
    (ended,) = model.generate([cases["ids"][0]], max_new_tokens=6)
    assert ended == found[: found.index(stop)]
    text = cases["texts"][0]
    expected = model.generate(text, max_new_tokens=6)
    model.export(tmp_path / "m", format="onnx", functions=["generate"], text=True)
    session = onnx_session.open_session(tmp_path / "m" / "generate.onnx")
    inputs = {"text": np.array([text], object), "max_new_tokens": np.array(6)}
    (texts,) = session.run(["generated_text"], inputs)
    assert texts[0, 0] == expected


@pytest.mark.parametrize("name", ["roberta", "marian"])
def test_saved_models_keep_the_conventions(load, name, tmp_path):
    tokenizer, cases = load(name)
    kind = kzoo.Seq2SeqLM if name == "marian" else kzoo.SentenceEmbedder
    model = make(kind, tokenizer)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.tokenizer.conventions == tokenizer.conventions
    assert again.template == model.template
    assert again.tokenizer.encode(cases["texts"]) == tokenizer.encode(cases["texts"])


def test_files_have_the_ends_of_a_tasks_defaults(load):
    tokenizer, _ = load("gpt2")
    (id,) = tokenizer.encode_targets(["a"])[0]
    defaults = {"stop_tokens": ["a", 9, 9]}
    model = make(kzoo.CausalLM, tokenizer, search_defaults=defaults)
    found = {each.name: each.default for each in model.search_arguments()}
    assert found["stop_token_ids"].tolist() == [id, 9]
    model.search_defaults = {"stop_tokens": 7}
    assert model._own_inputs()["stop_token_ids"].tolist() == [7]
    model.search_defaults = None
    assert not model._own_inputs()


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    """A folder of a tokenizer that has no special tokens."""
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=260, initial_alphabet=alphabet, show_progress=False
    )
    library.train_from_iterator(["he said", "he is"], trainer)
    folder = tmp_path_factory.mktemp("endless")
    library.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize("kind", [kzoo.CausalLM, kzoo.Seq2SeqLM])
def test_no_word_of_texts_is_taken_for_their_end(endless, kind):
    tokenizer = load_pretrained_tokenizer(endless)
    with pytest.raises(ValueError, match="no end token. Take one that has, or"):
        kind.from_size("tiny", tokenizer, **SMALL)
    size = tokenizer.vocabulary_size
    ids = dict(vocabulary_size=size + 1, end_token_id=size)
    model = kind.from_size("tiny", tokenizer, **ids, **SMALL)
    config = model.config
    assert (config.start_token_id, config.end_token_id) == (size, size)
    model = kind.from_size("tiny", tokenizer, start_token_id=7, **ids, **SMALL)
    assert model.config.start_token_id == 7
    kzoo.TextClassifier.from_size("tiny", tokenizer, num_classes=2, **SMALL)


def test_a_start_is_the_end_that_the_tokenizer_has(load):
    tokenizer, _ = load("qwen")
    own = tokenizer.end_token_id
    model = make(kzoo.CausalLM, tokenizer, end_token_id=own)
    assert (model.config.start_token_id, model.config.end_token_id) == (own, own)
    message = f"end_token_id is the tokenizer's, {own}. Leave .* Received: 5"
    with pytest.raises(ValueError, match=message):
        make(kzoo.CausalLM, tokenizer, end_token_id=5)


@pytest.mark.parametrize("described", [False, True])
def test_a_recipe_s_tokenizer_has_an_end(endless, tmp_path, described):
    config = ModelConfig.from_size("tiny", "decoder", 300).to_dict()  # which names one
    load_pretrained_tokenizer(endless).save(tmp_path / "tokenizer")
    recipe = Recipe.from_dict(
        {
            "name": "endless",
            "task": "causal_lm",
            "data": {"format": "text", "train": ["texts.txt"]},
            "tokenizer": {"folder": str(tmp_path / "tokenizer")},
            "model": {"config": config} if described else {"size": "tiny"},
            "training": {
                "epochs": 1,
                "tokens_per_batch": 50,
                "schedule": {"kind": "constant", "peak": 0.01},
            },
        }
    )
    with pytest.raises(RecipeError, match="no end token. Take one that has, or"):
        training.Run(recipe, ["he said", "he is"], None, tmp_path / "out")
