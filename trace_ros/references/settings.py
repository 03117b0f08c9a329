"""What is known of a reference beforehand, and the limits that its cleaning goes by."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from scipy.spatial.transform import Rotation

FloatArray = NDArray[np.float64]
Positive = Annotated[float, Field(gt=0)]
Triple = tuple[float, float, float]

_STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class RigidOffset(BaseModel):
    """Pose in the base frame of the body that the reference follows: a LiDAR, a marker set, an antenna.

    Attributes:
        position: m.
        rpy: rad; roll, pitch, yaw about fixed axes, as in a URDF.
    """

    model_config = _STRICT
    position: Triple = (0.0, 0.0, 0.0)
    rpy: Triple = (0.0, 0.0, 0.0)

    @property
    def rotation(self) -> Rotation:
        """Takes vectors of the reference's body to the base."""
        return Rotation.from_euler("xyz", self.rpy)


class ReferenceSettings(BaseModel):
    """How a reference is cleaned.

    Attributes:
        clock_offset: s to add to the reference's stamps, where it is known; None: estimated.
        offset: pose of the reference's body in the base, where it is known; None: estimated.
        max_clock_offset: s; largest offset that is looked for, as long as the stamps overlap at all.
        span: s; time over which rotations of reference and gyro are compared. A reference of a slower rate is
            compared from pose to pose.
        max_gap: s; no interpolation between poses further apart.
        jump: m; smallest step of the position that can count as a jump (noise raises the limit).
        jump_angle: rad; the same for the orientation, against the gyro.
        min_segment: s; shorter pieces between cuts are dropped.
        stuck: s; poses that repeat for so long, bit for bit, while the gyro turns, are dropped.
        significance: an estimated rotation, position or tilt of the world counts when it is as many standard deviations
            away from nothing, and is left alone otherwise.
        least_turn: rad; a smaller rotation of the reference's body is left alone, however certain: by as much an IMU is
            turned itself, as in training, and the base is where the estimate is wanted.
        least_angle: rad; the same of the tilt of the world.
        least_position: m; likewise.
        max_speed: m/s; a reference that is usually faster is in other units than metres, or not of a legged robot.
        level_world: whether the world frame is turned so that gravity points down its z axis.
    """

    model_config = _STRICT
    clock_offset: float | None = None
    offset: RigidOffset | None = None
    max_clock_offset: Positive = 2.0
    span: Positive = 0.1
    max_gap: Positive = 0.25
    jump: Positive = 0.1
    jump_angle: Positive = 0.1
    min_segment: Positive = 1.0
    stuck: Positive = 0.3
    significance: Positive = 4.0
    least_turn: Positive = 0.02
    least_angle: Positive = 0.01
    least_position: Positive = 0.02
    max_speed: Positive = 10.0
    level_world: bool = True
