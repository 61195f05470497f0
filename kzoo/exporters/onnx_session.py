"""ONNX files in onnxruntime: sessions, and functions from numpy to numpy."""

import atexit
import ctypes
import functools
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np

from kzoo.exporters.errors import ExportError
from kzoo.ops.onnx_value import onnx_dtype

EXTENSIONS = "ai.onnx.contrib"  # the domain of onnxruntime-extensions


def open_session(path, prepacked=False):
    """An onnxruntime session on the CPU.

    Args:
        path: of the file.
        prepacked: whether weights are brought into the order that is multiplied
            fastest, as they are where a file is served.

    Raises:
        ExportError: no such file, or onnxruntime cannot run it.
    """
    import onnxruntime

    if not Path(path).is_file():
        raise ExportError(f"No ONNX file at {path}.")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # Threads that wait for more work in a loop would take the cores from Keras.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if not prepacked:  # copies of the weights would double the memory of a short check
        options.add_session_config_entry("session.disable_prepacking", "1")
        # Meanwhile Keras computes, for longer.
        options.intra_op_num_threads = max(1, (os.cpu_count() or 2) // 2)
    providers = ["CPUExecutionProvider"]

    def opened():
        try:
            return onnxruntime.InferenceSession(str(path), options, providers=providers)
        except Exception as error:  # onnxruntime's errors have no common base class
            raise ExportError(f"onnxruntime cannot run {path}: {error}") from error

    try:
        return opened()
    except ExportError as error:
        if EXTENSIONS not in str(error):
            raise
    try:
        options.register_custom_ops_library(text_operators())
    except ExportError as error:
        raise ExportError(f"{path} reads or writes text. {error}") from error
    return opened()


def open_sessions(paths):
    """Sessions as they are served: of a dict of paths, one under each of its keys."""
    return {name: open_session(path, prepacked=True) for name, path in paths.items()}


def text_operators():
    """The library of the operators by which an ONNX file reads and writes text.

    It is onnxruntime-extensions' own, bound to itself. That brings a SentencePiece and
    a protobuf; loaded after TensorFlow, it takes TensorFlow's, which are of other
    versions, and the process crashes where a file with a SentencePiece model is opened.
    Call this before anything else in the process registers the library. A process
    without TensorFlow can register `onnxruntime_extensions.get_library_path()`.

    Example:
        >>> options = onnxruntime.SessionOptions()
        >>> options.register_custom_ops_library(kzoo.exporters.text_operators())
        >>> session = onnxruntime.InferenceSession("out/generate.onnx", options)

    Returns:
        The path of a file that is there as long as the process.

    Raises:
        ExportError: onnxruntime-extensions is not installed.
    """
    try:
        import onnxruntime_extensions
    except ImportError as error:
        raise ExportError(
            "The operators are those of onnxruntime-extensions, which is not "
            'installed: pip install "kzoo[text]".'
        ) from error
    return _bound_to_itself(onnxruntime_extensions.get_library_path())


@functools.cache
def _bound_to_itself(library):
    """A copy of a library that reads its own symbols; what is loaded stays as it is."""
    if not hasattr(os, "RTLD_DEEPBIND"):
        return library
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    copy = shutil.copy(library, folder.name)
    ctypes.CDLL(copy, os.RTLD_NOW | os.RTLD_DEEPBIND)
    return copy


def runner(function, session, options=None):
    """A function from a dict of numpy inputs to a dict of numpy outputs.

    Args:
        function: the `Function` that is in the session.
        session: of onnxruntime.
        options: dict of numbers that the file reads beside the function's inputs.
    """
    options = {name: np.array(value) for name, value in (options or {}).items()}
    arguments = {
        a.name: object if a.dtype == "string" else onnx_dtype(a.dtype)
        for a in function.arguments
    }
    outputs = [output.name for output in session.get_outputs()]

    def run(inputs):
        feed = {name: np.asarray(v, arguments[name]) for name, v in inputs.items()}
        try:
            values = session.run(outputs, {**feed, **options})
        except Exception as error:  # onnxruntime's errors have no common base class
            shapes = {name: value.shape for name, value in feed.items()}
            raise ExportError(
                f"onnxruntime fails in {function.name} on inputs of the shapes "
                f"{shapes}: {error}"
            ) from error
        return dict(zip(outputs, values, strict=True))

    return run


def metadata_in(session, path):
    """What a file says of itself, a dict of strings; see `metadata_of`.

    Raises:
        ExportError: it cannot be read.
    """
    try:
        return session.get_modelmeta().custom_metadata_map
    except UnicodeDecodeError as error:
        raise ExportError(
            f"{path}: its metadata should be in UTF-8: {error}. Export the model again."
        ) from error


def takes_text(session):
    """Whether a function of text is in a session."""
    return any(given.type == "tensor(string)" for given in session.get_inputs())
