"""Greedy search, sampling and beam search, written once for tensors and ONNX values.

A search knows nothing of the model: it is given `step(tokens, cache, place, fixed)`,
which reads the next token of a prompt's M beams, int (B, M), and gives the logits
behind each, (B, M, V), and the cache with M entries more. The cache of a prompt is that
of all its beams and is never reordered: `place` says which entries are of whose
sequence, as in tree attention (Miao et al., 2023, https://arxiv.org/abs/2305.09781,
section 4.1). Prompts are never mixed: what one finds does not depend on the others in
its batch.

Shapes: B prompts with M beams, so R = B * M rows; L new tokens, V vocabulary_size.
"""

import math

from kzoo import ops
from kzoo.generation.low_memory import low_memory_loop
from kzoo.generation.places import Place
from kzoo.generation.processors import BANNED, Chain, Context, Table, either
from kzoo.generation.sampling import keep_probable, sample

IMPOSSIBLE = -1e30  # a score that every real one beats; finite, so that 0 * it is 0
TINY = math.ldexp(1.0, -20)  # a temperature so low that the largest logit wins


def search(
    step, start, options, *, end_token_id, pad_token_id, vocabulary_size, capacity
):
    """Generates with `options["beams"]` beams; one beam is greedy search, or sampling.

    With M > 1 beams each step extends the M unfinished sequences. One that ends counts
    as finished when it is among the best M of all, and its score is log p / length **
    length_penalty, the end token counted; the best M that do not end run on. What still
    runs at `max_new_tokens` is scored likewise. A finished row is frozen, so it does
    not depend on how long the other rows of its batch run.

    Args:
        step: function (tokens int (B, M), cache, place, fixed) to (logits (B, M, V),
            cache); `place` is a `Place`.
        start: a `Start`.
        options: dict of numbers or scalars `max_new_tokens`; `beams`, M;
            `num_return_sequences`, n <= M; `length_penalty`; and a bool or scalar
            `early_stopping`: with M > 1 a row ends as soon as M sequences are finished,
            else when no unfinished one can score better any more (its bound: log p
            never rises, and the penalty is the kindest within `max_new_tokens`).
            Optionally, each off where it is left out:

            - `temperature`: one beam draws each token from softmax(logits /
              temperature) where it is positive, with the int scalar `seed` and the
              numbers `row` int (B,), by default 0, 1, ...; `top_k`, `top_p`, `min_p`,
              all three or none, see `sampling.keep_probable`. The scores stay those of
              the model.
            - `repetition_penalty`, `no_repeat_ngram_size`, `min_new_tokens` (before an
              end token), `banned_token_ids` int (K,), and a bool or scalar
              `renormalize`: after all of these p sums to 1 again.
            - `forced_token_ids` int (B or 1, P): the tokens that a sequence begins
              with; -1 is any.
            - `stop_token_ids` int (K,): tokens that end a sequence, too.
            - `automaton` int (S, V), see `TokenAutomaton`; one without states is off.
            - `processors`: functions, see `kzoo.generation.processors`.
            - `return_scores`, a bool: without them one beam is spared a softmax, and
              its scores are 0, -inf or NaN, finite where they would be.
        end_token_id: ends a sequence.
        pad_token_id: fills ended sequences.
        vocabulary_size: V.
        capacity: int, the most new tokens, where buffers are fixed.

    Returns:
        int (B, n, L) sequences of new tokens, best first, and their scores float32 (B,
        n), NaN where a sequence's own were lost. Where nothing is allowed any more a
        sequence ends; among several beams it is dropped. More sequences than beams are
        an error of the backend's `top_k`.
    """
    run = Search(step, start, options, end_token_id, pad_token_id, vocabulary_size)
    if ops.saves_memory():
        return run.results(low_memory_loop(run, start))
    return run.results(
        ops.while_loop(
            run.unfinished,
            run.advance,
            run.first(start.prefilled(), capacity),
            options["max_new_tokens"],
        )
    )


class Search:
    """A search as its parts: a first state, the next one, what is found.

    The state is a dict of `running` int (R, L), what is generated so far, with `scores`
    float (B, M), its log p; `ended` and `ended_scores` likewise, the finished sequences
    with their final scores; `tokens` int (B, M), the last ones of `running`; `done`
    bool (B, 1); `made`, a scalar, the L so far; and the `cache`, of which `seen`, bool
    (R, N), says what is of each sequence, unless there is one beam alone; with an
    automaton also its states int (R,).

    Args:
        step: see `search`, so for the next three.
        start: a `Start`; of its `tokens` and `cache` only `first` makes a state.
        options: a dict.
        end_token_id: ends a sequence.
        pad_token_id: fills ended sequences.
        vocabulary_size: V.
    """

    def __init__(
        self, step, start, options, end_token_id, pad_token_id, vocabulary_size
    ):
        self.step, self.index, self.fixed = step, start.index, start.fixed
        self.batch, self.beams = ops.dim(start.tokens, 0), options["beams"]
        batch = self.batch
        self.rows = batch * self.beams
        self.limit = options["max_new_tokens"]
        self.count = options["num_return_sequences"]
        self.penalty = ops.as_scalar(options["length_penalty"], "float32")
        self.early_stopping = options["early_stopping"]
        self.end, self.pad, self.size = end_token_id, pad_token_id, vocabulary_size
        # What does not change: the row of a prompt's first beam, and of each beam.
        self.first_row = ops.expand_dims(ops.arange(batch), 1) * self.beams
        number = ops.expand_dims(ops.arange(self.beams), 0)
        self.row, self.is_copy = self.first_row + number, number > 0
        # Each beam sees itself, and no other one: bool (R, M).
        self.own = None
        if not (isinstance(self.beams, int) and self.beams == 1):
            same = ops.equal(ops.expand_dims(number, 2), ops.expand_dims(number, 1))
            same = ops.broadcast_to(same, (batch, self.beams, self.beams))
            self.own = ops.reshape(same, (self.rows, self.beams))
        self.pads = ops.full((batch, self.beams), self.pad, "int32")
        self.longest = self.divisor(self.limit)
        self.scored = options.get("return_scores", True)
        self._read_sampling(options)
        self._read_processing(options, start.prompt)

    def _read_sampling(self, options):
        self.temperature = options.get("temperature")
        if self.temperature is None:
            return
        self.temperature = ops.as_scalar(self.temperature, "float32")
        self.seed = ops.as_scalar(options["seed"])
        row = options.get("row")
        self.number = ops.arange(self.batch) if row is None else row
        self.filter = None
        if "top_k" in options:
            self.filter = (
                ops.as_scalar(options["top_k"]),
                ops.as_scalar(options["top_p"], "float32"),
                ops.as_scalar(options["min_p"], "float32"),
            )

    def _read_processing(self, options, prompt):
        end, stops = ops.full((1,), self.end, "int32"), options.get("stop_token_ids")
        table = options.get("automaton")
        self.automaton = None if table is None else Table(table, self.size)
        self.several_ends, self.many_ends = stops is not None, False
        if stops is not None:
            end = ops.concatenate([end, stops], axis=0)
            self.many_ends = either(self.many_ends, ops.dim(stops, 0) > 0)
        if self.automaton is not None:
            self.many_ends = either(self.many_ends, self.automaton.active)
        self.is_end = ops.members(ops.expand_dims(end, 0), self.size)  # (1, V)
        self.prompt = None if prompt is None else self.repeated(prompt)
        forced = options.get("forced_token_ids")
        if forced is not None:
            shape = (self.batch, ops.dim(forced, 1))
            forced = self.repeated(ops.broadcast_to(forced, shape))
        self.chain = Chain(options, self.size, self.is_end, self.automaton, forced)
        # Whether more than the best token, and one end, is to be looked at.
        self.special = either(self.chain.active, self.many_ends)
        self.draws = self.special
        if self.temperature is not None:
            self.draws = either(self.special, self.temperature > 0.0)

    def divisor(self, length):
        """What log p is divided by."""
        return ops.as_scalar(length, "float32") ** self.penalty

    def repeated(self, x):
        """(B, ...) to (R, ...)."""
        sizes = ops.shape(x)[1:]
        x = ops.expand_dims(x, 1)
        x = ops.broadcast_to(x, (self.batch, self.beams, *sizes))
        return ops.reshape(x, (self.rows, *sizes))

    def first(self, start, capacity):
        """The state before the first token.

        Args:
            start: a `Start`.
            capacity: int, the most new tokens, where buffers are fixed.
        """
        batch, beams, rows = self.batch, self.beams, self.rows

        def empty():
            return ops.buffer((rows, 0), 1, capacity, "int32", fill=self.pad)

        tokens = ops.expand_dims(start.tokens, 1)
        zero = ops.full((batch, 1), 0.0, "float32")
        state = {
            "cache": start.cache,
            "done": ops.full((batch, 1), False, "bool"),
            "ended": empty(),
            "ended_scores": ops.full((batch, beams), IMPOSSIBLE, "float32"),
            "made": ops.as_scalar(0),
            "running": empty(),
            # One beam runs, its copies wait.
            "scores": ops.where(self.is_copy, IMPOSSIBLE, zero),
            "tokens": ops.broadcast_to(tokens, (batch, beams)),
        }
        if self.own is not None:
            seen = start.seen
            if seen is None:
                seen = ops.full((batch, self.index), True, "bool")
            seen = self.repeated(seen)
            if not ops.buffers_grow():
                rest = ops.full((rows, capacity * beams), False, "bool")
                seen = ops.concatenate([seen, rest], axis=1)
            state["seen"] = seen
        if self.automaton is not None:
            state["automaton"] = ops.full((rows,), 0, "int32")
        return state

    def unfinished(self, state):
        """Whether any row goes on: a bool scalar."""
        return ~ops.all(state["done"])

    def advance(self, state):
        """The state one token further."""
        place, seen = self.place(state)
        tokens = ops.reshape(state["tokens"], (self.batch, self.beams))
        logits, cache = self.step(tokens, state["cache"], place, self.fixed)
        logits = ops.cast(ops.reshape(logits, (-1, self.size)), "float32")
        state = state if seen is None else {**state, "seen": seen}

        # A branch does not hold the step itself: runtimes prepare the weights that a
        # loop reads, but not those of a branch in it.
        new = ops.cond(
            self.beams > 1,
            lambda: self.beam(state, logits),
            lambda: self.greedy(state, logits),
        )
        return {**new, "cache": cache, "made": state["made"] + 1}

    def place(self, state):
        """Where the next step's tokens stand, and what they see: bool (R, S)."""
        before = ops.as_scalar(self.index)
        index = before + state["made"]
        if self.own is None:
            return Place.behind(index), None
        filled = before + state["made"] * self.beams
        seen = ops.append(state["seen"], self.own, filled, axis=1)
        entry = ops.arange(ops.dim(seen, 1))
        later = before + (entry - before) // self.beams
        order = ops.where(entry < before, entry, later)
        mask = ops.reshape(seen, (self.batch, 1, self.beams, -1))
        return Place(index, filled, mask, order), seen

    def processed(self, scores, state, logits):
        """The scores (R, V) that tokens are chosen by."""
        rows = ops.dim(scores, 0)
        running = state["running"]
        if not ops.buffers_grow():  # what is behind `made` is filling
            place = ops.expand_dims(ops.arange(ops.dim(running, 1)), 0)
            running = ops.where(place < state["made"], running, -1)
        # A place of nothing first, so that a history never is empty.
        prompt = ops.full((rows, 1), -1, "int32")
        if self.prompt is not None:
            prompt = ops.concatenate([prompt, self.prompt], axis=1)
        context = Context(
            ops.concatenate([prompt, running], axis=1),
            ops.dim(prompt, 1),
            state["made"],
            state.get("automaton"),
            logits,
        )
        return self.chain(scores, context)

    def ending(self, ids, states):
        """Which tokens end their sequence; `states` are the automaton's after them."""
        if self.several_ends:
            ends = ops.take(ops.reshape(self.is_end, (self.size,)), ids)
        else:
            ends = ops.equal(ids, self.end)
        if self.automaton is None:
            return ends
        return ends | self.automaton.stops(states)

    def greedy(self, state, logits):
        """Greedy search's next state, or sampling's."""
        done, made = state["done"], state["made"]
        ids, ends, automaton, lost = self.next_tokens(logits, state)
        kept = {name: state[name] for name in ("seen",) if name in state}
        if self.automaton is not None:
            kept["automaton"] = automaton
        ids, ends = ops.expand_dims(ids, 1), ops.expand_dims(ends, 1)
        if self.scored:
            gain = ops.take_along_axis(ops.log_softmax(logits), ids, axis=1)
        else:
            gain = self.unscored(logits, ids)
        if self.chain.processors:
            gain = ops.where(lost, math.inf, gain)  # as in `beam`: it is seen
        scores = state["scores"] + ops.where(done, 0.0, gain)
        tokens = ops.where(done, self.pad, ids)
        running = ops.append(state["running"], tokens, made, axis=1)
        final = scores / self.divisor(made + 1)
        return {
            **kept,
            "done": done | ends,
            "ended": running,
            "ended_scores": ops.where(done, state["ended_scores"], final),
            "running": running,
            "scores": scores,
            "tokens": tokens,
        }

    def unscored(self, logits, ids):
        """0 where ids (R, 1) have a finite log p, -inf, or NaN as it is: (R, 1)."""
        # XLA's maximum passes over NaN, and a sum of finite numbers may overflow.
        share = ops.sum(logits * (1.0 / self.size), axis=1, keepdims=True)
        best = ops.max(logits, axis=1, keepdims=True)
        fine = (share < math.inf) & (best > -math.inf)
        chosen = ops.take_along_axis(logits, ids, axis=1)
        gain = ops.where(chosen > -math.inf, 0.0, -math.inf)
        return ops.where(fine, gain, math.nan)

    def next_tokens(self, logits, state):
        """The best tokens, or drawn ones, and whether they end their sequence.

        Args:
            logits: float (R, V).
            state: see `Search`.

        Returns:
            int (R,), bool (R,), the automaton's states, int (R,), or nothing; and
            where processors of a user gave NaN, bool (R, 1), or nothing without them.
        """
        before = state.get("automaton", ())

        def processed():
            scores = self.processed(logits, state, logits)
            if self.temperature is None:
                ids = ops.argmax(scores)
            else:
                ids = ops.cond(
                    self.temperature > 0.0,
                    lambda: self.draw(scores, state["made"]),
                    lambda: ops.argmax(scores),
                )
            allowed = ops.max(scores, axis=1) > BANNED / 2
            ids = ops.where(allowed, ids, self.end)
            after, lost = before, ()
            if self.automaton is not None:
                after = self.automaton.after(before, ids)
            if self.chain.processors:
                odd = ops.not_equal(scores, scores)
                lost = ops.any(odd, axis=1, keepdims=True)
            return ids, self.ending(ids, after), after, lost

        def best():
            ids = ops.argmax(logits)
            return ids, ops.equal(ids, self.end), before, ()

        return ops.cond(self.draws, processed, best)

    def draw(self, scores, made):
        """Drawn tokens: float (R, V) to int (R,)."""
        # What is banned stays so at any temperature.
        warmed = scores / ops.maximum(self.temperature, TINY)
        scores = ops.where(scores < BANNED / 2, BANNED, warmed)
        if self.filter is not None:
            k, p, share = self.filter
            scores = ops.cond(
                (k > 0) | (p < 1.0) | (share > 0.0),
                lambda: keep_probable(scores, k, p, share),
                lambda: scores,
            )
        return sample(scores, self.seed, self.number, made)

    def candidates(self, scores, state):
        """The extensions (R, W) of each row that may be among the best of all.

        The M best that do not end and the M best that do; where one token alone ends a
        sequence, the 2 M best hold them.
        """

        def best_of_each():
            ends = self.is_end
            if self.automaton is not None:
                entries = self.automaton.entries(state["automaton"])
                ends = ends | self.automaton.stops(entries)
            count = ops.minimum(self.beams, self.size)
            runs, running = ops.top_k(ops.where(ends, BANNED, scores), count)
            stops, stopping = ops.top_k(ops.where(ends, scores, BANNED), count)
            return (
                ops.concatenate([runs, stops], axis=1),
                ops.concatenate([running, stopping], axis=1),
            )

        return ops.cond(self.many_ends, best_of_each, lambda: self.best_of_all(scores))

    def best_of_all(self, scores):
        """The 2 M best extensions (R, W) of each row."""
        return ops.top_k(scores, ops.minimum(2 * self.beams, self.size))

    def beam(self, state, logits):
        """Beam search's next state."""
        batch, beams, rows = self.batch, self.beams, self.rows
        done, length = state["done"], state["made"] + 1
        best, ids = ops.cond(
            self.special,
            lambda: self.candidates(
                self.processed(ops.log_softmax(logits), state, logits), state
            ),
            lambda: self.best_of_all(ops.log_softmax(logits)),
        )
        width = ops.dim(best, 1)
        best = ops.reshape(best, (batch, beams, width))
        scores = ops.expand_dims(state["scores"], 2)
        # What has no number wins, so that it is seen, unless it never counts.
        lost = ops.where(scores > IMPOSSIBLE / 2, math.inf, IMPOSSIBLE)
        best = ops.where(best >= -math.inf, scores + best, lost)
        best = ops.reshape(best, (batch, beams * width))
        ids = ops.reshape(ids, (batch, beams * width))
        origin = ops.expand_dims(ops.arange(beams * width) // width, 0)
        origin = self.first_row + origin
        states = None
        if self.automaton is not None:
            states = self.automaton.after(ops.take(state["automaton"], origin), ids)
        ends = self.ending(ids, states)

        def extended(sequences, source, tokens):
            """The rows of `sequences` at `source` (B, M), with `tokens` (B, M)."""
            sequences = ops.take(sequences, ops.reshape(source, (rows,)), axis=0)
            tokens = ops.reshape(tokens, (rows, 1))
            return ops.append(sequences, tokens, state["made"], axis=1)

        # Finished sequences: the old ones against those of the best M that end now.
        top, place = ops.top_k(best, beams)
        counts = self._at([ends], place) & ~done & (top > IMPOSSIBLE / 2)
        now = ops.where(counts, top / self.divisor(length), IMPOSSIBLE)
        ended_scores, chosen = ops.top_k(
            ops.concatenate([state["ended_scores"], now], axis=1), beams
        )
        ended = extended(
            ops.concatenate([state["ended"], state["running"]], axis=0),
            self._at([self.row, rows + self._at([origin], place)], chosen),
            self._at([self.pads, self._at([ids], place)], chosen),
        )

        # Running sequences: the best M extensions that do not end.
        scores, chosen = ops.top_k(ops.where(ends, IMPOSSIBLE, best), beams)
        scores = ops.maximum(scores, IMPOSSIBLE)  # of what is banned, too
        source, tokens = self._at([origin], chosen), self._at([ids], chosen)
        new = {"seen": ops.take(state["seen"], ops.reshape(source, (rows,)), axis=0)}
        if self.automaton is not None:
            new["automaton"] = ops.reshape(self._at([states], chosen), (rows,))

        # Scores are negative: the kindest penalty divides by the largest number.
        kindest = ops.maximum(self.longest, self.divisor(length + 1))
        hope = ops.max(scores, axis=1, keepdims=True)
        worst = ops.slice_axis(ended_scores, -1, None, axis=1)
        full, beaten = worst > IMPOSSIBLE / 2, hope / kindest <= worst
        more = length < self.limit  # at the limit what runs is scored, too
        over = (full & (beaten | self.early_stopping)) | (hope <= IMPOSSIBLE / 2)
        return {
            **new,
            "done": done | (over & more),
            "ended": ended,
            "ended_scores": ended_scores,
            "running": extended(state["running"], source, tokens),
            "scores": scores,
            "tokens": tokens,
        }

    def results(self, state):
        """Sequences int (B, n, L) and scores float (B, n), best first."""
        made = ops.maximum(state["made"], 1)
        waits = state["done"] | (state["scores"] <= IMPOSSIBLE / 2)
        still = state["scores"] / self.divisor(made)
        still = ops.where(waits, IMPOSSIBLE, still)
        scores, chosen = ops.top_k(
            ops.concatenate([state["ended_scores"], still], axis=1), self.beams
        )
        scores, best = ops.top_k(scores, self.count)
        scores = ops.where(scores < math.inf, scores, math.nan)
        source = self._at([self.row, self.rows + self.row], chosen)
        pool = ops.concatenate([state["ended"], state["running"]], axis=0)
        return ops.take(pool, self._at([source], best), axis=0), scores

    @staticmethod
    def _at(parts, place):
        """What stands at `place` (B, J) in the parts (B, ...), side by side."""
        parts = parts[0] if len(parts) == 1 else ops.concatenate(parts, axis=1)
        return ops.take_along_axis(parts, place, axis=1)
