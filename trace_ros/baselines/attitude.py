"""Roll and pitch as an IMU reports them: the gyro's, pulled to gravity."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from trace_ros.geometry import GRAVITY

TIME_CONSTANT_S = 5.0
"""By which gravity corrects roll and pitch (our choice, as in the plain leg odometry)."""
STEADY_FORCE = 1.0
"""Deviation of the specific force from gravity at which it counts half, m/s^2."""


class GravityTilt:
    """A complementary filter on the direction of gravity. Plain floats, as for the pose: arrays of three cost more."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start anew, level."""
        self._x, self._y, self._z = 0.0, 0.0, 1.0
        self._passed_s = 0.0

    def update(self, gyro: list[float], accel: list[float], dt: float) -> tuple[float, float]:
        """Take in a reading, ``dt`` (s) after the one before.

        Args:
            gyro: angular velocity, rad/s, body frame.
            accel: specific force, m/s^2, body frame.
            dt: s.

        Returns:
            Roll and pitch, rad.
        """
        wx, wy, wz = gyro
        ax, ay, az = accel
        x, y, z = self._x, self._y, self._z
        # The world's vertical, seen from the body, turns against the body.
        x, y, z = x + (y * wz - z * wy) * dt, y + (z * wx - x * wz) * dt, z + (x * wy - y * wx) * dt
        norm = math.sqrt(ax * ax + ay * ay + az * az)
        if norm > 1e-6 and dt > 0:
            excess = (norm - GRAVITY) / STEADY_FORCE
            # A mean of all readings at first: what came first counts no more than the rest.
            time_constant = min(TIME_CONSTANT_S, self._passed_s + dt)
            gain = min(1.0, dt / (time_constant * (1.0 + excess * excess)))
            x += gain * (ax / norm - x)
            y += gain * (ay / norm - y)
            z += gain * (az / norm - z)
        length = math.sqrt(x * x + y * y + z * z)
        if length > 1e-6:  # else two readings of opposite directions have cancelled: the last direction stays
            self._x, self._y, self._z = x / length, y / length, z / length
        self._passed_s += dt
        return math.atan2(self._y, self._z), math.asin(max(-1.0, min(1.0, -self._x)))


def reported_tilt(
    gyro: NDArray[np.floating], accel: NDArray[np.floating], dt: NDArray[np.floating]
) -> NDArray[np.float32]:
    """What `GravityTilt` makes of a whole log.

    Args:
        gyro: (N, 3) rad/s.
        accel: (N, 3) m/s^2.
        dt: (N,) s, before each sample.

    Returns:
        (N, 2) roll and pitch, rad.
    """
    filtered = GravityTilt()
    readings = zip(gyro.tolist(), accel.tolist(), dt.tolist(), strict=True)
    return np.array([filtered.update(*reading) for reading in readings], dtype=np.float32).reshape(-1, 2)
