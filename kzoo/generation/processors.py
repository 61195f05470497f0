"""What changes a model's scores before a token is chosen: one chain, in this order.

A processor is a function of scores float32 (R, V), higher is better, and a `Context`,
to scores, written over `kzoo.ops`. kzoo's own are in every file, and so are those of
`task.processors`; those of one call of `generate` are not. It is compiled with a
search: weights of Keras may change, but for another number or option of Python's give
a new processor, since that of the first call stays. A search gives it logits
where it takes the best token or draws one, and log p where it keeps beams. `BANNED` is
the score of what must not be chosen.
"""

from typing import NamedTuple

from kzoo import ops

BANNED = -1e36  # finite, so that sums of it stay numbers; far below every real score


class Context(NamedTuple):
    """What a processor may look at.

    Attributes:
        history: int (R, T), the tokens of each row so far, its prompt's before them (of
            an encoder-decoder the start token); -1 where there is none. Where XLA
            compiles, T does not grow, and -1 stands behind the tokens so far: the last
            one is at `prompt_length + made - 1`, not at the end.
        prompt_length: int or scalar, how many places of T are the prompt's.
        made: int scalar, how many tokens were generated.
        automaton: int (R,), the states of the automaton, or `None`.
        logits: float (R, V), what the model said.
    """

    history: object
    prompt_length: object
    made: object
    automaton: object
    logits: object


class Table:
    """A `TokenAutomaton`'s transitions in a search.

    Args:
        transitions: int (S, V); without states it allows everything.
        vocabulary_size: V.

    Attributes:
        active: whether it has states: a bool or a scalar.
    """

    def __init__(self, transitions, vocabulary_size):
        self.size, self.count = vocabulary_size, ops.dim(transitions, 0)
        self.active = self.count > 0
        row = ops.full((1, vocabulary_size), 0, "int32")  # so that there is one
        self.transitions = ops.concatenate([transitions, row], axis=0)

    def row(self, states):
        """Rows of the transitions; states are -1 where dead, S where ended."""
        return ops.maximum(ops.minimum(states, self.count - 1), 0)

    def entries(self, states):
        """Where each token leads: int (R,) to int (R, V)."""
        return ops.take(self.transitions, self.row(states), axis=0)

    def after(self, states, ids):
        """The states after tokens, all int (R,) or (B, J)."""
        row = self.row(states)
        flat = ops.reshape(self.transitions, (-1,))
        entry = ops.take(flat, row * self.size + ids)
        return ops.where(ops.equal(row, states), entry, states)

    def stops(self, entries):
        """Which entries, or states, end a sequence: bool."""
        return ops.equal(entries, self.count) & self.active


class Chain:
    """The processors that the options of a search ask for.

    Args:
        options: of the search, see `kzoo.generation.search`; what is not in it is off.
            A scalar may have the value that stands for off, too.
        vocabulary_size: V.
        ends: bool (1, V), the tokens that end a sequence.
        automaton: a `Table` or `None`.
        forced: int (R, P), the token that each position must have, -1 for any; or None.

    Attributes:
        active: whether any of them does anything: a bool or a scalar.
    """

    def __init__(self, options, vocabulary_size, ends, automaton, forced):
        self.ends, self.automaton, self.forced = ends, automaton, forced
        self.penalty = options.get("repetition_penalty")
        self.ngram_size = options.get("no_repeat_ngram_size")
        self.minimum = options.get("min_new_tokens")
        self.processors = options.get("processors", ())
        self.renormalize = options.get("renormalize")
        banned, self.banned = options.get("banned_token_ids"), None
        if banned is not None:
            self.banned = ops.members(ops.expand_dims(banned, 0), vocabulary_size)
        self.active = bool(self.processors)
        for value, is_on in (
            (self.penalty, lambda x: ops.not_equal(x, 1.0)),
            (self.ngram_size, lambda x: x > 0),
            (self.minimum, lambda x: x > 0),
            (banned, lambda x: ops.dim(x, 0) > 0),
            (forced, lambda x: ops.dim(x, 1) > 0),
            (automaton, lambda x: x.active),
        ):
            if value is not None:
                self.active = either(self.active, is_on(value))

    def __call__(self, scores, context):
        """The scores (R, V) that tokens are chosen by."""
        if self.penalty is not None:
            scores = penalize_repetition(scores, context, self.penalty)
        if self.ngram_size is not None:
            scores = ban_repeated_ngrams(scores, context, self.ngram_size)
        for processor in self.processors:
            scores = applied(processor, scores, context)
        if self.minimum is not None:
            early = context.made < self.minimum
            scores = ops.where(self.ends & early, BANNED, scores)
        if self.banned is not None:
            scores = ops.where(self.banned, BANNED, scores)
        if self.automaton is not None:
            scores = self._follow_automaton(scores, context)
        if self.forced is not None:
            scores = force(scores, context, self.forced)
        if self.renormalize is not None:
            left = ops.log_softmax(scores)
            scores = ops.where((scores > BANNED / 2) & self.renormalize, left, scores)
        return scores

    def _follow_automaton(self, scores, context):
        entries = self.automaton.entries(context.automaton)
        allowed = (entries >= 0) & (ops.expand_dims(context.automaton, 1) >= 0)
        if self.minimum is not None:
            early = context.made < self.minimum
            allowed = allowed & ~(self.automaton.stops(entries) & early)
        return ops.where(allowed, scores, BANNED)


def applied(processor, scores, context):
    """What a user's processor gives.

    Raises:
        ValueError: it fails, or gives another shape.
    """
    try:
        result = processor(scores, context)
        shape, right = tuple(result.shape), tuple(scores.shape)
        if len(shape) != 2 or any(
            isinstance(a, int) and isinstance(b, int) and a != b
            for a, b in zip(shape, right)
        ):
            raise ValueError(f"its result has the shape {shape}")
        if str(result.dtype) not in str(scores.dtype):
            raise ValueError(f"its result is {result.dtype}")
        if right[0] is None and not ops.is_onnx(scores):  # TensorFlow, for any batch
            same = ops.equal(ops.dim(result, 0), ops.dim(scores, 0))
            message = f"The processor {processor!r} gives another number of rows."
            result = ops.required(result, same, message)
        return result
    except (TypeError, ValueError, AttributeError, NotImplementedError) as error:
        raise ValueError(
            f"The processor {processor!r} failed: {error}. It must be a function of "
            "scores float32 (R, V) and a kzoo.generation.Context to scores of that "
            "shape, written over kzoo.ops so that files can hold it."
        ) from error


def either(first, second):
    """Whether one holds, a bool where that is certain."""
    return True if first is True or second is True else first | second


def penalize_repetition(scores, context, penalty):
    """Divides positive scores of tokens that occurred, multiplies negative ones.

    Paper: Keskar et al., 2019, https://arxiv.org/abs/1909.05858, section 4.1; negative
    scores as in transformers.
    """
    occurred = ops.members(context.history, ops.dim(scores, 1))
    penalized = ops.where(scores < 0.0, scores * penalty, scores / penalty)
    return ops.where(occurred, penalized, scores)


def ban_repeated_ngrams(scores, context, size):
    """Bans what would end an n-gram of `size` tokens that occurred; 0 bans nothing.

    Paper: Paulus et al., 2017, https://arxiv.org/abs/1705.04304, section 2.5.
    """
    history = context.history
    place = ops.arange(ops.dim(history, 1))
    last = ops.reshape(context.made + context.prompt_length - 1, (1,))

    def at(index):
        """The tokens at places (K,), -1 before the first one."""
        tokens = ops.take(history, ops.maximum(index, 0), axis=1)
        return ops.where(ops.expand_dims(index, 0) >= 0, tokens, -1)

    def body(state):
        before, own = at(place - 1 - state["i"]), at(last - state["i"])
        matches = state["matches"] & ops.equal(before, own) & (own >= 0)
        return {"i": state["i"] + 1, "matches": matches}

    state = {"i": ops.as_scalar(0), "matches": (history >= 0) & (size > 0)}
    found = ops.while_loop(
        lambda state: ops.any(state["matches"]),
        body,
        state,
        ops.maximum(ops.as_scalar(size) - 1, 0),
    )
    repeated = ops.where(found["matches"], history, -1)
    return ops.where(ops.members(repeated, ops.dim(scores, 1)), BANNED, scores)


def force(scores, context, forced):
    """Bans all tokens but the forced one, which counts as certain: its log p is 0.

    As in transformers. It is in all sequences, but of its log p those would have the
    greater share that end early.
    """
    rows, length = ops.dim(forced, 0), ops.dim(forced, 1)
    free = ops.full((rows, 1), -1, "int32")
    tokens = ops.concatenate([forced, free], axis=1)
    here = ops.minimum(context.made, ops.as_scalar(length))
    token = ops.take(tokens, ops.reshape(here, (1,)), axis=1)
    chosen = ops.members(token, ops.dim(scores, 1))
    return ops.where(token >= 0, ops.where(chosen, 0.0, BANNED), scores)
