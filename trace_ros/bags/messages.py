"""From serialised messages to arrays: odometry, and what any topic needs. For the sensors see `trace_ros.streams`.

The messages of one topic become columns, with the faulty rows dropped and counted. They are decoded block by block, so
that an hour of a robot fits in memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trace_ros.bags.layout import ODOMETRY_DOUBLES, read_groups
from trace_ros.bags.storage import typestore
from trace_ros.bags.topics import ODOMETRY_TYPE
from trace_ros.errors import TraceError
from trace_ros.logs import FloatArray, IntArray

_BLOCK = 8192
"""Messages that are decoded at a time."""

_BLOCK_BYTES = 64 * 1024**2
"""And bytes of them, at which a block ends: messages may be of any size."""

RawMessages = Iterable[tuple[int, bytes]]
"""Time of recording (ns) and CDR bytes."""


@dataclass
class Columns:
    """One topic as arrays.

    Attributes:
        stamp_ns: (N,) as stamped by the sender, or as recorded where the sender leaves its stamps empty.
        values: arrays of length N by name; None where the topic does not report the quantity.
        notes: what a reader of the bag should know, one line each.
    """

    stamp_ns: IntArray
    values: dict[str, NDArray[Any] | None]
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return int(self.stamp_ns.size)

    def select(self, mask: NDArray[Any]) -> Columns:
        """Rows by mask or index."""
        values = {name: None if value is None else value[mask] for name, value in self.values.items()}
        return Columns(self.stamp_ns[mask], values, self.notes)


def decode_message(decode: Any, raw: bytes, message_type: str, topic: str, number: int) -> Any:
    """One message of a topic, the ``number``-th.

    Raises:
        TraceError: the bytes are no such message.
    """
    try:
        return decode(raw, message_type)
    except Exception as error:  # the deserialiser raises whatever the bytes make it trip over
        raise TraceError(f"topic {topic}, message {number}: not a {message_type} ({type(error).__name__})") from error


def read_odometry_messages(topic: str, messages: RawMessages) -> Columns:
    """All nav_msgs/Odometry of a topic, see `OdometryReader`.

    Raises:
        TraceError: a message cannot be decoded.
    """
    reader = OdometryReader(topic)
    for recorded, raw in messages:
        reader.add(recorded, raw)
    return reader.columns()


class OdometryReader:
    """nav_msgs/Odometry -> ``position``, ``orientation``, ``velocity``, ``angular_velocity``, ``covariance (N, 6, 6)``.

    The twist is in the child frame, as in the message. The angular velocity is None if declared unknown (covariance
    -1), the covariance None if zero throughout.
    """

    def __init__(self, topic: str) -> None:
        self._topic, self._stamps = topic, _Stamps(topic)
        self._recorded: list[int] = []
        self._raw: list[bytes] = []
        self._bytes = 0
        self._tables: list[FloatArray] = []
        self.messages = 0
        """Messages so far."""

    def add(self, recorded: int, raw: bytes) -> None:
        """Take in a message.

        Raises:
            TraceError: it, or one before it, cannot be decoded.
        """
        self._recorded.append(recorded)
        self._raw.append(raw)
        self._bytes += len(raw)
        if len(self._raw) >= _BLOCK or self._bytes >= _BLOCK_BYTES:
            self._decode()

    def columns(self) -> Columns:
        """All messages.

        Raises:
            TraceError: one cannot be decoded.
        """
        self._decode()
        doubles = np.concatenate(self._tables) if self._tables else np.empty((0, ODOMETRY_DOUBLES))
        table = np.concatenate((doubles[:, :7], doubles[:, 43:49]), axis=1)
        covariance = doubles[:, 7:43].reshape(-1, 6, 6)
        angular_known = bool((doubles[:, 49 + 21] != -1).all())
        values: dict[str, NDArray[Any] | None] = {
            "position": table[:, :3],
            "orientation": table[:, 3:7],
            "velocity": table[:, 7:10],
            "angular_velocity": table[:, 10:] if angular_known else None,
            "covariance": covariance if covariance.any() and np.isfinite(covariance).all() else None,
        }
        usable = np.isfinite(table).all(axis=1) & (np.linalg.norm(table[:, 3:7], axis=1) > 1e-6)
        columns = Columns(self._stamps.array(), values, self._stamps.notes)
        return _drop_rows(self._topic, columns, usable, "not finite or without an orientation")

    def _decode(self) -> None:
        raw, recorded = self._raw, np.array(self._recorded, dtype=np.int64)
        if not raw:
            return
        stamp_ns, doubles = np.empty(len(raw), dtype=np.int64), np.empty((len(raw), ODOMETRY_DOUBLES))
        try:
            for group in read_groups(raw, ODOMETRY_TYPE):
                stamp_ns[group.rows], doubles[group.rows] = group.stamp_ns, group.values["all"]
        except Exception:
            # Some message is not what it should be: the first of them, in the order of the bag, is to be named.
            for index, data in enumerate(raw):
                decode_message(typestore().deserialize_cdr, data, ODOMETRY_TYPE, self._topic, self.messages + index)
            raise
        self._stamps.add(stamp_ns, recorded)
        self._tables.append(doubles)
        self.messages += len(raw)
        self._raw, self._recorded, self._bytes = [], [], 0


def keep_increasing(topic: str, columns: Columns) -> tuple[Columns, int, int]:
    """Drop repeated and out-of-order stamps, as few rows as possible.

    Out of order are those outside a longest increasing subsequence: one wild stamp into the future then costs one row,
    not all that follow.

    Returns:
        The remaining rows, the number of repeated and the number of out-of-order rows.
    """
    stamps = columns.stamp_ns
    if stamps.size < 2 or (np.diff(stamps) > 0).all():
        return columns, 0, 0
    first = np.zeros(stamps.size, dtype=bool)
    first[np.unique(stamps, return_index=True)[1]] = True
    repeated = int((~first).sum())
    columns = columns.select(first)
    kept = columns.select(_longest_increasing(columns.stamp_ns))
    disordered = len(columns) - len(kept)
    parts = [f"{count} {what}" for count, what in ((repeated, "repeated"), (disordered, "out of order")) if count]
    kept.notes.append(f"topic {topic}: dropped messages with stamps {' and '.join(parts)}")
    return kept, repeated, disordered


class _Stamps:
    """Header stamps of one topic, with the time of recording to fall back on where the sender leaves them empty."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._sent: list[IntArray] = []
        self._recorded: list[IntArray] = []
        self.notes: list[str] = []

    def add(self, sent: IntArray, recorded: IntArray) -> None:
        self._sent.append(sent)
        self._recorded.append(recorded)

    def array(self) -> IntArray:
        sent = np.concatenate([np.empty(0, dtype=np.int64), *self._sent])
        # A simulation may start at zero; only a topic without any stamp has none.
        if sent.size > 1 and not sent.any():
            self.notes.append(
                f"topic {self._topic}: header stamps are all zero; the times of recording are used instead"
            )
            return np.concatenate(self._recorded)
        return sent


def _drop_rows(topic: str, columns: Columns, usable: NDArray[np.bool_], why: str) -> Columns:
    if usable.all():
        return columns
    columns.notes.append(f"topic {topic}: dropped {int((~usable).sum())} of {usable.size} messages: {why}")
    return columns.select(usable)


def _longest_increasing(stamps: IntArray) -> NDArray[np.int_]:
    """Indices of a longest strictly increasing subsequence (patience sorting, O(n log n)); stamps are distinct."""
    tails: list[int] = []
    tail_index: list[int] = []
    previous = np.full(stamps.size, -1)
    for index, stamp in enumerate(stamps.tolist()):
        place = bisect_left(tails, stamp)
        if place == len(tails):
            tails.append(stamp)
            tail_index.append(index)
        else:
            tails[place] = stamp
            tail_index[place] = index
        if place:
            previous[index] = tail_index[place - 1]
    chain = []
    index = tail_index[-1]
    while index >= 0:
        chain.append(index)
        index = int(previous[index])
    return np.array(chain[::-1])
