"""A bag without surprises, read at once: what `trace_ros.streams` does to its messages one by one, done to columns.

Most messages of most bags are well: stamps go up in both streams, which run side by side, and every joint state has all
joints. Then the streams' own logic comes down to a few comparisons of columns. Messages that are dropped for
themselves (no numbers, a repeated or late stamp) and lost ones are counted as the streams count them. For anything more
(stamps that are missing, jump or come from two clocks, joints in parts, velocities that come and go, an IMU placed by
transforms) `samples_at_once` gives up, and the messages go through the streams. The result is the same, bit for bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from trace_ros.bags.layout import JOINT_FIELDS, Group, read_groups
from trace_ros.bags.messages import OdometryReader
from trace_ros.bags.storage import OpenBag
from trace_ros.bags.topics import IMU_TYPE, JOINT_STATE_TYPE
from trace_ros.errors import TraceError
from trace_ros.logs import JOINTS, FloatArray, IntArray, is_reading
from trace_ros.robot import RobotDescription
from trace_ros.streams import StreamSettings, Tally
from trace_ros.streams.intervals import usual_interval
from trace_ros.streams.mounting import Mounting
from trace_ros.streams.readings import ImuReading
from trace_ros.streams.stamps import StampOrder

_BLOCK = 8192
"""Messages that are decoded at a time, so that an hour of a robot fits in memory."""

_BLOCK_BYTES = 64 * 1024**2
"""And bytes of them, at which a block ends: messages may be of any size."""

_STEADY_NS = 250_000_000
"""Stamps that go up by no more, and streams no further apart, are beyond doubt: half of what the streams allow."""

_MOST_WAITING = 3000
"""Messages within that time that the streams remember for certain."""

_JUDGED = 16
"""Intervals after which `StampOrder` tells the usual one anew."""

# Among the doubles of sensor_msgs/Imu.
_GYRO, _GYRO_COVARIANCE = slice(13, 16), 16
_ACCEL, _ACCEL_COVARIANCE = slice(25, 28), 28

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Samples:
    """Samples of one time line.

    Attributes:
        stamp_ns: (N,).
        imu: (N, 6) angular velocity and specific force, body frame.
        position, velocity, torque: (N, 12), package order; rows of NaN where not reported.
    """

    stamp_ns: IntArray
    imu: FloatArray
    position: FloatArray
    velocity: FloatArray
    torque: FloatArray


@dataclass(frozen=True)
class Paired:
    """What became of a bag's messages.

    Attributes:
        lines: a table for each time line.
        faults: messages by kind of fault.
        exact, made: samples with joints of the very same stamp, and all.
        imu_messages, joint_messages: as recorded.
        reference: the messages of a third topic, if they were read along.
    """

    lines: list[Samples]
    faults: dict[str, int]
    exact: int
    made: int
    imu_messages: int
    joint_messages: int
    reference: OdometryReader | None = None


class _UnusualError(Exception):
    """The streams must see to it."""


@dataclass(frozen=True)
class _Stream:
    """Usable messages of a topic, in the order of their recording.

    Attributes:
        order: (n,) place among the messages of both topics.
        stamp_ns: (n,).
        values: (n, ...) by name; a field that is not reported is absent.
    """

    order: IntArray
    stamp_ns: IntArray
    values: dict[str, FloatArray]

    def select(self, mask: Flags) -> _Stream:
        return _Stream(self.order[mask], self.stamp_ns[mask], {k: v[mask] for k, v in self.values.items()})


def samples_at_once(
    bag: OpenBag,
    imu_topic: str,
    joint_topic: str,
    robot: RobotDescription,
    settings: StreamSettings,
    reference_topic: str | None = None,
) -> Paired | None:
    """All samples of a bag; None where its messages must be looked at one by one, be it to say what is wrong.

    Args:
        bag: open for reading.
        imu_topic, joint_topic: as in the bag.
        robot: its joints, and the place of its IMU.
        settings: as of `trace_ros.streams.SensorStreams`.
        reference_topic: nav_msgs/Odometry to read along: going through the file twice would take longer.
    """
    if settings.imu_mounting != "robot" or settings.joint_wait * 1e9 <= 2 * _STEADY_NS:
        return None
    tally = Tally()
    imu, joints = _ImuColumns(tally), _JointColumns(robot, settings.use_effort, tally)
    takes: dict[str, Callable[[int, int, bytes], None]] = {imu_topic: imu.add, joint_topic: joints.add}
    reference = None
    if reference_topic is not None:
        reference = OdometryReader(reference_topic)
        takes[reference_topic] = lambda _, recorded, raw: reference.add(recorded, raw)
    try:
        for order, (connection, recorded, raw) in enumerate(bag.messages(*takes)):
            takes[connection.topic](order, recorded, raw)
        readings = _in_order("imu", imu.stream(), settings, tally)
        states = _in_order("joints", joints.stream(), settings, tally)
        _check_side_by_side(readings, states)
        paired = _pair(readings, states, robot, settings, tally)
        return replace(paired, imu_messages=imu.messages, joint_messages=joints.messages, reference=reference)
    except (_UnusualError, TraceError):  # a damaged bag: the other way says where
        return None


class _Columns(ABC):
    """Gathers the messages of a topic, and decodes them block by block."""

    def __init__(self, message_type: str, tally: Tally) -> None:
        self._type, self._tally = message_type, tally
        self._raw: list[bytes] = []
        self._bytes = 0
        self._order = array("q")
        self._parts: list[_Stream] = []
        self.messages = 0

    def add(self, order: int, _recorded: int, raw: bytes) -> None:
        self._raw.append(raw)
        self._bytes += len(raw)
        self._order.append(order)
        if len(self._raw) >= _BLOCK or self._bytes >= _BLOCK_BYTES:
            self._decode()

    def _decode(self) -> None:
        if not self._raw:
            return
        self.messages += len(self._raw)
        try:
            groups = list(read_groups(self._raw, self._type))
        except Exception as error:  # the deserialiser raises whatever the bytes make it trip over
            raise _UnusualError from error
        order = np.array(self._order, dtype=np.int64)
        if not all(group.stamped.all() for group in groups):
            raise _UnusualError
        parts = [part for group in groups if (part := self._usable(order[group.rows], group)) is not None]
        self._raw, self._order, self._bytes = [], array("q"), 0
        if parts:
            self._parts.append(_in_one(parts))

    @abstractmethod
    def _usable(self, order: IntArray, group: Group) -> _Stream | None:
        """What can be used of messages of one layout; what cannot be is counted."""

    def stream(self) -> _Stream:
        """All usable messages."""
        self._decode()
        if not self._parts:
            raise _UnusualError
        return _in_one(self._parts)

    def _keep(self, usable: Flags, fault: str) -> None:
        if dropped := int((~usable).sum()):
            self._tally.count(fault, times=dropped)

    def _numbers(self, values: FloatArray, stream: str) -> Flags:
        """Which rows are a sensor's; counts those that are not."""
        usable: Flags = np.asarray(is_reading(values).all(axis=1))
        absurd: Flags = np.isfinite(values).all(axis=1) & ~usable
        self._keep(~absurd, f"{stream}_absurd")
        self._keep(usable | absurd, f"{stream}_not_finite")
        return usable


def _in_one(parts: list[_Stream]) -> _Stream:
    names = parts[0].values.keys()
    if any(part.values.keys() != names for part in parts):
        raise _UnusualError  # velocity or effort in some of the messages
    order = np.concatenate([part.order for part in parts])
    whole = _Stream(
        order,
        np.concatenate([part.stamp_ns for part in parts]),
        {name: np.concatenate([part.values[name] for part in parts]) for name in names},
    )
    return whole if (np.diff(order) > 0).all() else whole.select(np.argsort(order))  # type: ignore[arg-type]


class _ImuColumns(_Columns):
    def __init__(self, tally: Tally) -> None:
        super().__init__(IMU_TYPE, tally)

    def _usable(self, order: IntArray, group: Group) -> _Stream | None:
        table = group.values["all"]
        reported = (table[:, _GYRO_COVARIANCE] != -1.0) & (table[:, _ACCEL_COVARIANCE] != -1.0)
        self._keep(reported, "imu_not_reported")
        values = np.concatenate((table[reported, _GYRO], table[reported, _ACCEL]), axis=1)
        usable = self._numbers(values, "imu")
        return _Stream(order[reported][usable], group.stamp_ns[reported][usable], {"imu": values[usable]})


class _JointColumns(_Columns):
    def __init__(self, robot: RobotDescription, use_effort: bool, tally: Tally) -> None:
        super().__init__(JOINT_STATE_TYPE, tally)
        self._robot, self._use_effort = robot, use_effort
        self._wanted = {name: slot for slot, name in enumerate(robot.reported_joint_names)}

    def _usable(self, order: IntArray, group: Group) -> _Stream | None:
        found = sorted((self._wanted[name], at) for at, name in enumerate(group.names) if name in self._wanted)
        if not found:
            self._tally.count("joints_foreign", times=len(order))
            return None
        if [slot for slot, _ in found] != list(range(JOINTS)):
            raise _UnusualError  # joints in parts, or named twice
        index = np.array([at for _, at in found], dtype=np.intp)
        if group.values["position"].shape[1] != len(group.names):
            self._tally.count("joints_wrong_length", times=len(order))
            return None
        values = {"position": group.values["position"][:, index]}
        usable = self._numbers(values["position"], "joints")
        for name in JOINT_FIELDS[1:] if self._use_effort else JOINT_FIELDS[1:2]:
            table = group.values[name]
            if not table.shape[1]:
                continue
            if table.shape[1] != len(group.names) or not is_reading(picked := table[:, index])[usable].all():
                raise _UnusualError  # held from the message before
            values[name] = picked
        robot = self._robot
        if robot.joint_messages.sign or robot.joint_messages.offset:
            sign = robot.joint_signs
            values = {name: sign * table for name, table in values.items()}
            values["position"] = values["position"] + robot.joint_offsets
        return _Stream(order, group.stamp_ns, values).select(usable)


def _in_order(name: str, stream: _Stream, settings: StreamSettings, tally: Tally) -> _Stream:
    """The messages whose stamps go up; counts the others, and what is odd about the intervals."""
    stamps = stream.stamp_ns
    if not stamps.size or stamps.min() <= 0:
        raise _UnusualError
    newest = np.maximum.accumulate(stamps)
    step = np.diff(stamps, prepend=stamps[:1] - 1)
    step[1:] = stamps[1:] - newest[:-1]
    if settings.reset_on_time_jump and step.min() < -min(round(settings.time_jump_limit * 1e9), 2 * _STEADY_NS):
        raise _UnusualError
    if step.max() > _STEADY_NS:
        raise _UnusualError
    for fault, count in (("repeated", (step == 0).sum()), ("disordered", (step < 0).sum())):
        if count:
            tally.count(f"{name}_{fault}", times=int(count))
    kept = stream.select(step > 0)
    _judge(name, kept.stamp_ns, settings, tally)
    return kept


def _judge(name: str, stamps: IntArray, settings: StreamSettings, tally: Tally) -> None:
    """Count gaps and bursts, as `StampOrder` does: it is shown the blocks of intervals with one that is unlike others.

    What it says of an interval depends on the usual one as of the block before, and on the intervals since.
    """
    steps = np.diff(stamps)
    blocks = steps[: steps.size // _JUDGED * _JUDGED].reshape(-1, _JUDGED)
    usual = np.array([round(usual_interval(block)) for block in blocks.tolist()], dtype=np.int64)
    of_step = np.repeat(usual, _JUDGED)[: max(steps.size - _JUDGED, 0)]
    later = steps[_JUDGED : _JUDGED + of_step.size]
    odd = (of_step > 2 * later) | (2 * later > 3 * of_step)
    for block in np.unique(np.flatnonzero(odd) // _JUDGED).tolist():
        first = block * _JUDGED
        order: StampOrder[None] = StampOrder(name, tally, 1, settings.reset_on_time_jump, _no_jump)
        for stamp_ns in stamps[first : first + 2 * _JUDGED + 1].tolist():
            order.admit(stamp_ns, None)


def _no_jump(_last_ns: int, _first_ns: int) -> None:
    raise _UnusualError


def _check_side_by_side(imu: _Stream, joints: _Stream) -> None:
    """Refuse streams of which one runs so far ahead of the other that readings are not waited for, or forgotten."""
    for one, other in ((imu, joints), (joints, imu)):
        before = np.searchsorted(other.order, one.order) - 1
        # Until the other stream begins, nothing is paired.
        other_ns = np.where(before >= 0, other.stamp_ns[np.maximum(before, 0)], one.stamp_ns[0])
        if np.abs(one.stamp_ns - other_ns).max() > _STEADY_NS:
            raise _UnusualError
        stamps = one.stamp_ns
        if stamps.size > _MOST_WAITING and (stamps[_MOST_WAITING:] - stamps[:-_MOST_WAITING]).min() <= 4 * _STEADY_NS:
            raise _UnusualError


def _pair(imu: _Stream, joints: _Stream, robot: RobotDescription, settings: StreamSettings, tally: Tally) -> Paired:
    """The joints at each stamp of the IMU: see `trace_ros.streams.pairing`."""
    stamps, joint_stamps = imu.stamp_ns, joints.stamp_ns - round(settings.joint_delay * 1e9)
    before = np.searchsorted(joint_stamps, stamps, side="right") - 1
    known = before >= 0
    first = np.maximum(before, 0)
    second = np.minimum(before + 1, joint_stamps.size - 1)
    age, span = stamps - joint_stamps[first], joint_stamps[second] - joint_stamps[first]
    exact = known & (age == 0)
    between = known & ~exact & (second > first) & (span <= round(settings.joint_interval * 1e9))
    between &= settings.joints == "interpolate"
    held = known & ~exact & ~between & (age <= round(settings.joint_timeout * 1e9))
    paired = exact | between | held
    made = int(paired.sum())
    if not made:
        raise _UnusualError
    early = ~known & (np.cumsum(paired) == 0)
    for fault, which in (("imu_before_joints", early), ("imu_without_joints", ~paired & ~early)):
        if count := int(which.sum()):
            tally.count(fault, times=count)

    mixed = np.flatnonzero(between)
    weight = (age[mixed] / span[mixed])[:, None]

    def at_imu(name: str) -> FloatArray:
        if name not in joints.values:
            return np.full((made, JOINTS), np.nan)
        table = joints.values[name]
        rows = table[first]
        rows[mixed] += weight * (table[second[mixed]] - rows[mixed])
        return rows[paired]

    samples = Samples(
        stamps[paired],
        _in_body(stamps, imu.values["imu"], robot)[paired],
        *(at_imu(name) for name in JOINT_FIELDS),
    )
    return Paired([samples], dict(Counter(tally.counts)), int(exact.sum()), made, 0, 0)


def _in_body(stamps: IntArray, readings: FloatArray, robot: RobotDescription) -> FloatArray:
    """IMU readings (N, 6) in the body frame."""
    if not any(robot.imu.rpy):
        return readings
    mounting = Mounting(robot)
    rows = zip(stamps.tolist(), readings, strict=True)
    turned = (mounting.to_body(stamp_ns, ImuReading(row[:3], row[3:], "")) for stamp_ns, row in rows)
    return np.fromiter(chain.from_iterable(chain.from_iterable(turned)), float, readings.size).reshape(-1, 6)
