"""What the artifacts of a task that can search offer beside `forward`."""

import numpy as np

from kzoo import ops
from kzoo.exporters.signatures import LONG, Argument, Function
from kzoo.generation import REQUIRED, SEARCH_INPUTS, SearchOptions
from kzoo.tasks.exported import Exports
from kzoo.tasks.guards import in_harmony, in_ranges, in_table


class ExportsGeneration(Exports):
    """The functions `forward` and `generate` of a task that can search."""

    @property
    def output_axes(self):
        """Logits of the next token at every position."""
        size = self.config.decoder.vocabulary_size
        return {"logits": (self._axis(self.decoder_input), size)}

    def export_functions(self):
        """What an artifact of this task offers: `forward` and `generate`."""
        prompt, *options = self._argument(self.prompt_input), *self.search_arguments()
        needed = (*REQUIRED, *self._own_inputs())
        needed = {a.name: a.default for a in options if a.name in needed}
        processors = self.own_processors

        def generate(inputs):
            options = self._checked({**needed, **inputs}) | {"processors": processors}
            limit = options["max_new_tokens"]
            sequences, scores = self.search(
                {self.prompt_input: options.pop(self.prompt_input)},
                options,
                capacity=limit if isinstance(limit, int) else None,
            )
            return {"sequences": sequences, "scores": scores}

        return [
            *super().export_functions(),
            Function(
                "generate",
                (prompt, *options),
                {
                    "sequences": ("batch", "hypotheses", "new_tokens"),
                    "scores": ("batch", "hypotheses"),
                },
                generate,
                self._generate_cases,
                self.config.end_token_id,
                self.config.pad_token_id,
                task=self,
            ),
        ]

    def _own_inputs(self):
        """Options that the tokenizer or the task sets, where a caller does not."""
        found = {}
        if self.target_prefix:
            found["forced_token_ids"] = np.array([self.target_prefix], "int32")
        ends = SearchOptions(stop_tokens=self.search_defaults.get("stop_tokens", ()))
        ends = ends.arrays(self.tokenizer, self.config, []).get("stop_token_ids", ())
        ends = list(dict.fromkeys((*self.own_stops, *ends)))
        if ends:
            found["stop_token_ids"] = np.array(ends, "int32")
        return found

    def _checked(self, inputs):
        """The inputs of a search, which end it in an error where they are no such.

        It is looked at once, before the loop.
        """
        inputs, prompt = in_ranges(inputs), self.prompt_input
        size = self.config.decoder.vocabulary_size
        for name, (lowest, end) in {
            prompt: (0, self._table(prompt)[1]),
            "banned_token_ids": (0, size),
            "stop_token_ids": (0, size),
            "forced_token_ids": (-1, size),
        }.items():
            if name in inputs:
                inputs[name] = in_table(inputs[name], name, lowest, end)
        if self.config.encoder:
            inputs[prompt] = self._placed(prompt, inputs[prompt])
        if "automaton" in inputs:
            table, message = inputs["automaton"], "automaton must be in [-1, states]"
            wrong = (table < -1) | (table > ops.dim(table, 0))
            none = ops.equal(ops.sum(ops.cast(wrong, "int32")), 0)
            inputs[prompt] = ops.required(inputs[prompt], none, message)
        inputs = in_harmony(inputs, ops.dim(inputs[prompt], 0), size)
        for axis, what in enumerate(("a row for one prompt", "a place for one id")):
            message = f"{prompt} must have {what} at least"
            some = ops.dim(inputs[prompt], axis) > 0
            inputs[prompt] = ops.required(inputs[prompt], some, message)
        decoder, limit = self.config.decoder, inputs["max_new_tokens"]
        if decoder.positions == "learned":
            places = room = decoder.max_sequence_length
            name = "max_new_tokens"
            if not self.config.encoder:
                real = self._padding_mask(inputs[prompt])
                room = places - ops.max(ops.sum(ops.cast(real, "int32"), axis=1))
                name = prompt  # which may be too long by itself, and is read first
            message = f"prompt and max_new_tokens must fit into {places} positions"
            inputs[name] = ops.required(inputs[name], limit <= room, message)
        return inputs

    def _axis(self, name):
        return "sequence" if name == self.prompt_input else "decoder_sequence"

    def search_arguments(self):
        """The options of a search as inputs, off where they may be left out."""
        size, own = self.config.decoder.vocabulary_size, self._own_inputs()
        arguments = []
        for name, (dtype, axes, default) in SEARCH_INPUTS.items():
            axes = tuple(size if axis == "vocabulary" else axis for axis in axes)
            if name == "max_new_tokens":
                default = self.room(default)
            if axes:
                sizes = [axis if isinstance(axis, int) else 1 for axis in axes]
                sizes[max(i for i, axis in enumerate(axes) if axis != size)] = 0
                default = np.zeros(sizes, dtype)
            default = own.get(name, default)
            arguments.append(Argument(name, dtype, axes, default))
        return arguments

    def _generate_cases(self, generator):
        def case(shape, limit, **options):
            padding = "anywhere" if shape[0] > 1 else None
            ids = self._random_ids(generator, self.prompt_input, shape, padding)
            own = self.target_prefix if "forced_token_ids" not in options else ()
            limit = self.room(max(limit, len(own) + 1))
            if "forced_token_ids" in options:
                forced = np.array(options["forced_token_ids"], "int32")
                options["forced_token_ids"] = forced[:, :limit]
            return {self.prompt_input: ids, "max_new_tokens": limit, **options}

        size = self.config.decoder.vocabulary_size
        automaton = generator.integers(-1, 4, (4, size), "int32")
        order = generator.permutation(size).astype("int32")
        banned, stops, _ = np.split(order, [size // 4, size // 4 * 3 + 1])
        banned = np.setdiff1d(banned, np.array(self.target_prefix, "int32"))
        end = self.config.end_token_id
        special = self.config.pad_token_id, end
        one, other = sorted([*order, *order], key=lambda i: i in special)[:2]

        def only(*allowed):  # nothing forced: a model's own may be banned here
            return dict(
                banned_token_ids=np.setdiff1d(np.arange(size, dtype="int32"), allowed),
                forced_token_ids=np.zeros((1, 0), "int32"),
            )

        return {
            "greedy, batch 3, padded": case((3, 12), 3),
            "3 beams, 2 best, padded": case(
                (2, 9), 3, beams=3, num_return_sequences=2, length_penalty=0.6
            ),
            # So many stop tokens that without a minimum one comes at once.
            "2 beams, processed, batch 2": case(
                (2, 7),
                5,
                beams=2,
                length_penalty=3.0,
                repetition_penalty=2.5,
                no_repeat_ngram_size=2,
                min_new_tokens=min(2, self.room(5) - 1),
                banned_token_ids=banned,
                stop_token_ids=stops,
                renormalize=True,
                automaton=automaton,
            ),
            # Scores of forced tokens tell most of the model's numbers; what is drawn
            # tells how, of logits that are near to one another, and of others.
            "sampling, forced, batch 4": case(
                (4, 4),
                4,
                temperature=30.0,
                top_k=size // 3 + 1,
                top_p=0.7,
                min_p=0.0,
                seed=7,
                forced_token_ids=self._random_ids(generator, "forced", (4, 3)),
            ),
            "sampling, likely ones, batch 4": case(
                (4, 4),
                3,
                temperature=30.0,
                top_k=0,
                top_p=1.0,
                min_p=0.97,
                seed=-3,
                no_repeat_ngram_size=1,
            ),
            # The fourth of equal tokens would repeat the first three.
            "greedy, no three twice": case(
                (2, 7), 4, no_repeat_ngram_size=3, **only(one)
            ),
            # Two have ended after three steps, and a third that goes on is better.
            "2 beams, not ended early": case(
                (2, 7),
                4,
                beams=2,
                length_penalty=3.0,
                early_stopping=False,
                stop_token_ids=[other],
                **only(one, other) | {"forced_token_ids": [[one], [-1]]},
            ),
            # What occurred is more likely by far, and comes again; then one row is
            # forced to end, and the other one later.
            "greedy, not ended at once": case(
                (2, 7),
                5,
                length_penalty=1.0,
                repetition_penalty=1e-3,
                min_new_tokens=min(2, self.room(5)),
                stop_token_ids=np.setdiff1d(stops, one),
                forced_token_ids=[[-1, -1, end, one], [-1, -1, one, end]],
            ),
            **{
                name: {
                    self.prompt_input: ids,
                    "max_new_tokens": 1,
                    "forced_token_ids": self._random_ids(generator, "forced", (1, 1)),
                }
                for name, ids in self._long_prompt(generator).items()
            },
        }

    def _long_prompt(self, generator):
        """Where a model needs it, `LONG` to int (1, T); a token more has a position."""
        length = self._needed_length(self.prompt_input, 12)
        length -= not self.config.encoder
        if length < 1:
            return {}
        shape = (1, length)
        return {LONG: self._random_ids(generator, self.prompt_input, shape, whole=True)}
