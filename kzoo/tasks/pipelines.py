"""Pipelines of `tf.data` and grain, of strings or ids, as Keras's loops take them."""

import itertools

import keras
import numpy as np

from kzoo.tasks.forms import columns_of, is_grain, is_tf_data
from kzoo.tasks.task import Task


class ReadsPipelines(Task):
    """Batches of strings become ids as they come; a subclass says how.

    It gives `encode_text(x, y)`, from a batch of strings to inputs and targets; and
    `one_example`, x and y of one.
    """

    one_example = (["a"], None)
    numeric_targets = False

    def _tokenized(self, dataset):
        """A pipeline of strings as one of ids; anything else as it is."""
        if is_tf_data(dataset):
            return self._tokenized_tf_data(dataset)
        return self._tokenized_grain(dataset) if is_grain(dataset) else dataset

    def _tokenized_tf_data(self, dataset):
        import tensorflow as tf

        spec = dataset.element_spec
        texts = spec[:2] if isinstance(spec, tuple) else spec  # and not weights
        for part in tf.nest.flatten(texts):
            if isinstance(part, tf.RaggedTensorSpec) and part.dtype.is_integer:
                raise self._refused_ragged("a pipeline", part)
        strings = [part.dtype == tf.string for part in tf.nest.flatten(texts)]
        named = self._names_columns(texts[0] if isinstance(texts, tuple) else texts)
        if not (any(strings) if named else strings[0]):
            return dataset
        weights = spec[2:] if isinstance(spec, tuple) else ()
        numbers = [part.dtype != tf.string for part in tf.nest.flatten(weights)]
        known = all(strings) or self.numeric_targets
        if named or not (known and all(numbers) and len(weights) < 2):
            raise self._refused_strings(spec)
        example = self._one_element(spec)
        flat, widths = tf.nest.flatten(example), _widths(example)

        def numpy_encode(*parts):
            columns = columns_of(tf.nest.pack_sequence_as(spec, parts))
            return tf.nest.flatten(self._encoded(columns))

        def encode(*element):
            parts = tf.numpy_function(
                numpy_encode, tf.nest.flatten(element), [a.dtype for a in flat]
            )
            for part, array in zip(parts, flat, strict=True):
                part.set_shape([None] * array.ndim)
                if array.dtype.kind == "f" and {*array.shape[1:]} == widths:
                    part.set_shape([None, *array.shape[1:]])
            return tf.nest.pack_sequence_as(example, parts)

        return dataset.map(encode, num_parallel_calls=1)

    def _tokenized_grain(self, dataset):
        maps = hasattr(dataset, "map")  # and is no DataLoader
        batches = dataset.map(self._tokenized_element) if maps else dataset
        on_tensorflow = keras.backend.backend() == "tensorflow"
        if maps and not on_tensorflow:
            return batches
        begun = iter(batches)  # with its processes, where the user asks for some
        element = next(begun, None)
        if element is None:
            raise ValueError(
                f"{self.name} needs a pipeline with one batch at least. Received: a "
                f"{type(dataset).__name__} without any."
            )
        example = _unpacked(element)
        if not maps:
            if not isinstance(_first(example), dict):
                raise ValueError(
                    f"{self.name} reads strings from grain.MapDataset and IterDataset. "
                    f"Received: {type(dataset).__name__}."
                )
            self._tokenized_element(example)  # which refuses columns with names
        if not on_tensorflow:
            return batches
        from kzoo.data import open_tf_data

        # Keras would take the lengths of the first two batches for those of all.
        passes = [itertools.chain([element], begun)]
        return open_tf_data(
            lambda: map(_unpacked, passes.pop() if passes else batches),
            example,
            _widths(example),
        )

    def _tokenized_element(self, element):
        element = _unpacked(element)
        first = _first(element)
        if isinstance(first, dict):
            if self._names_columns(first) and any(
                np.asarray(part).dtype.kind in "USO" for part in first.values()
            ):
                raise self._refused_strings(element)
            return element
        return self._encoded(columns_of(element))

    def _one_element(self, spec):
        """What a pipeline gives of elements of `spec`, for one example."""
        parts = spec if isinstance(spec, tuple) else (spec,)
        x, *others = (*self.one_example, [1.0])[: len(parts)]
        if isinstance(parts[0], tuple):
            x = [("a",) * len(parts[0])]
        for i, part in enumerate(parts[1:]):
            shape = getattr(part, "shape", None)  # of a pair there is none
            if shape is None or not part.dtype.is_floating or shape.rank != 2:
                continue
            if shape[1] != 1:  # a distribution, or a vector of this length
                count = part.shape[1] or 1
                others[i] = [np.full(count, 1 / count)]
        return self._encoded([x, *others])

    def _encoded(self, columns):
        """A batch of a pipeline of strings: x, y and weights, where there are any."""
        weights = np.asarray(columns[2], "float32") if len(columns) > 2 else None
        return element_of(*self.encode_text(*columns[:2]), weights)

    def _names_columns(self, part):
        """Whether a part of an element is a dict of what are no inputs."""
        return isinstance(part, dict) and not {*self._signature()} & {*part}

    def _refused_strings(self, element):
        return ValueError(
            f"{self.name} reads pipelines of strings: text, (source, target), or "
            "(source, target, weight); of columns with names by dataset.map(lambda "
            f"row: (row['source'], row['target'])). Received elements of {element}."
        )

    def _refused_ragged(self, name, values):
        pad = self.config.pad_token_id
        return ValueError(
            f"{self.name} reads {name} as arrays, padded with {pad}. Received: a "
            f"{type(values).__name__}. Give its to_tensor({pad})."
        )


def _unpacked(element):
    """An element of grain's as Keras's tuple, without what it lacks at its end.

    Lists of arrays are tuples, too; a list of texts is one part.
    """
    element = _as_tuples(element)
    while isinstance(element, tuple) and len(element) > 1 and element[-1] is None:
        element = element[:-1]
    return element


def _as_tuples(part):
    first = part
    while isinstance(first, (list, tuple)) and len(first):
        first = first[0]
    if first is part or not isinstance(first, (dict, np.ndarray)):
        return part
    return tuple(map(_as_tuples, part))


def _first(element):
    """The inputs of an element."""
    return element[0] if isinstance(element, tuple) else element


def element_of(inputs, targets, weights=None):
    """What Keras takes of a pipeline: inputs, targets, and weights, as far as given."""
    if weights is None:
        return inputs if targets is None else (inputs, targets)
    if targets is None:
        raise ValueError("Weights are of targets, and there are none.")
    return inputs, targets, weights


def _widths(element):
    """How long the targets of an element are, where they are vectors: float (B, C)."""
    y = element[1] if isinstance(element, tuple) and len(element) > 1 else None
    vectors = isinstance(y, np.ndarray) and y.dtype.kind == "f" and y.ndim == 2
    return {y.shape[1]} if vectors and y.shape[1] > 1 else set()
