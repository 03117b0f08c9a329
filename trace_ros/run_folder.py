"""One process at a time writes the folder of a run."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trace_ros.errors import TraceError

LOCK = ".lock"


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Hold the folder until the block ends or the process does, however it ends.

    Two trainings that saved into one folder would overwrite each other's checkpoints; what is read there to be written
    again must be read within. The folder is made if need be, and goes again if nothing came of it. File systems without
    locks (some network shares) are taken as they are.

    Raises:
        TraceError: another process holds it, or it cannot be made or written.
    """
    made, lock = not folder.exists(), folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Not through a link: its target is no lock of ours.
        file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise TraceError(f"{lock}: cannot be written ({error.strerror})") from error
    try:
        _lock(file, folder)
        yield
    finally:
        if made:
            with suppress(OSError):
                if [path.name for path in folder.iterdir()] == [LOCK]:
                    lock.unlink()
                    folder.rmdir()
        os.close(file)


def _lock(file: int, folder: Path) -> None:
    """Take the lock and leave this process's number in the file.

    Raises:
        TraceError: another process has it.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        number = os.read(file, 20).decode(errors="replace").strip()
        process = f"process {number}" if number else "another process"
        raise TraceError(
            f"{folder}: {process} is at work there; wait until it ends, or give another --output"
        ) from None
    except OSError:
        return  # a file system that has none
    os.ftruncate(file, 0)
    os.write(file, f"{os.getpid()}\n".encode())
