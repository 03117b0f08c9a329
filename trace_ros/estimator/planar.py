"""An estimate as a robot on flat ground would have it: for consumers that know x, y and heading only."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trace_ros.geometry import roll_pitch_yaw

if TYPE_CHECKING:  # the estimator brings torch
    from trace_ros.estimator.estimator import Estimate

FloatArray = NDArray[np.float64]

PLANAR_VARIANCE = 1e-6
"""Of what is zero by definition (m^2, rad^2 and their squares per second): small, yet invertible."""

_KEPT = np.ix_((0, 1, 5), (0, 1, 5))


def planar(estimate: Estimate) -> Estimate:
    """Without height, roll and pitch: pose and twist of the body's projection on the ground.

    The child frame is then level, with the body's heading. Velocities are turned into it, not cut off: a body that
    climbs a slope at 1 m/s moves at less than that on the map.
    """
    x, y, z, w = estimate.orientation.tolist()
    yaw = float(roll_pitch_yaw(estimate.orientation)[2])
    to_level = _about_z(-yaw) @ np.array(
        (
            (1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)),
            (2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)),
            (2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)),
        )
    )
    velocity = to_level @ estimate.velocity
    turning = to_level @ estimate.angular_velocity
    both = np.zeros((6, 6))
    both[:3, :3] = both[3:, 3:] = to_level
    return replace(
        estimate,
        position=np.array((estimate.position[0], estimate.position[1], 0.0)),
        orientation=np.array((0.0, 0.0, math.sin(yaw / 2), math.cos(yaw / 2))),
        velocity=np.array((velocity[0], velocity[1], 0.0)),
        angular_velocity=np.array((0.0, 0.0, turning[2])),
        pose_covariance=_planar_covariance(estimate.pose_covariance),
        twist_covariance=_planar_covariance(both @ estimate.twist_covariance @ both.T),
    )


def _about_z(angle: float) -> FloatArray:
    c, s = math.cos(angle), math.sin(angle)
    return np.array(((c, -s, 0.0), (s, c, 0.0), (0.0, 0.0, 1.0)))


def _planar_covariance(covariance: FloatArray) -> FloatArray:
    result = PLANAR_VARIANCE * np.eye(6)
    result[_KEPT] = covariance[_KEPT]
    return result
