"""What an artifact offers: functions with named, typed inputs and outputs."""

import dataclasses
from collections.abc import Callable

import numpy as np

from kzoo import ops

# The case that is as long as a model's positions or window need it, where one is.
LONG = "batch 1, long"


@dataclasses.dataclass(frozen=True)
class Argument:
    """An input of an exported function.

    Args:
        name: as in Keras.
        dtype: `"int32"` (int64 in ONNX), `"float32"`, `"bool"` or `"string"`.
        axes: the names of its free axes, and the lengths of others; `()` for a scalar.
        default: a number or array, used where the runtime lets an input be left out.
    """

    name: str
    dtype: str
    axes: tuple = ()
    default: object = None

    @property
    def shape(self):
        """The axes' lengths, `None` for free ones."""
        return tuple(axis if isinstance(axis, int) else None for axis in self.axes)

    def array(self, inputs):
        """What a dict of inputs holds of it, or its default, as a numpy array."""
        dtype = object if self.dtype == "string" else self.dtype
        return np.asarray(inputs.get(self.name, self.default), dtype)


@dataclasses.dataclass(frozen=True)
class TextForm:
    """How a function of text comes of one of ids.

    Args:
        function: the one of ids.
        read: from numpy inputs of text to that function's, as the task reads text.
        write: from inputs of text and that function's outputs to outputs of text.
    """

    function: "Function"
    read: Callable
    write: Callable


@dataclasses.dataclass(frozen=True)
class Function:
    """One function of an artifact.

    Args:
        name: of the signature, or of the file.
        arguments: its inputs.
        outputs: name to the axes' names; an int is a fixed axis.
        call: from a dict of tensors (or ONNX values) to a dict of outputs; what has a
            default may be missing.
        cases: function of a numpy generator, to dicts of numpy inputs for verification.
        end_token_id: ends the `sequences` among its outputs.
        pad_token_id: fills them.
        text: where it reads text, a `TextForm`.
        given: from numpy inputs of ids to its inputs, where these are others.
        resources: gives what `call` reads beside the task, for a SavedModel to keep.
        task: whose weights `call` reads; with it, JAX compiles a case as one program.
    """

    name: str
    arguments: tuple[Argument, ...]
    outputs: dict
    call: Callable
    cases: Callable
    end_token_id: int | None = None
    pad_token_id: int | None = None
    text: TextForm | None = None
    given: Callable | None = None
    resources: Callable = tuple
    task: object = None

    def computed(self, inputs):
        """What `call` gives, in a graph that ends a run where rows do not go together.

        One row would be broadcast to all. Of floats with the same axes, which are the
        many tensors of one cache, only the first is looked at.
        """
        rows = [a for a in self.arguments if a.axes[:1] == ("batch",)]
        names = [a.name for kind in ("int32", "bool") for a in rows if a.dtype == kind]
        floats = {a.axes: a.name for a in reversed(rows) if a.dtype == "float32"}
        names += floats.values()
        for name in names[1:]:
            ids = inputs[names[0]]
            same = ops.dim(inputs[name], 0) == ops.dim(ids, 0)
            message = f"{name} must have as many rows as {names[0]}"
            inputs = inputs | {names[0]: ops.required(ids, same, message)}
        return self.call(inputs)
