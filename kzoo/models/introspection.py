"""What a model attends to and what its answer rests on, from the model as it is."""

import contextlib
import functools

import keras
import numpy as np

from kzoo import ops
from kzoo.layers.attention import Attention
from kzoo.models.replacing import replaced
from kzoo.models.stack import Stack


class AttentionRecorder:
    """Records the attention weights of a model while it is called.

    Inside the `with` block every `kzoo.layers.Attention` of the model gives its weights
    to the recorder, too, in the thread that opened it; afterwards, also after an error,
    the model is as before. Weights are those of inference: dropout on them comes later.
    Where a layer is called several times, its last call counts.

    Args:
        model: a model or layer with `Attention` layers inside; a class of your own that
            makes them in its `build` must be built.

    Raises:
        ValueError: there is no `Attention` layer.
        RuntimeError: the model is called in a graph (`fit`, `predict`, `generate`,
            `tf.function`, `jax.jit`), where weights have no values.

    Example:
        >>> with kzoo.AttentionRecorder(model) as recorder:
        ...     model(inputs)
        >>> recorder.weights["decoder/layer_0/cross_attention"].shape
        (1, 4, 11, 24)
        >>> kzoo.plots.attention(recorder.maps("cross_attention"), written, read)
    """

    def __init__(self, model):
        self.model = model
        self._recorded = {}
        self._stack = None

    def __enter__(self):
        if self._stack is not None:
            raise RuntimeError(
                "This AttentionRecorder records already. Make a second one."
            )
        layers = _layers(self.model, Attention)
        if not layers:
            raise ValueError(
                "AttentionRecorder needs a model with kzoo.layers.Attention inside, "
                "made before the recorder starts (call the model once, if its build "
                f"makes them). Received: {self.model!r}."
            )
        self._recorded = {}
        self._stack = contextlib.ExitStack()
        for layer in layers:
            recording = functools.partial(self._recording, layer)
            self._stack.enter_context(replaced(layer, "call", recording))
        return self

    def __exit__(self, *_):
        stack, self._stack = self._stack, None
        stack.close()

    @property
    def weights(self):
        """Path of the layer below the model -> its weights, float32 (B, N, T, S).

        Each row sums to 1, or to 0 where a query may attend to nothing. In the order
        in which the layers are called.

        Raises:
            RuntimeError: nothing was recorded.
        """
        if not self._recorded:
            raise RuntimeError(
                "No attention was recorded. Call the model inside the block, "
                "`with recorder: model(inputs)`; `predict` and `generate` may run a "
                "graph made before, which the recorder does not see."
            )
        return {self._path(layer): array for layer, array in self._recorded.items()}

    def maps(self, *parts):
        """The weights of some layers, a layer each, as `kzoo.plots.attention` takes.

        Args:
            *parts: names that a layer's path must have, all of them: `"encoder"`;
                `"decoder", "self_attention"`; `"cross_attention"`; none for all layers.

        Returns:
            list of float32 (B, N, T, S).

        Raises:
            ValueError: no layer's path has them.
        """
        weights = self.weights
        found = [
            array
            for path, array in weights.items()
            if set(parts) <= set(path.split("/"))
        ]
        if not found:
            raise ValueError(
                f"No recorded layer has {' and '.join(map(repr, parts))} in its path. "
                f"Recorded: {', '.join(weights)}."
            )
        return found

    def _path(self, layer):
        # Asked for late: before it is built, a layer has no path.
        return layer.path.removeprefix(f"{self.model.path}/")

    def _recording(self, layer, call):
        @functools.wraps(call)
        def recorded(*args, return_weights=False, **kwargs):
            *results, weights = call(*args, return_weights=True, **kwargs)
            if _has_values(weights):
                # A later call goes behind: the order is that of the last calls.
                self._recorded.pop(layer, None)
                self._recorded[layer] = _to_float32(weights)
            elif keras.backend.backend() != "torch":  # there Keras asks for shapes
                raise RuntimeError(
                    f"{self._path(layer)} was called in a graph, where attention "
                    "weights have no values to record. Inside AttentionRecorder call "
                    "the model itself, `model(inputs)`, not fit, predict, generate or "
                    "a compiled function."
                )
            if return_weights:
                results.append(weights)
            return tuple(results) if len(results) > 1 else results[0]

        return recorded


def token_saliency(
    model, inputs, target=None, *, position=None, at=None, **call_arguments
):
    """How much each token speaks for the model's answer: gradient x input.

    The gradient of one number of the output with respect to a token's embedding, times
    that embedding, summed over its width: to first order, what the number loses when
    the embedding shrinks to zero. Signed: positive tokens speak for the answer.
    Paper: Shrikumar et al., 2016, https://arxiv.org/abs/1605.01713, section 2; for
    text: Denil et al., 2014, https://arxiv.org/abs/1412.6815.

    Args:
        model: gives scores (B,), (B, classes) or (B, T', classes).
        inputs: what `model(inputs)` takes.
        target: the class, int or int (B,); by default the one with the largest score,
            a row each. Or a function from the model's output to float (B,), for
            outputs of another form.
        position: int or int (B,), the place whose scores are explained, where the
            output has one for each token; negative ones count from the end.
        at: whose tokens: `"encoder"` (by default where there are two stacks),
            `"decoder"`, or the embedding layer of a model of your own.
        **call_arguments: more arguments of the model's call, such as `padding_mask`.

    Returns:
        numpy float32 (B, T).

    Raises:
        ValueError: the target or position is not there, the output needs a position,
            or the embedding is not known or not called.

    Example:
        >>> values = kzoo.token_saliency(classifier, inputs, target=1)
        >>> kzoo.plots.saliency(tokens, values[0])
    """
    embedding, number = _embedding(model, at)
    recorded = []

    def forward(vectors=None):
        """The output; with `vectors` in the place of the embedding's own."""
        calls = 0

        def counted(call):
            @functools.wraps(call)
            def wrapped(*args, **kwargs):
                nonlocal calls
                calls += 1
                if calls != number + 1:
                    return call(*args, **kwargs)
                if vectors is None:
                    recorded.append(call(*args, **kwargs))
                return recorded[0] if vectors is None else vectors

            return wrapped

        with replaced(embedding, "call", counted):
            return model(inputs, **call_arguments)

    outputs = forward()
    if not recorded:
        raise ValueError(
            f"The embedding {embedding.path} was not called. Choose another with at=."
        )
    if not _has_values(recorded[0]):
        raise ValueError("token_saliency cannot run inside a graph; call it outside.")
    if not callable(target):
        chosen = _chosen(outputs, target, position)

    def score(vectors):
        outputs = forward(vectors)
        if callable(target):
            return keras.ops.sum(target(outputs))
        return keras.ops.sum(keras.ops.where(chosen, outputs, 0.0))

    vectors = recorded[0]
    gradient = _gradient(score, vectors)
    return np.sum(_to_float32(gradient) * _to_float32(vectors), axis=-1)


def _chosen(outputs, target, position):
    """bool, as `outputs`: the one number of each row that is explained."""
    if not hasattr(outputs, "shape") or len(outputs.shape) not in (1, 2, 3):
        raise ValueError(
            "token_saliency chooses from scores (B,), (B, classes) or (B, T, classes); "
            "for another output give target=function, from it to float (B,). "
            f"Received: {keras.tree.map_structure(lambda x: x.shape, outputs)}."
        )
    scores = _to_float32(outputs)
    rows = np.arange(len(scores))
    if (scores.ndim == 3) != (position is not None):
        raise ValueError(
            f"The output has shape {scores.shape}"
            + (
                ", scores at every place: say which with position=."
                if scores.ndim == 3
                else f" and no places. Received: position={position}; leave it out."
            )
        )
    index = [rows]
    if position is not None:
        index.append(_indices("position", position, scores, axis=1))
    if scores.ndim == 1:
        if target is not None:
            raise ValueError(
                "The output is one number a row: leave target out. "
                f"Received: target={target}."
            )
    elif target is None:
        index.append(scores[tuple(index)].argmax(axis=-1))
    else:
        index.append(_indices("target", target, scores, axis=-1))
    chosen = np.zeros(scores.shape, bool)
    chosen[tuple(index)] = True
    return chosen


def _indices(name, value, scores, axis):
    index, size = np.asarray(value), scores.shape[axis]
    fits = index.shape in ((), (len(scores),)) and index.dtype.kind in "iu"
    if not fits or (index < -size).any() or (index >= size).any():
        raise ValueError(
            f"{name} must be an int, or {len(scores)} (a row each), of {-size} to "
            f"{size - 1}. Received: {value}."
        )
    return index % size


def _embedding(model, at):
    """The embedding layer, and which of its calls is meant (0 for the first)."""
    if isinstance(at, keras.layers.Layer):
        return at, 0
    # The encoder is called before the decoder that reads it.
    stacks = sorted(_layers(model, Stack), key=lambda s: s.config.cross_attention)
    names = ["decoder" if stack.config.causal else "encoder" for stack in stacks]
    if len(set(names)) < len(names) or not names:
        raise ValueError(
            "token_saliency knows models with one kzoo.Encoder, one kzoo.Decoder, or "
            "both; in others give the embedding layer with at=. "
            f"Received: {len(names)} stacks."
        )
    if at is None:
        at = names[0]
    if at not in names:
        raise ValueError(
            f"at must be {' or '.join(map(repr, names))} here, or an embedding layer. "
            f"Received: {at!r}."
        )
    place = names.index(at)
    embedding = stacks[place].token_embedding
    # A shared table is called once for each stack.
    return embedding, sum(s.token_embedding is embedding for s in stacks[:place])


def _gradient(score, vectors):
    """The gradient of a scalar function at `vectors`, a tensor of the backend."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(vectors)
            value = score(vectors)
        return tape.gradient(value, vectors)
    if backend == "jax":
        import jax

        def stateless(vectors):
            with keras.StatelessScope():
                return score(vectors)

        return jax.grad(stateless)(vectors)
    if backend == "torch":
        import torch

        with torch.enable_grad():
            vectors = vectors.detach().requires_grad_()
            return torch.autograd.grad(score(vectors), vectors)[0]
    raise RuntimeError(
        "token_saliency needs gradients: the tensorflow, jax or torch backend. "
        f"Received: {backend}."
    )


def _layers(model, kind):
    return [layer for layer in model._flatten_layers() if isinstance(layer, kind)]


def _has_values(tensor):
    """Whether a tensor has values, which it has not while a graph is made."""
    if isinstance(tensor, keras.KerasTensor) or ops.is_onnx(tensor):
        return False
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        return not tf.is_symbolic_tensor(tensor)
    if backend == "jax":
        import jax

        return not isinstance(tensor, jax.core.Tracer)
    if backend == "torch":
        return not tensor.is_meta
    return True


def _to_float32(tensor):
    # NumPy has no bfloat16.
    return np.array(keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32")))
