"""`fit`, `evaluate` and `predict` on strings, ids and pipelines."""

import collections.abc
import contextlib
import itertools
import json
import types
import warnings
from numbers import Number
from pathlib import Path

import keras
import numpy as np

from kzoo.tasks.batches import BatchesText
from kzoo.tasks.forms import (
    as_list,
    begins_with_text,
    holds_objects,
    is_grain,
    is_pair,
    is_table_of_text,
    is_text,
    is_tf_data,
    kinds,
    known_ints,
    split,
)
from kzoo.tasks.pipelines import ReadsPipelines
from kzoo.tasks.task import out_of_table
from kzoo.training.callbacks import ResumableCheckpoint, check_order


class LearnsText(BatchesText, ReadsPipelines):
    """Data in any form; a subclass says how examples become ids (`BatchesText`)."""

    def fit(
        self,
        x=None,
        y=None,
        *,
        batch_size=None,
        tokens_per_batch=None,
        epochs=1,
        validation_data=None,
        validation_split=0.0,
        sample_weight=None,
        class_weight=None,
        initial_epoch=0,
        shuffle=True,
        seed=0,
        **kwargs,
    ):
        """Keras's `fit`, also on strings.

        A batch of too few strings is filled with rows of padding, so that there are
        few shapes; but not where losses, metrics or a subclass's own steps, such as
        `train_step` or `compute_loss`, could count them. An `add_loss` does count them.

        Args:
            x: strings (a list or a column, as `encode_examples` takes them), a dict of
                int arrays as `call` takes it, or a grain or `tf.data` pipeline of such
                dicts or of strings, batched.
            y: targets of strings, as `encode_examples` takes them; or arrays as the
                loss does. A language model may leave them out: its targets are the
                decoder's inputs, one token on.
            batch_size: rows of a batch; 32 by default.
            tokens_per_batch: instead, for strings: padded tokens of a batch, target
                tokens where there is a decoder.
            epochs: index of the last epoch.
            validation_data: as a tuple (x, y) or (x, y, weights), as an x that needs no
                y, or a pipeline.
            validation_split: instead, the share of the examples, the last ones. Their
                batches are of `validation_batch_size`, or as those of the training.
            sample_weight: what each example counts; of arrays as Keras takes it.
            class_weight: dict from a class to what its examples count.
            initial_epoch: where to go on; strings come in that epoch's order.
            shuffle: a new order every epoch; a pipeline has its own.
            seed: of the order.
            **kwargs: of Keras's `fit`.

        Returns:
            Keras's `History`.

        Raises:
            ValueError: the examples cannot be read, or hold ids out of range;
                `steps_per_execution` of `compile` does not divide the steps of an
                epoch; or callbacks stand in an order in which one undoes another.
        """
        end_of_data = _end_of_data(kwargs)
        rows, held_out_rows = batch_size, kwargs.pop("validation_batch_size", None)
        callbacks = kwargs.get("callbacks") or []
        callbacks = getattr(callbacks, "callbacks", callbacks)  # a CallbackList
        callbacks = keras.tree.flatten(callbacks)
        check_order(callbacks)
        x, y = self._checked_examples(x), as_list(y)
        if self._is_raw(x, y):
            if validation_split and validation_data is None:
                x, y, sample_weight, validation_data = split(
                    x, y, sample_weight, validation_split
                )
            batches = self._batches(
                x,
                y,
                sample_weight,
                class_weight,
                batch_size=batch_size,
                tokens_per_batch=tokens_per_batch,
                shuffle=shuffle,
                seed=seed,
            )
            steps = kwargs.pop("steps_per_epoch", None) or len(batches)
            self._check_steps(steps)
            for callback in callbacks:
                # It will go on from there: so must the order of the examples.
                initial_epoch = _saved_epoch(callback) or initial_epoch
            x = self.pipeline(batches, start=initial_epoch * steps)
            y, batch_size, shuffle = None, None, False
            kwargs["steps_per_epoch"] = steps
        else:
            self._check_steps(kwargs.get("steps_per_epoch"))
            class_weight = self._class_weights(class_weight, of_ints=True)
            y = self._targets_beside(x, y, sample_weight)
            x = self._tokenized(x)
            ordered = isinstance(x, types.GeneratorType)
            shuffle = shuffle and not (ordered or is_tf_data(x) or is_grain(x))
            kwargs |= dict(
                validation_split=validation_split,
                sample_weight=sample_weight,
                class_weight=class_weight,
            )
        kwargs["validation_batch_size"] = held_out_rows or rows
        if validation_data is not None:
            validation_data = self._held_out(
                validation_data,
                held_out_rows or rows,
                None if held_out_rows else tokens_per_batch,
            )
        optimizer = getattr(self, "optimizer", None)
        if optimizer is not None and not optimizer.built:
            # Else Keras makes its variables in the first step and traces that twice.
            strategy = getattr(self, "distribute_strategy", None)  # TensorFlow's
            with strategy.scope() if strategy else contextlib.nullcontext():
                optimizer.build(self.trainable_variables)
        # Where a callback resumes: that of an earlier `fit`, if it never got that far.
        self._initial_epoch = None
        with end_of_data:
            return super().fit(
                x,
                y,
                batch_size=batch_size,
                epochs=epochs,
                validation_data=validation_data,
                initial_epoch=initial_epoch,
                shuffle=shuffle,
                **kwargs,
            )

    def _held_out(self, data, batch_size, tokens_per_batch):
        """What Keras validates on, for `validation_data` of `fit`."""
        is_list = isinstance(data, list) and is_pair(data)
        if is_list and isinstance(data[0], dict):  # Keras's tuple
            data = tuple(data)
        parts = data if isinstance(data, tuple) else (data,)
        if not 1 <= len(parts) <= 3:
            raise ValueError(
                "validation_data is x, (x, y) or (x, y, weights). Received: a tuple of "
                f"{len(parts)}."
            )
        parts = (self._checked_examples(parts[0]), *map(as_list, parts[1:]))
        x, y, weights = (*parts, None, None)[:3]
        if self._is_raw(x, y):
            held_out = self._batches(
                x,
                y,
                weights,
                batch_size=batch_size,
                tokens_per_batch=tokens_per_batch,
                shuffle=False,
            )
            return self.pipeline(held_out, epochs=1)
        if len(parts) > 1:
            return x, self._targets_beside(x, y, weights), *parts[2:]
        data = parts if isinstance(data, tuple) else x
        return data if is_pair(data) else self._tokenized(data)

    def evaluate(
        self, x=None, y=None, *, batch_size=None, sample_weight=None, **kwargs
    ):
        """Keras's `evaluate`, also on strings; see `fit`."""
        # Where `fit` validates, it has checked the data, and Keras reads an iterator
        # that it keeps: what is taken from a generator here would be lost to it.
        if not kwargs.get("_use_cached_eval_dataset"):
            x, y = self._checked_examples(x), as_list(y)
            if self._is_raw(x, y):
                batches = self._batches(
                    x, y, sample_weight, batch_size=batch_size, shuffle=False
                )
                x, y, batch_size = self.pipeline(batches, epochs=1), None, None
                sample_weight = None
            else:
                y = self._targets_beside(x, y, sample_weight)
                x = self._tokenized(x)
        with _end_of_data(kwargs):
            return super().evaluate(
                x, y, batch_size=batch_size, sample_weight=sample_weight, **kwargs
            )

    def train_on_batch(
        self, x, y=None, sample_weight=None, class_weight=None, return_dict=False
    ):
        """Keras's `train_on_batch`, also on strings; see `fit`."""
        optimizer = getattr(self, "optimizer", None)
        index = int(getattr(optimizer, "iterations", 0))
        batch = self._one_batch(x, y, sample_weight, class_weight, index)
        return super().train_on_batch(*batch, return_dict=return_dict)

    def test_on_batch(self, x, y=None, sample_weight=None, return_dict=False):
        """Keras's `test_on_batch`, also on strings; see `fit`."""
        *batch, _ = self._one_batch(x, y, sample_weight)
        return super().test_on_batch(*batch, return_dict=return_dict)

    def predict_on_batch(self, x):
        """Keras's `predict_on_batch`, also on strings."""
        x = self._checked_examples(x)
        return super().predict_on_batch(self._text_inputs(x) if is_text(x) else x)

    def _text_inputs(self, x):
        """A batch of strings as `predict` reads them."""
        return self.encode_text(x)[0]

    def _learned(self, batch, index):
        """A batch of features as the training step of this number reads it."""
        return batch

    def _one_batch(self, x, y, sample_weight, class_weight=None, index=0):
        """Inputs, targets, weights of examples and of classes, as Keras takes them."""
        x, y = self._checked_examples(x), as_list(y)
        if not self._is_raw(x, y):
            y = self._targets_beside(x, y, sample_weight)
            class_weight = self._class_weights(class_weight, of_ints=True)
            return x, y, sample_weight, class_weight
        batch = self._batch(self._features(x, y, sample_weight, class_weight))
        element = self._batch_element(self._learned(batch, index))
        element = element if isinstance(element, tuple) else (element,)
        return (*element, None, None, None)[:4]

    def _checked_examples(self, x):
        """`x`, with texts as a list and lists of ids as arrays.

        Raises:
            ValueError: there is no list of examples, or an empty one; ids are none of
                the model's; strings come out of something that Keras takes numbers
                from; or it is an iterator, but no generator.
        """
        x = as_list(x)
        if isinstance(x, (str, type(None))) or (
            isinstance(x, (list, tuple, dict, np.ndarray)) and not len(x)
        ):
            raise ValueError(
                f"{self.name} needs a list of examples, one at least. Received: {x!r}."
            )
        if isinstance(x, np.ndarray) and x.ndim == 2 and is_text(x):
            x = x.tolist()
        is_table = is_table_of_text(x)
        if is_table or holds_objects(x) and not is_text(x):
            raise ValueError(
                f"{self.name} reads a list of strings (or of pairs or lists of them), a"
                f" dict with {' and '.join(self._signature())}, int arrays of a row an "
                "example, or a batched pipeline of tf.data or grain of either. "
                f"Received: a {kinds(x)}{'; give its columns' * is_table}."
            )
        if isinstance(x, dict):
            x = {name: self._checked_array(name, values) for name, values in x.items()}
            rows = {
                name: values.shape[0]
                for name, values in x.items()
                if len(getattr(values, "shape", ()))
            }
            if len(set(rows.values())) > 1:
                raise ValueError(
                    f"{self.name} needs as many rows of every input. Received: {rows}."
                )
            if 0 in rows.values():
                raise ValueError(
                    f"{self.name} needs a list of examples, one at least. Received: "
                    f"arrays of so many rows: {rows}."
                )
        first = []
        if isinstance(x, keras.utils.PyDataset):
            first = [x[0]]
        elif isinstance(x, collections.abc.Iterator):
            first = list(itertools.islice(x, 1))
        if first and begins_with_text(first[0]):
            raise ValueError(
                f"{self.name} reads strings from a list, an array or a column of a "
                "table, or from a batched pipeline of tf.data or grain. Received: a "
                f"{type(x).__name__} of strings. Give a list of them, as x, and one of "
                "the targets, as y."
            )
        if isinstance(x, types.GeneratorType):
            return (element for element in itertools.chain(first, x))
        if isinstance(x, collections.abc.Iterator):
            raise ValueError(
                f"{self.name} reads batches from a generator, or from what gives them "
                "again for the next epoch, such as a grain.IterDataset. Received: an "
                f"iterator, {type(x).__name__}; give what it iterates over."
            )
        return x

    def _checked_array(self, name, values):
        """An input of a dict, a list as an array; others than these as they are.

        Raises:
            ValueError: it is no array of numbers, or holds ids that have no row in the
                table they are of.
        """
        listed = isinstance(values, (list, tuple, Number))
        kind = f"a {kinds(values)}" if listed else None
        if kind:
            try:
                values = np.asarray(values)
            except ValueError:  # rows of several lengths
                values = np.asarray("")
        if hasattr(values, "to_tensor"):  # TensorFlow's ragged ones
            raise self._refused_ragged(name, values)
        is_array = isinstance(values, np.ndarray)
        if is_array and (values.dtype.kind in "OSU" or not values.ndim):
            raise ValueError(
                f"{self.name} reads {name} as an array of numbers, with rows of one "
                f"length. Received: {kind or f'an array of {values.dtype}'}. Pad rows "
                f"with {self.config.pad_token_id}; strings go into a list, as x."
            )
        if name in self._signature():
            ids = values if is_array else known_ints(values)
            if ids is not None:
                self._check_table(name, ids)
        # JAX has no int64, which numpy makes of lists.
        return values.astype("int32") if kind and values.dtype == "int64" else values

    def _check_table(self, name, ids):
        """Raises `ValueError` where an array of ids has others than its table."""
        stack, size = self._table(name)
        if stack.positions == "learned" and ids.shape[-1] > stack.max_sequence_length:
            raise ValueError(
                f"{name} must have rows of at most {stack.max_sequence_length} ids, "
                "which is how many positions the model has learned. Received: rows of "
                f"{ids.shape[-1]}."
            )
        wrong = out_of_table(ids, size) if ids.dtype.kind in "iu" else None
        if wrong is not None:
            raise ValueError(f"{name} must be in [0, {size}). Received: {wrong}.")

    def _check_steps(self, steps):
        """Raises `ValueError` where Keras would run more steps than an epoch has."""
        size = self.steps_per_execution
        if steps and steps % size:
            raise ValueError(
                "steps_per_execution must divide the steps of an epoch, else Keras "
                f"trains {steps + -steps % size} instead. Received: steps_per_execution"
                f"={size} for {steps} steps. Compile with a divisor of {steps}, or fit "
                f"with steps_per_epoch={steps // size * size or size}."
            )

    def _targets_beside(self, x, y, weights):
        """`y`, lists as arrays, or what follows from `x`: see the tasks.

        Keras would drop weights without targets, and reads no lists beside a dict.
        """
        listed = isinstance(y, list) and isinstance((*y, 0)[0], (list, str, Number))
        if isinstance(x, (dict, np.ndarray)) and (listed or isinstance(y, np.ndarray)):
            return self._checked_array("targets", y)
        return y

    def _is_raw(self, x, y=None):
        """Whether `encode_examples` is to read this; else it is what Keras takes."""
        return is_text(x)

    def predict(self, x, **kwargs):
        """Keras's `predict`: logits, float (B, T, V); `x` may be strings, too."""
        x = self._checked_examples(x)
        if is_text(x):
            x = self._text_inputs(x)
        with _end_of_data(kwargs):
            return super().predict(self._tokenized(x), **kwargs)


def _saved_epoch(callback):
    """The epoch that a callback will have `fit` begin with, or `None`."""
    if isinstance(callback, ResumableCheckpoint):
        return callback.saved_epoch()
    if isinstance(callback, keras.callbacks.BackupAndRestore):
        said = Path(callback.backup_dir) / "training_metadata.json"
        return json.loads(said.read_text())["epoch"] if said.is_file() else None
    return None


@contextlib.contextmanager
def _end_of_data(options):
    """Without Keras's warning where a pipeline ends, which it gives for each whose
    length it cannot know; but with it where the user said how many steps there are.
    """  # noqa: D205  one sentence
    said = options.get("steps_per_epoch") or options.get("steps")
    with warnings.catch_warnings():
        if not said:
            warnings.filterwarnings("ignore", "Your input ran out of data")
        elif options.get("_use_cached_eval_dataset"):  # within what `fit` ignores
            warnings.filterwarnings("default", "Your input ran out of data")
        yield
