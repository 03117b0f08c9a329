"""Files that are there whole or not at all, whatever ends the writing: a full disk, Ctrl-C, a kill."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a path beside ``path`` to write to; it becomes ``path`` at the end, and vanishes after a fault.

    The folder is created. What stood at ``path`` before stays until the new file is complete.

    Raises:
        OSError: the folder or the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(21, "Is a directory", str(path))
    temporary = path.with_name(f".{path.name}.partial")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
