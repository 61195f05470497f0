"""Windows and the last positions: what only long inputs show is verified with them."""

import dataclasses

import numpy as np
import pytest

import kzoo
from kzoo.exporters import ExportError, verify
from kzoo.exporters.genai import function_of
from kzoo.exporters.onnx import names_of, write
from kzoo.exporters.signatures import LONG
from tests.harness import perturb

SMALL = dict(num_layers=1, hidden_dim=16, intermediate_dim=32, num_heads=2)
SMALL |= dict(vocabulary_size=29, tie_head=False)


def make(kind=kzoo.CausalLM, **changes):
    model = kind.from_size("tiny", None, **SMALL | changes)
    perturb(model.named_variables().values())
    return model


def with_decoder(model, **changes):
    """A model of the same weights and another config of its decoder."""
    decoder = dataclasses.replace(model.config.decoder, **changes)
    other = type(model)(dataclasses.replace(model.config, decoder=decoder))
    other.set_weights(model.get_weights())
    return other


def functions_of(model):
    return {f.name: f for f in (*model.stepwise_functions(), *model.export_functions())}


def lengths(function):
    """The lengths of the long case by input; empty where there is none."""
    case = function.cases(np.random.default_rng(0)).get(LONG, {})
    return {k: x.shape[1] for k, x in case.items() if np.ndim(x) == 2 and x.size > 1}


@pytest.fixture(scope="module")
def windowed():
    """A window of 50 tokens changes nothing in cases of 40."""
    return make(positions="rotary", attention_window=50)


@pytest.fixture(scope="module")
def without(windowed, tmp_path_factory):
    """Files of the same weights that lack the window, and say nothing of it."""
    other = with_decoder(windowed, attention_window=None)
    path = tmp_path_factory.mktemp("windows") / "without"
    functions, options = functions_of(other).values(), dict(opset=None, portable=False)
    write(list(functions), names_of(other), path, metadata={}, **options)
    return path


@pytest.mark.parametrize("function", ["forward", "generate", "prefill", "step"])
def test_files_without_the_window_differ(windowed, without, function):
    with pytest.raises(ExportError, match=f"{function}, {LONG}.*differs by"):
        verify(without / f"{function}.onnx", windowed)


def test_a_window_is_verified(windowed, tmp_path):
    report = windowed.export(tmp_path / "model", format="onnx", functions="forward")
    assert report.checks[-1]["case"] == LONG and report.notes == []
    other = with_decoder(windowed, attention_window=None)
    with pytest.raises(ExportError, match="attention_window.*50.*None"):
        verify(tmp_path / "model", other)
    with pytest.raises(ExportError, match="attention_window.*50.*None"):
        verify(tmp_path / "model" / "forward.onnx", other)


def test_cases_are_as_long_as_a_window_or_the_positions_need():
    def needed(**changes):
        model = make(**changes)
        found = [lengths(f) for f in functions_of(model).values() if f.name != "step"]
        every = [*found, lengths(function_of(model))]
        return {n for each in every for n in each.values()}, model.unexercised()

    assert needed(positions="rotary", attention_window=50) == ({56, 57, 58}, [])
    assert needed(positions="rotary", attention_window=4) == (set(), [])
    assert needed(positions="learned", max_sequence_length=60) == ({58, 59, 60}, [])
    lengths_found, notes = needed(positions="rotary", attention_window=4096)
    assert lengths_found == set()
    assert "attention window of 4096 tokens is beyond kzoo's own cases" in notes[0]
    lengths_found, notes = needed(positions="learned", max_sequence_length=2000)
    assert max(lengths_found) == 1024
    assert "Learned positions from 1024 on are beyond" in notes[0]


def test_the_report_names_the_window_that_nothing_exercised(tmp_path):
    model = make(positions="rotary", attention_window=4096)
    path = tmp_path / "model.onnx"
    report = model.export(path, format="onnx", functions="forward")
    assert "attention window of 4096" in str(report)
    assert "attention window of 4096" in str(verify(path, model))


def test_the_last_learned_positions_are_read(tmp_path):
    """Of each stack, in `forward` and in what reads a prompt."""
    sizes = dict(positions="learned", max_sequence_length=44)
    translator = make(kzoo.Seq2SeqLM, **sizes)
    forward, generate = translator.export_functions()
    assert lengths(forward) == dict(encoder_token_ids=44, decoder_token_ids=44)
    assert lengths(generate) == dict(encoder_token_ids=44)
    path = tmp_path / "forward.onnx"
    translator.export(path, format="onnx", functions="forward")
    table = translator.encoder.position_embedding.variables[0]
    changed = np.array(table)
    changed[-1, 0] += 1
    table.assign(changed)
    with pytest.raises(ExportError, match=LONG):
        verify(path, translator)
