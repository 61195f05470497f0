"""What an artifact offers: functions with named, typed inputs and outputs."""

import dataclasses
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Argument:
    """An input of an exported function.

    Args:
        name: as in Keras.
        dtype: `"int32"` (int64 in ONNX), `"float32"` or `"bool"`.
        axes: the names of its axes, all free; `()` for a scalar.
        default: of a scalar, used where the runtime lets an input be left out.
    """

    name: str
    dtype: str
    axes: tuple = ()
    default: object = None


@dataclasses.dataclass(frozen=True)
class Function:
    """One function of an artifact.

    Args:
        name: of the signature, or of the file.
        arguments: its inputs.
        outputs: name to the axes' names; an int is a fixed axis.
        call: from a dict of tensors (or ONNX values) to a dict of outputs.
        cases: function of a numpy generator, to dicts of numpy inputs for verification.
        end_token_id: ends the `sequences` among its outputs.
        pad_token_id: fills them.
    """

    name: str
    arguments: tuple[Argument, ...]
    outputs: dict
    call: Callable
    cases: Callable
    end_token_id: int | None = None
    pad_token_id: int | None = None
