"""Greedy search, sampling and beam search, written once for tensors and ONNX values.

A search knows nothing of the model: it is given `step(tokens, cache, index)`, which
reads one token a row and gives the logits of the next and the new cache. Rows are
never mixed: what one row finds does not depend on the others in its batch.

Shapes: B prompts with M beams, so R = B * M rows; L new tokens, V vocabulary_size.
"""

from kzoo import ops
from kzoo.generation.sampling import sample

IMPOSSIBLE = -1e30  # a score that every real one beats; finite, so that 0 * it is 0


def search(
    step, tokens, cache, index, options, *, end_token_id, pad_token_id, capacity
):
    """Generates with `options["beams"]` beams; one beam is greedy search, or sampling.

    With M > 1 beams each step extends the M unfinished sequences and looks at the best
    2 M extensions. One that ends counts as finished when it is among the best M, and
    its score is log p / length ** length_penalty, the end token counted. What still
    runs at `max_new_tokens` is scored likewise. A finished row is frozen, so it does
    not depend on how long the other rows of its batch run.

    Args:
        step: function (tokens int (R,), cache, index) to (logits (R, V), cache).
        tokens: int (B,), the last token of each prompt.
        cache: structure of tensors with B rows, without that token.
        index: int scalar, how many positions the cache holds.
        options: dict of ints or scalars `max_new_tokens`; `beams`, M;
            `num_return_sequences`, n <= M; a float or scalar `length_penalty`; and a
            bool or scalar `early_stopping`: with M > 1 a row ends as soon as M
            sequences are finished, else when no unfinished one can score better any
            more (its bound: log p never rises, and the penalty is the kindest within
            `max_new_tokens`). Optionally `temperature`, a scalar: one beam draws each
            token from softmax(logits / temperature) where it is positive, with the int
            scalar `seed` and the numbers `row` int (B,), by default 0, 1, ...; the
            scores stay those of the model.
        end_token_id: ends a sequence.
        pad_token_id: fills ended sequences.
        capacity: int, the most new tokens, where buffers are fixed.

    Returns:
        int (B, n, L) sequences of new tokens, best first, and their scores float32
        (B, n). More sequences than beams are an error of the backend's `top_k`.
    """
    beams = options["beams"]
    choice = _Choice(ops.dim(tokens, 0), options, end_token_id, pad_token_id)

    def body(state):
        cache = ops.map_structure(
            lambda x: choice.reordered(x, state["source"]), state["cache"]
        )
        index_now = ops.as_scalar(index) + state["made"]
        logits, cache = step(state["tokens"], cache, index_now)
        logits = ops.cast(logits, "float32")
        # The best 2 M extensions of each row are enough to find those of all.
        width = ops.minimum(2 * beams, ops.dim(logits, -1))
        origin = ops.arange(beams * width) // width

        def greedy():
            return choice.greedy(state, logits)

        def beam():
            return choice.beam(state, logits, width, origin)

        # A branch does not hold the step itself: runtimes prepare the weights that a
        # loop reads, but not those of a loop in a branch.
        if isinstance(beams, int):
            new = greedy() if beams == 1 else beam()
        else:
            new = ops.cond(beams > 1, beam, greedy)
        return {**new, "cache": cache, "made": state["made"] + 1}

    state = choice.start(tokens, cache, capacity)
    return choice.results(
        ops.while_loop(
            lambda state: ~ops.all(state["done"]),
            body,
            state,
            options["max_new_tokens"],
        )
    )


class _Choice:
    """Chooses the tokens of a search, given their logits.

    The state is a dict of `running` int (R, L), what is generated so far, with `scores`
    float (B, M), its log p; `ended` and `ended_scores` likewise, the finished sequences
    with their final scores; `tokens` int (R,), the last ones of `running`; `done` bool
    (B, 1); `made`, a scalar, the L so far; and the `cache`, of which the rows `source`
    int (R,) belong to those of `running`.
    """

    def __init__(self, batch, options, end_token_id, pad_token_id):
        self.batch, self.beams = batch, options["beams"]
        self.rows = batch * self.beams
        self.limit = options["max_new_tokens"]
        self.count = options["num_return_sequences"]
        self.penalty = ops.as_scalar(options["length_penalty"], "float32")
        self.early_stopping = options["early_stopping"]
        self.temperature = options.get("temperature")
        if self.temperature is not None:
            self.temperature = ops.as_scalar(self.temperature, "float32")
            self.seed = ops.as_scalar(options["seed"])
            row = options.get("row")
            self.number = ops.arange(batch) if row is None else row
        self.end, self.pad = end_token_id, pad_token_id
        # What does not change: the row of a prompt's first beam, and of each beam.
        self.first_row = ops.expand_dims(ops.arange(batch), 1) * self.beams
        number = ops.expand_dims(ops.arange(self.beams), 0)
        self.row, self.is_copy = self.first_row + number, number > 0
        self.pads = ops.full((batch, self.beams), self.pad, "int32")
        # Of the best 2 M extensions, those that count when they end.
        self.counts = ops.expand_dims(ops.arange(2 * self.beams), 0) < self.beams
        self.longest = self.divisor(self.limit)

    def divisor(self, length):
        """What log p is divided by."""
        return ops.as_scalar(length, "float32") ** self.penalty

    def reordered(self, x, source):
        """A part of the cache as the next step reads it."""
        if isinstance(self.beams, int):
            return x if self.beams == 1 else ops.take(x, source, axis=0)
        return ops.take_if(self.beams > 1, x, source)

    def start(self, tokens, cache, capacity):
        """The state before the first token."""
        batch, beams, rows = self.batch, self.beams, self.rows

        def repeat(x):  # (B, ...) to (R, ...)
            sizes = ops.shape(x)
            x = ops.broadcast_to(ops.expand_dims(x, 1), (batch, beams, *sizes[1:]))
            return ops.reshape(x, (rows, *sizes[1:]))

        def empty():
            return ops.buffer((rows, 0), 1, capacity, "int32", fill=self.pad)

        zero = ops.full((batch, 1), 0.0, "float32")
        return {
            "cache": ops.map_structure(repeat, cache),
            "done": ops.full((batch, 1), False, "bool"),
            "ended": empty(),
            "ended_scores": ops.full((batch, beams), IMPOSSIBLE, "float32"),
            "made": ops.as_scalar(0),
            "running": empty(),
            # One beam runs, its copies wait.
            "scores": ops.where(self.is_copy, IMPOSSIBLE, zero),
            "source": ops.reshape(self.row, (rows,)),
            "tokens": repeat(tokens),
        }

    def greedy(self, state, logits):
        """Greedy search's next state, or sampling's."""
        done, made = state["done"], state["made"]
        ids = ops.expand_dims(self.next_tokens(logits, made), 1)
        gain = ops.take_along_axis(ops.log_softmax(logits), ids, axis=1)
        ends = ops.equal(ids, self.end)
        scores = state["scores"] + ops.where(done, 0.0, gain)
        tokens = ops.where(done, self.pad, ids)
        running = ops.append(state["running"], tokens, made, axis=1)
        final = scores / self.divisor(made + 1)
        return {
            "done": done | ends,
            "ended": running,
            "ended_scores": ops.where(ends & ~done, final, state["ended_scores"]),
            "running": running,
            "scores": scores,
            "source": state["source"],
            "tokens": ops.reshape(tokens, (self.rows,)),
        }

    def next_tokens(self, logits, made):
        """The most probable tokens, or drawn ones: float (R, V) to int (R,)."""
        if self.temperature is None:
            return ops.argmax(logits)
        return ops.cond(
            self.temperature > 0.0,
            lambda: sample(logits, self.temperature, self.seed, self.number, made),
            lambda: ops.argmax(logits),
        )

    def beam(self, state, logits, width, origin):
        """Beam search's next state.

        Args:
            state: before the step.
            logits: float (R, V).
            width: how many extensions of each row are looked at.
            origin: int (M * width,), the beams that those of a prompt belong to.
        """
        batch, beams, rows = self.batch, self.beams, self.rows
        done, length = state["done"], state["made"] + 1
        best, ids = ops.top_k(logits, width)
        best = ops.take_along_axis(ops.log_softmax(logits), ids, axis=1)
        best = ops.reshape(best, (batch, beams, width))
        best = ops.expand_dims(state["scores"], 2) + best
        best, place = ops.top_k(ops.reshape(best, (batch, beams * width)), 2 * beams)
        ids = ops.reshape(ids, (batch, beams * width))
        ids = ops.take_along_axis(ids, place, axis=1)
        origin = self.first_row + ops.take(origin, place)
        ends = ops.equal(ids, self.end)

        def extended(sequences, source, tokens):
            """The rows of `sequences` at `source` (B, M), with `tokens` (B, M)."""
            sequences = ops.take(sequences, ops.reshape(source, (rows,)), axis=0)
            tokens = ops.reshape(tokens, (rows, 1))
            return ops.append(sequences, tokens, state["made"], axis=1)

        # Finished sequences: the old ones against those that end now.
        counts = ends & self.counts & ~done
        now = ops.where(counts, best / self.divisor(length), IMPOSSIBLE)
        ended_scores, chosen = ops.top_k(
            ops.concatenate([state["ended_scores"], now], axis=1), beams
        )
        ended = extended(
            ops.concatenate([state["ended"], state["running"]], axis=0),
            self._at([self.row, rows + origin], chosen),
            self._at([self.pads, ids], chosen),
        )

        # Running sequences: the best M extensions that do not end.
        scores, chosen = ops.top_k(ops.where(ends, IMPOSSIBLE, best), beams)
        source, tokens = self._at([origin], chosen), self._at([ids], chosen)

        # Scores are negative: the kindest penalty divides by the largest number.
        kindest = ops.maximum(self.longest, self.divisor(length + 1))
        hope = ops.max(scores, axis=1, keepdims=True) / kindest
        worst = ops.slice_axis(ended_scores, -1, None, axis=1)
        full, beaten = worst > IMPOSSIBLE / 2, hope <= worst
        more = length < self.limit  # at the limit what runs is scored, too
        return {
            "done": done | (full & (beaten | self.early_stopping) & more),
            "ended": ended,
            "ended_scores": ended_scores,
            "running": extended(state["running"], source, tokens),
            "scores": scores,
            "source": ops.reshape(source, (rows,)),
            "tokens": ops.reshape(tokens, (rows,)),
        }

    def results(self, state):
        """Sequences int (B, n, L) and scores float (B, n), best first."""
        made = ops.maximum(state["made"], 1)
        still = state["scores"] / self.divisor(made)
        still = ops.where(state["done"], IMPOSSIBLE, still)
        scores, chosen = ops.top_k(
            ops.concatenate([state["ended_scores"], still], axis=1), self.beams
        )
        scores, best = ops.top_k(scores, self.count)
        source = self._at([self.row, self.rows + self.row], chosen)
        pool = ops.concatenate([state["ended"], state["running"]], axis=0)
        return ops.take(pool, self._at([source], best), axis=0), scores

    @staticmethod
    def _at(parts, place):
        """What stands at `place` (B, J) in the parts (B, ...), side by side."""
        parts = parts[0] if len(parts) == 1 else ops.concatenate(parts, axis=1)
        return ops.take_along_axis(parts, place, axis=1)
