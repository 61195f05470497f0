"""What tests of exports share: SavedModels, Keras's answers, and short cuts."""

import functools
import hashlib
import pickle

import pytest

import kzoo
from kzoo.exporters import agreement, checks
from kzoo.exporters.text import check, functions
from tests import harness

# Greedy search over the random rows of verification ends at different steps.
ENDING = dict(num_key_value_heads=1, tie_head=False, head_bias=True)
SAVED = {
    kzoo.CausalLM: dict(positions="rotary", **harness.MODERN | ENDING),
    kzoo.Seq2SeqLM: dict(
        norm_position="post", num_key_value_heads=2, tie_head=False, num_layers=1
    ),
}


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """From a kind of `SAVED` to a task, its SavedModel and the report: tests read them.

    Tracing all functions takes long.
    """

    @functools.cache
    def export(kind):
        model = harness.small_task(kind, **SAVED[kind])
        if kind is kzoo.CausalLM:
            harness.set_head_bias(model, model.config.end_token_id, 0.9)
        path = tmp_path_factory.mktemp("saved") / kind.__name__
        return model, path, model.export(path)

    return export


@pytest.fixture(scope="module")
def answers():
    """What Keras has computed for the tests of a module, see `remembered`."""
    return {}


@pytest.fixture
def remembered(monkeypatch, answers):
    """Keras computes the same reference of the same weights once.

    It takes longer than all else in an export. What a task is told otherwise, such as
    its tokenizer, has to stay as it is, but for `search_defaults`.
    """
    reference = checks.reference

    def remember(function, inputs):
        if function.text:  # which is read anew: another tokenizer gives other ids
            function, inputs = function.text.function, function.text.read(inputs)
        task = function.task
        if task is None:
            return reference(function, inputs)
        weights = [harness.to_numpy(v) for v in task.named_variables().values()]
        defaults = dict(getattr(task, "search_defaults", {}))
        told = pickle.dumps((inputs, weights, defaults))
        stamp = hashlib.sha256(told).digest()
        key = (task, function.name, stamp)
        if key not in answers:
            answers[key] = reference(function, inputs)
        return {name: x.copy() for name, x in answers[key].items()}

    monkeypatch.setattr(checks, "reference", remember)


@pytest.fixture
def quick(monkeypatch):
    """Few texts, and no looking at latency."""
    monkeypatch.setattr(agreement, "_TURNS", 1)
    monkeypatch.setattr(functions, "HARD", functions.HARD[:6])
    monkeypatch.setattr(check, "character_texts", lambda: ["a é 日"])
