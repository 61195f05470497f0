"""Encoders: what published configs mean, what is refused, tensors of other heads."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import kzoo
from kzoo.checkpoints.hf_config import Unsupported
from kzoo.families import family_of
from tests.parity.encoder_rows import MODERNBERT, ROBERTA
from tests.parity.parity_test import written

# Files of the hub as they are there, with the keys of their time.
ROBERTA_BASE = {
    "architectures": ["RobertaForMaskedLM"],
    "attention_probs_dropout_prob": 0.1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 514,
    "model_type": "roberta",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 1,
    "type_vocab_size": 1,
    "vocab_size": 50265,
}
XLM_ROBERTA_BASE = {
    **ROBERTA_BASE,
    "architectures": ["XLMRobertaForMaskedLM"],
    "model_type": "xlm-roberta",
    "output_past": True,
    "position_embedding_type": "absolute",
    "transformers_version": "4.17.0.dev0",
    "use_cache": True,
    "vocab_size": 250002,
}
DISTILBERT_SST2 = {
    "activation": "gelu",
    "architectures": ["DistilBertForSequenceClassification"],
    "attention_dropout": 0.1,
    "dim": 768,
    "dropout": 0.1,
    "finetuning_task": "sst-2",
    "hidden_dim": 3072,
    "id2label": {"0": "NEGATIVE", "1": "POSITIVE"},
    "initializer_range": 0.02,
    "label2id": {"NEGATIVE": 0, "POSITIVE": 1},
    "max_position_embeddings": 512,
    "model_type": "distilbert",
    "n_heads": 12,
    "n_layers": 6,
    "output_past": True,
    "pad_token_id": 0,
    "qa_dropout": 0.1,
    "seq_classif_dropout": 0.2,
    "sinusoidal_pos_embds": False,
    "tie_weights_": True,
    "vocab_size": 30522,
}
ALBERT_BASE = {
    "architectures": ["AlbertForMaskedLM"],
    "attention_probs_dropout_prob": 0,
    "bos_token_id": 2,
    "classifier_dropout_prob": 0.1,
    "down_scale_factor": 1,
    "embedding_size": 128,
    "eos_token_id": 3,
    "gap_size": 0,
    "hidden_act": "gelu_new",
    "hidden_dropout_prob": 0,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "inner_group_num": 1,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "model_type": "albert",
    "net_structure_type": 0,
    "num_attention_heads": 12,
    "num_hidden_groups": 1,
    "num_hidden_layers": 12,
    "num_memory_blocks": 0,
    "pad_token_id": 0,
    "type_vocab_size": 2,
    "vocab_size": 30000,
}
ELECTRA_SMALL = {
    "architectures": ["ElectraForPreTraining"],
    "attention_probs_dropout_prob": 0.1,
    "embedding_size": 128,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 256,
    "initializer_range": 0.02,
    "intermediate_size": 1024,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "model_type": "electra",
    "num_attention_heads": 4,
    "num_hidden_layers": 12,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "summary_activation": "gelu",
    "summary_last_dropout": 0.1,
    "summary_type": "first",
    "summary_use_proj": True,
    "type_vocab_size": 2,
    "vocab_size": 30522,
}
MODERNBERT_BASE = {
    "architectures": ["ModernBertForMaskedLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 50281,
    "classifier_activation": "gelu",
    "classifier_bias": False,
    "classifier_dropout": 0.0,
    "classifier_pooling": "mean",
    "cls_token_id": 50281,
    "decoder_bias": True,
    "deterministic_flash_attn": False,
    "embedding_dropout": 0.0,
    "eos_token_id": 50282,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "gradient_checkpointing": False,
    "hidden_activation": "gelu",
    "hidden_size": 768,
    "initializer_cutoff_factor": 2.0,
    "initializer_range": 0.02,
    "intermediate_size": 1152,
    "layer_norm_eps": 1e-05,
    "local_attention": 128,
    "local_rope_theta": 10000.0,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "mlp_dropout": 0.0,
    "model_type": "modernbert",
    "norm_bias": False,
    "norm_eps": 1e-05,
    "num_attention_heads": 12,
    "num_hidden_layers": 22,
    "pad_token_id": 50283,
    "position_embedding_type": "absolute",
    "reference_compile": True,
    "repad_logits_with_grad": False,
    "sep_token_id": 50282,
    "sparse_pred_ignore_index": -100,
    "sparse_prediction": False,
    "torch_dtype": "float32",
    "transformers_version": "4.48.0.dev0",
    "vocab_size": 50368,
}
BERT_BASE_CHINESE = {
    "architectures": ["BertForMaskedLM"],
    "attention_probs_dropout_prob": 0.1,
    "directionality": "bidi",
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "model_type": "bert",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 0,
    "pooler_fc_size": 768,
    "pooler_num_attention_heads": 12,
    "pooler_num_fc_layers": 3,
    "pooler_size_per_head": 128,
    "pooler_type": "first_token_transform",
    "type_vocab_size": 2,
    "vocab_size": 21128,
}
# Of deepset, whose trainer wrote two keys of its own.
ROBERTA_SQUAD2 = {**ROBERTA_BASE, "language": "english", "name": "Roberta"}
BASE = dict(num_layers=12, hidden_dim=768, num_heads=12, intermediate_dim=3072)


@pytest.mark.parametrize(
    "keys, ids, stack",
    [
        (
            ROBERTA_BASE,
            (1, 0, 2, 50264),
            dict(
                BASE,
                first_position=2,
                max_sequence_length=512,
                num_segments=1,
                norm_epsilon=1e-5,
                activation="gelu",
                norm_position="post",
                positions="learned",
            ),
        ),
        (BERT_BASE_CHINESE, (0, 101, 102, 103), dict(BASE, vocabulary_size=21128)),
        (ROBERTA_SQUAD2, (1, 0, 2, 50264), dict(BASE, first_position=2)),
        (XLM_ROBERTA_BASE, (1, 0, 2, 250001), dict(BASE, vocabulary_size=250002)),
        (
            DISTILBERT_SST2,
            (0, 101, 102, 103),
            dict(BASE, num_layers=6, num_segments=0, norm_epsilon=1e-12),
        ),
        (
            ALBERT_BASE,
            (0, 2, 3, 4),
            dict(
                BASE,
                embedding_dim=128,
                layer_groups=1,
                activation="gelu_tanh",
                dropout=0,
            ),
        ),
        (
            ELECTRA_SMALL,
            (0, 101, 102, 103),
            dict(hidden_dim=256, embedding_dim=128, num_heads=4, intermediate_dim=1024),
        ),
        (
            MODERNBERT_BASE,
            (50283, 50281, 50282, 50284),
            dict(
                num_layers=22,
                attention_window=65,
                windowed_layers=tuple(i for i in range(22) if i % 3),
                rope_max_wavelength=160_000.0,
                window_rope_max_wavelength=10_000.0,
                intermediate_dim=1152,
                feed_forward="gated",
                use_bias=False,
                norm_bias=False,
                first_norm=False,
                embedding_norm=True,
                final_norm=True,
                max_sequence_length=8192,
            ),
        ),
    ],
    ids=lambda value: value["model_type"] if "model_type" in value else "",
)
def test_a_published_config_is_read_to_what_it_means(keys, ids, stack):
    family = family_of(keys["model_type"])
    config = family.read_config(keys)
    found = (config.pad_token_id, config.start_token_id, config.end_token_id)
    assert (*found, config.mask_token_id) == ids
    assert {name: getattr(config.encoder, name) for name in stack} == stack
    assert config.tie_head
    assert family.read_config(family.write_config(config)) == config


def test_options_of_a_published_head_are_read():
    head = family_of("modernbert").head_options("TextClassifier", MODERNBERT_BASE)
    assert head == dict(
        hidden_activation="gelu",
        hidden_bias=False,
        hidden_norm=True,
        head_dropout=0.0,
        pooling="mean",
    )
    head = family_of("distilbert").head_options("TextClassifier", DISTILBERT_SST2)
    assert (head["hidden_activation"], head["head_dropout"]) == ("relu", 0.2)


@pytest.mark.parametrize(
    "keys, change",
    [
        (ROBERTA_BASE, {"hidden_act": "mish"}),
        (ROBERTA_BASE, {"position_embedding_type": "relative_key"}),
        (ROBERTA_BASE, {"is_decoder": True}),
        (ROBERTA_BASE, {"quantization_config": {"bits": 4}}),
        (XLM_ROBERTA_BASE, {"adapters": {}}),
        (DISTILBERT_SST2, {"activation": "mish"}),
        (DISTILBERT_SST2, {"pruned_heads": {"0": [1]}}),
        (ALBERT_BASE, {"inner_group_num": 2}),
        (ALBERT_BASE, {"position_embedding_type": "relative_key_query"}),
        (ELECTRA_SMALL, {"add_cross_attention": True}),
        (MODERNBERT_BASE, {"classifier_activation": "mish"}),
        (MODERNBERT_BASE, {"layer_types": ["chunked_attention"] * 22}),
        (MODERNBERT_BASE, {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}),
        (MODERNBERT_BASE, {"rope_parameters": {"rope_theta": 1e4}}),
    ],
    ids=lambda value: next(iter(value)) if len(value) == 1 else value["model_type"],
)
def test_what_kzoo_does_not_compute_is_refused_by_name(keys, change):
    (name,) = change
    named = {"rope_scaling": "rope_type"}.get(name, name)
    with pytest.raises(Unsupported, match=named):
        family = family_of(keys["model_type"])
        family.read_config({**keys, **change})
        family.head_options("TextClassifier", {**keys, **change})


@pytest.mark.parametrize(
    ("keys", "name"), [(ALBERT_BASE, "gelu_tanh"), (BERT_BASE_CHINESE, "gelu")]
)
def test_a_head_has_its_familys_activation_where_none_is_said(keys, name):
    keys = {key: value for key, value in keys.items() if key != "hidden_act"}
    family = family_of(keys["model_type"])
    assert family.read_config(keys).encoder.activation == name
    assert family.head_options("MaskedLM", keys)["hidden_activation"] == name


def new_encoder(segments):
    """A task that no checkpoint was loaded into, of BERT's form."""
    keys = dict(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
    )
    config = family_of("bert").read_config(keys)
    config = config.replace(encoder=config.encoder.replace(num_segments=segments))
    return kzoo.SentenceEmbedder(config)


@pytest.mark.parametrize(
    ("segments", "family"), [(2, "bert"), (0, "distilbert")], ids=["bert", "distilbert"]
)
def test_a_new_encoder_is_saved_as_a_family_that_transformers_can_open(
    segments, family, tmp_path
):
    assert kzoo.save_hf(new_encoder(segments), tmp_path) == family
    with pytest.raises(ValueError, match="embedding_size=None|type_vocab_size=0"):
        kzoo.save_hf(new_encoder(segments), tmp_path / "no", "albert")


def test_albert_needs_whole_groups():
    keys = {**ALBERT_BASE, "num_hidden_groups": 5}
    with pytest.raises(ValueError, match="num_hidden_groups=5 .* divides num_hidden"):
        family_of("albert").read_config(keys)


@pytest.mark.parametrize("length", [0, 1, 2, 128])
def test_modernbert_s_windows_are_written_as_they_are_read(length):
    family = family_of("modernbert")
    config = family.read_config({**MODERNBERT_BASE, "local_attention": length})
    assert config.encoder.attention_window == length // 2 + 1
    assert family.read_config(family.write_config(config)) == config


def test_modernbert_scales_windows_as_old_files_do():
    scaling = {"rope_type": "linear", "factor": 2.0}
    keys = {**MODERNBERT_BASE, "rope_scaling": scaling}
    with pytest.raises(Unsupported, match="sliding_attention"):
        family_of("modernbert").read_config(keys)
    keys = {**keys, "local_rope_theta": None}  # then as in the other layers
    stack = family_of("modernbert").read_config(keys).encoder
    assert stack.window_rope_max_wavelength is None and stack.rope_scaling.factor == 2


def test_the_discriminator_of_electra_gives_its_stack(tmp_path):
    written("electra_sentence_embedder", tmp_path)
    path = tmp_path / "model.safetensors"
    plain = kzoo.from_preset(tmp_path)
    tensors = {f"electra.{name}": array for name, array in load_file(path).items()}
    own = "discriminator_predictions.dense"
    for name, shape in ((own, (32, 32)), (f"{own}_prediction", (1, 32))):
        tensors[f"{name}.weight"] = np.ones(shape, "float32")
        tensors[f"{name}.bias"] = np.ones(shape[:1], "float32")
    save_file(tensors, path)
    task = kzoo.from_preset(tmp_path, task="sentence_embedder")
    assert not task.loaded.new and len(task.loaded.unused) == 4
    inputs = {"token_ids": np.array([[5, 6, 7]])}
    np.testing.assert_array_equal(*(np.asarray(t(inputs)) for t in (plain, task)))
    save_file({**tensors, "discriminator.weight": np.ones(2, "float32")}, path)
    with pytest.raises(ValueError, match="discriminator.weight"):
        kzoo.from_preset(tmp_path, task="sentence_embedder")


def test_a_head_that_a_family_cannot_say_is_not_saved(tmp_path):
    config = family_of("roberta").read_config({**ROBERTA, "model_type": "roberta"})
    for changes in (dict(pooling="mean"), dict(hidden_activation="relu")):
        options = {"pooling": "cls", "hidden_activation": "tanh", **changes}
        task = kzoo.TextClassifier(config, num_classes=2, **options)
        with pytest.raises(ValueError, match=next(iter(changes))):
            kzoo.save_hf(task, tmp_path / "no", "roberta")
    config = family_of("modernbert").read_config(MODERNBERT)
    task = kzoo.TextClassifier(config, num_classes=2)
    with pytest.raises(ValueError, match="hidden_activation"):
        kzoo.save_hf(task, tmp_path / "no", "modernbert")
    assert not (tmp_path / "no").exists()


def test_an_untied_head_is_saved_with_the_bias_that_transformers_reads(tmp_path):
    keys = {**ROBERTA, "tie_word_embeddings": False}
    task = kzoo.MaskedLM(
        family_of("roberta").read_config(keys), hidden_activation="gelu"
    )
    kzoo.save_hf(task, tmp_path, "roberta")
    names = {name for name in load_file(tmp_path / "model.safetensors")}
    assert {"lm_head.decoder.weight", "lm_head.decoder.bias"} < names
    assert "lm_head.bias" not in names
    kept = json.loads((tmp_path / "config.json").read_text())
    assert kept["tie_word_embeddings"] is False
    assert not kzoo.from_preset(tmp_path).loaded.new
