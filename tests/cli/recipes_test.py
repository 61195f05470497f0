"""Recipes through the command: train, kill, go on, evaluate; on generated data."""

import dataclasses
import json
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors.numpy import load_file

from kzoo.cli.console import Failure
from kzoo.cli.evaluate import _check
from kzoo.tokenizers import FastTokenizer, load_tokenizer
from kzoo.zoo import (
    evaluation,
    exports,
    recipes,
    save_preset,
    training,
)
from kzoo.zoo.recipe_tables import Model, Schedule, Tokenizer
from kzoo.zoo.recipes import Recipe, RecipeError, shipped
from kzoo.zoo.registry import check_preset
from tests.harness import op_by_op

WORDS = "old new red man dog boat sea sun sees takes finds loves the a".split()
# A recipe of every task, and how much smaller it is made.
TINY = {
    "ewt-entities": {},
    "imdb-sentiment": {},
    "multi30k-en-de": {"epochs": 2},
    "stsb-embedder": {"epochs": 2},
    "wikitext2-lm": {"length": 8, "batch_size": 4, "tokens_per_batch": None},
}


def tiny(name, **changes):
    """A shipped recipe with a model and a training of seconds."""
    recipe = Recipe.load(shipped()[name])
    training, tokenizer = recipe.training, recipe.tokenizer
    schedule = dataclasses.replace(
        training.schedule, warmup_epochs=None, warmup_steps=None
    )
    options = {**recipe.evaluation.options}
    options |= {"beams": 2, "max_new_tokens": 8} if "beams" in options else {}
    options |= {"stride": 4} if "stride" in options else {}
    fields = {**recipe.model.fields, "num_layers": 1, "hidden_dim": 16, "num_heads": 2}
    kind = tokenizer.kind or "unigram"
    drawn = {"splits": 2, "alpha": 0.3} if kind == "unigram" else {}
    teacher = training.teacher
    if teacher is not None:
        drawn, teacher = {}, dataclasses.replace(teacher, mixed=8)
    return dataclasses.replace(
        recipe,
        tokenizer=dataclasses.replace(
            tokenizer,
            kind=kind,
            vocabulary_size=300 if tokenizer.kind == "bpe" else 60,
            **drawn,
        ),
        model=Model(size="tiny", fields={**fields, "intermediate_dim": 16}),
        training=dataclasses.replace(
            training,
            schedule=schedule,
            teacher=teacher,
            **{"epochs": 1, **TINY.get(name, {}), **changes},
        ),
        evaluation=dataclasses.replace(
            recipe.evaluation, options=options, interval=(-1.0, 1e9)
        ),
    )


def write_data(recipe, folder):
    """Files as the recipe names them, of random sentences with something to learn."""
    drawn = random.Random(0)
    folder.mkdir()

    def sentence():
        return [drawn.choice(WORDS) for _ in range(drawn.randint(3, 7))]

    def columns():
        """Cells by number, for all that the recipes read."""
        words, others = sentence(), sentence()
        if recipe.task == "seq2seq_lm":
            return {0: " ".join(words), 1: " ".join(words[::-1])}
        if recipe.task == "text_classifier":
            return {0: str(int("dog" in words)), 4: " ".join(words)}
        score = 5 * len({*words} & {*others}) / len({*words, *others})
        return {4: str(score), 5: " ".join(words), 6: " ".join(others)}

    def text():
        if recipe.data.format == "tagged":
            tagged = (
                "".join(f"{w}\t{'B-PER' if w == 'man' else 'O'}\n" for w in sentence())
                for _ in range(40)
            )
            return "\n".join(tagged)
        if recipe.data.format == "running":
            return "\n".join(" ".join(sentence()) for _ in range(60)) + "\n"
        rows = [columns() for _ in range(100)]
        return "".join(
            "\t".join(row.get(i, "x") for i in range(max(row) + 1)) + "\n"
            for row in rows
        )

    data = recipe.data
    for source in filter(None, [data.train, data.validation, *data.test.values()]):
        if len(source.files) == 1:
            (folder / source.files[0]).write_text(text(), encoding="utf-8")
            continue
        pairs = [sentence() for _ in range(40)]
        sides = pairs, [words[::-1] for words in pairs]
        for file, side in zip(source.files, sides, strict=True):
            lines = "".join(" ".join(words) + "\n" for words in side)
            (folder / file).write_text(lines, encoding="utf-8")


@pytest.fixture
def prepared(tmp_path):
    """Function of a recipe's name and changes: the arguments that train it tiny."""

    def prepare(name, **changes):
        recipe = tiny(name, **changes)
        write_data(recipe, tmp_path / "data")
        recipe.save(tmp_path / "recipe.toml")
        return recipe, ("train", tmp_path / "recipe.toml", "--data", tmp_path / "data")

    return prepare


@pytest.fixture(scope="module")
def tagger(tmp_path_factory):
    """A folder with recipe.toml, data, and run: what was trained of them."""
    folder, recipe = tmp_path_factory.mktemp("tagger"), tiny("ewt-entities")
    write_data(recipe, folder / "data")
    recipe.save(folder / "recipe.toml")
    with op_by_op():
        training.train(recipe, folder / "data", folder / "run")
    return folder


@pytest.fixture
def trained(tagger, tmp_path):
    """The same, a test's own; its recipe, and the arguments that train it again."""
    shutil.copytree(tagger, tmp_path, dirs_exist_ok=True)
    command = ("train", tmp_path / "recipe.toml", "--data", tmp_path / "data")
    return tiny("ewt-entities"), command


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("name", TINY)
def test_a_recipe_trains_and_is_scored(run, prepared, tmp_path, name):
    recipe, command = prepared(name)
    if recipe.task == "seq2seq_lm":
        pytest.importorskip("sacremoses")
    trained = run(*command, "--out", tmp_path / "out")
    assert trained.exit_code == 0, trained.output
    assert Recipe.load(tmp_path / "out" / "recipe.toml") == recipe
    rows = json.loads((tmp_path / "out" / "history.json").read_text())
    assert [row["epoch"] for row in rows] == [*range(1, recipe.training.epochs + 1)]

    scored = run("evaluate", tmp_path / "out", "--data", tmp_path / "data")
    assert scored.exit_code == 0, scored.output
    scores = json.loads((tmp_path / "out" / "scores.json").read_text())
    assert set(scores["tests"]) == {*recipe.data.tests} - {"validation"}
    test, measure = scores["main"]
    main = scores["tests"][test]["measures"][measure]
    assert main["low"] <= main["value"] <= main["high"]
    assert main["low"] < main["high"] or main["value"] in (0.0, 1.0)
    assert measure in scored.stdout and scores["tests"][test]["rows"] > 0
    assert f"{measure} on {test} is inside the recipe's interval" in scored.stderr
    assert scores["command"] == f"kzoo evaluate {name} --data data"

    if recipe.task == "sentence_embedder":  # what no model reaches
        evaluation = dataclasses.replace(recipe.evaluation, interval=(2.0, 3.0))
        dataclasses.replace(recipe, evaluation=evaluation).save(tmp_path / "high.toml")
        high = ("--recipe", tmp_path / "high.toml", "--data", tmp_path / "data")
        missed = run("evaluate", tmp_path / "out", *high)
        assert missed.exit_code == 1
        assert "outside the recipe's interval, 2.0 to 3.0" in missed.stderr


def test_a_training_that_is_killed_gives_the_same_curve_and_weights(
    run, prepared, tmp_path
):
    # Splits are drawn, words dropped, epochs averaged: all of it goes on as it was.
    recipe, command = prepared("multi30k-en-de", epochs=6, word_dropout=0.1, average=3)
    folders = {name: tmp_path / name for name in ("whole", "killed")}
    whole = run(*command, "--out", folders["whole"])
    assert whole.exit_code == 0, whole.output
    # The other has the same draws, and nothing else.
    shutil.copytree(
        folders["whole"] / "training",
        folders["killed"] / "training",
        ignore=shutil.ignore_patterns("*state*", "epochs"),
    )
    killed = subprocess.Popen(
        [sys.executable, "-m", "kzoo", *command, "--out", folders["killed"]],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    state = folders["killed"] / "training" / "state.npz"
    while not state.exists() and killed.poll() is None:
        time.sleep(0.005)
    killed.kill()
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    assert not (folders["killed"] / "config.json").exists()
    again = run(*command, "--out", folders["killed"])
    assert again.exit_code == 0, again.output
    assert "Going on" in again.stderr and "epoch 1/" not in again.stderr

    curves, weights = [], []
    for folder in folders.values():
        rows = json.loads((folder / "history.json").read_text())
        curves.append(
            [{k: v for k, v in row.items() if k != "seconds"} for row in rows]
        )
        weights.append(load_file(folder / "model.safetensors"))
    assert curves[0] == curves[1] and len(curves[0]) == recipe.training.epochs
    assert weights[0].keys() == weights[1].keys()
    for name, array in weights[0].items():
        assert array.tobytes() == weights[1][name].tobytes(), name


@pytest.mark.usefixtures("eager")
def test_two_passes_over_each_example_are_compared(run, prepared, tmp_path):
    curves = {}
    for consistency in (0.0, 5.0):
        if consistency:
            shutil.rmtree(tmp_path / "data")
        _, command = prepared("multi30k-en-de", consistency=consistency)
        out = tmp_path / f"out_{consistency}"
        assert run(*command, "--out", out).exit_code == 0
        curves[consistency] = json.loads((out / "history.json").read_text())[0]
    # Dropout makes the passes two in training, and validation has none.
    assert curves[5.0]["loss"] > curves[0.0]["loss"] + 0.01
    assert curves[5.0]["val_loss"] == pytest.approx(curves[0.0]["val_loss"], rel=0.1)


@pytest.mark.usefixtures("eager")
def test_every_exported_form_is_scored_and_the_manifest_stays_true(
    run, trained, tmp_path, monkeypatch
):
    monkeypatch.setattr(exports, "FORMS", {"ONNX": dict(format="onnx")})
    folder = tmp_path / "preset"
    save_preset(tmp_path / "run", folder)
    scored = run("evaluate", folder, "--data", tmp_path / "data", "--exports")
    assert scored.exit_code == 0, scored.output
    found = json.loads((folder / "exports.json").read_text())
    scores = json.loads((folder / "scores.json").read_text())
    values = {
        name: row["value"]
        for name, row in scores["tests"][found["test"]]["measures"].items()
    }
    (form,) = found["forms"]
    assert form["form"] == "ONNX" and form["bytes"] > 0
    assert found["score"] == values and form["score"] == pytest.approx(values)
    check_preset(folder)
    assert "| ONNX |" in (folder / "README.md").read_text()

    # Other questions leave the preset's own records as they are.
    kept = (folder / "scores.json").read_bytes()
    command = ("evaluate", folder, "--data", tmp_path / "data")
    assert run(*command, "--tests", "validation").exit_code == 0
    own = shutil.copyfile(folder / "recipe.toml", tmp_path / "other.toml")
    assert run(*command, "--recipe", own).exit_code == 0
    assert (folder / "scores.json").read_bytes() == kept
    with monkeypatch.context() as patch:
        closed = (folder, tmp_path)
        patch.setattr("os.access", lambda path, mode: path not in closed)
        scored = run(*command)
        assert scored.exit_code == 0, scored.output
        assert f"Not kept: {folder} cannot be written to" in scored.stderr
        assert "Not kept" not in run(*command, "--tests", "validation").stderr
        late = run(*command, "--out", tmp_path / "late.json")
        assert late.exit_code == 2 and not late.stdout
        assert f"{tmp_path} cannot be written to" in late.stderr
    assert (folder / "scores.json").read_bytes() == kept
    some = tmp_path / "some.json"
    assert run(*command, "--tests", "validation", "--out", some).exit_code == 0
    assert "main" not in json.loads(some.read_text())
    check_preset(folder)


@pytest.mark.usefixtures("eager")
def test_scores_stay_when_the_exports_fail(
    run, refused, trained, tmp_path, monkeypatch
):
    folder = tmp_path / "preset"
    save_preset(tmp_path / "run", folder)

    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    command = ("evaluate", folder, "--data", tmp_path / "data")
    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "measure_exports", fail)
        assert run(*command, "--exports").exit_code != 0
    assert json.loads((folder / "scores.json").read_text())["main"]
    check_preset(folder)
    # By whatever name, the preset's own scores are the manifest's.
    monkeypatch.chdir(tmp_path)
    own = ("evaluate", "preset", "--data", "data", "--out", folder / "scores.json")
    assert run(*own).exit_code == 0
    check_preset(folder)
    assert "expected a file. Received: a folder" in refused(*command, "--out", folder)
    # What the recipe reads is not written to.
    for file in (tmp_path / "data").iterdir():
        before = file.read_bytes()
        assert "is read. Give another" in refused(*command, "--out", file)
        assert file.read_bytes() == before


def test_a_folder_s_exports_are_those_of_its_own_recipe(refused, tagger):
    other = ("--recipe", tagger / "recipe.toml", "--exports")
    line = refused("evaluate", tagger / "run", "--data", tagger / "data", *other)
    assert "the folder's own recipe says. Received: --recipe" in line


def test_data_of_another_task_leave_the_scores_as_they_were(refused, trained, tmp_path):
    for file in (tmp_path / "data").iterdir():
        text = file.read_text()
        file.write_text(text.replace("\tB-PER", "\tNOUN").replace("\tO", "\tVERB"))
    (tmp_path / "run" / "scores.json").write_text("{}")
    line = refused("evaluate", tmp_path / "run", "--data", tmp_path / "data")
    assert "none of its labels is the model's" in line and "NOUN" in line
    assert (tmp_path / "run" / "scores.json").read_text() == "{}"


def test_a_file_that_is_named_like_a_preset_is_no_folder(
    refused, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "imdb-sentiment").write_text("")
    line = refused("evaluate", "imdb-sentiment", "--data", tmp_path)
    assert "does not exist" in line and "'columns'" in line


@pytest.mark.parametrize("value", [None, 0.1])
def test_a_main_score_outside_of_the_interval_ends_the_command(value):
    recipe = tiny("stsb-embedder")
    recipe = dataclasses.replace(
        recipe, evaluation=dataclasses.replace(recipe.evaluation, interval=(0.2, 0.3))
    )
    test, measure = recipe.evaluation.main
    scores = {"tests": {test: {"measures": {measure: {"value": value}}}}}
    said = "outside" if value else "not defined"
    with pytest.raises(Failure, match=f"{said}.* 0.2 to 0.3") as caught:
        _check(recipe, {**scores, "main": [test, measure]})
    assert caught.value.code == 1


def test_a_training_may_have_its_recipe_s_name(run, trained, tmp_path, monkeypatch):
    monkeypatch.setattr(
        recipes, "shipped", lambda: {"entities": tmp_path / "recipe.toml"}
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").rename(tmp_path / "entities")
    again = run("train", "entities", "--data", "data", "--out", "entities")
    assert again.exit_code == 0 and "Going on" in again.stderr, again.output


@pytest.mark.usefixtures("eager")
def test_weights_of_research_only_texts_stay_so(run, refused, trained, tmp_path):
    recipe, command = trained
    base = tmp_path / "base"
    save_preset(tmp_path / "run", base, research_only=True, data="Secrets")
    begun = dataclasses.replace(
        recipe, model=Model(preset=str(base)), tokenizer=Tokenizer()
    )
    begun.save(tmp_path / "recipe.toml")
    line = refused(*command, "--out", tmp_path / "second")
    assert "research_only: expected true" in line and "Secrets" in line
    data = dataclasses.replace(recipe.data, research_only=True)
    dataclasses.replace(begun, data=data).save(tmp_path / "recipe.toml")
    assert run(*command, "--out", tmp_path / "second").exit_code == 0
    save_preset(tmp_path / "second", tmp_path / "preset")
    assert "trained on Secrets" in (tmp_path / "preset" / "README.md").read_text()
    # Whatever the base's name means later, the tokenizer is that of the beginning.
    kept = load_tokenizer(tmp_path / "second" / "training" / "tokenizer")
    (tmp_path / "base" / "preset.json").unlink()
    other = FastTokenizer.train(["another text"], 60, algorithm="character")
    other.save(base)
    assert run(*command, "--out", tmp_path / "second").exit_code == 0
    again = load_tokenizer(tmp_path / "second")
    assert again.encode(["a red dog"]) == kept.encode(["a red dog"])


@pytest.mark.usefixtures("eager")
def test_a_recipe_begins_with_the_weights_and_the_tokenizer_of_a_preset(
    run, trained, tmp_path
):
    recipe, command = trained
    begun = dataclasses.replace(
        recipe,
        model=Model(preset=str(tmp_path / "run"), fields={"dropout": 0.4}),
        tokenizer=Tokenizer(splits=2, alpha=0.3),
        task_options={"labels": ["O", "B-PER", "B-DOG"], "head_dropout": 0.5},
        # No weight moves by more than the rate in a step.
        training=dataclasses.replace(recipe.training, schedule=Schedule(peak=1e-9)),
    )
    begun.save(tmp_path / "recipe.toml")
    trained = run(*command, "--out", tmp_path / "second")
    assert trained.exit_code == 0, trained.output
    first, second = (
        load_file(tmp_path / name / "model.safetensors") for name in ("run", "second")
    )
    for name, array in first.items():
        if not name.startswith("head/"):
            np.testing.assert_allclose(second[name], array, rtol=0, atol=1e-6)
    assert second["head/output/kernel"].shape == (16, 3)
    config = json.loads((tmp_path / "second" / "config.json").read_text())["model"]
    assert config["encoder"]["dropout"] == 0.4 != recipe.model.fields.get("dropout")
    pieces = [
        load_tokenizer(tmp_path / name).encode(["a red dog"])
        for name in ("run", "second")
    ]
    assert pieces[0] == pieces[1]


@pytest.mark.parametrize(
    ("model", "tokenizer", "expected"),
    [
        (dict(preset="x"), dict(kind="bpe", vocabulary_size=9), "has its own"),
        (dict(size="tiny"), {}, "[tokenizer] kind, folder: expected one of them"),
        (dict(size="tiny"), dict(kind="bpe"), "kind and vocabulary_size together"),
        (dict(preset="x", size="tiny"), {}, "expected one of the three"),
        (dict(preset="x", fields={"num_layers": 1}), {}, "feed_forward_dropout beside"),
    ],
)
def test_a_recipe_names_one_beginning(model, tokenizer, expected):
    recipe = tiny("ewt-entities")
    with pytest.raises(RecipeError, match=re.escape(expected)):
        dataclasses.replace(
            recipe, model=Model(**model), tokenizer=Tokenizer(**tokenizer)
        )


def test_a_preset_brings_its_tokenizer():
    values = tiny("imdb-sentiment").to_dict()
    del values["tokenizer"]
    with pytest.raises(RecipeError, match=r"\[tokenizer\] kind, folder: expected one"):
        Recipe.from_dict(values)
    values["model"] = {"preset": "x"}
    assert Recipe.from_dict(values).tokenizer == Tokenizer()


def test_options_beside_a_recipe_are_refused(refused, prepared, tmp_path):
    _, command = prepared("imdb-sentiment")
    line = refused(*command, "--out", tmp_path / "new", "--epochs", 3, "--running")
    assert "says all but --data and --out" in line
    assert "--epochs" in line and "--running" in line
    assert not (tmp_path / "new").exists()


def test_a_missing_file_is_named_with_what_was_expected(refused, prepared, tmp_path):
    recipe, command = prepared("imdb-sentiment")
    (tmp_path / "data" / recipe.data.train.files[0]).unlink()
    line = refused(*command, "--out", tmp_path / "new")
    assert "train.tsv.gz does not exist" in line
    assert "'columns', columns [4, 0]" in line and recipe.data.url in line
    by_name = ("train", "imdb-sentiment", "--data", tmp_path / "data")
    assert refused(*by_name, "--out", tmp_path / "new") == line
    line = refused("train", "imdb", "--data", tmp_path, "--out", tmp_path / "new")
    assert line.startswith(f"Error: {tmp_path / 'imdb'} does not exist. Expected in")
    assert line.endswith("Did you mean imdb-sentiment?")
    assert not (tmp_path / "new").exists()


def test_evaluate_needs_a_recipe_of_the_model_s_task(refused, translator, tmp_path):
    assert "has no recipe.toml" in refused("evaluate", translator)
    other = shipped()["ewt-pos"]
    assert "recipe is of a TokenClassifier" in refused(
        "evaluate", translator, "--recipe", other
    )
    own = shipped()["multi30k-en-de"]
    line = refused("evaluate", translator, "--recipe", own, "--data", tmp_path)
    assert "test_2016_flickr.en.gz does not exist" in line
    line = refused("evaluate", translator, "--recipe", own, "--tests", "test_2018")
    assert "'test_2018'" in line and "test_2017_mscoco" in line
    assert not (translator / "scores.json").exists()
