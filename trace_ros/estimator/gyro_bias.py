"""The gyroscope's bias, read while the robot stands still: what a gyro shows then beyond the little that legs tell.

A robot that has just stopped still settles for a second or two, by thousandths of a radian per second: as much as the
bias of a good gyro. Feet that stand tell how the body turned above them, so that turn is taken away first; what they
do not see (feet that roll or creep) is an angle, and counts less the longer a rest lasts. The first foot that lifts
off ends a rest, somewhat before its joints are fast enough to tell; so readings are believed only once the rest has
gone on.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from trace_ros.estimator.recurrence import recurrence
from trace_ros.geometry import skew
from trace_ros.logs import LEGS
from trace_ros.robot import LegKinematics

FloatArray = NDArray[np.float64]

HALF_BELIEVED_S = 0.2
"""s: how long the first rest must be for half of what it shows to be believed. A turn of 2 mrad that the legs do not
tell (feet that creep, noise of the encoders), over a bias of 0.01 rad/s, as calibrated MEMS gyros have."""

CONFIRMED_NS = 100_000_000
"""ns: how much longer a rest must have lasted for a reading to count."""

STIRRED_RAD = 0.05
"""rad: once a joint has moved so far since a rest began, it was none: a robot that sits down slowly, or lies and moves
its legs. What was read in it is dropped, and another one begins."""

LONGEST_NS = 5_000_000_000
"""ns: a longer rest counts as several, so that no more than this is dropped, and times stay small numbers."""

GAP_NS = 100_000_000
"""ns: a longer pause between two readings ends a rest; one reading does not speak for it."""


class GyroBias:
    """The rate at which the gyro's angle leaves that of the legs: the slope of a line through each rest, then a mean.

    A line with an intercept, by least squares: the noise of the encoders where a rest begins does not count. What the
    legs do not tell is an angle, whose part in a slope is the less the longer the rest: slopes are weighted by the
    square of their rest's length (12 times the variance of its times), and zero bias stands beside them with the weight
    of a rest of ``HALF_BELIEVED_S``. The bias drifts with temperature, so while the robot rests, readings before lose
    weight with a time constant of ``memory``. While it moves, the bias stays.
    """

    def __init__(self, memory_s: float, kinematics: LegKinematics) -> None:
        """Begin without bias.

        Args:
            memory_s: time at rest, s, over which readings are averaged; 0 leaves every reading as it is.
            kinematics: of the robot.
        """
        self._memory_s = memory_s
        self._kinematics = kinematics
        self.reset()

    def reset(self) -> None:
        """Forget the past."""
        self.value: FloatArray = np.zeros(3)
        """(3,) rad/s, body frame."""
        self._past, self._past_weight = np.zeros(3), 0.0
        self._begin(None)

    def _begin(self, joint_position: NDArray[np.floating] | None) -> None:
        """A rest, at (12,) rad; or, with None, motion."""
        self._start = None if joint_position is None else np.array(joint_position, dtype=float)
        self._turn_per_joint = None if self._start is None else turn_per_joint(self._kinematics, self._start)
        self._time, self._turned, self._started_ns, self._last_ns = 0.0, np.zeros(3), 0, 0
        self._sums = np.zeros(_SUMS)
        """Of 1, t, t^2, angle, t * angle, by dt."""
        self._unconfirmed: deque[tuple[int, FloatArray, float]] = deque()
        """Stamp (ns), addends and dt (s) of each reading that may yet prove the end of a rest."""

    def update(
        self,
        stamp_ns: int,
        angular_velocity: NDArray[np.floating],
        joint_position: NDArray[np.floating],
        still: bool,
        dt: float,
    ) -> FloatArray:
        """Take in a reading.

        Args:
            stamp_ns: ns.
            angular_velocity: (3,) rad/s, body frame.
            joint_position: (12,) rad.
            still: whether the robot stands still.
            dt: s since the reading before.

        Returns:
            (3,) The reading without the bias, rad/s.
        """
        if self._memory_s > 0:
            if still:
                self._rest(stamp_ns, angular_velocity, joint_position, dt)
            elif self._start is not None:
                self._end()
        return angular_velocity - self.value

    def _end(self) -> None:
        weighted, weight = _slope(self._sums)
        self._past, self._past_weight = self._past + weighted, self._past_weight + float(weight)
        self._begin(None)

    def _rest(
        self, stamp_ns: int, angular_velocity: NDArray[np.floating], joint_position: NDArray[np.floating], dt: float
    ) -> None:
        if self._start is not None:
            if stamp_ns - self._started_ns >= LONGEST_NS or stamp_ns - self._last_ns > GAP_NS:
                self._end()
            elif _stirred(joint_position, self._start).any():
                self._begin(None)
                self.value = self._past / (self._past_weight + HALF_BELIEVED_S**2)
        if self._start is None or self._turn_per_joint is None:
            # What this reading is a mean of began before the rest: it tells where the legs are.
            self._begin(joint_position)
            self._started_ns = self._last_ns = stamp_ns
            return
        self._last_ns = stamp_ns
        self._time += dt
        self._turned = self._turned + angular_velocity * dt
        angle = self._turned - self._turn_per_joint @ (joint_position - self._start)
        time = self._time
        self._unconfirmed.append((stamp_ns, dt * np.array([1.0, time, time * time, *angle, *(time * angle)]), dt))
        while self._unconfirmed and stamp_ns - self._unconfirmed[0][0] >= CONFIRMED_NS:
            _, added, interval = self._unconfirmed.popleft()
            kept = 1.0 - min(interval / self._memory_s, 1.0)
            self._sums = kept * self._sums + added
            self._past, self._past_weight = kept * self._past, kept * self._past_weight
            weighted, weight = _slope(self._sums)
            self.value = (self._past + weighted) / (self._past_weight + weight + HALF_BELIEVED_S**2)


def gyro_biases(
    stamp_ns: NDArray[np.int64],
    angular_velocity: FloatArray,
    joint_position: FloatArray,
    still: NDArray[np.bool_],
    dt: FloatArray,
    memory_s: float,
    kinematics: LegKinematics,
) -> FloatArray:
    """What `GyroBias` holds after each of many readings. ``-> (M, 3)`` rad/s.

    Args:
        stamp_ns: (M,) ns.
        angular_velocity: (M, 3) rad/s.
        joint_position: (M, 12) rad.
        still: (M,) whether the robot stands still.
        dt: (M,) s since the reading before.
        memory_s, kinematics: see `GyroBias`.
    """
    biases = np.zeros_like(angular_velocity)
    if memory_s <= 0 or not still.any():
        return biases
    rests = _rests(stamp_ns, still, joint_position)
    past, past_weight, last = np.zeros(3), 0.0, np.zeros(3)
    for (start, stop, stirred), following in zip(rests, [*(rest[0] for rest in rests[1:]), len(still)], strict=True):
        # Of each row, how many readings after the first are confirmed by then.
        confirmed = np.searchsorted(stamp_ns[start + 1 : stop], stamp_ns[start:stop] - CONFIRMED_NS, side="right")
        rows = slice(start + 1, start + 1 + int(confirmed[-1]))
        interval = dt[rows, None]
        time = np.cumsum(interval, axis=0)
        legs = (joint_position[rows] - joint_position[start]) @ turn_per_joint(kinematics, joint_position[start]).T
        angle = np.cumsum(angular_velocity[rows] * interval, axis=0) - legs
        kept = 1.0 - np.minimum(interval[:, 0] / memory_s, 1.0)
        ones = np.ones_like(time)
        sums = recurrence(kept, interval * np.hstack((ones, time, time * time, angle, time * angle)))
        fading = np.cumprod(kept)
        weighted, weight = _slope(sums)
        values = weighted + fading[:, None] * past
        weights = weight + fading * past_weight
        values /= (weights + HALF_BELIEVED_S**2)[:, None]
        biases[start:stop] = np.concatenate((last[None], values))[confirmed]
        if len(weight):
            believed = 0.0 if stirred else 1.0
            past = fading[-1] * past + believed * weighted[-1]
            past_weight = float(fading[-1] * past_weight + believed * weight[-1])
        biases[stop:following] = last = past / (past_weight + HALF_BELIEVED_S**2)
    return biases


def _rests(
    stamp_ns: NDArray[np.int64], still: NDArray[np.bool_], joint_position: FloatArray
) -> list[tuple[int, int, bool]]:
    """First row of each rest, the first after it, and whether it was none: joints moved far."""
    goes_on = np.diff(stamp_ns) <= GAP_NS
    rested = np.concatenate(([False], still[1:] & still[:-1] & goes_on))
    begins = np.flatnonzero(still & ~rested)
    ends = np.flatnonzero(np.append(still[:-1] & ~rested[1:], still[-1:])) + 1
    rests = []
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        start = begin
        while start < end:
            stop = min(end, int(np.searchsorted(stamp_ns, stamp_ns[start] + LONGEST_NS)))
            stirred = _stirred(joint_position[start:stop], joint_position[start])
            if moved := bool(stirred.any()):
                stop = start + int(stirred.argmax())
            rests.append((start, stop, moved))
            start = stop
    return rests


def _stirred(joint_position: NDArray[np.floating], start: FloatArray) -> NDArray[np.bool_]:
    """Whether a joint is far from where it was when the rest began. ``(..., 12) -> (...)``."""
    return np.asarray(np.abs(joint_position - start).max(axis=-1) > STIRRED_RAD)


_SUMS = 9


def _slope(sums: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Slope of the line through angles over time, times its weight; and the weight. ``(..., 9) -> (..., 3), (...)``."""
    total = np.maximum(sums[..., :1], np.finfo(float).tiny)
    time, square = sums[..., 1:2] / total, sums[..., 2:3] / total
    weight = 12.0 * np.maximum(square - time**2, 0.0)
    weighted = 12.0 * (sums[..., 6:9] - time * sums[..., 3:6]) / total
    return np.where(weight > 0, weighted, 0.0), weight[..., 0]


def turn_per_joint(kinematics: LegKinematics, joint_position: NDArray[np.floating]) -> FloatArray:
    """How far joints turn the body above four feet that stand: least squares over their points. ``(12,) -> (3, 12)``.

    A point p that stays in the world moves in the body's frame by ``dp = -t - r x p`` when the body moves by t and
    turns by r (both in the body's frame, to first order); the joints move the feet by ``dp = J dq``.

    Args:
        kinematics: of the robot.
        joint_position: (12,) rad.

    Returns:
        (3, 12) r over dq.
    """
    feet, jacobians, _ = kinematics.forward_and_jacobians(np.asarray(joint_position, dtype=float))
    about_middle = feet[0] - feet[0].mean(axis=0)
    motion = np.zeros((3 * LEGS, 3 * LEGS))
    for leg in range(LEGS):
        motion[3 * leg : 3 * leg + 3, 3 * leg : 3 * leg + 3] = jacobians[0, leg]
    # r x p = -skew(p) r; about their middle, turns and shifts of the feet do not mix.
    return np.linalg.pinv(skew(about_middle).reshape(3 * LEGS, 3)) @ motion
