"""The ZUPT-inspired clamp of the paper: when the robot stands still, the predicted motion is set to zero.

The paper gives the test (small angular and joint velocities, acceleration close to gravity) without numbers; the
thresholds are ours and belong to the robot file.
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

    def reset(self) -> None:
        """Forget the past: the dwell time starts anew."""
        self._still_since_ns = None

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
        wx, wy, wz = angular_velocity.tolist()
        ax, ay, az = linear_acceleration.tolist()
        still = (
            math.sqrt(wx * wx + wy * wy + wz * wz) < limits.angular_velocity
            and abs(math.sqrt(ax * ax + ay * ay + az * az) - GRAVITY) < limits.acceleration
            and max(map(abs, joint_velocity.tolist())) < limits.joint_velocity
        )
        if not still:
            self._still_since_ns = None
            return False
        if self._still_since_ns is None:
            self._still_since_ns = stamp_ns
        return stamp_ns - self._still_since_ns >= self._dwell_ns
