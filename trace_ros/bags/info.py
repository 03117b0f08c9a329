"""What is in a bag: topics, rates, gaps, joints, and whether torque and velocity are reported."""

from __future__ import annotations

import struct
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trace_ros.bags.reading import ROBOT_KEY, TORQUE_SOURCE_KEY
from trace_ros.bags.storage import STORAGE_SUFFIXES, open_bag, storage_files, typestore
from trace_ros.bags.topics import IMU_TYPE, JOINT_STATE_TYPE, ODOMETRY_TYPE
from trace_ros.logs import IntArray

STAMPED_TYPES = (IMU_TYPE, JOINT_STATE_TYPE, ODOMETRY_TYPE)
"""Types whose header stamps are looked at; others are judged by their times of recording."""


@dataclass(frozen=True)
class TopicInfo:
    """One topic.

    Attributes:
        name, type: as in the bag.
        messages: count.
        rate_hz: from the median interval; 0 with fewer than two messages.
        duration_s: from the first to the last stamp.
        longest_gap_s: longest interval between consecutive stamps, in their order.
        disordered: messages whose stamp does not come after that of the message recorded before.
        joint_names: of a JointState topic, as in its first message.
        fields: of a JointState topic, which of position, velocity, effort its first message fills.
    """

    name: str
    type: str
    messages: int
    rate_hz: float = 0.0
    duration_s: float = 0.0
    longest_gap_s: float = 0.0
    disordered: int = 0
    joint_names: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()


@dataclass(frozen=True)
class BagInfo:
    """One bag.

    Attributes:
        path: as given.
        storage: "mcap" or "sqlite3".
        size_bytes: of the storage files.
        messages: over all topics.
        start_ns: time of recording of the first message; 0 if there is none.
        duration_s: from the first to the last message recorded.
        robot, torque_source: as noted by the package when it wrote the bag; empty in other bags.
        topics: by name.
    """

    path: Path
    storage: str
    size_bytes: int
    messages: int
    start_ns: int
    duration_s: float
    robot: str
    torque_source: str
    topics: tuple[TopicInfo, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self) | {"path": str(self.path)}


def bag_info(path: Path) -> BagInfo:
    """Look through a bag once.

    Raises:
        TraceError: no such bag, interrupted, truncated, or of an unsupported kind.
    """
    with open_bag(path) as bag:
        stamps: dict[str, list[int]] = {topic: [] for topic in bag.types}
        joints: dict[str, bytes] = {}
        first, last, count = 0, 0, 0
        for connection, recorded, data in bag.messages():
            topic = connection.topic
            stamps[topic].append(stamp_in(data) if connection.msgtype in STAMPED_TYPES else recorded)
            if connection.msgtype == JOINT_STATE_TYPE:
                joints.setdefault(topic, data)
            first, last = (min(first, recorded), max(last, recorded)) if count else (recorded, recorded)
            count += 1
        files = storage_files(path)
        return BagInfo(
            path,
            STORAGE_SUFFIXES[files[0].suffix] if files else "compressed",
            sum(file.stat().st_size for file in files),
            count,
            first,
            (last - first) * 1e-9,
            bag.custom_data.get(ROBOT_KEY, ""),
            bag.custom_data.get(TORQUE_SOURCE_KEY, ""),
            tuple(
                _topic(topic, bag.types[topic], np.array(stamps[topic], dtype=np.int64), joints.get(topic))
                for topic in sorted(bag.types)
            ),
        )


def stamp_in(data: bytes) -> int:
    """Header stamp (ns) of a serialised message that begins with std_msgs/Header: sec, nanosec after 4 bytes of CDR."""
    if len(data) < 12:
        return 0
    seconds, nanoseconds = struct.unpack_from("<iI" if data[1] & 1 else ">iI", data, 4)
    return int(seconds) * 1_000_000_000 + int(nanoseconds)


def _topic(name: str, message_type: str, stamps: IntArray, joint_message: bytes | None) -> TopicInfo:
    names: tuple[str, ...] = ()
    filled: tuple[str, ...] = ()
    if joint_message is not None:
        try:
            message: Any = typestore().deserialize_cdr(joint_message, JOINT_STATE_TYPE)
            names = tuple(message.name)
            arrays = {column: getattr(message, column) for column in ("position", "velocity", "effort")}
            filled = tuple(column for column, values in arrays.items() if values.size and np.isfinite(values).any())
        except Exception:  # a broken message is reported by the reader; the overview stays useful without it
            names = ()
    if stamps.size < 2:
        return TopicInfo(name, message_type, int(stamps.size), joint_names=names, fields=filled)
    steps = np.diff(stamps)
    ordered = np.diff(np.sort(stamps))
    median = float(np.median(ordered))
    return TopicInfo(
        name,
        message_type,
        int(stamps.size),
        1e9 / median if median > 0 else 0.0,
        float(stamps.max() - stamps.min()) * 1e-9,
        float(ordered.max()) * 1e-9,
        int((steps <= 0).sum()),
        names,
        filled,
    )
