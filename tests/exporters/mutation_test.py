"""Verification notices every fault that the script puts into the emitter."""

import runpy
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "export" / "break_the_emitter.py"


def test_an_export_refuses_eleven_broken_emitters(capsys):
    script = runpy.run_path(str(SCRIPT))
    assert script["main"]() == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(script["FAULTS"]) == 11 and lines[-1] == "11 of 11 faults were refused."
