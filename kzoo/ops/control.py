"""Loops, branches and the buffers that loops fill."""

import keras
import numpy as np

from kzoo.ops import array
from kzoo.ops.buffers import buffers_grow
from kzoo.ops.dispatch import op
from kzoo.ops.onnx_value import OnnxValue, current_graph, is_building


def buffer(shape, axis, capacity, dtype, fill=0):
    """An empty buffer that `append` fills along `axis`.

    Args:
        shape: the sizes; that of `axis` is ignored.
        axis: the one that grows.
        capacity: int, the most that will be appended, where buffers are fixed.
        dtype: of the elements.
        fill: the number that a fixed buffer holds until it is overwritten.
    """
    shape = list(shape)
    shape[axis] = 0 if buffers_grow() else capacity
    return array.full(tuple(shape), fill, dtype)


def append(content, value, index, axis):
    """`content` with `value` behind its first `index` elements along `axis`."""
    if buffers_grow():
        return array.concatenate([content, value], axis)
    start = [0] * len(content.shape)
    start[axis] = index
    return keras.ops.slice_update(content, start, keras.ops.cast(value, content.dtype))


def _flat(state):
    """The leaves of nested dicts, lists and tuples, by the dicts' sorted keys.

    `keras.tree` leaves inner dicts in the order that they were made in on torch, and
    two branches may make them in two.
    """
    if isinstance(state, dict):
        state = [state[name] for name in sorted(state)]
    if isinstance(state, (list, tuple)):
        return [leaf for part in state for leaf in _flat(part)]
    return [state]


def _like(state, leaves):
    """The leaves, an iterator, in the form of a state."""
    if isinstance(state, dict):
        made = {name: _like(state[name], leaves) for name in sorted(state)}
        return {name: made[name] for name in state}
    if isinstance(state, (list, tuple)):
        parts = [_like(part, leaves) for part in state]
        return type(state)(*parts) if hasattr(state, "_fields") else type(state)(parts)
    return next(leaves)


@op
def while_loop(condition, body, state, max_iterations):
    """Repeats `state = body(state)` while `condition(state)`, at most so many times.

    Args:
        condition: function of the state; a bool scalar.
        body: function of the state; a structure like the state. Axes may change length
            where buffers grow.
        state: nested dicts, lists and tuples of tensors; no `None`.
        max_iterations: int or integer scalar.

    Returns:
        The last state.
    """
    flat = _flat(state)

    def unflatten(leaves):
        return _like(state, iter(leaves))

    count = keras.ops.zeros((), "int32")
    limit = keras.ops.cast(max_iterations, "int32")

    def keep_going(i, *leaves):
        return keras.ops.logical_and(i < limit, condition(unflatten(leaves)))

    def step(i, *leaves):
        return (i + 1, *_flat(body(unflatten(leaves))))

    if keras.backend.backend() == "tensorflow" and buffers_grow():
        import tensorflow as tf  # keras.ops.while_loop cannot let shapes change

        flat = [tf.convert_to_tensor(leaf) for leaf in flat]
        free = [tf.TensorShape([None] * leaf.shape.rank) for leaf in flat]
        final = tf.while_loop(
            keep_going, step, [count, *flat], shape_invariants=[count.shape, *free]
        )
    else:
        final = keras.ops.while_loop(keep_going, step, (count, *flat))
    return unflatten(final[1:])


@while_loop.emits
def _(graph, condition, body, state, max_iterations):
    flat = [graph.lift(leaf) for leaf in _flat(state)]

    def unflatten(leaves):
        return _like(state, iter(leaves))

    for leaf in flat:
        array.shape(leaf)  # what is known of it before the loop helps inside
    # What is empty will grow; of the rest only what no iteration changes stays known.
    shapes = [tuple(size or None for size in leaf.shape) for leaf in flat]
    changed = True
    while changed:
        inner = graph.subgraph(loop=True)
        stem = graph.fresh("loop")
        with inner.building():
            inner.input(f"{stem}/iteration", (), "int64")
            inner.input(f"{stem}/continue", (), "bool")
            leaves = [
                inner.input(f"{stem}/{i}", shape, leaf.dtype)
                for i, (shape, leaf) in enumerate(zip(shapes, flat))
            ]
            new = body(unflatten(leaves))
            results = [inner.lift(value) for value in _flat(new)]
            inner.output(inner.lift(condition(new)))
            for value in results:
                inner.output(value)
        kept = [_common(shape, r.shape) for shape, r in zip(shapes, results)]
        shapes, changed = kept, kept != shapes
    return unflatten(
        graph.node(
            "Loop",
            max_iterations,
            condition(unflatten(flat)),
            *flat,
            shape=shapes,
            dtype=[leaf.dtype for leaf in flat],
            body=inner,
        )
    )


def _common(left, right):
    """What two shapes have in common."""
    return tuple(a if a == b else None for a, b in zip(left, right))


@op
def cond(condition, if_true, if_false):
    """The result of one of two functions without arguments; structures are alike.

    A Python bool decides at once; the other function is not called.
    """
    if isinstance(condition, bool):
        return if_true() if condition else if_false()
    return keras.ops.cond(condition, if_true, if_false)


@cond.emits
def _(graph, condition, if_true, if_false):
    branches, results = [], []
    for function in (if_true, if_false):
        inner = graph.subgraph()
        with inner.building():
            results.append(function())
            for value in _flat(results[-1]):
                inner.output(inner.lift(value))
        branches.append(inner)
    pairs = list(zip(*([value for value, _ in b.outputs] for b in branches)))
    final = graph.node(
        "If",
        condition,
        shape=[_common(yes.shape, no.shape) for yes, no in pairs],
        dtype=[yes.dtype for yes, _ in pairs],
        then_branch=branches[0],
        else_branch=branches[1],
    )
    return _like(results[0], iter(final))


def as_scalar(x, dtype="int32"):
    """A number or scalar as a scalar tensor of the dtype (a constant in ONNX)."""
    if isinstance(x, OnnxValue):
        return array.cast(x, dtype)
    if is_building():
        return current_graph().constant(np.asarray(x, dtype))
    return keras.ops.cast(x, dtype)


@op
def required(x, holds, message):
    """`x`, and an error of the runtime where a condition does not hold.

    Args:
        x: a number or a tensor of numbers.
        holds: a bool or a bool scalar.
        message: a sentence; part of the error. Backends but TensorFlow, and
            runtimes that read beyond tables without an error, ignore a tensor's.
    """
    if isinstance(holds, (bool, np.bool_)):
        if not holds:
            raise ValueError(message)
    elif keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.control_dependencies([tf.debugging.Assert(holds, [message])]):
            return tf.identity(x)
    return x


@required.emits
def _(graph, x, holds, message):
    # ONNX has no assertion: where it does not hold, this reads beyond a table of one
    # number, 0, and the runtime names the node.
    place = array.where(holds, 0, 1)
    none = graph.node(
        "Gather", np.zeros(1, x.dtype), place, shape=(), dtype=x.dtype, stem=message
    )
    return x + none
