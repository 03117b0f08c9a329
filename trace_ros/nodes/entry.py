"""Entry points of the nodes, for ``ros2 run`` and launch files: a signal while libraries still load ends quietly."""

from __future__ import annotations

import importlib
import os
import signal
from typing import Any


def _run(module: str) -> int:
    """Load a node's module, which takes seconds where it brings torch, and run its ``main``, which has own handlers."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    return int(importlib.import_module(f"trace_ros.nodes.{module}").main())


def _leave(_number: int, _frame: Any) -> None:
    # Nothing is there yet to be put away; an exception would print the imports that it interrupts.
    os._exit(0)


def estimator() -> int:
    """``ros2 run trace_ros estimator``."""
    return _run("estimator_node")


def recorder() -> int:
    """``ros2 run trace_ros recorder``."""
    return _run("recorder_node")


def replay() -> int:
    """``ros2 run trace_ros replay``."""
    return _run("replay_node")


def path() -> int:
    """``ros2 run trace_ros path``."""
    return _run("path_node")
