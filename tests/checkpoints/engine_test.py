"""How weights go from files to variables: what is read, how often, and what is held."""

import collections
import weakref

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from kzoo.checkpoints import engine
from kzoo.checkpoints.files import TensorFiles, open_tensors
from kzoo.families import family_of
from tests.parity.parity_test import written


class Variable:
    dtype = "float32"

    def __init__(self, shape):
        self.shape = shape

    def assign(self, array):
        assert array.shape == self.shape


@pytest.fixture
def read(monkeypatch):
    """Of every read: the tensor's name, and how many arrays of others were held."""
    reads, held = [], []
    plain = TensorFiles.read

    def counted(self, name, start=None, stop=None):
        reads.append((name, sum(array() is not None for array in held)))
        array = plain(self, name, start, stop)
        held.append(weakref.ref(array))
        return array

    monkeypatch.setattr(TensorFiles, "read", counted)
    return reads


COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")


def t5(tmp_path, **changes):
    """T5's checkpoint with all copies of its table, and what its parts need."""
    written("t5", tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    table = tensors["shared.weight"]
    tensors |= {name: table.copy() for name in (*COPIES, "lm_head.weight")} | changes
    save_file(tensors, path)
    return table


def shapes_of(folder):
    import kzoo

    task = kzoo.from_preset(folder)
    return task.config, {
        path: tuple(variable.shape) for path, variable in task.named_variables().items()
    }


def test_copies_are_compared_in_one_pass_and_one_source_is_held_at_a_time(
    tmp_path, read
):
    t5(tmp_path)
    config, shapes = shapes_of(tmp_path)
    family, tied = family_of("t5"), "encoder/token_embedding/embeddings"
    assert config.tie_head and tied in shapes
    del read[:]
    with open_tensors(tmp_path) as tensors:
        assert not engine.has_own_head(family, "Seq2SeqLM", tensors, config)
        variables = {path: Variable(shape) for path, shape in shapes.items()}
        engine.load_weights(family, "Seq2SeqLM", variables, tensors, config, tied)
    counted = collections.Counter(name for name, _ in read)
    # To compare the head, to compare the copies, and to be set.
    assert counted.pop("shared.weight") == 3
    assert set(counted.values()) == {1}
    compared = {*COPIES, "lm_head.weight"}
    assert {name for name, held in read if held} <= compared
    assert max(held for _, held in read) <= 2


@pytest.mark.parametrize("rows", [1, 7, 10_000])
def test_a_copy_that_differs_in_its_last_row_is_found(rows, tmp_path, monkeypatch):
    table = t5(tmp_path)
    monkeypatch.setattr(engine, "_STEP", rows * table[0].nbytes)
    other = table.copy()
    other[-1, -1] += 1
    config, _ = shapes_of(tmp_path)
    t5(tmp_path, **{COPIES[1]: other})
    with pytest.raises(ValueError, match=f"{COPIES[1]} differs from shared.weight"):
        shapes_of(tmp_path)
    t5(tmp_path, **{"lm_head.weight": np.ascontiguousarray(other)})
    assert not shapes_of(tmp_path)[0].tie_head
