"""What every command shares: where text goes, progress bars, and results for machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from trace_ros.errors import TraceError

console = Console()
"""Results: tables and the paths of what was written (standard output)."""

errors = Console(stderr=True)
"""Progress, notes and faults (standard error), so that output can be piped."""


def progress_bar(*columns: TextColumn, transient: bool = True) -> Progress:
    """A progress bar on standard error, for anything that may take over two seconds. Extra columns stand at the end."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        *columns,
        console=errors,
        transient=transient,
    )


def say(text: str) -> None:
    """Tell what is about to happen (standard error, no markup)."""
    errors.print(text, markup=False, highlight=False, soft_wrap=True)


def write_json(path: Path, data: Any) -> None:
    """Write a result for machines. NaN is no JSON and is refused rather than written.

    Raises:
        TraceError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise TraceError(f"{path}: cannot be written ({error.strerror})") from error
