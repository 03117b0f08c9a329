"""Rescuing a recording that was killed: no metadata.yaml, no footer, perhaps half a record at the end."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import IO

from mcap.exceptions import EndOfFile, McapError
from mcap.records import Channel as McapChannel
from mcap.records import Chunk, Message, Schema
from mcap.stream_reader import StreamReader, breakup_chunk
from rosbags.interfaces import Qos
from rosbags.rosbag2.metadata import parse_qos

from trace_ros.bags.copying import Channel, Copier, topic_notes
from trace_ros.bags.storage import STORAGE_SUFFIXES, Storage, create_bag, storage_files
from trace_ros.errors import TraceError

_Messages = Iterator[tuple[Channel, int, bytes]]


@dataclass
class RecoveryReport:
    """What could be rescued.

    Attributes:
        output: the new bag.
        messages: messages rescued by topic.
        start_ns, end_ns: times of recording of the first and last rescued message.
        notes: what is missing and why, one line each.
    """

    output: Path
    messages: dict[str, int] = field(default_factory=dict)
    start_ns: int = 0
    end_ns: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def duration_s(self) -> float:
        """Between the first and the last rescued message (s)."""
        return (self.end_ns - self.start_ns) * 1e-9


def recover_bag(
    path: Path,
    output: Path | None = None,
    storage: Storage = "mcap",
    progress: Callable[[int], None] | None = None,
) -> RecoveryReport:
    """Write everything that is complete in an interrupted or truncated recording into a new bag.

    MCAP: every complete chunk, and every complete message outside chunks. SQLite: everything that had been committed;
    an interrupted transaction is rolled back, as its journal demands. The source is not changed.

    Args:
        path: bag directory, or a ``.mcap`` or ``.db3`` file.
        output: directory to create; None: ``<path>_recovered`` beside the source.
        storage: storage of the new bag.
        progress: called now and then with the number of messages rescued.

    Raises:
        TraceError: nothing there to rescue, or the output exists.
    """
    if not path.exists():
        raise TraceError(f"{path}: no such file or directory")
    files = storage_files(path)
    if not files:
        raise TraceError(f"{path}: nothing to recover: no .mcap or .db3 file there; copy the recorded ones to it")
    output = output or path.with_name(f"{path.stem}_recovered")
    report = RecoveryReport(output)
    # Nothing is created before the first message is found, so that a hopeless case leaves no empty bag behind.
    messages = _all_messages(files, report.notes)
    first = next(messages, None)
    if first is None:
        detail = f" ({'; '.join(report.notes)})" if report.notes else ""
        raise TraceError(f"{path}: no complete message can be recovered{detail}")
    with create_bag(output, storage) as writer:
        copier = Copier(writer)
        report.start_ns = report.end_ns = first[1]
        for count, (channel, recorded, data) in enumerate(chain([first], messages), start=1):
            copier.write(channel, recorded, data)
            report.start_ns, report.end_ns = min(report.start_ns, recorded), max(report.end_ns, recorded)
            if progress is not None and count % 5000 == 0:
                progress(count)
    report.messages = copier.counts
    report.notes += topic_notes(copier.left_out)
    return report


def _all_messages(files: list[Path], notes: list[str]) -> _Messages:
    for file in files:
        read = _mcap_messages if STORAGE_SUFFIXES[file.suffix] == "mcap" else _sqlite_messages
        yield from read(file, notes)


class _Whole:
    """A file whose reads return all that was asked for or nothing: ``mcap`` takes a short read for a short record."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        return data if len(data) == size else b""


def _mcap_messages(file: Path, notes: list[str]) -> _Messages:
    schemas: dict[int, Schema] = {}
    channels: dict[int, Channel] = {}
    orphans = damaged = 0
    try:
        with file.open("rb") as opened:
            whole = _Whole(opened)
            records = StreamReader(whole, emit_chunks=True).records
            while True:
                try:
                    record = next(records, None)
                except (McapError, UnicodeDecodeError, ValueError) as error:
                    if isinstance(error, EndOfFile):
                        notes.append(f"{file.name}: ends without a footer: the recording was interrupted")
                    else:
                        reason = " ".join(str(error).split())
                        notes.append(f"{file.name}: unreadable from byte {opened.tell()} on ({reason})")
                    break
                if record is None:
                    break
                contents = [record]
                if isinstance(record, Chunk):
                    try:
                        contents = breakup_chunk(record, validate_crc=True)
                    except Exception:  # whatever the bytes make decompression or the parser trip over
                        damaged += 1
                        continue
                for item in contents:
                    if isinstance(item, Schema):
                        schemas[item.id] = item
                    elif isinstance(item, McapChannel):
                        channels[item.id] = _channel(item, schemas.get(item.schema_id))
                    elif isinstance(item, Message):
                        if item.channel_id in channels:
                            yield channels[item.channel_id], item.log_time, item.data
                        else:
                            orphans += 1
    except OSError as error:
        raise TraceError(f"{file}: cannot be read ({error.strerror})") from error
    if damaged:
        notes.append(f"{file.name}: skipped {damaged} damaged chunks")
    if orphans:
        notes.append(f"{file.name}: skipped {orphans} messages whose topic was declared in a lost part")


def _channel(channel: McapChannel, schema: Schema | None) -> Channel:
    if schema is None:
        return Channel(channel.topic, "unknown")
    return Channel(
        channel.topic,
        schema.name,
        schema.data.decode(errors="replace"),
        schema.encoding != "ros2msg",
        _qos(channel.metadata.get("offered_qos_profiles", "")),
    )


def _qos(text: str) -> tuple[Qos, ...]:
    try:
        return tuple(parse_qos(text))
    except Exception:  # profiles of another distribution must not cost the data
        return ()


def _sqlite_messages(file: Path, notes: list[str]) -> _Messages:
    # SQLite rolls an interrupted transaction back when it opens the file, and needs to write for that: work on a copy.
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / file.name
        for suffix in ("", "-journal", "-wal"):
            side = file.with_name(file.name + suffix)
            if side.is_file():
                shutil.copyfile(side, copy.with_name(copy.name + suffix))
        connection = sqlite3.connect(copy)
        count = 0
        try:
            channels = {
                identifier: Channel(topic, message_type)
                for identifier, topic, message_type in connection.execute("SELECT id, name, type FROM topics")
            }
            channels |= _sqlite_definitions(connection, channels)
            for topic, recorded, data in connection.execute(
                "SELECT topic_id, timestamp, data FROM messages ORDER BY id"
            ):
                if topic in channels:
                    count += 1
                    yield channels[topic], recorded, data
        except sqlite3.DatabaseError as error:
            notes.append(f"{file.name}: unreadable after {count} messages ({error})")
        finally:
            connection.close()
        if not count:
            notes.append(f"{file.name}: no transaction was ever committed; record to mcap to be safe against kills")


def _sqlite_definitions(connection: sqlite3.Connection, channels: dict[int, Channel]) -> dict[int, Channel]:
    """Channels with the message definitions that newer bags store; none in older ones."""
    try:
        rows = connection.execute("SELECT topic_type, encoding, encoded_message_definition FROM message_definitions")
        definitions = {message_type: (text, encoding != "ros2msg") for message_type, encoding, text in rows}
    except sqlite3.DatabaseError:
        return {}
    return {
        identifier: Channel(channel.topic, channel.message_type, *definitions[channel.message_type])
        for identifier, channel in channels.items()
        if channel.message_type in definitions
    }
