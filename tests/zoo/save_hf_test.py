"""What `save_hf` leaves in a folder, and what it does not."""

import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import kzoo
from tests.harness import perturb, to_numpy
from tests.parity.parity_test import written

IDS = {"token_ids": np.array([[4, 5, 6, 2]], "int32")}


def test_adapters_are_merged_into_what_is_written_and_stay_in_the_task(tmp_path):
    written("llama", tmp_path)
    task = kzoo.from_preset(tmp_path)
    plain = to_numpy(task(IDS))
    task.enable_lora(2, "*/query")
    perturb([v for v in task.trainable_variables if "lora" in v.name])
    adapted = to_numpy(task(IDS))
    assert np.abs(adapted - plain).max() > 1e-2
    kzoo.save_hf(task, tmp_path / "out")
    np.testing.assert_allclose(
        to_numpy(kzoo.from_preset(tmp_path / "out")(IDS)), adapted, atol=1e-4
    )
    np.testing.assert_array_equal(to_numpy(task(IDS)), adapted)


WORDS, TANH = ["abcd", "dcb", "aad"], dict(hidden_activation="tanh")
PAIRS = [("ab", "cd"), ("bbbb", "a"), ("c", "dad")]


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    ("kind", "family", "examples", "options"),
    [
        (kzoo.Seq2SeqLM, "bart", WORDS, {}),
        (kzoo.CausalLM, "llama", WORDS, {}),
        (kzoo.MaskedLM, "bert", WORDS, {}),
        (kzoo.TextClassifier, "bert", PAIRS, dict(num_classes=3, **TANH)),
        (kzoo.PairScorer, "bert", PAIRS, TANH),
        (kzoo.TokenClassifier, "bert", [["ab", "c"], ["d"]], dict(num_classes=3)),
        (kzoo.QuestionAnswering, "bert", PAIRS, {}),
    ],
)
def test_a_tokenizer_that_kzoo_trained_reads_as_the_task_does(
    kind, family, examples, options, tmp_path
):
    tokenizer = kzoo.FastTokenizer.train(
        WORDS, 20, algorithm="character", mask_token=kind is kzoo.MaskedLM
    )
    written({"bert": "bert_model"}.get(family, family), tmp_path)
    keys = json.loads((tmp_path / "config.json").read_text())
    config = kzoo.from_preset(tmp_path).config.replace(
        pad_token_id=tokenizer.pad_token_id,
        start_token_id=tokenizer.start_token_id,
        end_token_id=tokenizer.end_token_id,
        mask_token_id=tokenizer.mask_token_id,
    )
    assert keys["vocab_size"] >= tokenizer.vocabulary_size
    task = kind(config, tokenizer=tokenizer, **options)
    perturb(task.named_variables().values())
    kzoo.save_hf(task, tmp_path / "out", family)
    settings = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    # Else transformers would not tell texts of a pair apart.
    named = "token_type_ids" in settings.get("model_input_names", [])
    assert named == (family == "bert")
    again = kzoo.from_preset(tmp_path / "out")
    assert type(again) is kind
    rows = [task.text_rows(example) for example in examples]
    read = [again.text_rows(example) for example in examples]
    assert str(read) == str(rows)
    if hasattr(task, "generate"):
        limit = dict(max_new_tokens=8)
        assert again.generate(WORDS, **limit) == task.generate(WORDS, **limit)
        assert again.target_prefix == task.target_prefix == ()
    else:
        for one, other in zip(again.predict(examples), task.predict(examples)):
            np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_tokenizer_that_transformers_makes_anew_is_warned_of(tmp_path):
    tokenizer = kzoo.FastTokenizer.train(WORDS, 20, algorithm="character")
    written("qwen2", tmp_path)
    config = kzoo.from_preset(tmp_path).config
    task = kzoo.CausalLM(config, tokenizer=None)
    kzoo.save_hf(task, tmp_path / "out")
    config = config.replace(
        pad_token_id=tokenizer.pad_token_id,
        start_token_id=tokenizer.start_token_id,
        end_token_id=tokenizer.end_token_id,
    )
    task = kzoo.CausalLM(config, tokenizer=tokenizer)
    with pytest.warns(UserWarning, match="model_type='qwen2' as Qwen2's own"):
        assert kzoo.save_hf(task, tmp_path / "out", "qwen2") == "qwen2"


def test_adapters_stay_in_a_folder_of_kzoo_whatever_is_asked_for(tmp_path):
    written("llama", tmp_path)
    task = kzoo.from_preset(tmp_path)
    task.enable_lora(2, "*/query")
    perturb([v for v in task.trainable_variables if "lora" in v.name])
    task.save_folder(tmp_path / "own")
    again = kzoo.from_preset(tmp_path / "own", search_defaults={"beams": 2})
    np.testing.assert_array_equal(to_numpy(again(IDS)), to_numpy(task(IDS)))
    assert len(again.trainable_variables) == len(task.trainable_variables)


def test_files_of_a_former_model_go_and_others_stay(tmp_path):
    (tmp_path / "a").mkdir()
    written("bert_model", tmp_path / "a")
    out = tmp_path / "out"
    kzoo.save_hf(kzoo.from_preset(tmp_path / "a", task="sentence_embedder"), out)
    assert (out / "modules.json").is_file()
    (out / "notes.txt").write_text("mine")
    (tmp_path / "b").mkdir()
    written("bert_text_classifier", tmp_path / "b")
    kzoo.save_hf(kzoo.from_preset(tmp_path / "b"), out)
    assert not (out / "modules.json").exists() and (out / "notes.txt").is_file()
    assert isinstance(kzoo.from_preset(out), kzoo.TextClassifier)


def test_files_that_are_named_like_those_of_a_model_stay(tmp_path):
    (tmp_path / "in").mkdir()
    written("llama", tmp_path / "in")
    out = tmp_path / "out"
    out.mkdir()
    mine = {
        "config_sweep.json",
        "model_best.safetensors",
        "my.spm",
        "pytorch_model_old.bin",
        "sentences.json",
        "sentencepiece_old.model",
        "tokenizer_training.py",
        "tokenizers.md",
        "vocab.csv",
    }
    of_a_model = {
        "additional_chat_templates/tool_use.jinja",
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "pytorch_model-00001-of-00002.bin",
        "pytorch_model.bin",
        "pytorch_model.bin.index.json",
        "sentencepiece.bpe.model",
        "tokenizer.json",
        "vocab.txt",
    }
    (out / "additional_chat_templates").mkdir()
    for name in mine | of_a_model:
        (out / name).write_text("mine")
    kzoo.save_hf(kzoo.from_preset(tmp_path / "in"), out)
    assert {name for name in mine if (out / name).read_text() == "mine"} == mine
    assert not [name for name in of_a_model if (out / name).exists()]


def test_what_fails_leaves_the_former_model_as_it_was(tmp_path):
    (tmp_path / "in").mkdir()
    written("llama", tmp_path / "in")
    task = kzoo.from_preset(tmp_path / "in")
    out = tmp_path / "out"
    kzoo.save_hf(task, out)
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    task.tokenizer = kzoo.SentencePieceTokenizer.train(["a b c d e f"] * 9, 30)
    with pytest.raises(ValueError, match="no layout"):
        kzoo.save_hf(task, out)
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "out"]


def test_a_dtype_comes_back_with_a_folder_where_it_is_asked_for(tmp_path):
    (tmp_path / "in").mkdir()
    written("llama", tmp_path / "in")
    task = kzoo.from_preset(tmp_path / "in", dtype="bfloat16")
    kzoo.save_hf(task, tmp_path / "hf")
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["dtype"] == (
        "bfloat16"
    )
    task.save_folder(tmp_path / "own")
    for folder in ("hf", "own"):
        again = kzoo.from_preset(tmp_path / folder, dtype="auto")
        assert again.variable_dtype == "bfloat16"
        np.testing.assert_array_equal(
            to_numpy(again(IDS)).astype("float32"),
            to_numpy(task(IDS)).astype("float32"),
        )


def test_the_dtype_is_that_of_the_weights_that_are_used(tmp_path):
    _, described = written("llama", tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = {n: a.astype(ml_dtypes.bfloat16) for n, a in load_file(path).items()}
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(10**6, "float32")
    save_file(tensors, path)
    for named, found in (({}, "bfloat16"), ({"torch_dtype": "float16"}, "float16")):
        config = {k: v for k, v in described["config"].items() if k != "dtype"}
        (tmp_path / "config.json").write_text(json.dumps({**config, **named}))
        assert kzoo.from_preset(tmp_path, dtype="auto").variable_dtype == found


def classifier_without_padding(folder, end_too=False):
    """A classifier of a checkpoint that names no padding, or the end as padding."""
    _, described = written("llama", folder)
    pad = described["config"]["eos_token_id"] if end_too else None
    config = {**described["config"], "pad_token_id": pad, "num_labels": 2}
    config["architectures"] = ["LlamaForSequenceClassification"]
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("lm_head.weight", None)
    tensors["score.weight"] = np.eye(2, config["hidden_size"], dtype="float32")
    save_file(tensors, folder / "model.safetensors")
    with pytest.warns(UserWarning, match="names no padding"):
        task = kzoo.from_preset(folder)
    assert isinstance(task, kzoo.TextClassifier)
    return task


@pytest.mark.parametrize("end_too", [False, True])
def test_a_classifier_is_given_back_with_the_padding_that_it_has(end_too, tmp_path):
    (tmp_path / "in").mkdir()
    task = classifier_without_padding(tmp_path / "in", end_too)
    kzoo.save_hf(task, tmp_path / "out")
    back = json.loads((tmp_path / "out" / "config.json").read_text())
    assert back["pad_token_id"] == task.config.pad_token_id


def test_a_model_without_a_known_padding_says_so(tmp_path):
    _, described = written("gpt2", tmp_path)
    config = {**described["config"], "pad_token_id": None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.warns(UserWarning, match="names no padding.*id 96 stands for it"):
        task = kzoo.from_preset(tmp_path)
    kzoo.save_hf(task, tmp_path / "out")
    back = json.loads((tmp_path / "out" / "config.json").read_text())
    assert back["pad_token_id"] is None


def test_a_decoder_s_first_token_has_no_key_and_its_last_one_has(tmp_path):
    # Others read `forced_bos_token_id` of models with an encoder alone.
    written("llama", tmp_path)
    task = kzoo.from_preset(tmp_path)
    task.search_defaults = {"max_new_tokens": 4, "forced_tokens": {0: 7, -1: 5}}
    with pytest.warns(
        UserWarning, match=r"not saved: \{'forced_tokens': \{0: 7, -1: 5"
    ):
        kzoo.save_hf(task, tmp_path / "out")
    said = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert "forced_bos_token_id" not in said and said["forced_eos_token_id"] == 5


@pytest.mark.parametrize(("early", "said"), [(True, True), (False, "never")])
def test_others_search_until_no_sequence_can_score_better(early, said, tmp_path):
    """For which `False` is until none is likely to."""
    written("llama", tmp_path)
    task = kzoo.from_preset(tmp_path)
    task.search_defaults = {"beams": 3, "early_stopping": early}
    kzoo.save_hf(task, tmp_path / "out")
    keys = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert keys["num_beams"] == 3 and keys["early_stopping"] == said
    again = kzoo.from_preset(tmp_path / "out").search_defaults
    assert again["early_stopping"] is early
