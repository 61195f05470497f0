"""What the artifacts of a task offer, and the inputs that verify them."""

import numpy as np

from kzoo import ops
from kzoo.exporters.inputs import texts_of
from kzoo.exporters.signatures import LONG, Argument, Function
from kzoo.tasks.guards import in_table, within
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


def _distances(stack):
    """What of a stack differs from so many tokens on, by its name in a sentence."""
    found = {"The attention window": stack.attention_window or 0}
    if stack.positions == "relative":
        found["The farthest distance"] = stack.relative_max_distance
    return found
