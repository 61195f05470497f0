"""What the artifacts of a task offer, and the inputs that verify them."""

import numpy as np

from kzoo.exporters.signatures import Argument, Function
from kzoo.tasks.task import Task


class Exports(Task):
    """The function `forward` of a task; it gives `_signature()` and `output_axes`."""

    # Name of each output to its axes after "batch"; an int is fixed.
    output_axes: dict

    def named_outputs(self, inputs):
        """What an artifact's `forward` gives: a tensor for each of `output_axes`."""
        (name,) = self.output_axes
        return {name: self(inputs, training=False)}

    def export_functions(self):
        """What an artifact of this task offers."""
        return [
            Function(
                "forward",
                tuple(self._argument(name) for name in self._signature()),
                {name: ("batch", *axes) for name, axes in self.output_axes.items()},
                self.named_outputs,
                self._forward_cases,
            )
        ]

    def _argument(self, name):
        return Argument(name, "int32", ("batch", self._axis(name)))

    def _axis(self, name):
        return "sequence"

    def _random_ids(self, generator, name, shape, padding=False):
        """Ids of no special meaning; with `padding` rows get shorter and shorter."""
        stack = self.encoder if name.startswith("encoder") else self.stack
        stack = stack.config
        length = min(shape[1], stack.max_sequence_length // 2 or 1)
        if name == "segment_ids":
            return generator.integers(
                0, stack.num_segments, (shape[0], length), "int32"
            )
        ids = generator.integers(0, stack.vocabulary_size, (shape[0], length))
        special = (self.config.pad_token_id, self.config.end_token_id)
        allowed = [i for i in range(stack.vocabulary_size) if i not in special]
        ids = np.where(np.isin(ids, special), allowed[0] if allowed else 0, ids)
        if padding:
            for row in range(1, shape[0]):
                ids[row, max(1, length - row * length // shape[0]) :] = special[0]
        return ids.astype("int32")

    def _forward_cases(self, generator):
        cases = {}
        for text, shape, padding in (
            ("batch 1, length 5", (1, 5), False),
            ("batch 3, length 12, padded", (3, 12), True),
            ("batch 2, length 40", (2, 40), False),
        ):
            cases[text] = {
                name: self._random_ids(generator, name, shape, padding)
                for name in self._signature()
            }
        return cases


class ExportsGeneration(Exports):
    """The functions `forward` and `generate` of a task that can search."""

    @property
    def output_axes(self):
        """Logits of the next token at every position."""
        size = self.config.decoder.vocabulary_size
        return {"logits": (self._axis(self.decoder_input), size)}

    def export_functions(self):
        """What an artifact of this task offers: `forward` and `generate`."""

        def generate(inputs):
            limit = inputs["max_new_tokens"]
            sequences, scores = self.search(
                {self.prompt_input: inputs[self.prompt_input]},
                inputs,
                capacity=limit if isinstance(limit, int) else None,
            )
            return {"sequences": sequences, "scores": scores}

        return [
            *super().export_functions(),
            Function(
                "generate",
                (
                    self._argument(self.prompt_input),
                    Argument("max_new_tokens", "int32", default=self._room(128)),
                    Argument("beams", "int32", default=1),
                    Argument("num_return_sequences", "int32", default=1),
                    Argument("length_penalty", "float32", default=1.0),
                    Argument("early_stopping", "bool", default=True),
                    Argument("temperature", "float32", default=0.0),
                    Argument("seed", "int32", default=0),
                ),
                {
                    "sequences": ("batch", "hypotheses", "new_tokens"),
                    "scores": ("batch", "hypotheses"),
                },
                generate,
                self._generate_cases,
                self.config.end_token_id,
                self.config.pad_token_id,
            ),
        ]

    def _axis(self, name):
        return "sequence" if name == self.prompt_input else "decoder_sequence"

    def _room(self, count):
        """`count` new tokens, or as many as learned positions leave beside a prompt."""
        decoder = self.config.decoder
        if decoder.positions != "learned":
            return count
        limit = decoder.max_sequence_length
        return min(count, limit if self.config.encoder else max(1, limit // 2))

    def _generate_cases(self, generator):
        cases = {}
        for text, shape, limit, beams, count, penalty, early, heat in (
            ("greedy, batch 3, padded", (3, 12), 3, 1, 1, 1.0, True, 0.0),
            ("3 beams, 2 best, padded", (2, 9), 3, 3, 2, 0.6, True, 0.0),
            ("2 beams, exact stop, batch 1", (1, 7), 2, 2, 1, 1.0, False, 0.0),
            ("sampling, batch 2", (2, 4), 2, 1, 1, 1.0, True, 0.8),
        ):
            ids = self._random_ids(generator, self.prompt_input, shape, shape[0] > 1)
            cases[text] = {
                self.prompt_input: ids,
                "max_new_tokens": self._room(limit),
                "beams": beams,
                "num_return_sequences": count,
                "length_penalty": penalty,
                "early_stopping": early,
                "temperature": heat,
                "seed": 7,
            }
        return cases
