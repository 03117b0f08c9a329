"""The ZUPT-inspired clamp of the paper: when the robot stands still, the predicted motion is set to zero.

The paper gives the test (small angular and joint velocities, acceleration close to gravity) without numbers; the
thresholds are ours and belong to the robot file. So is the low-pass before the test: one noisy reading of the 18 would
otherwise break the dwell time of a robot that stands.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from trace_ros.geometry import GRAVITY
from trace_ros.robot import StationaryThresholds


class StationaryDetector:
    """Tells standing still from moving, sample by sample; standing counts only after the dwell time."""

    def __init__(self, thresholds: StationaryThresholds) -> None:
        self._thresholds = thresholds
        self._dwell_ns = round(thresholds.dwell * 1e9)
        self._still_since_ns: int | None = None
        self._smoothed: NDArray[np.float64] | None = None
        self._last_ns = 0

    def reset(self) -> None:
        """Forget the past: the dwell time starts anew."""
        self._still_since_ns = None
        self._smoothed = None

    def _smooth(self, stamp_ns: int, readings: NDArray[np.float64]) -> list[float]:
        """First-order low-pass that starts at the first readings."""
        if self._smoothed is None or self._thresholds.smoothing == 0:
            self._smoothed = readings
        else:
            weight = 1.0 - math.exp(-(stamp_ns - self._last_ns) * 1e-9 / self._thresholds.smoothing)
            self._smoothed = self._smoothed + weight * (readings - self._smoothed)
        self._last_ns = stamp_ns
        smoothed: list[float] = self._smoothed.tolist()
        return smoothed

    def update(
        self,
        stamp_ns: int,
        angular_velocity: NDArray[np.floating],
        linear_acceleration: NDArray[np.floating],
        joint_velocity: NDArray[np.floating],
    ) -> bool:
        """Whether the robot has stood still for the dwell time.

        Args:
            stamp_ns: ns.
            angular_velocity: (3,) rad/s.
            linear_acceleration: (3,) specific force, m/s^2.
            joint_velocity: (12,) rad/s, measured or differentiated.
        """
        limits = self._thresholds
        readings = np.concatenate((angular_velocity, linear_acceleration, joint_velocity), dtype=np.float64)
        wx, wy, wz, ax, ay, az, *joints = self._smooth(stamp_ns, readings)
        still = (
            math.sqrt(wx * wx + wy * wy + wz * wz) < limits.angular_velocity
            and abs(math.sqrt(ax * ax + ay * ay + az * az) - GRAVITY) < limits.acceleration
            and max(map(abs, joints)) < limits.joint_velocity
        )
        if not still:
            self._still_since_ns = None
            return False
        if self._still_since_ns is None:
            self._still_since_ns = stamp_ns
        return stamp_ns - self._still_since_ns >= self._dwell_ns
