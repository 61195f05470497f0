"""Kernels for TensorFlow, which fuses nothing on CPUs.

There every pass over a tensor counts, and every op where it runs eagerly. These do in
few passes what `keras.ops` does in many; JAX's XLA fuses the general form by itself.
"""

import functools
import threading

import keras
import numpy as np


def own_gradient(function):
    """Decorates a function of tensors that gives a tensor and its gradient.

    The gradient is as `tf.custom_gradient` has it. That keeps the graph in which it is
    called for good, which in `fit` is the whole step's, with every model and length: it
    is called in a small graph here, one for each kind of arguments and each thread, for
    TensorFlow cannot take the gradient of one in two threads at a time. They are kept.

    Args:
        function: of tensors, and of Python's numbers by name; it reads nothing else.
    """

    @functools.cache
    def graph(thread, kinds, numbers):
        import tensorflow as tf

        def called(*tensors):
            return function(*tensors, **dict(numbers))

        specs = [tf.TensorSpec(*kind) for kind in kinds]
        own = tf.custom_gradient(called)
        return tf.function(own, input_signature=specs, autograph=False)

    def run(*tensors, **numbers):
        kinds = []
        for x in tensors:  # of ids the last axis is a length, too
            width = x.shape[-1] if x.dtype.is_floating else None
            kinds.append(((None,) * (len(x.shape) - 1) + (width,), x.dtype))
        own = graph(threading.get_ident(), tuple(kinds), tuple(numbers.items()))
        return own(*tensors)

    run.__name__, run.__doc__ = function.__name__, function.__doc__
    return run


def dropout(x, rate, seed):
    """Zeros a share `rate` of the elements and scales the others by 1 / (1 - rate).

    Draws 8 bits an element, a quarter of what a float takes, and compares them with
    256 * rate, rounded up or down at random so that the rate holds in the mean.

    Args:
        x: float, of any shape.
        rate: in (0, 255 / 256].
        seed: int (2,).

    Returns:
        Like `x`.
    """
    import tensorflow as tf

    kept = _kept(rate, x.dtype)(tf.shape(x), seed)
    kept.set_shape(x.shape)
    return x * kept


@functools.cache
def _kept(rate, dtype):
    """What `dropout` multiplies by: a small graph that a step calls, kept for good."""
    import tensorflow as tf

    @functools.partial(tf.function, autograph=False)
    def kept(shape, seed):
        size = tf.reduce_prod(shape)
        words = tf.random.stateless_uniform(
            [size // 4 + 2], seed, minval=None, maxval=None, dtype=tf.int32
        )
        bits = tf.reshape(tf.bitcast(words[1:], tf.int8), [-1])[:size]
        dither = tf.cast(words[0], tf.float32) * 2.0**-32 + 0.5
        threshold = tf.floor(rate * 256 + dither) - 128
        stays = tf.reshape(bits, shape) >= tf.cast(threshold, tf.int8)
        return tf.cast(stays, dtype) * (1 / (1 - rate))

    return kept


def layer_norm(x, gamma, beta, epsilon, training):
    """Layer normalisation over the last axis; in training with a gradient of its own.

    Args:
        x: float (..., D).
        gamma: float (D,).
        beta: float (D,).
        epsilon: added to the variance.
        training: whether the gradient is the closed form; the values are the same.

    Returns:
        float (..., D).
    """
    import tensorflow as tf

    # Tensors: a variable would be an argument that the gradient has to name.
    x, gamma, beta = (tf.convert_to_tensor(value) for value in (x, gamma, beta))
    if training:
        return _layer_norm(x, gamma, beta, epsilon=epsilon)
    return _normalized(x, epsilon)[0] * gamma + beta


def _normalized(x, epsilon):
    import tensorflow as tf

    centered = x - tf.reduce_mean(x, -1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centered), -1, keepdims=True)
    inverse = tf.math.rsqrt(variance + epsilon)
    return centered * inverse, inverse


@own_gradient
def _layer_norm(x, gamma, beta, epsilon):
    import tensorflow as tf

    normal, inverse = _normalized(x, epsilon)

    def gradient(upstream):
        """With g = upstream * gamma: (g - mean(g) - normal * mean(g * normal))."""
        axes = list(range(len(x.shape) - 1))
        product = upstream * normal
        g = upstream * gamma
        along = tf.reduce_mean(g * normal, -1, keepdims=True)
        g = g - tf.reduce_mean(g, -1, keepdims=True) - normal * along
        return g * inverse, tf.reduce_sum(product, axes), tf.reduce_sum(upstream, axes)

    return normal * gamma + beta, gradient


@own_gradient
def cross_entropy(y_true, logits, label_smoothing):
    """That of each target, where nothing is fused: each pass over the logits counts.

    Args:
        y_true: int (...), in [0, V).
        logits: float32 (..., V).
        label_smoothing: a number.

    Returns:
        float32 (...), in nats.
    """
    import tensorflow as tf

    size = tf.shape(logits)[-1]
    p = tf.nn.softmax(logits)
    # The largest p is at least 1 / V, so its logarithm loses nothing.
    total = tf.reduce_max(logits, -1) - tf.math.log(tf.reduce_max(p, -1))
    target = tf.gather(logits, y_true, batch_dims=len(logits.shape) - 1)
    loss = total - target
    if label_smoothing:
        loss += label_smoothing * (target - tf.reduce_mean(logits, -1))

    def gradient(upstream):
        """softmax - (1 - e) * one_hot - e / V, times the upstream gradient."""
        flat = tf.reshape(p - label_smoothing / tf.cast(size, p.dtype), (-1, size))
        upstream = tf.reshape(upstream, (-1,))
        ids = tf.reshape(y_true, (-1,))
        places = tf.stack([tf.range(tf.size(ids)), ids], axis=1)
        flat = tf.tensor_scatter_nd_sub(
            flat * upstream[:, None], places, (1 - label_smoothing) * upstream
        )
        return None, tf.reshape(flat, tf.shape(p))

    return loss, gradient


def shape(x):
    """Like `kzoo.ops.shape`: all lengths that are not known are one op's outputs."""
    import tensorflow as tf

    known = x.shape.as_list()
    if None not in known:
        return tuple(known)
    sizes = tf.unstack(tf.shape(x), len(known))
    return tuple(size if n is None else n for n, size in zip(known, sizes, strict=True))


def reshape(x, new_shape):
    """Like `kzoo.ops.reshape`: with a tuple an eager call takes four times as long."""
    import tensorflow as tf

    if not (isinstance(x, tf.Tensor) and isinstance(new_shape, (list, tuple))):
        return keras.ops.reshape(x, new_shape)
    if all(isinstance(size, int) for size in new_shape):
        new_shape = np.array(new_shape, "int64")
    return tf.reshape(x, new_shape)


def transpose(x, axes):
    """Like `kzoo.ops.transpose`: with a tuple an eager call takes twice as long."""
    import tensorflow as tf

    plain = isinstance(x, tf.Tensor) and axes
    if plain and sorted(axes) == [*range(x.shape.rank or 0)]:
        return tf.transpose(x, np.array(axes, "int32"))
    return keras.ops.transpose(x, axes)


def matmul(x, y):
    """Like `kzoo.ops.matmul`: an eager call of Keras's takes half as long again."""
    import tensorflow as tf

    plain = isinstance(x, tf.Tensor) and isinstance(y, tf.Tensor)
    plain = plain and x.dtype == y.dtype and x.dtype.is_floating
    if plain and x.shape.rank == y.shape.rank and (x.shape.rank or 0) > 1:
        return tf.matmul(x, y)
    return keras.ops.matmul(x, y)


def split(x, sections, axis=-1):
    """Like `kzoo.ops.split`: Keras computes the sizes with a dozen ops."""
    import tensorflow as tf

    return tf.split(x, sections, axis)


def take_along_axis(x, indices, axis):
    """Like `kzoo.ops.take_along_axis`: Keras makes 60 ops of it."""
    import tensorflow as tf

    if axis not in (-1, len(indices.shape) - 1):
        return keras.ops.take_along_axis(x, indices, axis=axis)
    return tf.gather(x, indices, axis=-1, batch_dims=len(indices.shape) - 1)


def softmax_of_few(x):
    """Softmax over the last axis: oneDNN's takes ten times as long where little is.

    It prepares itself for every new length, and a cache has one in each step.
    """
    import tensorflow as tf

    x = tf.exp(x - tf.reduce_max(x, -1, keepdims=True))
    return x / tf.reduce_sum(x, -1, keepdims=True)


def argmax(x):
    """Like `kzoo.ops.argmax`: Keras first tells 0.0 from -0.0, in five passes."""
    import tensorflow as tf

    return tf.argmax(x, axis=-1, output_type=tf.int32)


def linear(x, kernel, bias=None, transposed=False):
    """`x @ kernel + bias` as one product of matrices: tensordot takes ten small ops.

    Args:
        x: float (..., D).
        kernel: (D, E), or (E, D) where `transposed`, which is not copied.
        bias: (E,) or `None`.
        transposed: whether the kernel is.

    Returns:
        float (..., E).
    """
    import tensorflow as tf

    x, kernel = tf.convert_to_tensor(x), tf.convert_to_tensor(kernel)
    if x.dtype.is_floating:
        kernel = tf.cast(kernel, x.dtype)
    else:
        x = tf.cast(x, kernel.dtype)
    width = tf.shape(x)[-1] if x.shape[-1] is None else x.shape[-1]
    flat = reshape(x, (-1, width))
    y = tf.matmul(flat, kernel, transpose_b=transposed)
    bias = None if bias is None else tf.cast(bias, y.dtype)
    # Fused with a product of few rows, as those of one token are, a bias keeps it on
    # one thread; behind a reshape it is not fused.
    alone = x.shape.rank > 2 and x.shape[-2] == 1
    if bias is not None and not alone:
        y = tf.nn.bias_add(y, bias)
    if x.shape.rank == 2:
        return y
    sizes = [*x.shape[:-1], y.shape[-1]]
    if sizes.count(None) > 1:
        y = reshape(y, [*shape(x)[:-1], sizes[-1]])
    else:
        y = reshape(y, [-1 if size is None else size for size in sizes])
    return y + bias if alone and bias is not None else y
