"""Where a rollout happens on its ground: so that the robot stays on it, whatever it is told and whoever pushes it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trace_ros.sim.terrain import Terrain

FloatArray = NDArray[np.float64]

# A policy with a large action scale walks up to 12 % faster than it is told (measured with the Go2's): part of the way
# that is added for it. Besides, room for pushes (m).
_OVERSPEED = 0.2
_MARGIN = 1.0


def farthest_reach(limits: FloatArray, duration: float) -> float:
    """How far from its start a robot can get (m) by commands within ``limits`` (vx, vy in m/s, wz) in ``duration`` (s),
    with margins for walking faster than told and for pushes."""
    return (1 + _OVERSPEED) * float(np.linalg.norm(limits[:2])) * duration + _MARGIN


@dataclass(frozen=True)
class CommandedWay:
    """The rectangle (world axes) that a robot at the origin covers when it does exactly as it is told.

    Attributes:
        low, high: (2,) m.
    """

    low: FloatArray
    high: FloatArray

    @classmethod
    def of(cls, commands: FloatArray, yaw: float, rate_hz: float) -> CommandedWay:
        """From commands (T, 3) vx, vy (m/s), wz (rad/s) at ``rate_hz``, and the heading at the start (rad)."""
        heading = yaw + np.concatenate(([0.0], np.cumsum(commands[:, 2])[:-1])) / rate_hz
        cos, sin = np.cos(heading), np.sin(heading)
        steps = np.column_stack(
            (cos * commands[:, 0] - sin * commands[:, 1], sin * commands[:, 0] + cos * commands[:, 1])
        )
        way = np.vstack((np.zeros((1, 2)), np.cumsum(steps, axis=0) / rate_hz))
        return cls(way.min(axis=0), way.max(axis=0))

    @property
    def half_extent(self) -> float:
        """How far from the middle of the way a robot may come along x or y (m): half the longer side, with margins."""
        return (0.5 + _OVERSPEED) * float((self.high - self.low).max()) + _MARGIN

    def start_on(self, terrain: Terrain) -> FloatArray:
        """Where to start, (2,) m, so that the middle of the way is the middle of the ground. On stairs it is the middle
        itself: its landing is level."""
        if terrain.kind == "stairs":
            return np.zeros(2)
        start: FloatArray = -(self.low + self.high) / 2
        return start
