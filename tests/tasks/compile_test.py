"""Metrics leave padding out; an epoch has the steps that it should have."""

import keras
import numpy as np
import pytest

import kzoo
from kzoo.training import TokenAccuracy
from tests.words import TOKENIZER, WORDS, causal, compiled, seq2seq

SMALL = dict(num_layers=1, hidden_dim=16, intermediate_dim=16, num_heads=2, dropout=0.0)
LENGTHS = ["a", "abcdabcd", "ab", "d"]


def tagger():
    return kzoo.TokenClassifier.from_size("tiny", TOKENIZER, labels=["X", "Y"], **SMALL)


def measured(model, *data, **options):
    model.compile(**options)
    return model.evaluate(*data, verbose=0, return_dict=True)


@pytest.mark.parametrize("name", ["accuracy", "acc"])
def test_accuracy_leaves_out_padding(name):
    model, words = seq2seq(), LENGTHS
    expected = measured(model, words, words)["token_accuracy"]
    metrics = [name]
    got = measured(model, words, words, metrics=metrics, weighted_metrics=[[name]])
    assert metrics == [name]  # the caller's list
    assert got[name] == pytest.approx(expected) and model.leaves_out_filling
    nested = measured(model, words, words, metrics={"logits": [name]})
    assert nested[name] == pytest.approx(expected)
    both = measured(model, words, words, metrics=[TokenAccuracy(0, "mine"), name])
    assert both[name] == both["mine"] == pytest.approx(expected)


def test_accuracy_leaves_out_ignored_targets():
    model = tagger()
    sentences = [["abcd", "ab"], ["abc"]]
    right = model.tag(sentences)
    assert measured(model, sentences, right, metrics=["accuracy"])["accuracy"] == 1.0


def test_metrics_of_keras_that_count_padding_are_named():
    own = keras.metrics.SparseCategoricalAccuracy(name="right")
    with pytest.warns(UserWarning, match="count padding, too: .'right'"):
        causal().compile(metrics=[own])
    name = "sparse_categorical_accuracy"
    with pytest.warns(UserWarning, match=f"count padding, too: .'{name}'"):
        tagger().compile(weighted_metrics=[name])
    causal().compile(metrics=[keras.metrics.MeanIoU(8, ignore_class=0)])
    causal().compile(metrics=[lambda y, logits: keras.ops.zeros(())])


def test_a_class_an_example_is_measured_as_keras_does():
    model = kzoo.TextClassifier.from_size("tiny", TOKENIZER, num_classes=3, **SMALL)
    ids, _ = model.encode_text(WORDS[:4])
    rows = np.eye(3)[[0, 1, 2, 0]]
    model.compile("sgd", "categorical_crossentropy", metrics=["accuracy"])
    best = model.predict(ids, verbose=0).argmax(-1)
    got = model.evaluate(ids, rows, verbose=0, return_dict=True)
    assert got["accuracy"] == pytest.approx((best == [0, 1, 2, 0]).mean())


def test_steps_per_execution_must_divide_an_epoch():
    model = compiled(causal(), keras.optimizers.SGD(0.0), steps_per_execution=4)
    before = int(model.optimizer.iterations)
    match = "trains 8 instead.*steps_per_execution=4 for 6 steps.*steps_per_epoch=4"
    with pytest.raises(ValueError, match=match):
        model.fit(WORDS[:24], batch_size=4, verbose=0)
    inputs, _ = model.encode_text(WORDS[:24])
    with pytest.raises(ValueError, match=match):
        model.fit(inputs, batch_size=4, steps_per_epoch=6, verbose=0)
    assert int(model.optimizer.iterations) == before
    model.fit(WORDS[:32], batch_size=4, verbose=0)
    assert int(model.optimizer.iterations) == before + 8
