"""Files that are there whole or not at all, whatever ends the writing (a full disk, Ctrl-C, a kill); damaged ones."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    from lzma import LZMAError
except ImportError:  # a Python that was built without it reads no such archives
    LZMAError = zlib.error  # type: ignore[misc,assignment]

DAMAGED_ARCHIVE: tuple[type[Exception], ...] = (
    *(OSError, ValueError, KeyError, TypeError, EOFError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error, LZMAError),
)
"""What reading a damaged zip archive or ``.npz`` raises. A RuntimeError: encrypted, or of a kind unknown to zipfile."""


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
