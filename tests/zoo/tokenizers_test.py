"""Checkpoints with their tokenizers: every layout's folder is read and written back."""

import json
import shutil
import warnings

import pytest
from safetensors.numpy import save_file

import kzoo
from kzoo.families import family_of
from tests.golden import folders as golden
from tests.parity.weights import weight

pytestmark = pytest.mark.usefixtures("eager")

SIZES = dict(
    d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
    decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16,
)  # fmt: skip
FORCED = "forced_bos_token_id"
DECODER = dict(
    hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
    num_key_value_heads=2,
)  # fmt: skip
# Golden folder: model_type, keys, and keys of generation_config.json.
FOLDERS = {
    "marian": ("marian", {**SIZES, "pad_token_id": -1}, {}),
    "pegasus": ("pegasus", SIZES, {}),
    "m2m100": ("m2m_100", SIZES, {}),
    "nllb": ("m2m_100", SIZES, {}),
    "mbart": ("mbart", SIZES, {}),
    "bart": ("bart", SIZES, {"forced_bos_token_id": 0}),
    "t5": ("t5", dict(d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2), {}),
    "gpt2": ("gpt2", dict(n_embd=16, n_layer=1, n_head=2, pad_token_id=-1), {}),
    "llama3": ("llama", DECODER, {}),
}


def written(name, folder):
    """A checkpoint with the golden tokenizer of a name, tiny."""
    model_type, keys, generation = FOLDERS[name]
    cases = golden.unpack(name, folder)
    tokenizer = kzoo.tokenizers.load_pretrained_tokenizer(folder, cases["kind"])
    end = tokenizer.end_token_id
    keys = {**keys, "vocab_size": tokenizer.vocabulary_size, "eos_token_id": end}
    if keys.get("pad_token_id") == -1:  # the end, as these files have it
        keys["pad_token_id"] = end if model_type == "gpt2" else tokenizer.pad_token_id
    if model_type == "llama":
        keys["eos_token_id"] = [0, 1, end]
    keys |= {"is_encoder_decoder": model_type not in ("gpt2", "llama")}
    if model_type == "marian":
        keys["decoder_start_token_id"] = keys["pad_token_id"]
    family = family_of(model_type)
    if (folder / "config.json").is_file():
        keys = {**json.loads((folder / "config.json").read_text()), **keys}
    kind = next(iter(family.heads))
    task = getattr(kzoo, kind)(family.read_config({"model_type": model_type, **keys}))
    shapes = {k: tuple(v.shape) for k, v in task.named_variables().items()}
    tied = next(k for k in shapes if k.endswith("token_embedding/embeddings"))
    sources, _ = family.sources(
        kind,
        task.config,
        shapes,
        tied if task.config.tie_head else None,
        family.prefix_of(kind),
    )
    tensors = {
        s.names[0]: weight(s.names[0], s.shape([shapes[p] for p in s.paths]))
        for s in sources
    }
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(
        json.dumps({**keys, "model_type": model_type, "architectures": []})
    )
    if generation:
        said = {"eos_token_id": end, "pad_token_id": keys.get("pad_token_id")}
        (folder / "generation_config.json").write_text(
            json.dumps({**said, **generation})
        )
    return keys


@pytest.mark.parametrize("name", FOLDERS)
def test_a_checkpoint_generates_the_same_when_it_is_saved_back(name, tmp_path):
    folder, back = tmp_path / "in", tmp_path / "back"
    folder.mkdir()
    keys = written(name, folder)
    task = kzoo.from_preset(folder)
    texts = ["Hello world", "some text"]
    expected = task.generate(texts, max_new_tokens=3)
    kzoo.save_hf(task, back)
    kept = json.loads((back / "config.json").read_text())
    for key in ("pad_token_id", "eos_token_id", "decoder_start_token_id"):
        assert kept.get(key) == keys.get(key, kept.get(key)), key
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = kzoo.from_preset(back)
    assert again.config == task.config
    assert again.tokenizer.conventions.target_prefix == (
        task.tokenizer.conventions.target_prefix
    )
    assert again.own_stops == task.own_stops
    assert again.encode_prompts(texts) == task.encode_prompts(texts)
    assert again.generate(texts, max_new_tokens=3) == expected
    own = tmp_path / "own"
    task.save_folder(own)
    assert kzoo.from_preset(own).loaded.family == task.loaded.family


@pytest.mark.parametrize("name", ["m2m100", "nllb"])
@pytest.mark.parametrize("said", [True, False])
def test_a_language_that_was_chosen_after_loading_is_saved(name, said, tmp_path):
    written(name, tmp_path)
    task = kzoo.from_preset(tmp_path)
    first, second = list(task.tokenizer.languages)[:2]
    if said:  # as published files have it
        prefix = task.tokenizer.for_languages(target=first).conventions.target_prefix
        keys = {"forced_bos_token_id": prefix[0]} if prefix else {}
        (tmp_path / "generation_config.json").write_text(json.dumps(keys))
        task = kzoo.from_preset(tmp_path)
    task.tokenizer = task.tokenizer.for_languages(target=second)
    kzoo.save_hf(task, tmp_path / "hf")
    task.save_folder(tmp_path / "own")
    kzoo.save_hf(kzoo.load_task(tmp_path / "own"), tmp_path / "both")
    expected = task.generate(["ab"], max_new_tokens=3)
    for folder in ("hf", "own", "both"):
        again = kzoo.from_preset(tmp_path / folder)
        assert again.target_prefix == task.target_prefix, folder
        assert again.generate(["ab"], max_new_tokens=3) == expected
    if task.target_prefix:
        keys = json.loads((tmp_path / "hf" / "generation_config.json").read_text())
        assert [keys["forced_bos_token_id"]] == list(task.target_prefix)


SAID = {  # keys of config.json and of generation_config.json
    "start": ("mbart", {}, {"decoder_start_token_id": 5}),
    "start_forced": ("mbart", {}, dict.fromkeys(("decoder_start_token_id", FORCED), 5)),
    "nothing": ("bart", {}, {}),
    "forced": ("bart", {}, {FORCED: 7}),
    "forced_as_learned": ("bart", {}, {FORCED: 0}),
    "forced_of_old": ("bart", {FORCED: 7}, {}),
    "language": ("m2m100", {}, {FORCED: "fr"}),
    "ends": ("llama3", {}, {"eos_token_id": list(range(2, 400, 2))}),
    "ends_of_old": ("llama3", {"eos_token_id": list(range(2, 400, 2))}, {}),
}


@pytest.mark.filterwarnings("ignore:.*names no padding")
@pytest.mark.parametrize("case", SAID)
def test_a_search_is_as_its_files_say_with_a_tokenizer_and_without(case, tmp_path):
    name, config, generation = SAID[case]
    both, bare, beside = (tmp_path / kind for kind in ("both", "bare", "beside"))
    for folder in (both, bare, beside):
        folder.mkdir()
    keys = written(name, both)
    ends = keys["eos_token_id"]
    ends = ends[-1] if isinstance(ends, list) else ends
    if name == "m2m100":
        known = kzoo.from_preset(both).tokenizer.conventions.languages
        generation = {FORCED: known[generation[FORCED]]}
    files = {
        "config.json": json.loads((both / "config.json").read_text()) | config,
        "generation_config.json": {"eos_token_id": ends, **generation},
    }
    for file, content in files.items():
        (both / file).write_text(json.dumps(content))
        shutil.copy(both / file, bare)
    shutil.copy(both / "model.safetensors", bare)
    # What is forced is the first tokens; ends come later.
    prompts, options = [[5, 6, 7], [9]], dict(max_new_tokens=3)
    if name == "llama3":
        options = dict(max_new_tokens=6)
    expected = kzoo.from_preset(bare).generate(prompts, **options)
    assert kzoo.from_preset(both).generate(prompts, **options) == expected
    if name == "mbart":  # a tokenizer knows its language, and starts with it
        return
    cases = golden.unpack(name, beside)
    (beside / "config.json").unlink(missing_ok=True)
    other = kzoo.tokenizers.load_pretrained_tokenizer(beside, cases["kind"])
    learned = (0,) if name == "bart" else ()
    changes = dict(target_prefix=(), learned_prefix=learned)
    told, other = other, other.with_conventions(**changes)
    task = kzoo.from_preset(both, tokenizer=other)
    assert task.generate(prompts, **options) == expected
    if told.languages:  # the one that it is told wins, also later
        (code,) = told.conventions.target_prefix
        assert code != generation[FORCED]
        early, late = kzoo.from_preset(both, tokenizer=told), task
        late.tokenizer = told
        for task in (early, late):
            expected = task.generate(prompts, **options)
            assert [row[0] for row in expected] == [code, code]
            assert generation[FORCED] not in sum(expected, [])
            kzoo.save_hf(task, tmp_path / "back")
            again = kzoo.from_preset(tmp_path / "back")
            assert again.generate(prompts, **options) == expected
