"""One process at a time writes the folder of a run."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from trace_ros.errors import TraceError

LOCK = ".lock"


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Hold the folder, which is made if need be, until the block ends or the process does, however it ends.

    Two trainings that saved into one folder would overwrite each other's checkpoints. File systems without locks
    (some network shares) are taken as they are.

    Raises:
        TraceError: another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a+") as file:
        # A file system that has none answers with another OSError.
        with suppress(OSError):
            _lock(file)
        yield


def _lock(file: IO[str]) -> None:
    """Take the lock and leave this process's number in the file.

    Raises:
        TraceError: another process has it.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        process = f"process {number}" if (number := file.read(20).strip()) else "another process"
        raise TraceError(
            f"{Path(file.name).parent}: {process} is at work there; wait until it ends, or give another --output"
        ) from None
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
