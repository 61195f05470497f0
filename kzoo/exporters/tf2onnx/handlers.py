"""What tf2onnx lacks of the operators that Keras emits."""

import numpy as np

from kzoo.exporters.errors import ExportError


def erfc(graph, node, name, args):
    """Writes `erfc(x)` as `1 - erf(x)`: exact GELU, since TensorFlow writes it so."""
    from tf2onnx import utils

    dtype, shape = graph.get_dtype(node.output[0]), graph.get_shape(node.output[0])
    one = _constant(graph, np.ones((), utils.map_onnx_to_numpy_type(dtype)))
    erf = _emit(graph, "Erf", [node.input[0]], dtype, shape)
    graph.remove_node(node.name)
    graph.make_node(
        "Sub",
        [one, erf],
        outputs=node.output,
        name=name,
        dtypes=[dtype],
        shapes=[shape],
    )


def dynamic_update_slice(graph, node, name, args):
    """Writes `keras.ops.slice_update`; the start is clamped so that the update fits.

    Axis by axis: what lies before, the rows of the update (the next axis decides what
    they become), what lies after.
    """
    from onnx import TensorProto

    x, update, starts = node.input
    dtype = graph.get_dtype(node.output[0])
    shape, update_shape = graph.get_shape(x), graph.get_shape(update)
    if shape is None or update_shape is None:
        raise ExportError("slice_update of a tensor of unknown rank")
    graph.remove_node(name)
    int64 = TensorProto.INT64
    rank = len(shape)
    sizes = _emit(graph, "Shape", [x], int64, [rank])
    lengths = _emit(graph, "Shape", [update], int64, [rank])
    starts = _emit(graph, "Cast", [starts], int64, [rank], to=int64)
    last = _emit(graph, "Sub", [sizes, lengths], int64, [rank])
    starts = _emit(graph, "Min", [starts, last], int64, [rank])
    zeros = _constant(graph, np.zeros(rank, np.int64))
    starts = _emit(graph, "Max", [starts, zeros], int64, [rank])
    ends = _emit(graph, "Add", [starts, lengths], int64, [rank])

    def pick(vector, axis):
        where = _constant(graph, np.array([axis], np.int64))
        return _emit(graph, "Gather", [vector, where], int64, [1], axis=0)

    def cut(rows, begin, end, axis):
        where = _constant(graph, np.array([axis], np.int64))
        return _emit(graph, "Slice", [rows, begin, end, where], dtype, [-1] * rank)

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
            middle = cut(rows, begin, end, axis)
        before = cut(rows, _constant(graph, np.zeros(1, np.int64)), begin, axis)
        after = cut(rows, end, _constant(graph, np.array([2**31 - 1])), axis)
        parts = [before, updated(middle, depth + 1), after]
        return _emit(graph, "Concat", parts, dtype, [-1] * rank, axis=axis)

    graph.make_node(
        "Identity",
        [updated(x, 0)],
        outputs=node.output,
        name=name,
        dtypes=[dtype],
        shapes=[shape],
    )


def rewrite_signbit(graph, ops):
    """Rewrites how `keras.ops.argmax` reads a float's sign bit, to tell -0 from 0.

    `Bitcast` to an integer and `BitwiseAnd` with the sign mask becomes
    `where(x < 0 or 1 / x < 0, mask, 0)`. Equal but for a NaN with a sign, which
    argmax treats like any other. Another use of `Bitcast` stays, and is refused.
    """
    from onnx import TensorProto
    from tf2onnx import utils

    masks = {TensorProto.FLOAT: -(2**31), TensorProto.DOUBLE: -(2**63)}
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
            real_type = utils.map_onnx_to_numpy_type(real)
            integer_type = utils.map_onnx_to_numpy_type(integer)
            zero = _constant(graph, np.zeros((), real_type))
            one = _constant(graph, np.ones((), real_type))
            boolean = TensorProto.BOOL
            inverse = _emit(graph, "Div", [one, x], real, shape)
            negative = _emit(graph, "Less", [x, zero], boolean, shape)
            below = _emit(graph, "Less", [inverse, zero], boolean, shape)
            either = _emit(graph, "Or", [negative, below], boolean, shape)
            bit = _emit(
                graph,
                "Where",
                [
                    either,
                    _constant(graph, np.asarray(mask, integer_type)),
                    _constant(graph, np.zeros((), integer_type)),
                ],
                integer,
                shape,
            )
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
    "Erfc": (erfc, []),
    "XlaDynamicUpdateSlice": (dynamic_update_slice, []),
}
REWRITERS = [rewrite_signbit]
