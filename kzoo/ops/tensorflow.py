"""Kernels for TensorFlow, which fuses nothing on CPUs.

There every pass over a tensor counts, and every op where it runs eagerly. These do in
few passes what `keras.ops` does in many; JAX's XLA fuses the general form by itself.
"""


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

    size = tf.size(x)
    words = tf.random.stateless_uniform(
        [size // 4 + 2], seed, minval=None, maxval=None, dtype=tf.int32
    )
    bits = tf.reshape(tf.bitcast(words[1:], tf.int8), [-1])[:size]
    dither = tf.cast(words[0], tf.float32) * 2.0**-32 + 0.5
    threshold = tf.floor(rate * 256 + dither) - 128
    kept = tf.reshape(bits, tf.shape(x)) >= tf.cast(threshold, tf.int8)
    return x * (tf.cast(kept, x.dtype) * (1 / (1 - rate)))


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

    def normalize(x):
        centered = x - tf.reduce_mean(x, -1, keepdims=True)
        variance = tf.reduce_mean(tf.square(centered), -1, keepdims=True)
        inverse = tf.math.rsqrt(variance + epsilon)
        return centered * inverse, inverse

    @tf.custom_gradient
    def with_gradient(x, gamma, beta):
        normal, inverse = normalize(x)

        def gradient(upstream):
            """With g = upstream * gamma: (g - mean(g) - normal * mean(g * normal))."""
            axes = list(range(len(x.shape) - 1))
            product = upstream * normal
            g = upstream * gamma
            along = tf.reduce_mean(g * normal, -1, keepdims=True)
            g = g - tf.reduce_mean(g, -1, keepdims=True) - normal * along
            return (
                g * inverse,
                tf.reduce_sum(product, axes),
                tf.reduce_sum(upstream, axes),
            )

        return normal * gamma + beta, gradient

    # Tensors: a variable would be an argument that the gradient has to name.
    x, gamma, beta = (tf.convert_to_tensor(value) for value in (x, gamma, beta))
    if training:
        return with_gradient(x, gamma, beta)
    return normalize(x)[0] * gamma + beta


def shape(x):
    """Like `kzoo.ops.shape`: all lengths that are not known are one op's outputs."""
    import tensorflow as tf

    known = x.shape.as_list()
    if None not in known:
        return tuple(known)
    sizes = tf.unstack(tf.shape(x), len(known))
    return tuple(size if n is None else n for n, size in zip(known, sizes, strict=True))


def split(x, sections, axis):
    """Like `kzoo.ops.split`: Keras computes the sizes with a dozen ops."""
    import tensorflow as tf

    return tf.split(x, sections, axis)


def take_along_last_axis(x, indices):
    """Elements of `x` (..., D) at `indices` (..., E): Keras makes 60 ops of it."""
    import tensorflow as tf

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
    flat = tf.reshape(x, (-1, width))
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
        y = tf.reshape(y, [*shape(x)[:-1], sizes[-1]])
    else:
        y = tf.reshape(y, [-1 if size is None else size for size in sizes])
    return y + bias if alone and bias is not None else y
