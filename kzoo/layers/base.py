"""Keras layers that also run on symbolic ONNX values."""

import contextlib
import contextvars

import keras

from kzoo import ops
from kzoo.arguments import arguments_of
from kzoo.config import StackConfig
from kzoo.layers.blank import Blank, are_blank
from kzoo.layers.lora import LoRA
from kzoo.layers.remat import is_rematerialized, rematerialized
from kzoo.ops import tensorflow
from kzoo.ops.dispatch import is_symbolic
from kzoo.ops.onnx_value import is_building

# Keras's functions, which no `OnnxValue` goes through, to those that emit the same.
_ACTIVATIONS = {
    id(getattr(keras.activations, name)): own
    for name, own in {
        **ops.ACTIVATIONS,
        "softmax": ops.softmax,
        "log_softmax": ops.log_softmax,
    }.items()
    if name != "gelu_tanh"  # an option of Keras's `gelu`
}
_bare = contextvars.ContextVar("bare_calls", default=False)
# The layer inside whose `attending` this is, and its table (D, V).
_turned = contextvars.ContextVar("turned", default=(None, None))


@contextlib.contextmanager
def bare_calls():
    """Inside, built layers run without Keras around them, a third faster in eager mode.

    For inference in the dtype of the weights, where Keras has nothing to add.
    """
    token = _bare.set(True)
    try:
        yield
    finally:
        _bare.reset(token)


class Emits:
    """Mixin: on an `OnnxValue` a layer's `call` runs without Keras around it."""

    rematerializes = False  # whether it does in every `keras.RematScope`

    def __call__(self, *args, **kwargs):
        """`call`, with Keras around it unless an argument is symbolic."""
        if _bare.get() or is_building() and is_symbolic((args, kwargs)):
            return self.call(*args, **kwargs)
        return super().__call__(*args, **kwargs)

    def rematerialized_call(self, layer_call, *args, **kwargs):
        """Keras's hook for layers that were made in a `keras.RematScope`."""
        if is_rematerialized(self, args, kwargs):
            return rematerialized(self, layer_call)
        return layer_call


class Layer(Emits, keras.layers.Layer):
    """Base of kzoo's layers: children are created in `__init__`, built in `build`.

    Building a child inside its parent's `build` gives its variables a path with all
    parents in it.
    """


class Configured(Layer):
    """A layer that keeps the arguments of `__init__` as attributes of their names."""

    def get_config(self):
        """The arguments of `__init__`."""
        plain = keras.saving.serialize_keras_object
        own = {
            name: value.to_dict() if isinstance(value, StackConfig) else plain(value)
            for name, value in arguments_of(self).items()
        }
        return {**super().get_config(), **own}


@keras.saving.register_keras_serializable("kzoo")
class Dense(Emits, LoRA, keras.layers.Dense):
    """Keras's `Dense`: `activation(x @ kernel + bias)`."""

    adapted = "kernel"

    @property
    def kernel(self):
        """(D, units), with the adapters in it where LoRA is enabled."""
        return super().kernel if self.merged is None else self.merged

    def call(self, inputs, training=None):
        """float (..., D) to float (..., units)."""
        y = ops.linear(inputs, self.kernel, self.bias if self.use_bias else None)
        own = _ACTIVATIONS.get(id(self.activation)) if ops.is_onnx(y) else None
        return (own or self.activation)(y)


@keras.saving.register_keras_serializable("kzoo")
class Embedding(Emits, LoRA, keras.layers.Embedding):
    """Keras's `Embedding`, whose table can also be the head."""

    adapted = "embeddings"

    @property
    def embeddings(self):
        """(V, D), with the adapters in it where LoRA is enabled."""
        return super().embeddings if self.merged is None else self.merged

    @contextlib.contextmanager
    def attending(self, x):
        """Inside, `attend` is for every step of a loop: the table is turned once.

        With few rows of states XLA and TensorFlow multiply by a transposed matrix at
        half the speed. A table of more than 64 MB in float32 stays as it is, and any
        where calls are bare, whose loops have few steps.

        Args:
            x: a tensor or ONNX value that the loop reads.
        """
        table, large = None, self.input_dim * self.output_dim > 2**24
        if not (large or _bare.get() or ops.is_onnx(x)):
            table = ops.cast(self.embeddings, self.compute_dtype)
            table = ops.transpose(table, (1, 0))
        token = _turned.set((self, table))
        try:
            yield
        finally:
            _turned.reset(token)

    def call(self, inputs):
        """Int ids (...) to float (..., D)."""
        if ops.is_onnx(inputs):
            return ops.embedding(inputs, self.embeddings)
        return super().call(inputs)

    def attend(self, x):
        """Scores of every row of the table: float (..., D) to float (..., V)."""
        layer, table = _turned.get()
        if layer is self and table is not None:
            return ops.linear(x, table)
        return ops.linear_transposed(x, self.embeddings)


@keras.saving.register_keras_serializable("kzoo")
class LayerNormalization(Emits, keras.layers.LayerNormalization):
    """Keras's `LayerNormalization`; in ONNX over the last axis, with its scale."""

    def call(self, inputs, training=False):
        """float (..., D) to float (..., D)."""
        plain = _over_last_axis(self, inputs) and self.scale
        if ops.is_onnx(inputs):
            _check_emits(self, plain)
            return ops.layer_norm(inputs, self.gamma, self.beta, self.epsilon)
        if plain and self.center and _on_tensorflow(self, inputs):
            return tensorflow.layer_norm(
                inputs, self.gamma, self.beta, self.epsilon, training
            )
        return super().call(inputs)


@keras.saving.register_keras_serializable("kzoo")
class RMSNormalization(Emits, keras.layers.RMSNormalization):
    """Keras's `RMSNormalization`; in ONNX over the last axis."""

    def call(self, inputs):
        """float (..., D) to float (..., D)."""
        if ops.is_onnx(inputs):
            _check_emits(self, _over_last_axis(self, inputs))
            return ops.rms_norm(inputs, self.scale, self.epsilon)
        return super().call(inputs)


@keras.saving.register_keras_serializable("kzoo")
class OffsetRMSNormalization(Configured):
    """RMS normalisation times `1 + scale`, so that weight decay draws it to 1.

    Paper: Gemma, 2024, https://arxiv.org/abs/2403.08295, and its code.

    Args:
        epsilon: added to the mean square.
    """

    def __init__(self, epsilon=1e-6, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.epsilon = epsilon

    def build(self, input_shape):
        """Creates `scale`, (D,), zeros."""
        self.scale = self.add_weight(
            shape=(input_shape[-1],), initializer="zeros", name="scale"
        )
        self.built = True

    def call(self, inputs):
        """float (..., D) to float (..., D)."""
        return ops.offset_rms_norm(inputs, self.scale, self.epsilon)


@keras.saving.register_keras_serializable("kzoo")
class StdNormalization(Configured):
    """`gamma * (x - mean) / (std + epsilon) + beta`, with the unbiased deviation.

    Layer normalisation (Ba et al., 2016) as "The Annotated Transformer" (Rush, 2018)
    has it: the deviation is that of D - 1, and epsilon stands outside the root.

    Args:
        epsilon: added to the standard deviation.
    """

    def __init__(self, epsilon=1e-6, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.epsilon = epsilon

    def build(self, input_shape):
        """Creates `gamma` and `beta`, (D,) each.

        Raises:
            ValueError: D is less than 2.
        """
        width = input_shape[-1]
        if width is None or width < 2:
            raise ValueError(
                f"{self.name} needs a last axis of 2 or more: one number has no "
                f"deviation. Received: an input of shape {tuple(input_shape)}."
            )
        self.gamma = self.add_weight(shape=(width,), initializer="ones", name="gamma")
        self.beta = self.add_weight(shape=(width,), initializer="zeros", name="beta")
        self.built = True

    def call(self, inputs):
        """float (..., D) to float (..., D)."""
        return ops.std_norm(inputs, self.gamma, self.beta, self.epsilon)


@keras.saving.register_keras_serializable("kzoo")
class Dropout(Emits, keras.layers.Dropout):
    """Keras's `Dropout`; nothing in ONNX."""

    def call(self, inputs, training=False):
        """float (...) to float (...)."""
        if ops.is_onnx(inputs):
            return inputs
        plain = self.noise_shape is None and 0 < self.rate <= 255 / 256
        if training and plain and _on_tensorflow(self, inputs):
            return tensorflow.dropout(inputs, self.rate, self.seed_generator.next())
        return super().call(inputs, training=training)


def _over_last_axis(layer, x):
    axes = layer.axis if isinstance(layer.axis, (list, tuple)) else [layer.axis]
    return list(axes) in ([-1], [len(x.shape) - 1])


def _check_emits(layer, plain):
    if not plain:
        raise ValueError(
            f"{layer.name} can be exported over the last axis, with scale=True. "
            f"Received: {layer.get_config()}."
        )


def _on_tensorflow(layer, x):
    """Whether the kernels of `kzoo.ops.tensorflow` serve: float32 in and out."""
    single = layer.compute_dtype == "float32" and x.dtype == "float32"
    return single and keras.backend.backend() == "tensorflow"


NORMS = {
    "layer_norm": LayerNormalization,
    "rms_norm": RMSNormalization,
    "offset_rms_norm": OffsetRMSNormalization,
    "std_norm": StdNormalization,
}


def make_dense(layer, name, units, use_bias=True):
    """A linear layer inside another, which says its dtype and how kernels begin."""
    return Dense(
        units,
        use_bias=use_bias,
        kernel_initializer=layer.kernel_initializer.clone(),
        dtype=layer.dtype_policy,
        name=name,
    )


def make_norm(kind, epsilon, bias, name, dtype):
    """A norm of `StackConfig`'s fields `norm`, `norm_epsilon` and `norm_bias`."""
    center = {} if bias else {"center": False}
    return NORMS[kind](epsilon=epsilon, name=name, dtype=dtype, **center)


def config_norm(config, name, dtype):
    """The norm that a `StackConfig` asks for."""
    return make_norm(config.norm, config.norm_epsilon, config.norm_bias, name, dtype)


def make_initializer(config):
    """The kernel initialiser that a `StackConfig` asks for."""
    if are_blank():
        return Blank()
    if config.initializer == "xavier":
        return keras.initializers.GlorotUniform()
    return keras.initializers.TruncatedNormal(stddev=config.initializer_range)
