"""What an artifact stores beside what the task would: no case reads all of it."""

from pathlib import Path

import numpy as np

from kzoo.exporters.errors import ANOTHER, ExportError
from kzoo.ops.onnx_graph import to_numpy

# Of the largest number. Sums of adapters differ by backends in their last bits, and
# what is rounded to 8 bits may then be a step off.
_TOLERANCE = {"f": 1e-5, "i": 0.02, "u": 0.2}


def check_onnx(path, head, graph, task, inputs=()):
    """Raises `ExportError` where a file stores another number or text than the task's.

    Args:
        path: the file.
        head: what it holds, an `onnx.ModelProto`.
        graph: the `OnnxGraph` of the same function of the task, quantised likewise.
        task: what errors name.
        inputs: names of inputs, whose defaults are none of the task's weights.
    """
    import onnx

    for tensor in head.graph.initializer:
        if tensor.name in graph.initializers and tensor.name not in inputs:
            right = np.asarray(to_numpy(graph.initializers[tensor.name][2]()))
            found = onnx.numpy_helper.to_array(tensor, str(Path(path).parent))
            _compare(f"{path} stores {tensor.name}", found, right, task)


def check_tables(path, task):
    """Raises `ExportError` where a SavedModel has none of the task's tables.

    Args:
        path: of the folder.
        task: the task.
    """
    import tensorflow as tf

    stored = tf.train.load_checkpoint(str(Path(path) / "variables" / "variables"))
    shapes = stored.get_variable_to_shape_map()
    for name, variable in task.named_variables().items():
        alike = [key for key, shape in shapes.items() if shape == [*variable.shape]]
        if not (name.endswith("/embeddings") and alike):
            continue
        right = to_numpy(variable)
        if not any(np.array_equal(stored.get_tensor(key), right) for key in alike):
            raise ExportError(
                f"{path} has no table that equals {name} of {task.name}. {ANOTHER}"
            )


def _compare(what, found, right, task):
    texts = right.dtype.kind in "OUS"
    same = found.shape == right.shape and (texts or found.dtype == right.dtype)
    if same and right.dtype.kind in _TOLERANCE:
        wide = right.astype("float64")
        most = np.max(np.abs(wide), initial=0.0, where=np.isfinite(wide))
        tolerance = _TOLERANCE[right.dtype.kind] * most
        same = np.allclose(found, wide, rtol=0.0, atol=tolerance, equal_nan=True)
    elif same:
        found, right = found.ravel().tolist(), right.ravel().tolist()
        found = [x.decode() if isinstance(x, bytes) else x for x in found]
        same = found == [x.decode() if isinstance(x, bytes) else x for x in right]
    if not same:
        raise ExportError(f"{what} otherwise than {task.name} has it. {ANOTHER}")
