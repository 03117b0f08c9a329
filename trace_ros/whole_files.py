"""Files that are there whole or not at all, whatever ends the writing (a full disk, Ctrl-C, a kill); damaged ones."""

from __future__ import annotations

import os
import shutil
import tempfile
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
    """Yield a path to write to; what was written there becomes ``path`` at the end, and vanishes after a fault.

    The folder is created. What stood at ``path`` before stays until the new file is complete; a link stays one, and its
    target is written. What is no ordinary file (``/dev/stdout``, ``/dev/null``, a pipe) is never replaced: it is sent
    the whole content at once.

    Raises:
        OSError: the folder or the file cannot be written.
    """
    if _is_stream(path):
        with tempfile.TemporaryDirectory() as folder:
            temporary = Path(folder) / path.name
            yield temporary
            with temporary.open("rb") as content, path.open("ab") as stream:
                shutil.copyfileobj(content, stream)
        return
    path = path.resolve() if path.is_symlink() else path
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(21, "Is a directory", str(path))
    # Of this process: two that write the same file must not write into each other's.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _is_stream(path: Path) -> bool:
    """Whether ``path`` is a device, a pipe, or stands for what a process has open."""
    if path.exists() and not path.is_file() and not path.is_dir():
        return True
    return path.is_symlink() and path.absolute().parts[1:2] in (("dev",), ("proc",))
