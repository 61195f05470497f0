"""What all tasks share: stacks and a head, sizes, compiled functions, export."""

import inspect
import threading
import types
import warnings

import keras
import numpy as np

from kzoo import ops
from kzoo.config import ModelConfig
from kzoo.generation import CompiledFunction
from kzoo.layers.lora import alpha_of, merged_matrices
from kzoo.models.encoder_decoder import make_stacks
from kzoo.models.model import Model
from kzoo.tasks.compiling import Compiles
from kzoo.tasks.fine_tuning import FineTunes
from kzoo.tasks.saving import Saves

_lock = threading.Lock()
_KEPT = 32  # compiled functions of a model; those used last


class Task(Compiles, FineTunes, Saves, Model):
    """Stacks, a head, a tokenizer and the verbs of a user.

    A subclass makes `self.head` and calls `self.build()`; it says which
    `architectures` it can have, the first by default, and in `own_options` what it
    is given besides. Layers of its own are made and built in `build`, before
    `super().build()`, with names, by which files know their weights.

    Args:
        config: a `ModelConfig`.
        tokenizer: a `kzoo.tokenizers.Tokenizer`, needed for strings.
    """

    architectures: tuple[str, ...]
    scored_by = "forward"  # the exported function that `score` asks for
    own_options = ()  # arguments that a class adds, attributes of their names
    loaded = None  # the `LoadReport` of a pretrained one
    writes = False  # whether a new one has to know where a text ends

    def __init__(self, config, tokenizer=None, **kwargs):
        if config.architecture not in self.architectures:
            raise ValueError(
                f"{type(self).__name__} needs a config of architecture "
                f"{' or '.join(map(repr, self.architectures))}. "
                f"Received: {config.architecture!r}."
            )
        super().__init__(**kwargs)
        if tokenizer is not None:
            smallest = smallest_table(config)
            if tokenizer.vocabulary_size > smallest:
                _refuse_or_warn(tokenizer, smallest)
            config = config.replace(**special_ids(tokenizer, smallest))
        self.config = config
        self.tokenizer = tokenizer
        self.encoder, self.decoder = make_stacks(config, self.dtype_policy)

    @classmethod
    def from_size(
        cls, size, tokenizer=None, vocabulary_size=None, architecture=None, **changes
    ):
        """A new model of a named size (see `ModelConfig.from_size`).

        Args:
            size: a key of `kzoo.config.SIZES`.
            tokenizer: for strings; it also gives the vocabulary size.
            vocabulary_size: needed without a tokenizer.
            architecture: one of the class's `architectures`; the first by default.
            **changes: fields of the configs, or other arguments of the class.

        Raises:
            ValueError: neither a tokenizer nor a vocabulary size; a task that writes,
                whose tokenizer has no end token, without an `end_token_id`; an id that
                is not the tokenizer's; a field of the configs that there is not, or a
                value that it does not take.
        """
        if vocabulary_size is None:
            if tokenizer is None:
                raise ValueError("from_size needs a tokenizer or a vocabulary_size.")
            vocabulary_size = tokenizer.vocabulary_size
        own = {"name", "dtype"}.union(
            *(inspect.signature(kind.__init__).parameters for kind in cls.__mro__[:-1])
        )
        own = {name: changes.pop(name) for name in list(changes) if name in own}
        changes |= cls.begins(tokenizer, changes)
        config = ModelConfig.from_size(
            size, architecture or cls.architectures[0], vocabulary_size, **changes
        )
        for name, id in special_ids(tokenizer, smallest_table(config)).items():
            if changes.get(name) not in (None, id):
                raise ValueError(
                    f"{name} is the tokenizer's, {id}. Leave it out, or take a "
                    f"tokenizer that has another. Received: {changes[name]!r}."
                )
        return cls(config, tokenizer=tokenizer, **own)

    @classmethod
    def begins(cls, tokenizer, given):
        """What the texts of a new model begin with that its tokenizer does not say.

        Args:
            tokenizer: a `Tokenizer`, or `None`.
            given: dict of the fields of the config that a user names.

        Returns:
            dict of more fields: of a task that writes, for which neither names a start,
            the end token as one, as GPT-2 has it.

        Raises:
            ValueError: neither names an end, for another token would be a word.
        """
        if not cls.writes or tokenizer is None:
            return {}
        end = tokenizer.end_token_id
        end = given.get("end_token_id") if end is None else end
        if end is None:
            raise ValueError(
                f"{cls.__name__} must know where a text ends, and the tokenizer has no "
                "end token. Take one that has, or give end_token_id, of a token that "
                "no text has."
            )
        begins = "start_token_id" in given or tokenizer.start_token_id is not None
        return {} if begins else {"start_token_id": end}

    def build(self, *_):
        """Builds stacks and head inside this model's name scope."""
        if self.built:
            return
        for part in (self.encoder, self.decoder, self.head):
            if part is not None:
                part.build()
        self.built = True

    @property
    def stack(self):
        """The stack that the head reads."""
        return self.decoder or self.encoder

    @property
    def options(self):
        """What the task was given beside config and tokenizer, as JSON can hold it."""
        kinds = reversed(type(self).__mro__)
        names = [name for kind in kinds for name in vars(kind).get("own_options", ())]
        return {name: getattr(self, name) for name in names}

    def compiled_function(self, key, function, signature):
        """A function of tensors that reads this model's weights, compiled once.

        Args:
            key: what it is kept under.
            function: of tensors, to a structure of tensors.
            signature: (shape, dtype) of every argument, `None` for a free axis.

        Returns:
            `kzoo.generation.CompiledFunction`.
        """
        if merged_matrices():  # which are gone soon
            return CompiledFunction(self, function, signature)
        # A graph reads the variables of when it was traced, and LoRA adds some; of the
        # adapters' alpha it holds the number.
        read = (*map(id, self.variables), *map(alpha_of, self._flatten_layers()))
        with _lock:
            kept = getattr(self, "_compiled_functions", None)
            if kept is None or kept.read != read:
                # Where Keras does not look into.
                kept = types.SimpleNamespace(read=read, functions={})
                self._compiled_functions = kept
            made = kept.functions.pop(key, None)
            if made is None:
                made = CompiledFunction(self, function, signature)
            kept.functions[key] = made  # the last one is the one used last
            while len(kept.functions) > _KEPT:
                del kept.functions[next(iter(kept.functions))]
        return made

    def _check_keys(self, inputs, required, optional):
        """Raises `ValueError` unless inputs are a dict of these, and maybe those."""
        if not isinstance(inputs, dict):
            # A tracer's own name would say nothing.
            array = keras.ops.is_tensor(inputs) or isinstance(inputs, np.ndarray)
            raise ValueError(
                f"{self.name} reads a dict with {' and '.join(required)}, int (batch, "
                f"length). Received: {'an array' if array else type(inputs).__name__}."
            )
        if not set(required) <= set(inputs) <= {*required, *optional}:
            raise ValueError(
                f"{self.name} reads {' and '.join(required)}, and {optional} where "
                f"given. Received the keys {sorted(inputs)}."
            )

    def _padding_mask(self, ids, mask=None):
        """Where ids are real: as the mask says, or where the id is not padding's."""
        return ops.not_equal(ids, self.config.pad_token_id) if mask is None else mask

    def broken_weights(self):
        """Yields the names of weights that hold NaN or infinity."""
        for name, variable in self.named_variables().items():
            if not np.isfinite(np.asarray(variable)).all():
                yield name

    def _explain_numbers(self, purpose, outputs):
        """Says why numbers are not finite.

        Args:
            purpose: what cannot be done with them, such as `"predicted"`.
            outputs: what they are, such as `"logits"`; `None` where only a weight may
                be the reason.

        Raises:
            ValueError: a weight is not finite, which is named; or else `outputs`.
        """
        for name in self.broken_weights():
            raise ValueError(
                f"The weight {name} holds NaN or infinity, so that nothing can be "
                f"{purpose}. Load weights from before training diverged."
            )
        if outputs is not None:
            raise ValueError(
                f"The {outputs} of {self.name} are NaN or infinite, though all weights "
                f"are finite: what it computes in {self.compute_dtype} becomes too "
                "large. "
                + (
                    "Look for a weight that is far too large."
                    if self.compute_dtype == "float32"
                    else "Load it with dtype='float32', or 'bfloat16'."
                )
            )

    def export(self, path, format="tf_saved_model", **options):
        """Writes a verified artifact; see `kzoo.exporters.export`."""
        from kzoo.exporters import export

        return export(self, path, format, **options)

    def __setattr__(self, name, value):
        """Keras's; metrics may come after `build`, which `__init__` calls."""
        values = value if isinstance(value, (list, tuple)) else [value]
        late = all(isinstance(each, keras.Metric) for each in values)
        if not (late and values and vars(self).get("built")):
            return super().__setattr__(name, value)
        self._tracker.unlock()
        try:
            super().__setattr__(name, value)
        finally:
            self._lock_state()

    def _lock_state(self):
        """Keras's, after `build`; says where a subclass makes its layers."""
        if not self._tracker.locked:
            self._tracker.lock(
                "A task is built in its __init__. Make and build layers of your own in "
                "build(), before super().build(), with names; metrics may come later."
            )


def out_of_table(ids, size):
    """An id that is not in [0, size), or `None`; of a list or an array of integers."""
    array = np.asarray(ids)
    if not array.size:
        return None
    lowest, highest = array.min(), array.max()
    if lowest < 0:
        return lowest
    return highest if highest >= size else None


def smallest_table(config):
    """How many tokens each of a config's stacks has."""
    stacks = (config.encoder, config.decoder)
    return min(stack.vocabulary_size for stack in stacks if stack)


def special_ids(tokenizer, size):
    """What a model of `size` tokens has from its tokenizer, or from no tokenizer.

    What a vocabulary lacks, such as a mask, is left to the config, and so is what lies
    beyond the model's table, of which texts have none.
    """
    ids = {}
    for name in ("pad_token_id", "start_token_id", "end_token_id", "mask_token_id"):
        id = getattr(tokenizer, name, None)
        beyond = name in ("pad_token_id", "mask_token_id") and (id or 0) >= size
        if id is not None and not beyond:
            ids[name] = id
    return ids


def _refuse_or_warn(tokenizer, size):
    said = (
        f"The tokenizer has {tokenizer.vocabulary_size} tokens, the model only {size}"
    )
    if tokenizer.conventions.layout is None:
        raise ValueError(
            f"{said}. Build the model with vocabulary_size={tokenizer.vocabulary_size}."
        )
    # Published models have added tokens that they never saw, such as one of images.
    warnings.warn(f"{said}: texts with one of the others are refused.", stacklevel=4)
