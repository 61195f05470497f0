"""`from_preset` of folders that `save_folder` wrote."""

import numpy as np
import pytest

import kzoo
from tests.harness import perturb, to_numpy

SIZE = dict(
    size="tiny", vocabulary_size=30, num_layers=1, hidden_dim=8, intermediate_dim=8
)
IDS = {"token_ids": np.array([[4, 5, 6, 2]], "int32")}


@pytest.fixture
def folder(tmp_path):
    task = kzoo.TextClassifier.from_size(num_classes=3, pooling="mean", **SIZE)
    perturb(task.weights)
    task.save_folder(tmp_path)
    return tmp_path


def test_the_task_is_the_saved_one(folder):
    task, saved = kzoo.from_preset(folder), kzoo.load_task(folder)
    np.testing.assert_array_equal(to_numpy(task(IDS)), to_numpy(saved(IDS)))


def test_another_task_has_the_saved_stacks_and_a_new_head(folder):
    with pytest.warns(UserWarning, match="head/output/kernel.*have to be trained"):
        task = kzoo.from_preset(folder, task="token_classifier", num_classes=5)
    saved = kzoo.load_task(folder)
    states = [to_numpy(each.states(IDS)[0]) for each in (task, saved)]
    np.testing.assert_array_equal(*states)
    assert set(task.loaded.new) == {"head/output/bias", "head/output/kernel"}


def test_options_win_and_a_head_of_another_size_is_new(folder):
    with pytest.warns(UserWarning, match="head/output/bias"):
        task = kzoo.from_preset(folder, labels=["a", "b"])
    assert task.labels == ["a", "b"] and task.pooling == "mean"
    assert kzoo.from_preset(folder, pooling="max").pooling == "max"


def test_a_dtype_is_that_of_the_weights(folder):
    task = kzoo.from_preset(folder, dtype="bfloat16")
    assert {v.dtype for v in task.weights} <= {"bfloat16", "uint32", "int64"}
    saved = kzoo.load_task(folder)
    np.testing.assert_allclose(
        to_numpy(task(IDS)).astype("float32"), to_numpy(saved(IDS)), atol=0.1
    )


def test_an_unknown_task_is_refused_with_the_known_ones(folder):
    with pytest.raises(ValueError, match="causal_lm.*Received: 'translator'"):
        kzoo.from_preset(folder, task="translator")
