"""Greedy and beam search, written once for tensors and ONNX values.

A search knows nothing of the model: it is given `step(tokens, cache, index)`, which
reads one token a row and gives the logits of the next and the new cache. Rows are
never mixed: what one row finds does not depend on the others in its batch.
"""

from kzoo import ops

_IMPOSSIBLE = -1e30  # a score that every real one beats; finite, so that 0 * it is 0


def search(
    step, tokens, cache, index, options, *, end_token_id, pad_token_id, capacity
):
    """Generates with as many beams as `options["beams"]` says: one is greedy search.

    Args:
        step: function (tokens int (R,), cache, index) to (logits (R, V), cache).
        tokens: int (B,), the last token of each prompt.
        cache: structure of tensors with B rows, without that token.
        index: int scalar, how many positions the cache holds.
        options: dict of `max_new_tokens`, `beams` and `num_return_sequences` (ints or
            scalars), `length_penalty` (float or scalar) and `early_stopping` (bool or
            scalar); see `beam_search`.
        end_token_id: ends a sequence.
        pad_token_id: fills ended sequences.
        capacity: int, the most new tokens, where buffers are fixed.

    Returns:
        int (B, n, L) sequences of new tokens, best first, and their scores float32
        (B, n).
    """
    fixed = dict(
        end_token_id=end_token_id, pad_token_id=pad_token_id, capacity=capacity
    )
    beams = options["beams"]

    def greedy():
        return greedy_search(
            step,
            tokens,
            cache,
            index,
            options["max_new_tokens"],
            options["length_penalty"],
            **fixed,
        )

    def beam():
        return beam_search(step, tokens, cache, index, options, **fixed)

    if isinstance(beams, int):
        return greedy() if beams == 1 else beam()
    return ops.cond(beams > 1, beam, greedy)


def greedy_search(
    step,
    tokens,
    cache,
    index,
    max_new_tokens,
    length_penalty=0.0,
    *,
    end_token_id,
    pad_token_id,
    capacity,
):
    """Takes the most probable token each time.

    Args:
        step: see `search`.
        tokens: see `search`.
        cache: see `search`.
        index: see `search`.
        max_new_tokens: int or scalar.
        length_penalty: of the score, as in `beam_search`; no token depends on it.
        end_token_id: ends a sequence.
        pad_token_id: fills ended sequences.
        capacity: see `search`.

    Returns:
        int (B, 1, L) and scores float32 (B, 1).
    """
    batch = ops.dim(tokens, 0)
    state = {
        "cache": cache,
        "finished": ops.full((batch,), False, "bool"),
        "index": ops.as_scalar(index),
        "length": ops.full((batch,), 0.0, "float32"),
        "made": ops.as_scalar(0),
        "score": ops.full((batch,), 0.0, "float32"),
        "sequences": ops.buffer((batch, 0), 1, capacity, "int32", fill=pad_token_id),
        "tokens": tokens,
    }

    def body(state):
        logits, cache = step(state["tokens"], state["cache"], state["index"])
        logits = ops.cast(logits, "float32")
        log_p = ops.log_softmax(logits)
        finished = state["finished"]
        chosen = ops.argmax(logits)  # rounding could make two log_p equal
        gain = ops.max(log_p, axis=-1)
        tokens = ops.where(finished, pad_token_id, chosen)
        return {
            "cache": cache,
            "finished": finished | ops.equal(chosen, end_token_id),
            "index": state["index"] + 1,
            "length": state["length"] + ops.where(finished, 0.0, 1.0),
            "made": state["made"] + 1,
            "score": state["score"] + ops.where(finished, 0.0, gain),
            "sequences": ops.append(
                state["sequences"], ops.expand_dims(tokens, 1), state["made"], axis=1
            ),
            "tokens": tokens,
        }

    def unfinished(state):
        return ~ops.all(state["finished"])

    state = ops.while_loop(unfinished, body, state, max_new_tokens)
    length = ops.maximum(state["length"], 1.0)
    score = state["score"] / length ** ops.as_scalar(length_penalty, "float32")
    return ops.expand_dims(state["sequences"], 1), ops.expand_dims(score, 1)


def beam_search(
    step, tokens, cache, index, options, *, end_token_id, pad_token_id, capacity
):
    """Keeps the `beams` best unfinished and the `beams` best finished sequences.

    Each step extends the M unfinished sequences and looks at the best 2 M extensions.
    One that ends counts as finished when it is among the best M, and its score is
    log p / length ** length_penalty, the end token counted. What still runs at
    `max_new_tokens` is scored likewise. A finished row is frozen, so it does not depend
    on how long the other rows of its batch run.

    Args:
        step: see `search`.
        tokens: see `search`.
        cache: see `search`.
        index: see `search`.
        options: dict of `max_new_tokens`; `beams`, M; `length_penalty`;
            `num_return_sequences`, n <= M; `early_stopping`: a row ends as soon as M
            sequences are finished, else when no unfinished one can score better any
            more (its bound: log p never rises, and the penalty is the kindest within
            `max_new_tokens`).
        end_token_id: ends a sequence.
        pad_token_id: fills ended sequences.
        capacity: see `search`.

    Returns:
        int (B, n, L), best first, and scores float32 (B, n).
    """
    beams, limit = options["beams"], options["max_new_tokens"]
    penalty = ops.as_scalar(options["length_penalty"], "float32")
    early_stopping = options["early_stopping"]
    batch = ops.dim(tokens, 0)
    rows = batch * beams

    def repeat(x):  # (B, ...) to (B * M, ...)
        sizes = ops.shape(x)
        wide = ops.broadcast_to(ops.expand_dims(x, 1), (sizes[0], beams, *sizes[1:]))
        return ops.reshape(wide, (rows, *sizes[1:]))

    def penalized(score, length):
        return score / ops.as_scalar(length, "float32") ** penalty

    first = ops.expand_dims(ops.arange(beams), 0)  # one beam runs, its copies wait
    start = ops.where(first > 0, _IMPOSSIBLE, ops.full((batch, 1), 0.0, "float32"))
    none = ops.full((batch, beams), _IMPOSSIBLE, "float32")

    def empty():
        return ops.buffer((batch, beams, 0), 2, capacity, "int32", fill=pad_token_id)

    state = {
        "cache": ops.map_structure(repeat, cache),
        "done": ops.full((batch,), False, "bool"),
        "ended": empty(),
        "ended_scores": none,
        "index": ops.as_scalar(index),
        "made": ops.as_scalar(0),
        "running": empty(),
        "scores": start,
        "tokens": ops.reshape(repeat(tokens), (rows,)),
    }

    def extend(sequences, chosen, tokens, made):
        """The sequences at `chosen` (B, J) with a token each, (B, J, L + 1)."""
        kept = gather_rows(sequences, chosen)
        return ops.append(kept, ops.expand_dims(tokens, 2), made, axis=2)

    def body(state):
        logits, cache = step(state["tokens"], state["cache"], state["index"])
        log_p = ops.log_softmax(ops.cast(logits, "float32"))
        made, done = state["made"], ops.expand_dims(state["done"], 1)
        # The best 2 M of a beam are enough to find the best 2 M of all.
        width = ops.minimum(2 * beams, ops.dim(log_p, -1))
        best, ids = ops.top_k(log_p, width)
        best = ops.reshape(best, (batch, beams, width))
        best = ops.expand_dims(state["scores"], 2) + best
        best, place = ops.top_k(ops.reshape(best, (batch, beams * width)), 2 * beams)
        ids = ops.take_along_axis(
            ops.reshape(ids, (batch, beams * width)), place, axis=1
        )
        origin = place // width
        ends = ops.equal(ids, end_token_id)

        # Finished sequences: the old ones against those that end now.
        counts = ends & (ops.expand_dims(ops.arange(2 * beams), 0) < beams) & ~done
        now = ops.where(counts, penalized(best, made + 1), _IMPOSSIBLE)
        ended_scores, chosen = ops.top_k(
            ops.concatenate([state["ended_scores"], now], axis=1), beams
        )
        pads = ops.full((batch, beams), pad_token_id, "int32")
        pool = ops.concatenate(
            [
                ops.append(state["ended"], ops.expand_dims(pads, 2), made, axis=2),
                extend(state["running"], origin, ids, made),
            ],
            axis=1,
        )
        ended = gather_rows(pool, chosen)

        # Running sequences: the best M extensions that do not end.
        scores, chosen = ops.top_k(ops.where(ends, _IMPOSSIBLE, best), beams)
        origin = ops.take_along_axis(origin, chosen, axis=1)
        tokens = ops.take_along_axis(ids, chosen, axis=1)
        running = extend(state["running"], origin, tokens, made)
        first_row = ops.expand_dims(ops.arange(batch), 1) * beams
        source = ops.reshape(first_row + origin, (rows,))

        full = ops.all(ended_scores > _IMPOSSIBLE / 2, axis=1)
        # Scores are negative: the kindest penalty divides by the largest number.
        kindest = ops.maximum(penalized(scores, limit), penalized(scores, made + 2))
        beaten = ops.max(kindest, axis=1) <= -ops.max(-ended_scores, axis=1)
        more = made + 1 < limit  # at the limit what runs is scored, too
        return {
            "cache": ops.map_structure(lambda x: ops.take(x, source, axis=0), cache),
            "done": state["done"] | (full & (beaten | early_stopping) & more),
            "ended": ended,
            "ended_scores": ended_scores,
            "index": state["index"] + 1,
            "made": made + 1,
            "running": running,
            "scores": scores,
            "tokens": ops.reshape(tokens, (rows,)),
        }

    def unfinished(state):
        return ~ops.all(state["done"])

    state = ops.while_loop(unfinished, body, state, limit)
    still = ops.where(
        ops.expand_dims(state["done"], 1),
        _IMPOSSIBLE,
        penalized(state["scores"], ops.maximum(state["made"], 1)),
    )
    scores, chosen = ops.top_k(
        ops.concatenate([state["ended_scores"], still], axis=1),
        options["num_return_sequences"],
    )
    pool = ops.concatenate([state["ended"], state["running"]], axis=1)
    return gather_rows(pool, chosen), scores


def gather_rows(sequences, chosen):
    """sequences (B, I, L) at chosen int (B, J): (B, J, L)."""
    batch, count, length = ops.shape(sequences)
    flat = ops.reshape(sequences, (batch * count, length))
    index = ops.expand_dims(ops.arange(batch), 1) * count + chosen
    return ops.take(flat, index, axis=0)
