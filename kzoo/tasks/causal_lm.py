"""Causal language modelling: the next token after those before it."""

import math

import keras

from kzoo import ops
from kzoo.exporters.signatures import Argument
from kzoo.generation import Place, Start
from kzoo.tasks.forms import is_text
from kzoo.tasks.genai import genai_function
from kzoo.tasks.language_model import LanguageModel
from kzoo.tokenizers import Template
from kzoo.training.scores import perplexity


@keras.saving.register_keras_serializable("kzoo")
class CausalLM(LanguageModel):
    """A decoder with a language-model head.

    Args:
        config: a `ModelConfig` with a decoder alone.
        tokenizer: for strings.

    Example:
        >>> model = kzoo.CausalLM.from_size("mini", tokenizer, positions="rotary")
        >>> model.compile()
        >>> model.fit(texts, epochs=3)
        >>> model.generate(["Once upon"], max_new_tokens=20)
    """

    architectures = ("decoder",)
    decoder_input = "token_ids"

    def _signature(self):
        return ("token_ids",)

    def encode_examples(self, x, y=None):
        """Ids of strings: start + text + end, with a start as the tokenizer has it.

        Args:
            x: strings.
            y: must be left out, the targets are the text itself.

        Returns:
            dict of `token_ids`, lists of lists of int.
        """
        if y is not None:
            raise ValueError(
                "CausalLM learns each text from itself: give fit(texts) without y."
            )
        before, behind = self.template.around()
        end = [self.config.end_token_id]
        behind = behind if behind[-1:] == end else [*behind, *end]
        return {"token_ids": self._encode(x, before, behind)}

    def score(self, x, *, batch_size=32):
        """Perplexity a token and bits a character, the end token counted.

        Bits a character do not depend on the tokenizer, so models compare by them.

        Args:
            x: strings.
            batch_size: rows of a batch.

        Returns:
            dict of `perplexity` and `bits_per_character`, floats.

        Raises:
            ValueError: no strings, or one that is longer than the learned positions.
        """
        x = self._checked_examples(x)
        if not is_text(x):
            raise ValueError(
                f"{self.name}.score reads a list of strings. For token ids use energy. "
                f"Received: {type(x).__name__}."
            )
        nats = float(self.energy(x, batch_size=batch_size).astype("float64").sum())
        rows = self.encode_examples(x)["token_ids"]
        tokens = sum(len(row) - 1 for row in rows)
        if not tokens:
            raise ValueError(
                f"{self.name} reads nothing before the first token of a text, so that "
                "a text needs a second one to be scored. Received: empty texts."
            )
        characters = sum(len(text) + 1 for text in x)  # the end counts as one
        if not self.prompt_specials[0]:  # and the first token is only read
            first = self.tokenizer.decode([row[:1] for row in rows])
            characters -= sum(map(len, first))
            characters -= sum(len(row) == 1 for row in rows)  # an end alone
        return {
            "perplexity": perplexity(nats / tokens),
            "bits_per_character": nats / math.log(2) / characters,
        }

    prompt_input = "token_ids"
    prompt_side = "left"

    @property
    def prompt_specials(self):
        """The ids before and behind a prompt's own."""
        return self.template.around()[0], []

    @property
    def own_template(self):
        """Texts begin with the start token."""
        return Template.of([self.config.start_token_id])

    def encode_prompts(self, texts):
        """Ids of prompts, after what a text begins with: lists of int."""
        return self._encode(texts, *self.prompt_specials)

    def text_rows(self, example):
        """The ids of a prompt, see `export_rows`."""
        if not isinstance(example, str):
            raise ValueError(f"{self.name} continues a text. Received: {example!r}.")
        return [{"token_ids": self.encode_prompts([example])[0]}]

    def _checked_row(self, row):
        (ids,) = super()._checked_row(row).values()
        ids = [i for i in ids if i != self.config.pad_token_id]
        self._check_prompts([ids], [1])  # else none can be generated
        return {"token_ids": ids or [self.config.start_token_id]}

    def start(self, inputs, entries):
        """Every prompt's last token, and the cache of those before it.

        Rows may be padded on either side. They are moved to the right, behind one more
        place of padding, so that the prompt's own length is all that is computed and
        even an empty prompt has a place.

        Args:
            inputs: dict of `token_ids` int (B, T) and `padding_mask` bool (B, T).
            entries: int, the most that steps add to the cache; `None` where buffers
                grow, see `ops.fixed_buffers`.

        Returns:
            A `kzoo.generation.Start`.
        """
        ids = inputs["token_ids"]
        mask = self._padding_mask(ids, inputs.get("padding_mask"))
        order = ops.argsort(ops.cast(mask, "int32"))  # stable: padding comes first
        ids = ops.take_along_axis(ids, order, axis=1)
        real = ops.sum(ops.cast(mask, "int32"), axis=1)
        batch, length = ops.dim(ids, 0), ops.dim(ids, 1)
        last = ops.reshape(ops.slice_axis(ids, -1, None, axis=1), (-1,))
        tokens = ops.where(real > 0, last, self.config.start_token_id)
        before = ops.concatenate(
            [
                ops.full((batch, 1), self.config.pad_token_id, "int32"),
                ops.slice_axis(ids, None, -1, axis=1),
            ],
            axis=1,
        )
        # Places of padding before each row's first token; a row's own counting.
        padding = ops.expand_dims(length - ops.maximum(real - 1, 0), 1)
        empty = self.decoder.empty_cache(
            batch, None if ops.buffers_grow() else length + entries
        )

        def prefill(by_row):
            return self._decode(before, empty, Place.behind(0, by_row), padding)[1]

        place = ops.expand_dims(ops.arange(length) + 1, 0)
        prompt = ops.where(place > length - ops.expand_dims(real, 1), ids, -1)
        seen = ops.expand_dims(ops.arange(length), 0) >= padding
        fixed = {"padding": padding}
        return Start(tokens, empty, length, fixed, prompt, seen, prefill)

    def step(self, tokens, cache, place, fixed):
        """Reads a token of every beam; see `kzoo.generation.search`."""
        states, cache = self._decode(tokens, cache, place, fixed["padding"])
        return self.head(states), cache

    def kept_arguments(self):
        """What `step` takes besides the cache, as `prefill` gave it."""
        return [Argument("padding", "int32", ("batch", 1))]

    @ops.fixed_buffers(False)
    def prefill(self, inputs):
        """The logits behind each prompt, the cache, and what stays as it is.

        Args:
            inputs: see `start`.

        Returns:
            float (B, V); a list of keys and values, float (B, K, P, H), one a layer;
            and a dict of the `kept_arguments`.
        """
        start = self.start(inputs, None).prefilled(by_row=True)
        return *self._one_step(*start[:4]), start.fixed

    @ops.fixed_buffers(False)
    def resume(self, tokens, layers, kept):
        """The logits behind one more token int (B,), and the cache; see `prefill`."""
        return self._one_step(tokens, layers, ops.dim(layers[0][0], 2), kept)

    def genai_function(self):
        """What `export` writes as `format="genai"`; see `kzoo.tasks.genai`."""
        return genai_function(self)

    def _decode(self, ids, cache, place, padding):
        """States of ids behind a cache whose rows begin with so much `padding`."""
        arguments, here = place.arguments(), ops.as_scalar(place.index)
        if place.seen is None:
            keys, count = ops.cached_length(cache[0]), ops.dim(ids, 1)
            keys = keys + count if ops.buffers_grow() else keys
            keys = ops.expand_dims(ops.arange(keys), 0)
            arguments["padding_mask"] = keys >= padding
            here = ops.expand_dims(ops.arange(count) + here, 0)
        positions = ops.maximum(here - padding, 0)
        if place.by_row and self.config.decoder.positions == "rotary":
            # A key is rotated before it is kept.
            arguments["places"] = positions, ops.maximum(keys - padding, 0)
        return self.decoder(ids, positions=positions, cache=cache, **arguments)

    def call(self, inputs, training=None):
        """Logits of the next token at every position.

        Args:
            inputs: dict of `token_ids` int (B, T), and optionally `padding_mask` bool
                (B, T), by default where the id is not padding.
            training: whether dropout is applied.

        Returns:
            float (B, T, V).
        """
        self._check_keys(inputs, self._signature(), [self.prompt_mask])
        ids = inputs["token_ids"]
        mask = self._padding_mask(ids, inputs.get("padding_mask"))
        return self.head(self.decoder(ids, padding_mask=mask, training=training))
