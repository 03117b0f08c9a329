"""The gyroscope's bias, read while the robot stands still: what a gyro shows then beyond the little that legs tell.

A robot that has just stopped still settles for a second or two, by thousandths of a radian per second: as much as the
bias of a good gyro. Feet that stand tell how the body turned above them, so that turn is taken away first; what they do
not see (feet that roll or creep) is an angle, and counts less the longer a rest lasts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trace_ros.estimator.recurrence import recurrence
from trace_ros.geometry import skew
from trace_ros.logs import LEGS
from trace_ros.robot import LegKinematics

FloatArray = NDArray[np.float64]

HALF_BELIEVED_S = 0.5
"""s: how long the first rest must be for half of what it shows to be believed. A turn of 5 mrad that the legs do not
tell (feet that creep, noise of the encoders), over a bias of 0.01 rad/s, as calibrated MEMS gyros have."""


class GyroBias:
    """Mean turn rates of the rests so far, weighted by the square of their length.

    The error of a rest's mean is an angle over its length, so its weight is the square of that; zero bias stands beside
    the rests with the weight of one of ``HALF_BELIEVED_S``. The bias drifts with temperature, so old readings fade:
    while the robot rests, past rests lose weight with a time constant of ``memory``, and of a rest that is longer than
    that the last ``memory`` seconds count. While the robot moves, the bias stays.
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
        self._turn, self._rested_s = np.zeros(3), 0.0
        self._joint_position: NDArray[np.floating] | None = None
        """Of the reading before, within a rest."""
        self._turn_per_joint: FloatArray | None = None

    def update(
        self,
        angular_velocity: NDArray[np.floating],
        joint_position: NDArray[np.floating],
        still: bool,
        dt: float,
    ) -> FloatArray:
        """Take in a reading.

        Args:
            angular_velocity: (3,) rad/s, body frame.
            joint_position: (12,) rad.
            still: whether the robot stands still.
            dt: s since the reading before.

        Returns:
            (3,) The reading without the bias, rad/s.
        """
        if self._memory_s > 0:
            if still:
                self._rest(angular_velocity, joint_position, dt)
            elif self._joint_position is not None:
                self._end_rest()
        return angular_velocity - self.value

    def _rest(self, angular_velocity: NDArray[np.floating], joint_position: NDArray[np.floating], dt: float) -> None:
        # What the first reading of a rest is a mean of began before it, so it only tells where the legs are.
        if self._joint_position is None or self._turn_per_joint is None:
            self._turn_per_joint = turn_per_joint(self._kinematics, joint_position)
        else:
            legs = self._turn_per_joint @ (joint_position - self._joint_position)
            memory = self._memory_s
            kept = 1.0 - min(max(self._rested_s + dt - memory, 0.0) / memory, 1.0)
            self._turn = kept * self._turn + min(dt, memory) / dt * (angular_velocity * dt - legs)
            self._rested_s = min(self._rested_s + dt, memory)
            fading = 1.0 - min(dt / memory, 1.0)
            self._past, self._past_weight = fading * self._past, fading * self._past_weight
            weight = self._past_weight + self._rested_s**2 + HALF_BELIEVED_S**2
            self.value = (self._past + self._rested_s * self._turn) / weight
        self._joint_position = np.array(joint_position, dtype=float)

    def _end_rest(self) -> None:
        self._past = self._past + self._rested_s * self._turn
        self._past_weight += self._rested_s**2
        self._turn, self._rested_s = np.zeros(3), 0.0
        self._joint_position = None


def gyro_biases(
    angular_velocity: FloatArray,
    joint_position: FloatArray,
    still: NDArray[np.bool_],
    dt: FloatArray,
    memory_s: float,
    kinematics: LegKinematics,
) -> FloatArray:
    """What `GyroBias` holds after each of many readings. ``-> (M, 3)`` rad/s.

    Args:
        angular_velocity: (M, 3) rad/s.
        joint_position: (M, 12) rad.
        still: (M,) whether the robot stands still.
        dt: (M,) s since the reading before.
        memory_s, kinematics: see `GyroBias`.
    """
    biases = np.zeros_like(angular_velocity)
    if memory_s <= 0 or not still.any():
        return biases
    edges = np.flatnonzero(np.diff(still.astype(np.int8), prepend=0, append=0)).tolist()
    past, past_weight = np.zeros(3), 0.0
    for start, stop, following in zip(edges[::2], edges[1::2], [*edges[2::2], len(still)], strict=True):
        interval = dt[start + 1 : stop]
        if interval.size:
            moved = np.diff(joint_position[start:stop], axis=0)
            legs = moved @ turn_per_joint(kinematics, joint_position[start]).T
            counted = np.minimum(interval, memory_s)
            turns = (counted / interval)[:, None] * (angular_velocity[start + 1 : stop] * interval[:, None] - legs)
            rested = np.minimum(np.cumsum(interval), memory_s)
            before = np.concatenate(([0.0], rested[:-1]))
            kept = 1.0 - np.minimum(np.maximum(before + interval - memory_s, 0.0) / memory_s, 1.0)
            fading = np.cumprod(1.0 - np.minimum(interval / memory_s, 1.0))
            summed = fading[:, None] * past + rested[:, None] * recurrence(kept, turns)
            weight = fading * past_weight + rested**2
            biases[start + 1 : stop] = summed / (weight + HALF_BELIEVED_S**2)[:, None]
            past, past_weight = summed[-1], float(weight[-1])
        biases[start] = biases[start - 1] if start else 0.0
        biases[stop:following] = biases[stop - 1]
    return biases


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
