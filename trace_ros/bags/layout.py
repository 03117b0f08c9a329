"""Many messages decoded at once, or encoded: numpy reads the numbers of all that are laid out like one of them.

In CDR, where a number stands depends on the lengths of strings and arrays before it. Drivers send the same names and
lengths time after time, so one message, decoded field by field, tells the layout of thousands. Each of these is held to
it: every byte that says how the others are laid out must be the same. Messages that differ are decoded for themselves.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trace_ros.bags.storage import typestore
from trace_ros.bags.topics import IMU_TYPE, JOINT_STATE_TYPE, ODOMETRY_TYPE
from trace_ros.logs import FloatArray, IntArray

_ENCAPSULATION = 4
"""Bytes before the message; positions are aligned relative to its start."""

_STAMP = slice(4, 12)
"""Seconds and nanoseconds: every message here begins with a header."""

_FRAME_ID = 12

_SECOND_NS = 1_000_000_000

_TEMPLATES = 8
"""Layouts that are looked for among messages of one length; the rest is decoded one by one."""

IMU_DOUBLES, ODOMETRY_DOUBLES = 37, 85

JOINT_FIELDS = ("position", "velocity", "effort")


class Group(NamedTuple):
    """Messages with the same layout.

    Attributes:
        rows: (n,) which of the messages they are, ascending.
        stamp_ns: (n,) of their headers.
        stamped: (n,) whether that is a stamp: with less than a second of nanoseconds.
        names: of the joints, for joint states; else empty.
        values: (n, k) doubles by name: ``position``, ``velocity`` and ``effort`` of joint states; ``all`` doubles of
            other messages, in the order of their fields.
    """

    rows: NDArray[np.intp]
    stamp_ns: IntArray
    stamped: NDArray[np.bool_]
    names: tuple[str, ...]
    values: dict[str, FloatArray]


@dataclass(frozen=True)
class _Layout:
    """Where things stand in a message: ``fixed`` bytes that say so, as [start, stop), and doubles [start, stop)."""

    fixed: tuple[tuple[int, int], ...]
    doubles: dict[str, tuple[int, int]]


def read_groups(raw: Sequence[bytes], message_type: str) -> Iterator[Group]:
    """Decode messages of one type, bit for bit as the deserialiser does. Each is in one group.

    Args:
        raw: CDR bytes.
        message_type: sensor_msgs/msg/Imu, sensor_msgs/msg/JointState or nav_msgs/msg/Odometry.

    Raises:
        Exception: whatever the deserialiser makes of bytes that are no such message.
    """
    lengths = np.fromiter(map(len, raw), dtype=np.intp, count=len(raw))
    for length in np.unique(lengths).tolist():
        left = np.flatnonzero(lengths == length)
        table = np.frombuffer(b"".join([raw[row] for row in left.tolist()]), dtype=np.uint8).reshape(-1, length)
        for _ in range(_TEMPLATES):
            if not left.size:
                break
            first = raw[int(left[0])]
            message = typestore().deserialize_cdr(first, message_type)
            layout = _layout_of(first, message_type)
            group = None if layout is None else _take(table[:1], left[:1], layout, message)
            if layout is None or group is None or not _same(group, _alone(left[:1], message, message_type)):
                break
            alike = _alike(table, layout)
            yield _take(table[alike], left[alike], layout, message)
            left, table = left[~alike], table[~alike]
        for row in left.tolist():
            message = typestore().deserialize_cdr(raw[row], message_type)
            yield _alone(np.array([row]), message, message_type)


def write_alike(
    template: bytes, message_type: str, stamp_ns: IntArray, values: Mapping[str, FloatArray]
) -> list[bytes]:
    """Messages like another one, with other numbers.

    Args:
        template: CDR bytes of a message, little-endian.
        message_type: as of `read_groups`.
        stamp_ns: (n,).
        values: (n, k) doubles by name, as of `Group`; k as in the template.
    """
    layout = _layout_of(template, message_type)
    assert layout is not None
    rows = np.tile(np.frombuffer(template, dtype=np.uint8), (len(stamp_ns), 1))
    seconds, nanoseconds = np.divmod(stamp_ns, _SECOND_NS)
    rows[:, _STAMP.start : _STAMP.stop - 4] = seconds.astype("<i4")[:, None].view(np.uint8)
    rows[:, _STAMP.start + 4 : _STAMP.stop] = nanoseconds.astype("<u4")[:, None].view(np.uint8)
    for name, (start, stop) in layout.doubles.items():
        if stop > start:
            rows[:, start:stop] = np.ascontiguousarray(values[name], dtype="<f8").view(np.uint8)
    return [row.tobytes() for row in rows]


def _take(table: NDArray[np.uint8], rows: NDArray[np.intp], layout: _Layout, message: Any) -> Group:
    """The rows of a table of bytes as numbers."""

    def read(start: int, stop: int, kind: str) -> NDArray[Any]:
        return np.ascontiguousarray(table[:, start:stop]).view(kind)

    seconds = read(_STAMP.start, _STAMP.stop - 4, "<i4")[:, 0].astype(np.int64)
    nanoseconds = read(_STAMP.start + 4, _STAMP.stop, "<u4")[:, 0].astype(np.int64)
    values = {
        name: read(start, stop, "<f8").astype(np.float64, copy=False)
        if stop > start
        else np.empty((len(table), 0), np.float64)
        for name, (start, stop) in layout.doubles.items()
    }
    names = tuple(getattr(message, "name", ()))
    return Group(rows, seconds * _SECOND_NS + nanoseconds, nanoseconds < _SECOND_NS, names, values)


def _alone(rows: NDArray[np.intp], message: Any, message_type: str) -> Group:
    """One decoded message as a group."""
    stamp = message.header.stamp
    stamps = np.array([stamp.sec * _SECOND_NS + stamp.nanosec], dtype=np.int64)
    stamped = np.array([stamp.nanosec < _SECOND_NS])
    if message_type == JOINT_STATE_TYPE:
        values = {name: np.array(getattr(message, name), dtype=np.float64)[None] for name in JOINT_FIELDS}
        return Group(rows, stamps, stamped, tuple(message.name), values)
    if message_type == IMU_TYPE:
        parts = (
            _components(message.orientation),
            message.orientation_covariance,
            _components(message.angular_velocity),
            message.angular_velocity_covariance,
            _components(message.linear_acceleration),
            message.linear_acceleration_covariance,
        )
    else:
        pose, twist = message.pose.pose, message.twist.twist
        parts = (
            _components(pose.position),
            _components(pose.orientation),
            message.pose.covariance,
            _components(twist.linear),
            _components(twist.angular),
            message.twist.covariance,
        )
    return Group(rows, stamps, stamped, (), {"all": np.concatenate(parts).astype(np.float64)[None]})


def _components(vector: Any) -> list[float]:
    return [getattr(vector, axis) for axis in "xyzw" if hasattr(vector, axis)]


def _same(one: Group, other: Group) -> bool:
    """Bit for bit, NaN included."""
    return (
        one.names == other.names
        and one.stamp_ns.tobytes() == other.stamp_ns.tobytes()
        and one.values.keys() == other.values.keys()
        and all(value.tobytes() == other.values[name].tobytes() for name, value in one.values.items())
    )


def _alike(table: NDArray[np.uint8], layout: _Layout) -> NDArray[np.bool_]:
    """Which rows have the layout of the first."""
    alike = np.ones(len(table), dtype=bool)
    for start, stop in layout.fixed:
        part = table[:, start:stop]
        alike &= (part == part[0]).all(axis=1)
    return alike


def _layout_of(raw: bytes, message_type: str) -> _Layout | None:
    """The layout of a little-endian message; None for any other."""
    if raw[:2] != b"\x00\x01":
        return None
    try:
        layout = _LAYOUTS[message_type](raw)
    except struct.error:
        return None
    return layout if max(stop for _, stop in layout.doubles.values()) <= len(raw) else None


def _number(raw: bytes, position: int) -> int:
    value: int = struct.unpack_from("<I", raw, position)[0]
    return value


def _aligned(position: int, size: int) -> int:
    return _ENCAPSULATION + -(-(position - _ENCAPSULATION) // size) * size


def _imu_layout(raw: bytes) -> _Layout:
    end = _FRAME_ID + 4 + _number(raw, _FRAME_ID)
    start = _aligned(end, 8)
    return _Layout(((0, 2), (_FRAME_ID, end)), {"all": (start, start + 8 * IMU_DOUBLES)})


def _odometry_layout(raw: bytes) -> _Layout:
    end = _FRAME_ID + 4 + _number(raw, _FRAME_ID)
    child = _aligned(end, 4)
    child_end = child + 4 + _number(raw, child)
    start = _aligned(child_end, 8)
    return _Layout(((0, 2), (_FRAME_ID, end), (child, child_end)), {"all": (start, start + 8 * ODOMETRY_DOUBLES)})


def _joint_state_layout(raw: bytes) -> _Layout:
    end = _FRAME_ID + 4 + _number(raw, _FRAME_ID)
    fixed = [(0, 2), (_FRAME_ID, end)]
    position = _aligned(end, 4)
    names = _number(raw, position)
    fixed.append((position, position + 4))
    position += 4
    for _ in range(names):
        start = _aligned(position, 4)
        position = start + 4 + _number(raw, start)
        fixed.append((start, position))
    doubles = {}
    for name in JOINT_FIELDS:
        position = _aligned(position, 4)
        count = _number(raw, position)
        fixed.append((position, position + 4))
        position += 4
        start = _aligned(position, 8) if count else position
        doubles[name] = (start, start + 8 * count)
        position = start + 8 * count
    return _Layout(tuple(fixed), doubles)


_LAYOUTS: dict[str, Callable[[bytes], _Layout]] = {
    IMU_TYPE: _imu_layout,
    JOINT_STATE_TYPE: _joint_state_layout,
    ODOMETRY_TYPE: _odometry_layout,
}
