"""Builds the automaton of a regular expression in a process that may be ended.

A short pattern may have an automaton of any size, and what builds it asks for no limit.
Reads the pattern from its input; writes a pickle of what is wrong with it, or `None`,
and of transitions, first state and final states, of the pattern and a `MARK` behind it,
and that.

The library asks for the first match in the pattern's own order, as a search in a text
does: of `yes|yes please` it drops what is behind a match. A mark that no text has makes
the whole text the only match.
"""

import contextlib
import pickle
import sys

from outlines_core import Index, Vocabulary

MARK = "\U0010ffff"  # no character, and never one: Unicode 16, section 23.7
_MEMORY = 4 * 2**30  # bytes of address space; what fits a table takes less


def main():
    """Answers one pattern."""
    # Windows has no such limit, and macOS takes none: time alone is bounded there.
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_AS)
        least = _MEMORY if most == resource.RLIM_INFINITY else min(_MEMORY, most)
        resource.setrlimit(resource.RLIMIT_AS, (least, most))
    pattern = sys.stdin.buffer.read().decode("utf-8", "surrogatepass")
    every_byte = Vocabulary(256, {bytes([value]): [value] for value in range(256)})
    wrong, found = None, ()
    try:
        Index(pattern, every_byte)  # what is wrong with it as it is
        try:
            index = Index(f"(?:{pattern}){MARK}", every_byte)
        except ValueError:  # it ends in a comment, as (?x) has them
            index = Index(f"(?:{pattern}\n){MARK}", every_byte)
        found = (
            index.get_transitions(),
            index.get_initial_state(),
            index.get_final_states(),
            MARK.encode(),
        )
    except ValueError as error:
        wrong = str(error)
    pickle.dump((wrong, found), sys.stdout.buffer)


if __name__ == "__main__":
    main()
