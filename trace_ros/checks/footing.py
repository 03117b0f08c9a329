"""Does any foot bear out the velocity that an estimator tells? While one rests on the ground, the body moves by it.

An estimator whose own output is its input can run away: it believes a velocity, and sees it in what it is told. With a
true velocity some foot nearly rests every now and then, on ice and in a gallop too; with one that has run away none
does. Which estimator it is does not matter here, nor which feet stand: only the one that agrees best counts.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trace_ros.estimator.estimator import Estimate
from trace_ros.leg_model import LegModel, cross
from trace_ros.logs import SensorLog, Trajectory
from trace_ros.robot import RobotDescription

FloatArray = NDArray[np.float64]

LOOK_S = 0.01
"""Between two looks: over less, the noise of the joints' positions would be most of what is seen."""

GAP_S = 0.1
"""Over a longer pause nothing is known of the feet. Joints that change less often than that stand still."""

AGREES = 0.4
"""m/s over the ground; a foot that slips on ice is slower, mostly."""

SMOOTHING_S = 1.0
"""Strides are shorter, flight phases too."""

DOUBTFUL, BELIEVED = 0.1, 0.3
"""Share of the time in which a foot agrees, below which a velocity is doubted, and above which it is believed again
(docs/node.md says what true velocities have)."""

_ROUNDING_S = 1e-6

_LINEAR = (range(3), range(3))


def speed_over_ground(
    before: FloatArray, now: FloatArray, elapsed: FloatArray | float, velocity: FloatArray, rate: FloatArray
) -> FloatArray:
    """How fast (m/s) the foot that is slowest moves over the ground.

    Args:
        before, now: (..., 4, 3) m, feet in the body frame, ``elapsed`` apart.
        elapsed: (...) s.
        velocity, rate: (..., 3) m/s and rad/s, of the body, body frame.

    Returns:
        (...).
    """
    moving = (now - before) / np.asarray(elapsed)[..., None, None]
    over_ground = velocity[..., None, :] + cross(rate[..., None, :], now) + moving
    return np.asarray(np.sqrt((over_ground**2).sum(axis=-1).min(axis=-1)))


class _Looks:
    """Says when to look at the feet: every hundredth of a second, but where joints are held for longer, when they
    change: in between they seem to rest, and then to jump."""

    def __init__(self) -> None:
        self._last_ns: int | None = None
        self._looked_ns = 0

    def due(self, stamp_ns: int, changed: bool) -> float | None:
        """Seconds since the look before; infinity where there is none to compare with, None where none is due.

        Args:
            stamp_ns: of a sample.
            changed: whether joint positions have changed from one sample to the next since the look before.
        """
        pause = math.inf if self._last_ns is None else (stamp_ns - self._last_ns) * 1e-9
        elapsed = (stamp_ns - self._looked_ns) * 1e-9
        if not 0 <= pause < GAP_S:
            elapsed = math.inf
        elif elapsed < LOOK_S - _ROUNDING_S or (not changed and elapsed < GAP_S - _ROUNDING_S):
            self._last_ns = stamp_ns
            return None
        self._last_ns = self._looked_ns = stamp_ns
        return elapsed


class _Judge:
    """What looks add up to."""

    def __init__(self) -> None:
        self.agreement = 1.0
        self.difference = 0.0
        self.doubtful = False
        self.astray = 0.0
        self._pending = 0.0

    def add(self, elapsed: float, speed: float) -> None:
        """Take in a look: seconds since the one before, and how fast the slowest foot moves over the ground."""
        if not math.isfinite(speed):
            return
        agrees, weight = speed < AGREES, 1.0 - math.exp(-elapsed / SMOOTHING_S)
        self.agreement += weight * (agrees - self.agreement)
        self.difference += weight * (speed - self.difference)
        self.doubtful = self.agreement < (BELIEVED if self.doubtful else DOUBTFUL)
        # Of what turns out to be doubtful, the beginning was not noticed.
        if self.doubtful:
            self.astray += self._pending + speed * elapsed
        self._pending = (
            0.0 if self.doubtful or (agrees and self.agreement >= BELIEVED) else self._pending + speed * elapsed
        )


class Footing:
    """Watches an estimator sample by sample."""

    def __init__(self, robot: RobotDescription) -> None:
        self._legs = LegModel(robot)
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._looks, self._judge = _Looks(), _Judge()
        self._joints: FloatArray | None = None
        self._changed = False
        self._feet = np.zeros((4, 3))

    @property
    def agreement(self) -> float:
        """Share of the last second or so in which a foot bore out the velocity."""
        return self._judge.agreement

    @property
    def difference(self) -> float:
        """m/s, smoothed: how fast the foot that agrees best moves over the ground."""
        return self._judge.difference

    @property
    def doubtful(self) -> bool:
        """Whether no foot bears out the velocity, and has not for some two seconds."""
        return self._judge.doubtful

    @property
    def astray(self) -> float:
        """m: by how much the position may be off for a velocity that no foot bore out."""
        return self._judge.astray

    def update(self, stamp_ns: int, joint_position: FloatArray, velocity: FloatArray, rate: FloatArray) -> None:
        """Take in an estimate: joint positions (12,) rad at its stamp, velocity and rate (3,) in the body frame."""
        self._changed |= self._joints is None or not np.array_equal(joint_position, self._joints)
        self._joints = joint_position.copy()
        elapsed = self._looks.due(stamp_ns, self._changed)
        if elapsed is None:
            return
        feet = self._legs.at(joint_position).foot
        if elapsed < math.inf:
            self._judge.add(elapsed, float(speed_over_ground(self._feet, feet, elapsed, velocity, rate)))
        self._feet, self._changed = feet, False

    def placed(self) -> None:
        """The position is known anew."""
        self._judge.astray = 0.0

    def widened(self, estimate: Estimate) -> Estimate:
        """With covariances that own up to a velocity that no foot bears out, and to where it has led."""
        pose, twist = estimate.pose_covariance.copy(), estimate.twist_covariance.copy()
        pose[_LINEAR] += self.astray**2
        if self.doubtful:
            twist[_LINEAR] += self.difference**2
        return replace(estimate, pose_covariance=pose, twist_covariance=twist)


class Doubt(NamedTuple):
    """A while in which no foot bore out the velocity.

    Attributes:
        begin_s, end_s: since the log's first sample.
        way: m, that the foot that agreed best made over the ground.
    """

    begin_s: float
    end_s: float
    way: float

    def __str__(self) -> str:
        return (
            f"from {self.begin_s:.1f} to {self.end_s:.1f} s no foot bears out the estimated velocity (each moved by "
            f"{self.way:.1f} m or more over the ground): the robot slid on all feet, or the estimate had run away"
        )


def doubts(log: SensorLog, trajectory: Trajectory, robot: RobotDescription) -> list[Doubt]:
    """What `Footing` makes of a whole run.

    Args:
        log: of the robot.
        trajectory: estimated; poses at stamps that the log does not have are left out. Without angular velocities
            nothing is said.
        robot: whose.
    """
    if trajectory.angular_velocity is None:
        return []
    rows = np.searchsorted(log.stamp_ns, trajectory.stamp_ns).clip(max=len(log) - 1)
    poses = np.flatnonzero(log.stamp_ns[rows] == trajectory.stamp_ns)
    rows = rows[poses]
    # Which sample's joints each one still has.
    fresh = np.ones(len(rows), dtype=bool)
    fresh[1:] = (log.joint_position[rows[1:]] != log.joint_position[rows[:-1]]).any(axis=1)
    reading = np.cumsum(fresh).tolist()
    looks, last, taken, spans = _Looks(), 0, list[int](), list[float]()
    for index, stamp in enumerate(log.stamp_ns[rows].tolist()):
        if (since := looks.due(stamp, reading[index] != last)) is not None:
            last = reading[index]
            taken.append(index)
            spans.append(since)
    if len(taken) < 2:
        return []
    at, elapsed = poses[taken], np.array(spans[1:])
    feet = LegModel(robot).at(log.joint_position[rows[taken]]).foot
    speed = speed_over_ground(
        feet[:-1], feet[1:], elapsed, trajectory.velocity[at[1:]], trajectory.angular_velocity[at[1:]]
    )
    judge, found = _Judge(), list[Doubt]()
    seconds = ((trajectory.stamp_ns[at[1:]] - log.stamp_ns[0]) * 1e-9).tolist()
    for second, since, pace in zip(seconds, elapsed.tolist(), speed.tolist(), strict=True):
        doubted, before = judge.doubtful, judge.astray
        if since < math.inf:
            judge.add(since, pace)
        if judge.doubtful:
            begin, _, way = found.pop() if doubted else (second, second, 0.0)
            found.append(Doubt(begin, second, way + judge.astray - before))
    return found
