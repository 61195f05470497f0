"""The road of a training: parts of the data, rates, beginnings, and what goes on."""

import dataclasses
import errno
import os
import subprocess
import sys
import tomllib

import filelock
import keras
import numpy as np
import pytest

import kzoo
from kzoo.data import DataError
from kzoo.zoo import training
from kzoo.zoo.examples import (
    fingerprint,
    inputs_and_targets,
    labels_of,
    read_test,
    read_training,
    texts_of,
)
from kzoo.zoo.recipe_tables import HoldOut, Schedule, Source
from kzoo.zoo.recipes import Recipe, RecipeError, shipped
from kzoo.zoo.training_folder import OtherTraining
from tests.recipes import recipe_of


def test_no_english_sentence_is_in_two_parts(tmp_path):
    lines = [f"english {i % 300}\tspanish {i}\n" for i in range(900)]
    (tmp_path / "spa.txt.gz").write_text("".join(lines))
    recipe = recipe_of(
        "spa-eng-en-es", data={"hold_out": HoldOut(validation=0.2, test=0.3)}
    )
    parts = [*read_training(recipe, tmp_path), read_test(recipe, tmp_path, "test")]
    assert sum(map(len, parts)) == 900
    english = [{source for source, _ in part} for part in parts]
    assert sum(map(len, english)) == 300
    assert [len(part) / 900 for part in parts] == pytest.approx(
        [0.5, 0.2, 0.3], abs=0.08
    )
    assert read_test(recipe, tmp_path, "validation") == parts[1]


def test_a_pipe_which_can_be_read_once_is_enough_to_hold_examples_out():
    end, begin = os.pipe()
    with open(begin, "w") as file:
        file.writelines(f"english {i}\tspanish {i}\n" for i in range(100))
    data = {
        "train": Source(files=(f"/dev/fd/{end}",)),
        "hold_out": HoldOut(validation=0.2, test=0.1),
    }
    recipe = recipe_of("spa-eng-en-es", data=data)
    try:
        train, validation = read_training(recipe, ".")
    finally:
        os.close(end)
    assert len(train) + len(validation) < 100
    assert len(train) > 3 * len(validation) > 15


def test_a_text_of_which_replace_leaves_nothing_is_named(tmp_path):
    lines = ["english one\tspanish\n", "english two\tx\n"]
    (tmp_path / "spa.txt.gz").write_text("".join(lines))
    recipe = recipe_of("spa-eng-en-es", data={"replace": {"x": " "}})
    with pytest.raises(DataError, match="replace leaves nothing.* 'x' in example 1"):
        read_training(recipe, tmp_path)


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("spa-eng-en-es", ("spa.tsv",)),
        ("multi30k-en-de", ("a.en", "a.de")),
        ("shakespeare-char", ("a.txt",)),
        ("ewt-pos", ("a.tsv",)),
    ],
)
def test_files_have_no_splits(tmp_path, name, files):
    for file in files:
        (tmp_path / file).write_text("a\tb\n" if "tsv" in file else "a\n")
    recipe = recipe_of(name, data={"train": Source(files=files, split="test")})
    with pytest.raises(ValueError, match="read whole. Received: split='test' for"):
        read_training(recipe, tmp_path)


def test_running_text_is_held_out_at_its_end_to_the_character(tmp_path):
    text = "".join(chr(97 + i % 26) for i in range(1003))
    (tmp_path / "input.txt.gz").write_text(text)
    recipe = recipe_of("shakespeare-char")
    ([begin], [end]) = read_training(recipe, tmp_path)
    assert begin + end == text and len(begin) == int(0.9 * 1003)
    both = recipe_of(
        "shakespeare-char",
        data={"hold_out": HoldOut(validation=0.1, test=0.2, by="end")},
    )
    ([begin], [middle]) = read_training(both, tmp_path)
    (end,) = read_test(both, tmp_path, "test")
    assert begin + middle + end == text and len(end) == 1003 - int(0.8 * 1003)


def test_texts_are_cut_and_labels_are_classes(tmp_path):
    rows = [f"{i % 2}\tx\tx\tx\tone<br />two three{i}\n" for i in range(20)]
    (tmp_path / "train.tsv.gz").write_text("".join(rows))
    hold_out = HoldOut(validation=0.1, by="end")
    recipe = recipe_of("imdb-sentiment", data=dict(last_words=2, hold_out=hold_out))
    train, held_out = read_training(recipe, tmp_path)
    assert (len(train), len(held_out)) == (18, 2)
    x, y = inputs_and_targets(recipe, train)
    assert x[:2] == ["two three0", "two three1"] and y[:2] == [0, 1]
    assert labels_of(recipe, train) is None  # the recipe names them
    unnamed = dataclasses.replace(recipe, task_options={})
    assert labels_of(unnamed, train) == ["0", "1"]
    assert inputs_and_targets(unnamed, train)[1][:2] == ["0", "1"]


def test_a_score_that_is_no_number_is_named():
    recipe = recipe_of("stsb-embedder")
    x, y = inputs_and_targets(recipe, [("a", "b", "4.5")])
    assert x == [("a", "b")] and y == [4.5]
    with pytest.raises(DataError, match="'good' for example 1"):
        inputs_and_targets(recipe, [("a", "b", "1"), ("a", "b", "good")])


def test_a_tokenizer_learns_from_texts_and_not_from_targets():
    assert texts_of(recipe_of("multi30k-en-de"), [("a", "b"), ("c", "d")]) == [*"abcd"]
    assert texts_of(recipe_of("stsb-embedder"), [("a", "b", "1")]) == ["a", "b"]
    assert texts_of(recipe_of("ewt-pos"), [(["a", "dog"], ["DET", "NOUN"])]) == [
        "a dog"
    ]


def test_a_fingerprint_tells_parts_and_texts_apart():
    prints = {
        fingerprint(["a", "b"], None),
        fingerprint(["a"], ["b"]),
        fingerprint(["ab"], None),
        fingerprint([("a", "b")], None),
    }
    assert len(prints) == 4 and fingerprint(["a"]) == fingerprint(["a"])


def test_a_cosine_warms_up_by_epochs_and_ends_at_its_share():
    schedule = Schedule(peak=0.004, warmup_epochs=2, final=0.02)
    changes = dict(epochs=56, schedule=schedule)
    settings = recipe_of("multi30k-en-de", training=changes).training
    rate = training._rate(settings, 10)
    assert float(rate(20)) == pytest.approx(0.004)
    assert float(rate(10)) == pytest.approx(0.002)
    assert float(rate(560)) == pytest.approx(0.02 * 0.004)
    middle = 20 + 540 // 2
    assert float(rate(middle)) == pytest.approx(0.004 * 0.51, rel=1e-4)
    short = dataclasses.replace(settings, epochs=2)
    with pytest.raises(ValueError, match="warm-up of 20 steps must end before"):
        training._rate(short, 10)


def test_a_cosine_of_two_cycles_is_the_one_of_half_the_epochs_twice():
    once = Schedule(peak=0.004, warmup_epochs=2, final=0.02)
    twice = dataclasses.replace(once, cycles=2)
    rates = [
        training._rate(
            recipe_of(
                "multi30k-en-de", training=dict(epochs=epochs, schedule=schedule)
            ).training,
            10,
        )
        for epochs, schedule in ((28, once), (56, twice))
    ]
    steps = [0, 7, 20, 150, 279]
    cycle = [float(rates[0](step)) for step in steps]
    assert [float(rates[1](step)) for step in steps] == cycle
    assert [float(rates[1](step + 280)) for step in steps] == cycle
    assert cycle[-1] < 0.1 * cycle[2]


def test_an_embedder_begins_as_a_bag_of_words_weighted_by_tf_idf():
    texts = [f"the word{i}" for i in range(50)] + ["the rare"]
    tokenizer = kzoo.FastTokenizer.train(texts, 200, algorithm="wordpiece")
    embedder = kzoo.SentenceEmbedder.from_size(
        "tiny", tokenizer, num_layers=1, hidden_dim=128, num_heads=2
    )
    training.begin_with_tf_idf(embedder, texts * 2, seed=1)
    table = keras.ops.convert_to_numpy(embedder.encoder.token_embedding.embeddings)
    lengths = np.linalg.norm(table, axis=1) * embedder.encoder.config.embedding_scale

    def length(piece):
        return lengths[tokenizer.token_id(piece)]

    # A text counts once: "the" is in all 51, "rare" in one of them.
    assert length("the") == pytest.approx(abs(np.log(51 / 52)), rel=0.3)
    assert length("rare") == pytest.approx(np.log(51 / 2), rel=0.3)
    assert lengths[tokenizer.start_token_id] == pytest.approx(0.1, rel=0.3)


def test_word_dropout_makes_pieces_unknown_and_no_special_token():
    tokenizer = kzoo.FastTokenizer.train(["a b c d"], 50, algorithm="wordpiece")
    ids = np.tile([1, 4, 5, 6, 7, 2, 0], (400, 1)).astype("int32")
    batch = {"token_ids": ids, "decoder_token_ids": ids, "targets": ids}
    forget = training._WordDropout(tokenizer, 0.25, seed=2)
    changed = forget(batch, 7)
    gone = changed["token_ids"] != ids
    assert (changed["token_ids"][gone] == tokenizer.unknown_token_id).all()
    assert not gone[:, [0, 5, 6]].any()
    assert gone[:, 1:5].mean() == pytest.approx(0.25, abs=0.04)
    assert changed["decoder_token_ids"] is ids and changed["targets"] is ids
    np.testing.assert_array_equal(forget(batch, 7)["token_ids"], changed["token_ids"])
    assert (forget(batch, 8)["token_ids"] != changed["token_ids"]).any()


def test_the_main_measure_is_one_of_those_reported():
    recipe = Recipe.load(shipped()["ewt-entities"])
    with pytest.raises(RecipeError, match=r"main: expected a measure of \('recall',\)"):
        dataclasses.replace(recipe.evaluation, measures=("recall",))


MOODS = """
name = "moods"
title = "Moods"
task = "text_classifier"
[data]
format = "columns"
train = "moods.tsv"
[tokenizer]
kind = "character"
vocabulary_size = 30
[model]
size = "tiny"
num_layers = 1
hidden_dim = 8
num_heads = 2
[training]
epochs = 2
batch_size = 4
[training.schedule]
peak = 0.01
kind = "constant"
"""


@pytest.fixture
def moods(tmp_path, eager):
    """A function of changed tables to a recipe, whose data are in `tmp_path`."""
    rows = [f"{'ab'[i % 2] * 3}\t{['sad', 'glad'][i % 2]}\n" for i in range(8)]
    (tmp_path / "moods.tsv").write_text("".join(rows))

    def make(**tables):
        values = tomllib.loads(MOODS)
        for table, changes in tables.items():
            values.setdefault(table, {}).update(changes)
        return Recipe.from_dict(values)

    return make


def test_a_label_of_the_validation_data_is_said_to_be_there(moods, tmp_path):
    (tmp_path / "other.tsv").write_text("aaa\tsad\nbbb\tbored\n")
    recipe = moods(training={"epochs": 1}, data={"validation": "other.tsv"})
    with pytest.raises(ValueError, match="In the validation examples: .*'bored' for"):
        training.train(recipe, tmp_path, tmp_path / "out")
    assert not (tmp_path / "out" / "history.json").exists()


def test_a_teacher_gives_more_texts_and_distributions_as_targets(moods, tmp_path):
    rows = [
        f"{'ab'[i % 2] * 3} {'ab'[i % 2]}. so\t{['sad', 'glad'][i % 2]}\n"
        for i in range(20)
    ]
    (tmp_path / "moods.tsv").write_text("".join(rows))
    schedule = {"peak": 0.03, "kind": "constant"}
    teacher = {"mixed": 10, "trust": 0.5}
    recipe = moods(
        training=dict(teacher=teacher, epochs=8, batch_size=10, schedule=schedule)
    )
    run = training.Run(
        recipe, *training.read_training(recipe, tmp_path), tmp_path / "o"
    )
    batches, steps = run._training_batches()
    targets = np.concatenate([batches[i]["targets"] for i in range(steps)])
    real = targets[targets[:, 0] >= 0]
    assert real.shape == (30, 2) and real.dtype == "float32"
    np.testing.assert_allclose(real.sum(axis=1), 1.0, atol=1e-6)
    assert ((real > 0.01) & (real < 0.99)).all()  # of no text only its class is left
    run.fit()
    task = run.finish()
    assert task.classify(["aaa a. so", "bbb b. so"]) == ["sad", "glad"]
    again = training.Run(
        recipe, *training.read_training(recipe, tmp_path), tmp_path / "o"
    )
    kept, _ = again._training_batches()  # out of the file
    np.testing.assert_array_equal(kept[0]["targets"], batches[0]["targets"])


def test_a_first_try_that_failed_does_not_stand_in_the_way(moods, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(RecipeError, match=r"\[task_options\].*'max_length'.*'label'"):
        training.train(moods(task_options={"label": ["x"]}), tmp_path, out)
    with pytest.raises(ValueError, match="label that the recipe does not know"):
        wrong = moods(task_options={"labels": ["x", "y"]})
        training.train(wrong, tmp_path, out)
    right = moods(task_options={"labels": ["sad", "glad"]})
    assert training.train(right, tmp_path, out).labels == ["sad", "glad"]
    other = moods(task_options={"labels": ["glad", "sad"]})
    with pytest.raises(OtherTraining, match="labels"):  # epochs were done
        training.train(other, tmp_path, out)
    (out / "training" / "state.npz").unlink()  # nor is a model lost without its state
    with pytest.raises(OtherTraining, match="labels"):
        training.train(other, tmp_path, out)


def test_one_process_at_a_time_trains_in_a_folder(moods, tmp_path, monkeypatch):
    """Two would save over one another; a lock ends with its process, even a killed."""

    def full_disk(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    out = tmp_path / "out"
    (out / "training").mkdir(parents=True)
    code = (
        "import filelock, sys, time\n"
        "lock = filelock.FileLock(sys.argv[1]).acquire()\n"
        "print('held', flush=True)\n"
        "time.sleep(600)"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(out / "training" / "lock")],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(OtherTraining, match=f"process trains in {out}. W"):
            training.train(moods(), tmp_path, out)
    finally:
        other.kill()
        other.communicate()
    free = filelock.FileLock(out / "training" / "lock", timeout=0)
    run = training.Run(moods(), *read_training(moods(), tmp_path), out)
    with pytest.raises(filelock.Timeout):
        free.acquire()
    code = f"""
import os, pathlib, kzoo.files
with kzoo.files.beside(pathlib.Path({str(out / "config.json")!r})):
    os._exit(9)  # killed while a model was written
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 9
    assert [*out.glob(".*")]

    class Broken(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            raise KeyboardInterrupt

    # A notebook keeps what an error left, and the folder is free all the same.
    with pytest.raises(KeyboardInterrupt):
        run.fit([Broken()])
    free.acquire()
    free.release()
    run = training.Run(moods(), *read_training(moods(), tmp_path), out)
    run.fit()
    with monkeypatch.context() as broken, pytest.raises(OSError, match="No space"):
        broken.setattr(training, "training_curve", full_disk)
        run.finish()
    free.acquire()
    free.release()
    assert training.train(moods(), tmp_path, out).labels and run.epochs_done
    assert not [*out.glob(".*")]
    free.acquire()
    free.release()


@pytest.mark.parametrize(
    ("changes", "right"),
    [
        (dict(best="val_accuracy"), True),
        (dict(best="val_macro_f1", score_validation=True), True),
        (dict(best="val_macro_f1"), False),
        (dict(best="val_banana", score_validation=True), False),
        (dict(best="accuracy", metrics=False), False),
    ],
)
def test_what_the_best_epoch_is_chosen_by_is_known_before_one(
    moods, tmp_path, changes, right
):
    recipe = moods(training={"epochs": 1, **changes}, data={"validation": "moods.tsv"})
    if right:
        training.train(recipe, tmp_path, tmp_path / "out")
        return
    with pytest.raises(RecipeError, match=rf"best: .*'loss'.* '{changes['best']}'"):
        training.train(recipe, tmp_path, tmp_path / "out")
    assert not (tmp_path / "out" / "history.json").exists()


def test_a_file_system_without_locks_is_trained_on_with_a_warning(
    moods, tmp_path, monkeypatch
):
    def without(self):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(filelock.FileLock, "acquire", without)
    with pytest.warns(UserWarning, match="cannot be locked .*No locks available"):
        assert training.train(moods(), tmp_path, tmp_path / "out").labels


def test_what_begins_anew_has_its_own_tokenizer_and_leaves_what_is_not_its(
    moods, tmp_path
):
    out = tmp_path / "out"

    def begin(size):
        recipe = moods(tokenizer={"vocabulary_size": size})
        return training.Run(recipe, *read_training(recipe, tmp_path), out)

    assert begin(5).tokenizer.vocabulary_size == 5
    for name in ("splits.npz", "best.npz", "data.tsv"):
        (out / "training" / name).write_text("x")
    (out / "history.json").write_text("[]")
    again = begin(6)
    assert not again.resumed and again.tokenizer.vocabulary_size == 6
    assert {path.name for path in (out / "training").iterdir()} == {
        *("data.tsv", "lock", "settings.json", "tokenizer"),
    }
    assert not (out / "history.json").exists()
    assert begin(6).resumed


@pytest.mark.parametrize("key", ["tokenizer", "dtype", "config", "units"])
def test_task_options_are_not_what_other_tables_say(moods, tmp_path, key):
    with pytest.raises(RecipeError, match=rf"\[task_options\]: expected.*\['{key}'\]"):
        training.train(moods(task_options={key: "x"}), tmp_path, tmp_path / "out")


def test_a_training_that_diverges_ends_and_keeps_what_was_before(moods, tmp_path):
    class Break(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                for variable in self.model.trainable_variables:
                    variable.assign(variable * np.nan)

    out = tmp_path / "out"
    with pytest.raises(
        training.Diverged,
        match="in epoch 2 loss is nan. The state of epoch 1 is kept. .* another folder",
    ):
        training.train(moods(), tmp_path, out, callbacks=[Break()])
    assert not (out / "model.safetensors").exists()
    task = training.train(moods(), tmp_path, out)  # goes on from the first epoch
    assert all(np.isfinite(w).all() for w in task.get_weights())


class _BreakLast(keras.callbacks.Callback):
    """As a last step does: the weights are none, and the loss has not seen them."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            weight = self.model.named_variables()["head/output/bias"]
            weight.assign(weight * 0 + np.inf)


@pytest.mark.parametrize("validation", [0.0, 0.3])
def test_weights_that_no_loss_has_seen_are_looked_at(moods, tmp_path, validation):
    recipe = moods(
        data={"hold_out": {"validation": validation, "by": "end"}},
        training={"batch_size": 3 if validation else 4},
    )
    found = "val_loss is nan" if validation else "the weight head/output/bias is not"
    with pytest.raises(
        training.Diverged, match=f"in epoch 1 {found}.*No epoch is kept"
    ):
        training.train(recipe, tmp_path, tmp_path / "out", callbacks=[_BreakLast()])
    # So the same folder takes a lower rate.
    lower = moods(training={"schedule": {"peak": 0.001, "kind": "constant"}})
    training.train(lower, tmp_path, tmp_path / "out")


def test_tagged_sentences_are_held_out_by_their_words(tmp_path):
    rows = [f"w{i % 60}\tO\nx\t{['O', 'B-X'][i % 2]}\n\n" for i in range(180)]
    (tmp_path / "tagged.tsv").write_text("".join(rows))
    values = tomllib.loads(MOODS)
    values |= dict(task="token_classifier")
    values["data"] = dict(format="tagged", train="tagged.tsv")
    values["data"]["hold_out"] = dict(validation=0.2, test=0.2)
    values.pop("task_options", None)
    recipe = Recipe.from_dict(values)
    parts = [*read_training(recipe, tmp_path), read_test(recipe, tmp_path, "test")]
    assert sum(map(len, parts)) == 180 and all(parts)
    sentences = [{tuple(words) for words, _ in part} for part in parts]
    assert sum(map(len, sentences)) == 60


@pytest.mark.parametrize(
    "count,most", [(12, 5), (7, 3), (50, 13), (10, 4), (30, None), (9, 1)]
)
def test_the_end_has_no_more_than_is_asked_for(moods, tmp_path, count, most):
    rows = [f"{i}\t{['sad', 'glad'][i % 2]}\n" for i in range(count)]
    (tmp_path / "moods.tsv").write_text("".join(rows))
    held = {"validation": 0.3, "test": 0.45, "by": "end"}
    held |= {} if most is None else {"at_most": most}
    recipe = moods(data={"hold_out": held})
    parts = [*read_training(recipe, tmp_path), read_test(recipe, tmp_path, "test")]
    assert [text for part in parts for text, _ in part] == list(map(str, range(count)))
    sizes = [len(part) for part in parts[1:]]
    if most is None:
        assert sizes == pytest.approx([0.3 * count, 0.45 * count], abs=1)
    else:
        assert max(sizes) <= most and (most > 0.3 * count or sizes == [most, most])


@pytest.mark.parametrize("side", [1, 5])  # the label is no text
def test_a_side_that_examples_have_not_is_named(moods, tmp_path, side):
    hold_out = {"validation": 0.3, "side": side}
    with pytest.raises(DataError, match=f"side: expected .* below 1.*Received: {side}"):
        read_training(moods(data={"hold_out": hold_out}), tmp_path)


def test_what_best_needs_is_asked_of_different_targets(moods, tmp_path):
    """The first two rows may be of one class, of which no score says much."""
    recipe = moods(
        training={"epochs": 1, "best": "val_roc_auc", "score_validation": True},
        data={"train": "pairs.tsv", "validation": "pairs.tsv", "columns": [0, 1, 2]},
    )
    rows = [f"aaa\tbbb\t{i // 4}\n" for i in range(8)]
    (tmp_path / "pairs.tsv").write_text("".join(rows))
    recipe = dataclasses.replace(
        recipe, task="pair_scorer", task_options={"output_activation": "sigmoid"}
    )
    training.train(recipe, tmp_path, tmp_path / "out")
