"""Joint velocity of robots that report none: positions, differentiated and low-passed.

The estimator runs it sample by sample, training over whole logs, so that both see the same signal.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trace_ros.estimator.observation import MAX_GAP_S

FloatArray = NDArray[np.float64]

_CUTOFF_HZ = 50.0
"""Of the first-order low-pass; about the bandwidth of a motor driver's own."""


class JointDifferentiator:
    """Takes joint positions one after the other and tells their velocity; zero where there is nothing to tell it from.

    That is at the first position, and after a gap of more than `MAX_GAP_S`.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the past: the next position is a first one."""
        self._position: FloatArray | None = None
        self._velocity: FloatArray | None = None

    def update(self, position: FloatArray, dt: float) -> FloatArray:
        """Velocity at a position.

        Args:
            position: (n,) rad; copied.
            dt: s since the previous one; not read at a first one.

        Returns:
            (n,) rad/s, an array of its own.
        """
        if self._position is None or self._velocity is None or dt > MAX_GAP_S:
            velocity = np.zeros(len(position))
        else:
            raw = (position - self._position) / dt
            weight = 1.0 - np.exp(-2 * np.pi * _CUTOFF_HZ * dt)
            velocity = self._velocity + weight * (raw - self._velocity)
        self._position = np.array(position)
        self._velocity = velocity
        return velocity


def differentiate(stamp_ns: NDArray[np.int64], position: FloatArray) -> FloatArray:
    """What `JointDifferentiator` makes of a whole log. ``(N,) ns, (N, n) rad -> (N, n) rad/s``."""
    differentiator = JointDifferentiator()
    velocity = np.empty(position.shape)
    for index, dt in enumerate(np.diff(stamp_ns, prepend=stamp_ns[:1]) * 1e-9):
        velocity[index] = differentiator.update(position[index], dt)
    return velocity
