"""Odd configs against transformers itself, where that is installed; and illegal ones.

Each family draws values away from its row's; both libraries get the same numbers.
The reference is transformers in float64: some configs amplify rounding so that its own
float32 is further off than the tolerance of `parity_test.py`. There kzoo may be, too.
"""

import json

import numpy as np
import pytest

import kzoo
from kzoo.checkpoints.hf_config import Unsupported
from kzoo.families import MODULES, family_of
from tests.parity.odd import ILLEGAL, ILLEGAL_EVERYWHERE, LEGAL
from tests.parity.parity_test import FIRST, check_logits, difference, written
from tests.parity.reference import LENGTHS, batch, model_of, outputs, targets
from tests.parity.rows import ROWS

DRAWS = 6
ROUNDINGS = 8  # of transformers' float32, where that is more than the tolerance


def exact(row, model, rounded):
    """What `outputs` gave, in float64 where no padding is.

    Each row is computed alone, as transformers' masks overflow to NaN in float64.
    """
    found = {name: x.astype("float64") for name, x in rounded.items()}
    model = model.double()
    for index in range(len(LENGTHS)):
        for name, x in outputs(row, model, only=index).items():
            _, mask = batch(row, name.split("_")[0])
            whole = found[name][index]
            sizes = zip(whole.shape, x.shape[1:], strict=True)
            whole[tuple(mask[index] if m != n else slice(None) for m, n in sizes)] = x[
                0
            ]
    return found


def test_every_family_has_a_row_and_is_fuzzed():
    assert set(MODULES) == set(FIRST) == set(LEGAL) == set(ILLEGAL)


@pytest.mark.parametrize("draw", range(DRAWS))
@pytest.mark.parametrize("model_type", FIRST)
def test_an_odd_config_computes_what_transformers_does(model_type, draw, tmp_path):
    pytest.importorskip("torch", reason="compares with transformers")
    pytest.importorskip("transformers", reason="compares with it")
    row = ROWS[FIRST[model_type]]
    rng = np.random.default_rng([draw, *model_type.encode()])
    drawn = {
        key: values[rng.integers(len(values))]
        for key, values in LEGAL[model_type].items()
        if rng.random() < 0.6
    }
    row = {**row, "config": {**row["config"], **drawn}}
    model = model_of(row)
    model.save_pretrained(tmp_path)
    rounded = outputs(row, model)
    golden = exact(row, model, rounded)
    rounding = {name: difference(x, golden[name]) for name, x in rounded.items()}
    assert max(rounding.values()) <= 1e-4  # or the reference is another computation
    if row["task"] == "seq2seq_lm":
        golden["targets"] = targets(row, model)
    task = kzoo.from_preset(tmp_path, task=row["task"], **row.get("options", {}))
    allowed = {name: ROUNDINGS * x for name, x in rounding.items()}
    check_logits(task, row, golden, allowed)


@pytest.mark.parametrize(
    "model_type, change",
    [
        (model_type, {key: value})
        for model_type in FIRST
        for key, value in (
            *ILLEGAL_EVERYWHERE.items(),
            *ILLEGAL.get(model_type, {}).items(),
        )
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_what_kzoo_does_not_compute_is_refused_by_name(model_type, change, tmp_path):
    _, described = written(FIRST[model_type], tmp_path)
    config = {**described["config"], **change}
    (key,) = change
    with pytest.raises(Unsupported) as caught:
        family_of(model_type).read_config(config)
    named = {"rope_parameters": "rope_type", "feed_forward_proj": "feed_forward_proj"}
    assert named.get(key, key) in str(caught.value)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="config.json"):
        kzoo.from_preset(tmp_path)
