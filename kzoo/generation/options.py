"""What `generate` can be told: names, defaults, checks, and the tensors they become."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from kzoo.arguments import is_integer, is_number, is_unicode, listed
from kzoo.generation.automaton import TokenAutomaton
from kzoo.generation.defaults import SAMPLING, as_json, over
from kzoo.generation.ids import Ids, as_ids

# The inputs of a search, in the order that a file's function takes them: dtype, axes
# (that of "vocabulary" is V), and a scalar's default; an empty tensor stands for off.
SEARCH_INPUTS = {
    "max_new_tokens": ("int32", (), 128),
    "beams": ("int32", (), 1),
    "num_return_sequences": ("int32", (), 1),
    "length_penalty": ("float32", (), 1.0),
    "early_stopping": ("bool", (), True),
    "temperature": ("float32", (), 0.0),
    "top_k": ("int32", (), 0),
    "top_p": ("float32", (), 1.0),
    "min_p": ("float32", (), 0.0),
    "seed": ("int32", (), 0),
    "repetition_penalty": ("float32", (), 1.0),
    "no_repeat_ngram_size": ("int32", (), 0),
    "min_new_tokens": ("int32", (), 0),
    "renormalize": ("bool", (), False),
    "banned_token_ids": ("int32", ("banned",), None),
    "stop_token_ids": ("int32", ("stops",), None),
    "forced_token_ids": ("int32", ("forced_rows", "forced"), None),
    "automaton": ("int32", ("states", "vocabulary"), None),
}
# What every search is told; the rest is off where it is left out.
REQUIRED = tuple(SEARCH_INPUTS)[:5]
_LARGEST = 3e38  # of float32, but for infinity
_LARGEST_INT = 2**31 - 1
# A step compares all beams with one another, and backends end a process, without an
# error, where a tensor has more numbers than an int32 counts.
_MOST_BEAMS = 4096
# From ... to; files refuse other values, too. Where there is no end it is an int32's,
# and files of int64 take more.
RANGES = {
    "max_new_tokens": (1, None),
    "beams": (1, _MOST_BEAMS),
    "num_return_sequences": (1, None),
    "length_penalty": (-5.0, 5.0),  # beyond, powers of lengths leave float32
    "temperature": (0.0, 1e30),  # beyond, not every runtime tells scores apart
    "top_k": (0, None),
    "top_p": (1e-6, 1.0),
    "min_p": (0.0, 1.0),
    "seed": (-(2**31), 2**31 - 1),
    "repetition_penalty": (1e-6, _LARGEST),
    "no_repeat_ngram_size": (0, None),
    "min_new_tokens": (0, None),
}
# Those that a compiled search has as Python values.
_STATIC = ("beams", "num_return_sequences", "early_stopping")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How `generate` searches. All is the same in Keras and in every exported file.

    Args:
        max_new_tokens: always bounds the result; the end token counts. By default 128,
            or as many as learned positions leave.
        max_length: where `max_new_tokens` is left out: as many as a sequence of so many
            tokens has beside the longest prompt, or beside a decoder's start token. A
            prompt of so many is refused, unless a model's default says the length.
        beams: 1 is greedy search, or sampling; at most 4,096.
        num_return_sequences: how many a prompt, best first; at most `beams`.
        length_penalty: a number p; a sequence's score is log P / length ** p.
        early_stopping: whether a prompt is done when `beams` sequences have ended, or
            else when none that runs can score better any more.
        temperature: above 0, with one beam, each token is drawn from
            softmax(logits / temperature), at most 1e30; at 0 it is the most probable
            one.
        top_k: draws among so many most probable tokens; 0 for all.
        top_p: draws among the fewest tokens with so much probability together.
        min_p: draws among tokens at least so probable, as a share of the first's.
        seed: of the draws, an int32. They follow from it and a prompt's place among the
            prompts, whatever its batch.
        repetition_penalty: above 1, tokens that occurred get less likely; see
            `kzoo.generation.processors`.
        no_repeat_ngram_size: no sequence of so many tokens occurs twice; 0 for any.
        min_new_tokens: so many tokens come before an end token, or a stop string's end;
            as many as `max_new_tokens` for so many exactly. Padding, which a model that
            was hardly trained may write among them, is left out of what is returned.
        renormalize: with beams, p of the tokens that are left sums to 1 again after
            others were banned, so that a ban makes no sequence less likely.
        banned_tokens: ids, or strings of one token each, that are never generated.
        forced_prefix: what a result begins with, up to a stop string in it: a string,
            or ids; or a list of them, one a prompt. With beams, what is forced counts
            as certain: log p 0.
        forced_tokens: dict from a token's place, 0 the first, -1 the last one that
            `max_new_tokens` leaves, to its id. Where others name that place, -1 wins.
        stop_tokens: ids, or strings of one token each, that end a result, too.
        stop: a string or several; a result ends with the token that completes one, and
            its text is cut before it.
        constraint: a regular expression that the whole result matches unless it is cut
            at `max_new_tokens` or by a stop, or a `TokenAutomaton`. Forced tokens that
            write no text, such as a language's code, stand before it; stop tokens may
            stand where it is matched, and a stop string's last byte anywhere. Where
            other options ban all that it allows, a result ends; with several beams it
            is dropped. Build a `TokenAutomaton` once where several are used in turn: a
            table takes time, and one is kept.
        processors: functions of scores and a context, see `kzoo.generation.processors`,
            after those that the task has as `task.processors`, which files hold, too.

    Raises:
        ValueError: an option is out of its range, or contradicts another.
    """

    max_new_tokens: int | None = None
    max_length: int | None = None
    beams: int = 1
    num_return_sequences: int = 1
    length_penalty: float = 1.0
    early_stopping: bool = True
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    min_new_tokens: int = 0
    renormalize: bool = False
    banned_tokens: Sequence = ()
    forced_prefix: str | Sequence | None = None
    forced_tokens: Mapping | None = None
    stop_tokens: Sequence = ()
    stop: str | Sequence[str] = ()
    constraint: str | TokenAutomaton | None = None
    processors: Sequence[Callable] = ()

    def __post_init__(self):
        for name in ("banned_tokens", "stop_tokens", "stop", "processors"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, ())
        if callable(self.processors):
            object.__setattr__(self, "processors", (self.processors,))
        some = isinstance(self.processors, (list, tuple))
        if not some or not all(map(callable, self.processors)):
            raise ValueError(
                "processors must be functions of (scores, context). "
                f"Received: {self.processors!r}."
            )
        object.__setattr__(self, "processors", tuple(self.processors))
        stops = [self.stop] if isinstance(self.stop, str) else self.stop
        stops = tuple(listed("stop", "a string or several", stops))
        object.__setattr__(self, "stop", stops)
        for stop in stops:
            if not isinstance(stop, str) or not stop or not is_unicode(stop):
                raise ValueError(
                    "stop must be strings that are not empty, and that UTF-8 can "
                    f"write. Received: {stop!r}."
                )
        if not isinstance(self.constraint, (str, TokenAutomaton, type(None))):
            raise ValueError(
                "constraint must be a regular expression or a TokenAutomaton. "
                f"Received: {self.constraint!r}."
            )
        if not isinstance(self.forced_tokens, (Mapping, type(None))):
            raise ValueError(
                "forced_tokens must be a dict from places, 0 the first, to ids. "
                f"Received: {self.forced_tokens!r}."
            )
        if isinstance(self.forced_prefix, np.ndarray):
            object.__setattr__(self, "forced_prefix", self.forced_prefix.tolist())
        for name, (lowest, highest) in {**RANGES, "max_length": (1, None)}.items():
            value = getattr(self, name)
            if value is None and name in ("max_new_tokens", "max_length"):
                continue
            integer = name == "max_length" or SEARCH_INPUTS[name][0] == "int32"
            known = is_integer(value) if integer else is_number(value)
            highest = _LARGEST_INT if highest is None else highest
            if not known or not lowest <= value <= highest:
                kind = "an integer" if integer else "a finite number"
                raise ValueError(
                    f"{name} must be {kind}, at least {lowest} and at most {highest}. "
                    f"Received: {value!r}."
                )
        for name in ("early_stopping", "renormalize"):
            if getattr(self, name) not in (True, False):
                raise ValueError(
                    f"{name} must be True or False. Received: {getattr(self, name)!r}."
                )
        self._check_together()

    def _check_together(self):
        if self.num_return_sequences > self.beams:
            raise ValueError(
                "num_return_sequences must be at most beams. Received: "
                f"num_return_sequences={self.num_return_sequences}, beams={self.beams}."
            )
        if self.temperature and self.beams > 1:
            raise ValueError(
                "Tokens are drawn with one beam: set temperature=0 or beams=1. "
                f"Received: temperature={self.temperature}, beams={self.beams}."
            )
        drawn = {name: getattr(self, name) for name in self._changed(SAMPLING)}
        if drawn and not self.temperature:
            raise ValueError(
                f"{', '.join(drawn)} tell what tokens are drawn from: set temperature, "
                f"too. Received: {drawn}, temperature=0."
            )
        limit = self.max_new_tokens
        if limit is not None and self.min_new_tokens > limit:
            raise ValueError(
                "min_new_tokens must be at most max_new_tokens. Received: "
                f"{self.min_new_tokens} and {limit}."
            )
        if self._forced_places and self.forced_prefix is not None:
            raise ValueError("Give forced_prefix or forced_tokens. Received: both.")

    def with_stops(self, ids):
        """The options with more ids that end a result; see `stop_tokens`."""
        if not len(ids):
            return self
        stops = [*as_ids(self.stop_tokens), *ids]
        return dataclasses.replace(self, stop_tokens=(*dict.fromkeys(stops),))

    @property
    def begins(self):
        """Whether they say what a result begins with."""
        forced = self.forced_prefix is not None or bool(self._forced_places)
        return forced or self.constraint is not None

    @property
    def _forced_places(self):
        return [place for place in self.forced_tokens or () if place != -1]

    def behind(self, prefix, tokenizer, unless_there=False):
        """The options with more ids in front of what is forced; see `forced_prefix`.

        Args:
            prefix: the ids.
            tokenizer: for a forced string.
            unless_there: whether what begins with them stays as it is.
        """
        prefix = [int(token_id) for token_id in prefix]
        if not prefix:
            return self
        if self.forced_tokens and self.forced_prefix is None:
            there = [self.forced_tokens.get(i) for i in range(len(prefix))] == prefix
            if unless_there and there:
                return self
            tokens = {
                i if i == -1 else i + len(prefix): t
                for i, t in self.forced_tokens.items()
            }
            tokens |= dict(enumerate(prefix))
            return dataclasses.replace(self, forced_tokens=tokens)
        rows = [[]]
        if self.forced_prefix is not None:
            known = Ids(tokenizer, tokenizer.vocabulary_size)
            rows = known.rows("forced_prefix", self.forced_prefix) or [[]]
        count = len(prefix)
        rows = [
            row if unless_there and row[:count] == prefix else [*prefix, *row]
            for row in map(list, rows)
        ]
        rows = rows[0] if len(rows) == 1 else rows
        return dataclasses.replace(self, forced_prefix=rows)

    def _changed(self, names):
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        return [name for name in names if getattr(self, name) != defaults[name]]

    @classmethod
    def over(cls, defaults, given):
        """The options that a caller gave, and defaults where none was given.

        What is given wins, also over defaults that it contradicts: those of sampling
        where beams are asked for, and the other way round; a search that knows its
        prompts does the same with `max_length`; ids that are forced or banned, and
        places beyond `max_new_tokens`. What only a tokenizer tells, such as the length
        of a forced string, is an error as between a caller's own. Stop tokens add up:
        those of a model are its ends.

        Args:
            defaults: dict of options, such as `task.search_defaults`.
            given: dict of options.
        """
        return cls(**over(defaults, given))

    def static(self):
        """What a search is compiled for, hashable: a tuple of (name, value)."""
        kinds = ((n, bool if n == "early_stopping" else int) for n in _STATIC)
        return tuple((name, kind(getattr(self, name))) for name, kind in kinds)

    def arrays(self, tokenizer, config, limits):
        """The search's other inputs, as numpy arrays and numbers; not what is off.

        Args:
            tokenizer: for strings, or `None`.
            config: the model's `ModelConfig`.
            limits: the `max_new_tokens` of each prompt, which may be its own.

        Returns:
            dict of some of `SEARCH_INPUTS`.
        """
        size = config.decoder.vocabulary_size
        known = Ids(tokenizer, size)
        found = {
            "max_new_tokens": self.max_new_tokens,
            "length_penalty": self.length_penalty,
        }
        if self.temperature:
            found |= {"temperature": self.temperature, "seed": self.seed}
            if self._changed(SAMPLING):
                found |= {name: getattr(self, name) for name in SAMPLING}
        for name in ("repetition_penalty", "no_repeat_ngram_size", "min_new_tokens"):
            if self._changed([name]):
                found[name] = getattr(self, name)
        banned = known.of("banned_tokens", self.banned_tokens)
        if banned:
            found["banned_token_ids"] = np.array(banned, "int32")
        if self.renormalize:
            found["renormalize"] = True
        stops = known.of("stop_tokens", self.stop_tokens)
        if stops:
            found["stop_token_ids"] = np.array(stops, "int32")
        forced = self._forced(known, limits)
        if forced is not None:
            found["forced_token_ids"] = forced
            self._check_forced(forced, banned, [config.end_token_id, *stops])
        automaton = self._automaton(tokenizer, size, config.end_token_id)
        if automaton is not None:
            automaton = automaton.ending_with(stops, config.end_token_id)
            if banned and self.constraint is not None:
                automaton = automaton.without(banned)  # that what is left can end
            if forced is not None:
                unwritten = _unwritten(tokenizer, automaton, forced)
                automaton = automaton.behind(unwritten) if unwritten else automaton
                # The last one that there is room for cuts a result.
                cut = -1 in (self.forced_tokens or {})
                automaton.check_prefixes(forced[:, :-1] if cut else forced)
            automaton.check_length(self.min_new_tokens)
            found["automaton"] = automaton.transitions
        return found

    def _forced(self, known, limits):
        """int32 (1 or prompts, P), -1 where any token may stand; or None."""
        rows = [[]]
        if self.forced_prefix is not None:
            rows = known.rows("forced_prefix", self.forced_prefix) or [[]]
            if len(rows) not in (1, len(limits)):
                raise ValueError(
                    "forced_prefix must be one for all, or one for each of "
                    f"{len(limits)} prompts. Received: {len(rows)}."
                )
        forced = (self.forced_tokens or {}).items()
        for place, token in sorted(forced, key=lambda one: one[0] == -1):
            if not is_integer(place) or place < -1:
                raise ValueError(
                    "forced_tokens must map places, 0 the first, -1 the last, to ids. "
                    f"Received the place {place!r}."
                )
            place = self.max_new_tokens - 1 if place == -1 else place
            _check_room(place + 1, max(limits))
            (token,) = known.of("forced_tokens", [token])
            for row in rows:
                row += [-1] * (place + 1 - len(row))
                row[place] = token
        for row, limit in zip(itertools.cycle(rows), limits):
            _check_room(len(row), limit)
        length = max(map(len, rows), default=0)
        if not length:
            return None
        return np.array([row + [-1] * (length - len(row)) for row in rows], "int32")

    @staticmethod
    def _check_forced(forced, banned, ends):
        both = set(forced.flat) & set(banned)
        if both:
            raise ValueError(
                f"A token cannot be forced and banned. Received both for {min(both)}."
            )
        for row in forced:
            last = np.flatnonzero(row >= 0)[-1:]
            if np.isin(row[: last[0] if len(last) else 0], ends).any():
                raise ValueError(
                    f"A result ends with one of the tokens {sorted(set(ends))}: "
                    "nothing can be forced behind it. Received the forced tokens "
                    f"{row.tolist()}."
                )

    def _automaton(self, tokenizer, size, end_token_id):
        stops = self.stop
        if isinstance(self.constraint, TokenAutomaton):
            automaton = self.constraint
            if stops:
                raise ValueError(
                    "A TokenAutomaton has its stop strings in it: give them to "
                    f"TokenAutomaton.for_tokenizer(stop=...). Received stop={stops}."
                )
            if automaton.transitions.shape[1] != size:
                raise ValueError(
                    f"The automaton is of {automaton.transitions.shape[1]} tokens, "
                    f"the model of {size}."
                )
            return automaton
        if self.constraint is None and not stops:
            return None
        if tokenizer is None:
            raise ValueError(
                "stop and constraint are of texts, and the model has no tokenizer. "
                "Give the model one, or a TokenAutomaton."
            )
        return _written_automaton(tokenizer, self.constraint, stops, size, end_token_id)


def as_defaults(options):
    """A read-only mapping of options that JSON can hold, such as `search_defaults`.

    Arrays, sets and numpy's numbers become lists and numbers.

    Raises:
        ValueError: an unknown or a wrong option, or one that JSON has not.
    """
    options = dict(options or {})
    known = {field.name for field in dataclasses.fields(SearchOptions)}
    wrong = sorted(set(options) - known | set(options) & {"processors"})
    if isinstance(options.get("constraint"), TokenAutomaton):
        wrong.append("constraint")
    if wrong:
        raise ValueError(
            f"search_defaults must be options of a search, of numbers and strings: "
            f"{sorted(known - {'processors'})}. Received: {wrong}."
        )
    options = {name: as_json(name, value) for name, value in options.items()}
    if isinstance(options.get("forced_tokens"), dict):  # JSON has strings for keys
        forced = {int(place): id for place, id in options["forced_tokens"].items()}
        options["forced_tokens"] = forced
    SearchOptions(**options)
    return MappingProxyType(options)


def _unwritten(tokenizer, automaton, forced):
    """The forced tokens that every result begins with and that write no text, such as
    a language's code, where a constraint of the text does not know them.
    """  # noqa: D205  one sentence
    if tokenizer is None or automaton.transitions[0, forced[0, 0]] >= 0:
        return []
    found = []
    for token, *others in forced.T.tolist():
        if token not in tokenizer.special_ids or {*others} - {token}:
            break
        found.append(token)
    return found


@functools.lru_cache(maxsize=1)  # many calls have the same; a table may be large
def _written_automaton(*arguments):
    return TokenAutomaton.for_tokenizer(*arguments)


def _check_room(length, limit):
    """Raises `ValueError` where more tokens are forced than a result may have."""
    if length > limit:
        raise ValueError(
            f"max_new_tokens={limit} is less than the {length} tokens that are forced."
        )
