"""Published `config.json` files of decoders, old ones too, mean what their models are.

And what kzoo does not compute is refused by name.
"""

import json

import numpy as np
import pytest

import kzoo
from kzoo.checkpoints.hf_config import Unsupported
from kzoo.config import RopeScaling
from kzoo.families import family_of
from tests.harness import to_numpy
from tests.parity.parity_test import written

LLAMA = dict(
    architectures=["LlamaForCausalLM"],
    hidden_act="silu",
    initializer_range=0.02,
    model_type="llama",
    rms_norm_eps=1e-5,
    use_cache=True,
)
# Name -> the file's keys, and fields of the stack and of the model.
PUBLISHED = {
    "gpt2": (
        dict(
            activation_function="gelu_new",
            architectures=["GPT2LMHeadModel"],
            attn_pdrop=0.1,
            bos_token_id=50256,
            embd_pdrop=0.1,
            eos_token_id=50256,
            initializer_range=0.02,
            layer_norm_epsilon=1e-5,
            model_type="gpt2",
            n_ctx=1024,
            n_embd=768,
            n_head=12,
            n_layer=12,
            n_positions=1024,
            resid_pdrop=0.1,
            summary_activation=None,
            summary_first_dropout=0.1,
            summary_proj_to_labels=True,
            summary_type="cls_index",
            summary_use_proj=True,
            task_specific_params={
                "text-generation": {"do_sample": True, "max_length": 50}
            },
            vocab_size=50257,
        ),
        dict(hidden_dim=768, intermediate_dim=3072, activation="gelu_tanh"),
        dict(end_token_id=50256, tie_head=True),
    ),
    "pythia-70m": (
        dict(
            architectures=["GPTNeoXForCausalLM"],
            bos_token_id=0,
            eos_token_id=0,
            hidden_act="gelu",
            hidden_size=512,
            initializer_range=0.02,
            intermediate_size=2048,
            layer_norm_eps=1e-5,
            max_position_embeddings=2048,
            model_type="gpt_neox",
            num_attention_heads=8,
            num_hidden_layers=6,
            rotary_emb_base=10000,
            rotary_pct=0.25,
            tie_word_embeddings=False,
            torch_dtype="float16",
            transformers_version="4.24.0",
            use_cache=True,
            use_parallel_residual=True,
            vocab_size=50304,
        ),
        dict(
            rotary_dim=16,
            head_dim=64,
            parallel_residual=True,
            attention_bias=True,
            activation="gelu",
            norm="layer_norm",
            rope_max_wavelength=10000.0,
        ),
        dict(tie_head=False, end_token_id=0, start_token_id=0),
    ),
    "gpt-neox-20b": (
        dict(
            architectures=["GPTNeoXForCausalLM"],
            attention_probs_dropout_prob=0,
            bos_token_id=0,
            eos_token_id=0,
            hidden_act="gelu_fast",
            hidden_dropout_prob=0,
            hidden_size=6144,
            initializer_range=0.02,
            intermediate_size=24576,
            layer_norm_eps=1e-5,
            max_position_embeddings=2048,
            model_type="gpt_neox",
            num_attention_heads=64,
            num_hidden_layers=44,
            rotary_emb_base=10000,
            rotary_pct=0.25,
            tie_word_embeddings=False,
            torch_dtype="float16",
            transformers_version="4.19.0.dev0",
            use_cache=True,
            vocab_size=50432,
        ),
        dict(rotary_dim=24, activation="gelu_tanh", parallel_residual=True),
        dict(tie_head=False),
    ),
    "opt-125m": (
        dict(
            _name_or_path="facebook/opt-125m",
            _remove_final_layer_norm=False,
            activation_dropout=0.0,
            activation_function="relu",
            architectures=["OPTForCausalLM"],
            attention_dropout=0.0,
            bos_token_id=2,
            do_layer_norm_before=True,
            dropout=0.1,
            eos_token_id=2,
            ffn_dim=3072,
            hidden_size=768,
            init_std=0.02,
            layerdrop=0.0,
            max_position_embeddings=2048,
            model_type="opt",
            num_attention_heads=12,
            num_hidden_layers=12,
            pad_token_id=1,
            prefix="</s>",
            torch_dtype="float16",
            transformers_version="4.21.0.dev0",
            use_cache=True,
            vocab_size=50272,
            word_embed_proj_dim=768,
        ),
        dict(
            positions="learned",
            first_position=2,
            norm_position="pre",
            final_norm=True,
            norm_epsilon=1e-5,
            max_sequence_length=2048,
        ),
        dict(tie_head=True, pad_token_id=1, start_token_id=2, end_token_id=2),
    ),
    "llama-7b": (
        {
            **LLAMA,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "max_sequence_length": 2048,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "pad_token_id": 0,
            "rms_norm_eps": 1e-6,
            "torch_dtype": "float16",
            "transformers_version": "4.27.0.dev0",
            "vocab_size": 32000,
        },
        dict(
            num_key_value_heads=32,
            rope_max_wavelength=10000.0,
            rope_scaling=None,
            norm_epsilon=1e-6,
            use_bias=False,
        ),
        dict(tie_head=False, pad_token_id=0),
    ),
    "Llama-2-7b-hf": (
        {
            **LLAMA,
            "_name_or_path": "meta-llama/Llama-2-7b-hf",
            "bos_token_id": 1,
            "eos_token_id": 2,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "max_position_embeddings": 4096,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_key_value_heads": 32,
            "pretraining_tp": 1,
            "rope_scaling": None,
            "tie_word_embeddings": False,
            "torch_dtype": "float16",
            "transformers_version": "4.31.0.dev0",
            "vocab_size": 32000,
        },
        dict(max_sequence_length=4096, attention_bias=False),
        dict(start_token_id=1, end_token_id=2),
    ),
    "Llama-3.2-1B": (
        {
            **LLAMA,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": 128000,
            "eos_token_id": 128001,
            "head_dim": 64,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "max_position_embeddings": 131072,
            "mlp_bias": False,
            "num_attention_heads": 32,
            "num_hidden_layers": 16,
            "num_key_value_heads": 8,
            "pretraining_tp": 1,
            "rope_scaling": {
                "factor": 32.0,
                "high_freq_factor": 4.0,
                "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192,
                "rope_type": "llama3",
            },
            "rope_theta": 500000.0,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "transformers_version": "4.45.0.dev0",
            "vocab_size": 128256,
        },
        dict(
            rope_max_wavelength=500000.0,
            num_key_value_heads=8,
            rope_scaling=RopeScaling(
                kind="bands",
                factor=32.0,
                original_length=8192,
                low_frequency_factor=1.0,
                high_frequency_factor=4.0,
            ),
        ),
        dict(tie_head=True, start_token_id=128000, end_token_id=128001),
    ),
    "SmolLM2-135M": (
        {
            **LLAMA,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": 0,
            "eos_token_id": 0,
            "hidden_size": 576,
            "initializer_range": 0.041666666666666664,
            "intermediate_size": 1536,
            "is_llama_config": True,
            "max_position_embeddings": 8192,
            "mlp_bias": False,
            "num_attention_heads": 9,
            "num_hidden_layers": 30,
            "num_key_value_heads": 3,
            "pretraining_tp": 1,
            "rope_interleaved": False,
            "rope_scaling": None,
            "rope_theta": 100000,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "transformers_version": "4.40.1",
            "vocab_size": 49152,
        },
        dict(head_dim=64, num_key_value_heads=3, rope_max_wavelength=100000.0),
        dict(tie_head=True, end_token_id=0),
    ),
    "Mistral-7B-v0.1": (
        dict(
            architectures=["MistralForCausalLM"],
            bos_token_id=1,
            eos_token_id=2,
            hidden_act="silu",
            hidden_size=4096,
            initializer_range=0.02,
            intermediate_size=14336,
            max_position_embeddings=32768,
            model_type="mistral",
            num_attention_heads=32,
            num_hidden_layers=32,
            num_key_value_heads=8,
            rms_norm_eps=1e-5,
            rope_theta=10000.0,
            sliding_window=4096,
            tie_word_embeddings=False,
            torch_dtype="bfloat16",
            transformers_version="4.34.0.dev0",
            use_cache=True,
            vocab_size=32000,
        ),
        dict(attention_window=4096, windowed_layers=None, head_dim=128),
        dict(tie_head=False),
    ),
    "Qwen2.5-0.5B": (
        dict(
            architectures=["Qwen2ForCausalLM"],
            attention_dropout=0.0,
            bos_token_id=151643,
            eos_token_id=151643,
            hidden_act="silu",
            hidden_size=896,
            initializer_range=0.02,
            intermediate_size=4864,
            max_position_embeddings=32768,
            max_window_layers=24,
            model_type="qwen2",
            num_attention_heads=14,
            num_hidden_layers=24,
            num_key_value_heads=2,
            rms_norm_eps=1e-6,
            rope_theta=1000000.0,
            sliding_window=32768,
            tie_word_embeddings=True,
            torch_dtype="bfloat16",
            transformers_version="4.40.1",
            use_cache=True,
            use_mrope=False,
            use_sliding_window=False,
            vocab_size=151936,
        ),
        dict(
            attention_bias=True,
            attention_output_bias=False,
            use_bias=False,
            attention_window=None,
            rope_max_wavelength=1e6,
        ),
        dict(tie_head=True, end_token_id=151643),
    ),
    "Qwen3-0.6B": (
        dict(
            architectures=["Qwen3ForCausalLM"],
            attention_bias=False,
            attention_dropout=0.0,
            bos_token_id=151643,
            eos_token_id=151645,
            head_dim=128,
            hidden_act="silu",
            hidden_size=1024,
            initializer_range=0.02,
            intermediate_size=3072,
            max_position_embeddings=40960,
            max_window_layers=28,
            model_type="qwen3",
            num_attention_heads=16,
            num_hidden_layers=28,
            num_key_value_heads=8,
            rms_norm_eps=1e-6,
            rope_scaling=None,
            rope_theta=1000000,
            sliding_window=None,
            tie_word_embeddings=True,
            torch_dtype="bfloat16",
            transformers_version="4.51.0",
            use_cache=True,
            use_sliding_window=False,
            vocab_size=151936,
        ),
        dict(query_key_norm=True, head_dim=128, attention_bias=False),
        dict(tie_head=True, end_token_id=151645),
    ),
    "gemma-2-2b": (
        dict(
            architectures=["Gemma2ForCausalLM"],
            attention_bias=False,
            attention_dropout=0.0,
            attn_logit_softcapping=50.0,
            bos_token_id=2,
            cache_implementation="hybrid",
            eos_token_id=1,
            final_logit_softcapping=30.0,
            head_dim=256,
            hidden_act="gelu_pytorch_tanh",
            hidden_activation="gelu_pytorch_tanh",
            hidden_size=2304,
            initializer_range=0.02,
            intermediate_size=9216,
            max_position_embeddings=8192,
            model_type="gemma2",
            num_attention_heads=8,
            num_hidden_layers=26,
            num_key_value_heads=4,
            pad_token_id=0,
            query_pre_attn_scalar=256,
            rms_norm_eps=1e-6,
            rope_theta=10000.0,
            sliding_window=4096,
            torch_dtype="float32",
            transformers_version="4.42.4",
            use_cache=True,
            vocab_size=256000,
        ),
        dict(
            norm="offset_rms_norm",
            norm_position="both",
            attention_soft_cap=50.0,
            attention_scale=1 / 16,
            embedding_scale=48.0,
            activation="gelu_tanh",
            attention_window=4096,
            windowed_layers=tuple(range(0, 26, 2)),
            window_rope_max_wavelength=None,
        ),
        dict(tie_head=True, head_soft_cap=30.0, pad_token_id=0, end_token_id=1),
    ),
    "gemma-3-1b-pt": (
        dict(
            architectures=["Gemma3ForCausalLM"],
            attention_bias=False,
            attention_dropout=0.0,
            attn_logit_softcapping=None,
            bos_token_id=2,
            cache_implementation="hybrid",
            eos_token_id=[1, 106],
            final_logit_softcapping=None,
            head_dim=256,
            hidden_activation="gelu_pytorch_tanh",
            hidden_size=1152,
            initializer_range=0.02,
            intermediate_size=6912,
            max_position_embeddings=32768,
            model_type="gemma3_text",
            num_attention_heads=4,
            num_hidden_layers=26,
            num_key_value_heads=1,
            pad_token_id=0,
            query_pre_attn_scalar=256,
            rms_norm_eps=1e-6,
            rope_local_base_freq=10000,
            rope_scaling=None,
            rope_theta=1000000,
            sliding_window=512,
            sliding_window_pattern=6,
            torch_dtype="bfloat16",
            transformers_version="4.50.0.dev0",
            use_cache=True,
            vocab_size=262144,
        ),
        dict(
            query_key_norm=True,
            attention_soft_cap=None,
            attention_window=512,
            windowed_layers=tuple(i for i in range(26) if i not in (5, 11, 17, 23)),
            rope_max_wavelength=1e6,
            window_rope_max_wavelength=1e4,
            rope_scaling=None,
        ),
        dict(tie_head=True, head_soft_cap=None, end_token_id=1),
    ),
    "Phi-3-mini-4k-instruct": (
        dict(
            _name_or_path="Phi-3-mini-4k-instruct",
            architectures=["Phi3ForCausalLM"],
            attention_bias=False,
            attention_dropout=0.0,
            auto_map={"AutoConfig": "configuration_phi3.Phi3Config"},
            bos_token_id=1,
            embd_pdrop=0.0,
            eos_token_id=32000,
            hidden_act="silu",
            hidden_size=3072,
            initializer_range=0.02,
            intermediate_size=8192,
            max_position_embeddings=4096,
            model_type="phi3",
            num_attention_heads=32,
            num_hidden_layers=32,
            num_key_value_heads=32,
            original_max_position_embeddings=4096,
            pad_token_id=32000,
            resid_pdrop=0.0,
            rms_norm_eps=1e-5,
            rope_scaling=None,
            rope_theta=10000.0,
            sliding_window=2047,
            tie_word_embeddings=False,
            torch_dtype="bfloat16",
            transformers_version="4.40.2",
            use_cache=True,
            vocab_size=32064,
        ),
        dict(head_dim=96, attention_window=2047, rotary_dim=None),
        # Its padding is its end, which kzoo's masks cannot have.
        dict(end_token_id=32000, pad_token_id=32063, tie_head=False),
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_is_read(name):
    keys, stack, model = PUBLISHED[name]
    family = family_of(keys["model_type"])
    config = family.read_config(keys)
    assert {n: getattr(config.decoder, n) for n in stack} == stack
    assert {n: getattr(config, n) for n in model} == model
    assert family.read_config(family.write_config(config)) == config


def longrope(**more):
    return {"short_factor": [1.0], "long_factor": [1.0], **more}


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        ("gpt2", {"activation_function": "mish"}, "activation_function='mish'"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "inverse_layer_idx"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention"),
        ("gpt2", {"is_decoder": True}, "is_decoder"),
        ("pythia-70m", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
        ("pythia-70m", {"norm_type": "rms"}, "norm_type"),
        ("opt-125m", {"word_embed_proj_dim": 512}, "word_embed_proj_dim=512"),
        ("opt-125m", {"layer_norm_elementwise_affine": False}, "elementwise_affine"),
        ("Llama-2-7b-hf", {"quantization_config": {"bits": 4}}, "quantization_config"),
        (
            "Llama-2-7b-hf",
            {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
            "dynamic",
        ),
        ("Llama-2-7b-hf", {"rope_scaling": {"type": "yarn"}}, "factor"),
        (
            "Llama-2-7b-hf",
            {"rope_scaling": {"type": "linear", "factor": 2.0, "finetuned": True}},
            "finetuned",
        ),
        ("SmolLM2-135M", {"rope_interleaved": True}, "rope_interleaved"),
        ("Mistral-7B-v0.1", {"layer_types": ["full_attention"] * 32}, "layer_types"),
        ("Qwen2.5-0.5B", {"use_mrope": True}, "use_mrope"),
        (
            "Qwen3-0.6B",
            {
                "layer_types": ["chunked_attention"] * 28,
                "use_sliding_window": True,
                "sliding_window": 4,
            },
            "chunked_attention",
        ),
        ("gemma-2-2b", {"use_bidirectional_attention": True}, "bidirectional"),
        ("gemma-3-1b-pt", {"use_bidirectional_attention": True}, "bidirectional"),
        ("gemma-3-1b-pt", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ("gemma-3-1b-pt", {"sliding_window": None}, "sliding_window"),
        (
            "gemma-3-1b-pt",
            {
                "rope_parameters": {
                    "sliding_attention": {"rope_type": "linear", "factor": 2.0}
                }
            },
            "sliding_attention",
        ),
        (
            "Phi-3-mini-4k-instruct",
            {"rope_scaling": longrope(type="longrope")},
            "longrope",
        ),
        ("Phi-3-mini-4k-instruct", {"rope_scaling": longrope(type="su")}, "'su'"),
        ("Phi-3-mini-4k-instruct", {"rope_scaling": longrope(type="yarn")}, "'yarn'"),
        ("Phi-3-mini-4k-instruct", {"lm_head_bias": True}, "lm_head_bias"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(name, changes, named):
    keys = {**PUBLISHED[name][0], **changes}
    with pytest.raises(Unsupported, match=named):
        family_of(keys["model_type"]).read_config(keys)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("Llama-2-7b-hf", {}),
        ("Mistral-7B-v0.1", {"sliding_window": None}),
        ("Phi-3-mini-4k-instruct", {"sliding_window": None}),
    ],
)
def test_layer_types_that_say_what_is_computed_anyway_are_read(name, changes):
    keys = {**PUBLISHED[name][0], **changes}
    read = family_of(keys["model_type"]).read_config
    full = ["full_attention"] * keys["num_hidden_layers"]
    assert read({**keys, "layer_types": full}) == read(keys)
    with pytest.raises(Unsupported, match="layer_types.*sliding_attention"):
        read({**keys, "layer_types": [*full[1:], "sliding_attention"]})


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("gpt2", {"padding": "max_length", "custom_pipelines": {}}),
        ("gpt2", {"n_special": 0, "predict_special_tokens": True, "_num_labels": 1}),
        ("opt-125m", {"xla_device": None, "eos_token_ids": [2]}),
        ("Llama-2-7b-hf", {"_flash_attn_2_enabled": True, "_commit_hash": "ab"}),
        ("Llama-3.2-1B", {"unsloth_fixed": True, "unsloth_version": "2024.9"}),
        ("SmolLM2-135M", {"transformers.js_config": {"dtype": "q4"}}),
        ("Qwen2.5-0.5B", {"attn_implementation": None, "tf_legacy_loss": False}),
        ("Phi-3-mini-4k-instruct", {"decoder_start_token_id": None}),
    ],
)
def test_keys_that_change_nothing_are_passed_over(name, more):
    keys = PUBLISHED[name][0]
    read = family_of(keys["model_type"]).read_config
    assert read({**keys, **more}) == read(keys)


@pytest.mark.parametrize(
    ("model_type", "stack"),
    [
        ("gpt2", dict(hidden_dim=768, intermediate_dim=3072)),
        ("opt", dict(hidden_dim=768, norm_position="pre")),
    ],
)
def test_what_is_left_out_has_its_default_in_every_rule(model_type, stack):
    config = family_of(model_type).read_config({"vocab_size": 97})
    assert {name: getattr(config.decoder, name) for name in stack} == stack


@pytest.mark.parametrize(
    ("model_type", "keys", "named"),
    [
        ("t5", dict(d_model=8, d_ff=8, num_heads=2), "lacks 'num_layers'"),
        ("gpt2", dict(n_embd=None), "n_embd.*None"),
        ("gpt2", dict(n_embd="768"), "hidden_dim.*'768'"),
        ("gpt2", dict(activation_function=["gelu"]), r"activation_.*\['gelu'\]"),
        ("gpt2", dict(eos_token_id=[]), r"eos_token_id.*\[\]"),
        ("gpt2", dict(vocab_size=0), "vocab_size"),
        ("opt", dict(_remove_final_layer_norm=None, hidden_size="x"), "'x'"),
        ("qwen3", dict(rope_parameters=[[]], hidden_size=8), "lacks 'num_hidden"),
        ("bert", dict(hidden_size={}), "hidden_dim.*{}"),
    ],
)
def test_a_value_that_cannot_be_read_is_said_by_name(model_type, keys, named):
    with pytest.raises(ValueError, match=named):
        family_of(model_type).read_config({"vocab_size": 97, **keys})


@pytest.mark.parametrize("model_type", [["bert"], None, {}, 3, "bart2"])
def test_an_unknown_family_is_refused_whatever_its_type(model_type):
    with pytest.raises(ValueError, match="model_type=.*is not supported"):
        family_of(model_type)


@pytest.mark.parametrize("name", PUBLISHED)
def test_an_activation_is_written_as_the_family_calls_it(name):
    keys = PUBLISHED[name][0]
    family = family_of(keys["model_type"])
    written = family.write_config(family.read_config(keys))
    names = {"hidden_act", "hidden_activation", "activation_function"} & {*written}
    # vLLM takes a Gemma 2 or 3 of "gelu_pytorch_tanh" alone; of two names for one
    # activation, where neither is a family's own, there can be but one.
    others = {"gelu_fast": "gelu_new"}
    assert names
    for key in names:
        assert written[key] == others.get(keys[key], keys[key])


def test_gemma_3_without_window_is_written_and_read_back():
    keys = {**PUBLISHED["gemma-3-1b-pt"][0], "layer_types": ["full_attention"] * 26}
    family = family_of("gemma3_text")
    config = family.read_config(keys)
    assert config.decoder.attention_window is None
    assert family.read_config(family.write_config(config)) == config


@pytest.mark.parametrize(
    ("row", "old"),
    [
        (
            "llama3",
            {
                "rope_theta": 500.0,
                "rope_scaling": {
                    "type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 32,
                },
            },
        ),
        ("gpt_neox", {"rotary_emb_base": 300, "rotary_pct": 0.5}),
        ("phi3", {"rope_theta": 300, "partial_rotary_factor": 0.5}),
        (
            "gemma3",
            {
                "rope_theta": 5000,
                "rope_local_base_freq": 50,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
                "sliding_window_pattern": 3,
                "layer_types": None,
            },
        ),
        ("qwen2_windows", {"layer_types": None}),
        ("gemma2", {"rope_theta": 10000.0, "layer_types": None}),
    ],
)
def test_older_keys_mean_the_same(row, old, tmp_path):
    _, described = written(row, tmp_path)
    new = described["config"]
    read = family_of(new["model_type"]).read_config
    without = {name: value for name, value in new.items() if name != "rope_parameters"}
    if row == "qwen2_windows":
        without["rope_parameters"] = new["rope_parameters"]
    assert read({**without, **old}) == read(new)
    if "rope_theta" in old and "rope_scaling" in old:
        assert read({**without, **old, "rope_scaling": None}) != read(new)


@pytest.mark.parametrize(
    ("row", "names"),
    [
        ("llama3", {"rope_theta", "rope_scaling"}),
        ("gpt_neox", {"rotary_emb_base", "rotary_pct"}),
        ("phi3", {"rope_theta", "partial_rotary_factor"}),
        ("gemma3", {"rope_theta", "rope_local_base_freq", "rope_scaling"}),
        ("modernbert_untied", {"global_rope_theta", "local_rope_theta"}),
    ],
)
def test_rotary_positions_are_written_in_older_keys_too(row, names, tmp_path):
    config = written(row, tmp_path)[1]["config"]
    family = family_of(config["model_type"])
    keys = family.write_config(family.read_config(config))
    assert {"rope_parameters"} | names <= set(keys)
    of_old = {name: keys[name] for name in keys if name != "rope_parameters"}
    again = family.read_config(of_old)
    assert again == family.read_config(keys) == family.read_config(config)
    of_new = {name: keys[name] for name in keys if name not in names}
    assert family.read_config(of_new) == again


@pytest.mark.parametrize("width", [44, 46, 52, 78, 86, 88, 160])
@pytest.mark.parametrize("name", ["pythia-70m", "Phi-3-mini-4k-instruct"])
def test_each_share_of_a_head_that_rotates_is_written_as_it_is_read(name, width):
    keys, *_ = PUBLISHED[name]
    family = family_of(keys["model_type"])
    heads = dict(num_heads=2, num_key_value_heads=2, head_dim=width)
    config = family.read_config(keys).replace_in_stacks(hidden_dim=2 * width, **heads)
    for turned in range(2, width, 2):
        partly = config.replace_in_stacks(rotary_dim=turned)
        assert family.read_config(family.write_config(partly)) == partly


@pytest.mark.parametrize("row", ["llama3", "gemma3"])
def test_two_keys_of_rotary_positions_that_differ_are_refused(row, tmp_path):
    config = written(row, tmp_path)[1]["config"]
    read = family_of(config["model_type"]).read_config
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    with pytest.raises(Unsupported, match="rope_scaling must say the same"):
        read({**config, "rope_scaling": yarn})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("architectures", 3),
        ("id2label", "positive"),
        ("num_labels", [2]),
        ("classifier_dropout", {}),
        ("problem_type", 1),
    ],
)
def test_a_key_of_another_type_is_an_error_that_names_it(name, value, tmp_path):
    config = {**written("llama", tmp_path)[1]["config"], name: value}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=rf"config\.json: {name} must be"):
        kzoo.from_preset(tmp_path, task="text_classifier")


def test_a_language_model_becomes_a_classifier(tmp_path):
    _, described = written("llama", tmp_path)
    labels = ["bad", "good"]
    with pytest.warns(UserWarning, match="head/output/kernel.*new"):
        task = kzoo.from_preset(tmp_path, task="text_classifier", labels=labels)
    assert task.pooling == "last"
    assert task.loaded.unused == ("lm_head.weight",)
    kzoo.save_hf(task, tmp_path / "back")
    keys = json.loads((tmp_path / "back" / "config.json").read_text())
    assert keys["architectures"] == ["LlamaForSequenceClassification"]
    again = kzoo.from_preset(tmp_path / "back")
    assert type(again) is kzoo.TextClassifier and again.labels == labels


@pytest.mark.parametrize("use_bias", [False, True])
def test_a_new_model_is_saved_with_plain_answers_about_its_biases(use_bias, tmp_path):
    task = kzoo.CausalLM.from_size(
        "tiny",
        vocabulary_size=40,
        positions="rotary",
        norm="rms_norm",
        feed_forward="gated",
        activation="silu",
        use_bias=use_bias,
        embedding_scale=1.0,
    )
    assert task.config.decoder.attention_bias is None
    assert kzoo.save_hf(task, tmp_path, "llama") == "llama"
    keys = json.loads((tmp_path / "config.json").read_text())
    assert keys["attention_bias"] is keys["mlp_bias"] is use_bias
    again = kzoo.from_preset(tmp_path).named_variables()
    for path, variable in task.named_variables().items():
        np.testing.assert_array_equal(to_numpy(variable), to_numpy(again[path]))
