"""From motion increments to a pose with covariance.

Plain floats carry the pose: on vectors of three or four numbers, array calls would cost more than the arithmetic.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from trace_ros.estimator.error_model import ErrorModel, PoseCovariance, TwistDeviation

__all__ = ["ErrorModel", "PoseIntegrator"]

FloatArray = NDArray[np.float64]


class PoseIntegrator:
    """Composes displacement and rotation increments into a pose, and carries its covariance and that of the twist.

    See `trace_ros.estimator.error_model` for what the covariance is made of.
    """

    def __init__(self, error_model: ErrorModel | None = None) -> None:
        model = error_model or ErrorModel()
        self._covariance = PoseCovariance(model)
        self._twist = TwistDeviation(model)
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
        self._covariance.reset()
        self._twist.reset()

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

    @property
    def upward(self) -> tuple[float, float, float]:
        """Unit vector along the fixed z axis, in the body frame."""
        x, y, z, w = self._qx, self._qy, self._qz, self._qw
        return 2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)

    @property
    def covariance(self) -> FloatArray:
        """(6, 6): x, y, z, rotation about X, Y, Z, fixed axes (REP-103); m^2, m rad, rad^2. A copy."""
        return self._covariance.matrix(*self._heading())

    @property
    def twist_covariance(self) -> FloatArray:
        """(6, 6), body frame: linear x, y, z, angular x, y, z; m^2/s^2 and rad^2/s^2. A copy."""
        return self._twist.matrix()

    def advance(
        self,
        displacement: tuple[float, float, float],
        rotation: tuple[float, float, float],
        dt: float,
        doubt: float = 0.0,
    ) -> tuple[float, float, float]:
        """Move by one increment.

        Args:
            displacement: m, in the body frame before the motion.
            rotation: rotation vector (rad) from the body frame before to the one after the motion.
            dt: s, time that the increment covers.
            doubt: share of the network's attention that is on no leg, 0 to 1.

        Returns:
            The displacement in the fixed frame.
        """
        self._twist.move(displacement, rotation, dt, doubt)
        moved = self._rotate(*displacement)
        self._covariance.propagate(*self._heading(), moved, self._twist.linear, dt)
        self._x += moved[0]
        self._y += moved[1]
        self._z += moved[2]
        self._turn(*rotation)
        return moved

    def stay(
        self,
        displacement: tuple[float, float, float],
        rotation: tuple[float, float, float],
        dt: float,
        doubt: float = 0.0,
    ) -> None:
        """Take in an increment for the twist's covariance alone: the pose is that after it. Arguments as of `advance`.

        With the estimate that follows a start or a gap, the pose is taken as it stands.
        """
        self._twist.move(displacement, rotation, dt, doubt)

    def hold(self) -> None:
        """Stand still: the pose and its covariance stay, the twist is zero but for what a robot that stands sways."""
        self._twist.hold()

    def shift(self, displacement: tuple[float, float, float], rotation: tuple[float, float, float]) -> None:
        """Move the pose by a motion that was not seen (arguments as of `advance`); `widen` says how sure it is."""
        x, y, z = self._rotate(*displacement)
        self._x += x
        self._y += y
        self._z += z
        self._turn(*rotation)

    def ahead(
        self, displacement: tuple[float, float, float], rotation: tuple[float, float, float]
    ) -> tuple[tuple[float, float, float], tuple[float, float, float, float]]:
        """Position and orientation after a motion (arguments as of `advance`), which is not made."""
        kept = self._x, self._y, self._z, self._qx, self._qy, self._qz, self._qw
        self.shift(displacement, rotation)
        reached = self.position, self.orientation
        self._x, self._y, self._z, self._qx, self._qy, self._qz, self._qw = kept
        return reached

    def rise(self, height: float) -> None:
        """Correct the position upward, m."""
        self._z += height

    def level(self, roll: float, pitch: float) -> None:
        """Set roll and pitch (rad, fixed axes X and Y), where gravity tells them; the heading stays."""
        cosine, sine = self._heading()
        half = math.atan2(sine, cosine) / 2
        cy, sy = math.cos(half), math.sin(half)
        cr, sr = math.cos(roll / 2), math.sin(roll / 2)
        cp, sp = math.cos(pitch / 2), math.sin(pitch / 2)
        self._qx = sr * cp * cy - cr * sp * sy
        self._qy = cr * sp * cy + sr * cp * sy
        self._qz = cr * cp * sy - sr * sp * cy
        self._qw = cr * cp * cy + sr * sp * sy

    def widen(self, position_sigma: float, yaw_sigma: float = 0.0) -> None:
        """Add to the uncertainty of the position (m, each axis) and the heading (rad): for motion that was not seen."""
        self._covariance.widen(position_sigma * position_sigma, yaw_sigma * yaw_sigma)

    def _heading(self) -> tuple[float, float]:
        """Cosine and sine of the heading; of zero when the nose points straight up or down."""
        x, y, z, w = self._qx, self._qy, self._qz, self._qw
        cosine, sine = 1 - 2 * (y * y + z * z), 2 * (w * z + x * y)
        norm = math.sqrt(cosine * cosine + sine * sine)
        return (cosine / norm, sine / norm) if norm > 1e-9 else (1.0, 0.0)

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
