"""What every command shares: where text goes, progress bars, and results for machines."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
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
from trace_ros.whole_files import whole_file

# Names of files and topics are printed as they are, whatever brackets they hold.
console = Console(markup=False)
"""Results: tables and the paths of what was written (standard output)."""

errors = Console(stderr=True, markup=False)
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


@contextmanager
def working(text: str) -> Iterator[Callable[[str], None]]:
    """A spinner with a line of text while something takes its time; yields what changes the text."""
    with errors.status(escape(text)) as status:
        yield lambda changed: status.update(escape(changed))


def say(text: str) -> None:
    """Tell what is about to happen (standard error, no markup)."""
    errors.print(text, markup=False, highlight=False, soft_wrap=True)


def check_output(path: Path | None, *, folder: bool = False) -> None:
    """Refuse, before minutes of work and not after, a path that cannot be written in the end; None is no path.

    Raises:
        TraceError: a folder where a file is wanted or the other way round, or nowhere to put it.
    """
    if path is None:
        return
    if path.exists() and path.is_dir() != folder:
        raise TraceError(f"{path}: is a {'file' if folder else 'folder'}, expected a {'folder' if folder else 'file'}")
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    if there != path and not there.is_dir():
        raise TraceError(f"{path}: cannot be written ({there} is not a folder)")
    if not os.access(there, os.W_OK):
        raise TraceError(f"{path}: cannot be written (no permission in {there})")


def refuse_given(context: typer.Context, why: str, parameters: Sequence[str]) -> None:
    """Refuse options of a command that were given though they mean nothing here.

    Args:
        context: of the command.
        why: follows the option's name.
        parameters: names of the options' parameters.

    Raises:
        TraceError: one was given.
    """
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in parameters and source is not None and source.name == "COMMANDLINE":
            raise TraceError(f"{parameter.opts[0]} {why}")


def check_picture(path: Path | None, *others: Path | None) -> None:
    """`check_output` of a picture that is to be written beside other files; None is no path.

    Raises:
        TraceError: as of `check_output`, no PNG, or the same file as another.
    """
    check_output(path)
    if path is None:
        return
    if path.suffix.lower() != ".png":
        raise TraceError(f"{path}: pictures are written as PNG: give a name that ends in .png")
    if path.resolve() in [other.resolve() for other in others if other is not None]:
        raise TraceError(f"{path}: is to hold the picture and another result: give them different names")


def check_model_output(path: Path) -> None:
    """`check_output` of a model that is to be written, and of the card beside it.

    Raises:
        TraceError: as of `check_output`, or the name is that of the card.
    """
    check_output(path)
    card = path.with_suffix(".yaml")
    if card == path:
        raise TraceError(f"{path}: is the name of the model's card, give the model's: {path.with_suffix('.pt')}")
    check_output(card)


def write_json(path: Path, data: Any) -> None:
    """Write a result for machines. NaN is no JSON and is refused rather than written.

    Raises:
        TraceError: the file cannot be written.
    """
    try:
        with whole_file(path) as temporary:
            temporary.write_text(json.dumps(data, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise TraceError(f"{path}: cannot be written ({error.strerror})") from error
