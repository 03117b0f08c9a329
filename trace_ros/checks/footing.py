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
from trace_ros.estimator.recurrence import recurrence
from trace_ros.leg_model import LegModel, cross
from trace_ros.logs import SensorLog, Trajectory
from trace_ros.robot import RobotDescription

FloatArray = NDArray[np.float64]

LOOK_S = 0.01
"""Between two looks: over less, the noise of the joints' positions would be most of what is seen."""

GAP_S = 0.1
"""Over a longer pause nothing is known of the feet."""

AGREES = 0.4
"""m/s over the ground; a foot that slips on ice is slower, mostly."""

SMOOTHING_S = 1.0
"""Strides are shorter, flight phases too."""

DOUBTFUL = 0.1
"""Share of the looks at which a foot agrees. True velocities of simulated walks fell to 0.26 at worst (a fast gait with
long flight phases), one that has run away to 0.00 (docs/evaluation.md)."""

_UNNOTICED_S = SMOOTHING_S * math.log(1.0 / DOUBTFUL)
"""For so long no foot has agreed when that is first told."""

_LINEAR = (range(3), range(3))

_ROUNDING_S = 1e-6


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


class Footing:
    """Watches an estimator sample by sample; looks every hundredth of a second."""

    def __init__(self, robot: RobotDescription) -> None:
        self._legs = LegModel(robot)
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._stamp_ns: int | None = None
        self._feet = np.zeros((4, 3))
        self.agreement = 1.0
        """Share of the looks of the last second or so at which a foot bore out the velocity."""
        self.astray = 0.0
        """m; the way that was told while no foot bore it out."""

    @property
    def doubtful(self) -> bool:
        """Whether no foot bears out the velocity, and has not for some two seconds."""
        return self.agreement < DOUBTFUL

    def update(self, stamp_ns: int, joint_position: FloatArray, velocity: FloatArray, rate: FloatArray) -> None:
        """Take in an estimate: joint positions (12,) rad at its stamp, velocity and rate (3,) in the body frame."""
        elapsed = math.inf if self._stamp_ns is None else (stamp_ns - self._stamp_ns) * 1e-9
        if 0 <= elapsed < LOOK_S - _ROUNDING_S:
            return
        feet = self._legs.at(joint_position).foot
        if 0 < elapsed < GAP_S:
            agrees, doubted = bool(speed_over_ground(self._feet, feet, elapsed, velocity, rate) < AGREES), self.doubtful
            self.agreement += (1.0 - math.exp(-elapsed / SMOOTHING_S)) * (agrees - self.agreement)
            if self.doubtful:
                self.astray += float(np.linalg.norm(velocity)) * (elapsed if doubted else _UNNOTICED_S)
        self._stamp_ns, self._feet = stamp_ns, feet

    def placed(self) -> None:
        """The position is known anew."""
        self.astray = 0.0

    def widened(self, estimate: Estimate) -> Estimate:
        """With covariances that own up to a velocity that no foot bears out, and to the way that it made of it."""
        pose, twist = estimate.pose_covariance.copy(), estimate.twist_covariance.copy()
        pose[_LINEAR] += self.astray**2
        if self.doubtful:
            twist[_LINEAR] += float(estimate.velocity @ estimate.velocity)
        return replace(estimate, pose_covariance=pose, twist_covariance=twist)


class Doubt(NamedTuple):
    """A while in which no foot bore out the velocity.

    Attributes:
        begin_s, end_s: since the log's first sample.
        speed: m/s, the greatest that was told then.
    """

    begin_s: float
    end_s: float
    speed: float

    def __str__(self) -> str:
        return (
            f"from {self.begin_s:.1f} to {self.end_s:.1f} s no foot bears out the estimated velocity (up to "
            f"{self.speed:.1f} m/s): the robot slid on all feet, or the estimate had run away"
        )


def doubts(log: SensorLog, trajectory: Trajectory, robot: RobotDescription) -> list[Doubt]:
    """What `Footing` makes of a whole run.

    Args:
        log: of the robot.
        trajectory: estimated, at stamps of the log; without angular velocities nothing is said.
        robot: whose.
    """
    stamp_ns, velocity, rate = trajectory.stamp_ns, trajectory.velocity, trajectory.angular_velocity
    if rate is None or len(stamp_ns) < 2:
        return []
    # The first sample of each hundredth of a second.
    looks = np.unique((stamp_ns - stamp_ns[0]) // round(LOOK_S * 1e9), return_index=True)[1]
    feet = LegModel(robot).at(log.joint_position[np.searchsorted(log.stamp_ns, stamp_ns[looks])]).foot
    elapsed = np.diff(stamp_ns[looks]) * 1e-9
    at = looks[1:]
    agrees = speed_over_ground(feet[:-1], feet[1:], elapsed, velocity[at], rate[at]) < AGREES
    weight = np.where(elapsed < GAP_S, 1.0 - np.exp(-elapsed / SMOOTHING_S), 0.0)
    # From full agreement on, as in `Footing`: of what is missing to it.
    missing = recurrence(1.0 - weight, (weight * ~agrees)[:, None])[:, 0]
    doubtful = np.concatenate(([False], missing > 1.0 - DOUBTFUL, [False]))
    begins, ends = (np.flatnonzero(np.diff(doubtful.astype(int)) == sign) for sign in (1, -1))
    seconds = (stamp_ns[at] - log.stamp_ns[0]) * 1e-9
    speed = np.linalg.norm(velocity[at], axis=-1)
    return [
        Doubt(float(seconds[begin]), float(seconds[end - 1]), float(speed[begin:end].max()))
        for begin, end in zip(begins, ends, strict=True)
    ]
