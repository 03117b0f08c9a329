"""Opening and creating rosbag2 storages through ``rosbags``, with one clear line for everything that can be wrong."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from rosbags.interfaces import Connection
from rosbags.rosbag2 import Reader, StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore
from rosbags.typesys.store import Typestore

from trace_ros.errors import TraceError

Storage = Literal["mcap", "sqlite3"]
METADATA_VERSION: Literal[8, 9] = 8
"""rosbag2 metadata version to write: 8 is read by Iron, Jazzy and later alike."""

STORAGE_SUFFIXES = {".mcap": "mcap", ".db3": "sqlite3"}


@cache
def typestore() -> Typestore:
    """Message definitions; those that this package reads and writes are the same in every ROS 2 distribution."""
    return get_typestore(Stores.ROS2_JAZZY)


def storage_files(path: Path) -> list[Path]:
    """The storage files of a bag: the file itself, or those in the directory, by name."""
    if path.is_file():
        return [path] if path.suffix in STORAGE_SUFFIXES else []
    return sorted(file for file in path.glob("*") if file.suffix in STORAGE_SUFFIXES and file.is_file())


def is_bag(path: Path) -> bool:
    """Whether the path looks like a rosbag2: a directory with metadata or storage files, or a storage file."""
    return bool(storage_files(path)) or (path / "metadata.yaml").is_file()


class OpenBag:
    """A bag that is open for reading."""

    def __init__(self, path: Path, reader: Reader) -> None:
        self.path = path
        self._reader = reader
        self.connections: list[Connection] = list(reader.connections)
        self.types: dict[str, str] = {connection.topic: connection.msgtype for connection in self.connections}
        self.custom_data: dict[str, str] = dict(reader.storage.metadata.custom or {})
        """Notes that the writer left in the metadata."""

    def messages(self, *topics: str) -> Iterator[tuple[Connection, int, bytes]]:
        """Connection, time of recording (ns) and serialised message, in order of recording; all topics if none given.

        Raises:
            TraceError: the storage is damaged.
        """
        chosen = [connection for connection in self.connections if not topics or connection.topic in topics]
        iterator = self._reader.messages(chosen) if chosen else iter(())
        while True:
            try:
                item = next(iterator, None)
            except Exception as error:
                raise _damaged(self.path, error) from error
            if item is None:
                return
            yield item


@contextmanager
def open_bag(path: Path) -> Iterator[OpenBag]:
    """Open a rosbag2 directory, or a bare ``.mcap`` or ``.db3`` file, for reading.

    Raises:
        TraceError: missing, not a bag, interrupted while recording, damaged, or of an unsupported kind.
    """
    if not path.exists():
        raise TraceError(f"{path}: no such file or directory")
    if path.suffix == ".bag":
        raise TraceError(
            f"{path}: a ROS 1 bag; convert it first: rosbags-convert --src {path} --dst {path.with_suffix('')}"
        )
    if path.is_dir() and not (path / "metadata.yaml").is_file():
        if storage_files(path):
            raise TraceError(
                f"{path}: no metadata.yaml: the recording was interrupted; rescue it: trace bag recover {path}"
            )
        raise TraceError(f"{path}: not a bag: the directory holds neither metadata.yaml nor .mcap or .db3 files")
    if path.is_file() and path.suffix not in STORAGE_SUFFIXES:
        raise TraceError(f"{path}: not a bag: expected a rosbag2 directory, or a .mcap or .db3 file")
    # The reader meets bytes of unknown origin; whatever it trips over (struct, zstd, sqlite, YAML...) means one thing.
    try:
        reader = Reader(path)
        reader.open()
    except Exception as error:
        raise _damaged(path, error) from error
    try:
        yield OpenBag(path, reader)
    finally:
        reader.close()


@contextmanager
def create_bag(path: Path, storage: Storage) -> Iterator[Writer]:
    """Create a rosbag2 directory for writing; it is complete once the context ends, and gone if that is by a fault.

    Raises:
        TraceError: the path exists, cannot be written, or the storage is unknown.
    """
    if storage not in get_args(Storage):
        raise TraceError(f"{path}: unknown storage {storage!r}; known are {', '.join(get_args(Storage))}")
    if path.exists():
        raise TraceError(f"{path}: exists already; choose another name or delete it")
    plugin = {"mcap": StoragePlugin.MCAP, "sqlite3": StoragePlugin.SQLITE3}[storage]
    try:
        writer = Writer(path, version=METADATA_VERSION, storage_plugin=plugin)
        writer.open()
    except OSError as error:
        raise TraceError(f"{path}: cannot be written ({error.strerror})") from error
    complete = False
    try:
        yield writer
        writer.close()
        complete = True
    except OSError as error:
        raise TraceError(f"{path}: cannot be written ({error.strerror or error})") from error
    except sqlite3.OperationalError as error:
        raise TraceError(f"{path}: cannot be written ({error})") from error
    finally:
        if not complete:  # whatever ended it, Ctrl-C included: half a bag looks like one to those who list folders
            with suppress(Exception):
                writer.abort()
            shutil.rmtree(path, ignore_errors=True)


def _damaged(path: Path, error: Exception) -> TraceError:
    if isinstance(error, PermissionError):
        return TraceError(f"{path}: cannot be read ({error.strerror})")
    text = " ".join(str(error).split()) or type(error).__name__
    if "not supported" in text:
        return TraceError(f"{path}: {text.rstrip('.')}; supported are mcap and sqlite3 bags with plain CDR messages")
    rescue = f"; rescue the rest: trace bag recover {path}" if storage_files(path) else ""
    if "files are missing" in text:
        names = ", ".join(Path(name).name for name in re.findall(r"'([^']+)'", text)) or "a storage file"
        return TraceError(f"{path}: metadata.yaml names {names}, which is missing: copy it there{rescue}")
    return TraceError(f"{path}: truncated or damaged ({text.rstrip('.')}){rescue}")
