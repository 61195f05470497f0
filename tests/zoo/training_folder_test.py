"""The folder of a training: what goes on, what is another training, what is kept."""

import dataclasses
import json

import pytest

from kzoo.zoo.recipe_tables import Schedule
from kzoo.zoo.training_folder import _changes, _deciding, _kept, check_folder
from tests.recipes import recipe_of


def test_drawn_splits_are_read_back_as_they_were(tmp_path):
    features = {"token_ids": [[1, 2, 3], [4]], "targets": [0, 1]}
    first = _kept(tmp_path / "splits.npz", lambda: features)
    again = _kept(tmp_path / "splits.npz", lambda: 1 / 0)
    for found in (first, again):
        assert [list(row) for row in found["token_ids"]] == [[1, 2, 3], [4]]
        assert [*found["targets"]] == [0, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["splits.npz"]


def test_epochs_may_grow_where_the_rate_does_not_know_the_end():
    before = recipe_of("ewt-entities")
    longer = recipe_of("ewt-entities", training={"epochs": 20, "average": 3})
    (change,) = _changes(_deciding(before), longer)
    assert change == "training.epochs was 15, now 20"
    flat = Schedule(kind="constant", peak=0.001)
    before, longer = (
        recipe_of("ewt-entities", training={"schedule": flat, "epochs": epochs})
        for epochs in (15, 20)
    )
    described = _deciding(before)
    assert not _changes(described, longer)
    other = dataclasses.replace(before, seed=3)
    assert _changes(described, other) == ["seed was 0, now 3"]


def test_a_key_that_an_older_version_did_not_write_is_no_change():
    recipe = recipe_of("multi30k-de-en", training={"epochs": 4})
    described = _deciding(recipe)
    older = json.loads(json.dumps(described))
    del older["training"]["schedule"]["cycles"], older["training"]["teacher"]
    del older["tokenizer"]["across_words"]
    assert _changes(older, recipe) == []
    del older["training"]["schedule"]["peak"]  # which has no default
    (change,) = _changes(older, recipe)
    assert change.startswith("training.schedule.peak was not given, now")


def test_a_folder_is_new_or_of_a_training(tmp_path):
    out = tmp_path / "out"
    check_folder(out)
    (out / "training").mkdir(parents=True)  # what a kill at the very start leaves
    check_folder(out)
    (out / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not empty"):
        check_folder(out)
