"""Attention by heads: its cache, its mask, and the rotation of query and key."""

import functools
import operator

import keras
import numpy as np

from kzoo.ops import array as ops
from kzoo.ops.control import append
from kzoo.ops.dispatch import op
from kzoo.ops.nn import matmul, softmax

# Far below any score, and still finite when a position bias is added in float32.
MASKED = -1e9


def soft_capped(x, cap):
    """`cap * tanh(x / cap)`: x where it is small, never beyond the cap.

    Paper: Gemma 2, 2024, https://arxiv.org/abs/2408.00118, section 2.
    """
    return ops.tanh(x * (1.0 / cap)) * cap


def split_heads(x, num_heads):
    """(B, T, N*H) to (B, N, T, H)."""
    batch, length, width = ops.shape(x)
    x = ops.reshape(x, (batch, length, num_heads, width // num_heads))
    return ops.transpose(x, (0, 2, 1, 3))


def merge_heads(x):
    """(B, N, T, H) to (B, T, N*H)."""
    x = ops.transpose(x, (0, 2, 1, 3))
    batch, length, num_heads, head_dim = ops.shape(x)
    return ops.reshape(x, (batch, length, num_heads * head_dim))


@op
def memory_heads(x, num_heads):
    """(B, S, N*H) in the form that `attention` reads fastest many times.

    The heads are split, (B, N, S, H), but for ONNX's `Attention`: it reads them in
    place.
    """
    return split_heads(x, num_heads)


@memory_heads.emits
def _(graph, x, num_heads):
    return x if graph.root.opset >= 23 else split_heads(x, num_heads)


def repeat_heads(x, num_heads, num_key_value_heads):
    """(B, K, S, H) to (B, N, S, H): each head N / K times in turn."""
    if num_heads == num_key_value_heads:
        return x
    heads = np.arange(num_heads, dtype="int32") // (num_heads // num_key_value_heads)
    return ops.take(x, heads, axis=1)


@op
def attention(
    query,
    key,
    value,
    mask=None,
    bias=None,
    *,
    num_heads,
    num_key_value_heads,
    scale,
    causal=False,
    cache=None,
    index=0,
    similarity=None,
    soft_cap=None,
    dropout=None,
    return_weights=False,
):
    """softmax(scale * query key^T + bias) value, by heads (Vaswani et al., 2017, 3.2).

    With K < N, each key and value head serves N / K query heads in turn. A query that
    may attend to nothing gives zeros; but one alone with a cache, which sees itself
    unless it is padding, whose output nothing reads, is not looked at.

    Args:
        query: float (B, T, N*H).
        key: float (B, S, K*H), or with the heads split (B, K, S, H).
        value: like `key`.
        mask: bool, broadcastable to (B, N, T, S); `True` = may attend. Its query axis
            is T.
        bias: float, broadcastable to (B, N, T, S), added to the scores.
        num_heads: N.
        num_key_value_heads: K.
        scale: multiplies the scores.
        causal: the mask is exactly the causal one, query t sees keys <= t; for a
            runtime whose kernel knows it.
        cache: earlier keys and values (B, K, P, H) to put `key` and `value` behind.
            In ONNX two more may be in front of them: still earlier keys (B, K, H, P')
            and values (B, K, P', H), which are read where they are, and not in the new
            cache; S counts them, too.
        index: int scalar, how many positions of the cache are filled.
        similarity: a function of query (B, N, T, H) and key (B, N, S, H) to scores
            (B, N, T, S), instead of their dot products.
        soft_cap: bounds the scores, see `soft_capped`; `None` for none.
        dropout: a function applied to the weights.
        return_weights: whether the weights are wanted too.

    Returns:
        float (B, T, N*H); the new cache or `None`; weights (B, N, T, S) or `None`.
    """
    query = split_heads(query, num_heads)
    if len(key.shape) == 3:
        key = split_heads(key, num_key_value_heads)
        value = split_heads(value, num_key_value_heads)
    earlier = ()
    if cache is not None:
        *earlier, keys, values = cache
        key, value = cache = (
            append(keys, key, index, axis=2),
            append(values, value, index, axis=2),
        )
    others = [bias, cache, similarity, soft_cap, dropout]
    if not return_weights and all(x is None for x in others):
        kernel = fused_kernel(query, key, is_masked=mask is not None and not causal)
        if kernel is not None:
            return _fused(kernel, query, key, value, mask, scale, causal), None, None
    query = query * scale if scale != 1.0 else query
    batch, _, length, _ = ops.shape(query)

    def regrouped(x, heads, length):  # heads that share a key lie side by side
        if num_heads == num_key_value_heads:
            return x
        return ops.reshape(x, (batch, heads, length, ops.dim(x, -1)))

    def scored(key, is_turned=False):
        plain = similarity is None
        key = key if is_turned == plain else turned(key)
        if plain:
            return matmul(regrouped(query, num_key_value_heads, -1), key)
        return similarity(query, repeat_heads(key, num_heads, num_key_value_heads))

    scores = scored(key)
    if earlier:
        before = scored(earlier[0], is_turned=True)
        scores = ops.concatenate([before, scores], axis=-1)
    if similarity is None:
        scores = regrouped(scores, num_heads, length)
    if soft_cap is not None:
        scores = soft_capped(scores, soft_cap)
    if bias is not None:
        scores = scores + ops.cast(bias, scores.dtype)
    if mask is not None:
        lowest = -3e4 if "16" in str(scores.dtype) else MASKED  # no overflow
        # The mask is smaller than the scores: a sum is cheaper than a choice.
        scores = scores + ops.cast(ops.where(mask, 0.0, lowest), scores.dtype)
    weights = softmax(scores)
    if mask is not None and not causal and (cache is None or query.shape[2] != 1):
        # A fully masked row is an average by now. Causal rows, and a single query with
        # a cache, are none: they see themselves.
        some = ops.any(mask, axis=-1, keepdims=True)
        weights = weights * ops.cast(some, weights.dtype)
    used = dropout(weights) if dropout else weights
    used = regrouped(used, num_key_value_heads, -1)
    if earlier:
        before, used = ops.split(used, [ops.dim(x, 2) for x in (earlier[1], value)])
        output = matmul(before, earlier[1]) + matmul(used, value)
    else:
        output = matmul(used, value)
    output = regrouped(output, num_heads, length)
    return merge_heads(output), cache, weights if return_weights else None


_decomposed = attention.__wrapped__


def turned(keys):
    """(B, K, S, H) to (B, K, H, S)."""
    return ops.transpose(keys, (0, 1, 3, 2))


def earlier_cache(cache):
    """One layer's cache in the form of the two in front, see `attention`."""
    keys, values = cache
    return turned(keys), values


def joined_cache(earlier, cache):
    """What `earlier_cache` gave, with the entries of a cache behind it."""
    parts = zip(earlier, earlier_cache(cache), (3, 2), strict=True)
    return tuple(ops.concatenate([a, b], axis=axis) for a, b, axis in parts)


def cached_length(cache):
    """How many entries the cache of `attention` holds, or has room for."""
    return functools.reduce(operator.add, (ops.dim(x, 2) for x in cache[1::2]))


def fused_kernel(query, key, is_masked):
    """A kernel that holds no scores in memory, or `None` where there is none.

    It is cuDNN's (Dao et al., 2022, https://arxiv.org/abs/2205.14135), for 16 bits on a
    GPU with the JAX backend.

    Args:
        query: float (B, N, T, H).
        key: float (B, K, S, H).
        is_masked: whether it gets a mask, whose gradient it takes by pairs.

    Returns:
        A function of query (B, T, N, H), key and value (B, S, K, H), with `scale` and
        `is_causal` or a `mask` bool (B or 1, N or 1, T, S), to (B, T, N, H).
    """
    if keras.backend.backend() != "jax" or "16" not in str(query.dtype):
        return None
    import jax

    head_dim, lengths = query.shape[-1], (query.shape[2], key.shape[2])
    if jax.default_backend() != "gpu" or head_dim % 8 or head_dim > 128:
        return None
    if min(lengths) < 128 or is_masked and any(length % 2 for length in lengths):
        return None  # slower at 32 queries and keys, faster at 128
    if float(getattr(jax.devices()[0], "compute_capability", 0)) < 8.0:  # before Ampere
        return None
    return functools.partial(jax.nn.dot_product_attention, implementation="cudnn")


def _fused(kernel, query, key, value, mask, scale, causal):
    """The output of `attention`, from a `fused_kernel`."""
    options, some = {"is_causal": causal}, None
    if mask is not None and not causal:
        mask = ops.reshape(mask, (*(1,) * (4 - len(mask.shape)), *mask.shape))
        pairs = (*mask.shape[:2], query.shape[2], key.shape[2])
        options["mask"] = ops.broadcast_to(mask, pairs)
        some = ops.any(mask, axis=-1)  # (B or 1, N or 1, T or 1)
    heads_last = (ops.transpose(x, (0, 2, 1, 3)) for x in (query, key, value))
    output = kernel(*heads_last, scale=scale, **options)
    if some is not None:
        some = ops.expand_dims(ops.transpose(some, (0, 2, 1)), -1)
        output = output * ops.cast(some, output.dtype)
    batch, length, num_heads, head_dim = ops.shape(output)
    return ops.reshape(output, (batch, length, num_heads * head_dim))


@attention.emits
def _(
    graph,
    query,
    key,
    value,
    mask=None,
    bias=None,
    *,
    num_heads,
    num_key_value_heads,
    scale,
    causal=False,
    cache=None,
    index=0,
    similarity=None,
    soft_cap=None,
    dropout=None,
    return_weights=False,
):
    split = dict(num_heads=num_heads, num_key_value_heads=num_key_value_heads)
    in_parts = cache is not None and len(cache) > 2
    # Runtimes differ in whether `Attention` caps scores before or behind its mask.
    capped = similarity is not None or soft_cap is not None
    if graph.root.opset < 23 or capped or in_parts:
        # By columns: onnxruntime makes a number the product's own (`FusedMatMul`), and
        # multiplies a row then at half the speed.
        if scale != 1.0:
            columns = np.full(query.shape[-1], scale)
            query = query * graph.constant(columns, query.dtype)
        return _decomposed(
            query, key, value, mask, bias, scale=1.0, cache=cache,
            similarity=similarity, soft_cap=soft_cap, return_weights=return_weights,
            **split,
        )  # fmt: skip
    if causal and cache is None:
        mask = None
    allowed = mask
    if bias is not None:
        # One input serves both: with a float mask the kernel averages a fully masked
        # row, so such rows are zeroed behind it.
        mask = bias if mask is None else ops.where(mask, bias, MASKED)
    heads_split = key.ndim == 4
    if heads_split:
        query = split_heads(query, num_heads)
    length_axis = 2 if heads_split else 1
    batch, length = query.shape[0], query.shape[length_axis]
    if mask is not None and mask.shape[-2] == 1 and length != 1:
        mask = _query_rows(graph, mask, query, length_axis)
    graph.tell(value)
    present = [(batch, num_key_value_heads, None, query.shape[-1] // num_heads)] * 2
    weights_shape = (batch, num_heads, length, key.shape[2 if heads_split else 1])
    kinds = {} if heads_split else dict(
        q_num_heads=num_heads, kv_num_heads=num_key_value_heads
    )  # fmt: skip
    if return_weights:
        kinds["qk_matmul_output_mode"] = 3
    count = 4 if return_weights else 3 if cache else 1
    # At a scale of 1 onnxruntime multiplies a single row faster. Keys that were made
    # before a loop are scaled there, once.
    if scale != 1.0 and key.graph.depth < query.graph.depth:
        key = key * scale
    elif scale != 1.0:
        query = query * scale
    output, *others = graph.node(
        "Attention",
        query,
        key,
        value,
        mask,
        *(cache or (None, None)),
        shape=[query.shape, *present, weights_shape][:count],
        dtype=[query.dtype] * count,
        scale=1.0,
        is_causal=int(causal and cache is None),
        **kinds,
    )
    if heads_split:
        output = merge_heads(output)
    weights = others[2] if return_weights else None
    if bias is not None and allowed is not None and (cache is None or length != 1):
        seen = ops.any(allowed, axis=-1)  # (B or 1, N or 1, T or 1)
        by_head = ops.expand_dims(seen, -1)
        if allowed.shape[1] == 1:
            output = ops.where(ops.transpose(seen, (0, 2, 1)), output, 0.0)
        else:
            heads = split_heads(output, num_heads)
            output = merge_heads(ops.where(by_head, heads, 0.0))
        if return_weights:
            weights = ops.where(by_head, weights, 0.0)
    new_cache = tuple(others[:2]) if cache else None
    return output, new_cache, weights


def _query_rows(graph, mask, query, axis):
    """`mask` with its query axis repeated; onnxruntime broadcasts only the others."""
    length = ops.dim(query, axis)

    def rows():
        sizes = [ops.dim(mask, i) for i in range(mask.ndim)]
        sizes[-2] = length
        return ops.broadcast_to(mask, sizes)

    return graph.once(("query rows", mask.name, getattr(length, "name", length)), rows)


@op
def rotate(x, cosine, sine, *, num_heads):
    """Rotates pairs (i, i + R/2) of every head by an angle (RoFormer, 3.4.2).

    The half-split layout of GPT-NeoX and Llama; GPT-J interleaves and does not match.
    What of a head is behind its first R dimensions stays.

    Args:
        x: float (B, T, N*H), query or key.
        cosine: float (T, R/2) or (B, T, R/2), of the angles.
        sine: float (T, R/2) or (B, T, R/2).
        num_heads: N.

    Returns:
        float (B, T, N*H).
    """
    batch, length, width = ops.shape(x)
    head_dim, half = width // num_heads, cosine.shape[-1]
    x = ops.reshape(x, (batch, length, num_heads, head_dim))
    rest = [head_dim - 2 * half] if head_dim > 2 * half else []
    first, second, *rest = ops.split(x, [half, half, *rest])
    cosine, sine = (
        ops.cast(ops.expand_dims(a, -2), first.dtype) for a in (cosine, sine)
    )
    rotated = ops.concatenate(
        [first * cosine - second * sine, second * cosine + first * sine, *rest],
        axis=-1,
    )
    return ops.reshape(rotated, (batch, length, width))


_rotate_decomposed = rotate.__wrapped__


@rotate.emits
def _(graph, x, cosine, sine, *, num_heads):
    if graph.root.opset < 23:
        return _rotate_decomposed(x, cosine, sine, num_heads=num_heads)
    batch, length, head_dim = ops.dim(x, 0), ops.dim(x, 1), x.shape[-1] // num_heads

    def rows():  # row t of the tables, for every row of the batch
        return ops.broadcast_to(
            ops.reshape(ops.arange(length), (1, length)), (batch, length)
        )

    key = ("rotation rows", str(batch), str(length))
    rotated = 2 * cosine.shape[-1]
    partial = {"rotary_embedding_dim": rotated} if rotated < head_dim else {}
    return graph.node(
        "RotaryEmbedding",
        x,
        cosine,
        sine,
        graph.once(key, rows) if cosine.ndim == 2 else None,
        num_heads=num_heads,
        interleaved=0,
        **partial,
    )
