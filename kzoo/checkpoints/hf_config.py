"""Rules between the keys of a `config.json` and the fields of a `ModelConfig`.

A rule reads the keys that it names and gives fields; it also writes the keys that give
these fields. Fields are named as in `ModelConfig` or `StackConfig`; one of a stack
alone as `encoder.num_layers`, else it is that of all stacks.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

REQUIRED = object()

# Names of activations that compute what kzoo's do; the first ones are written.
ACTIVATIONS = {
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
    "gelu_new": "gelu_tanh",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "linear": "linear",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_python": "gelu",
    "swish": "silu",
}


class Unsupported(ValueError):
    """A checkpoint asks for what kzoo does not compute."""


@dataclasses.dataclass(frozen=True)
class Key:
    """One key that is one field.

    Args:
        name: of the key.
        field: that it gives; several, separated by spaces, are given the same.
        default: where the key is left out; by default it must be there. A function of
            all keys gives it where the key is `None`, too.
        values: from the key's values to the field's, where these differ.
    """

    name: str
    field: str
    default: Any = REQUIRED
    values: Mapping | None = None

    @property
    def names(self):
        """The keys that are read."""
        return (self.name,)

    def read(self, keys):
        """Fields of keys."""
        value = keys.get(self.name, self.default)
        if callable(self.default) and value in (None, self.default):
            value = self.default(keys)
        if value is REQUIRED:
            raise Unsupported(f"config.json lacks {self.name!r}, which is needed.")
        if self.values is not None:
            if value not in self.values:
                raise Unsupported(
                    f"{self.name}={value!r} is not supported. "
                    f"Supported: {list(self.values)}."
                )
            value = self.values[value]
        return dict.fromkeys(self._fields, value)

    def write(self, field_of):
        """Keys of fields."""
        values = {repr(field_of(field)): field_of(field) for field in self._fields}
        if len(values) > 1:
            raise Unsupported(
                f"{self.name} is one number for {self.field}. Received: {list(values)}."
            )
        (value,) = values.values()
        if self.values is not None:
            inverse = {own: theirs for theirs, own in reversed(self.values.items())}
            if self.default in self.values:  # which the family's own files have
                inverse[self.values[self.default]] = self.default
            if value not in inverse:
                raise Unsupported(
                    f"{self.field}={value!r} has no {self.name}. It can be one of "
                    f"{list(inverse)}."
                )
            value = inverse[value]
        return {self.name: value}

    @property
    def _fields(self):
        return self.field.split()


def dimensions(hidden=REQUIRED, layers=REQUIRED, heads=REQUIRED, intermediate=REQUIRED):
    """The rules of what nearly every config names alike, with the family's defaults."""
    return (
        Key("vocab_size", "vocabulary_size"),
        Key("hidden_size", "hidden_dim", hidden),
        Key("num_hidden_layers", "num_layers", layers),
        Key("num_attention_heads", "num_heads", heads),
        Key("intermediate_size", "intermediate_dim", intermediate),
        Key("initializer_range", "initializer_range", 0.02),
    )


def activation(name, default=REQUIRED, field="activation"):
    """The `Key` of an activation."""
    return Key(name, field, default, ACTIVATIONS)


def gated_activation(default):
    """The rule of `feed_forward_proj`, such as "relu" or "gated-gelu", as T5 has it.

    Where they are there `dense_act_fn` and `is_gated_act` say its two halves.
    """

    def read(keys):
        said = keys.get("feed_forward_proj", default)
        kind, _, name = said.rpartition("-")
        # That one is the tanh approximation, whatever its name says.
        name = "gelu_new" if said == "gated-gelu" else name
        name, gated = keys.get("dense_act_fn", name), keys.get("is_gated_act", kind)
        if name not in ACTIVATIONS or kind not in ("", "gated"):
            raise Unsupported(
                f"feed_forward_proj={said!r} with dense_act_fn={name!r} is not "
                f"supported. Supported: {list(ACTIVATIONS)}, gated- before it or not."
            )
        kind = "gated" if gated else "plain"
        return {"activation": ACTIVATIONS[name], "feed_forward": kind}

    def write(field_of):
        own, gated = field_of("activation"), field_of("feed_forward") == "gated"
        name = next(name for name, value in ACTIVATIONS.items() if value == own)
        said = {"gelu_new": "gelu"}.get(name, name) if gated else name
        keys = {"feed_forward_proj": f"gated-{said}" if gated else said}
        return {**keys, "dense_act_fn": name, "is_gated_act": gated}

    return Rule(("feed_forward_proj", "dense_act_fn", "is_gated_act"), read, write)


@dataclasses.dataclass(frozen=True)
class Only:
    """A key of which kzoo knows some values alone: others are refused by name."""

    name: str
    value: Any  # also where the key is left out, and what is written
    others: tuple = ()
    written: bool = True  # a key of older files need not be

    @property
    def names(self):
        """The keys that are read."""
        return (self.name,)

    def read(self, keys):
        """No fields; raises where the value is another."""
        value = keys.get(self.name, self.value)
        if value not in (self.value, *self.others):
            raise Unsupported(
                f"{self.name}={value!r} is not supported. "
                f"Supported: {[self.value, *self.others]}."
            )
        return {}

    def write(self, field_of):
        """The key."""
        return {self.name: self.value} if self.written else {}


@dataclasses.dataclass(frozen=True)
class Rule:
    """Keys and fields that two functions relate.

    Args:
        names: keys that are read.
        read: a function of a dict of all keys, to a dict of fields.
        write: a function of a function from a field's name to its value, to a dict of
            keys; by default none are written.
    """

    names: tuple[str, ...]
    read: Any
    write: Any = lambda field_of: {}


def special_ids(pad=None, start=None, end=None, mask=None, start_key="bos_token_id"):
    """The rule of special tokens, with what they are where keys are left out.

    A checkpoint may name no padding, or the end as padding, which kzoo's masks cannot
    have: then it is the last id. A tokenizer knows better which id no text has.

    Args:
        pad: id of padding, where the config names none; so for the next three.
        start: id of the decoder's first input.
        end: id of the end.
        mask: id of the mask token, which no config names; -1 is the last one.
        start_key: the key of the first input's id.
    """

    def read(keys):
        size = keys["vocab_size"]
        ends = keys.get("eos_token_id", end)
        ends = [*ends] if isinstance(ends, list) else [ends]
        first = keys.get(start_key, start)
        first = start if first is None else first
        last = end if ends[0] is None else ends[0]
        if last is None:  # a base model of ids alone
            last = first if first is not None else 0
        first = last if first is None else first
        padding = keys.get("pad_token_id", pad)
        padding = pad if padding is None else padding
        free = [i for i in (size - 1, size - 2) if i != last]
        if padding is None or padding == last or not 0 <= padding < size:
            padding = free[0]
        inside = {"end_token_id": min(last, size - 1), "start_token_id": first}
        if inside["end_token_id"] == padding:
            inside["end_token_id"] = next(i for i in range(size) if i != padding)
        inside["start_token_id"] = min(first, size - 1)
        guess = mask and (size - 1 if mask < 0 else min(mask, size - 1))
        if guess == padding:
            guess = next(i for i in range(size) if i != padding)
        return {"pad_token_id": padding, "mask_token_id": guess, **inside}

    def write(field_of):
        return {
            "pad_token_id": field_of("pad_token_id"),
            start_key: field_of("start_token_id"),
            "eos_token_id": field_of("end_token_id"),
        }

    return Rule(("pad_token_id", start_key, "eos_token_id"), read, write)
