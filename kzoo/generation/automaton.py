"""Constrained decoding: a regular expression, stop strings, as a table over tokens."""

import functools
import importlib.util
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

# The largest table, in entries: 256 MiB of int32, made in seconds.
_LARGEST = 2**26
_DEAD = -1
_RUNNER = Path(__file__).with_name("regex_runner.py")
# A class of characters, in which ^ and $ are none of those below.
_CLASS = re.compile(r"\[\^?\]?(?:\\.|\[[^\[\]]*\]|[^\[\]\\])*+\]")
_PATIENCE = 30  # seconds; what fits a table takes less


class TokenAutomaton:
    """Which tokens may follow, as a table: it is a search's input in every file.

    A search starts in state 0. The token v in the state s leads to
    `transitions[s, v]`: a state, -1 if the token is forbidden there, or S, the number
    of states, if the sequence ends with it.
    Paper: Willard and Louf, 2023, https://arxiv.org/abs/2307.09702, section 3.

    Args:
        transitions: int (S, V) in [-1, S].

    Example:
        >>> date = TokenAutomaton.for_tokenizer(tokenizer, r"[0-9]{4}-[0-9]{2}")
        >>> writer.generate(prompts, constraint=date)
    """

    def __init__(self, transitions):
        transitions = np.asarray(transitions)
        if transitions.ndim != 2 or transitions.dtype.kind not in "iu":
            raise ValueError(
                "transitions must be integers (states, vocabulary). Received: "
                f"{transitions.dtype} of shape {transitions.shape}."
            )
        states = len(transitions)
        if not states or transitions.min() < _DEAD or transitions.max() > states:
            held = f"{transitions.min()} to {transitions.max()}" if states else "none"
            raise ValueError(
                f"transitions of {states} states must be in [-1, {states}], and have a "
                f"state. Received: {held}."
            )
        self.transitions = transitions.astype("int32")

    @classmethod
    def for_tokenizer(
        cls, tokenizer, pattern=None, stop=(), vocabulary_size=None, end_token_id=None
    ):
        """The automaton of a regular expression, stop strings, or both.

        Args:
            tokenizer: whose tokens write the text.
            pattern: that the whole text must match, in the syntax of Rust's `regex`
                (https://docs.rs/regex/#syntax): no look-around, no back references.
                `None` for any text. An unknown token that is shown by a mark, as
                SentencePiece's " ⁇ ", is forbidden: it has other spaces at either end.
            stop: a string or several; a sequence ends with the token that completes
                one.
            vocabulary_size: V, by default the tokenizer's; with a pattern, what a model
                has beyond it is forbidden.
            end_token_id: by default the tokenizer's.

        Raises:
            ImportError: the extra `kzoo[constrain]` is missing, for a pattern.
            ValueError: the pattern is none, no tokens write what it matches, or its
                table would be too large.
        """
        size = tokenizer.vocabulary_size if vocabulary_size is None else vocabulary_size
        moves, accepting = _regex(pattern) if pattern is not None else _anything()
        _check_size(len(moves), size)
        stops = [stop] if isinstance(stop, str) else list(stop)
        if stops:
            moves, accepting = _with_stops(moves, accepting, stops, size)
        first, later = tokenizer.token_bytes()
        if pattern is None:  # what writes no text may stand anywhere
            first, later = ([t or b"" for t in tokens] for tokens in (first, later))
        else:  # but a pattern would be followed for ever
            later = [t or None for t in later]
            unknown = tokenizer.unknown_token_id
            shown = None if unknown is None else first[unknown]
            if shown and shown != tokenizer.tokens([unknown])[0].encode():
                first[unknown] = later[unknown] = None
        end = tokenizer.end_token_id if end_token_id is None else end_token_id
        allow = pattern is None
        # States of the table: 0 before the first token, 1 + q for state q of the bytes.
        table = np.concatenate(
            [
                _lifted(1, first, size, moves, allow),
                _lifted(None, later, size, moves, allow),
            ]
        )
        table = np.where(table >= 0, table + 1, _DEAD)
        # Some decoders drop every space at the start of a text, some only the first.
        silent = [i for i, text in enumerate(first[:size]) if text == b""]
        stay = [i for i in silent if _stays_at_start(tokenizer, i, first, later)]
        table[0, silent], begun = 1, [0]
        if pattern is None:
            table[0, stay] = 0
        elif stay:  # once, or a pattern would be followed for ever
            begun.append(len(table))
            table[0, stay] = _DEAD
            table = _with_copies(table, [0])
            table[0, stay] = begun[-1]
        dropped = (
            [] if pattern is None else _dropped_at_the_end(tokenizer, later[:size])
        )
        if dropped:
            table = _remembering(table, dropped)
        table[:, end] = _DEAD
        table[1 : 1 + len(moves)][accepting, end] = len(table)
        if accepting[0]:
            table[begun, end] = len(table)
        return cls(
            _trimmed(
                table,
                f"No tokens of this tokenizer write a text that matches {pattern!r}.",
            )
        )

    def without(self, tokens):
        """The automaton in which tokens are forbidden, too.

        Raises:
            ValueError: nothing is left of it.
        """
        table = self.transitions.copy()
        table[:, list(tokens)] = _DEAD
        return TokenAutomaton(
            _trimmed(
                table,
                "banned_tokens leave no text that the constraint allows. Received "
                f"{len(tokens)} of them: give fewer.",
            )
        )

    def ending_with(self, tokens, end):
        """The automaton in which tokens may stand where the token `end` may, and only.

        Raises:
            ValueError: nothing is left of it.
        """
        if not len(tokens):
            return self
        table, ended = self.transitions.copy(), len(self.transitions)
        may_end = table[:, end] == ended
        may_end = may_end[:, None] | (table[:, list(tokens)] == ended)
        table[:, list(tokens)] = np.where(may_end, ended, _DEAD)
        return TokenAutomaton(
            _trimmed(
                table,
                "stop_tokens leave no text that the constraint allows. Received "
                f"{len(tokens)} of them: give fewer.",
            )
        )

    def behind(self, tokens):
        """The automaton that begins after these tokens, which it leads by alone."""
        count, size = len(tokens), self.transitions.shape[1]
        before = np.full((count, size), _DEAD, "int32")
        before[np.arange(count), list(tokens)] = np.arange(count) + 1
        table = np.where(self.transitions >= 0, self.transitions + count, _DEAD)
        return TokenAutomaton(np.concatenate([before, table]))

    def check_length(self, count):
        """Raises `ValueError` where no sequence has `count` tokens before it ends."""
        states = len(self.transitions)
        targets = list(map(_targets, self.transitions)) if count else []
        alive = {0}
        for _ in range(min(count, states)):  # longer ones go in a circle
            alive = {t for state in alive for t in targets[state] if 0 <= t < states}
        if not alive:
            raise ValueError(
                f"min_new_tokens={count} is more than the constraint allows."
            )

    def check_prefixes(self, rows):
        """Raises `ValueError` where forced tokens (N, P), -1 for any, are forbidden."""
        states = len(self.transitions)

        @functools.cache
        def targets(state):
            return _targets(self.transitions[state])

        for row in rows:
            current, settled = {0}, False
            last = max(np.flatnonzero(row >= 0), default=-1)
            for place, token in enumerate(row[: last + 1]):
                if token < 0 and settled:  # the same states as a place before
                    continue
                found = (
                    {t for state in current for t in targets(state)}
                    if token < 0
                    else set(self.transitions[sorted(current), token].tolist())
                ) - {_DEAD}
                if not found:
                    raise ValueError(
                        "The constraint forbids the forced tokens "
                        f"{[int(t) for t in row]}: no. {place} must not be there."
                    )
                found -= {states}
                settled, current = token < 0 and found == current, found
                if not current:
                    break


def _stays_at_start(tokenizer, token, first, later):
    """Whether what follows a token that writes nothing first is written as if first."""
    pairs = enumerate(zip(first, later, strict=True))
    other = next((i for i, (a, b) in pairs if a and a != b), None)
    return other is None or len(set(tokenizer.decode([[token, other], [other]]))) == 1


def _dropped_at_the_end(tokenizer, later):
    """The tokens whose white space some decoders leave out at the end of a text."""
    spaces = [
        i
        for i, text in enumerate(later)
        if text and text.decode(errors="replace")[-1].isspace()
    ]
    word = next((i for i, text in enumerate(later) if text and text.strip()), None)
    if word is None or not spaces:
        return []
    texts = tokenizer.decode([[word, i] for i in spaces])
    return [i for i, text in zip(spaces, texts) if not text[-1:].isspace()]


def _remembering(table, tokens):
    """The table with a copy of each state that such tokens lead to, entered by them.

    The copies are the last rows, and in none of them may a text end.
    """
    states, to = len(table), table[1:, tokens]
    found = np.unique(to[(to >= 0) & (to < states)])
    _check_size(states + len(found), table.shape[1])
    table = _with_copies(table, found)
    to = table[1:, tokens]
    goes_on = (to >= 0) & (to < states)
    table[1:, tokens] = np.where(goes_on, states + np.searchsorted(found, to), to)
    return table


def _with_copies(table, states):
    """The table with copies of states as its last rows; its end is behind them."""
    end = len(table)
    table = np.concatenate([table, table[states]])
    return np.where(table == end, len(table), table)


def _anything():
    """The automaton of bytes that matches every text."""
    return np.zeros((1, 256), "int32"), np.array([True])


def _regex(pattern):
    """A regular expression as an automaton of bytes: moves (Q, 256), accepting (Q,)."""
    if importlib.util.find_spec("outlines_core") is None:
        raise ImportError(
            "Regular expressions become automata by outlines-core. Install it with "
            'pip install "kzoo[constrain]".'
        )
    if not isinstance(pattern, str):
        raise ValueError(
            f"constraint must be a regular expression. Received: {pattern!r}."
        )
    if {"^", "$", r"\A", r"\z"} & {*re.findall(r"\\.|[$^]", _CLASS.sub("", pattern))}:
        raise ValueError(
            f"The whole text must match: leave out ^ and $. Received: {pattern!r}."
        )
    found, start, finals, mark = _built(pattern)
    numbers = {state: i for i, state in enumerate([start, *(found.keys() - {start})])}
    for state in finals:
        numbers.setdefault(state, len(numbers))
    moves = np.full((len(numbers), 256), _DEAD, "int32")
    for state, edges in found.items():
        for value, target in edges.items():
            if value < 256:
                numbers.setdefault(target, len(numbers))
                moves[numbers[state], value] = numbers[target]
    accepting = np.zeros(len(numbers) + 1, bool)  # the last for -1
    accepting[[numbers[state] for state in finals]] = True
    behind = np.arange(len(numbers))
    for value in mark:
        before, behind = behind, np.where(behind < 0, _DEAD, moves[behind, value])
    # A text may end where the mark leads to the end; the mark itself it has not there.
    accepting = accepting[behind]
    moves[before[accepting], value] = _DEAD
    return moves, accepting


def _built(pattern):
    """What `regex_runner` finds, in a process that may be ended."""
    try:
        run = subprocess.run(
            [sys.executable, "-P", str(_RUNNER)],
            input=pattern.encode("utf-8", "surrogatepass"),
            capture_output=True,
            timeout=_PATIENCE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        said = run.stderr.decode(errors="replace").strip()
        ended = run.returncode and re.search("memory allocation|MemoryError", said)
    except subprocess.TimeoutExpired:
        ended = True
    if ended:
        raise ValueError(
            f"The automaton of {pattern!r} is too large: {_PATIENCE} seconds, or the "
            "memory that it may take, did not suffice. A repetition, such as "
            "(a|b){25}, behind another that matches the same text may double it each "
            "time."
        )
    if run.returncode:
        raise RuntimeError(
            f"The process that builds automata ended with {run.returncode}: "
            f"{said[-300:]}"
        )
    wrong, found = pickle.loads(run.stdout)
    if wrong is not None:
        raise ValueError(
            f"{pattern!r} is no regular expression that can be followed: {wrong}. "
            "Syntax: https://docs.rs/regex/#syntax, without look-around, word "
            "boundaries, ^ and $: the whole text must match."
        )
    return found


def _with_stops(moves, accepting, stops, size):
    """The automaton of bytes that also stops, at state Q, when a stop string is there.

    Paper: Aho and Corasick, 1975, https://doi.org/10.1145/360825.360855.
    """
    tree, last = [{}], [[]]  # of each prefix: those one byte longer, and last bytes
    for stop in map(str.encode, stops):
        node = 0
        for value in stop[:-1]:
            if value not in tree[node]:
                tree[node][value] = len(tree)
                tree.append({})
                last.append([])
            node = tree[node][value]
        last[node].append(stop[-1])
    _check_size(len(moves) * len(tree), size)
    there = len(tree)
    after = np.zeros((len(tree), 256), "int32")
    waiting = [(0, 0)]  # a prefix, and the longest other prefix that it ends with
    for node, behind in waiting:
        after[node] = after[behind]
        after[node, last[node]] = there
        for value, longer in tree[node].items():
            if after[node, value] != there:
                waiting.append((longer, after[node, value]))
                after[node, value] = longer
    product = moves[:, None] * len(tree) + after
    product = np.where(moves[:, None] < 0, _DEAD, product)
    product = np.where(after == there, len(moves) * len(tree), product)
    return product.reshape(-1, 256), np.repeat(accepting, len(tree))


def _check_size(states, size):
    """Raises `ValueError` where so many states, of tokens or bytes, are too many."""
    if states * max(size, 256) > _LARGEST:
        raise ValueError(
            f"The automaton has {states} states over {size} tokens, more than "
            f"{_LARGEST} entries. Simplify the pattern: \\d and \\w mean all of "
            "Unicode, [0-9] and [a-z] are much smaller; or shorten stop strings."
        )


def _lifted(count, tokens, size, moves, allow):
    """Where each token leads from each state of bytes: int (count, V).

    Args:
        count: of the first states; `None` for all.
        tokens: the bytes of each token; `None` for one that is forbidden.
        size: V.
        moves: int (Q, 256).
        allow: whether what has no bytes may stand anywhere, or is forbidden.
    """
    states = np.arange(len(moves), dtype="int32")[:count, None]
    result = np.repeat(states if allow else np.full_like(states, _DEAD), size, axis=1)
    by_length = sorted(
        (i for i, token in enumerate(tokens[:size]) if token is not None),
        key=lambda i: -len(tokens[i]),
    )
    lengths = np.array([len(tokens[i]) for i in by_length])
    current = np.repeat(states, len(by_length), axis=1)
    for place in range(max(lengths, default=0)):
        count = int((lengths > place).sum())  # longer tokens come first
        values = np.array([tokens[i][place] for i in by_length[:count]])
        now = current[:, :count]
        runs = (now >= 0) & (now < len(moves))
        current[:, :count] = np.where(runs, moves[np.where(runs, now, 0), values], now)
    result[:, by_length] = current
    return result


def _targets(row):
    """The states that a row of a table leads to, and -1 where a token is forbidden."""
    return (np.flatnonzero(np.bincount(row + 1)) - 1).tolist()


def _trimmed(table, message):
    """The table without states that are never reached, or from which no end is.

    A token into one of the latter is forbidden, so that a search never gets stuck.
    Raises a `ValueError` with the message where nothing is left.
    """
    states = len(table)
    targets = list(map(_targets, table))
    before = [[] for _ in range(states + 1)]  # the states that lead to each, and to S
    for state, found in enumerate(targets):
        for target in found:
            if target != _DEAD:
                before[target].append(state)
    useful, waiting = np.zeros(states, bool), [states]
    while waiting:
        for state in before[waiting.pop()]:
            if not useful[state]:
                useful[state] = True
                waiting.append(state)
    if not useful[0]:
        raise ValueError(message)
    table = np.where(np.append(useful, [True, False])[table], table, _DEAD)
    reached, waiting = {0}, [0]
    while waiting:
        for target in targets[waiting.pop()]:
            if 0 <= target < states and useful[target] and target not in reached:
                reached.add(target)
                waiting.append(target)
    kept = sorted(reached)
    numbers = np.full(states + 2, _DEAD)
    numbers[kept], numbers[states] = np.arange(len(kept)), len(kept)
    return numbers[table[kept]]
