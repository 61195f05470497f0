"""train: from a file to a model; stopped and run again, the same model."""

import json
import re
import signal
import subprocess
import sys

import pytest
from safetensors.numpy import load_file

from kzoo.cli.settings import _data
from kzoo.config import ModelConfig
from kzoo.tasks import load_task

PAIRS = [("abc def"[i % 7 :] + " x" * (i % 3), "fed" * (1 + i % 4)) for i in range(40)]
PAIRS = [(f"{i} {a}", b) for i, (a, b) in enumerate(PAIRS)]
QUICK = ("--tokenizer", "character", "--tokens-per-batch", "256", "--average", "1")


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS), encoding="utf-8")
    return path


@pytest.fixture
def small(tmp_path):
    """A config file smaller than any named size."""

    def write(architecture, **changes):
        config = ModelConfig.from_size(
            "tiny",
            architecture,
            300,
            num_layers=1,
            hidden_dim=16,
            num_heads=2,
            intermediate_dim=32,
            **changes,
        )
        path = tmp_path / f"{architecture}.json"
        path.write_text(json.dumps(config.to_dict()))
        return path

    return write


@pytest.mark.usefixtures("eager")
def test_a_stopped_training_that_is_run_again_gives_the_same_model(
    run, pairs, small, tmp_path, monkeypatch
):
    arguments = ("train", pairs, "--size", small("encoder_decoder"), *QUICK)
    arguments += ("--validation-share", "0")
    whole = run(*arguments, "--out", tmp_path / "whole", "--epochs", 3)
    assert whole.exit_code == 0, whole.output
    assert "3 epochs, loss" in whole.stdout
    assert "epoch 3/3  loss" in whole.stderr

    # Ctrl-C in the second epoch.
    from kzoo.cli.epochs import EpochLines

    begin = EpochLines.on_epoch_begin

    def interrupt(at):
        def on_epoch_begin(self, epoch, logs=None):
            begin(self, epoch, logs)
            if epoch == at:
                raise KeyboardInterrupt

        return on_epoch_begin

    parts = (*arguments, "--out", tmp_path / "parts", "--epochs", 3)
    for at, after in ((0, "0 whole epochs. It begins"), (1, "1 whole epoch. The")):
        with monkeypatch.context() as patch:
            patch.setattr(EpochLines, "on_epoch_begin", interrupt(at))
            stopped = run(*parts)
        assert stopped.exit_code == 130
        assert f"Stopped after {after}" in stopped.stderr
    assert "with --epochs 1 it makes a model of them" in stopped.stderr
    assert not (tmp_path / "parts" / "config.json").exists()

    again = run(*parts)
    assert again.exit_code == 0
    assert "Going on with the training" in again.stderr
    assert "epoch 1/3" not in again.stderr
    one, other = (
        load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts")
    )
    assert one.keys() == other.keys()
    assert all((one[name] == other[name]).all() for name in one)
    histories = [
        json.loads((tmp_path / name / "history.json").read_text())
        for name in ("whole", "parts")
    ]
    losses = [[(r["epoch"], r["loss"]) for r in h] for h in histories]
    assert losses[0] == losses[1]
    assert (tmp_path / "parts" / "curve.png").stat().st_size > 1000

    more = run(*parts, "--average", 2)
    assert more.exit_code == 2
    assert "the last 1: average can be 1 at most" in more.stderr
    more = run(*parts[:-1], 4, "--average", 2)  # as it is unasked from 8 epochs on
    assert more.exit_code == 0, more.output
    changed = run(*parts[:-1], 4, "--seed", 5)
    assert changed.exit_code == 2
    assert "--seed was 0, now 5" in changed.stderr
    pairs.write_text("other\ttext\n" * 40)
    changed = run(*parts)
    assert "the texts of DATA" in changed.stderr


def test_a_signal_ends_a_training_and_not_python(pairs, small, tmp_path):
    """At whose end the threads of JAX crash where they compile."""
    code = (
        "import atexit, os, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "atexit.register(os.abort)\n"
        "from kzoo.cli import main; main()"
    )
    arguments = ("train", pairs, "--size", small("encoder_decoder"), *QUICK)
    arguments += ("--out", tmp_path / "model", "--epochs", "100000")
    command = [sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            while not process.stderr.readline().startswith("epoch 2/"):
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=120)[1]
        finally:
            process.kill()
    done = len(json.loads((tmp_path / "model" / "history.json").read_text()))
    # The last that its history has may be one whose state was not written any more.
    (stopped,) = re.findall(r"^Error: Stopped after (\d+) whole epoch", said, re.M)
    assert 1 <= int(stopped) and int(stopped) in (done - 1, done)
    assert process.returncode == 130


@pytest.mark.usefixtures("eager")
def test_an_epoch_that_ended_before_its_state_was_written_is_none(
    run, pairs, small, tmp_path, monkeypatch
):
    """Its weights, of which the mean is made, are written first."""
    from kzoo.training import ResumableCheckpoint

    write = ResumableCheckpoint.on_epoch_end

    def interrupt(self, epoch, logs=None):
        if epoch == 1:
            raise KeyboardInterrupt
        write(self, epoch, logs)

    arguments = ("train", pairs, "--size", small("encoder_decoder"), *QUICK)
    arguments += ("--validation-share", "0", "--out")
    assert run(*arguments, tmp_path / "one", "--epochs", 1).exit_code == 0
    with monkeypatch.context() as patch:
        patch.setattr(ResumableCheckpoint, "on_epoch_end", interrupt)
        stopped = run(*arguments, tmp_path / "two", "--epochs", 2)
    assert "Stopped after 1 whole epoch. " in stopped.stderr
    assert run(*arguments, tmp_path / "two", "--epochs", 1).exit_code == 0
    one, two = (load_file(tmp_path / n / "model.safetensors") for n in ("one", "two"))
    assert all((one[name] == two[name]).all() for name in one)


@pytest.mark.usefixtures("eager")
def test_a_first_try_that_failed_does_not_stand_in_the_way(
    run, refused, pairs, small, tmp_path
):
    out = tmp_path / "out"
    command = ("train", pairs, "--size", small("encoder_decoder"), *QUICK)
    command += ("--out", out, "--epochs", 1, "--warmup", 1)
    line = refused(*command, "--tokenizer", "bpe", "--vocabulary-size", 60)
    assert "at least 260" in line
    assert "is not finished" in refused("translate", out, "x")
    diverged = run(*command, "--learning-rate", 1e30)
    assert diverged.exit_code == 2
    *_, line = diverged.stderr.strip().split("\n")
    assert "Error: The training diverged: in epoch 1" in line
    assert not (out / "model.safetensors").exists()
    again = run(*command)
    assert again.exit_code == 0, again.output
    assert "Going on" not in again.stderr
    assert run("translate", out, "x", "--max-new-tokens", 4).exit_code == 0


@pytest.mark.usefixtures("eager")
def test_running_text_makes_a_language_model_that_generates(
    run, small, tmp_path, capsys
):
    book = tmp_path / "book.txt"
    book.write_text("the cat sat on the mat.\n" * 60)
    result = run(
        *("train", book, "--task", "language-model", "--running", "--length", 16),
        *("--size", small("decoder"), "--out", tmp_path / "writer", "--epochs", 1),
        *("--tokens-per-batch", 128),
    )
    assert result.exit_code == 0, result.output
    task = load_task(tmp_path / "writer")
    assert type(task).__name__ == "CausalLM"
    (row,) = json.loads((tmp_path / "writer" / "history.json").read_text())
    assert row["val_loss"] > 0
    assert task.generate("the", max_new_tokens=2) is not None


@pytest.mark.usefixtures("eager")
def test_a_recipe_s_settings_are_named_by_its_keys(
    run, pairs, small, tmp_path, monkeypatch
):
    from kzoo.cli.epochs import EpochLines

    arguments = ("train", pairs, "--size", small("encoder_decoder"), *QUICK)
    arguments += ("--epochs", 2, "--validation-share", 0)
    assert run(*arguments, "--out", tmp_path / "first").exit_code == 0

    begin = EpochLines.on_epoch_begin

    def interrupt(self, epoch, logs=None):
        begin(self, epoch, logs)
        if epoch == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(EpochLines, "on_epoch_begin", interrupt)
    recipe = tmp_path / "first" / "recipe.toml"
    stopped = run("train", recipe, "--out", tmp_path / "second")
    assert stopped.exit_code == 130
    assert "; with epochs = 1 it makes a model of them" in stopped.stderr
    recipe.write_text(f"seed = 5\n{recipe.read_text()}")
    changed = run("train", recipe, "--out", tmp_path / "first")
    assert changed.exit_code == 2
    assert "other settings: seed was 0, now 5." in changed.stderr


def test_a_named_size_wins_over_a_file_of_its_name(refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").write_text("no config")
    (tmp_path / "pairs.tsv").write_text("a\tb\n")
    # It is read as a size, so that the pairs are what is refused.
    line = refused("train", "pairs.tsv", "--size", "tiny", "--out", "new")
    assert "too few to hold out" in line


def test_bad_input_is_refused_before_anything_is_made(
    run, refused, pairs, small, tmp_path, translator
):
    new = ("--out", tmp_path / "new")
    lines = pairs.read_text().splitlines()
    broken = tmp_path / "broken.tsv"
    broken.write_text("\n".join([*lines[:3], "no tab", *lines[3:]]))
    few = tmp_path / "few.tsv"
    few.write_text("a\tb\n")

    def line(*arguments):
        return refused("train", *arguments)

    assert "line 4: expected" in line(broken, *new)
    assert "missing.tsv does not exist" in line(tmp_path / "missing.tsv", *new)
    assert "aaa does not exist" in line("a" * 300, *new)
    assert "write tfds:" in line("multi30k", *new)
    assert "two parallel files. Received: 3" in line(pairs, pairs, pairs, *new)
    assert "one of tiny, mini" in line(pairs, *new, "--size", "huge")
    assert "few.tsv is not a kzoo config" in line(pairs, *new, "--size", few)
    assert "architecture encoder_decoder" in line(
        pairs, *new, "--size", small("decoder")
    )
    assert "expected one of unigram" in line(pairs, *new, "--tokenizer", "words")
    assert "such as 0,1" in line(pairs, *new, "--columns", "0,")
    assert "column numbers from 0" in line(pairs, *new, "--columns", "²,1")
    for columns in ("0", "0,1,2"):
        found = line(pairs, *new, "--columns", columns)
        assert f"those of source and target. Received: {columns}" in found
    assert "--columns: expected one, of texts. Received: 0,1" in line(
        pairs, *new, "--columns", "0,1", "--task", "language-model"
    )
    for option in ("--split", "--validation-split"):
        assert f"{option} is of a folder or a TFDS data set" in line(
            pairs, *new, option, "test"
        )
    assert "--validation and --validation-share" in line(
        pairs, *new, "--validation", pairs, "--validation-share", 0.1
    )
    assert "is what the model learns from. Give --validation-share" in line(
        pairs, *new, "--validation", pairs.parent / "." / pairs.name
    )
    gaps = tmp_path / "gaps.txt"
    gaps.write_text("one\n\ntwo\n")
    assert "line 2 is empty. Running text is read with --running." in line(
        gaps, *new, "--task", "language-model"
    )
    assert "--validation: expected 2 files" in line(
        gaps, few, *new, "--validation", pairs
    )
    recipe = tmp_path / "texts.toml"
    recipe.write_text(f"""
        name = "texts"
        task = "causal_lm"
        data = {{format = "text", train = ["{gaps.name}"]}}
        tokenizer = {{kind = "bpe", vocabulary_size = 300}}
        model = {{size = "tiny"}}
        [training]
        epochs = 1
        tokens_per_batch = 9
        schedule = {{kind = "inverse_square_root", peak = 0.1, warmup_steps = 1}}
    """)
    assert 'is read with format = "running".' in line(recipe, *new, "--data", tmp_path)
    gone = tmp_path / "gone.tsv"
    assert "gone.tsv does not exist" in line(gone, *new, "--validation", gone)
    both = (pairs, few, *new, "--validation", few, "--validation", pairs)
    assert "is what the model learns from" in line(*both)
    assert "Give --validation-split for another part" in line(
        pairs.parent, *new, "--validation", pairs.parent
    )
    short = tmp_path / "short.txt"
    short.write_text("the cat sat on the mat.\n" * 40)
    begun = run(
        *("train", short, "--out", tmp_path / "begun", "--tokenizer", "character"),
        *("--task", "language-model", "--running", "--length", 64),
        *("--size", small("decoder")),
    )
    assert begun.exit_code == 2
    assert "Error: In the validation examples: packed_blocks needs" in begun.stderr
    assert "--running is for" in line(pairs, *new, "--running")
    assert "--length is of --running" in line(pairs, *new, "--length", 16)
    assert "must be positive" in line(pairs, *new, "--learning-rate", 0)
    assert "too few to hold out" in line(few, *new)
    assert "is a file" in line(pairs, "--out", pairs)
    assert "not empty" in line(pairs, "--out", translator)
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_a_process_that_trains_keeps_the_memory_that_a_step_frees():
    code = """
import resource, numpy
from kzoo.cli.console import load_keras

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def step():
    numpy.empty(48 * 2**20, "uint8")[::4096] = 1

def of_some_steps():
    step()
    before = faults()
    for _ in range(20):
        step()
    return faults() - before

load_keras()
given_back = of_some_steps()
load_keras(trains=True)
print(given_back, of_some_steps())
"""
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    given_back, kept = map(int, made.stdout.split())
    assert given_back >= 20 * 24  # a fault for 2 MB at the least
    assert kept <= given_back / 10


@pytest.mark.parametrize(("validation", "left"), [("dev.tsv", False), ("tfds:b", True)])
def test_a_split_is_not_asked_of_a_file_that_validates(validation, left, tmp_path):
    (tmp_path / "dev.tsv").touch()
    said = dict(task="translation", columns=None, running=False, folder=tmp_path)
    said |= dict(data=["tfds:a"], validation=[validation], split="train[:90%]")
    data = _data(said)
    assert data["train"]["split"] == "train[:90%]"
    assert data["validation"]["files"] == [validation]
    assert data["validation"]["split"] == ("train[:90%]" if left else "train")
