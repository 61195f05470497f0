"""What tests of layers, models and tasks share: weights, gradients, `check_layer`."""

import contextlib
import json
import warnings

import keras
import numpy as np
import onnx
import onnxruntime

from kzoo.layers import LanguageModelHead
from kzoo.models.encoder_decoder import make_stacks
from kzoo.ops.onnx_file import write_model
from kzoo.ops.onnx_graph import DEFAULT_OPSET, PORTABLE_OPSET, OnnxGraph
from tests.reference import Reference

# Sizes of a task that is exported, and what younger models have in place of defaults.
SMALL = dict(num_layers=2, hidden_dim=16, intermediate_dim=32, num_heads=4)
MODERN = dict(
    norm="rms_norm",
    feed_forward="gated",
    activation="silu",
    use_bias=False,
    num_key_value_heads=2,
)


def small_task(kind, vocabulary_size=29, **changes):
    """A task of `SMALL` sizes, perturbed."""
    task = kind.from_size("tiny", vocabulary_size=vocabulary_size, **SMALL | changes)
    perturb(task.named_variables().values())
    return task


def set_head_bias(task, token, value):
    """Makes one token more or less likely at every place: the end, say."""
    bias = to_numpy(task.head.bias)
    bias[token] = value
    task.head.bias.assign(bias)


def nodes(graph):
    """The nodes of an ONNX graph, those of its subgraphs among them."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from nodes(attribute.g)


def to_numpy(structure):
    """Tensors to arrays, in any nesting; 16-bit floats to float32."""

    def convert(x):
        if keras.backend.standardize_dtype(x.dtype) in ("bfloat16", "float16"):
            x = keras.ops.cast(x, "float32")
        return np.array(keras.ops.convert_to_numpy(x))

    return keras.tree.map_structure(convert, structure)


def difference(got, expected):
    """The largest absolute difference over the largest expected value."""
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    assert got.shape == expected.shape
    return np.abs(got - expected).max() / np.abs(expected).max()


def perturb(variables, seed=0):
    """Random values in every variable, norms and biases too.

    With initial weights a swapped norm or a forgotten bias goes unnoticed. Kernels
    keep activations near 1 (standard deviation 1 / sqrt(fan-in)), so that scores are
    of the order of 1 and float32 loses little: a claim of 1e-6 about float32 holds
    only where the function itself amplifies rounding (6e-8) less than about ten times.
    """
    generator = np.random.default_rng(seed)
    for variable in variables:
        name = variable.path.rsplit("/", 1)[1]
        value = generator.normal(size=variable.shape)
        if name.endswith("kernel") or name == "vector":
            value = value / np.sqrt(variable.shape[-2])
        elif name in ("gamma", "scale"):
            value = 1.0 + 0.2 * value
        elif name in ("beta", "bias"):
            value = 0.2 * value
        variable.assign(value.astype("float32"))


class Transformer:
    """Stacks and head of a `ModelConfig`, perturbed, and their float64 reference."""

    def __init__(self, config, seed=0):
        self.config = config
        self.encoder, self.decoder = make_stacks(config)
        last = config.decoder or config.encoder
        tied_to = (self.decoder or self.encoder).token_embedding
        self.head = LanguageModelHead(
            last.vocabulary_size,
            last.hidden_dim,
            tied_to=tied_to if config.tie_head else None,
            use_bias=config.head_bias,
            scale=config.head_scale,
            soft_cap=config.head_soft_cap,
            name="head",
        )
        self.variables = []
        known = set()
        for part in (self.encoder, self.decoder, self.head):
            if part is None:
                continue
            part.build()
            self.variables += [v for v in part.weights if id(v) not in known]
            known |= {id(v) for v in part.weights}
        perturb(self.variables, seed)
        # Tables shrink by the scale that the model multiplies them with, as models with
        # such a scale start: scores of 50 would lose in float32 what is claimed.
        scales = [stack.embedding_scale for stack in (config.encoder, last) if stack]
        for variable in self.variables:
            if variable.path.endswith("token_embedding/embeddings"):
                variable.assign(variable.value / max(1.0, *scales))
        self.weights = {v.path: to_numpy(v.value) for v in self.variables}
        self.reference = Reference(config, self.weights)

    def states(self, *inputs, **options):
        """Hidden states of the last stack, as `_states` says; JAX compiles them all."""
        if keras.backend.backend() != "jax":
            return self._states(*inputs, **options)
        import jax

        return jax.jit(lambda: self._states(*inputs, **options))()

    def _states(self, ids, mask=None, source=None, source_mask=None, **options):
        """`source` is what an encoder reads first."""
        if self.decoder is None:
            return self.encoder(ids, padding_mask=mask, **options)
        memory = None
        if self.encoder is not None:
            memory = self.encoder(source, padding_mask=source_mask)
        return self.decoder(
            ids,
            padding_mask=mask,
            memory=memory,
            memory_padding_mask=source_mask,
            **options,
        )

    def logits(self, ids, mask=None, source=None, source_mask=None):
        """Logits, float (B, T, V)."""
        return to_numpy(self.head(self.states(ids, mask, source, source_mask)))

    def expected(self, ids, mask=None, source=None, source_mask=None):
        """The reference's logits, float64 (B, T, V)."""
        return self.reference.logits(ids, mask, source, source_mask)


def random_ids(config, shape, seed=0):
    """Token ids of a `StackConfig`'s vocabulary."""
    return np.random.default_rng(seed).integers(
        1, config.vocabulary_size, shape, dtype="int32"
    )


def padding(lengths, length, side="right"):
    """bool (B, length), `True` at the real positions."""
    real = np.arange(length) < np.asarray(lengths)[:, None]
    return real if side == "right" else real[:, ::-1]


def gradients(variables, loss):
    """The gradient of a scalar function without arguments, an array a variable.

    A variable that the loss does not reach has `None`, or zeros on JAX.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            value = loss()
        found = tape.gradient(value, [v.value for v in variables])
        found = [None if g is None else tf.convert_to_tensor(g) for g in found]
    elif backend == "jax":
        import jax

        def of_values(values):
            with keras.StatelessScope(state_mapping=zip(variables, values)):
                return loss()

        found = jax.jit(jax.grad(of_values))([v.value for v in variables])
    else:
        for variable in variables:
            variable.value.grad = None
        loss().backward()
        found = [v.value.grad for v in variables]
    return [None if g is None else to_numpy(g) for g in found]


@contextlib.contextmanager
def op_by_op():
    """What the fixture `eager` is to a test, for fixtures of many and parts of one."""
    if keras.backend.backend() != "tensorflow":
        yield
        return
    import tensorflow as tf

    before = tf.config.functions_run_eagerly()
    with warnings.catch_warnings():  # that functions of tf.data are graphs all the same
        warnings.filterwarnings("ignore", "Even though the `tf.config.experimental_run")
        tf.config.run_functions_eagerly(True)
        try:
            yield
        finally:
            tf.config.run_functions_eagerly(before)


class Killed(Exception):
    """What `KillBefore` raises."""


class KillBefore(keras.callbacks.Callback):
    """Ends a training as a killed process would, before an epoch."""

    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            raise Killed


# --------------------------------------------------------------- the layer harness


@keras.saving.register_keras_serializable("tests")
class Wrapper(keras.Model):
    """A model of one layer, whose call takes the dict of the layer's inputs."""

    def __init__(self, layer, build_shapes=(), options=None, **kwargs):
        super().__init__(**kwargs)
        self.layer, self.build_shapes = layer, tuple(build_shapes)
        self.options = options or {}
        if not layer.built:  # Keras rebuilds what it deserialises
            layer.build(*self.build_shapes)
        self.built = True

    def build(self, *_):
        pass

    def call(self, inputs):
        return self.layer(**inputs, **self.options)

    def get_config(self):
        return {
            "layer": keras.saving.serialize_keras_object(self.layer),
            "build_shapes": [list(shape) for shape in self.build_shapes],
            "options": self.options,
        }

    @classmethod
    def from_config(cls, config):
        layer = keras.saving.deserialize_keras_object(config.pop("layer"))
        shapes = [tuple(shape) for shape in config.pop("build_shapes")]
        return cls(layer, shapes, **config)


def check_layer(
    make, inputs, expected_shape, folder, build_shapes=(), options=None, tolerance=1e-6
):
    """Claims about any layer: shapes, config, saving, graphs, jit, mixed precision.

    Args:
        make: function from keywords (`name`, `dtype`) to the layer.
        inputs: dict of arrays, the layer's inputs by name.
        expected_shape: of the output, or a tuple of them.
        folder: for files.
        build_shapes: arguments of the layer's `build`.
        options: further arguments of `call`, no tensors.
        tolerance: between the ways to run it, relative.

    Returns:
        The wrapping model, perturbed, and its outputs as arrays.
    """
    layer = make(name="layer")
    model = Wrapper(layer, build_shapes, options)
    perturb(model.weights)
    outputs = model(inputs)
    expected = to_numpy(outputs)
    shapes = keras.tree.map_structure(np.shape, expected)
    assert shapes == expected_shape

    config = layer.get_config()
    json.dumps(config)
    copy = type(layer).from_config(config)
    assert copy.get_config() == config

    path = folder / "model.keras"
    model.save(path)
    loaded = keras.saving.load_model(path)
    assert type(loaded.layer) is type(layer)
    assert [w.path for w in loaded.weights] == [w.path for w in model.weights]
    _compare(loaded(inputs), expected, 0.0)
    model.save_weights(folder / "model.weights.h5")
    other = Wrapper(make(name="layer"), build_shapes, options)
    other.load_weights(folder / "model.weights.h5")
    _compare(other(inputs), expected, 0.0)

    free = with_free_axes(model, inputs)
    for function in compiled_forms(model, free):
        _compare(function(inputs), expected, tolerance)

    for dtype in ("bfloat16", "float16"):
        mixed = Wrapper(
            make(name="layer", dtype=f"mixed_{dtype}"), build_shapes, options
        )
        mixed.set_weights(model.get_weights())
        half = mixed(inputs)
        for tensor, like in zip(
            keras.tree.flatten(half), keras.tree.flatten(expected), strict=True
        ):
            kept = dtype if like.dtype.kind == "f" else like.dtype.name
            assert keras.backend.standardize_dtype(tensor.dtype) == kept
        assert {w.dtype for w in mixed.weights} <= {"float32"}
        _compare(half, expected, 0.05)

    check_exports(model, inputs, folder, free)
    return model, expected


def compiled_forms(model, free):
    """The model as a graph with free axes and under XLA, where the backend has them."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        yield free
        yield tf.function(model, jit_compile=True)
    if keras.backend.backend() == "jax":
        import jax

        yield jax.jit(lambda inputs: model(inputs))


def with_free_axes(model, inputs):
    """A `tf.function` of the model for every batch and length; TensorFlow's alone."""
    if keras.backend.backend() != "tensorflow":
        return None
    import tensorflow as tf

    specs = {
        name: tf.TensorSpec(sizes, inputs[name].dtype)
        for name, sizes in free_shapes(inputs).items()
    }
    return tf.function(model, input_signature=[specs])


def free_shapes(inputs):
    """Name to shape, `None` where the axis is a batch or a length.

    The width of a float input is known, so are the heads of a mask or a bias, and
    what is 1 in order to be broadcast.
    """
    shapes = {}
    for name, array in inputs.items():
        fixed = {1} if array.ndim == 4 else set()
        if array.dtype.kind == "f" and array.ndim < 4:
            fixed.add(array.ndim - 1)
        shapes[name] = tuple(
            size if size == 1 or axis in fixed else None
            for axis, size in enumerate(array.shape)
        )
    return shapes


def check_exports(model, inputs, folder, free=None):
    """The layer alone as ONNX, fused and portable, and as a SavedModel on TensorFlow.

    Each artifact is one for all shapes: it must equal Keras (<= 1e-5, relative) with
    `inputs` and with the same, one longer on every free axis. `free` is the model
    `with_free_axes`, where it is traced already.
    """
    longer = {
        name: np.pad(
            inputs[name], [(0, int(size is None)) for size in sizes], mode="wrap"
        )
        for name, sizes in free_shapes(inputs).items()
    }
    assert longer.keys() == inputs.keys()
    runs = [
        onnx_form(model, inputs, opset, folder / f"opset_{opset}.onnx")
        for opset in (DEFAULT_OPSET, PORTABLE_OPSET)
    ]
    free = free or with_free_axes(model, inputs)
    if free:
        runs.append(saved_form(model, free, folder / "saved_model"))
    for case in (inputs, longer):
        expected = to_numpy(model(case))
        for run in runs:
            _compare(run(case), expected, 1e-5)


def onnx_form(model, inputs, opset, path):
    """A function from arrays to the outputs that onnxruntime computes, flat."""
    graph = OnnxGraph(opset)
    with graph.building():
        values = {
            name: graph.input(
                name,
                sizes,
                inputs[name].dtype,
                axes=[size or f"{name}_{axis}" for axis, size in enumerate(sizes)],
            )
            for name, sizes in free_shapes(inputs).items()
        }
        for number, value in enumerate(keras.tree.flatten(model.call(values))):
            axes = [size or f"{number}_{axis}" for axis, size in enumerate(value.shape)]
            graph.output(value, f"output_{number}", axes=axes)
    write_model(graph, path, metadata={})
    session = onnxruntime.InferenceSession(path)
    dtypes = {value.name: value.dtype for value, _ in graph.inputs}

    def run(inputs):
        feed = {name: np.asarray(x, dtypes[name]) for name, x in inputs.items()}
        return session.run(None, feed)

    return run


def saved_form(model, free, path):
    """A function from arrays to the outputs of the SavedModel, flat."""
    import tensorflow as tf

    module = tf.Module()
    module.model_variables = [variable.value for variable in model.weights]
    module.function = free
    tf.saved_model.save(module, str(path))
    loaded = tf.saved_model.load(str(path))
    return lambda inputs: keras.tree.flatten(
        loaded.function({name: tf.constant(x) for name, x in inputs.items()})
    )


def _compare(got, expected, tolerance):
    got = keras.tree.flatten(to_numpy(got))
    for one, other in zip(got, keras.tree.flatten(expected), strict=True):
        assert np.isfinite(one).all()
        assert difference(one, other) <= tolerance
