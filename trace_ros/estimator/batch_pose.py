"""Poses and their covariance of a whole run at once, from the motion of all its steps.

What `odometry.py` and `error_model.py` do step by step, as sums over time. Nothing here feeds back into the network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trace_ros.estimator.batch_plan import Flags
from trace_ros.estimator.error_model import ErrorModel, PoseCovariance, unexplained
from trace_ros.estimator.recurrence import recurrence
from trace_ros.logs import FloatArray


@dataclass(frozen=True)
class Motions:
    """R steps of a run.

    Attributes:
        displacement: (R, 3) m, in the body frame before.
        rotation: (R, 3) rad.
        dt: (R,) s.
        doubt: (R,) share of attention that is on no leg.
        moving: (R,) whether the step moves the pose: not where the clamp holds, nor at the first of a window.
        held: (R,) whether the clamp holds.
        orientation: (R, 4) after each step.
        jump: (R, 3) m, fixed frame; that the pose made before each step.
        widened_position, widened_heading: (R,) m^2 and rad^2 that were added to the variances before each step.
        climbing: (R, 3) m/s, body frame, by how much the feet have the body climb faster than the network does.
    """

    displacement: FloatArray
    rotation: FloatArray
    dt: FloatArray
    doubt: FloatArray
    moving: Flags
    held: Flags
    orientation: FloatArray
    jump: FloatArray
    widened_position: FloatArray
    widened_heading: FloatArray
    climbing: FloatArray


class Poses(NamedTuple):
    """Position (R, 3) m and covariance (R, 6, 6) of the pose after each step."""

    position: FloatArray
    covariance: FloatArray


def follow(motions: Motions, start: NDArray[np.float64], model: ErrorModel) -> Poses:
    """Compose all motions, from a position (3,) m."""
    # Of a step that moves, the one before it is of the same window.
    before = np.roll(motions.orientation, 1, axis=0)
    moved = np.where(motions.moving[:, None], rotate(before, motions.displacement), 0.0)
    risen = rotate(motions.orientation, motions.climbing) * motions.dt[:, None]
    position = start + np.cumsum(moved + motions.jump + risen, axis=0)
    sigma = np.where(motions.moving[:, None], _velocity_deviation(motions, model), 0.0)
    covariance = _covariance(motions, _heading(before), _heading(motions.orientation), moved, sigma, model)
    return Poses(position, covariance)


def rotate(orientation: FloatArray, vector: FloatArray) -> FloatArray:
    """Body vectors (R, 3) to the fixed frame, by quaternions (R, 4): v + 2 w (u x v) + 2 u x (u x v)."""
    u, w = orientation[:, :3], orientation[:, 3:]
    t = 2 * np.cross(u, vector)
    return np.asarray(vector + w * t + np.cross(u, t))


def turned(orientation: FloatArray, rotation: FloatArray) -> FloatArray:
    """Quaternions (R, 4) after further rotation vectors (R, 3), rad, in the body frame."""
    half = np.linalg.norm(rotation, axis=1, keepdims=True) / 2
    b, bw = 0.5 * np.sinc(half / np.pi) * rotation, np.cos(half)
    a, aw = orientation[:, :3], orientation[:, 3:]
    vector = aw * b + bw * a + np.cross(a, b)
    scalar = aw * bw - (a * b).sum(axis=1, keepdims=True)
    result = np.concatenate((vector, scalar), axis=1)
    return np.asarray(result / np.linalg.norm(result, axis=1, keepdims=True))


def _heading(orientation: FloatArray) -> tuple[FloatArray, FloatArray]:
    x, y, z, w = orientation.T
    cosine, sine = 1 - 2 * (y * y + z * z), 2 * (w * z + x * y)
    norm = np.sqrt(cosine * cosine + sine * sine)
    upright = norm > 1e-9
    norm = np.where(upright, norm, 1.0)
    return np.where(upright, cosine / norm, 1.0), np.where(upright, sine / norm, 0.0)


def _velocity_deviation(motions: Motions, model: ErrorModel) -> FloatArray:
    """What `TwistDeviation` says of the linear velocity, forward, left, up. ``-> (R, 3)`` m/s."""
    error = model.linear_velocity
    walking = ~motions.held
    first = walking & np.concatenate(([True], motions.held[:-1]))
    weight = motions.dt / (motions.dt + error.doubt_time)
    weight[first] = 1.0
    doubt = recurrence(1.0 - weight, weight * motions.doubt)
    excess = np.maximum(0.0, doubt - error.usual_doubt)
    square = 1.0 / motions.dt**2
    speed, rate = (square * (value**2).sum(axis=1) for value in (motions.displacement, motions.rotation))
    turning = motions.rotation / motions.dt[:, None]
    acceleration = np.diff(turning, axis=0, prepend=np.zeros((1, 3))) / motions.dt[:, None]
    weight = np.where(walking, motions.dt / (motions.dt + error.yield_time), 0.0)
    heave = recurrence(1.0 - weight, weight * square * motions.displacement[:, 2] ** 2)
    shock = recurrence(1.0 - weight, weight * (acceleration**2).sum(axis=1))
    soft = np.maximum(0.0, unexplained(heave, error.heave_per_shock**2 * shock))
    terms = np.column_stack((np.ones(len(speed)), speed, rate, excess**2, soft**2))
    squares = np.square((error.base, error.per_speed, error.per_rate, error.per_doubt, error.per_yield))
    return np.asarray(np.sqrt(terms @ squares))


def _covariance(
    motions: Motions,
    before: tuple[FloatArray, FloatArray],
    after: tuple[FloatArray, FloatArray],
    moved: FloatArray,
    sigma: FloatArray,
    model: ErrorModel,
) -> FloatArray:
    """What `PoseCovariance` says after each step. ``-> (R, 6, 6)``.

    Each of its sums is one over all steps here. A step that does not move the pose takes no time.
    """
    dt = np.where(motions.moving, motions.dt, 0.0)
    dx, dy, _ = moved.T
    sigma_f, sigma_l, sigma_u = sigma.T
    cosine, sine = before
    first = PoseCovariance.INITIAL_POSITION**2
    wider, turnings = motions.widened_position, motions.widened_heading

    # A heading error turns the displacement.
    hx, hy, turn = -dy, dx, model.yaw_rate * dt
    keep = _kept(dt, model.yaw_rate_time)
    cross = _before(recurrence(keep, keep * turn))
    rate_x = _before(recurrence(keep, keep * hx * cross)) + hx * cross
    rate_y = _before(recurrence(keep, keep * hy * cross)) + hy * cross
    grown = turn * (2 * cross + turn) + model.yaw_per_sqrt_second**2 * dt
    yaw_after = PoseCovariance.INITIAL_YAW**2 + np.cumsum(grown + turnings)
    yaw = yaw_after - grown
    x_yaw = np.cumsum(hx * yaw + turn * rate_x)
    y_yaw = np.cumsum(hy * yaw + turn * rate_y)
    xx = 2 * hx * _before(x_yaw) + hx * hx * yaw
    yy = 2 * hy * _before(y_yaw) + hy * hy * yaw
    xy = hx * _before(y_yaw) + hy * _before(x_yaw) + hx * hy * yaw

    # The velocity's slow and fast errors, forward and left.
    keep = _kept(dt, model.slow_time)
    share_f, share_l, share_u = model.slow_share
    time_f, time_l, time_u = (2 * time for time in model.fast_time)
    f, g = share_f * sigma_f * dt, share_l * sigma_l * dt
    fx, fy, gx, gy = f * cosine, f * sine, -g * sine, g * cosine
    xf, yf, xl, yl = (_before(recurrence(keep, keep * part)) for part in (fx, fy, gx, gy))
    fast_f, fast_l = time_f * sigma_f**2 * dt, time_l * sigma_l**2 * dt
    xx += (2 * xf + fx) * fx + (2 * xl + gx) * gx + fast_f * cosine**2 + fast_l * sine**2
    yy += (2 * yf + fy) * fy + (2 * yl + gy) * gy + fast_f * sine**2 + fast_l * cosine**2
    xy += xf * fy + yf * fx + fx * fy + xl * gy + yl * gx + gx * gy + (fast_f - fast_l) * cosine * sine

    # Upward: a tilt error lifts what moves along it.
    u = share_u * sigma_u * dt
    roll = model.tilt * (cosine * dy - sine * dx)
    pitch = -model.tilt * (cosine * dx + sine * dy)
    up = _before(recurrence(keep, keep * u))
    keep = _kept(dt, model.tilt_time)
    z_roll, z_pitch = (recurrence(keep, keep * part) for part in (roll, pitch))
    zz = (2 * up + u) * u + (2 * _before(z_roll) + roll) * roll + (2 * _before(z_pitch) + pitch) * pitch
    zz += time_u * sigma_u**2 * dt

    covariance = np.zeros((len(dt), 6, 6))
    for axis, grown in enumerate((xx, yy, zz)):
        # Never less than before; what was added from outside is added to the greatest, too.
        own = np.maximum.accumulate(first + np.cumsum(grown))
        covariance[:, axis, axis] = np.maximum(own, first) + np.cumsum(wider)
    cosine, sine = after
    covariance[:, 0, 1] = np.cumsum(xy)
    covariance[:, 0, 5], covariance[:, 1, 5] = x_yaw, y_yaw
    covariance[:, 2, 3] = model.tilt * (cosine * z_roll - sine * z_pitch)
    covariance[:, 2, 4] = model.tilt * (sine * z_roll + cosine * z_pitch)
    covariance += np.triu(covariance, 1).transpose(0, 2, 1)
    covariance[:, 3, 3] = covariance[:, 4, 4] = model.tilt**2
    covariance[:, 5, 5] = yaw_after
    return covariance


def _before(values: FloatArray) -> FloatArray:
    """The value before each step, of one after each; zero at first."""
    return np.concatenate(([0.0], values[:-1]))


def _kept(dt: FloatArray, time: float) -> FloatArray:
    return np.asarray(time / (time + dt))
