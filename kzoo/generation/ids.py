"""Token ids from what a user wrote."""

import numbers
from collections.abc import Iterator

import numpy as np

from kzoo.arguments import is_integer, listed


class Ids:
    """Token ids from what a user wrote: ids, or strings where there is a tokenizer."""

    def __init__(self, tokenizer, size):
        self.tokenizer, self.size = tokenizer, size

    def of(self, name, tokens):
        """Ids of ids or of strings of one token."""
        if isinstance(tokens, (str, numbers.Integral)):
            tokens = [tokens]
        tokens = listed(name, "ids, or strings of one token", tokens)
        return [self._one(name, token) for token in tokens]

    def _one(self, name, token):
        if isinstance(token, str):
            ids = self._encoded(name, token)
            if len(ids) != 1:
                raise ValueError(
                    f"{name} must be strings of one token. Received: {token!r}, which "
                    f"is {len(ids)} tokens, {ids}."
                )
            return ids[0]
        if not is_integer(token) or not 0 <= token < self.size:
            raise ValueError(
                f"{name} must be token ids in [0, {self.size}). Received: {token!r}."
            )
        return int(token)

    def rows(self, name, prefix):
        """Lists of ids from a string, ids, or a list of either."""
        if isinstance(prefix, (str, numbers.Integral)):
            prefix = [prefix]
        prefix = listed(name, "a string, ids, or one of these a prompt", prefix)
        if prefix and is_integer(prefix[0]):
            prefix = [prefix]
        return [
            self._encoded(name, row) if isinstance(row, str) else self.of(name, row)
            for row in prefix
        ]

    def _encoded(self, name, text):
        if self.tokenizer is None:
            raise ValueError(
                f"{name} is given as text, and the model has no tokenizer: give ids. "
                f"Received: {text!r}."
            )
        return self.tokenizer.encode_targets([text])[0]


def as_ids(tokens, name="stop_tokens"):
    """Ids, or strings of one token, as a list: one may be given alone."""
    single = isinstance(tokens, (str, numbers.Integral))
    return [tokens] if single else listed(name, "ids", tokens)


def ids_in(values):
    """The ids in what a caller gave, which may be rows of ids, texts, or wrong."""
    once = isinstance(values, Iterator)  # which is read later
    if once or isinstance(values, (str, bytes)) or not np.iterable(values):
        return {int(values)} if is_integer(values) else set()
    return set().union(*map(ids_in, values))
