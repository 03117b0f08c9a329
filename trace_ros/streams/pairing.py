"""IMU readings and joint readings, arriving in any order, become samples: by their stamps, not by their arrival."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from trace_ros.logs import JOINTS, Sample
from trace_ros.streams.kinds import Tally
from trace_ros.streams.readings import JointReading

FloatArray = NDArray[np.float64]

_HISTORY_NS = 1_000_000_000
"""Readings of one stream are kept this long, by stamp, for the other stream to catch up."""

_LONGEST_HISTORY = 4000
"""And so many at most, whatever their stamps."""

_OTHER_CLOCK_NS = 1_000_000_000
"""Stamps of the two streams further apart than this, while both arrive, are of two clocks."""

_TAKEN_OVER_NS = 1_000_000_000
"""A publisher that was silent for so long, by stamp, loses its joints to another that reports them."""

LARGEST_JOINT_DELAY = 0.1
"""s; joint readings that are later than this belong to another clock."""

_EVIDENCE = 20
"""Messages in a row that show that a publisher has been replaced, or that the clocks differ."""


class PairingSettings(BaseModel):
    """How joint readings are put to IMU readings.

    Attributes:
        joints: "interpolate" linearly between the two joint readings around the IMU's stamp, or "hold" the one before;
            a joint reading of the IMU's own stamp is taken as it is either way.
        joint_interval: s; joint readings further apart than this are not interpolated between: the one before is held.
        joint_timeout: s; a joint reading older than this at an IMU stamp is not held.
        joint_wait: s; how long, by stamp, an IMU reading waits for the joint reading after it. With more than
            ``joint_interval``, samples do not depend on which topic is faster; 0 takes the newest that is there.
        joint_delay: s; how much older joint readings are than IMU readings of the same stamp, by which their stamps are
            put back, and by which an IMU reading waits the longer; negative where the IMU's are the older ones.
        time_jump_limit: s; stamps further back than this, two in a row, are a new time line; a smaller one is disorder.
        reset_on_time_jump: whether a new time line is followed; else its messages are dropped until time catches up.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    joints: Literal["interpolate", "hold"] = "interpolate"
    joint_interval: float = Field(default=0.025, ge=0)
    joint_timeout: float = Field(default=0.05, ge=0)
    joint_wait: float = Field(default=0.04, ge=0)
    joint_delay: float = Field(default=0.0, ge=-LARGEST_JOINT_DELAY, le=LARGEST_JOINT_DELAY)
    time_jump_limit: float = Field(default=0.5, gt=0)
    reset_on_time_jump: bool = True


@dataclass
class _Publisher:
    """What one set of joints has reported lately; legs may be reported apart from each other."""

    slots: tuple[int, ...]
    stamps: deque[int] = field(default_factory=lambda: deque(maxlen=_LONGEST_HISTORY))
    readings: deque[JointReading] = field(default_factory=lambda: deque(maxlen=_LONGEST_HISTORY))

    @property
    def newest_ns(self) -> int | None:
        return self.stamps[-1] if self.stamps else None

    def add(self, stamp_ns: int, reading: JointReading) -> None:
        self.stamps.append(stamp_ns)
        self.readings.append(reading)

    def forget_before(self, stamp_ns: int) -> None:
        """Drop what lies before the newest reading that is not newer than a stamp."""
        while len(self.stamps) > 1 and self.stamps[1] <= stamp_ns:
            self.stamps.popleft()
            self.readings.popleft()


_ImuItem = tuple[int, FloatArray, FloatArray]
_Parts = tuple[FloatArray, FloatArray | None, FloatArray | None]


class SamplePairer:
    """Puts to each IMU reading the joints at its stamp.

    The IMU drives: one sample per reading, in order of stamps. A reading waits until the joints are known up to its
    stamp, whichever of the two arrives first, but no longer than ``joint_wait`` by the IMU's own stamps.
    """

    def __init__(self, settings: PairingSettings, tally: Tally) -> None:
        """Start empty."""
        self._interpolate = settings.joints == "interpolate"
        self._interval_ns = round(settings.joint_interval * 1e9)
        self._timeout_ns = round(settings.joint_timeout * 1e9)
        self._delay_ns = round(settings.joint_delay * 1e9)
        self._wait_ns = round(settings.joint_wait * 1e9) + max(self._delay_ns, 0)
        self._tally = tally
        self.exact = 0
        """Samples whose joints bear the IMU's own stamp."""
        self.interpolated = 0
        """Samples whose joints lie between two readings."""
        self.held = 0
        """Samples whose joints are older ones."""
        self.clear()

    def clear(self) -> None:
        """Forget all readings; the counts stay."""
        self._waiting: deque[_ImuItem] = deque()
        self._newest_imu_ns: int | None = None
        self._newest_joints_ns: int | None = None
        self._publishers: dict[tuple[int, ...], _Publisher] = {}
        self._owners: list[tuple[int, ...] | None] = [None] * JOINTS
        self._complete: list[_Publisher] = []
        """The publishers that fill all 12 slots between them; empty while some are missing."""
        self._applicants: dict[tuple[int, ...], int] = {}
        self._unpaired_joints = 0
        self._paired = False
        self.apart_s: float | None = None
        """How far the joints' stamps are from the IMU's (s), while that keeps them from being paired."""

    @property
    def owners(self) -> list[int | None]:
        """(12,) number of the publisher of each joint, None where it was not reported yet."""
        numbers = {slots: number for number, slots in enumerate(self._publishers)}
        return [None if owner is None else numbers[owner] for owner in self._owners]

    def add_imu(self, stamp_ns: int, angular_velocity: FloatArray, linear_acceleration: FloatArray) -> list[Sample]:
        """Take in one IMU reading, later than those before: (3,) rad/s and (3,) m/s^2 in the body frame.

        Returns:
            The samples that this completes, oldest first.
        """
        self._waiting.append((stamp_ns, angular_velocity, linear_acceleration))
        self._forget_evidence_after_a_pause(stamp_ns, self._newest_imu_ns)
        self._newest_imu_ns = stamp_ns
        return self._release()

    def accepts(self, stamp_ns: int, slots: tuple[int, ...]) -> bool:
        """Whether a joint reading counts: not one of joints that another publisher reports already.

        A publisher that has fallen silent is replaced by one that goes on reporting its joints, and at once by one that
        reports more, while joints are missing.
        """
        if slots in self._publishers:
            return True
        rivals = {owner for slot in slots if (owner := self._owners[slot]) is not None}
        if rivals:
            more = not self._complete and all(set(slots).issuperset(rival) for rival in rivals)
            newest = [self._publishers[rival].newest_ns for rival in rivals]
            own_ns = stamp_ns - self._delay_ns
            silent = all(newest_ns is None or own_ns - newest_ns > _TAKEN_OVER_NS for newest_ns in newest)
            self._applicants[slots] = self._applicants.get(slots, 0) + 1 if silent else 0
            if self._applicants[slots] < _EVIDENCE and not more:
                return False
            for rival in rivals:
                del self._publishers[rival]
            self._owners = [None if owner in rivals else owner for owner in self._owners]
        self._applicants.clear()
        self._publishers[slots] = _Publisher(slots)
        for slot in slots:
            self._owners[slot] = slots
        self._complete = [] if None in self._owners else list(self._publishers.values())
        return True

    def add_joints(self, stamp_ns: int, reading: JointReading) -> list[Sample]:
        """Take in one joint reading that `accepts` let in, later than those before of the same joints.

        Returns:
            The samples that this completes, oldest first.
        """
        self._forget_evidence_after_a_pause(stamp_ns, self._newest_joints_ns)
        self._newest_joints_ns = stamp_ns
        self._publishers[reading.slots].add(stamp_ns - self._delay_ns, reading)
        if self._unpaired_joints < _LONGEST_HISTORY:
            self._unpaired_joints += 1
        return self._release()

    def flush(self) -> list[Sample]:
        """The samples that still wait, with the joints that are there: for the end of a stream."""
        samples = []
        while self._waiting:
            samples += self._pair_first()
        return samples

    def _release(self) -> list[Sample]:
        samples: list[Sample] = []
        waiting = self._waiting
        while waiting:
            stamp_ns = waiting[0][0]
            settled = bool(self._complete)
            for publisher in self._complete:
                if not publisher.stamps or publisher.stamps[-1] < stamp_ns:
                    settled = False
            if not settled and waiting[-1][0] - stamp_ns < self._wait_ns and len(waiting) < _LONGEST_HISTORY:
                break
            samples += self._pair_first()
        if not waiting:
            for publisher in self._publishers.values():
                if publisher.stamps and publisher.stamps[-1] - publisher.stamps[0] > _HISTORY_NS:
                    publisher.forget_before(publisher.stamps[-1] - _HISTORY_NS)
        return samples

    def _pair_first(self) -> list[Sample]:
        """The sample of the IMU reading that has waited longest; none if the joints are not known at its stamp."""
        stamp_ns, angular_velocity, linear_acceleration = self._waiting.popleft()
        parts = self._at(self._complete[0], stamp_ns) if len(self._complete) == 1 else self._gather(stamp_ns)
        if parts is None:
            self._count_unpaired(stamp_ns)
            return []
        self._paired, self._unpaired_joints, self.apart_s = True, 0, None
        return [Sample(stamp_ns, angular_velocity, linear_acceleration, *parts)]

    def _gather(self, stamp_ns: int) -> _Parts | None:
        """The joints of several publishers at a stamp."""
        if not self._complete:
            return None
        position, velocity, torque = np.empty(JOINTS), np.empty(JOINTS), np.empty(JOINTS)
        has_velocity = has_torque = True
        before = self.exact, self.interpolated, self.held
        for publisher in self._complete:
            parts = self._at(publisher, stamp_ns)
            if parts is None:
                self.exact, self.interpolated, self.held = before
                return None
            slots = list(publisher.slots)
            position[slots] = parts[0]
            if parts[1] is None:
                has_velocity = False
            else:
                velocity[slots] = parts[1]
            if parts[2] is None:
                has_torque = False
            else:
                torque[slots] = parts[2]
        # One sample, however many publishers: it counts as the least exact of them.
        after = self.exact, self.interpolated, self.held
        worst = max(kind for kind in range(3) if after[kind] > before[kind])
        self.exact, self.interpolated, self.held = (before[kind] + (kind == worst) for kind in range(3))
        return position, velocity if has_velocity else None, torque if has_torque else None

    def _at(self, publisher: _Publisher, stamp_ns: int) -> _Parts | None:
        """The joints of one publisher at a stamp; drops its older readings."""
        publisher.forget_before(stamp_ns)
        stamps, readings = publisher.stamps, publisher.readings
        if not stamps:
            return None
        before_ns, before = stamps[0], readings[0]
        age = stamp_ns - before_ns
        if age == 0:
            self.exact += 1
            return before.position, before.velocity, before.torque
        if age < 0:
            return None
        if self._interpolate and len(stamps) > 1 and stamps[1] - before_ns <= self._interval_ns:
            after, weight = readings[1], age / (stamps[1] - before_ns)
            self.interpolated += 1
            position = before.position + weight * (after.position - before.position)
            return (
                position,
                _between(before.velocity, after.velocity, weight),
                _between(before.torque, after.torque, weight),
            )
        if age <= self._timeout_ns:
            self.held += 1
            return before.position, before.velocity, before.torque
        return None

    def _forget_evidence_after_a_pause(self, stamp_ns: int, before_ns: int | None) -> None:
        """One of the two is the first to be heard again, and readings from before may still wait: no sign of clocks."""
        if before_ns is not None and stamp_ns - before_ns > _OTHER_CLOCK_NS:
            self._unpaired_joints = 0

    def _count_unpaired(self, stamp_ns: int) -> None:
        stamps = [publisher.stamps for publisher in self._publishers.values() if publisher.stamps]
        if self._unpaired_joints >= _EVIDENCE and all(abs(own[-1] - stamp_ns) > _OTHER_CLOCK_NS for own in stamps):
            self.apart_s = (stamps[0][-1] + self._delay_ns - stamp_ns) * 1e-9
            self._tally.count("imu_other_clock", f"the joints' stamps are {self.apart_s:+.3f} s away from the IMU's")
        elif not self._paired and (not self._complete or all(own[0] > stamp_ns for own in stamps)):
            self._tally.count("imu_before_joints")
        else:
            self._tally.count("imu_without_joints")


def _between(before: FloatArray | None, after: FloatArray | None, weight: float) -> FloatArray | None:
    """Linear interpolation; what only one of the two reports is taken from that one."""
    if before is None:
        return after
    return before if after is None else before + weight * (after - before)
