"""`prefill` and `step`: what a server calls, token by token, gives `generate`."""

import re
from typing import get_args

import numpy as np
import onnxruntime
import pytest

import kzoo
from kzoo.config import Positions
from kzoo.exporters import ExportError, verify
from tests.harness import perturb, to_numpy

SMALL = dict(num_layers=2, hidden_dim=16, intermediate_dim=32, num_heads=4)
STEPS = ("prefill", "step")
PROMPTS = [[5, 6, 7, 8, 9], [11], [22, 21, 20]]


def make(kind, **changes):
    changes = SMALL | dict(tie_head=False) | changes
    model = kind.from_size("tiny", vocabulary_size=29, **changes)
    perturb(model.named_variables().values())
    return model


def streamed(prefill, step, prompts, count):
    """Greedy search over functions of dicts of arrays; lists of ids without the end."""
    longest = max(map(len, prompts))
    rows = np.array([row + [0] * (longest - len(row)) for row in prompts])
    state = prefill(rows)
    kept = {name: x for name, x in state.items() if not name.startswith("present_")}
    kept.pop("logits")
    tokens = []
    for _ in range(count):
        tokens.append(state["logits"].argmax(axis=-1))
        past = {
            name.replace("present_", "past_"): x
            for name, x in state.items()
            if name.startswith("present_")
        }
        state = step({"tokens": tokens[-1], **past, **kept})
    rows = np.stack(tokens, axis=1).tolist()
    return [row[: row.index(2)] if 2 in row else row for row in rows]


def check_stream(model, run):
    """The tokens of `run(function name, inputs)`, which must be `generate`'s."""
    found = streamed(
        lambda rows: run("prefill", {model.prompt_input: rows}),
        lambda feed: run("step", feed),
        PROMPTS,
        10,
    )
    pad = model.config.pad_token_id  # which `generate` leaves out
    found = [[token for token in row if token != pad] for row in found]
    assert found == model.generate(PROMPTS, max_new_tokens=10)
    return found


@pytest.mark.usefixtures("remembered")
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (kzoo.CausalLM, dict(positions="learned", num_key_value_heads=2)),
        (kzoo.Seq2SeqLM, dict(positions="relative", num_key_value_heads=1)),
    ],
)
def test_onnx_steps_give_what_generate_gives(tmp_path, kind, changes):
    model, path = make(kind, **changes), tmp_path / "model"
    options = dict(format="onnx", functions=STEPS, overwrite=True)
    for portable in (False, True):
        report = model.export(path, portable=portable, **options)
        assert set(report.functions) == set(STEPS)
        sessions = {
            name: onnxruntime.InferenceSession(path / f"{name}.onnx") for name in STEPS
        }

        def run(name, feed, sessions=sessions):
            names = [output.name for output in sessions[name].get_outputs()]
            return dict(zip(names, sessions[name].run(None, feed)))

        (prompt,) = sessions["prefill"].get_inputs()
        assert prompt.name == model.prompt_input
        found = check_stream(model, run)
        assert len({token for row in found for token in row}) > 1


@pytest.mark.usefixtures("quick", "remembered")
@pytest.mark.parametrize(
    "changes",
    [
        *(dict(positions=kind) for kind in get_args(Positions)),
        dict(positions="rotary", attention_window=3, windowed_layers=(0,)),
        dict(positions="rotary", rotary_dim=2, num_key_value_heads=1),
    ],
)
def test_rows_join_another_batch_and_leave_it(tmp_path, changes):
    """Each with a number of its own of places before it, and with more, then fewer."""
    model = make(kzoo.CausalLM, **changes)
    model.export(tmp_path, format="onnx", functions=STEPS, overwrite=True)
    sessions = {
        name: onnxruntime.InferenceSession(tmp_path / f"{name}.onnx") for name in STEPS
    }

    def run(name, feed):
        names = [output.name for output in sessions[name].get_outputs()]
        return dict(zip(names, sessions[name].run(None, feed)))

    def prefilled(rows):
        ids = np.array([row + [0] * (max(map(len, rows)) - len(row)) for row in rows])
        return run("prefill", {"token_ids": ids})

    def moved(state, padding, more):
        """A cache behind so many more places, or fewer, and what stands before rows."""
        places = ((0, 0), (0, 0), (max(more, 0), 0), (0, 0))
        past = {
            name.replace("present", "past"): np.pad(x, places)[:, :, max(-more, 0) :]
            for name, x in state.items()
            if name.startswith("present")
        }
        return past, padding + more

    def check(rows, past, padding):
        tokens = np.arange(8, 8 + len(rows))
        state = run("step", {"tokens": tokens, "padding": padding, **past})
        rows = [[*row, token] for row, token in zip(rows, tokens.tolist())]
        for row, logits in zip(rows, state["logits"], strict=True):
            expected = to_numpy(model({"token_ids": np.array([row])}))[0, -1]
            np.testing.assert_allclose(logits, expected, atol=2e-5)
        return rows, state

    others = [[21, 9, 19, 7, 12, 7, 25, 3, 14], [17, 18]]
    few, many = prefilled(PROMPTS), prefilled(others)
    more = len(others[0]) - max(map(len, PROMPTS))
    past, padding = moved(few, few["padding"], more)
    joined = moved(many, many["padding"], 0)
    past = {name: np.concatenate([x, joined[0][name]]) for name, x in past.items()}
    padding = np.concatenate([padding, joined[1]])
    assert len(np.unique(padding)) == 5
    rows, state = check([*PROMPTS, *others], past, padding)

    stay = [1, 2]  # the longest ones leave
    state = {name: x[stay] for name, x in state.items()}
    past, padding = moved(state, padding[stay], -int(padding[stay].min()))
    check([rows[i] for i in stay], past, padding)


@pytest.mark.tensorflow
@pytest.mark.parametrize("kind", [kzoo.CausalLM, kzoo.Seq2SeqLM])
def test_saved_model_steps_give_what_generate_gives(saved, kind):
    import tensorflow as tf

    model, path, _ = saved(kind)
    signatures = tf.saved_model.load(str(path)).signatures

    def run(name, feed):
        dtypes = {"tokens": "int32", model.prompt_input: "int32"}
        feed = {k: tf.constant(v, dtypes.get(k)) for k, v in feed.items()}
        return {k: v.numpy() for k, v in signatures[name](**feed).items()}

    found = check_stream(model, run)
    assert len({token for row in found for token in row}) > 1


@pytest.mark.tensorflow
@pytest.mark.parametrize("kind", [kzoo.CausalLM, kzoo.Seq2SeqLM])
def test_a_step_of_other_rows_than_its_cache_is_named(saved, tmp_path, kind):
    """One row would be that of all."""
    import tensorflow as tf

    model, path, _ = saved(kind)
    signatures = tf.saved_model.load(str(path)).signatures
    model.export(tmp_path / "onnx", format="onnx", functions="step")
    session = onnxruntime.InferenceSession(tmp_path / "onnx" / "step.onnx")
    prompts = tf.constant([[5, 6, 7], [8, 9, 0]])
    state = signatures["prefill"](**{model.prompt_input: prompts})
    state.pop("logits")
    feed = {k.replace("present_", "past_"): v.numpy() for k, v in state.items()}
    feed["tokens"] = np.array([5, 6], "int32")
    kept = [["padding"]]
    if kind is kzoo.Seq2SeqLM:
        memory = [name for name in feed if re.match(r"memory_\d", name)]
        kept = [["memory_padding_mask"], memory]
    for names in (["tokens"], *kept):
        wrong = {**feed, **{name: feed[name][:1] for name in names}}
        with pytest.raises(Exception, match="must have as many rows as tokens"):
            signatures["step"](**{k: tf.constant(v) for k, v in wrong.items()})
        wrong = {
            k: v.astype("int64") if v.dtype == "int32" else v for k, v in wrong.items()
        }
        with pytest.raises(Exception, match="must have as many rows as tokens"):
            session.run(None, wrong)


def test_names_and_axes(tmp_path):
    model = make(kzoo.Seq2SeqLM, num_layers=1, num_key_value_heads=2)
    report = model.export(tmp_path / "model", format="onnx", functions=STEPS)
    memory = ["batch", 2, "sequence", 4]
    assert report.functions["prefill"] == {
        "inputs": {"encoder_token_ids": ["tensor(int64)", ["batch", "sequence"]]},
        "outputs": {
            "logits": ["tensor(float)", ["batch", 29]],
            "present_0_key": ["tensor(float)", ["batch", 2, "total_sequence", 4]],
            "present_0_value": ["tensor(float)", ["batch", 2, "total_sequence", 4]],
            "memory_padding_mask": ["tensor(bool)", ["batch", "sequence"]],
            "memory_0_key": ["tensor(float)", memory],
            "memory_0_value": ["tensor(float)", memory],
        },
    }
    step = report.functions["step"]
    assert list(step["inputs"]) == [
        "tokens",
        "past_0_key",
        "past_0_value",
        "memory_padding_mask",
        "memory_0_key",
        "memory_0_value",
    ]
    assert list(step["outputs"]) == ["logits", "present_0_key", "present_0_value"]


def test_an_onnx_folder_holds_them_when_they_are_named(tmp_path):
    model = make(kzoo.CausalLM, num_layers=1)
    path = tmp_path / "all"
    names = ["forward", *STEPS]
    report = model.export(path, format="onnx", functions=names)
    assert set(report.functions) == set(names)
    assert {"weights.bin", "step.onnx", "prefill.onnx"} < set(report.files)
    again = verify(path, model)
    assert set(again.functions) == set(names)
    perturb(model.named_variables().values(), seed=7)
    with pytest.raises(ExportError, match="differs"):
        verify(path, model)


def test_a_task_without_a_search_has_no_steps(tmp_path):
    model = kzoo.TextClassifier.from_size(
        "tiny", vocabulary_size=29, num_classes=2, **SMALL
    )
    with pytest.raises(ExportError, match="functions must be among"):
        model.export(tmp_path / "model", format="onnx", functions="step")
