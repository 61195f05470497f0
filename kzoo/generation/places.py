"""Where a search begins, and where the tokens of its steps stand."""

from typing import NamedTuple

from kzoo import ops


class Start(NamedTuple):
    """Where a search begins.

    Attributes:
        tokens: int (B,), the last token of each prompt.
        cache: structure of tensors with B rows, without that token.
        index: int scalar, N, how many entries the cache holds.
        fixed: structure of what `step` reads beside them, the same in every step.
        prompt: int (B, P), the prompts' tokens, -1 where there is none; or `None`.
        seen: bool (B, N), which entries are no padding, as `step` has it of one beam
            by itself; `None` where none is padding.
        prefill: a function that gives a cache with those N entries, where `cache` is
            still empty, for `Place`s that count by row or not; or `None`.
    """

    tokens: object
    cache: object
    index: object
    fixed: object = ()
    prompt: object = None
    seen: object = None
    prefill: object = None

    def prefilled(self, by_row=False):
        """This, with the cache filled."""
        if self.prefill is None:
            return self
        return self._replace(cache=self.prefill(by_row), prefill=None)


class Place(NamedTuple):
    """Where the tokens of a step stand: a prompt's M beams side by side.

    Attributes:
        index: int scalar, how many tokens stand before each, padding counted.
        filled: int scalar, how many entries of the cache are filled.
        seen: bool (B, 1, M, S), which of the S entries, with those of the step, are of
            each beam's sequence; `None` for all, with one beam alone.
        order: int (S,), how many tokens stand before each entry's; `None` likewise.
        by_row: whether a decoder's rotations are counted from each row's own first
            token, so that its entries may be moved; all rows share them else.
    """

    index: object
    filled: object
    seen: object = None
    order: object = None
    by_row: bool = False

    @classmethod
    def behind(cls, index, by_row=False):
        """That of tokens one after another, behind so many entries."""
        return cls(index, index, by_row=by_row)

    def arguments(self):
        """What a stack is called with, see `Stack.call`."""
        if self.seen is None:
            return {"index": self.filled}
        beams = ops.dim(self.seen, 2)
        here = ops.broadcast_to(ops.reshape(ops.as_scalar(self.index), (1,)), (beams,))
        return {
            "attention_mask": self.seen,
            "index": self.filled,
            "places": (here, self.order),
        }
