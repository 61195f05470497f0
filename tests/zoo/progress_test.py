import io
import types

import pytest
from rich.console import Console

from kzoo.zoo import progress


def loaded(monkeypatch, seconds, terminal):
    """What a console gets while ten variables are set, each in so many seconds."""
    clock = types.SimpleNamespace(now=0.0)
    monkeypatch.setattr(
        progress, "time", types.SimpleNamespace(monotonic=lambda: clock.now)
    )
    variables = [types.SimpleNamespace(shape=(2, 3)) for _ in range(10)]
    written = []

    def fill(variable, write):
        clock.now += seconds
        write(variable)

    console = Console(
        file=io.StringIO(), force_terminal=terminal, force_jupyter=False, width=80
    )
    with progress.shown(fill, variables, console) as fill_and_show:
        for variable in variables:
            fill_and_show(variable, written.append)
    assert written == variables
    return console.file.getvalue()


def test_what_takes_long_has_a_bar(monkeypatch):
    text = loaded(monkeypatch, 1.0, terminal=True)
    assert "loading weights" in text and "100%" in text


@pytest.mark.parametrize(("seconds", "terminal"), [(0.1, True), (1.0, False)])
def test_what_is_quick_or_read_by_nobody_has_none(seconds, terminal, monkeypatch):
    assert not loaded(monkeypatch, seconds, terminal)
