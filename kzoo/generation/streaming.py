"""Text as it comes: what of a sequence's text will not change any more."""

import itertools
import os

# Of twice so many tokens those before the last so many are no longer decoded.
_WINDOW = 32
_PARTIAL = "\N{REPLACEMENT CHARACTER}"  # what a part of a character's bytes decodes to


class TextStream:
    """Gives the text of a growing list of ids in pieces, which joined are the whole.

    Bytes wait until their character is whole, and what may begin a stop string until
    it is none. Where bytes are no character, or a limit cuts one, a decoder may take
    whole ones before them back; these stay, and marks stand for the part.

    Args:
        decode: function of a list of ids to their text.
        stops: strings; the text ends before the first of them.
    """

    def __init__(self, decode, stops=()):
        self.decode, self.stops = decode, tuple(stops)
        self.ids, self.pieces = [], []
        # Of the ids that are still decoded: the first one, and their text that is out.
        self.first, self.sent = 0, ""
        self.taken_back = False  # whether the text no longer begins with what is out

    def push(self, ids, last=False):
        """The next piece of text, maybe empty.

        Args:
            ids: that have come since.
            last: whether none will come any more.
        """
        self.ids += ids
        if last and not self.taken_back:  # all of it once more, to be sure
            self.first, self.sent = 0, "".join(self.pieces)
        text = self.decode(self.ids[self.first :])
        whole = before_stop(text, self.stops)
        if not last:
            whole = text.rstrip(_PARTIAL) if whole == text else whole
            waiting = max(
                (
                    size
                    for stop in self.stops
                    for size in range(1, len(stop))
                    if whole.endswith(stop[:size])
                ),
                default=0,
            )
            whole = whole[: len(whole) - waiting]
        new = self._behind_sent(whole)
        if new is None:
            if last:
                raise ValueError(
                    "The tokenizer's text of more tokens does not begin with that of "
                    f"fewer: expected {self.sent!r} at the start of {whole!r}. Such a "
                    "tokenizer cannot stream: leave out stream=True."
                )
            return ""
        self.pieces.append(new)
        self.sent = whole
        if not last:
            self._forget(text)
        return new

    def _behind_sent(self, whole):
        """What a text has behind what is out; `None` where it begins otherwise.

        Some decoders write a mark for every byte of a run in which one is no part of a
        character, for those that were whole and are out, too.
        """
        if whole.startswith(self.sent):
            return whole[len(self.sent) :]
        same = len(os.path.commonprefix([whole, self.sent]))
        marks = len(self.sent[same:].encode())
        if whole[same : same + marks] != _PARTIAL * marks:
            return None
        self.taken_back = True
        return whole[same + marks :]

    def _forget(self, text):
        """Leaves out tokens whose text is out, where the others' is then the same.

        The first token of a text may lose its space or be a part of a character; then
        a later one will do.
        """
        if len(self.ids) - self.first <= 2 * _WINDOW:
            return
        kept = self.decode(self.ids[-_WINDOW:])
        before = len(text) - len(kept)
        alone = kept[:1] not in ("", _PARTIAL) and text.endswith(kept)
        if alone and before <= len(self.sent):
            self.first, self.sent = len(self.ids) - _WINDOW, self.sent[before:]


def before_stop(text, stops):
    """The text before the first stop string in it."""
    places = [place for place in map(text.find, stops) if place >= 0]
    return text[: min(places, default=len(text))]


def before_end(ids, ends, pad=None):
    """The list of the ids before the first of `ends` among them, without padding."""
    ids = itertools.takewhile(lambda i: i not in ends, ids)
    return [i for i in ids if i != pad]
