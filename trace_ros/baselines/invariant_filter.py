"""A right-invariant extended Kalman filter on IMU and standing feet, with biases.

Hartley, Ghaffari, Eustice and Grizzle, "Contact-aided invariant extended Kalman filtering for robot state estimation",
IJRR 39(4), 2020. State: rotation R, velocity v and position p of the IMU in the world, a point d for each foot that
stands, gyro and accelerometer biases. Error: ``eta = X_hat X^-1 = Exp(xi)``, in the world frame.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from trace_ros.baselines.config import FilterNoise, FilterPrior
from trace_ros.geometry import GRAVITY, skew
from trace_ros.logs import LEGS

FloatArray = NDArray[np.float64]

ROTATION, VELOCITY, POSITION = slice(0, 3), slice(3, 6), slice(6, 9)
FEET = slice(9, 9 + 3 * LEGS)
GYRO_BIAS, ACCEL_BIAS = slice(FEET.stop, FEET.stop + 3), slice(FEET.stop + 3, FEET.stop + 6)
SIZE = ACCEL_BIAS.stop
"""Of the error: rotation, velocity, position, four feet, gyro bias, accelerometer bias."""

_EYE = np.eye(3)
_GRAVITY = np.array([0.0, 0.0, -GRAVITY])
_GRAVITY_HAT = skew(_GRAVITY)
_SMALL_ANGLE = 0.05


def rotation_integrals(rotation_vector: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """``Exp(phi)``, and its integral and double integral over a path from zero: (3, 3) each.

    ``integral_0^1 Exp(s phi) ds`` (the left Jacobian) and ``integral_0^1 integral_0^s Exp(r phi) dr ds``.
    """
    x, y, z = rotation_vector.tolist()
    hat = np.array(((0.0, -z, y), (z, 0.0, -x), (-y, x, 0.0)))
    square = hat @ hat
    s = x * x + y * y + z * z
    angle = math.sqrt(s)
    if angle < _SMALL_ANGLE:  # the closed forms lose digits to cancellation; the next terms are below 1e-16
        a = 1 - s / 6 * (1 - s / 20 * (1 - s / 42))
        b = (1 - s / 12 * (1 - s / 30 * (1 - s / 56))) / 2
        c = (1 - s / 20 * (1 - s / 42 * (1 - s / 72))) / 6
        d = (1 - s / 30 * (1 - s / 56 * (1 - s / 90))) / 24
    else:
        a = math.sin(angle) / angle
        b = (1 - math.cos(angle)) / s
        c = (1 - a) / s
        d = (0.5 - b) / s
    return _EYE + a * hat + b * square, _EYE + b * hat + c * square, _EYE / 2 + c * hat + d * square


def quaternion(rotation: FloatArray) -> FloatArray:
    """(4,) x, y, z, w of a (3, 3) rotation, w not negative. Scipy's also mends what is no rotation, at ten times the
    cost of this."""
    (a, b, c), (d, e, f), (g, h, i) = rotation.tolist()
    # Four times the squares of w, x, y, z; the largest is safe to divide by.
    squares = 1 + a + e + i, 1 + a - e - i, 1 - a + e - i, 1 - a - e + i
    largest = squares.index(max(squares))
    products = (
        (squares[0], h - f, c - g, d - b),
        (h - f, squares[1], b + d, c + g),
        (c - g, b + d, squares[2], f + h),
        (d - b, c + g, f + h, squares[3]),
    )[largest]
    scale = math.copysign(0.5 / math.sqrt(squares[largest]), products[0])
    w, x, y, z = (scale * product for product in products)
    return np.array((x, y, z, w))


class InvariantFilter:
    """State and covariance, and what moves them.

    All four feet have their place in the error; that of a foot that does not stand holds nothing: its point is zero,
    and its rows of the covariance are those of an unrelated unit variable. So a foot can come and go without a change
    of size, and the numbers are those of a filter that adds and drops it.
    """

    def __init__(self, noise: FilterNoise, prior: FilterPrior) -> None:
        self._noise = noise
        self._prior = prior
        self._transition = np.eye(SIZE)
        self._bias_column = np.zeros((SIZE, 3))
        self._bias_column[ROTATION] = _EYE
        self._diffusion = np.zeros(SIZE)
        self.rotation = np.eye(3)
        """(3, 3), body to world."""
        self.points = np.zeros((3, 2 + LEGS))
        """(3, 6): columns velocity (m/s), position (m) and the four feet (m), world frame."""
        self.gyro_bias = np.zeros(3)
        """rad/s, body frame."""
        self.accel_bias = np.zeros(3)
        """m/s^2, body frame."""
        self.standing = np.zeros(LEGS, dtype=np.bool_)
        """(4,) which feet are in the state."""
        self.covariance: FloatArray = np.eye(SIZE)
        """(27, 27) of the error."""
        self.begin(np.eye(3), np.zeros(3), 0.0)

    @property
    def velocity(self) -> FloatArray:
        """(3,) m/s, world frame."""
        return self.points[:, 0]

    @property
    def position(self) -> FloatArray:
        """(3,) m, world frame."""
        return self.points[:, 1]

    @property
    def feet(self) -> FloatArray:
        """(4, 3) m, world frame; zero for feet that do not stand."""
        return self.points[:, 2:].T

    def begin(
        self, rotation: FloatArray, position: FloatArray, position_sigma: float, heading_sigma: float = 0.0
    ) -> None:
        """Start at a pose with zero velocity, and the biases as they are; no foot stands.

        Args:
            rotation: (3, 3) body to world.
            position: (3,) m.
            position_sigma: m, on top of the prior's.
            heading_sigma: rad, the same.
        """
        prior = self._prior
        self.rotation = np.array(rotation)
        self.points = np.zeros((3, 2 + LEGS))
        self.points[:, 1] = position
        self.standing = np.zeros(LEGS, dtype=np.bool_)
        variance = np.ones(SIZE)
        variance[ROTATION] = prior.tilt**2, prior.tilt**2, prior.yaw**2 + heading_sigma**2
        variance[VELOCITY] = prior.velocity**2
        variance[POSITION] = prior.position**2 + position_sigma**2
        variance[GYRO_BIAS] = prior.gyro_bias**2
        variance[ACCEL_BIAS] = prior.accel_bias**2
        covariance = np.diag(variance)
        # The prior belongs to the position itself, whose error is xi_p + xi_R x p (see `pose_covariance`).
        lever = skew(self.position)
        covariance[POSITION, ROTATION] = lever @ covariance[ROTATION, ROTATION]
        covariance[ROTATION, POSITION] = covariance[POSITION, ROTATION].T
        covariance[POSITION, POSITION] += lever @ covariance[ROTATION, ROTATION] @ lever.T
        self.covariance = covariance

    def propagate(
        self, gyro: FloatArray, accel: FloatArray, dt: float, foot_noise: FloatArray, foot_velocity: FloatArray
    ) -> None:
        """Move by a reading of the IMU that holds over an interval; exact for constant rate and specific force.

        Args:
            gyro: (3,) rad/s.
            accel: (3,) m/s^2, specific force.
            dt: s.
            foot_noise: (4, 3) (m/s)^2/Hz, of the standing feet's velocities along the world's axes.
            foot_velocity: (4, 3) m/s, world frame, known motion of the standing feet.
        """
        noise = self._noise
        standing = np.repeat(self.standing, 3)
        transition = self._move_error(dt)
        diffusion = self._bias_column @ (noise.gyro * dt * self._bias_column.T)
        rates = self._diffusion
        rates[VELOCITY] = noise.accel
        rates[FEET] = np.where(standing, foot_noise.ravel(), 0.0)
        rates[GYRO_BIAS] = noise.gyro_bias
        rates[ACCEL_BIAS] = noise.accel_bias
        diffusion.ravel()[:: SIZE + 1] += rates * dt
        covariance = transition @ (self.covariance + diffusion) @ transition.T
        self.covariance = (covariance + covariance.T) / 2

        turn, once, twice = rotation_integrals((gyro - self.gyro_bias) * dt)
        force = accel - self.accel_bias
        points = self.points.copy()
        points[:, 1] += points[:, 0] * dt + (self.rotation @ (twice @ force) + _GRAVITY / 2) * dt * dt
        points[:, 0] += (self.rotation @ (once @ force) + _GRAVITY) * dt
        points[:, 2:] += np.where(self.standing, foot_velocity.T * dt, 0.0)
        self.points = points
        self.rotation = self.rotation @ turn

    def _move_error(self, dt: float) -> FloatArray:
        """(27, 27): the error's transition over an interval, from the state before it moves.

        The exponential of ``A dt``, where A takes rotation to velocity by gravity, velocity to position, the gyro's
        bias to everything and the accelerometer's to velocity. ``A`` is nilpotent of degree four, so it has few blocks.
        """
        column, rotation = self._bias_column, self.rotation
        column[VELOCITY.start : FEET.stop] = skew(self.points.T).reshape(-1, 3)
        transition = self._transition
        transition[VELOCITY, ROTATION] = dt * _GRAVITY_HAT
        transition[POSITION, ROTATION] = (dt * dt / 2) * _GRAVITY_HAT
        transition[POSITION, VELOCITY] = dt * _EYE
        transition[: FEET.stop, GYRO_BIAS] = column[: FEET.stop] @ (-dt * rotation)
        tilted = _GRAVITY_HAT @ rotation
        transition[VELOCITY, GYRO_BIAS] -= (dt * dt / 2) * tilted
        transition[POSITION, GYRO_BIAS] -= (dt * dt / 2) * (column[VELOCITY] @ rotation) + (dt**3 / 6) * tilted
        transition[VELOCITY, ACCEL_BIAS] = -dt * rotation
        transition[POSITION, ACCEL_BIAS] = (-dt * dt / 2) * rotation
        return transition

    def drop(self, feet: NDArray[np.bool_]) -> None:
        """Take the feet of a (4,) mask out of the state."""
        gone = self.standing & feet
        if not gone.any():
            return
        self.standing = self.standing & ~feet
        self.points[:, 2:][:, gone] = 0.0
        for foot in np.flatnonzero(gone):
            rows = _rows(foot)
            self.covariance[rows, :] = 0.0
            self.covariance[:, rows] = 0.0
            self.covariance[rows, rows] = _EYE

    def add(self, feet: NDArray[np.bool_], foot: FloatArray, jacobian: FloatArray) -> None:
        """Take feet into the state where kinematics sees them.

        Args:
            feet: (4,) mask; those that stand already stay as they are.
            foot: (4, 3) m from the IMU, body frame.
            jacobian: (4, 3, 3), of the joints.
        """
        for index in np.flatnonzero(feet & ~self.standing):
            rows = _rows(index)
            self.points[:, 2 + index] = self.position + self.rotation @ foot[index]
            self.covariance[rows, :] = self.covariance[POSITION, :]
            self.covariance[:, rows] = self.covariance[:, POSITION]
            self.covariance[rows, rows] = self.covariance[POSITION, POSITION] + self._encoder(jacobian[index])
        self.standing = self.standing | feet

    def correct_feet(self, foot: FloatArray, jacobian: FloatArray, height_variance: FloatArray | None = None) -> None:
        """Correct by where kinematics sees the feet that stand.

        Args:
            foot: (4, 3) m from the IMU, body frame.
            jacobian: (4, 3, 3), of the joints.
            height_variance: (4,) m^2, of the feet's heights above their points, beyond that of the encoders.
        """
        feet = np.flatnonzero(self.standing)
        if not len(feet):
            return
        count = len(feet)
        residual = foot[feet] @ self.rotation.T + self.position - self.points[:, 2 + feet].T
        noise = np.zeros((count, 3, count, 3))
        noise[np.arange(count), :, np.arange(count), :] = self._encoder(jacobian[feet])
        if height_variance is not None:
            noise[np.arange(count), 2, np.arange(count), 2] += height_variance[feet]
        at = (FEET.start + 3 * feet[:, None] + np.arange(3)).ravel()
        rows = np.zeros((3 * count, SIZE))
        rows[:, POSITION] = np.tile(-_EYE, (count, 1))
        rows[np.arange(3 * count), at] = 1.0
        self.correct(residual.ravel(), rows, noise.reshape(3 * count, 3 * count))

    def correct(self, residual: FloatArray, rows: FloatArray, noise: FloatArray) -> None:
        """Correct by a right-invariant measurement (Joseph form).

        Args:
            residual: (M,) ``X_hat y - b``.
            rows: (M, 27), by which ``residual = -rows xi`` to first order.
            noise: (M, M) covariance of the residual, world frame.
        """
        covariance = self.covariance
        crossed = covariance @ rows.T
        gain = np.linalg.solve(rows @ crossed + noise, crossed.T).T
        keep = np.eye(SIZE) - gain @ rows
        covariance = keep @ covariance @ keep.T + gain @ noise @ gain.T
        self.covariance = (covariance + covariance.T) / 2
        self.move(gain @ residual)

    def move(self, error: FloatArray) -> None:
        """``X <- Exp(xi) X`` and biases by addition, for a (27,) step."""
        turn, once, _ = rotation_integrals(error[ROTATION])
        self.points = turn @ self.points + once @ error[VELOCITY.start : FEET.stop].reshape(-1, 3).T
        rotation = turn @ self.rotation
        # One Newton step towards the nearest rotation: rounding would add up.
        self.rotation = rotation @ (1.5 * _EYE - 0.5 * rotation.T @ rotation)
        self.gyro_bias = self.gyro_bias + error[GYRO_BIAS]
        self.accel_bias = self.accel_bias + error[ACCEL_BIAS]

    def _encoder(self, jacobian: FloatArray) -> FloatArray:
        """(..., 3, 3) m^2, world frame: covariance of the feet's places by kinematics."""
        turned = self.rotation @ jacobian
        return np.asarray(self._noise.encoder * turned @ np.swapaxes(turned, -1, -2))

    def pose_covariance(self, position: FloatArray) -> FloatArray:
        """(6, 6): x, y, z (m) of a point fixed to the body and rotation about X, Y, Z (rad), world frame.

        Args:
            position: (3,) m of the point, world frame.
        """
        # A point's error is xi_p + xi_R x p, to first order.
        rows = np.zeros((6, 9))
        rows[:3, ROTATION] = -skew(position)
        rows[:3, POSITION] = _EYE
        rows[3:, ROTATION] = _EYE
        covariance = rows @ self.covariance[:9, :9] @ rows.T
        return np.asarray((covariance + covariance.T) / 2)

    def twist_covariance(self) -> FloatArray:
        """(6, 6) of linear (m/s) and angular velocity (rad/s), body frame; the readings' own noise is not in it."""
        covariance = np.zeros((6, 6))
        # The error of R' v is R' xi_v, to first order: that of the rotation cancels.
        covariance[:3, :3] = self.rotation.T @ self.covariance[VELOCITY, VELOCITY] @ self.rotation
        covariance[3:, 3:] = self.covariance[GYRO_BIAS, GYRO_BIAS]
        return (covariance + covariance.T) / 2


def _rows(foot: int | np.intp) -> slice:
    start = FEET.start + 3 * int(foot)
    return slice(start, start + 3)
