"""From motion increments to a pose with covariance.

Plain floats carry the pose: on vectors of three or four numbers, array calls would cost more than the arithmetic.
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

FloatArray = NDArray[np.float64]
NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]


class ErrorModel(BaseModel):
    """How fast the pose becomes uncertain, and how uncertain the twist is. One standard deviation each.

    Attributes:
        position_per_sqrt_metre: growth of the position error with distance travelled, m/sqrt(m), each axis.
        position_per_sqrt_second: growth of the position error with time, m/sqrt(s), each axis; not in standing.
        yaw_per_sqrt_second: growth of the heading error, rad/sqrt(s); not while standing still.
        tilt: stationary error of roll and pitch, rad; they are observable through gravity, so the error stays bounded.
        tilt_time_constant: s; how fast an error of roll and pitch is forgotten.
        linear_velocity: error of the body velocity, m/s, each axis.
        angular_velocity: error of the body's angular velocity, rad/s, each axis.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    position_per_sqrt_metre: Positive = 0.05
    position_per_sqrt_second: Positive = 0.005
    yaw_per_sqrt_second: Positive = 0.01
    tilt: Positive = 0.02
    tilt_time_constant: Positive = 5.0
    linear_velocity: Positive = 0.05
    angular_velocity: Positive = 0.03


class PoseIntegrator:
    """Composes displacement and rotation increments into a pose, and carries its covariance.

    The covariance belongs to the error ``(dp, dtheta)`` in the fixed frame, in the order of REP-103: x, y, z, rotation
    about X, Y, Z. A heading error turns all later displacement, hence the first-order propagation
    ``dp' = dp - [R displacement]x dtheta``.
    """

    # Numerically never exactly singular, also right after a pose was set.
    _INITIAL_POSITION = 1e-3
    _INITIAL_YAW = 1e-3

    def __init__(self, error_model: ErrorModel | None = None) -> None:
        self._model = error_model or ErrorModel()
        self._transition = np.eye(6)
        self._scratch = np.empty((6, 6))
        self.covariance: FloatArray = np.empty((6, 6))
        """(6, 6); a buffer that the next call changes."""
        twist = [self._model.linear_velocity**2] * 3 + [self._model.angular_velocity**2] * 3
        self.twist_covariance: FloatArray = np.diag(twist)
        """(6, 6), body frame: linear x, y, z, angular x, y, z."""
        self.set_pose((0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0))

    def set_pose(self, position: tuple[float, float, float], orientation: tuple[float, float, float, float]) -> None:
        """Put the body at a position (m) and orientation (quaternion x, y, z, w, any norm but zero).

        Raises:
            ValueError: not finite, or a quaternion of norm zero.
        """
        norm = math.sqrt(sum(value * value for value in orientation))
        if not (math.isfinite(norm) and norm > 1e-6 and all(map(math.isfinite, position))):
            raise ValueError(f"not a pose: position {position}, orientation {orientation}")
        self._x, self._y, self._z = position
        self._qx, self._qy, self._qz, self._qw = (value / norm for value in orientation)
        tilt = self._model.tilt**2
        np.fill_diagonal(self._clear(), [self._INITIAL_POSITION**2] * 3 + [tilt, tilt, self._INITIAL_YAW**2])

    def _clear(self) -> FloatArray:
        self.covariance[:] = 0.0
        return self.covariance

    @property
    def position(self) -> tuple[float, float, float]:
        """m, fixed frame."""
        return self._x, self._y, self._z

    @property
    def orientation(self) -> tuple[float, float, float, float]:
        """Quaternion x, y, z, w, body to fixed frame."""
        return self._qx, self._qy, self._qz, self._qw

    @property
    def roll_pitch(self) -> tuple[float, float]:
        """rad, fixed axes X and Y."""
        x, y, z, w = self._qx, self._qy, self._qz, self._qw
        roll = math.atan2(2 * (w * x + y * z), 1 - 2 * (x * x + y * y))
        pitch = math.asin(max(-1.0, min(1.0, 2 * (w * y - z * x))))
        return roll, pitch

    def advance(
        self, displacement: tuple[float, float, float], rotation: tuple[float, float, float], dt: float
    ) -> None:
        """Move by one increment.

        Args:
            displacement: m, in the body frame before the motion.
            rotation: rotation vector (rad) from the body frame before to the one after the motion.
            dt: s, time that the increment covers.
        """
        dx, dy, dz = self._rotate(*displacement)
        self._x += dx
        self._y += dy
        self._z += dz
        self._turn(*rotation)
        self._propagate(dx, dy, dz, dt)

    def widen(self, position_sigma: float) -> None:
        """Add to the position's uncertainty (m, each axis): for motion that was not observed."""
        for axis in range(3):
            self.covariance[axis, axis] += position_sigma * position_sigma

    def _rotate(self, x: float, y: float, z: float) -> tuple[float, float, float]:
        """Body vector to the fixed frame: v + 2 w (u x v) + 2 u x (u x v)."""
        ux, uy, uz, w = self._qx, self._qy, self._qz, self._qw
        tx = 2 * (uy * z - uz * y)
        ty = 2 * (uz * x - ux * z)
        tz = 2 * (ux * y - uy * x)
        return (
            x + w * tx + uy * tz - uz * ty,
            y + w * ty + uz * tx - ux * tz,
            z + w * tz + ux * ty - uy * tx,
        )

    def _turn(self, rx: float, ry: float, rz: float) -> None:
        """Right-multiply the orientation by the exponential of a rotation vector, and normalise."""
        angle = math.sqrt(rx * rx + ry * ry + rz * rz)
        scale = 0.5 - angle * angle / 48 if angle < 1e-4 else math.sin(angle / 2) / angle
        bx, by, bz, bw = scale * rx, scale * ry, scale * rz, math.cos(angle / 2)
        ax, ay, az, aw = self._qx, self._qy, self._qz, self._qw
        x = aw * bx + ax * bw + ay * bz - az * by
        y = aw * by - ax * bz + ay * bw + az * bx
        z = aw * bz + ax * by - ay * bx + az * bw
        w = aw * bw - ax * bx - ay * by - az * bz
        norm = math.sqrt(x * x + y * y + z * z + w * w)
        self._qx, self._qy, self._qz, self._qw = x / norm, y / norm, z / norm, w / norm

    def _propagate(self, dx: float, dy: float, dz: float, dt: float) -> None:
        model, transition = self._model, self._transition
        keep = math.exp(-dt / model.tilt_time_constant)
        transition[0, 4], transition[0, 5] = dz, -dy
        transition[1, 3], transition[1, 5] = -dz, dx
        transition[2, 3], transition[2, 4] = dy, -dx
        transition[3, 3] = transition[4, 4] = keep
        np.matmul(transition, self.covariance, out=self._scratch)
        np.matmul(self._scratch, transition.T, out=self.covariance)
        distance = math.sqrt(dx * dx + dy * dy + dz * dz)
        position = model.position_per_sqrt_metre**2 * distance + model.position_per_sqrt_second**2 * dt
        tilt = model.tilt**2 * (1 - keep * keep)
        covariance = self.covariance
        covariance[0, 0] += position
        covariance[1, 1] += position
        covariance[2, 2] += position
        covariance[3, 3] += tilt
        covariance[4, 4] += tilt
        covariance[5, 5] += model.yaw_per_sqrt_second**2 * dt
        # Rounding leaves the two triangles a few ulps apart; consumers test for symmetry.
        np.add(covariance, covariance.T, out=self._scratch)
        np.multiply(self._scratch, 0.5, out=covariance)
