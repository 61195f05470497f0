"""A progress bar for weights that take long to load."""

import contextlib
import math
import time

_SILENT = 2.0  # seconds in which most models are there


@contextlib.contextmanager
def shown(fill, variables, console=None):
    """Gives `fill`, which also shows how much is set, if it takes more than 2 seconds.

    The bar is on standard error, in a terminal or a notebook, and goes when all is
    done.

    Args:
        fill: function of a variable and what writes it, as `kzoo.layers.blank.fill`.
        variables: all that are to be set.
        console: of rich, instead of standard error.
    """
    total = sum(math.prod(variable.shape) for variable in variables)
    started, done, bar, task = time.monotonic(), 0, None, None
    with contextlib.ExitStack() as stack:

        def fill_and_show(variable, write):
            nonlocal done, bar, task
            fill(variable, write)
            done += math.prod(variable.shape)
            if bar is None and time.monotonic() - started > _SILENT:
                bar = stack.enter_context(_bar(console))
                task = bar.add_task("loading weights", total=total)
            if bar is not None:
                bar.update(task, completed=done)

        yield fill_and_show


def _bar(console):
    from rich.console import Console
    from rich.progress import Progress

    console = console or Console(stderr=True)
    interactive = console.is_terminal or console.is_jupyter
    return Progress(console=console, transient=True, disable=not interactive)
