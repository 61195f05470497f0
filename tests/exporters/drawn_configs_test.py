"""Any config computes the same in Keras, in ONNX and in a SavedModel.

    KZOO_EXAMPLES=300 pytest -n 0 tests/exporters/drawn_configs_test.py

draws more of them.
"""

import os
import runpy
import tempfile
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.strategies import COMPILES, few, model_configs

SCRIPT = Path(__file__).parents[2] / "export" / "matrix.py"
MATRIX = SimpleNamespace(**runpy.run_path(str(SCRIPT)))
ALIKE = "positions", "max_sequence_length", "num_segments"
EXAMPLES = int(os.environ.get("KZOO_EXAMPLES", "0"))


@st.composite
def tasks(draw):
    """The name of a task and any config for it."""
    config = draw(model_configs())
    both = config.architecture == "encoder_decoder"
    stacks = [(config.encoder, config.decoder)] if both else []
    alike = all(
        getattr(a, name) == getattr(b, name) for a, b in stacks for name in ALIKE
    )
    names = [
        name
        for name, kind in MATRIX.TASKS.items()
        if config.architecture in kind.architectures
        and (name != "MaskedLM" or config.mask_token_id is not None)
        and (name == "Seq2SeqLM" or alike)
    ]
    return draw(st.sampled_from(names)), config


def rounding(task):
    """How far outputs move when each weight is the float next to it, on either side.

    Where that is much, as with attention that is nearly a choice, two right programs
    differ by more than the tolerance, too, and such a config shows nothing.
    """
    variables = task.named_variables().values()
    weights = [(v, np.array(keras.ops.convert_to_numpy(v))) for v in variables]
    random = np.random.default_rng(0)

    def moved(_, inputs):
        tensors = {k: keras.ops.convert_to_tensor(v) for k, v in inputs.items()}
        try:
            for variable, values in weights:
                side = random.choice(np.float32([-np.inf, np.inf]), values.shape)
                variable.assign(np.nextafter(values, side))
            outputs = task.named_outputs(tensors)
            return {k: keras.ops.convert_to_numpy(v) for k, v in outputs.items()}
        finally:
            for variable, values in weights:
                variable.assign(values)

    return MATRIX.forward_difference(task, moved, np.random.default_rng(1))


def check(name, config, form, functions=None):
    keras.utils.set_random_seed(0)  # an example fails again with the same weights
    task = MATRIX.perturbed(MATRIX.TASKS[name](config, **MATRIX.OWN.get(name, {})))
    assume(not rounding(task) >= MATRIX.TOLERANCE / 10)  # what is NaN is looked at
    with tempfile.TemporaryDirectory() as folder:
        MATRIX.check(task, form, Path(folder), functions)


@given(tasks(), st.booleans())
@settings(max_examples=EXAMPLES or few(6), deadline=None, derandomize=True)
def test_onnx_of_any_config_computes_what_keras_does(task, low_memory):
    low_memory &= hasattr(MATRIX.TASKS[task[0]], "generate") and not COMPILES
    form = "onnx low_memory" if low_memory else "onnx"
    check(*task, form, ["forward"] if COMPILES else None)


@pytest.mark.tensorflow
@given(tasks())
@settings(max_examples=EXAMPLES or 2, deadline=None, derandomize=True)
def test_a_saved_model_of_any_config_computes_what_keras_does(task):
    check(*task, "tf_saved_model", ["forward"])
