"""Sequence to sequence: translation, summarisation, any text to text."""

import keras

from kzoo import ops
from kzoo.exporters.signatures import Argument
from kzoo.generation import Start
from kzoo.tasks.forms import as_list
from kzoo.tasks.language_model import LanguageModel
from kzoo.tasks.stepwise import by_layer, cache_names, flat
from kzoo.tokenizers import Template
from kzoo.tokenizers.texts import check_texts
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
    scored_by = "generate"
    decoder_input = "decoder_token_ids"
    one_example = (["a"], ["a"])

    def _signature(self):
        return ("decoder_token_ids", "encoder_token_ids")

    def encode_examples(self, x, y=None):
        """Ids of source and target strings: source + end; start + target + end.

        A pretrained tokenizer may have codes of languages there, too.

        Args:
            x: source strings, or (source, target) pairs.
            y: target strings, when `x` has sources only.

        Returns:
            dict of `encoder_token_ids` and `decoder_token_ids`, lists of lists of int.
        """
        if y is None:
            sides = isinstance(x, tuple) and len(x) == 2
            if sides and not any(isinstance(side, str) for side in x):
                raise ValueError(
                    "A tuple of two might be sources and targets, or two pairs. Give "
                    "fit(sources, targets), or a list of (source, target). "
                    f"Received: {x!r}."
                )
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
        targets = self.text_tokenizer.encode_targets(list(y))
        before = self.config.start_token_id, *self.learned_prefix
        return {
            "encoder_token_ids": self.encode_prompts(x),
            "decoder_token_ids": [
                [*before, *ids, self.config.end_token_id] for ids in targets
            ],
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
        mask = self._padding_mask(ids, inputs.get("encoder_padding_mask"))
        return self.encoder(ids, padding_mask=mask, training=training), mask

    prompt_input = "encoder_token_ids"
    prompt_side = "right"

    @property
    def prompt_specials(self):
        """The ids before and behind a prompt's own."""
        return tuple(self.template.around())

    @property
    def own_template(self):
        """Sources end with the end token."""
        return Template.of((), [self.config.end_token_id])

    def encode_prompts(self, texts):
        """Ids of source strings, with what is around them: lists of int."""
        tokenizer, config = self.text_tokenizer, self.config
        start = tokenizer.start_token_id
        if tokenizer.conventions.template and start not in (
            None,
            config.start_token_id,
        ):
            raise ValueError(
                f"The tokenizer's targets begin with {start}, the model's with "
                f"{config.start_token_id}: build the model again with this tokenizer. "
                f"Received: {tokenizer.tokens([start])[0]!r}."
            )
        return self._encode(texts, *self.prompt_specials)

    def text_rows(self, example):
        """The ids of a source, and of its target if there is one; see `export_rows`."""
        if isinstance(example, str):
            return [{"encoder_token_ids": self.encode_prompts([example])[0]}]
        if len(example) != 2:
            raise ValueError(
                f"{self.name} reads a source, or a source and a target. "
                f"Received: {example!r}."
            )
        features = self.encode_examples([tuple(example)])
        # `forward` reads what is before the last id, the end.
        features["decoder_token_ids"] = [features["decoder_token_ids"][0][:-1]]
        return [{name: rows[0] for name, rows in features.items()}]

    def _checked_row(self, row):
        """Without a target the decoder reads the source: any ids compare the two."""
        if "decoder_token_ids" not in row and "encoder_token_ids" in row:
            config = self.config.decoder
            source = self._checked_ids("encoder_token_ids", row["encoder_token_ids"])
            ids = [i for i in source if i < config.vocabulary_size]
            ids = [self.config.start_token_id, *ids][: config.max_sequence_length]
            row = {**row, "decoder_token_ids": ids}
        return super()._checked_row(row)

    def start(self, inputs, entries):
        """The start token, nothing cached, and what the encoder made of the source.

        Args:
            inputs: dict of `encoder_token_ids` int (B, S) and `encoder_padding_mask`.
            entries: int, the most that steps add to the cache; `None` where buffers
                grow, see `ops.fixed_buffers`.

        Returns:
            A `kzoo.generation.Start`.
        """
        memory, mask = self.encode(inputs)
        batch = ops.dim(memory, 0)
        begin = ops.full((batch, 1), self.config.start_token_id, "int32")
        return Start(
            ops.reshape(begin, (-1,)),
            self.decoder.empty_cache(batch, entries),
            0,
            {"projected": self.decoder.project_memory(memory), "mask": mask},
            prompt=begin,
        )

    def step(self, tokens, cache, place, fixed):
        """Reads a token of every beam; see `kzoo.generation.search`."""
        states, cache = self.decoder(
            tokens,
            cache=cache,
            projected=fixed["projected"],
            memory_padding_mask=fixed["mask"],
            **place.arguments(),
        )
        return self.head(states), cache

    def kept_arguments(self):
        """What `step` takes besides the cache, as `prefill` gave it."""
        memory = cache_names("memory_{}_{}", self.config.decoder, "sequence")
        return [
            Argument("memory_padding_mask", "bool", ("batch", "sequence")),
            *(Argument(name, "float32", axes) for name, axes in memory.items()),
        ]

    @ops.fixed_buffers(False)
    def prefill(self, inputs):
        """The logits behind the start token, the cache, and what stays as it is.

        Args:
            inputs: see `start`.

        Returns:
            float (B, V); a list of keys and values, float (B, K, 1, H), one a layer;
            and a dict of the `kept_arguments`.
        """
        start = self.start(inputs, None).prefilled()
        logits, layers = self._one_step(*start[:4])
        mask, *names = [argument.name for argument in self.kept_arguments()]
        heads = self.config.decoder.num_key_value_heads
        memory = [
            x if len(x.shape) == 4 else ops.split_heads(x, heads)
            for x in flat(start.fixed["projected"])
        ]
        return logits, layers, {mask: start.fixed["mask"], **dict(zip(names, memory))}

    @ops.fixed_buffers(False)
    def resume(self, tokens, layers, kept):
        """The logits behind one more token int (B,), and the cache; see `prefill`."""
        mask, *memory = [kept[argument.name] for argument in self.kept_arguments()]
        fixed = {"projected": by_layer(memory), "mask": mask}
        return self._one_step(tokens, layers, ops.dim(layers[0][0], 2), fixed)

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
        x, y = as_list(x), check_texts(as_list(y), f"{self.name}.score")
        if len(x) != len(y):
            raise ValueError(
                f"Every source needs a target. Received: {len(x)} and {len(y)}."
            )
        return translation_scores(y, self.generate(list(x), **options))

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
        self._check_keys(inputs, self._signature(), [self.prompt_mask])
        memory, mask = self.encode(inputs, training=training)
        states = self.decoder(
            inputs["decoder_token_ids"],
            memory=memory,
            memory_padding_mask=mask,
            training=training,
        )
        return self.head(states)
