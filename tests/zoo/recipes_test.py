"""Recipes: those that are shipped are valid, and what is wrong is named."""

import copy
import datetime
import inspect
import math
import tomllib

import pytest
import tomli_w

from kzoo import tasks
from kzoo.zoo.pretrained import TASKS
from kzoo.zoo.recipes import FORMATS, Recipe, RecipeError, shipped

SHIPPED = shipped()


def test_the_promised_presets_have_a_recipe():
    assert {
        "multi30k-en-de",
        "multi30k-de-en",
        "spa-eng-en-es",
        "imdb-sentiment",
        "ewt-pos",
        "ewt-entities",
        "wikitext2-lm",
        "wikitext2-mlm",
        "shakespeare-char",
        "stsb-embedder",
    } <= set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_recipe_is_valid_and_complete(name, tmp_path):
    recipe = Recipe.load(SHIPPED[name])
    assert recipe.name == name
    kind = getattr(tasks, TASKS[recipe.task])
    arguments = {
        argument
        for each in kind.__mro__[:-1]
        for argument in inspect.signature(each.__init__).parameters
    }
    assert set(recipe.task_options) <= arguments
    data, card = recipe.data, recipe.card
    assert all(
        [recipe.title, data.name, data.url, data.licence, recipe.evaluation.main]
    )
    assert all([card.description, card.intended_use, card.limits, card.examples])
    recipe.save(tmp_path / "recipe.toml")
    assert Recipe.load(tmp_path / "recipe.toml") == recipe


@pytest.mark.parametrize(
    "source",
    [
        "a.tsv",
        ["a.tsv"],
        {"files": "a.tsv"},
        {"files": ["a.tsv"], "split": "train"},
        {"files": "tfds:a/b", "split": "train[:5%]"},
        {"files": ["tfds:a/b"], "split": "test"},
    ],
)
def test_a_source_in_any_form_is_read_back_as_it_was(source, tmp_path):
    values = changed(data__format="columns", data__languages=[], data__train=source)
    values["data"] |= {"validation": source, "test": {"test_2016_flickr": source}}
    recipe = Recipe.from_dict(values)
    table = source if isinstance(source, dict) else {}
    file = table.get("files", source)
    data = recipe.data
    for each in (data.train, data.validation, *data.test.values()):
        assert each.files == (file if isinstance(file, str) else file[0],)
        assert each.split == table.get("split", "train")
    recipe.save(tmp_path / "recipe.toml")
    assert Recipe.load(tmp_path / "recipe.toml") == recipe


def test_every_format_belongs_to_a_known_task():
    assert set(FORMATS) < set(TASKS)


def changed(**changes):
    """A valid recipe as dicts with some values changed: table__key=value."""
    values = tomllib.loads(SHIPPED["multi30k-de-en"].read_text(encoding="utf-8"))
    values = copy.deepcopy(values)
    for path, value in changes.items():
        *tables, key = path.split("__")
        table = values
        for name in tables:
            table = table.setdefault(name, {})
        if value is None:
            del table[key]
        else:
            table[key] = value
    return values


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 3}, r"epochs: expected one of name, task"),
        ({"training__epoch": 3}, r"\[training\] epoch: expected one of"),
        ({"training__epochs": "3"}, r"\[training\] epochs: expected int"),
        ({"training__epochs": True}, r"\[training\] epochs: expected int"),
        ({"training__epochs": 0}, r"\[training\] epochs: expected 1 or more"),
        ({"training__epochs": None}, r"\[training\] epochs: expected a value"),
        ({"training__optimizer__momentum": 1}, r"\[training.optimizer\] momentum"),
        ({"training__schedule__kind": "linear"}, r"\[training.schedule\] kind"),
        ({"training__schedule__warmup_steps": 9}, "warmup_steps, warmup_epochs"),
        ({"training__batch_size": 8}, "batch_size, tokens_per_batch: expected one"),
        ({"training__best": "val_loss"}, "average, best: expected one of the two"),
        ({"training__length": 128}, r"\[training\] length: expected running text"),
        ({"training__score_range": [0, 5]}, "score_range: expected an embedder"),
        (
            {"task": "sentence_embedder", "training__score_range": [0, math.inf]},
            "score_range: expected two finite numbers",
        ),
        (
            {"tokenizer__splits": 3, "tokenizer__alpha": -0.1},
            r"\[tokenizer\] alpha: expected 0 or more",
        ),
        (
            {"tokenizer__splits": 3, "tokenizer__alpha": math.nan},
            r"\[tokenizer\] alpha: expected 0 or more",
        ),
        ({"training__consistency": -1.0}, r"consistency: expected 0 or more"),
        ({"training__embeddings": "tf_idf"}, "embeddings: expected a task with an"),
        ({"tokenizer__splits": 1, "tokenizer__alpha": 0.3}, r"\] splits, alpha: exp"),
        (
            {
                "tokenizer__kind": "bpe",
                "tokenizer__splits": 8,
                "tokenizer__alpha": 0.3,
            },
            r"\[tokenizer\] splits: expected a kind of",
        ),
        (
            {"tokenizer__kind": "bpe", "tokenizer__across_words": True},
            r"\[tokenizer\] across_words: expected a kind of",
        ),
        ({"tokenizer__max_piece_length": 0}, r"max_piece_length: expected 1 or more"),
        ({"tokenizer__vocabulary_size": 0}, r"vocabulary_size: expected 1 or more"),
        (
            {"task_options": {"labels": ["a", datetime.date(2026, 1, 1)]}},
            r"\[task_options\] labels: expected no date or time",
        ),
        ({"tokenizer__folder": "x"}, r"\[tokenizer\] folder: expected no other"),
        ({"data__train": "train.tsv"}, r"\[data\] train: expected 2 files"),
        ({"task": "causal_lm"}, r"\[data\] format: expected text or running"),
        ({"data__columns": [0, 1]}, r"\[data\] columns: expected none"),
        ({"data__hold_out": {"validation": 0.1}}, "validation, hold_out.validation"),
        ({"data__hold_out": {"test": 1.5}}, "0 or more that sum to less than 1"),
        ({"data__hold_out": {"test": math.nan}}, "0 or more that sum to less than 1"),
        ({"data__replace": {"": "x"}}, r"\[data\] replace: expected no empty text"),
        (
            {"data__test__validation": ["a", "b"]},
            r"test.validation: expected another name beside validation",
        ),
        ({"model__vocabulary_size": 90}, "vocabulary_size: expected none: it is the"),
        (
            {"model": {"preset": "multi30k-de-en"}, "tokenizer": {"lowercase": True}},
            r"\[tokenizer\] lowercase: expected a kind",
        ),
        ({"evaluation__options__foo": 1}, r"options\]: expected some of \['banned_"),
        (
            {"evaluation__options__num_return_sequences": 2},
            r"expected some of .*Received: \['num_return_sequences'\]",
        ),
        ({"evaluation__options__stride": 2}, r"Received: \['stride'\]"),
        (
            {"evaluation__options__batch_size": "x"},
            r"\] batch_size: expected 1 or more",
        ),
        ({"evaluation__options__batch_size": -1}, r"\] batch_size: expected 1 or more"),
        ({"evaluation__options__beams": 0}, r"\[evaluation.options\] beams must be an"),
        ({"data__train": {"files": ["a", "b"], "spilt": "x"}}, r"\[data.train\] spilt"),
        ({"model__size": "huge"}, r"\[model\] size: expected one of tiny"),
        ({"model__num_layer": 3}, r"\[model\] .*num_layer"),
        ({"model__dropout": 2.0}, r"\[model\] .*dropout must be a rate"),
        ({"evaluation__main": ["test", "bleu"]}, r"main: expected a test set of"),
        ({"evaluation__interval": [3, 2]}, "lower and the upper end"),
        ({"task": "question_answering"}, "task: expected one of causal_lm"),
        ({"seed": -1}, r"seed: expected a number in \[0"),
        ({"card__published": [{"what": "x"}]}, r"published\] score: expected a value"),
        ({"training__optimizer__global_clipnorm": -1.0}, "clipnorm: expected a posit"),
        ({"training__optimizer__beta_1": 2.0}, r"beta_1: expected a rate in \[0, 1\)"),
        ({"training__optimizer__weight_decay": -1.0}, "weight_decay: expected 0 or"),
        ({"training__optimizer__layer_decay": 1.5}, r"layer_decay: expected a factor"),
        ({"training__schedule__warmup_epochs": -5}, "warmup_epochs: expected 0 or mo"),
        ({"training__schedule__peak": math.inf}, "peak: expected a positive rate"),
        ({"training__schedule__peak": math.nan}, "peak: expected a positive rate"),
        ({"training__schedule__final": -1.0}, r"final: expected a share in \[0, 1\]"),
        ({"training__teacher": {"trust": 2.0}}, r"trust: expected a share in \[0, 1\]"),
        ({"training__teacher": {"mixed": -1}}, "mixed: expected 0 or more"),
        (
            {"training__teacher": {"trust": 0.5}},
            "expected a classifier of single texts",
        ),
        ({"training__schedule__cycles": 0}, "cycles: expected 1 or more"),
        ({"training__schedule__cycles": 1000}, "epochs: expected a multiple of the"),
        (
            {"training__schedule": {"peak": 0.1, "kind": "constant", "cycles": 2}},
            "final, cycles: expected kind 'cosine'",
        ),
        ({"training__consistency": math.nan}, "consistency: expected 0 or more"),
        ({"data__last_words": 0}, r"\[data\] last_words: expected 1 or more"),
        ({"data__hold_out": {"side": -3}}, r"\[data.hold_out\] side: expected 0"),
        ({"data__hold_out": {"at_most": 0}}, r"at_most: expected 1 or more"),
        (
            {"data__format": "columns", "data__train": "a", "data__columns": [0]}
            | dict.fromkeys(["data__validation", "data__test", "evaluation"]),
            r"\[data\] columns: expected 2 for task 'seq2seq_lm'",
        ),
        (
            {"data__format": "columns", "data__train": "a", "data__columns": [1, 1]}
            | dict.fromkeys(["data__validation", "data__test", "evaluation"]),
            r"\[data\] columns: expected different ones. Received: \[1, 1\]",
        ),
        (  # two columns where none are named
            {"task": "pair_scorer", "data__format": "columns", "data__train": "a"}
            | dict.fromkeys(["data__validation", "data__test", "evaluation"]),
            r"columns: expected 3 for task 'pair_scorer'.*Received: \[0, 1\]",
        ),
    ],
)
def test_what_cannot_be_followed_is_named_with_file_and_key(tmp_path, changes, message):
    path = tmp_path / "recipe.toml"
    path.write_text(tomli_w.dumps(changed(**changes)), encoding="utf-8")
    with pytest.raises(RecipeError, match=message) as caught:
        Recipe.load(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_what_a_preset_has_is_not_begun_anew():
    values = tomllib.loads(SHIPPED["stsb-embedder"].read_text(encoding="utf-8"))
    del values["tokenizer"]
    values["model"] = {"preset": "stsb-embedder"}
    values["training"]["embeddings"] = "tf_idf"
    with pytest.raises(RecipeError, match="embeddings: expected no preset, which has"):
        Recipe.from_dict(values)
    del values["training"]["embeddings"]
    values["training"]["label_smoothing"] = 0.1
    values["training"]["score_range"] = [0, 5]
    with pytest.raises(RecipeError, match="score_range, label_smoothing: expected one"):
        Recipe.from_dict(values)


def test_a_recipe_may_begin_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(tomli_w.dumps(changed(title="Grüße")), encoding="utf-8-sig")
    assert Recipe.load(path).title == "Grüße"


def test_a_file_that_is_no_toml_is_named(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text("a b", encoding="utf-8")
    with pytest.raises(RecipeError, match="recipe.toml is not TOML: .*line 1"):
        Recipe.load(path)


def test_whole_numbers_may_stand_for_rates():
    assert Recipe.from_dict(changed(training__schedule__peak=1)).training.schedule.peak


def test_a_stretch_longer_than_the_learned_positions_is_refused():
    values = tomllib.loads(SHIPPED["shakespeare-char"].read_text(encoding="utf-8"))
    values["model"] |= {"positions": "learned", "max_sequence_length": 127}
    with pytest.raises(RecipeError, match="max_sequence_length=127. Received: 128"):
        Recipe.from_dict(values)
