"""Encoder-decoders: what published config.json files mean, and what is refused."""

import json
import math
import re
import warnings

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import kzoo
from kzoo.checkpoints.generation_config import read_generation, write_generation
from kzoo.families import family_of
from kzoo.generation import as_defaults
from tests.parity.parity_test import written
from tests.parity.weights import sines

T5_SMALL = dict(
    architectures=["T5WithLMHeadModel"], d_ff=2048, d_kv=64, d_model=512,
    decoder_start_token_id=0, dropout_rate=0.1, eos_token_id=1, initializer_factor=1.0,
    is_encoder_decoder=True, layer_norm_epsilon=1e-06, model_type="t5", n_positions=512,
    num_heads=8, num_layers=6, output_past=True, pad_token_id=0,
    relative_attention_num_buckets=32, vocab_size=32128,
    task_specific_params={"summarization": {"num_beams": 4, "prefix": "summarize: "}},
)  # fmt: skip
FLAN_T5_SMALL = dict(
    architectures=["T5ForConditionalGeneration"], d_ff=1024, d_kv=64, d_model=512,
    decoder_start_token_id=0, dropout_rate=0.1, eos_token_id=1,
    feed_forward_proj="gated-gelu", initializer_factor=1.0, is_encoder_decoder=True,
    layer_norm_epsilon=1e-06, model_type="t5", n_positions=512, num_decoder_layers=8,
    num_heads=6, num_layers=8, output_past=True, pad_token_id=0,
    relative_attention_max_distance=128, relative_attention_num_buckets=32,
    tie_word_embeddings=False, transformers_version="4.23.1", use_cache=True,
    vocab_size=32128,
)  # fmt: skip
MT5_SMALL = {
    **FLAN_T5_SMALL, "model_type": "mt5", "vocab_size": 250112,
    "architectures": ["MT5ForConditionalGeneration"], "tokenizer_class": "T5Tokenizer",
}  # fmt: skip
FAIRSEQ = dict(
    activation_dropout=0.0, activation_function="gelu", attention_dropout=0.0,
    bos_token_id=0, classifier_dropout=0.0, d_model=1024, decoder_attention_heads=16,
    decoder_ffn_dim=4096, decoder_layerdrop=0.0, decoder_layers=12, dropout=0.1,
    encoder_attention_heads=16, encoder_ffn_dim=4096, encoder_layerdrop=0.0,
    encoder_layers=12, eos_token_id=2, init_std=0.02, is_encoder_decoder=True,
    max_position_embeddings=1024, num_hidden_layers=12, pad_token_id=1,
    id2label={"0": "LABEL_0"}, label2id={"LABEL_0": 0}, gradient_checkpointing=False,
)  # fmt: skip
BART_LARGE_CNN = dict(
    **FAIRSEQ, add_bias_logits=False, add_final_layer_norm=False,
    architectures=["BartForConditionalGeneration"], classif_dropout=0.0,
    decoder_start_token_id=2, early_stopping=True, force_bos_token_to_be_generated=True,
    forced_eos_token_id=2, length_penalty=2.0, max_length=142, min_length=56,
    model_type="bart", no_repeat_ngram_size=3, normalize_before=False, num_beams=4,
    output_past=True, prefix=" ", scale_embedding=False, vocab_size=50264,
    task_specific_params={"summarization": {"num_beams": 4}},
)  # fmt: skip
MBART_50 = dict(
    FAIRSEQ, activation_function="relu", add_bias_logits=False,
    add_final_layer_norm=True, architectures=["MBartForConditionalGeneration"],
    classif_dropout=0.0, decoder_start_token_id=2, early_stopping=True,
    forced_eos_token_id=2, max_length=200, model_type="mbart", normalize_before=True,
    normalize_embedding=True, num_beams=5, output_past=True, scale_embedding=True,
    static_position_embeddings=False, tokenizer_class="MBart50Tokenizer",
    vocab_size=250054,
)  # fmt: skip
OPUS_MT_EN_DE = dict(
    FAIRSEQ, _name_or_path="/tmp/Helsinki-NLP/opus-mt-en-de",
    activation_function="swish", add_bias_logits=False, add_final_layer_norm=False,
    architectures=["MarianMTModel"], bad_words_ids=[[58100]], classif_dropout=0.0,
    d_model=512, decoder_attention_heads=8, decoder_ffn_dim=2048, decoder_layers=6,
    decoder_start_token_id=58100, decoder_vocab_size=58101, encoder_attention_heads=8,
    encoder_ffn_dim=2048, encoder_layers=6, eos_token_id=0, forced_eos_token_id=0,
    max_length=512, max_position_embeddings=512, model_type="marian",
    normalize_before=False, normalize_embedding=False, num_beams=6, num_hidden_layers=6,
    pad_token_id=58100, scale_embedding=True, share_encoder_decoder_embeddings=True,
    static_position_embeddings=True, vocab_size=58101, use_cache=True,
)  # fmt: skip
PEGASUS_XSUM = dict(
    FAIRSEQ, activation_dropout=0.1, activation_function="relu", add_bias_logits=False,
    add_final_layer_norm=True, architectures=["PegasusForConditionalGeneration"],
    classif_dropout=0.0, decoder_layers=16, decoder_start_token_id=0, encoder_layers=16,
    eos_token_id=1, extra_pos_embeddings=1, force_bos_token_to_be_generated=False,
    forced_eos_token_id=1, length_penalty=0.6, max_length=64,
    max_position_embeddings=512, model_type="pegasus", normalize_before=True,
    normalize_embedding=False, num_beams=8, num_hidden_layers=16, pad_token_id=0,
    scale_embedding=True, static_position_embeddings=True, vocab_size=96103,
)  # fmt: skip
NLLB = dict(
    FAIRSEQ, _name_or_path="facebook/nllb-200-distilled-600M",
    activation_function="relu", architectures=["M2M100ForConditionalGeneration"],
    attention_dropout=0.1, decoder_layerdrop=0, decoder_start_token_id=2,
    encoder_layerdrop=0, max_length=200, model_type="m2m_100", scale_embedding=True,
    tokenizer_class="NllbTokenizer", torch_dtype="float32",
    transformers_version="4.21.0.dev0", use_cache=True, vocab_size=256206,
)  # fmt: skip

# What each means: of the model, and of its stacks.
MEANT = {
    "t5_small": (
        T5_SMALL,
        dict(tie_head=True, head_scale=512**-0.5, end_token_id=1, start_token_id=0),
        dict(feed_forward="plain", activation="relu", head_dim=64, num_layers=6,
             positions="relative", norm="rms_norm", attention_scale=1.0,
             relative_max_distance=128, use_bias=False),
    ),
    "flan_t5_small": (
        FLAN_T5_SMALL,
        dict(tie_head=False, head_scale=1.0, share_embeddings=True),
        dict(feed_forward="gated", activation="gelu_tanh", num_heads=6, num_layers=8),
    ),
    "mt5_small": (
        MT5_SMALL,
        dict(head_scale=1.0),
        dict(feed_forward="gated", activation="gelu_tanh", vocabulary_size=250112),
    ),
    "bart_large_cnn": (
        BART_LARGE_CNN,
        dict(start_token_id=2, end_token_id=2, pad_token_id=1, head_bias=True),
        dict(norm_position="post", embedding_norm=True, embedding_scale=1.0,
             final_norm=False, first_position=2, positions="learned"),
    ),
    "mbart_50": (
        MBART_50,
        dict(tie_head=True, share_embeddings=True),
        dict(norm_position="pre", embedding_norm=True, embedding_scale=32.0,
             final_norm=True, activation="relu"),
    ),
    "opus_mt_en_de": (
        OPUS_MT_EN_DE,
        dict(start_token_id=58100, end_token_id=0, pad_token_id=58100),
        dict(positions="sinusoidal", sinusoidal_layout="halves", norm_position="post",
             embedding_norm=False, embedding_scale=math.sqrt(512), activation="silu",
             norm_epsilon=1e-5, first_position=0),
    ),
    "pegasus_xsum": (
        PEGASUS_XSUM,
        dict(start_token_id=0, end_token_id=1, pad_token_id=0),
        dict(positions="sinusoidal", norm_position="pre", final_norm=True,
             feed_forward_dropout=0.1, num_layers=16),
    ),
    "nllb": (
        NLLB,
        dict(start_token_id=2, head_bias=False),
        dict(sinusoidal_layout="tensor2tensor", first_position=2, norm_position="pre",
             embedding_norm=False, embedding_scale=32.0, attention_dropout=0.1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MEANT)
def test_a_published_config_is_read_as_what_it_means(name):
    keys, model, stack = MEANT[name]
    family = family_of(keys["model_type"])
    config = family.read_config(keys)
    assert {field: getattr(config, field) for field in model} == model
    for side in (config.encoder, config.decoder):
        assert {field: getattr(side, field) for field in stack} == stack
    assert family.read_config(family.write_config(config)) == config


REFUSED = [
    (T5_SMALL, dict(feed_forward_proj="gated-quick_gelu"), "quick_gelu"),
    (T5_SMALL, dict(feed_forward_proj="doubled-relu"), "doubled-relu"),
    (T5_SMALL, dict(is_decoder=True), "is_decoder=True"),
    (T5_SMALL, dict(quantization_config={"bits": 4}), "quantization_config"),
    (T5_SMALL, dict(dense_layers=3), "dense_layers"),
    (BART_LARGE_CNN, dict(activation_function="gelu_10"), "gelu_10"),
    (BART_LARGE_CNN, dict(normalize_before=True), "normalize_before=True"),
    (BART_LARGE_CNN, dict(tie_word_embeddings=False), "tie_word_embeddings=False"),
    (BART_LARGE_CNN, dict(num_hidden_layers=1), "num_hidden_layers=1 .*_layers=12"),
    (PEGASUS_XSUM, dict(encoder_layers=6), "num_hidden_layers=16 .*_layers=6:"),
    (MBART_50, dict(add_final_layer_norm=False), "add_final_layer_norm=False"),
    (OPUS_MT_EN_DE, dict(normalize_embedding=True), "normalize_embedding=True"),
    (OPUS_MT_EN_DE, dict(tie_word_embeddings=False), "share_encoder_decoder_embedd"),
    (PEGASUS_XSUM, dict(static_position_embeddings=False), "static_position_embedd"),
    (NLLB, dict(num_experts=128), "num_experts"),
]


@pytest.mark.parametrize(("keys", "changes", "named"), REFUSED)
def test_what_is_not_computed_is_refused_by_name(keys, changes, named):
    with pytest.raises(ValueError, match=named):
        family_of(keys["model_type"]).read_config({**keys, **changes})


def test_m2m_100_drops_attention_where_its_config_is_silent():
    keys = {name: value for name, value in NLLB.items() if name != "attention_dropout"}
    read = family_of("m2m_100").read_config
    assert read(keys) == read(NLLB) != read({**NLLB, "attention_dropout": 0.0})


def test_tables_that_should_be_one_and_differ_are_refused(tmp_path):
    written("bart", tmp_path)
    tensors = dict(kzoo_tensors(tmp_path))
    tensors["model.encoder.embed_tokens.weight"] = tensors["model.shared.weight"] + 1
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="embed_tokens.weight differs from"):
        kzoo.from_preset(tmp_path)


def kzoo_tensors(folder):
    from safetensors.numpy import load_file

    return load_file(folder / "model.safetensors")


def test_a_head_that_repeats_the_table_is_the_table(tmp_path):
    golden, described = written("t5_unscaled", tmp_path)
    config = {**described["config"], "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = dict(kzoo_tensors(tmp_path))
    tensors["lm_head.weight"] = tensors["shared.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    assert kzoo.from_preset(tmp_path).config.tie_head
    tensors["lm_head.weight"] = tensors["shared.weight"] + 1
    save_file(tensors, tmp_path / "model.safetensors")
    assert not kzoo.from_preset(tmp_path).config.tie_head


# Searches.


def test_older_configs_say_how_to_search(tmp_path):
    described = written("bart", tmp_path)[1]
    (tmp_path / "generation_config.json").unlink()
    small = described["config"]
    kept = ("early_stopping", "length_penalty", "max_length", "min_length", "num_beams")
    more = {name: BART_LARGE_CNN[name] for name in kept}
    more |= dict(force_bos_token_to_be_generated=True, no_repeat_ngram_size=3)
    del small["forced_eos_token_id"]  # its class says 2
    (tmp_path / "config.json").write_text(json.dumps({**small, **more}))
    assert dict(kzoo.from_preset(tmp_path).search_defaults) == dict(
        beams=4,
        early_stopping=True,
        length_penalty=2.0,
        max_length=142,
        min_new_tokens=55,  # the start token counts there
        no_repeat_ngram_size=3,
        forced_tokens={0: 0, -1: 2},
    )


LLAMA = dict(
    bos_token_id=128000, do_sample=True, eos_token_id=[128001, 128008, 128009],
    max_length=4096, temperature=0.6, top_p=0.9, transformers_version="4.42.3",
)  # fmt: skip


def test_sampling_is_read_with_what_transformers_adds():
    found, ends, left = read_generation(LLAMA, decoder_alone=True)
    assert found == dict(temperature=0.6, top_k=50, top_p=0.9, max_length=4096)
    assert ends == [128001, 128008, 128009] and not left
    off = {**LLAMA, "do_sample": False}
    assert read_generation(off, True)[0] == dict(max_length=4096)


@pytest.mark.parametrize(
    ("key", "alone"), [("min_length", False), ("min_new_tokens", True)]
)
def test_a_minimum_beyond_the_limit_is_the_limit(key, alone):
    # As in transformers, where no end may come before; a larger limit is the caller's.
    found, _, left = read_generation({"max_new_tokens": 10, key: 25}, alone)
    assert found == dict(max_new_tokens=10, min_new_tokens=10) and left == {key: 25}
    off = {"max_new_tokens": 10, "min_new_tokens": 0, key: 25}
    assert read_generation(off, alone) == (found, [], {key: 25})
    assert as_defaults(found) == found


@pytest.mark.parametrize(
    "said",
    [
        dict(diversity_penalty=0.5),
        dict(bad_words_ids=[[3, 4]]),
        dict(penalty_alpha=0.6),
        dict(do_sample=True, num_beams=3),
        dict(num_return_sequences=2),
        dict(forced_eos_token_id=[2, 3]),
        dict(a_new_way=1),
    ],
)
def test_what_cannot_be_followed_is_named(said, tmp_path):
    described = written("m2m_100", tmp_path)[1]
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps({**described["generation_config"], **said}))
    name = next(iter(said))
    with pytest.warns(UserWarning, match=f"does not follow .*{name}"):
        kzoo.from_preset(tmp_path)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (dict(temperature="0.7", do_sample=True), "temperature must be a number"),
        (dict(bad_words_ids=5), "bad_words_ids must be a list of lists"),
        (dict(bad_words_ids=[[]]), "bad_words_ids must be a list of lists"),
        (dict(forced_eos_token_id=[]), "with at least one"),
        (dict(eos_token_id=[3, -1]), r"an id in \[0, 97\) or a list"),
        (dict(eos_token_id="x"), "eos_token_id must be an id"),
        (dict(max_length="20"), "max_length must be a whole number"),
        (dict(num_beams=True), "num_beams must be a whole number"),
        (dict(early_stopping="no"), "early_stopping must be true, false or 'never'"),
        (dict(do_sample="yes"), "do_sample must be true or false"),
        (dict(decoder_start_token_id=-1), "decoder_start_token_id must be an id"),
    ],
)
def test_a_broken_value_is_said_with_its_file_and_key(said, expected, tmp_path):
    written("m2m_100", tmp_path)
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps(said))
    received = re.escape(repr(next(iter(said.values()))))
    expected = f"generation_config.json: .*{expected}.*Received: {received}"
    with pytest.raises(ValueError, match=expected):
        kzoo.from_preset(tmp_path)


@pytest.mark.parametrize("ends", [99_999, [99_999]])
def test_an_end_outside_of_the_vocabulary_is_warned_of(ends, tmp_path):
    written("m2m_100", tmp_path)
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps(dict(eos_token_id=ends)))
    expected = r"cannot write its end: .*\[0, 97\)\. Received: \[99999\]"
    with pytest.warns(UserWarning, match=expected):
        task = kzoo.from_preset(tmp_path)
    assert 0 <= task.config.end_token_id < 97
    kzoo.save_hf(task, tmp_path / "saved")  # in the words in which it came
    saved = json.loads((tmp_path / "saved" / "generation_config.json").read_text())
    assert saved["eos_token_id"] == ends


def test_ends_that_cannot_come_are_left_out(tmp_path):
    written("m2m_100", tmp_path)
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps(dict(eos_token_id=[99_999, 3])))
    assert kzoo.from_preset(tmp_path).config.end_token_id == 3


@pytest.mark.parametrize("name", ["marian", "pegasus"])
def test_stored_positions_are_the_sines_that_are_computed(name, tmp_path):
    written(name, tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    table = "model.encoder.embed_positions.weight"
    config = json.loads((tmp_path / "config.json").read_text())
    tensors[table] = sines((config["max_position_embeddings"], config["d_model"]))
    save_file(tensors, path)
    assert kzoo.from_preset(tmp_path)
    half = {**tensors, table: tensors[table].astype("float16")}
    save_file(half, path)  # in its own precision
    assert kzoo.from_preset(tmp_path).dtype_policy.name == "float32"
    right = tensors[table]
    wrong = right.copy()
    wrong[3, 2] += 0.01
    for values in (wrong, right[:, :-2].copy(), right[0], np.full_like(right, np.nan)):
        save_file({**tensors, table: values}, path)
        shape = re.escape(str(values.shape))
        expected = f"encoder.embed_positions.weight: {shape} of float32, expected the"
        with pytest.raises(ValueError, match=expected):
            kzoo.from_preset(tmp_path)
    floats = {n: v.astype("float16") for n, v in tensors.items() if n != table}
    big = sines((4096, config["d_model"]))
    save_file({**floats, table: big}, path)  # which says nothing of the weights' dtype
    config = {k: v for k, v in config.items() if "dtype" not in k}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert kzoo.from_preset(tmp_path, dtype="auto").dtype_policy.name == "float16"


def test_a_classifier_of_bart_has_three_labels_where_its_config_is_silent(tmp_path):
    written("bart_classifier", tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    assert len(config.pop("id2label")) == 3
    config.pop("label2id"), config.pop("num_labels", None)
    for said in ({}, {"num_labels": None}):
        path.write_text(json.dumps({**config, **said}))
        assert kzoo.from_preset(tmp_path).num_classes == 3


def test_what_can_be_followed_is_no_warning(tmp_path):
    described = written("m2m_100", tmp_path)[1]
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps({**described["generation_config"], "top_k": 7}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kzoo.from_preset(tmp_path)


def test_what_generation_config_cannot_say_is_named():
    config = family_of("t5").read_config(T5_SMALL)
    defaults = dict(stop_tokens=[7], temperature=0.5, top_k=3, seed=4)
    keys, unsaid = write_generation(defaults, config)
    assert keys["eos_token_id"] == [1, 7] and keys["do_sample"]
    assert unsaid == dict(seed=4)
    found, ends, left = read_generation(keys, False)
    assert found == dict(temperature=0.5, top_k=3) and ends == [1, 7] and not left


class OneToken:
    def encode_targets(self, texts):
        return [[{"a": 5, "b": 1}[letter] for letter in text] for text in texts]


@pytest.mark.parametrize(
    "options, again, ends",
    [
        (dict(beams=4), dict(beams=4, early_stopping=True), [1]),
        (dict(beams=4, early_stopping=False), None, [1]),
        (dict(early_stopping=True), {}, [1]),
        (dict(banned_tokens=[1]), None, [1]),
        (dict(stop_tokens=5), {}, [1, 5]),
        (dict(stop_tokens=["a", "b", 5, 7]), {}, [1, 5, 7]),
        (dict(stop_tokens="a"), {}, [1, 5]),
        (dict(banned_tokens=["a", 6]), dict(banned_tokens=[5, 6]), [1]),
        (dict(banned_tokens="a"), dict(banned_tokens=[5]), [1]),
        (dict(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0), {}, [1]),
        (dict(stop_tokens=None, forced_tokens=None, forced_prefix=None), {}, [1]),
        (dict(forced_tokens={0: "a"}), dict(forced_tokens={0: 5}), [1]),
        (dict(forced_tokens={0: 4, -1: 1}, max_new_tokens=7), None, [1]),
    ],
)
def test_search_defaults_are_read_as_they_were_written(options, again, ends):
    config = family_of("t5").read_config(T5_SMALL)
    keys, unsaid = write_generation(options, config, OneToken())
    expected = options if again is None else again
    assert read_generation(keys, False) == (expected, ends, {}) and not unsaid


def test_texts_that_are_not_one_token_are_named():
    config = family_of("t5").read_config(T5_SMALL)
    options = dict(banned_tokens=["ab"], stop_tokens="ab", seed=3)
    options |= dict(early_stopping=False)
    assert write_generation(options, config, OneToken())[1] == options
    options = dict(banned_tokens=["a"], stop_tokens=["a", 3])
    keys, unsaid = write_generation(options, config)
    assert unsaid == options and keys["eos_token_id"] == 1


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mbart")
    written("mbart", folder)
    return kzoo.from_preset(folder)


PROMPTS = [[5, 6, 7, 2], [9, 2]]


@pytest.mark.usefixtures("eager")
def test_a_callers_options_win_over_the_checkpoints(model):
    assert model.generate(PROMPTS, beams=1, max_new_tokens=4) == model.generate(
        PROMPTS,
        beams=1,
        max_new_tokens=4,
        min_new_tokens=2,
        forced_tokens={0: 11, -1: 2},
        banned_tokens=[1],
    )
    # A language of the caller's, and still an end in the last place.
    other = model.generate(PROMPTS, forced_prefix=[12])
    assert all(row[0] == 12 and len(row) < 9 for row in other)
    drawn = model.generate(PROMPTS, temperature=1.0, seed=3)  # instead of beams
    assert drawn == model.generate(PROMPTS, temperature=1.0, seed=3, beams=1)


def test_stop_tokens_add_up_and_contradictions_give_way():
    over = kzoo.SearchOptions.over
    defaults = dict(temperature=0.6, top_p=0.9, stop_tokens=[7], min_new_tokens=5)
    made = over(defaults, dict(stop_tokens=[9], max_new_tokens=4))
    assert (made.stop_tokens, made.min_new_tokens, made.top_p) == ([7, 9], 4, 0.9)
    for given in (dict(beams=3), dict(temperature=0.0)):
        made = over(defaults, given)
        assert (made.temperature, made.top_p) == (0.0, 1.0)
    assert over(dict(beams=4), dict(temperature=1.0)).beams == 1
    with pytest.raises(ValueError, match="beams must be an integer"):
        over(defaults, dict(beams="3"))


def test_a_given_length_displaces_a_default_that_contradicts_it():
    config = kzoo.ModelConfig.from_size("tiny", "encoder_decoder", 30)
    defaults = dict(min_new_tokens=5, max_length=14)
    model = kzoo.Seq2SeqLM(config, search_defaults=defaults)
    assert len(model.generate([[5, 6]], max_length=4)[0]) <= 3
    free = {**defaults, "min_new_tokens": 20}
    assert 20 <= len(model.generate([[5, 6]], min_new_tokens=20)[0]) <= 128
    assert model.search_inputs(min_new_tokens=20)["max_new_tokens"] == 128
    assert model.search_inputs(max_length=4)["min_new_tokens"] == 3
    assert model.search_inputs()["max_new_tokens"] == 13
    with pytest.raises(ValueError, match="min_new_tokens must be at most"):
        model.generate([[5, 6]], **free)
    over = kzoo.SearchOptions.over(dict(max_new_tokens=8), dict(min_new_tokens=9))
    assert (over.max_new_tokens, over.min_new_tokens) == (None, 9)
    config = kzoo.ModelConfig.from_size("tiny", "decoder", 30)
    model = kzoo.CausalLM(config, search_defaults=defaults)
    assert len(model.generate([[5] * 9], max_length=12)[0]) <= 3
    assert len(model.generate([[5] * 9], min_new_tokens=20)[0]) >= 20


def test_defaults_are_saved_with_a_task(model, tmp_path):
    expected = model.search_inputs()
    model.save_folder(tmp_path / "folder")
    model.save(tmp_path / "model.keras")
    for again in (
        kzoo.from_preset(tmp_path / "folder"),
        kzoo.load_model(tmp_path / "model.keras"),
    ):
        assert again.search_defaults == model.search_defaults
        np.testing.assert_equal(again.search_inputs(), expected)
    assert (expected["beams"], expected["max_new_tokens"]) == (5, 9)
    np.testing.assert_array_equal(expected["forced_token_ids"], [[11, *[-1] * 7, 2]])


def test_wrong_defaults_are_refused(model):
    for wrong, named in (
        (dict(beams=0), "beams must be"),
        (dict(beam=2), "beam"),
        (dict(processors=[print]), "processors"),
    ):
        with pytest.raises(ValueError, match=named):
            model.search_defaults = wrong


def test_rates_that_t5_has_no_key_for_are_of_training_alone():
    family = family_of("t5")
    config = family.read_config(T5_SMALL)
    other = config.decoder.replace(attention_dropout=0.3)
    keys = family.write_config(config.replace(decoder=other))
    assert keys["dropout_rate"] == 0.1
