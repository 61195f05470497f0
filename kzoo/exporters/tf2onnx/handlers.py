"""What tf2onnx lacks of the operators that Keras emits, or writes wrongly."""

import numpy as np

from kzoo.exporters.errors import ExportError

# Of `onnx.TensorProto`, which is loaded for an export only.
FLOAT, UINT8, INT32, INT64, STRING, BOOL, DOUBLE, UINT64 = 1, 2, 6, 7, 8, 9, 11, 13
REAL = (FLOAT, DOUBLE)
OTHER_INTEGERS = (3, 4, 5, 12, 13)  # int8, uint16, int16, uint32, uint64


def erfc(graph, node, dtype, shape):
    """Writes `erfc(x)` as `1 - erf(x)`: exact GELU, since TensorFlow writes it so."""
    erf = _emit(graph, "Erf", [node.input[0]], dtype, shape)
    return _emit(graph, "Sub", [_number(graph, 1, dtype), erf], dtype, shape)


def dynamic_update_slice(graph, node, dtype, shape):
    """Writes `keras.ops.slice_update`; the start is clamped so that the update fits.

    Axis by axis: what lies before, the rows of the update (the next axis decides what
    they become), what lies after.
    """
    x, update, starts = node.input
    shape, update_shape = graph.get_shape(x), graph.get_shape(update)
    if shape is None or update_shape is None:
        raise ExportError("slice_update of a tensor of unknown rank")
    rank = len(shape)
    sizes = _emit(graph, "Shape", [x], INT64, [rank])
    lengths = _emit(graph, "Shape", [update], INT64, [rank])
    starts = _emit(graph, "Cast", [starts], INT64, [rank], to=INT64)
    last = _emit(graph, "Sub", [sizes, lengths], INT64, [rank])
    starts = _emit(graph, "Min", [starts, last], INT64, [rank])
    zeros = _constant(graph, np.zeros(rank, np.int64))
    starts = _emit(graph, "Max", [starts, zeros], INT64, [rank])
    ends = _emit(graph, "Add", [starts, lengths], INT64, [rank])

    def pick(vector, axis):
        where = _constant(graph, np.array([axis], np.int64))
        return _emit(graph, "Gather", [vector, where], INT64, [1], axis=0)

    # An axis that the update fills leaves nothing before or after it.
    free = [
        axis
        for axis in range(rank)
        if not 0 <= shape[axis] == update_shape[axis]  # -1 is unknown
    ]

    def updated(rows, depth):
        if depth == len(free):
            return update
        axis = free[depth]
        begin, end = pick(starts, axis), pick(ends, axis)
        middle = rows
        if depth + 1 < len(free):
            middle = _cut(graph, rows, axis, begin, end)
        before = _cut(graph, rows, axis, 0, begin)
        after = _cut(graph, rows, axis, end, 2**31 - 1)
        parts = [before, updated(middle, depth + 1), after]
        return _emit(graph, "Concat", parts, dtype, [-1] * rank, axis=axis)

    return updated(x, 0)


def select(graph, node, dtype, shape):
    """Writes `where` as `Where`; tf2onnx adds products with 0 and 1.

    Where the branch that is not taken is infinite or NaN, so is its product with 0.
    """
    condition, x, y = node.input
    if node.type == "Select":  # TensorFlow 1: a vector picks whole rows
        rank = graph.get_rank(x) if graph.get_rank(y) is None else graph.get_rank(y)
        given = graph.get_rank(condition)
        if rank is None and given in (None, 1):
            raise ExportError("Select of tensors of unknown rank")
        if given == 1 and rank > 1:
            axes = _constant(graph, np.arange(1, rank))
            condition = _emit(graph, "Unsqueeze", [condition, axes], BOOL)
        elif given is None and rank > 1:
            raise ExportError("Select by a condition of unknown rank")
    return _where(graph, condition, x, y, dtype, shape)


def floor_div(graph, node, dtype, shape):
    """Writes `x // y`; `Div` of integers rounds towards 0, as tf2onnx leaves it.

    The quotient is one less where the remainder of `Div` and that of `Mod`, which has
    the sign of the divisor, differ.
    """
    x, y = node.input
    wide = dtype if dtype in (*REAL, UINT64, INT32, INT64) else INT64
    x, y = _cast(graph, x, dtype, wide), _cast(graph, y, dtype, wide)
    value = _emit(graph, "Div", [x, y], wide, shape)
    if dtype in REAL:
        return _emit(graph, "Floor", [value], dtype, shape)
    if dtype == UINT64:
        return value
    product = _emit(graph, "Mul", [value, y], wide, shape)
    rest = _emit(graph, "Sub", [x, product], wide, shape)
    modulus = _emit(graph, "Mod", [x, y], wide, shape)
    same = _emit(graph, "Equal", [rest, modulus], BOOL, shape)
    less = _emit(graph, "Not", [same], BOOL, shape)
    less = _emit(graph, "Cast", [less], wide, shape, to=wide)
    value = _emit(graph, "Sub", [value, less], wide, shape)
    return _cast(graph, value, wide, dtype)


def floor_mod(graph, node, dtype, shape):
    """Writes `x % y`, which has the sign of `y`.

    `Mod` of integers is that. tf2onnx writes `x - floor(x / y) * y`, with a `Div` of
    integers that rounds towards 0; among floats it gives 0 for `1 % 0.1` and NaN for
    `5 % inf`, where TensorFlow's remainder is exact.
    """
    x, y = node.input
    if dtype not in REAL:
        return _emit(graph, "Mod", [x, y], dtype, shape)
    zero = _number(graph, 0, dtype)
    rest = _emit(graph, "Mod", [x, y], dtype, shape, fmod=1)  # the sign of x
    below = _emit(graph, "Less", [rest, zero], BOOL, shape)
    above = _emit(graph, "Greater", [rest, zero], BOOL, shape)
    minus = _emit(graph, "Less", [y, zero], BOOL, graph.get_shape(y))
    plus = _emit(graph, "Not", [minus], BOOL, graph.get_shape(y))
    below = _emit(graph, "And", [below, plus], BOOL, shape)
    above = _emit(graph, "And", [above, minus], BOOL, shape)
    apart = _emit(graph, "Or", [below, above], BOOL, shape)
    moved = _emit(graph, "Add", [rest, y], dtype, shape)
    return _emit(graph, "Where", [apart, moved, rest], dtype, shape)


def one_hot(graph, node, dtype, shape):
    """Writes `one_hot` as a comparison with each class; `OneHot` wraps negative ids.

    tf2onnx refuses whatever but float32 where the ids are no vector.
    """
    ids, depth, on, off = node.input
    axis = node.get_attr_value("axis", -1)
    given, rank = graph.get_dtype(ids), graph.get_rank(ids)
    if axis != -1 and rank is None:
        raise ExportError("one_hot of a tensor of unknown rank")
    ids = _cast(graph, ids, given, INT64)
    where = _constant(graph, np.array([axis]))
    ids = _emit(graph, "Unsqueeze", [ids, where], INT64)
    zero, one = _constant(graph, np.int64(0)), _constant(graph, np.int64(1))
    depth = _emit(graph, "Cast", [depth], INT64, [], to=INT64)
    classes = _emit(graph, "Range", [zero, depth, one], INT64, [-1])
    if axis != -1 and axis < rank:
        after = _constant(graph, np.arange(1, rank - axis + 1))
        classes = _emit(graph, "Unsqueeze", [classes, after], INT64)
    equal = _emit(graph, "Equal", [ids, classes], BOOL, shape)
    return _where(graph, equal, on, off, dtype, shape)


def comparison(graph, node, dtype, shape):
    """Compares integers as they are, in `x > y` and `x < y`; tf2onnx makes float32s.

    Those tell no two integers beyond 2 ** 24 apart.
    """
    x, y = (_ordered(graph, x) for x in node.input)
    return _emit(graph, node.type, [x, y], BOOL, shape)


def top_k(graph, node, name, args):
    """Ranks integers and float64 as they are, as sorts do; tf2onnx makes float32s."""
    x, k = node.input
    dtype, places = graph.get_dtype(x), graph.get_dtype(node.output[1])
    shapes = [graph.get_shape(output) for output in node.output]
    k = _emit(graph, "Cast", [k], INT64, [], to=INT64)
    k = _emit(graph, "Unsqueeze", [k, _constant(graph, np.array([0]))], INT64, [1])
    ordered = _ordered(graph, x)
    outputs, kinds = list(node.output), (graph.get_dtype(ordered), INT64)
    graph.remove_node(name)
    top = graph.make_node(
        "TopK",
        [ordered, k],
        output_count=2,
        dtypes=kinds,
        shapes=shapes,
        name=_name("TopK"),
    )
    found = top.output[0]
    if ordered != x:
        picked = [x, top.output[1]]
        found = _emit(graph, "GatherElements", picked, dtype, shapes[0], axis=-1)
    _give(graph, found, outputs[0], dtype, shapes[0], name)
    found = _cast(graph, top.output[1], INT64, places)
    _give(graph, found, outputs[1], places, shapes[1], _name("Identity"))


def total(graph, x, axis, dtype):
    """Adds integers up along an axis; onnxruntime's `ReduceSum` does so in float64.

    There sums beyond 2 ** 53 are rounded, and those beyond the dtype's largest number
    are that number, where TensorFlow's wrap around.
    """
    rank = graph.get_rank(x)
    before = np.zeros(2 * rank, np.int64)
    before[axis] = 1  # a zero, for where there is nothing
    x = _emit(graph, "Pad", [x, _constant(graph, before)], dtype, [-1] * rank)
    x = _emit(graph, "CumSum", [x, _constant(graph, axis)], dtype, [-1] * rank)
    return _cut(graph, x, axis, -1, 2**31 - 1)


def product(graph, x, axis, dtype):
    """Multiplies integers along an axis, pair by pair; `ReduceProd` rounds, too."""
    shape = graph.get_shape(x)
    size = shape[axis]
    if size < 1:
        raise ExportError("prod of integers along an axis of free length")
    while size > 1:
        half = size // 2
        pair = (_cut(graph, x, axis, n, n + half) for n in (0, half))
        pairs = _emit(graph, "Mul", [*pair], dtype, [-1] * len(shape))
        if size % 2:
            pairs = [pairs, _cut(graph, x, axis, size - 1, size)]
            pairs = _emit(graph, "Concat", pairs, dtype, [-1] * len(shape), axis=axis)
        x, size = pairs, size - half
    return x


def segment_sum(graph, node, name, args):
    """Has nothing added for negative ids, which tf2onnx counts from the end."""
    from tf2onnx.onnx_opset.reduction import SegmentSum

    data, ids, count = node.input
    dtype, given = graph.get_dtype(data), graph.get_dtype(ids)
    shape = graph.get_shape(data)
    if graph.get_rank(ids) != 1 or shape is None:
        raise ExportError("segment_sum by ids that are no vector")
    first = _number(graph, 0, given)
    negative = _emit(graph, "Less", [ids, first], BOOL, [-1])
    if len(shape) > 1:
        axes = _constant(graph, np.arange(1, len(shape)))
        negative = _emit(graph, "Unsqueeze", [negative, axes], BOOL)
    data = _where(graph, negative, _number(graph, 0, dtype), data, dtype, shape)
    ids = _emit(graph, "Max", [ids, first], given, [-1])
    graph.replace_inputs(node, [data, ids, count])
    SegmentSum.any_version(graph.opset, graph, node)


def rewrite_signbit(graph, ops):
    """Rewrites how `keras.ops.argmax` reads a float's sign bit, to tell -0 from 0.

    `Bitcast` to an integer and `BitwiseAnd` with the sign mask becomes
    `where(x < 0 or 1 / x < 0, mask, 0)`. Equal but for a NaN with a sign, which
    argmax treats like any other. Another use of `Bitcast` stays, and is refused.
    """
    masks = {FLOAT: -(2**31), DOUBLE: -(2**63)}
    for bitcast in [op for op in ops if op.type == "Bitcast"]:
        x = bitcast.input[0]
        mask = masks.get(graph.get_dtype(x))
        for user in graph.find_output_consumers(bitcast.output[0]):
            if user.type != "BitwiseAnd" or mask is None:
                continue
            other = [n for n in user.inputs if n is not bitcast]
            if not other or not other[0].is_const():
                continue
            if np.any(other[0].get_tensor_value(as_list=False) != mask):
                continue
            real, integer = graph.get_dtype(x), graph.get_dtype(user.output[0])
            shape = graph.get_shape(x)
            zero, one = _number(graph, 0, real), _number(graph, 1, real)
            inverse = _emit(graph, "Div", [one, x], real, shape)
            negative = _emit(graph, "Less", [x, zero], BOOL, shape)
            below = _emit(graph, "Less", [inverse, zero], BOOL, shape)
            either = _emit(graph, "Or", [negative, below], BOOL, shape)
            bits = [_number(graph, value, integer) for value in (mask, 0)]
            bit = _emit(graph, "Where", [either, *bits], integer, shape)
            graph.replace_all_inputs(user.output[0], bit)
            graph.remove_node(user.name)
        if not graph.find_output_consumers(bitcast.output[0]):
            graph.remove_node(bitcast.name)
    return graph.get_nodes()


def _name(stem):
    from tf2onnx import utils

    return utils.make_name(f"kzoo_{stem}")


def _constant(graph, value):
    return graph.make_const(_name("constant"), np.asarray(value)).output[0]


def _number(graph, value, dtype):
    from tf2onnx import utils

    return _constant(graph, np.array(value, utils.map_onnx_to_numpy_type(dtype)))


def _cast(graph, x, dtype, to):
    if dtype == to:
        return x
    return _emit(graph, "Cast", [x], to, graph.get_shape(x), to=to)


def _cut(graph, x, axis, start, stop):
    """`Slice` along an axis; from and to an int, or the name of a vector of one."""
    places = [
        place if isinstance(place, str) else _constant(graph, [place])
        for place in (start, stop, axis)
    ]
    free = [-1] * graph.get_rank(x)
    return _emit(graph, "Slice", [x, *places], graph.get_dtype(x), free)


def _ordered(graph, x):
    """Numbers in the order of `x`, of a dtype that onnxruntime compares."""
    dtype, shape = graph.get_dtype(x), graph.get_shape(x)
    if dtype in REAL:
        return x
    # Whatever the graph says: it may be a loop's own counter, INT64 in the file.
    x = _emit(graph, "Cast", [x], INT64, shape, to=INT64)
    if dtype == UINT64:  # the upper half is negative by now
        x = _emit(graph, "Add", [x, _number(graph, -(2**63), INT64)], INT64, shape)
    return x


def _where(graph, condition, x, y, dtype, shape):
    """`Where`, of what onnxruntime has it for; others go through one that it has."""
    if dtype in (BOOL, *OTHER_INTEGERS):
        wide = UINT8 if dtype == BOOL else INT64
        x, y = _cast(graph, x, dtype, wide), _cast(graph, y, dtype, wide)
        value = _emit(graph, "Where", [condition, x, y], wide, shape)
        return _cast(graph, value, wide, dtype)
    if dtype not in (*REAL, INT32, INT64, UINT8, STRING):
        raise ExportError(f"where of numbers of the ONNX type {dtype}")
    return _emit(graph, "Where", [condition, x, y], dtype, shape)


def _replacing(write):
    """A handler that puts what `write` gives, a value, in the place of its node."""

    def handler(graph, node, name, args):
        dtype, shape = graph.get_dtype(node.output[0]), graph.get_shape(node.output[0])
        value = write(graph, node, dtype, shape)
        graph.remove_node(name)
        _give(graph, value, node.output[0], dtype, shape, name)

    return handler, []


def _give(graph, value, output, dtype, shape, name):
    """Puts a value in the place of an output whose node was removed."""
    known = dict(name=name, dtypes=[dtype], shapes=[shape])
    graph.make_node("Identity", [value], outputs=[output], **known)


def _reducing(along, op_type, least_rank=1):
    """A handler that reduces integers axis by axis, and leaves the rest to tf2onnx."""

    def handler(graph, node, name, args):
        from tf2onnx.onnx_opset.reduction import ReduceOpBase

        x, axes = node.input[0], node.inputs[1]
        dtype, shape = graph.get_dtype(x), graph.get_shape(x)
        exact = dtype in (INT32, INT64) and axes.is_const()
        if not exact or shape is None or len(shape) < least_rank:
            node.type = op_type
            newer = ReduceOpBase.version_18, ReduceOpBase.version_13
            return newer[graph.opset < 18](graph, node)
        axes = np.ravel(axes.get_tensor_value()).astype("int64") % len(shape)
        keep = node.get_attr_value("keep_dims", 0)

        def write(graph, node, dtype, shape):
            value, sizes = x, list(graph.get_shape(x))
            for axis in axes.tolist():
                value, sizes[axis] = along(graph, value, axis, dtype), 1
                graph.set_shape(value, sizes)
            if keep or not axes.size:
                return value
            return _emit(
                graph, "Squeeze", [value, _constant(graph, axes)], dtype, shape
            )

        return _replacing(write)[0](graph, node, name, args)

    return handler, []


def _emit(graph, op_type, inputs, dtype, shape=None, **attributes):
    return graph.make_node(
        op_type,
        inputs,
        attr=attributes,
        dtypes=[dtype],
        shapes=[shape],
        name=_name(op_type),
    ).output[0]


HANDLERS = {
    "Erfc": _replacing(erfc),
    "FloorDiv": _replacing(floor_div),
    "FloorMod": _replacing(floor_mod),
    "Greater": _replacing(comparison),
    "Less": _replacing(comparison),
    "OneHot": _replacing(one_hot),
    # A vector is taken for the sizes of a tensor, which are few and small.
    "Prod": _reducing(product, "ReduceProd", least_rank=2),
    "Select": _replacing(select),
    "SelectV2": _replacing(select),
    "Sum": _reducing(total, "ReduceSum"),
    "TopKV2": (top_k, []),
    "UnsortedSegmentSum": (segment_sum, []),
    "XlaDynamicUpdateSlice": _replacing(dynamic_update_slice),
}
REWRITERS = [rewrite_signbit]
