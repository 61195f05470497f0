"""Every task x architecture x position kind x norm in both formats, beside Keras.

`export/matrix.py` runs all of the matrix, which takes long. These tests run few cells
of it that together have every pair of its values.
"""

import itertools
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import keras
import numpy as np
import pytest

import kzoo
from kzoo.config import Architecture, Norm, NormPosition, Positions
from kzoo.exporters import ExportError

SCRIPT = Path(__file__).parents[2] / "export" / "matrix.py"
MATRIX = SimpleNamespace(**runpy.run_path(str(SCRIPT)))
CELLS = MATRIX.CELLS
FEW = MATRIX.covering(CELLS, MATRIX.pairs)
# Each task once and every pair of what a stack is.
FEWER = MATRIX.covering(CELLS, lambda cell: MATRIX.pairs(cell[1:]) | {cell.task})
GENERATING = MATRIX.covering(
    [c for c in CELLS if hasattr(MATRIX.TASKS[c.task], "generate")],
    lambda cell: {cell.task, *cell[2:]},
)


def test_the_matrix_has_every_value():
    found = {name: getattr(kzoo.tasks, name) for name in kzoo.tasks.__all__}
    tasks = {name for name, x in found.items() if hasattr(x, "export")}
    kinds = (Architecture, Positions, Norm, NormPosition)
    columns = zip(*CELLS, strict=True)
    assert list(map(set, columns)) == [tasks, *(set(get_args(kind)) for kind in kinds)]


@pytest.mark.parametrize(("cells", "first"), [(FEW, 0), (FEWER, 1)])
def test_few_cells_have_every_pair(cells, first):
    for one, other in itertools.combinations(range(first, 5), 2):
        every = {(cell[one], cell[other]) for cell in CELLS}
        assert {(cell[one], cell[other]) for cell in cells} == every
    assert {cell.task for cell in cells} == {cell.task for cell in CELLS}


# JAX compiles each search, which takes ten times as long as all else.
SLOW = keras.backend.backend() != "tensorflow"


@pytest.mark.usefixtures("greedy")
@pytest.mark.parametrize("cell", FEWER if SLOW else FEW, ids=" ".join)
def test_onnx_computes_what_keras_does(tmp_path, cell):
    MATRIX.check(cell.build(), "onnx", tmp_path, ["forward"] if SLOW else None)


@pytest.mark.tensorflow  # for its time on JAX
@pytest.mark.usefixtures("greedy")
@pytest.mark.parametrize("cell", GENERATING, ids=" ".join)
def test_a_file_of_little_memory_computes_what_keras_does(tmp_path, cell):
    MATRIX.check(cell.build(), "onnx low_memory", tmp_path)


@pytest.mark.tensorflow  # and its graphs of a search take long to trace
@pytest.mark.parametrize("cell", FEWER, ids=" ".join)
def test_a_saved_model_computes_what_keras_does(tmp_path, cell):
    MATRIX.check(cell.build(), "tf_saved_model", tmp_path, ["forward"])


@pytest.mark.tensorflow  # for its time on JAX, as above
@pytest.mark.usefixtures("greedy")
def test_other_numbers_and_tokens_are_noticed(tmp_path):
    task = next(cell for cell in CELLS if cell.task == "Seq2SeqLM").build()
    MATRIX.check(task, "onnx", tmp_path)
    run = MATRIX.opened(tmp_path / "model", "onnx")
    for changed in (False, True):
        random = np.random.default_rng(1)
        forward = MATRIX.forward_difference(task, run, random)
        tokens = MATRIX.token_difference(task, run, "onnx", random)
        assert (forward > 0.01, tokens > 0.01) == (changed, changed)
        MATRIX.perturbed(task)


@pytest.mark.parametrize("form", ["onnx text", "genai"])
def test_forms_that_a_task_has_not_are_refused(tmp_path, form):
    cells = {
        c.task: c for c in CELLS if not MATRIX.has_form(MATRIX.TASKS[c.task], form)
    }
    assert "MaskedLM" in cells and "CausalLM" not in cells
    for name, cell in cells.items():
        with pytest.raises(ExportError, match=name):
            MATRIX.check_form(cell, form, tmp_path)


@pytest.mark.parametrize(("form", "least"), [("onnx text", 1e-8), ("onnx int8", 1e-3)])
def test_a_form_is_as_near_as_its_numbers_are_fine(tmp_path, form, least):
    cell = next(cell for cell in CELLS if cell.task == "TextClassifier")
    assert least < MATRIX.check_form(cell, form, tmp_path) < 1e3 * least
