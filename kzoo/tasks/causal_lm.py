"""Causal language modelling: the next token after those before it."""

import math

import keras

from kzoo import ops
from kzoo.tasks.language_model import LanguageModel


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
        """Ids of strings: start + text + end.

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
        return {"token_ids": self._encode(x, start=True)}

    def score(self, x, *, batch_size=32):
        """Perplexity a token and bits a character, the end token counted.

        Bits a character do not depend on the tokenizer, so models compare by them.

        Args:
            x: strings.
            batch_size: rows of a batch.

        Returns:
            dict of `perplexity` and `bits_per_character`, floats.
        """
        nats = float(self.energy(x, batch_size=batch_size).astype("float64").sum())
        tokens = sum(len(row) - 1 for row in self.encode_examples(x)["token_ids"])
        characters = sum(len(text) + 1 for text in x)  # the end counts as one
        return {
            "perplexity": math.exp(nats / tokens),
            "bits_per_character": nats / math.log(2) / characters,
        }

    prompt_input = "token_ids"
    prompt_side = "left"

    def encode_prompts(self, texts):
        """Ids of prompts, after the start token: lists of int."""
        return self._encode(texts, start=True, end=False)

    def start(self, inputs, capacity):
        """What `generation.search` starts from: every prompt's last token.

        Rows may be padded on either side. They are moved to the right, behind one more
        place of padding, so that the prompt's own length is all that is computed and
        even an empty prompt has a place.

        Args:
            inputs: dict of `token_ids` int (B, T) and `padding_mask` bool (B, T).
            capacity: int, the most new tokens, where buffers are fixed.

        Returns:
            tokens int (B,), cache, index, and the step function.
        """
        ids, mask = inputs["token_ids"], inputs.get("padding_mask")
        if mask is None:
            mask = ops.not_equal(ids, self.config.pad_token_id)
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

        def decode(ids, cache, index, padding):
            capacity = ops.dim(cache[0][0], 2)
            count = ops.dim(ids, 1)
            keys = capacity + count if ops.buffers_grow() else capacity
            here = ops.expand_dims(ops.arange(count) + index, 0)
            return self.decoder(
                ids,
                padding_mask=ops.expand_dims(ops.arange(keys), 0) >= padding,
                positions=ops.maximum(here - padding, 0),
                cache=cache,
                index=index,
            )

        def step(tokens, cache, index):
            states, layers = decode(
                ops.expand_dims(tokens, 1), cache["layers"], index, cache["padding"]
            )
            logits = self.head(self._last_states(states))
            return logits, {"layers": layers, "padding": cache["padding"]}

        layers = self.decoder.empty_cache(
            batch, None if ops.buffers_grow() else length + capacity
        )
        _, layers = decode(before, layers, 0, padding)
        return tokens, {"layers": layers, "padding": padding}, length, step

    def call(self, inputs, training=None):
        """Logits of the next token at every position.

        Args:
            inputs: dict of `token_ids` int (B, T), and optionally `padding_mask` bool
                (B, T), by default where the id is not padding.
            training: whether dropout is applied.

        Returns:
            float (B, T, V).
        """
        self._check_keys(inputs, [*self._signature()], [self.prompt_mask])
        ids = inputs["token_ids"]
        mask = inputs.get("padding_mask")
        if mask is None:
            mask = ops.not_equal(ids, self.config.pad_token_id)
        return self.head(self.decoder(ids, padding_mask=mask, training=training))
