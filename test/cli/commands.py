"""The ``trace`` command in the test's own process."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import pytest


@dataclass
class Outcome:
    """Exit code, standard output and standard error of a command."""

    code: int
    out: str
    err: str


def run_trace(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object) -> Outcome:
    """Run ``trace ARGUMENTS``."""
    from trace_ros.cli import main

    monkeypatch.setattr(sys, "argv", ["trace", *map(str, arguments)])
    monkeypatch.setenv("COLUMNS", "100")
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main()
    output = capsys.readouterr()
    return Outcome(int(stopped.value.code or 0), output.out, output.err)
