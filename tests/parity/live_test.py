"""transformers itself reads what is saved back, where it is installed."""

import json

import numpy as np
import pytest

import kzoo
from tests.parity.parity_test import TOLERANCE, difference, written
from tests.parity.reference import outputs
from tests.parity.rows import ROWS


@pytest.mark.parametrize("name", ROWS)
def test_transformers_computes_the_same_from_what_is_saved(name, tmp_path):
    pytest.importorskip("torch", reason="compares with transformers")
    transformers = pytest.importorskip("transformers", reason="compares with it")
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
    made = outputs(row, model.eval())
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
