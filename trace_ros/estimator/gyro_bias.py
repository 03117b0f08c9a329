"""The gyroscope's bias, read while the robot stands still: whatever a gyro shows then is bias."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trace_ros.estimator.recurrence import recurrence

FloatArray = NDArray[np.float64]


class GyroBias:
    """A mean of the readings at rest: of all of them at first, later of those of the last ``memory`` seconds at rest.

    The bias drifts with temperature, so old readings fade; noise asks for a long mean. It stays while the robot moves.
    """

    def __init__(self, memory_s: float) -> None:
        """Begin without bias.

        Args:
            memory_s: time at rest, s, over which readings are averaged; 0 leaves every reading as it is.
        """
        self._memory_s = memory_s
        self.reset()

    def reset(self) -> None:
        """Forget the past."""
        self.value: FloatArray = np.zeros(3)
        """(3,) rad/s, body frame."""
        self._rested_s = 0.0

    def update(self, angular_velocity: NDArray[np.floating], still: bool, dt: float) -> FloatArray:
        """Take in a reading.

        Args:
            angular_velocity: (3,) rad/s, body frame.
            still: whether the robot stands still.
            dt: s since the reading before.

        Returns:
            (3,) The reading without the bias, rad/s.
        """
        if still and self._memory_s > 0:
            self._rested_s += dt
            self.value = self.value + min(1.0, dt / min(self._memory_s, self._rested_s)) * (
                angular_velocity - self.value
            )
        return angular_velocity - self.value


def gyro_biases(angular_velocity: FloatArray, still: NDArray[np.bool_], dt: FloatArray, memory_s: float) -> FloatArray:
    """What `GyroBias` holds after each of many readings. ``-> (M, 3)`` rad/s.

    Args:
        angular_velocity: (M, 3) rad/s.
        still: (M,) whether the robot stands still.
        dt: (M,) s since the reading before.
        memory_s: see `GyroBias`.
    """
    if memory_s <= 0 or not still.any():
        return np.zeros_like(angular_velocity)
    rested = np.cumsum(np.where(still, dt, 0.0))
    # Before the first rest nothing is divided by.
    gain = np.where(still, np.minimum(1.0, dt / np.minimum(np.where(still, rested, 1.0), memory_s)), 0.0)
    return recurrence(1.0 - gain, gain[:, None] * angular_velocity)
