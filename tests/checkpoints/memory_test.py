"""How much memory loading takes, by what the system says of this process."""

import ctypes
import gc
from pathlib import Path

import numpy as np
import pytest

import kzoo
from kzoo import tasks
from kzoo.checkpoints.files import open_tensors
from kzoo.families import family_of
from kzoo.layers.blank import blank_weights

STATUS, PEAK = Path("/proc/self/status"), Path("/proc/self/clear_refs")
LIBC = ctypes.CDLL(None)
pytestmark = pytest.mark.skipif(
    not (PEAK.exists() and hasattr(LIBC, "malloc_trim")), reason="needs glibc on Linux"
)

# 120 MB in float32, two thirds of them one table.
KEYS = {
    "model_type": "bert",
    "vocab_size": 40_000,
    "hidden_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "intermediate_size": 4096,
}


def resident(name):
    lines = STATUS.read_text().splitlines()
    return next(int(x.split()[1]) for x in lines if x.startswith(name)) * 1024


def peak_of_loading(folder, dtype):
    """How far loading lifts this process's memory, over the size of the weights."""
    gc.collect()
    LIBC.malloc_trim(0)  # what is free would not count when it is taken again
    PEAK.write_text("5")  # the highest begins here
    before = resident("VmRSS")
    task = kzoo.from_preset(folder, dtype=dtype)
    lifted = resident("VmHWM") - before
    held = sum(
        np.prod(v.shape) * (4 if dtype == "float32" else 2)
        for v in task.named_variables().values()
    )
    assert held > 5e7
    return lifted / held


@pytest.fixture(scope="module", params=["float32", "float16"])
def folders(request, tmp_path_factory):
    """One checkpoint, in Hugging Face's layout and in kzoo's own."""
    path = tmp_path_factory.mktemp(request.param)
    config = family_of("bert").read_config(KEYS)
    with blank_weights():
        task = tasks.MaskedLM(config, dtype=request.param)
    kzoo.CausalLM.from_size("tiny", vocabulary_size=9, dtype="bfloat16")  # first uses
    kzoo.save_hf(task, path / "theirs", "bert")
    task.save_folder(path / "own")
    with open_tensors(path / "theirs") as tensors:
        assert tensors.dtype(next(iter(tensors))) == request.param
    return path


@pytest.mark.parametrize("layout", ["theirs", "own"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_loading_takes_little_more_than_the_model(folders, layout, dtype):
    assert peak_of_loading(folders / layout, dtype) < 1.3
