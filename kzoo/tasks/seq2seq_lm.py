"""Sequence to sequence: translation, summarisation, any text to text."""

import keras

from kzoo import ops
from kzoo.tasks.language_model import LanguageModel
from kzoo.training.scores import translation_scores


@keras.saving.register_keras_serializable("kzoo")
class Seq2SeqLM(LanguageModel):
    """An encoder-decoder with a language-model head.

    Args:
        config: a `ModelConfig` with encoder and decoder.
        tokenizer: for strings, on both sides.

    Example:
        >>> translator = kzoo.Seq2SeqLM.from_size("mini", tokenizer)
        >>> translator.compile()
        >>> translator.fit(english, german, epochs=20)
        >>> translator.generate(["A man rides a bike."], beams=4)
        ['Ein Mann fährt Fahrrad.']
        >>> translator.score(test_english, test_german, beams=4)["bleu"]
        39.9
    """

    architectures = ("encoder_decoder",)
    decoder_input = "decoder_token_ids"
    one_example = (["a"], ["a"])

    def _signature(self):
        return ("decoder_token_ids", "encoder_token_ids")

    def encode_examples(self, x, y=None):
        """Ids of source and target strings: source + end; start + target + end.

        Args:
            x: source strings, or (source, target) pairs.
            y: target strings, when `x` has sources only.

        Returns:
            dict of `encoder_token_ids` and `decoder_token_ids`, lists of lists of int.
        """
        if y is None:
            if not all(
                isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in x
            ):
                raise ValueError(
                    f"{self.name} learns from pairs: give fit(sources, targets), or a "
                    f"list of (source, target). Received: {x[0]!r} first, without y."
                )
            x, y = zip(*x, strict=True)
        if len(x) != len(y):
            raise ValueError(
                f"Every source needs a target. Received: {len(x)} and {len(y)}."
            )
        return {
            "encoder_token_ids": self._encode(x),
            "decoder_token_ids": self._encode(y, start=True),
        }

    def encode(self, inputs, training=None):
        """The encoder's states and its padding mask.

        Args:
            inputs: see `call`.
            training: whether dropout is applied.

        Returns:
            float (B, S, D), bool (B, S).
        """
        ids = inputs["encoder_token_ids"]
        mask = inputs.get("encoder_padding_mask")
        if mask is None:
            mask = ops.not_equal(ids, self.config.pad_token_id)
        return self.encoder(ids, padding_mask=mask, training=training), mask

    prompt_input = "encoder_token_ids"
    prompt_side = "right"

    def encode_prompts(self, texts):
        """Ids of source strings, with the end token: lists of int."""
        return self._encode(texts)

    def start(self, inputs, capacity):
        """What `generation.search` starts from: the start token, nothing cached.

        Args:
            inputs: dict of `encoder_token_ids` int (B, S) and `encoder_padding_mask`.
            capacity: int, the most new tokens, where buffers are fixed.

        Returns:
            tokens int (B,), cache, index, and the step function.
        """
        memory, mask = self.encode(inputs)
        projected = self.decoder.project_memory(memory)
        batch = ops.dim(memory, 0)

        def step(tokens, cache, index):
            states, cache = self.decoder(
                ops.expand_dims(tokens, 1),
                cache=cache,
                index=index,
                projected=projected,
                memory_padding_mask=mask,
            )
            return self.head(self._last_states(states)), cache

        tokens = ops.full((batch,), self.config.start_token_id, "int32")
        return tokens, self.decoder.empty_cache(batch, capacity), 0, step

    def score(self, x, y, **options):
        """BLEU and chrF of what is generated, by sacrebleu (detokenised, cased).

        Args:
            x: source strings.
            y: target strings, one each.
            **options: of `generate`.

        Returns:
            dict of `bleu` and `chrf`, in [0, 100], and `signature`, sacrebleu's words
            for how BLEU was computed.
        """
        if len(x) != len(y):
            raise ValueError(
                f"Every source needs a target. Received: {len(x)} and {len(y)}."
            )
        return translation_scores(list(y), self.generate(list(x), **options))

    def call(self, inputs, training=None):
        """Logits of the next token at every position.

        Args:
            inputs: dict of `encoder_token_ids` int (B, S), `decoder_token_ids` int
                (B, T), padded on the right, and optionally `encoder_padding_mask` bool
                (B, S); by default what is not the padding id is real.
            training: whether dropout is applied.

        Returns:
            float (B, T, V).
        """
        self._check_keys(inputs, [*self._signature()], [self.prompt_mask])
        memory, mask = self.encode(inputs, training=training)
        states = self.decoder(
            inputs["decoder_token_ids"],
            memory=memory,
            memory_padding_mask=mask,
            training=training,
        )
        return self.head(states)
