"""transformers itself reads what is saved back, where it is installed."""

import json

import numpy as np
import pytest

import kzoo
from kzoo.families import family_of
from tests.families.encoders_test import new_encoder
from tests.harness import to_numpy
from tests.parity.parity_test import TOLERANCE, difference, written
from tests.parity.reference import generated, outputs
from tests.parity.rows import ROWS
from tests.zoo.save_hf_test import classifier_without_padding

# Keys of rotary positions that files of before rope_parameters have.
OLDER_ROPE = {
    "global_rope_theta",
    "local_rope_theta",
    "partial_rotary_factor",
    "rope_local_base_freq",
    "rope_scaling",
    "rope_theta",
    "rotary_emb_base",
    "rotary_pct",
}


@pytest.fixture
def transformers():
    pytest.importorskip("torch", reason="compares with transformers")
    return pytest.importorskip("transformers", reason="compares with it")


@pytest.mark.parametrize("name", ROWS)
def test_transformers_computes_the_same_from_what_is_saved(
    name, transformers, tmp_path
):
    row = ROWS[name]
    golden, described = written(name, tmp_path)
    task = kzoo.from_preset(tmp_path, task=row["task"], **row.get("options", {}))
    kzoo.save_hf(task, tmp_path / "back")
    model, found = getattr(transformers, row["architecture"]).from_pretrained(
        tmp_path / "back", attn_implementation="eager", output_loading_info=True
    )
    assert not found["unexpected_keys"] and not found["mismatched_keys"]
    # A head of transformers that the task has not, such as a pooler.
    assert set(found["missing_keys"]) <= set(task.loaded.unused)
    made = outputs(row, model.eval()) | generated(row, model)
    assert {key for key in golden if "bfloat16" not in key} - set(made) <= {
        "described",
        "targets",
    }
    for key in made:
        if key.startswith("beams"):
            np.testing.assert_array_equal(made[key], golden[key])
        else:
            assert difference(made[key], golden[key]) <= TOLERANCE, key
    kept = json.loads((tmp_path / "back" / "config.json").read_text())
    assert kept["architectures"] == [row["architecture"]]


@pytest.mark.parametrize(
    "name",
    [
        "llama3",
        "gpt_neox",
        "phi3",
        "qwen2_windows",
        "gemma2",
        "gemma3",
        "modernbert_untied",
    ],
)
def test_older_keys_beside_the_new_ones_change_no_rotary_positions(
    name, transformers, tmp_path
):
    config = written(name, tmp_path)[1]["config"]
    family = family_of(config["model_type"])
    keys = family.write_config(family.read_config(config))
    new = {key: keys[key] for key in keys if key not in OLDER_ROPE}
    assert len(new) < len(keys)
    of = transformers.AutoConfig.for_model
    assert of(**keys).rope_parameters == of(**new).rope_parameters


@pytest.mark.parametrize("segments", [0, 2])
def test_transformers_opens_a_new_encoder_as_the_family_that_kzoo_chose(
    segments, transformers, tmp_path
):
    kzoo.save_hf(new_encoder(segments), tmp_path)
    _, found = transformers.AutoModel.from_pretrained(
        tmp_path, output_loading_info=True
    )
    # A pooler, which a model that gives states has not.
    assert {name.split(".")[0] for name in found["missing_keys"]} <= {"pooler"}
    assert not found["unexpected_keys"] and not found["mismatched_keys"]


def test_transformers_takes_a_batch_for_a_classifier_that_had_no_padding(
    transformers, tmp_path
):
    (tmp_path / "in").mkdir()
    task = classifier_without_padding(tmp_path / "in")
    kzoo.save_hf(task, tmp_path / "out")
    torch = pytest.importorskip("torch", reason="compares with transformers")
    classify = transformers.AutoModelForSequenceClassification
    model = classify.from_pretrained(tmp_path / "out").eval()
    pad = task.config.pad_token_id
    ids = np.array([[5, 6, 7, 8], [9, 8, pad, pad]])
    own = to_numpy(task({"token_ids": ids, "padding_mask": ids != pad}))
    theirs = model(torch.tensor(ids)).logits.detach().numpy()
    assert difference(own, theirs) <= TOLERANCE
