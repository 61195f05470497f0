"""A symbolic value of an ONNX graph: what ops and operators on it emit, and where."""

import contextlib
import threading

import numpy as np

# TensorProto.DataType of the dtypes that kzoo emits.
ONNX_CODES = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "int32": 6,
    "int64": 7,
    "string": 8,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "uint64": 13,
}

_active = threading.local()


def is_building():
    """Whether a graph is being built on this thread."""
    return bool(getattr(_active, "stack", None))


@contextlib.contextmanager
def emitting_into(graph):
    """Inside, ops on an `OnnxValue` emit into this graph."""
    if not hasattr(_active, "stack"):
        _active.stack = []
    _active.stack.append(graph)
    try:
        yield
    finally:
        _active.stack.pop()


def current_graph():
    """The graph that ops on `OnnxValue` emit into.

    Raises:
        RuntimeError: no graph is being built on this thread.
    """
    if not is_building():
        raise RuntimeError(
            "An op received an OnnxValue outside `with graph.building():`. "
            "OnnxValues only live while their graph is being built."
        )
    return _active.stack[-1]


def onnx_dtype(dtype):
    """The dtype name that an ONNX value of Keras dtype `dtype` has."""
    name = np.dtype(dtype).name if not isinstance(dtype, str) else dtype
    return {"int32": "int64"}.get(name, name)


class OnnxValue:
    """A tensor of the ONNX graph: its name, dtype and what is known of its shape.

    Args:
        name: unique in the whole model, subgraphs included.
        shape: a tuple with an entry for each axis: an int, the name of the scalar that
            is its length (in the graph's `lengths`), or `None`.
        dtype: `"float32"`, `"float16"`, `"int64"`, `"bool"` or `"string"`.
        graph: the `OnnxGraph` that it belongs to.
    """

    __slots__ = ("name", "shape", "dtype", "graph")

    def __init__(self, name, shape, dtype, graph):
        self.name, self.shape, self.dtype = name, tuple(shape), dtype
        self.graph = graph

    def __repr__(self):
        return f"<OnnxValue {self.name} shape={self.shape} dtype={self.dtype}>"

    def __bool__(self):
        raise TypeError(
            f"{self!r} has no value while the graph is being built: use ops.where, "
            "ops.cond or ops.while_loop instead of a Python branch."
        )

    @property
    def ndim(self):
        """The rank."""
        return len(self.shape)


def _node(op_type, dtype=None):
    return lambda graph, x, y: graph.binary(op_type, x, y, dtype=dtype)


def _floor_divide(graph, x, y):
    """The quotient of integers rounded down; ONNX's Div rounds towards zero."""
    multiple = graph.binary("Sub", x, graph.binary("Mod", x, y))
    return graph.binary("Div", multiple, y)


def _not_equal(graph, x, y):
    return graph.node("Not", graph.binary("Equal", x, y, dtype="bool"))


_BOOLS, _INTS, _FLOATS = ("bool",), ("int64",), ("float16", "float32", "float64")
_NUMBERS = _INTS + _FLOATS

# What each operator emits, and for which dtypes: those where Keras's backends agree.
_OPERATORS = {
    "add": (_node("Add"), _NUMBERS),
    "sub": (_node("Sub"), _NUMBERS),
    "mul": (_node("Mul"), _NUMBERS),
    "truediv": (_node("Div"), _FLOATS),  # of ints, some backends give float64
    "floordiv": (_floor_divide, _INTS),
    "mod": (_node("Mod"), _INTS),  # of floats, ONNX has the dividend's sign
    "pow": (_node("Pow"), _NUMBERS),
    "and": (_node("And"), _BOOLS),  # of ints, a bitwise operation
    "or": (_node("Or"), _BOOLS),
    "lt": (_node("Less", "bool"), _NUMBERS),
    "le": (_node("LessOrEqual", "bool"), _NUMBERS),
    "gt": (_node("Greater", "bool"), _NUMBERS),
    "ge": (_node("GreaterOrEqual", "bool"), _NUMBERS),
    "eq": (_node("Equal", "bool"), _BOOLS + _NUMBERS),
    "ne": (_not_equal, _BOOLS + _NUMBERS),
    "neg": (lambda graph, x: graph.node("Neg", x), _NUMBERS),
    "invert": (lambda graph, x: graph.node("Not", x), _BOOLS),
}


def _method(name, reverse=False):
    emit, dtypes = _OPERATORS[name]

    def method(self, *other):
        if self.dtype not in dtypes:
            raise TypeError(
                f"`{name}` is emitted for {', '.join(dtypes)} alone: use ops.cast. "
                f"Received: {self!r}."
            )
        operands = (*other, self) if reverse else (self, *other)
        return emit(current_graph(), *operands)

    return method


for _name in _OPERATORS:
    setattr(OnnxValue, f"__{_name}__", _method(_name))
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or"):
    setattr(OnnxValue, f"__r{_name}__", _method(_name, reverse=True))
OnnxValue.__array_ufunc__ = None  # `array * value` is ours, not an array of values


def broadcast_shape(left, right):
    """What is known of the shape of an elementwise result."""
    rank = max(len(left), len(right))
    left = (1,) * (rank - len(left)) + tuple(left)
    right = (1,) * (rank - len(right)) + tuple(right)
    return tuple(map(_broadcast_length, left, right))


def _broadcast_length(left, right):
    if left == right or right == 1:
        return left
    if left == 1:
        return right
    # A length that is known at run time alone may be 1.
    return next((size for size in (left, right) if isinstance(size, int)), None)


def static(size):
    """A length of a shape where it is a number, else `None`."""
    return size if isinstance(size, int) else None
