"""The ``trace`` command. Its libraries take a second to load, and Ctrl-C meanwhile ends it quietly."""

from __future__ import annotations

import os
import signal
from typing import Any


def main() -> None:
    """Entry point of ``trace`` and of ``python -m trace_ros.cli``."""
    # Where the shell had us ignore it, as behind an ampersand in a script, it stays ignored.
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:
        signal.signal(signal.SIGINT, _leave)
    from trace_ros.cli.commands import run

    if interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _leave(_number: int, _frame: Any) -> None:
    # Nothing is there yet to be put away; an exception would print the imports that it interrupts.
    os._exit(130)
