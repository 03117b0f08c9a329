"""From samples at any rate to steps at the rate that the network knows: as they are, bridged, or resampled."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from trace_ros.logs import Sample

FloatArray = NDArray[np.float64]

_USUAL = 32
"""Intervals from which the stream's own is told."""

_FEW = 8
"""So many will do to begin with."""

_MARGIN = 1.03
"""How far the usual interval must be outside of those that the network knows, so that it does not go to and fro."""

_BRIDGE_FROM = 1.6
"""An interval of so many usual ones has lost samples."""

_LARGEST_CREDIT = 16.0
"""Usual intervals that stamps given in a burst may be ahead of their time."""


class GapSettings(BaseModel):
    """What is done about pauses in the samples.

    Attributes:
        max_gap: s; shorter pauses are bridged by interpolation, after a longer one the window starts anew.
        coast_time: s; over a longer one the body goes on with its last velocity and turn rate, which fade with this
            time constant.
        unseen_acceleration: m/s^2; how much the velocity may have changed meanwhile, a second, one standard deviation.
        unseen_speed: m/s; and in all.
        unseen_turn_acceleration: rad/s^2; the same of the turn rate.
        unseen_turn_rate: rad/s; and in all.
        level_after: s; after a longer pause roll and pitch are taken from gravity, as at a start.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    max_gap: float = Field(default=0.1, gt=0)
    coast_time: float = Field(default=0.5, gt=0)
    unseen_acceleration: float = Field(default=1.0, ge=0)
    unseen_speed: float = Field(default=1.0, ge=0)
    unseen_turn_acceleration: float = Field(default=2.0, ge=0)
    unseen_turn_rate: float = Field(default=1.0, ge=0)
    level_after: float = Field(default=2.0, ge=0)


class Interval(NamedTuple):
    """What to do with a sample.

    Attributes:
        kind: "step": through the network as it is, or in ``steps`` parts where samples were lost; "resample": the
            stream has another rate than the network; "gap": the past is too long ago to go on from.
        steps: 1, or more to bridge.
    """

    kind: Literal["step", "resample", "gap"]
    steps: int = 1


class IntervalPlanner:
    """Decides from the stamps alone how the samples become steps; what it decides is the same live and offline."""

    def __init__(self, known_s: tuple[float, float], nominal_s: float, max_gap_s: float) -> None:
        """For a network.

        Args:
            known_s: the shortest and longest interval at which it works sample by sample, s.
            nominal_s: its own, s.
            max_gap_s: longer ones are gaps, s.
        """
        (self._shortest, self._longest), self._nominal, self._max_gap = known_s, nominal_s, max_gap_s
        self._intervals: deque[float] = deque(maxlen=_USUAL)
        self.reset()

    def reset(self) -> None:
        """Forget the past."""
        self._intervals.clear()
        self._since_judged = 0
        self.usual_s = 0.0
        """The stream's own interval, s; 0 while it is not known."""
        self._resampling = False
        self._credit = 0.0

    def plan(self, dt: float) -> Interval:
        """What to do with a sample that comes ``dt`` (s) after the one before."""
        if dt > self._max_gap:
            self._credit = 0.0
            return Interval("gap")
        self._learn(dt)
        return Interval("resample") if self._resampling else Interval("step", self._steps(dt))

    def _learn(self, dt: float) -> None:
        intervals = self._intervals
        intervals.append(dt)
        self._since_judged += 1
        if len(intervals) < _FEW or (self._since_judged < _FEW and self.usual_s):
            return
        self._since_judged = 0
        self.usual_s = usual = usual_interval(intervals)
        margin = 1.0 if self._resampling else _MARGIN
        self._resampling = not self._shortest / margin <= usual <= self._longest * margin

    def _steps(self, dt: float) -> int:
        """Steps for an interval: more than one where samples were lost."""
        if not self.usual_s:
            return max(1, round(dt / self._nominal)) if dt > _BRIDGE_FROM * self._longest else 1
        excess = dt / self.usual_s - 1.0
        if excess < -0.75:  # stamps of a burst: the time that they lack comes before or after
            self._credit = min(self._credit - excess, _LARGEST_CREDIT)
        elif excess >= _BRIDGE_FROM - 1.0:
            if self._credit < excess:
                return round(1.0 + excess)
            self._credit -= excess
        return 1


def usual_interval(intervals: Collection[float]) -> float:
    """The interval that a stream usually has.

    The median, which lost messages and pauses do not move; the mean, where stamps come in bursts.
    """
    ordered = sorted(intervals)
    median = ordered[len(ordered) // 2]
    pauses = sum(1 for interval in ordered if interval > 4 * median)
    return median if 12 * pauses < len(ordered) else sum(ordered) / len(ordered)


class GridResampler:
    """Samples on a grid of the network's own interval, made of samples at another rate."""

    def __init__(self, nominal_s: float) -> None:
        self._nominal_ns = round(nominal_s * 1e9)
        self.reset()

    def reset(self) -> None:
        """Forget the grid: the next sample begins one."""
        self._due_ns: int | None = None
        self._sum = np.zeros(6)

    def push(self, before: Sample, sample: Sample, usual_s: float) -> list[Sample]:
        """The samples on the grid in the interval between two samples.

        Of a faster stream each is the mean since the one before, as the IMU's own filter would give it at that rate; of
        a slower one they lie on straight lines.
        """
        if self._due_ns is None:
            self._due_ns = before.stamp_ns + self._nominal_ns
        span = sample.stamp_ns - before.stamp_ns
        made = []
        if usual_s * 1e9 >= self._nominal_ns:
            while self._due_ns <= sample.stamp_ns:
                made.append(between(before, sample, (self._due_ns - before.stamp_ns) / span))
                self._due_ns += self._nominal_ns
            return made
        reading = np.concatenate((sample.angular_velocity, sample.linear_acceleration))
        cursor_ns = before.stamp_ns
        while self._due_ns <= sample.stamp_ns:
            mean = (self._sum + reading * (self._due_ns - cursor_ns)) / self._nominal_ns
            at = between(before, sample, (self._due_ns - before.stamp_ns) / span)
            made.append(replace(at, angular_velocity=mean[:3], linear_acceleration=mean[3:]))
            cursor_ns = self._due_ns
            self._sum = np.zeros(6)
            self._due_ns += self._nominal_ns
        self._sum = self._sum + reading * (sample.stamp_ns - cursor_ns)
        return made


def between(before: Sample, after: Sample, share: float) -> Sample:
    """Linear interpolation between two samples; ``share`` 0 is the first, 1 the second.

    What one of the two does not report, the result does not.
    """
    stamp_ns = before.stamp_ns + round(share * (after.stamp_ns - before.stamp_ns))

    def at(first: FloatArray, second: FloatArray) -> FloatArray:
        return np.asarray(first + share * (second - first))

    velocity = torque = None
    if before.joint_velocity is not None and after.joint_velocity is not None:
        velocity = at(before.joint_velocity, after.joint_velocity)
    if before.joint_torque is not None and after.joint_torque is not None:
        torque = at(before.joint_torque, after.joint_torque)
    return Sample(
        stamp_ns,
        at(before.angular_velocity, after.angular_velocity),
        at(before.linear_acceleration, after.linear_acceleration),
        at(before.joint_position, after.joint_position),
        velocity,
        torque,
    )
