"""Time without samples: the body goes on as before, ever less so, and its pose becomes the less certain."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from trace_ros.estimator.odometry import PoseIntegrator
from trace_ros.streams.intervals import GapSettings

FloatArray = NDArray[np.float64]
Triple = tuple[float, float, float]

_USUAL_MOTION_S = 0.25
"""Time constant over which velocity and turn rate are averaged: what goes on in a gap is not one phase of the gait."""


class Coasting:
    """Moves and widens a pose while the network has no state to go on from."""

    def __init__(self, pose: PoseIntegrator, settings: GapSettings) -> None:
        """For a pose, which is changed in place."""
        self._pose, self._settings = pose, settings
        self.reset()

    def reset(self) -> None:
        """Forget the past."""
        self.active = False
        """Whether the body goes on from before a gap."""
        self._usual_velocity: Triple = (0.0, 0.0, 0.0)
        self._usual_turn_rate = 0.0
        self._unobserved_s = 0.0
        """Time for which the network has seen nothing."""
        self._gap_s = 0.0
        """The part of it without any sample."""

    def remember(self, velocity: Triple, turn_rate: float, dt: float) -> None:
        """Take in the motion of one step: body velocity (m/s) and turn rate (rad/s) over ``dt`` (s)."""
        weight = dt / (_USUAL_MOTION_S + dt)
        (ux, uy, uz), (vx, vy, vz) = self._usual_velocity, velocity
        self._usual_velocity = (ux + weight * (vx - ux), uy + weight * (vy - uy), uz + weight * (vz - uz))
        self._usual_turn_rate += weight * (turn_rate - self._usual_turn_rate)

    def bridge(self, dt: float) -> None:
        """Samples were lost for ``dt`` (s), and what lies between is interpolated."""
        self._pose.widen(*self._unseen_motion(dt, dt))

    def begin(self, dt: float, running: bool) -> None:
        """Nothing came for ``dt`` (s): the window starts anew.

        Args:
            dt: s.
            running: whether the network had a state; else this gap follows another one, or a start.
        """
        if running:
            self.active = True
            self._unobserved_s = self._gap_s = 0.0
        # The interval of the first sample after the gap counts in `wait`; here the heading's part of it.
        self._gap_s += dt

    def wait(self, dt: float, gyro: FloatArray) -> float:
        """Another ``dt`` (s) has gone by while the window fills, with a gyro reading (3,), rad/s.

        After a gap the body goes on as before; what the gyro tells is taken instead of the turn rate.

        Returns:
            What is left of the velocity, 0 to 1.
        """
        self._unobserved_s += dt
        if not self.active:
            return 1.0
        settings = self._settings
        faded = math.exp(-dt / settings.coast_time)
        effective = settings.coast_time * (1.0 - faded)
        vx, vy, vz = self._usual_velocity
        if dt > settings.max_gap:
            rotation = (0.0, 0.0, self._usual_turn_rate * effective)
        else:
            x, y, z = gyro.tolist()
            rotation = (x * dt, y * dt, z * dt)
        self._pose.shift((vx * effective, vy * effective, vz * effective), rotation)
        self._usual_velocity = (vx * faded, vy * faded, vz * faded)
        self._usual_turn_rate *= faded
        return faded

    @property
    def level_anew(self) -> bool:
        """Whether roll and pitch are to be taken from gravity at the end of this gap."""
        return self._gap_s > self._settings.level_after

    def end(self) -> None:
        """The window is full again: say how far the body may be from where it was taken to be."""
        self._pose.widen(*self._unseen_motion(self._unobserved_s, self._gap_s))
        self.active = False

    def _unseen_motion(self, unobserved_s: float, gap_s: float) -> tuple[float, float]:
        """Deviation of position (m) and heading (rad) over a time without samples; the heading's is without gyro."""
        settings = self._settings
        position = _unseen(unobserved_s, settings.unseen_acceleration, settings.unseen_speed)
        heading = _unseen(gap_s, settings.unseen_turn_acceleration, settings.unseen_turn_rate)
        return position, min(heading, math.pi)


def _unseen(seconds: float, change: float, most: float) -> float:
    """How far a motion may lead whose rate changes by ``change`` a second and ``most`` in all, unseen."""
    until = min(seconds, most / change) if change > 0 else 0.0
    return change * until * until / 2 + change * until * (seconds - until)
