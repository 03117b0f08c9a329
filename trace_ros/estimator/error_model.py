"""How uncertain the pose and the twist are: a small model of the estimator's errors, fitted by ``trace calibrate``.

The error of the body velocity has, for each axis, a standard deviation that follows what the robot does: its speed, its
rate of rotation, how much less than usual the network relies on the legs, and how far the ground gives way, which shows
in a body that heaves more than it is shaken. A share of it changes slowly, as that of a
scale or of feet that creep; the rest is forgotten within a second. Both add up to an error of the position. The heading
walks at random, with a slow error of its rate; roll and pitch, which gravity shows, have an error that stays bounded,
but lifts or sinks whatever walks along them.

Every source is independent of the others and propagated exactly, so the covariance is positive definite by
construction. It falls into two independent blocks, (x, y, heading) and (z, roll, pitch): what couples them is of second
order in the tilt.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

FloatArray = NDArray[np.float64]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
PositiveTriple = tuple[Positive, Positive, Positive]
NonNegativeTriple = tuple[NonNegative, NonNegative, NonNegative]

_NO_HEAVE = 1e-12
"""m^2/s^2; less is none."""

_STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class LinearVelocityError(BaseModel):
    """Standard deviations of the body velocity's error, axes forward, left, up; the terms add up in squares.

    Attributes:
        base: m/s, always.
        per_speed: m/s for each m/s of speed.
        per_rate: m/s for each rad/s of rotation.
        per_doubt: m/s for all of the attention being on no leg more than usual.
        usual_doubt: share of attention, 0 to 1, that is on no leg in an ordinary gait; less than that does not count.
        doubt_time: s; over which that share is smoothed.
        per_yield: m/s for ground that gives way altogether.
        heave_per_shock: m/s of vertical motion for each rad/s^2 of angular acceleration, root mean squares, beyond
            which the ground counts as giving way: feet that sink in swallow the shocks of touchdown, not the heaving.
        yield_time: s; over which both are averaged.
    """

    model_config = _STRICT
    base: PositiveTriple = (0.009, 0.009, 0.009)
    per_speed: NonNegativeTriple = (0.011, 0.006, 0.021)
    per_rate: NonNegativeTriple = (0.01, 0.009, 0.011)
    per_doubt: NonNegativeTriple = (0.3, 0.29, 0.25)
    usual_doubt: Annotated[float, Field(ge=0, le=1)] = 0.5
    doubt_time: Positive = 0.3
    per_yield: NonNegativeTriple = (0.0, 0.0, 0.0)
    heave_per_shock: Positive = 0.0055
    yield_time: Positive = 3.0


class AngularVelocityError(BaseModel):
    """Standard deviations of the angular velocity's error, axes forward, left, up; the terms add up in squares.

    Attributes:
        base: rad/s, always.
        per_acceleration: rad/s for each rad/s^2 about the same axis: between two samples the rate changes by that.
    """

    model_config = _STRICT
    base: PositiveTriple = (0.014, 0.014, 0.011)
    per_acceleration: NonNegativeTriple = (0.00074, 0.00065, 0.0005)


class ErrorModel(BaseModel):
    """How fast the pose becomes uncertain, and how uncertain the twist is. One standard deviation each.

    The defaults are those of a Go2 in simulation, for a model that was not calibrated yet.

    Attributes:
        linear_velocity, angular_velocity: errors of the twist while moving, body frame.
        standing_linear_velocity, standing_angular_velocity: m/s and rad/s; while the stationary clamp holds.
        slow_share: of the velocity's error, the part that changes slowly; forward, left, up.
        slow_time: s; how slowly.
        fast_time: s; for how long the rest of the velocity's error is alike; forward, left, up.
        yaw_per_sqrt_second: growth of the heading error, rad/sqrt(s); not while standing still.
        yaw_rate: slow error of the heading's rate, rad/s.
        yaw_rate_time: s; how slowly it changes.
        tilt: error of roll and pitch, rad; they are observable through gravity, so the error stays bounded.
        tilt_time: s; how fast an error of roll and pitch, as the body sees it, is forgotten.
    """

    model_config = _STRICT
    linear_velocity: LinearVelocityError = LinearVelocityError()
    angular_velocity: AngularVelocityError = AngularVelocityError()
    standing_linear_velocity: PositiveTriple = (0.009, 0.001, 0.002)
    standing_angular_velocity: PositiveTriple = (0.003, 0.009, 0.002)
    slow_share: NonNegativeTriple = (0.31, 0.38, 0.57)
    slow_time: Positive = 30.0
    fast_time: PositiveTriple = (0.5, 0.3, 0.01)
    yaw_per_sqrt_second: Positive = 0.0005
    yaw_rate: NonNegative = 0.001
    yaw_rate_time: Positive = 30.0
    tilt: Positive = 0.016
    tilt_time: Positive = 15.0

    @model_validator(mode="before")
    @classmethod
    def _first_version(cls, data: Any) -> Any:
        """The constants of cards from before there was a fit were never measured."""
        return {} if isinstance(data, dict) and "position_per_sqrt_metre" in data else data


class PoseCovariance:
    """Covariance of the error ``(dp, dtheta)`` in the fixed frame, in the order of REP-103.

    All arithmetic is elementwise, so that the state may be floats (on the robot) or arrays with one entry for each of
    many poses that are followed at once (the calibration). The published variances of x, y and z never shrink while
    walking, though a body that turns and walks back loses some of its error in truth: what is missing to the greatest
    one so far is added to the diagonal.
    """

    INITIAL_POSITION = 1e-3
    """m. Numerically never exactly singular, also right after a pose was set."""
    INITIAL_YAW = 1e-3
    """rad."""

    def __init__(self, model: ErrorModel, maximum: Callable[[Any, Any], Any] = max) -> None:
        """Start at a pose that is known.

        Args:
            model: of the errors.
            maximum: of two states; `numpy.maximum` where they are arrays.
        """
        self._maximum = maximum
        self._share_f, self._share_l, self._share_u = model.slow_share
        self._slow_time, self._yaw_rate_time, self._tilt_time = model.slow_time, model.yaw_rate_time, model.tilt_time
        # A rate that is forgotten after T spreads like white noise of density 2 T sigma^2.
        self._fast_f, self._fast_l, self._fast_u = (2 * time for time in model.fast_time)
        self._yaw_rate, self._yaw_density = model.yaw_rate, model.yaw_per_sqrt_second**2
        self._tilt = model.tilt
        self.reset()

    def reset(self, position_variance: float = INITIAL_POSITION**2, yaw_variance: float = INITIAL_YAW**2) -> None:
        """Start anew at a pose whose error has these variances (m^2 each axis, rad^2)."""
        self.xx = self.yy = self.zz = self._max_x = self._max_y = self._max_z = position_variance
        self.yaw_yaw = yaw_variance
        self._xy = self._x_yaw = self._y_yaw = 0.0
        # Covariances of the position (and the heading) with the sources, each source of variance one.
        self._x_forward = self._y_forward = self._x_left = self._y_left = self._z_up = 0.0
        self._x_rate = self._y_rate = self._yaw_rate_cross = 0.0
        self._z_roll = self._z_pitch = 0.0

    def widen(self, position_variance: float, yaw_variance: float = 0.0) -> None:
        """Add to the variances of the position (m^2, each axis) and the heading (rad^2)."""
        self.xx += position_variance
        self.yy += position_variance
        self.zz += position_variance
        self._max_x += position_variance
        self._max_y += position_variance
        self._max_z += position_variance
        self.yaw_yaw += yaw_variance

    def propagate(
        self,
        cosine: Any,
        sine: Any,
        displacement: tuple[Any, Any, Any],
        sigma: tuple[Any, Any, Any],
        dt: Any,
    ) -> None:
        """Follow one increment.

        Args:
            cosine, sine: of the heading before it.
            displacement: m, fixed frame.
            sigma: of the velocity's error, forward, left, up, m/s.
            dt: s.
        """
        dx, dy, _ = displacement
        sigma_f, sigma_l, sigma_u = sigma
        self._spread_heading(dx, dy, dt)
        self._spread_forward_left(cosine, sine, sigma_f, sigma_l, dt)
        self._spread_up(cosine * dx + sine * dy, cosine * dy - sine * dx, sigma_u, dt)
        self._max_x = self._maximum(self._max_x, self.xx)
        self._max_y = self._maximum(self._max_y, self.yy)
        self._max_z = self._maximum(self._max_z, self.zz)

    def _spread_heading(self, dx: Any, dy: Any, dt: Any) -> None:
        """A heading error turns the displacement: by ``h`` for each radian."""
        hx, hy, yaw = -dy, dx, self.yaw_yaw
        x_yaw, y_yaw = self._x_yaw, self._y_yaw
        self.xx += 2 * hx * x_yaw + hx * hx * yaw
        self.yy += 2 * hy * y_yaw + hy * hy * yaw
        self._xy += hx * y_yaw + hy * x_yaw + hx * hy * yaw
        turn, cross = self._yaw_rate * dt, self._yaw_rate_cross
        x_rate, y_rate = self._x_rate + hx * cross, self._y_rate + hy * cross
        self._x_yaw = x_yaw + hx * yaw + turn * x_rate
        self._y_yaw = y_yaw + hy * yaw + turn * y_rate
        self.yaw_yaw = yaw + turn * (2 * cross + turn) + self._yaw_density * dt
        keep = _kept(dt, self._yaw_rate_time)
        self._x_rate, self._y_rate = keep * x_rate, keep * y_rate
        self._yaw_rate_cross = keep * (cross + turn)

    def _spread_forward_left(self, cosine: Any, sine: Any, sigma_f: Any, sigma_l: Any, dt: Any) -> None:
        f, g = self._share_f * sigma_f * dt, self._share_l * sigma_l * dt
        fx, fy, gx, gy = f * cosine, f * sine, -g * sine, g * cosine
        xf, yf, xl, yl = self._x_forward, self._y_forward, self._x_left, self._y_left
        fast_f, fast_l = self._fast_f * sigma_f * sigma_f * dt, self._fast_l * sigma_l * sigma_l * dt
        cc, ss, cs = cosine * cosine, sine * sine, cosine * sine
        self.xx += (2 * xf + fx) * fx + (2 * xl + gx) * gx + fast_f * cc + fast_l * ss
        self.yy += (2 * yf + fy) * fy + (2 * yl + gy) * gy + fast_f * ss + fast_l * cc
        self._xy += xf * fy + yf * fx + fx * fy + xl * gy + yl * gx + gx * gy + (fast_f - fast_l) * cs
        keep = _kept(dt, self._slow_time)
        self._x_forward, self._y_forward = keep * (xf + fx), keep * (yf + fy)
        self._x_left, self._y_left = keep * (xl + gx), keep * (yl + gy)

    def _spread_up(self, forward: Any, left: Any, sigma_u: Any, dt: Any) -> None:
        """A tilt error lifts what moves along it: roll the motion to the left, pitch (nose down) sinks that ahead."""
        u, roll, pitch = self._share_u * sigma_u * dt, self._tilt * left, -self._tilt * forward
        up, z_roll, z_pitch = self._z_up, self._z_roll, self._z_pitch
        self.zz += (
            (2 * up + u) * u
            + (2 * z_roll + roll) * roll
            + (2 * z_pitch + pitch) * pitch
            + self._fast_u * sigma_u * sigma_u * dt
        )
        self._z_up = _kept(dt, self._slow_time) * (up + u)
        keep = _kept(dt, self._tilt_time)
        self._z_roll, self._z_pitch = keep * (z_roll + roll), keep * (z_pitch + pitch)

    def variances(self) -> tuple[Any, Any, Any, Any, Any, Any]:
        """The published variances of x, y, z (m^2) and of the rotations about X, Y, Z (rad^2)."""
        tilt = self._tilt * self._tilt
        return self._max_x, self._max_y, self._max_z, tilt, tilt, self.yaw_yaw

    def matrix(self, cosine: float, sine: float) -> FloatArray:
        """The covariance (6, 6): x, y, z, rotations about X, Y, Z, fixed axes. For a state of floats only.

        Args:
            cosine, sine: of the heading now.
        """
        xx, yy, zz, tilt, _, yaw = self.variances()
        xy, x_yaw, y_yaw = self._xy, self._x_yaw, self._y_yaw
        z_roll, z_pitch = self._tilt * self._z_roll, self._tilt * self._z_pitch
        z_x, z_y = cosine * z_roll - sine * z_pitch, sine * z_roll + cosine * z_pitch
        rows = (
            *(xx, xy, 0.0, 0.0, 0.0, x_yaw),
            *(xy, yy, 0.0, 0.0, 0.0, y_yaw),
            *(0.0, 0.0, zz, z_x, z_y, 0.0),
            *(0.0, 0.0, z_x, tilt, 0.0, 0.0),
            *(0.0, 0.0, z_y, 0.0, tilt, 0.0),
            *(x_yaw, y_yaw, 0.0, 0.0, 0.0, yaw),
        )
        return np.array(rows).reshape(6, 6)


def _kept(dt: Any, time: float) -> Any:
    """Share of a slow error that is left after ``dt``: the exponential's first terms, for floats and arrays alike."""
    return time / (time + dt)


def unexplained(heave: Any, usual: Any) -> Any:
    """How far a mean square of heaving is beyond the usual one, -1 to 1, 0 where equal; for floats and arrays alike."""
    return (heave - usual) / (heave + usual + _NO_HEAVE)


class TwistDeviation:
    """Standard deviations of the twist's error, sample by sample."""

    def __init__(self, model: ErrorModel) -> None:
        self._standing = (*model.standing_linear_velocity, *model.standing_angular_velocity)
        linear, angular = model.linear_velocity, model.angular_velocity
        terms = (linear.base, linear.per_speed, linear.per_rate, linear.per_doubt, linear.per_yield)
        self._usual_doubt, self._doubt_time = linear.usual_doubt, linear.doubt_time
        self._usual_heave, self._yield_time = linear.heave_per_shock**2, linear.yield_time
        self._linear = tuple(tuple(value * value for value in axis) for axis in zip(*terms, strict=True))
        self._angular = tuple(
            (base * base, per * per) for base, per in zip(angular.base, angular.per_acceleration, strict=True)
        )
        self.reset()

    def reset(self) -> None:
        """Forget the past: as of a robot that stands, on ground that is not known."""
        self._heave = self._shock = 0.0
        self.hold()

    def hold(self) -> None:
        """Take in that the robot stands still; the ground stays what it was."""
        self._rate = (0.0, 0.0, 0.0)
        self._doubt: float | None = None
        self.linear = self._standing[:3]
        """m/s; forward, left, up."""
        self.angular = self._standing[3:]
        """rad/s."""

    def move(
        self, displacement: tuple[float, float, float], rotation: tuple[float, float, float], dt: float, doubt: float
    ) -> None:
        """Take in an increment (m and rad, body frame) over ``dt`` (s), and the share of attention on no leg."""
        dx, dy, dz = displacement
        rx, ry, rz = rotation
        inverse = 1.0 / dt
        square = inverse * inverse
        speed, rate = square * (dx * dx + dy * dy + dz * dz), square * (rx * rx + ry * ry + rz * rz)
        before = doubt if self._doubt is None else self._doubt
        self._doubt = before + (doubt - before) * dt / (dt + self._doubt_time)
        excess = max(0.0, self._doubt - self._usual_doubt)
        doubt = excess * excess
        px, py, pz = self._rate
        wx, wy, wz = rx * inverse, ry * inverse, rz * inverse
        self._rate = (wx, wy, wz)
        ax, ay, az = (wx - px) * inverse, (wy - py) * inverse, (wz - pz) * inverse
        ax, ay, az = ax * ax, ay * ay, az * az
        weight = dt / (dt + self._yield_time)
        self._heave += weight * (square * dz * dz - self._heave)
        self._shock += weight * (ax + ay + az - self._shock)
        excess = max(0.0, unexplained(self._heave, self._usual_heave * self._shock))
        soft = excess * excess
        (a, b, c, d, e), (f, g, h, i, j), (k, m, n, o, p) = self._linear
        root = math.sqrt
        self.linear = (
            root(a + b * speed + c * rate + d * doubt + e * soft),
            root(f + g * speed + h * rate + i * doubt + j * soft),
            root(k + m * speed + n * rate + o * doubt + p * soft),
        )
        (a, b), (c, d), (e, f) = self._angular
        self.angular = (root(a + b * ax), root(c + d * ay), root(e + f * az))

    def matrix(self) -> FloatArray:
        """The covariance (6, 6), body frame: linear x, y, z, angular x, y, z."""
        matrix = np.zeros((6, 6))
        matrix.flat[::7] = [value * value for value in (*self.linear, *self.angular)]
        return matrix
