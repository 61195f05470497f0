"""Verification notices every fault that the script puts into the emitter."""

import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "export" / "break_the_emitter.py"


@pytest.mark.usefixtures("remembered")
def test_an_export_refuses_thirteen_broken_emitters(capsys):
    script = runpy.run_path(str(SCRIPT))
    script["SMALL"]["num_layers"] = 1  # a fault in one is a fault in each
    assert script["main"]() == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(script["FAULTS"]) == 13 and lines[-1] == "13 of 13 faults were refused."
