"""In bfloat16 a checkpoint computes what transformers does, to the rounding of both."""

import numpy as np
import pytest

import kzoo
from tests.harness import to_numpy
from tests.parity.parity_test import logits, written
from tests.parity.reference import sides
from tests.parity.rows import ROWS


@pytest.mark.parametrize("name", [n for n, row in ROWS.items() if row.get("bfloat16")])
def test_bfloat16_is_as_near_as_that_of_transformers(name, tmp_path):
    row = ROWS[name]
    golden, _ = written(name, tmp_path)
    task = kzoo.from_preset(tmp_path, task=row["task"], dtype="bfloat16")
    assert {v.dtype for v in task.named_variables().values()} == {"bfloat16"}
    own, half, single = [], [], []
    for side in sides(row):
        numbers, mask = logits(task, row, golden, side)
        own.append(to_numpy(numbers)[mask])
        half.append(golden[f"{side}_bfloat16"][mask])
        single.append(golden[side][mask])
    own, half, single = map(np.concatenate, (own, half, single))

    def distance(a, b):
        return np.sqrt(((a - b) ** 2).mean())

    rounding = distance(half, single)
    assert rounding < 0.03 * distance(single, 0)
    assert distance(own, single) < 1.3 * rounding
    assert distance(own, half) < 1.5 * rounding
