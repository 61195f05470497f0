"""What of a task can be exported: functions, by name, of a model that is fit for it."""

import keras

from kzoo.exporters import genai
from kzoo.exporters import text as text_form
from kzoo.exporters.errors import ExportError
from kzoo.layers.lora import has_lora


def offered(task, format, text):
    """All functions that a task can export in a format, what serves by default last."""
    if format == "genai":
        return [genai.function_of(task)]
    if text:
        return text_form.offered(task, format)
    steps = getattr(task, "stepwise_functions", list)()
    return [*steps, *task.export_functions()]


def choose(offered, names, single):
    """The functions of these names, in the order of what is offered.

    Args:
        offered: `Function`s.
        names: a name, or several; `None` for all, or for the one of a single file.
        single: whether a file holds one alone.

    Raises:
        ExportError: an unknown name, none, or several of a single file.
    """
    known = {function.name: function for function in offered}
    if names is None:
        names = ["generate" if "generate" in known else "forward"] if single else known
    names = [names] if isinstance(names, str) else list(names)
    unknown = [name for name in names if name not in known]
    if unknown or not names or single and len(names) > 1:
        raise ExportError(
            f"functions must be among {list(known)}"
            f"{', one of them for a single file' if single else ''}. Received: {names}."
        )
    return [function for name, function in known.items() if name in names]


def forward_of(task):
    """A task's `forward`, and the signature and axes that tf2onnx needs of it."""
    function = choose(task.export_functions(), "forward", True)[0]
    signature = {
        a.name: keras.InputSpec(shape=(None,) * len(a.axes), dtype=a.dtype)
        for a in function.arguments
    }
    axes = {a.name: dict(enumerate(a.axes)) for a in function.arguments}
    return function, signature, axes


def called(task):
    """What a task and its classes are called."""
    labels = getattr(task, "labels", None)
    return {"task": type(task).__name__, "labels": labels and list(labels)}


def check_model(task):
    """Raises `ExportError` where no artifact can equal the model as it is now."""
    if not task.built:
        raise ExportError(
            f"{task.name} has no weights yet. Call it once on data, or build() it."
        )
    layers = task._flatten_layers()
    policies = {layer.dtype_policy.name for layer in layers} - {"float32"}
    if any("int" in policy or "float8" in policy for policy in policies):
        raise ExportError(
            f"{task.name} was quantised by Keras to {sorted(policies)}, which no "
            "artifact keeps. Export the model as it was before, with quantize='int8', "
            "'int8_weights' or 'int4'."
        )
    if policies:
        merge = "call merge_lora(), " if any(map(has_lora, layers)) else ""
        raise ExportError(
            f"{task.name} computes in {sorted(policies)}; artifacts compute in "
            "float32, as verification expects. Build the model with dtype='float32', "
            f"{merge}load this one's weights into it, and export that."
        )
    for name in task.broken_weights():
        raise ExportError(f"The weight {name} holds NaN or infinity.")
