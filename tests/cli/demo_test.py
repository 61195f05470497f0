"""demo, shortened: everything it promises is made and said."""

import json
import math
import time

import keras
import pytest

from kzoo.cli import demo
from kzoo.data import date_pairs
from kzoo.tasks import CausalLM, Seq2SeqLM, load_task
from kzoo.tokenizers import FastTokenizer
from kzoo.zoo import registry, save_preset


@pytest.fixture
def short(monkeypatch):
    for name, value in dict(PAIRS=256, EPOCHS=1, HELD_OUT=8).items():
        monkeypatch.setattr(demo, name, value)


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A preset that says anything, and one that is fine-tuned."""
    tokenizer = FastTokenizer.train(["to be or not"], 40, algorithm="character")
    model = CausalLM.from_size("tiny", tokenizer, num_layers=1)
    (tmp_path / "records").mkdir()
    recipe = '[card]\nexamples = ["to be"]\n[card.options]\nmax_new_tokens = 3\n'
    (tmp_path / "records" / "recipe.toml").write_text(recipe)
    save_preset(model, tmp_path / "presets" / "prince", records=tmp_path / "records")
    texts = [text for pair in date_pairs(200) for text in pair]
    tokenizer = FastTokenizer.train(texts, 200, algorithm="character")
    base = Seq2SeqLM.from_size("tiny", tokenizer, num_layers=1, hidden_dim=32)
    save_preset(base, tmp_path / "presets" / demo.BASE)
    monkeypatch.setattr(registry, "SHIPPED", tmp_path / "presets")
    return model.generate("to be", max_new_tokens=3)


@pytest.mark.usefixtures("greedy")
def test_the_demo_makes_what_its_table_says(run, short, shipped, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a short path, which the table does not break
    result = run("demo", "--out", "a demo")
    assert result.exit_code == 0, result.output
    folder = tmp_path / "a demo"
    formats = ["onnx"]
    if keras.backend.backend() == "tensorflow":
        formats.append("tf_saved_model")
        assert (folder / "saved_model" / "saved_model.pb").is_file()
    summary = json.loads((folder / "demo.json").read_text())
    assert summary["finished"] and summary["training_complete"]
    (answer,) = summary["presets"]  # the other has no examples
    assert (answer["name"], answer["input"]) == ("prince", "to be")
    assert answer["output"] == shipped and "prince" in result.stdout
    assert list(summary["exports"]) == formats
    assert 0 <= summary["exact_match"] <= 1 and summary["held_out"] == 8
    for name in ("attention.png", "curve.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
    for said in ("scored", "verified", "onnx of text", "attention.png", "Now try:"):
        assert said in result.stdout
    assert "kzoo translate 'a demo/model' " in result.stdout
    # One pass over 256 dates teaches nothing, and the demo does not hide it.
    assert "Below the 97%" in result.stderr
    assert load_task(folder / "model").generate("1 May 1999", max_new_tokens=2)


def test_a_slow_machine_ends_the_training_in_time_with_a_small_rate(run):
    from kzoo.cli.epochs import CosineWithinTime

    class Model:
        stop_training = False

        class optimizer:
            learning_rate = None

    rate = CosineWithinTime(1.0, steps=1000, seconds=1e-6)
    rate.set_model(Model)
    rate.on_train_begin()
    rate.on_train_batch_begin(0)
    assert Model.optimizer.learning_rate == 0.0
    rate.on_train_batch_end(0)
    assert Model.stop_training


def test_on_a_slow_machine_the_rate_rises_and_falls_over_the_steps_that_fit(
    monkeypatch,
):
    from kzoo.cli import epochs

    class Model:
        stop_training = False

        class optimizer:
            learning_rate = None

    now = [0.0]
    monkeypatch.setattr(epochs.time, "perf_counter", lambda: now[0])
    rate = epochs.CosineWithinTime(1.0, steps=1000, seconds=230)
    rate.set_model(Model)
    rate.on_train_begin()
    rates = []
    while not Model.stop_training:
        rate.on_train_batch_begin(len(rates))
        rates.append(float(Model.optimizer.learning_rate))
        now[0] += 30 if len(rates) in (1, 5) else 1  # two shapes are compiled
        rate.on_train_batch_end(len(rates))
    assert len(rates) == 173  # 60 + 171 seconds
    # A tenth of 172 steps warms up; the rate is set at every tenth step.
    assert rates[9] <= 0.02 and rates[10] == pytest.approx(10 / 172 / 0.1, rel=0.05)
    assert rates[20] >= 0.99
    # Half of the cosine is where 55 % of the steps are done.
    assert rates[94] == pytest.approx(0.5 * (1 + math.cos(math.pi * 0.47)), rel=0.05)
    assert rates[-1] <= 0.01


def test_the_rate_follows_the_steps_where_time_is_enough():
    from kzoo.cli.epochs import CosineWithinTime

    class Model:
        stop_training = False

        class optimizer:
            learning_rate = None

    rate = CosineWithinTime(2.0, steps=100, seconds=3600, warmup=0.1)
    rate.set_model(Model)
    rate.on_train_begin()
    rates = []
    for step in range(100):
        rate.on_train_batch_begin(step)
        rates.append(Model.optimizer.learning_rate)
        rate.on_train_batch_end(step)
    assert max(rates) == pytest.approx(2.0, rel=1e-3)
    # Half of the cosine at step 55, by hand: cos(pi / 2) = 0.
    assert rates[50] == pytest.approx(1 + 0.17365, rel=1e-3)  # cos(4 / 9 * pi)
    assert rates[0] < 0.5 and rates[-1] < 0.1
    assert not Model.stop_training


def test_a_folder_that_is_not_the_demo_s_is_left_alone(refused, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    assert "is no folder of `kzoo demo`" in refused("demo", "--out", tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize("said", ['{"slides": 3}', "[]", "{", '{"finished": "no"}'])
def test_another_demo_json_makes_no_folder_the_demo_s(refused, tmp_path, said):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "w.bin").write_text("mine")
    (tmp_path / "demo.json").write_text(said)
    assert "is no folder of `kzoo demo`" in refused("demo", "--out", tmp_path)
    assert (tmp_path / "model" / "w.bin").read_text() == "mine"
    assert (tmp_path / "demo.json").read_text() == said


def test_what_a_killed_demo_left_is_gone_and_nothing_else(tmp_path):
    (tmp_path / "demo.json").write_text('{"finished": false}')
    for left in (".kzoo.abcd1234", "model"):
        (tmp_path / left).mkdir()
        (tmp_path / left / "weights.bin").write_text("half")
    (tmp_path / "mine.txt").write_text("mine")
    demo._prepare(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"demo.json", "mine.txt"}


def test_the_limit_counts_the_clock_and_not_the_work():
    from kzoo.cli.epochs import CosineWithinTime

    class Model:
        stop_training = False

    rate = CosineWithinTime(1.0, steps=10, seconds=0.05)
    rate.set_model(Model)
    rate.on_train_begin()
    time.sleep(0.1)  # uses no core
    rate.on_train_batch_end(0)
    assert Model.stop_training
