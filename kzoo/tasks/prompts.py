"""Prompts in any form of ids: what is real of them, and batches of like lengths."""

import reprlib

import numpy as np

from kzoo.generation import shape_bucket
from kzoo.tasks.forms import as_list
from kzoo.tasks.task import Task, out_of_table

HOLE = -1  # stands in a prompt where padding does


class ReadsPrompts(Task):
    """Rows of ids that a search begins with.

    A subclass says `prompt_input`, their name, and `prompt_side`, where padding stands.
    """

    prompt_input: str
    prompt_side: str

    @property
    def prompt_mask(self):
        """The name of the prompt's padding mask."""
        return self.prompt_input.replace("token_ids", "padding_mask")

    def _given(self, inputs):
        """Prompts as a list, where they are no array or dict; a string is one."""
        inputs = [inputs] if isinstance(inputs, str) else as_list(inputs)
        try:
            if isinstance(inputs, bytes) or getattr(inputs, "ndim", 1) == 0:
                raise TypeError
            held = isinstance(inputs, (dict, list, tuple, np.ndarray))
            return inputs if held else list(inputs)
        except TypeError:
            raise self._not_prompts(reprlib.repr(inputs)) from None

    def _not_prompts(self, received):
        return ValueError(
            f"{self.name}.generate expects a string, a list of strings, or rows of "
            f"integer ids such as [[5, 6], [7]]. Received: {received}."
        )

    def _row(self, number, row):
        """A row of ids as an array."""
        try:
            ids = np.asarray(row)
        except ValueError:  # lists of different lengths
            ids = np.zeros(())
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise self._not_prompts(f"{reprlib.repr(row)} as row {number}")
        return ids

    def _real(self, row):
        """A row of a mask as bool; one to be added to scores means the opposite."""
        row = np.asarray(row)
        wrong = row[(row != 0) & (row != 1)]
        if wrong.size:
            raise ValueError(
                f"{self.prompt_mask} must be True or 1 at real tokens, False or 0 at "
                f"padding. Received: {wrong[0]!r}. Of a mask that is added to scores "
                "give mask == 0."
            )
        return row.astype(bool)

    def _prompts(self, inputs):
        """Lists of ids from ids in any form; padding inside a row is a `HOLE`.

        That at its ends is left out. `start` sees the hole masked, as it does in files.
        """
        mask = None
        if isinstance(inputs, dict):
            self._check_keys(inputs, [self.prompt_input], [self.prompt_mask])
            mask = inputs.get(self.prompt_mask)
            inputs = self._given(inputs[self.prompt_input])
        rows = [self._row(number, row) for number, row in enumerate(inputs)]
        if mask is None:
            mask = [row != self.config.pad_token_id for row in rows]
        mask = [self._real(row) for row in mask]
        if [row.shape for row in mask] != [row.shape for row in rows]:
            raise ValueError(
                f"{self.prompt_mask} must have the shape of {self.prompt_input}. "
                f"Received: {[row.shape for row in mask]} for ids of "
                f"{[row.shape for row in rows]}."
            )
        size = (self.config.encoder or self.config.decoder).vocabulary_size
        for row, real in zip(rows, mask, strict=True):
            wrong = out_of_table(row[real], size)
            if wrong is not None:
                raise ValueError(
                    f"{self.prompt_input} must be in [0, {size}). Received: {wrong}."
                )
        return [_between_ends(*both) for both in zip(rows, mask, strict=True)]

    def _check_prompts(self, prompts, limits):
        for number, (ids, limit) in enumerate(zip(prompts, limits, strict=True)):
            needed = {"encoder": len(ids), "decoder": limit}
            if not self.config.encoder:
                needed = {"decoder": len(ids) + limit}
            for name, count in needed.items():
                config = getattr(self.config, name)
                if config.positions == "learned" and count > config.max_sequence_length:
                    raise ValueError(
                        f"The {name} has {config.max_sequence_length} learned "
                        f"positions. Received: a prompt of {len(ids)} tokens, no. "
                        f"{number}, and max_new_tokens={limit}. Shorten one of them."
                    )

    def _prompt_batch(self, prompts):
        """Ids and mask, int32 and bool (B, T), padded to a shape bucket."""
        from kzoo.data import padded_batch

        longest = max(1, max(len(ids) for ids in prompts))
        length, count = shape_bucket(longest), shape_bucket(len(prompts))
        encoder = self.config.encoder
        if encoder and encoder.positions == "learned":
            length = min(length, encoder.max_sequence_length)
        # Rows that fill the bucket are copies: they end no later than the others.
        rows = list(prompts) + [prompts[-1]] * (count - len(prompts))
        pad, side = self.config.pad_token_id, self.prompt_side
        ids = padded_batch(rows, length, pad_id=HOLE, side=side)
        return np.where(ids == HOLE, pad, ids), ids != HOLE


def _between_ends(ids, real):
    """A row's ids from the first real one to the last, as a list with `HOLE`s."""
    (places,) = np.nonzero(real)
    ids = np.where(real, ids.astype("int64"), HOLE)  # which unsigned ints have not
    return ids[places[0] : places[-1] + 1].tolist() if len(places) else []
