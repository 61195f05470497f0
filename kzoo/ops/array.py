"""Shapes, indexing, elementwise functions and reductions."""

import collections
import math

import keras
import numpy as np

from kzoo.ops import tensorflow
from kzoo.ops.dispatch import op
from kzoo.ops.onnx_value import ONNX_CODES, OnnxValue, broadcast_shape, onnx_dtype


def shape(x):
    """The shape of `x` as a tuple: an int where an axis is known, else a scalar."""
    if isinstance(x, OnnxValue):
        return tuple(dim(x, axis) for axis in range(x.ndim))
    if keras.backend.backend() == "tensorflow" and keras.ops.is_tensor(x):
        return tensorflow.shape(x)
    return keras.ops.shape(x)


@op
def dim(x, axis):
    """The length of one axis: an int where it is known, else an integer scalar."""
    return shape(x)[axis]


@dim.emits
def _(graph, x, axis):
    return graph.length(x, axis)


def vector(graph, sizes):
    """An int64 vector from ints and integer scalars."""
    if not [size for size in sizes if isinstance(size, OnnxValue)]:
        return graph.constant(np.array(sizes, "int64"))

    def make():
        parts = [
            graph.node("Unsqueeze", size, np.array([0]), shape=(1,))
            if isinstance(size, OnnxValue)
            else graph.constant(np.array([size], "int64"))
            for size in sizes
        ]
        return graph.node("Concat", *parts, shape=(len(sizes),), axis=0)

    return graph.once(
        ("vector", *(getattr(size, "name", size) for size in sizes)), make
    )


def _symbols(graph, sizes):
    """The shape that ints and integer scalars stand for."""
    return tuple(graph.symbol(size) for size in sizes)


@op
def reshape(x, new_shape):
    """Reshapes; sizes are ints, at most one -1, or scalars from `dim`."""
    return keras.ops.reshape(x, new_shape)


reshape.on_tensorflow(tensorflow.reshape)


@reshape.emits
def _(graph, x, new_shape):
    given = _symbols(graph, new_shape)
    new = tuple(_rest(graph, x.shape, given) if size == -1 else size for size in given)
    rows = graph.seen(("rows", x.name)) if new[-1:] == x.shape[-1:] else None
    if rows is not None and given[:-1] == (-1,):
        return rows
    # Lengths known at run time alone may be 0, of an empty buffer, and mean it.
    sizes, zeros = new_shape, {} if -1 in given else {"allowzero": 1}
    if 0 not in new:
        # ONNX's 0 is "as in the input", and one free axis needs no length at all.
        short = [
            0 if isinstance(size, str) and x.shape[i : i + 1] == (size,) else own
            for i, (size, own) in enumerate(zip(given, new_shape))
        ]
        free = [i for i, size in enumerate(short) if isinstance(size, OnnxValue)]
        if len(free) == 1 and -1 not in given:
            short[free.pop()] = -1
        if not free:
            sizes, zeros = short, {}
    y = graph.node("Reshape", x, vector(graph, sizes), shape=new, **zeros)
    if rows is not None:
        graph.remember(("rows", y.name), rows)
    return y


def _rest(graph, old, new):
    """The length that -1 stands for in a new shape, as far as it is known."""
    if None in old or 0 in old or 0 in new:
        return None
    new = [size for size in new if size != -1]
    found = _quotient(old, new)
    if found is None:
        found = _quotient(_factors(graph, old), _factors(graph, new))
    return found


def _quotient(sizes, others):
    """The one length whose product with `others` is that of `sizes`, or `None`."""
    names = collections.Counter(size for size in sizes if isinstance(size, str))
    names.subtract(size for size in others if isinstance(size, str))
    if min(names.values(), default=0) < 0:
        return None
    number = math.prod(size for size in sizes if isinstance(size, int))
    number //= math.prod(size for size in others if isinstance(size, int))
    names = list(names.elements())
    if not names:
        return number
    return names[0] if len(names) == number == 1 else None


def _factors(graph, sizes):
    """Lengths as a list of numbers and names; their product is that of `sizes`."""
    found = []
    for size in sizes:
        made_of = graph.root.factors.get(size)
        found += [size] if made_of is None else _factors(graph, made_of)
    return found


@op
def transpose(x, axes):
    """Permutes the axes."""
    return keras.ops.transpose(x, axes)


transpose.on_tensorflow(tensorflow.transpose)


@transpose.emits
def _(graph, x, axes):
    permuted = tuple(x.shape[axis] for axis in axes)
    return graph.node("Transpose", x, shape=permuted, perm=list(axes))


@op
def expand_dims(x, axis):
    """Inserts an axis of length 1."""
    return keras.ops.expand_dims(x, axis)


@expand_dims.emits
def _(graph, x, axis):
    new = list(x.shape)
    new.insert(axis if axis >= 0 else x.ndim + 1 + axis, 1)
    return graph.node("Unsqueeze", x, np.array([axis]), shape=new)


@op
def broadcast_to(x, new_shape):
    """Repeats axes of length 1 up to `new_shape`."""
    return keras.ops.broadcast_to(x, new_shape)


@broadcast_to.emits
def _(graph, x, new_shape):
    sizes = vector(graph, new_shape)
    return graph.node("Expand", x, sizes, shape=_symbols(graph, new_shape))


@op
def concatenate(xs, axis):
    """Joins along an axis."""
    return keras.ops.concatenate(xs, axis)


@concatenate.emits
def _(graph, xs, axis):
    dtype = next(x.dtype for x in xs if isinstance(x, OnnxValue))
    xs = [graph.lift(x, dtype) for x in xs]
    axis %= xs[0].ndim
    sizes = [x.shape[axis] for x in xs]
    new = list(xs[0].shape)
    free = [size for size in sizes if not isinstance(size, int)]
    new[axis] = None if free else int(np.sum(sizes))
    return graph.node("Concat", *xs, shape=new, axis=axis)


@op
def split(x, sections, axis=-1):
    """Splits into equal parts (an int) or parts of the given sizes (a list).

    In ONNX the sizes may be scalars from `dim`.
    """
    if not isinstance(sections, int) and len(set(sections)) == 1:
        sections = len(sections)  # which is less work on torch
    if not isinstance(sections, int):
        sections = list(np.cumsum(sections)[:-1])
    return keras.ops.split(x, sections, axis)


split.on_tensorflow(tensorflow.split)


@split.emits
def _(graph, x, sections, axis=-1):
    if isinstance(sections, int):
        sections = [x.shape[axis] // sections] * sections
    shapes = []
    for size in sections:
        new = list(x.shape)
        new[axis] = graph.symbol(size)
        shapes.append(new)
    return graph.node(
        "Split",
        x,
        vector(graph, sections),
        shape=shapes,
        dtype=[x.dtype] * len(sections),
        axis=axis,
    )


@op
def slice_axis(x, start, stop, axis):
    """`x[..., start:stop, ...]` along one axis; ints or None."""
    index = [slice(None)] * len(x.shape)
    index[axis] = slice(start, stop)
    return x[tuple(index)]


@slice_axis.emits
def _(graph, x, start, stop, axis):
    new = list(x.shape)
    if isinstance(new[axis], int):
        new[axis] = len(range(*slice(start, stop).indices(new[axis])))
    else:
        new[axis] = -start if start and start < 0 and stop is None else None
    start = 0 if start is None else start
    stop = np.iinfo("int64").max if stop is None else stop
    bounds = (np.array([start]), np.array([stop]), np.array([axis]))
    return graph.node("Slice", x, *bounds, shape=new)


@op
def take(x, indices, axis=0):
    """Rows of `x` by integer indices, along `axis`."""
    return keras.ops.take(x, indices, axis=axis)


@take.emits
def _(graph, x, indices, axis=0):
    x, indices = graph.lift(x), graph.lift(indices)
    new = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    return graph.node("Gather", x, indices, shape=new, axis=axis)


@op
def take_along_axis(x, indices, axis):
    """Elements of `x` picked by `indices` of the same rank, along `axis`."""
    return keras.ops.take_along_axis(x, indices, axis=axis)


take_along_axis.on_tensorflow(tensorflow.take_along_axis)


@take_along_axis.emits
def _(graph, x, indices, axis):
    return graph.node("GatherElements", x, indices, shape=indices.shape, axis=axis)


@op
def members(ids, size):
    """Which of `size` numbers are among each row's: int (R, K) to bool (R, size).

    Negative ids stand for none.
    """
    rows, count = keras.ops.shape(ids)
    ids = keras.ops.where(ids < 0, size, keras.ops.cast(ids, "int32"))
    row = keras.ops.broadcast_to(
        keras.ops.expand_dims(keras.ops.arange(rows, dtype="int32"), 1), (rows, count)
    )
    place = keras.ops.stack([row, ids], axis=-1)
    found = keras.ops.scatter_update(
        keras.ops.zeros((rows, size + 1), "int32"),
        keras.ops.reshape(place, (-1, 2)),
        keras.ops.ones((rows * count,), "int32"),
    )
    return found[:, :size] > 0


@members.emits
def _(graph, ids, size):
    ids = graph.lift(ids, "int64")
    none = full((dim(ids, 0), size + 1), False, "bool")
    hit = full((dim(ids, 0), dim(ids, 1)), True, "bool")
    place = where(ids < 0, size, ids)
    found = graph.node("ScatterElements", none, place, hit, axis=1)
    return slice_axis(found, 0, size, axis=1)


@op
def cast(x, dtype):
    """Converts the dtype; integers are int64 in ONNX."""
    return keras.ops.cast(x, dtype)


@cast.emits
def _(graph, x, dtype):
    dtype = onnx_dtype(dtype)
    if x.dtype == dtype:
        return x
    return graph.node("Cast", x, dtype=dtype, to=ONNX_CODES[dtype])


def as_bool(mask):
    """A mask as bool, also one of 0 and 1, as other libraries have it; `None` stays.

    Raises:
        ValueError: a mask of floats, which elsewhere is added to scores and means the
            opposite.
    """
    dtype = "bool" if mask is None else keras.backend.standardize_dtype(mask.dtype)
    if dtype == "bool":
        return mask
    if "float" in dtype:
        raise ValueError(
            "A mask must be bool, or 0 and 1 as integers: True where a token is real "
            f"or may be seen. Received: {dtype}. Of a mask that is added to scores "
            "give mask == 0, of one of 0.0 and 1.0 mask != 0."
        )
    return not_equal(mask, 0)


@op
def where(condition, x, y):
    """`x` where the condition holds, else `y`; all broadcast."""
    return keras.ops.where(condition, x, y)


@where.emits
def _(graph, condition, x, y):
    if isinstance(x, OnnxValue):
        y = graph.lift(y, x.dtype)
    elif isinstance(y, OnnxValue):
        x = graph.lift(x, y.dtype)
    condition, x, y = (graph.lift(v) for v in (condition, x, y))
    new = broadcast_shape(condition.shape, broadcast_shape(x.shape, y.shape))
    return graph.node("Where", condition, x, y, shape=new, dtype=x.dtype)


@op
def equal(x, y):
    """Elementwise equality."""
    return keras.ops.equal(x, y)


@equal.emits
def _(graph, x, y):
    return graph.binary("Equal", x, y, dtype="bool")


@op
def not_equal(x, y):
    """Elementwise inequality."""
    return keras.ops.not_equal(x, y)


@not_equal.emits
def _(graph, x, y):
    return graph.node("Not", graph.binary("Equal", x, y, dtype="bool"))


@op(creates=True)
def arange(stop):
    """0, 1, ... stop - 1 as int32 (int64 in ONNX); `stop` is an int or a scalar."""
    return keras.ops.arange(stop, dtype="int32")


@arange.emits
def _(graph, stop):
    if not isinstance(stop, OnnxValue):
        return graph.constant(np.arange(stop))
    return graph.once(
        ("arange", stop.name),
        lambda: graph.node(
            "Range",
            np.array(0),
            stop,
            np.array(1),
            shape=_symbols(graph, [stop]),
            dtype="int64",
        ),
    )


@op(creates=True)
def full(new_shape, value, dtype):
    """A tensor filled with a number; sizes are ints or scalars from `dim`."""
    return keras.ops.full(new_shape, value, dtype)


@full.emits
def _(graph, new_shape, value, dtype):
    dtype = onnx_dtype(dtype)
    filler = graph.constant(np.full((), value, dtype))
    if not new_shape:
        return filler
    return graph.node(
        "Expand", filler, vector(graph, new_shape), shape=_symbols(graph, new_shape)
    )


def _elementwise(name, op_type):
    @op
    def function(x):
        return getattr(keras.ops, name)(x)

    @function.emits
    def _(graph, x):
        return graph.elementwise(op_type, x)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Elementwise {name}."
    return function


exp = _elementwise("exp", "Exp")
log = _elementwise("log", "Log")
sin = _elementwise("sin", "Sin")
erf = _elementwise("erf", "Erf")
tanh = _elementwise("tanh", "Tanh")
sigmoid = _elementwise("sigmoid", "Sigmoid")
relu = _elementwise("relu", "Relu")
absolute = _elementwise("abs", "Abs")
sqrt = _elementwise("sqrt", "Sqrt")


def _extremum(name, op_type, of_ints):
    @op
    def function(x, y):
        if isinstance(x, int) and isinstance(y, int):
            return of_ints(x, y)
        return getattr(keras.ops, name)(x, y)

    @function.emits
    def _(graph, x, y):
        return graph.binary(op_type, x, y)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Elementwise {name} of two numbers or tensors."
    return function


minimum = _extremum("minimum", "Min", min)
maximum = _extremum("maximum", "Max", max)


def _reduced(x, axis, keepdims):
    if axis is None:
        return ()
    new = list(x.shape)
    new[axis] = 1
    return new if keepdims else [s for i, s in enumerate(new) if i != axis % x.ndim]


def _reduction(name, op_type, boolean=False):
    @op
    def function(x, axis=None, keepdims=False):
        return getattr(keras.ops, name)(x, axis=axis, keepdims=keepdims)

    @function.emits
    def _(graph, x, axis=None, keepdims=False):
        axes = None if axis is None else np.array([axis])
        source = cast(x, "int64") if boolean else x
        # opset 17 has ReduceSum's axes as an input, the others' as an attribute
        attribute = graph.root.opset < 18 and op_type != "ReduceSum"
        result = graph.node(
            op_type,
            source,
            *([] if attribute else [axes]),
            shape=_reduced(x, axis, keepdims),
            keepdims=int(keepdims),
            **({"axes": [axis]} if attribute and axis is not None else {}),
        )
        # Of no elements onnxruntime's is the type's last number, below or above 0.
        return result > 0 if boolean else result

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Reduces by {name} along one axis, or over all."
    return function


sum = _reduction("sum", "ReduceSum")
max = _reduction("max", "ReduceMax")
mean = _reduction("mean", "ReduceMean")
any = _reduction("any", "ReduceMax", boolean=True)
all = _reduction("all", "ReduceMin", boolean=True)


@op
def cumsum(x, axis):
    """Running sum along an axis."""
    return keras.ops.cumsum(x, axis=axis)


@cumsum.emits
def _(graph, x, axis):
    return graph.node("CumSum", x, np.array(axis))
