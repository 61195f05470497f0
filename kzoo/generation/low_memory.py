"""A search's loop that needs little memory where a file runs it."""

from kzoo import ops

TOKENS_BETWEEN_JOINS = "tokens_between_joins"
USUAL_BETWEEN_JOINS = 256


def low_memory_loop(run, start):
    """The last state of a search, by a loop that needs little memory where it runs.

    A runtime holds what an iteration begins with beside what it ends with: two caches.
    So an iteration is a loop of its own here, which carries the entries of its own
    tokens alone, and `step` reads the earlier ones where they are; two caches are held
    only while both are joined. A runtime also keeps what a loop begins with, and copies
    what it ends with: the first iteration prefills the cache, and the last drops it.
    Here the cache is a list of keys and values, see `ops.attention`. How many tokens an
    iteration has is an input of the file.
    """
    most = ops.file_option(TOKENS_BETWEEN_JOINS, USUAL_BETWEEN_JOINS)
    most = ops.required(most, most > 0, f"{TOKENS_BETWEEN_JOINS} must be at least 1")
    empty = list(map(ops.earlier_cache, start.cache))

    def goes_on(state):
        return run.unfinished(state) & (state["made"] < run.limit)

    def prefill(state):
        return {**state, "cache": list(map(ops.earlier_cache, start.prefill(False)))}

    def decode(state):
        entries = state["cache"]

        def advance(state):
            cache = [(*a, *b) for a, b in zip(entries, state["cache"], strict=True)]
            return run.advance({**state, "cache": cache})

        count = ops.minimum(run.limit - state["made"], most)
        begin = {**state, "cache": start.cache}
        state = ops.while_loop(run.unfinished, advance, begin, count)
        cache = ops.cond(
            goes_on(state),
            lambda: list(map(ops.joined_cache, entries, state["cache"])),
            lambda: empty,
        )
        return {**state, "cache": cache}

    def iterate(both):
        state = both["search"]
        if start.prefill is None:
            state = decode(state)
        else:
            state = ops.cond(
                both["prefilled"], lambda: decode(state), lambda: prefill(state)
            )
        return {"prefilled": True, "search": state}

    state = {**run.first(start, None), "cache": empty}
    both = {"prefilled": ops.as_scalar(start.prefill is None, "bool"), "search": state}
    unbounded = 2**62  # `goes_on` bounds it
    both = ops.while_loop(
        lambda both: goes_on(both["search"]), iterate, both, unbounded
    )
    return both["search"]
