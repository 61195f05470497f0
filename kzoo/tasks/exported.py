"""What the artifacts of a task offer, and the inputs that verify them."""

import numpy as np

from kzoo import ops
from kzoo.exporters.inputs import texts_of
from kzoo.exporters.signatures import LONG, Argument, Function
from kzoo.generation import RANGES, REQUIRED, SEARCH_INPUTS, SearchOptions
from kzoo.tasks.saving import TOKENIZER_FILE
from kzoo.tasks.task import Task
from kzoo.tokenizers import load_tokenizer

# Tokens of the longest of the usual cases, and of any: one forward pass of so many is
# what an export of a real model may take, in time and, for logits, in memory.
_USUAL, _LONGEST = 40, 1024
_BEYOND = 8  # tokens more than a window, so that it hides some from several


class Exports(Task):
    """The function `forward` of a task.

    It gives `_signature()`, `output_axes`, and `text_rows(example)`, which is
    `export_rows` of a string or a pair.
    """

    # Name of each output to its axes after "batch"; an int is fixed.
    output_axes: dict

    def named_outputs(self, inputs):
        """What an artifact's `forward` gives: a tensor for each of `output_axes`."""
        (name,) = self.output_axes
        return {name: self(inputs, training=False)}

    def from_named_outputs(self, outputs):
        """What `call` gives, of what an artifact's `forward` does."""
        (output,) = outputs.values()
        return output

    def export_rows(self, example):
        """What `forward` reads of an example, to be verified with it.

        Args:
            example: a string, or two of a pair; or ids: a list of int, for the first
                input, or a dict of lists.

        Returns:
            A list of dicts: name of each input to a list of int. A text that is read in
            windows has several.

        Raises:
            ValueError: the task cannot read it.
        """
        if texts_of(example):
            rows = self.text_rows(example)
        else:
            first = self.prompt_input if hasattr(self, "prompt_input") else "token_ids"
            rows = [example if isinstance(example, dict) else {first: example}]
        return [self._checked_row(row) for row in rows]

    def check_saved_tokenizer(self, folder):
        """Compares the tokenizer of a folder, where both have one, with the task's.

        Raises:
            OSError: a file of it is missing or cannot be read.
            ValueError: it is another one, or is damaged.
        """
        if self.tokenizer is None:
            return
        names = (TOKENIZER_FILE, self.tokenizer.file_name)
        if not any((folder / name).is_file() for name in names):
            return
        found, own = load_tokenizer(folder).get_config(), self.tokenizer.get_config()
        differ = [key for key in {**own, **found} if own.get(key) != found.get(key)]
        if differ:
            raise ValueError(f"{folder} has one that differs in {differ}.")

    def _checked_row(self, row):
        names = self._signature()
        if "segment_ids" in names and "token_ids" in row:
            tokens = self._checked_ids("token_ids", row["token_ids"])
            row = {"segment_ids": [0] * len(tokens), **row}
        if set(row) != set(names):
            raise ValueError(
                f"{self.name} reads ids for {list(names)}. Received: {list(row)}."
            )
        checked = {name: self._checked_ids(name, row[name]) for name in names}
        if "segment_ids" in checked:
            segments, tokens = (len(checked[n]) for n in ("segment_ids", "token_ids"))
            if segments != tokens:
                raise ValueError(
                    f"segment_ids must be as many as token_ids, {tokens}. "
                    f"Received: {segments}."
                )
        return checked

    def _checked_ids(self, name, ids):
        """The ids of an input, as a list of int."""
        try:
            array = np.asarray(ids)
        except ValueError:  # lists of other lengths
            array = np.array(None)
        if array.ndim != 1 or not array.size or array.dtype.kind not in "iu":
            raise ValueError(
                f"{name} must be a list of integers, one at least. Received: {ids!r}."
            )
        self._check_table(name, array)
        return array.tolist()

    def export_functions(self):
        """What an artifact of this task offers."""
        return [
            Function(
                "forward",
                tuple(self._argument(name) for name in self._signature()),
                {name: ("batch", *axes) for name, axes in self.output_axes.items()},
                lambda inputs: self.named_outputs(self._known(inputs)),
                self._forward_cases,
                task=self,
            )
        ]

    def _known(self, inputs, padded=True):
        """The inputs, which end a run in an error where they are none of the model's.

        A runtime that read beyond the end of a table would give no error.

        Args:
            inputs: dict of ids.
            padded: whether padding takes positions, too.
        """
        known = {}
        for name, ids in inputs.items():
            some = ops.dim(ids, 0) * ops.dim(ids, 1) > 0
            message = f"{name} must have one row at least and a place for one id"
            ids = ops.required(ids, some, message)
            ids = in_table(ids, name, 0, self._table(name)[1])
            known[name] = self._placed(name, ids, padded)
        return known

    def _placed(self, name, ids, padded=True):
        """Ids, which end a run in an error where positions do not suffice."""
        stack, _ = self._table(name)
        if stack.positions != "learned":
            return ids
        limit = stack.max_sequence_length
        message = f"{name} must have at most {limit} ids"
        if padded:
            return within(ids, limit, message, axis=1)
        real = self._padding_mask(ids)
        used = ops.max(ops.sum(ops.cast(real, "int32"), axis=1))
        return ops.required(ids, used <= limit, message)

    def _table(self, name):
        """The config of the stack that reads an input, and how many ids it knows."""
        stack = (self.encoder if name.startswith("encoder") else self.stack).config
        segments = name == "segment_ids"
        return stack, stack.num_segments if segments else stack.vocabulary_size

    def _argument(self, name):
        return Argument(name, "int32", ("batch", self._axis(name)))

    def _axis(self, name):
        return "sequence"

    def _needed_length(self, name, usual):
        """How many ids of an input show all of its stack, or 0 for `usual` ones.

        The last of the learned positions are read, a window hides some ids, and some
        are as far from one another as relative positions tell.
        """
        stack, _ = self._table(name)
        limit = stack.max_sequence_length
        usual, needed = min(usual, limit // 2 or 1), 0
        if stack.positions == "learned":
            needed = min(limit, _LONGEST)
        for far in _distances(stack).values():
            if stack.positions != "learned" and usual <= far <= _LONGEST - _BEYOND:
                needed = max(needed, far + _BEYOND)
        return needed if needed > usual else 0

    def unexercised(self, text=False):
        """What no case of verification is long enough to show, a sentence each.

        Args:
            text: whether the cases are of text, which is short.
        """
        found, longest = [], _USUAL if text else _LONGEST
        for stack in (self._table(name)[0] for name in self._signature()):
            learned, limit = stack.positions == "learned", stack.max_sequence_length
            for what, far in _distances(stack).items():
                if longest - _BEYOND < far and not (learned and limit <= far):
                    found.append(f"{what} of {far} tokens is")
            if learned and limit > longest and not text:
                found.append(f"Learned positions from {longest} on are")
        return [
            f"{what} beyond kzoo's own cases: verify the artifact with longer inputs "
            "of yours, too."
            for what in dict.fromkeys(found)
        ]

    def _random_ids(self, generator, name, shape, padding=None, whole=False):
        """Ids of no special meaning; with `padding` rows get shorter and shorter.

        It stands "behind" them; or "anywhere": behind one, before the next one, and
        within that, too. They take half of the positions at most, but with `whole` as
        many as they are.
        """
        stack, size = self._table(name)
        most = shape[1] if whole else stack.max_sequence_length // 2 or 1
        length = min(shape[1], most)
        if name == "segment_ids":
            return generator.integers(0, size, (shape[0], length), "int32")
        ids = generator.integers(0, size, (shape[0], length))
        special = (self.config.pad_token_id, self.config.end_token_id)
        allowed = [i for i in range(size) if i not in special]
        ids = np.where(np.isin(ids, special), allowed[0] if allowed else 0, ids)
        if padding:
            for row in range(1, shape[0]):
                real = max(1, length - row * length // shape[0])
                ids[row, real:] = special[0]
                if padding == "anywhere" and row % 2 == 0:
                    ids[row] = ids[row, ::-1]
                    ids[row, length - real + 1 : -1 : 3] = special[0]
        return ids.astype("int32")

    def _forward_cases(self, generator):
        cases = {}
        for text, shape, padding in (
            ("batch 1, length 5", (1, 5), None),
            ("batch 3, length 12, padded", (3, 12), "anywhere"),
            ("batch 2, length 40", (2, _USUAL), None),
        ):
            cases[text] = {
                name: self._random_ids(generator, name, shape, padding)
                for name in self._signature()
            }
        needed = {n: self._needed_length(n, _USUAL) for n in self._signature()}
        if any(needed.values()):
            cases[LONG] = {
                name: self._random_ids(
                    generator, name, (1, length or 5), whole=length > 0
                )
                for name, length in needed.items()
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
        inputs, prompt = _in_ranges(inputs), self.prompt_input
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
        inputs = _in_harmony(inputs, ops.dim(inputs[prompt], 0), size)
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


def _distances(stack):
    """What of a stack differs from so many tokens on, by its name in a sentence."""
    found = {"The attention window": stack.attention_window or 0}
    if stack.positions == "relative":
        found["The farthest distance"] = stack.relative_max_distance
    return found


def in_table(ids, name, lowest, end):
    """The ids, which end a run in an error where one is out of [lowest, end)."""
    wrong = ops.sum(ops.cast((ids < lowest) | (ids >= end), "int32"))
    message = f"{name} must be in [{lowest}, {end})"
    return ops.required(ids, ops.equal(wrong, 0), message)


def within(x, limit, message, axis):
    """The tensor, which ends a run in an error where an axis is longer than a limit.

    Its length is what is required, so that positions, which follow from that alone, are
    not read before.
    """
    length = ops.dim(x, axis)
    length = ops.required(length, length <= limit, message)
    return ops.take(x, ops.arange(length), axis=axis)


def _in_ranges(inputs):
    """The inputs, which end a run in an error where an option is out of range.

    A runtime that computed with it would give a wrong result, and no error.
    """
    inputs = dict(inputs)
    for name, (lowest, highest) in RANGES.items():
        if name not in inputs:
            continue
        value = inputs[name]
        message = f"{name} must be at least {lowest}"
        inputs[name] = value = ops.required(value, value >= lowest, message)
        if highest is not None:
            message = f"{name} must be at most {highest}"
            inputs[name] = ops.required(value, value <= highest, message)
    return inputs


def _in_harmony(inputs, prompts, vocabulary_size):
    """The inputs, which end a run in an error where one contradicts another.

    So does `SearchOptions`, and more where a constraint would have to be followed, or
    something is forced behind an end, which a file leaves out.

    Args:
        inputs: of a search, each in its own range.
        prompts: how many there are.
        vocabulary_size: V.
    """
    inputs = dict(inputs)
    given, limit = inputs.get, inputs["max_new_tokens"]
    temperature = given("temperature", 0.0)

    def require(name, holds, message):
        if name in inputs:
            message = f"{name} must be {message}"
            inputs[name] = ops.required(inputs[name], holds, message)

    fewer = given("num_return_sequences") <= given("beams")
    require("num_return_sequences", fewer, "at most beams")
    alone = (given("beams") < 2) | (temperature <= 0.0)
    require("temperature", alone, "0 with several beams")
    draws = temperature > 0.0
    require("top_k", draws | (given("top_k", 0) < 1), "0 without a temperature")
    require("top_p", draws | (given("top_p", 1.0) >= 1.0), "1 without a temperature")
    require("min_p", draws | (given("min_p", 0.0) <= 0.0), "0 without a temperature")
    least = given("min_new_tokens", 0)
    require("min_new_tokens", least <= limit, "at most max_new_tokens")
    if "forced_token_ids" in inputs:
        forced = inputs["forced_token_ids"]
        rows, places = ops.dim(forced, 0), ops.dim(forced, 1)
        fits = ops.equal(rows, 1) | ops.equal(rows, prompts)
        require("forced_token_ids", fits, "1 row, or one for each prompt")
        require("forced_token_ids", places <= limit, "no longer than max_new_tokens")
        if "banned_token_ids" in inputs:
            both = [
                ops.members(ops.reshape(ids, (1, -1)), vocabulary_size)
                for ids in (forced, inputs["banned_token_ids"])
            ]
            none = ~ops.any(both[0] & both[1])
            require("forced_token_ids", none, "other ids than banned_token_ids")
    return inputs
