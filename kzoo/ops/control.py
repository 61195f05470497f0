"""Loops, branches and the buffers that loops fill."""

import contextlib
import contextvars

import keras
import numpy as np

from kzoo.ops import array
from kzoo.ops.dispatch import op
from kzoo.ops.onnx_graph import OnnxValue, current_graph, is_building

_fixed = contextvars.ContextVar("fixed_buffers", default=None)


@contextlib.contextmanager
def fixed_buffers(fixed=True):
    """Inside, buffers have their full capacity from the start, as XLA needs."""
    token = _fixed.set(fixed)
    try:
        yield
    finally:
        _fixed.reset(token)


def buffers_grow():
    """Whether a buffer is as long as its content.

    So it is wherever shapes may change inside a loop: the content is then copied at its
    own length rather than at the buffer's capacity. JAX, and XLA under TensorFlow,
    compile for one shape and use fixed buffers.
    """
    if is_building():
        return True
    fixed = _fixed.get()
    return keras.backend.backend() != "jax" if fixed is None else not fixed


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
    flat = keras.tree.flatten(state)

    def unflatten(leaves):
        return keras.tree.pack_sequence_as(state, list(leaves))

    count = keras.ops.zeros((), "int32")
    limit = keras.ops.cast(max_iterations, "int32")

    def keep_going(i, *leaves):
        return keras.ops.logical_and(i < limit, condition(unflatten(leaves)))

    def step(i, *leaves):
        return (i + 1, *keras.tree.flatten(body(unflatten(leaves))))

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
    flat = [graph.lift(leaf) for leaf in keras.tree.flatten(state)]

    def unflatten(leaves):
        return keras.tree.pack_sequence_as(state, list(leaves))

    inner = graph.subgraph(loop=True)
    stem = graph.fresh("loop")
    with inner.building():
        inner.input(f"{stem}/iteration", (), "int64")
        inner.input(f"{stem}/continue", (), "bool")
        leaves = [
            inner.input(f"{stem}/{i}", (None,) * leaf.ndim, leaf.dtype)
            for i, leaf in enumerate(flat)
        ]
        new = body(unflatten(leaves))
        inner.output(condition(new))
        for value in keras.tree.flatten(new):
            inner.output(inner.lift(value))
    final = graph.node(
        "Loop",
        graph.lift(max_iterations),
        condition(unflatten(flat)),
        *flat,
        outputs=len(flat),
        shape=[(None,) * leaf.ndim for leaf in flat],
        dtype=[leaf.dtype for leaf in flat],
        body=inner,
    )
    return unflatten(final if isinstance(final, list) else [final])


@op
def cond(condition, if_true, if_false):
    """The result of one of two functions without arguments; structures are alike."""
    return keras.ops.cond(condition, if_true, if_false)


@cond.emits
def _(graph, condition, if_true, if_false):
    branches, results = [], []
    for function in (if_true, if_false):
        inner = graph.subgraph()
        with inner.building():
            results.append(function())
            for value in keras.tree.flatten(results[-1]):
                inner.output(inner.lift(value))
        branches.append(inner)
    values = [value for value, _ in branches[0].outputs]
    final = graph.node(
        "If",
        condition,
        outputs=len(values),
        shape=[(None,) * value.ndim for value in values],
        dtype=[value.dtype for value in values],
        then_branch=branches[0],
        else_branch=branches[1],
    )
    final = final if isinstance(final, list) else [final]
    return keras.tree.pack_sequence_as(results[0], final)


def as_scalar(x, dtype="int32"):
    """A number or scalar as a scalar tensor of the dtype (a constant in ONNX)."""
    if isinstance(x, OnnxValue):
        return array.cast(x, dtype)
    if is_building():
        return current_graph().constant(np.asarray(x, dtype))
    return keras.ops.cast(x, dtype)


def map_structure(function, structure):
    """`function` of every tensor in nested dicts, lists and tuples."""
    return keras.tree.map_structure(function, structure)
