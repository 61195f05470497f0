"""Where the largest values are: `argmax`, `top_k` and `argsort`."""

import keras

from kzoo.ops import array as ops
from kzoo.ops import tensorflow
from kzoo.ops.accelerator import xla_is_on_cpu
from kzoo.ops.buffers import buffers_grow
from kzoo.ops.dispatch import op


@op
def argmax(x):
    """The first index of the largest value along the last axis, int32.

    With a NaN among the values it is any.
    """

    def at_once():
        if keras.backend.backend() == "tensorflow":
            return tensorflow.argmax(x)
        return keras.ops.cast(keras.ops.argmax(x, axis=-1), "int32")

    if buffers_grow() or not xla_is_on_cpu():
        return at_once()
    # For a CPU, XLA finds a value with vectors, and a place one by one.
    size = ops.dim(x, -1)
    best = keras.ops.max(x, axis=-1, keepdims=True)
    place = keras.ops.where(x >= best, keras.ops.arange(size, dtype="int32"), size)
    place = keras.ops.min(place, axis=-1)
    # A NaN is nowhere; nor is what XLA has rounded otherwise here, see `settled`.
    return keras.ops.cond(keras.ops.all(place < size), lambda: place, at_once)


@argmax.emits
def _(graph, x):
    size = _part(x)
    if not size:
        return _index_of_max(graph, x)
    # The maxima of parts cost a quarter of a place in the whole; it is then sought in
    # the first part with the largest one.
    parts = ops.reshape(x, (ops.dim(x, 0), x.shape[-1] // size, size))
    part = _index_of_max(graph, ops.max(parts, axis=-1))
    pool = _at(graph, parts, ops.expand_dims(part, 1))
    return part * size + _index_of_max(graph, pool)


def _index_of_max(graph, x):
    return graph.node(
        "ArgMax", x, shape=x.shape[:-1], dtype="int64", axis=-1, keepdims=0
    )


@op
def top_k(x, k):
    """The k largest values along the last axis and their int32 indices, sorted.

    Of equal values the one with the lower index comes first. With a NaN it is any.
    """
    if keras.backend.backend() == "torch" and not keras.backend.is_keras_tensor(x):
        values, indices = _top_k_in_order(keras.ops.convert_to_tensor(x), k)
    else:
        values, indices = keras.ops.top_k(x, k, sorted=True)
    return values, keras.ops.cast(indices, "int32")


def _top_k_in_order(x, k):
    """On torch, whose own takes any of equal values, in any order."""
    import torch

    if k not in (0, x.shape[-1]):  # it refuses more than there are
        values, indices = torch.topk(x, k)
        if x.device.type == "meta":  # which has no numbers
            return values, indices
        as_large = ~(x < values[..., -1:])  # a NaN is the largest
        if not bool((as_large.sum(-1) > k).any()):
            indices, order = torch.sort(indices)
            values = values.gather(-1, order)
            values, place = torch.sort(values, descending=True, stable=True)
            return values, indices.gather(-1, place)
    values, indices = torch.sort(x, descending=True, stable=True)
    return values[..., :k], indices[..., :k]


@top_k.emits
def _(graph, x, k):
    everything = isinstance(k, int) and k == x.shape[-1]
    size = None if everything else _part(x)
    if not size:
        return _sort(graph, x, k)
    # Finding the maximum of every part is a quarter of the work of TopK, and the k
    # largest elements are in the k parts with the largest maxima. These stay in order,
    # so that of equal values the first one is still found first.
    rows, count = ops.dim(x, 0), x.shape[-1] // size
    every = ops.reshape(x, (rows, count, size))
    parts = _sort(graph, ops.max(every, axis=-1), ops.minimum(k, count))[1]
    parts = _sort(graph, parts, ops.dim(parts, 1), largest=0)[0]
    pool = _at(graph, every, ops.expand_dims(parts, 2))
    values, place = _sort(graph, ops.reshape(pool, (rows, ops.dim(parts, 1) * size)), k)
    within = graph.binary("Mod", place, size)
    part = ops.take_along_axis(parts, graph.binary("Div", place, size), axis=1)
    return values, part * size + within


def _at(graph, parts, place):
    """Those of the parts (R, C, S) that stand at `place` (R, ..., 1): (R, ..., S)."""
    shape = (*place.shape[:-1], parts.shape[-1])
    return graph.node("GatherND", parts, place, shape=shape, batch_dims=1)


def _part(x):
    """The length of the parts in which `top_k` searches, or `None`: all at once."""
    length = x.shape[-1]
    if x.ndim != 2 or not isinstance(length, int) or length < 1024:
        return None
    sizes = [size for size in range(32, 513) if length % size == 0]
    return min(sizes, key=lambda size: abs(size - 128), default=None)


def _sort(graph, x, k, **options):
    new = (*x.shape[:-1], graph.symbol(k))
    return graph.node(
        "TopK",
        x,
        ops.vector(graph, [k]),
        shape=[new, new],
        dtype=[x.dtype, "int64"],
        axis=-1,
        **options,
    )


@op
def argsort(x):
    """Indices that sort the last axis of an integer tensor ascending; stable."""
    return keras.ops.cast(keras.ops.argsort(x, axis=-1), "int32")


@argsort.emits
def _(graph, x):
    return _sort(graph, x, ops.dim(x, -1), largest=0)[1]
