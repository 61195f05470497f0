"""`from_preset` of folders that `save_folder` wrote."""

import numpy as np
import pytest

import kzoo
from tests.harness import perturb, to_numpy
from tests.parity.parity_test import written

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


@pytest.mark.parametrize("form", ["own", "hugging face"])
def test_dropout_is_another_and_the_weights_stay(form, tmp_path):
    logits = named(tmp_path, form, ["a", "b", "c"])
    task = kzoo.from_preset(tmp_path, dropout=0.5, attention_dropout=0.25)
    assert task.config.encoder.dropout == 0.5
    assert task.config.encoder.attention_dropout == 0.25
    np.testing.assert_array_equal(to_numpy(task(IDS)), logits)
    assert np.abs(to_numpy(task(IDS, training=True)) - logits).max() > 1e-3
    with pytest.raises(ValueError, match=r"^StackConfig.feed_forward_dropout must be"):
        kzoo.from_preset(tmp_path, feed_forward_dropout=1.0)


def named(folder, form, labels):
    """A folder of a classifier with these labels, and its logits."""
    written("bert_text_classifier", folder)
    task = kzoo.from_preset(folder)
    assert task.num_classes == len(labels)
    task.labels = labels
    if form == "own":
        task.save_folder(folder)
    else:
        kzoo.save_hf(task, folder)
    return to_numpy(task(IDS))


@pytest.mark.parametrize("form", ["own", "hugging face"])
def test_labels_in_another_order_keep_what_was_learned_of_each(form, tmp_path):
    logits = named(tmp_path, form, ["a", "b", "c"])
    task = kzoo.from_preset(tmp_path, labels=iter(["c", "a", "b"]))
    assert task.labels == ["c", "a", "b"] and not task.loaded.new
    np.testing.assert_allclose(to_numpy(task(IDS)), logits[:, [2, 0, 1]], atol=1e-6)
    same = kzoo.from_preset(tmp_path, labels=["a", "b", "c"])
    np.testing.assert_allclose(to_numpy(same(IDS)), logits, atol=1e-6)


@pytest.mark.parametrize("form", ["own", "hugging face"])
def test_labels_of_other_names_have_a_new_head(form, tmp_path):
    logits = named(tmp_path, form, ["a", "b", "c"])
    with pytest.warns(UserWarning, match="head/output/bias.*have to be trained"):
        task = kzoo.from_preset(tmp_path, labels=["b", "a", "d"])
    assert task.labels == ["b", "a", "d"]
    assert task.loaded.new == ("head/output/bias", "head/output/kernel")
    assert not np.allclose(to_numpy(task(IDS)), logits, atol=1e-3)
    assert not to_numpy(task.head.output_projection.bias.value).any()
    assert to_numpy(task.head.output_projection.kernel.value).any()
    kept = kzoo.from_preset(tmp_path, num_classes=3)
    np.testing.assert_allclose(to_numpy(kept(IDS)), logits, atol=1e-6)


@pytest.mark.parametrize("form", ["own", "hugging face"])
def test_classes_without_names_are_named_and_their_head_is_kept(form, tmp_path):
    logits = named(tmp_path, form, ["LABEL_0", "LABEL_1", "LABEL_2"])
    task = kzoo.from_preset(tmp_path, labels=["x", "y", "z"])
    assert task.labels == ["x", "y", "z"] and not task.loaded.new
    np.testing.assert_allclose(to_numpy(task(IDS)), logits, atol=1e-6)


def test_a_number_of_classes_has_no_names(folder):
    task = kzoo.from_preset(folder, labels=["x", "y", "z"])
    assert task.labels == ["x", "y", "z"] and not task.loaded.new


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
