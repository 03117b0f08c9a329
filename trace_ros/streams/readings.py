"""What a message says, as numbers: one IMU reading, or the joints that a joint state reports, found by name.

Works on anything with the fields of sensor_msgs/Imu and sensor_msgs/JointState: rclpy's classes and those of rosbags.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trace_ros.logs import LARGEST_READING, is_reading
from trace_ros.robot import LEG_NAMES, RobotDescription
from trace_ros.streams.kinds import Tally

FloatArray = NDArray[np.float64]

_SECOND_NS = 1_000_000_000

_CACHED_ORDERS = 64
"""Lists of names whose places are remembered; more only come from a driver that invents names."""

_CACHED_NAMES = 2000
"""A longer list is looked up each time: no robot has as many joints."""

_LONGEST_NAME = 64
"""Characters of a name in a line."""

_SEEN_NAMES = 200
"""Names told in a line about what the messages have."""

_EVIDENCE = 5
"""Messages in a row without velocity or effort (or with it) before a publisher is taken to report none (or some)."""


class BadMessageError(Exception):
    """A message that cannot be used.

    Attributes:
        kind: name in `trace_ros.streams.kinds.KINDS`.
        text: one line for the log.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text


class ImuReading(NamedTuple):
    """One IMU message: (3,) rad/s and (3,) m/s^2 specific force, and the frame that they are in."""

    angular_velocity: FloatArray
    linear_acceleration: FloatArray
    frame: str


class JointReading(NamedTuple):
    """The joints of one message, in package order of the ``slots`` that it fills.

    Attributes:
        slots: which of the 12, ascending.
        position: (k,) rad.
        velocity: (k,) rad/s, or None where not reported.
        torque: (k,) N m, or None where not reported.
    """

    slots: tuple[int, ...]
    position: FloatArray
    velocity: FloatArray | None
    torque: FloatArray | None


def shown(name: str) -> str:
    """A name out of a message, fit for a line of the log: no control characters, and not longer than a name is."""
    short = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..."
    return short if short.isprintable() else ascii(short)[1:-1]


def header_stamp_ns(message: Any) -> int:
    """The header's stamp in nanoseconds; 0, as without a stamp, where it is none: nanoseconds of a second or more.

    The fields hold up to 4.3 s in nanoseconds; passed on, they would be stamps beyond what a message can bear.
    """
    stamp = message.header.stamp
    nanoseconds = int(stamp.nanosec)
    return int(stamp.sec) * _SECOND_NS + nanoseconds if nanoseconds < _SECOND_NS else 0


def imu_reading(message: Any) -> ImuReading:
    """The vectors of a sensor_msgs/Imu, in the IMU's frame.

    Raises:
        BadMessageError: NaN, infinity or an absurd number, or a vector marked as not reported (REP-145).
    """
    if message.angular_velocity_covariance[0] == -1.0 or message.linear_acceleration_covariance[0] == -1.0:
        raise BadMessageError(
            "imu_not_reported",
            "the IMU marks its angular velocity or linear acceleration as not reported (covariance -1)",
        )
    w, a = message.angular_velocity, message.linear_acceleration
    values = (w.x, w.y, w.z, a.x, a.y, a.z)
    for value in values:
        if not abs(value) <= LARGEST_READING:  # true for NaN
            raise _no_reading("imu", values, "the IMU message")
    return ImuReading(np.array(values[:3]), np.array(values[3:]), message.header.frame_id)


@dataclass(frozen=True)
class _Places:
    """Where the robot's joints stand in messages with one list of names."""

    slots: tuple[int, ...]
    index: NDArray[np.intp]
    names: int
    repeated: str


class JointFinder:
    """Picks the robot's joints out of joint states by name; a list of names is looked up once."""

    def __init__(self, robot: RobotDescription, use_effort: bool = True) -> None:
        """For a robot; without ``use_effort``, effort counts as not reported."""
        self._robot, self._use_effort = robot, use_effort
        self._wanted = {name: slot for slot, name in enumerate(robot.reported_joint_names)}
        self._reported_names = list(self._wanted)
        self._sign: FloatArray | None = None
        self._offset: FloatArray | None = None
        if robot.joint_messages.sign or robot.joint_messages.offset:
            self._sign, self._offset = robot.joint_signs, robot.joint_offsets
        self._orders: dict[tuple[str, ...], _Places] = {}
        self._seen: dict[str, None] = {}
        self._named: set[int] = set()
        self._last_names: Any = None
        self._last: _Places | None = None
        self._reported: dict[tuple[tuple[int, ...], str], _Reported] = {}

    @property
    def reported_names(self) -> list[str]:
        """The 12 names to look for in messages, in package order."""
        return self._reported_names

    def read(self, message: Any, tally: Tally) -> JointReading | None:
        """The robot's joints in a sensor_msgs/JointState; None when it has none of them.

        A velocity or effort that cannot be used counts as missing, not the whole message: see `_Reported`.

        Raises:
            BadMessageError: joints named twice, positions that do not fit the names or are no numbers.
        """
        places = self._find(message.name)
        if places.repeated:
            raise BadMessageError("joints_repeated_joints", places.repeated)
        if not places.slots:
            return None
        position = self._pick("position", message.position, places)
        velocity = self._optional("velocity", message.velocity, places, tally)
        torque = self._optional("effort", message.effort, places, tally) if self._use_effort else None
        if self._sign is not None and self._offset is not None:
            slots = list(places.slots)
            sign = self._sign[slots]
            position = sign * position + self._offset[slots]
            velocity = None if velocity is None else sign * velocity
            torque = None if torque is None else sign * torque
        return JointReading(places.slots, position, velocity, torque)

    def _find(self, names: Any) -> _Places:
        if self._last is not None and names == self._last_names:
            return self._last
        key = tuple(names)
        places = self._orders.get(key)
        if places is None:
            places = self._look_up(key)
            self._named.update(places.slots)
            for name in key[:_SEEN_NAMES]:
                if len(self._seen) < _SEEN_NAMES:
                    self._seen.setdefault(name)
            if len(key) > _CACHED_NAMES:
                return places
            if len(self._orders) >= _CACHED_ORDERS:
                self._orders.clear()
            self._orders[key] = places
        self._last_names, self._last = list(names), places
        return places

    def _look_up(self, names: tuple[str, ...]) -> _Places:
        found = sorted((self._wanted[name], at) for at, name in enumerate(names) if name in self._wanted)
        slots = tuple(slot for slot, _ in found)
        repeated = sorted({self._reported_names[slot] for slot in slots if slots.count(slot) > 1})
        text = f"joint names more than once in the joint state: {', '.join(repeated)}" if repeated else ""
        return _Places(slots, np.array([at for _, at in found], dtype=np.intp), len(names), text)

    def _pick(self, field: str, values: Any, places: _Places) -> FloatArray:
        if len(values) != places.names:
            raise BadMessageError(
                "joints_wrong_length", f"the joint state has {places.names} names but {len(values)} values of {field}"
            )
        picked: FloatArray = np.asarray(values, dtype=float)[places.index]
        usable = is_reading(picked)
        if not usable.all():
            bad = [self._reported_names[s] for s, good in zip(places.slots, usable.tolist(), strict=True) if not good]
            raise _no_reading("joints", picked.tolist(), f"the {field} of {', '.join(bad)}")
        return picked

    def _optional(self, field: str, values: Any, places: _Places, tally: Tally) -> FloatArray | None:
        """Velocity or effort, or what stands in for it."""
        reported = self._reported.get((places.slots, field))
        if reported is None:
            reported = self._reported[places.slots, field] = _Reported()
        picked, why = None, f"the joint state has no {field}"
        if len(values):
            try:
                picked = self._pick(field, values, places)
            except BadMessageError as error:
                why = error.text
        if picked is None and reported.reports:
            tally.count(f"joints_{field}_missing", why)
        return reported.update(picked)

    def forget(self) -> None:
        """Forget what the publishers reported so far."""
        self._reported.clear()

    @property
    def seen(self) -> list[str]:
        """The names that the messages had so far, in the order of their coming; the first 200."""
        return list(self._seen)

    @property
    def missing(self) -> list[str]:
        """The robot's joints that no message has named so far."""
        return [name for slot, name in enumerate(self._reported_names) if slot not in self._named]

    def describe(self) -> str:
        """Which name in the joint states fills which slot, a line each leg."""
        lines = ["  leg  hip, thigh, calf <- joint states"]
        for leg, name in enumerate(LEG_NAMES):
            parts = [self._robot.reported_joint(slot) for slot in range(3 * leg, 3 * leg + 3)]
            lines.append(f"  {name}   {', '.join(parts)}")
        return "\n".join(lines)


class _Reported:
    """Velocity or effort of one publisher, which may be missing in some messages, or begin and end.

    Missing once, the last one is held: zero would be a lie, and the message's positions are good. Missing five times in
    a row, it is not reported any more; there again five times in a row, it is.
    """

    def __init__(self) -> None:
        self.reports: bool | None = None
        self._against = 0
        self._last: FloatArray | None = None

    def update(self, value: FloatArray | None) -> FloatArray | None:
        """The value to use for the one that a message has, or lacks."""
        there = value is not None
        if self.reports is None:
            self.reports = there
        self._against = 0 if there == self.reports else self._against + 1
        if self._against >= _EVIDENCE:
            self.reports, self._against = there, 0
        if there:
            self._last = value
        return self._last if self.reports else None


def _no_reading(stream: str, values: Sequence[float], where: str) -> BadMessageError:
    """The fault of numbers that no sensor says."""
    if all(map(math.isfinite, values)):
        return BadMessageError(f"{stream}_absurd", f"a number beyond {LARGEST_READING:g} in {where}")
    return BadMessageError(f"{stream}_not_finite", f"NaN or infinity in {where}")
