"""Backends: which tests run where.

`KERAS_BACKEND` chooses the backend, TensorFlow by default. On JAX and torch those run
that are `PROMISED` there, or all with `--everything`; where TensorFlow is not the
backend, tests marked `tensorflow` are skipped. `--rows=1` runs each test with one of
its sets of parameters.
"""

import contextlib
import gc
import importlib.metadata
import importlib.util
import os
import tempfile
import zlib
from pathlib import Path
from unittest import mock

import pytest

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # start-up notices of the C++ side
os.environ.setdefault("MPLBACKEND", "agg")  # no window
# JAX: tests compile much and compute little.
_flags = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
if os.environ["KERAS_BACKEND"] == "jax":
    # Halves what is left. XLA ends a process on a flag that it does not know, so it is
    # given to the version that was tried alone.
    if importlib.metadata.version("jaxlib").startswith("0.10."):
        _flags += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", _flags)
# All processes of a run share what JAX has compiled; what is set already is theirs.
# What one of them has half written another compiles itself (`filterwarnings`).
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    _compiled = tempfile.TemporaryDirectory(
        prefix="compiled", ignore_cleanup_errors=True
    )
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _compiled.name
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

# Keras, which reads these variables, and its backend are imported by the processes
# that run tests, not by the one that waits for them.
BACKEND = os.environ["KERAS_BACKEND"]
TESTS = Path(__file__).parent

# Folders and files of the core, whose tests pass on every backend of Keras.
CORE = {
    "architecture_test.py",
    "checkpoints",
    "config_test.py",
    "generation",
    "layers",
    "models",
    "ops",
    "parity",
    "reference_test.py",
    "training",
}
# What is promised on each backend, and what `pytest` runs there; `None` is all.
PROMISED = {
    "tensorflow": None,
    "jax": CORE | {"data", "exporters", "families", "seeds", "tasks", "tokenizers"},
    "torch": CORE,
}[BACKEND]


def pytest_addoption(parser):
    """Adds `--everything` and `--rows`."""
    parser.addoption(
        "--everything",
        action="store_true",
        default=PROMISED is None,
        help="also tests of what is not promised on this backend",
    )
    parser.addoption(
        "--rows",
        type=int,
        help="of each test's sets of parameters at most so many, spread over all",
    )


def pytest_report_header():
    """Names the backend at the top of the report."""
    return f"keras {importlib.metadata.version('keras')} on {BACKEND}"


def pytest_ignore_collect(collection_path, config):
    """Leaves out, before its imports run, what is not promised; named paths stay."""
    if config.getoption("--everything") or collection_path.parent != TESTS:
        return None
    return collection_path.name not in PROMISED or None


def pytest_collection_finish():
    """Spares the collector what lives as long as the tests.

    Tracing makes many objects, and each pass went over those of all the libraries.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 50, 100)


def spread(tests, count):
    """At most `count` of the rows of each test, evenly, and from anywhere the first.

    Args:
        tests: dict of lists of items, by what they are rows of.
        count: int.

    Returns:
        list of items. The same in every process: an offset is of the test's name.
    """
    chosen = []
    for name, rows in tests.items():
        taken = min(count, len(rows))
        offset = zlib.crc32(name.encode())
        chosen += [
            rows[(offset + index * len(rows) // taken) % len(rows)]
            for index in range(taken)
        ]
    return chosen


@pytest.hookimpl(trylast=True)  # when -k has chosen
def pytest_collection_modifyitems(config, items):
    """Skips tests marked `tensorflow` on other backends; leaves rows to `--rows`."""
    if BACKEND != "tensorflow" or not importlib.util.find_spec("tensorflow"):
        for item in items:
            if item.get_closest_marker("tensorflow"):
                item.add_marker(pytest.mark.skip(reason="needs the TensorFlow backend"))
    count = config.getoption("--rows")
    if count is None:
        return
    if count < 1:
        raise pytest.UsageError(f"--rows must be 1 or more. Received: {count}.")
    tests = {}
    for item in items:
        if not item.get_closest_marker("skip"):  # a row that is skipped stands for none
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left = {row for rows in tests.values() for row in rows}
    left -= set(spread(tests, count))
    config.hook.pytest_deselected(items=[item for item in items if item in left])
    items[:] = [item for item in items if item not in left]


@pytest.fixture(scope="session", autouse=True)
def _no_tuning():
    """Pipelines of `tf.data`, Keras's own, too, do not tune themselves.

    The end of an iterator can miss the thread that does, and waits for it: up to a
    minute in TensorFlow 2.21, whenever both cores are busy.
    """
    if BACKEND != "tensorflow":
        return
    import tensorflow as tf

    options, iterator = tf.data.Options(), tf.data.Dataset.__iter__
    options.autotune.enabled = False
    tf.data.Dataset.__iter__ = lambda self: iterator(self.with_options(options))


def _kernels_stay():
    """TensorFlow forgets with each seed how to run every op; a sixth of a test's time.

    What its kernels hold of seeds is of stateful random ops that run op by op: Keras's
    are in functions of tf.data.
    """
    if BACKEND != "tensorflow":
        return contextlib.nullcontext()
    from tensorflow.python import pywrap_tfe

    return mock.patch.object(pywrap_tfe, "TFE_ContextClearCaches")


@pytest.fixture(autouse=True)
def _clean_keras():
    """Every test starts in float32 with the same seed, whatever the one before did."""
    import keras

    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")
    with _kernels_stay():
        keras.utils.set_random_seed(0)
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")


@pytest.fixture
def eager():
    """TensorFlow runs op by op what it would trace: a second less a search, or a fit.

    For tests whose claim is what comes out, not how it is compiled.
    """
    from tests.harness import op_by_op

    with op_by_op():
        yield


@pytest.fixture
def greedy(monkeypatch):
    """Exports verify the first search of theirs alone, as the rest is Keras's time."""
    from kzoo.tasks.exported_generation import ExportsGeneration

    def first(self, generator):
        return dict([next(iter(cases(self, generator).items()))])

    cases = ExportsGeneration._generate_cases
    monkeypatch.setattr(ExportsGeneration, "_generate_cases", first)


@pytest.fixture(scope="module", autouse=True)
def _bounded_caches():
    """Drops what JAX has compiled before Linux has no more maps of memory for it.

    Each program takes several of the 65,530 that a process may have; XLA crashes
    without one.
    """
    yield
    maps = Path("/proc/self/maps")
    if BACKEND != "jax" or not maps.exists():
        return
    if maps.read_bytes().count(b"\n") > 30_000:  # a module adds 6,000 at most
        import jax

        jax.clear_caches()
