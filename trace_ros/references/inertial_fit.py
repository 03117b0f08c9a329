"""Gravity in a reference's world and the place of its body, from positions and the accelerometer.

Three poses at t0 < t1 < t2 give an acceleration free of any velocity. With the specific force a, double-integrated from
the middle pose outwards along the gyro's attitude G (relative to t1), D1 = t1 - t0 and D2 = t2 - t1,

    D1 (p2 - p1) + D2 (p0 - p1) =
        D1 D2 (D1 + D2) / 2 g + R1 [D1 int_t1^t2 (t2 - s) G a ds + D2 int_t0^t1 (s - t0) G a ds]

holds for the position p of the IMU: linear in gravity g (world), in the accelerometer's bias (body), and in the lever
arm from the IMU to the body that the reference follows. Relative motions alone are used, so drift does no harm. The
idea is that of preintegration (Lupton and Sukkarieh 2012) and of linear visual-inertial alignment (Martinelli 2014).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.spatial.transform import Rotation

from trace_ros.errors import TraceError
from trace_ros.geometry import GRAVITY
from trace_ros.logs import FloatArray, IntArray
from trace_ros.references.attitude import GyroAttitude

_HALF = 0.4
"""s; from the middle pose to the others, or to the next pose where they come more seldom."""
_FEWEST = 20
# What is known of lever arm (m), bias and magnitude of gravity (m/s^2) before: standard deviations.
_LEVER_PRIOR, _BIAS_PRIOR, _GRAVITY_PRIOR = 0.3, 0.1, 0.03
_LARGEST_RESIDUAL = 1e3
"""m/s^2."""
_MOST_SHARED = 3.0
_ROUNDS = 5


@dataclass(frozen=True)
class InertialFit:
    """Gravity and lever arm as positions and accelerometer have them.

    Attributes:
        gravity: (3,) m/s^2, in the reference's world; (0, 0, -9.81) in a level one.
        tilt_sigma: rad, standard deviation of the direction of gravity.
        lever: (3,) m, from the IMU to the body that the reference follows, in the base.
        lever_sigma: (3,) m.
        accel_bias: (3,) m/s^2, base.
    """

    gravity: FloatArray
    tilt_sigma: float
    lever: FloatArray
    lever_sigma: FloatArray
    accel_bias: FloatArray

    @property
    def level(self) -> Rotation:
        """The smallest turn of the world after which gravity points down."""
        down = self.gravity / np.linalg.norm(self.gravity)
        axis = np.cross(down, (0.0, 0.0, -1.0))
        sine, cosine = np.linalg.norm(axis), -down[2]
        if sine < 1e-12:
            return Rotation.identity() if cosine > 0 else Rotation.from_rotvec((np.pi, 0.0, 0.0))
        return Rotation.from_rotvec(axis / sine * np.arctan2(sine, cosine))

    @property
    def tilt(self) -> float:
        """Angle between gravity and the world's -z, rad."""
        return float(self.level.magnitude())


class _ForceIntegrals:
    """Single and double integrals of the turned specific force, and of the attitude alone, over any interval."""

    def __init__(self, attitude: GyroAttitude, specific_force: FloatArray) -> None:
        self._t = attitude.seconds
        turn = attitude.rotation.as_matrix()
        # Columns: turned force (3), attitude (9), flattened.
        values = np.hstack((np.einsum("nij,nj->ni", turn, specific_force), turn.reshape(-1, 9)))
        self._once, self._moment = self._running(values), self._running(values * self._t[:, None])

    def _running(self, values: FloatArray) -> FloatArray:
        steps = (values[1:] + values[:-1]) / 2 * np.diff(self._t)[:, None]
        return np.vstack((np.zeros(values.shape[1]), np.cumsum(steps, axis=0)))

    def _between(self, table: FloatArray, start: FloatArray, end: FloatArray) -> FloatArray:
        return np.stack(
            [np.interp(end, self._t, column) - np.interp(start, self._t, column) for column in table.T], axis=1
        )

    def away_from_end(self, start: FloatArray, end: FloatArray) -> FloatArray:
        """Integral of (end - s) x values: what the start's force still moves. ``(K, 12)``"""
        return end[:, None] * self._between(self._once, start, end) - self._between(self._moment, start, end)

    def away_from_start(self, start: FloatArray, end: FloatArray) -> FloatArray:
        """Integral of (s - start) x values. ``(K, 12)``"""
        return self._between(self._moment, start, end) - start[:, None] * self._between(self._once, start, end)


def fit_inertial(
    seconds: FloatArray,
    position: FloatArray,
    rotation: Rotation,
    segment: IntArray,
    attitude: GyroAttitude,
    specific_force: FloatArray,
) -> InertialFit:
    """Fit gravity, lever arm and bias to a reference whose clock and whose body's rotation are those of the log.

    Args:
        seconds: (M,) s, of the poses, on the log's clock from `GyroAttitude.origin_ns`.
        position: (M, 3) m, of the body that the reference follows, in its world.
        rotation: M, base to the reference's world.
        segment: (M,) number of the piece that a pose belongs to, -1: none. Nothing is taken across pieces.
        attitude: of the log.
        specific_force: (N, 3) m/s^2, at the IMU, base frame.

    Raises:
        TraceError: too few poses.
    """
    start, middle, end = _triples(seconds, segment, attitude)
    if middle.size < _FEWEST:
        raise TraceError(f"reference: {seconds.size} poses are too few, or too torn, to find its frame by")
    t0, t1, t2 = seconds[start], seconds[middle], seconds[end]
    before, after = (t1 - t0)[:, None], (t2 - t1)[:, None]
    integrals = _ForceIntegrals(attitude, specific_force)
    moved = before * integrals.away_from_end(t1, t2) + after * integrals.away_from_start(t0, t1)
    at_middle = attitude.at(t1)
    world = rotation[middle]
    to_world = (world * at_middle.inv()).as_matrix()
    force = np.einsum("kij,kj->ki", to_world, moved[:, :3])
    turned = to_world @ moved[:, 3:].reshape(-1, 3, 3)
    first = (world * at_middle.inv() * attitude.at(t0)).as_matrix()
    last = (world * at_middle.inv() * attitude.at(t2)).as_matrix()
    base = world.as_matrix()
    target = before * (position[end] - position[middle]) + after * (position[start] - position[middle]) - force
    weight = before * after * (before + after) / 2
    lever = before[:, :, None] * (last - base) + after[:, :, None] * (first - base)
    design = np.concatenate((weight[:, :, None] * np.eye(3), lever, -turned), axis=2)
    # The errors of positions grow with the intervals that they are multiplied by.
    scale = 1 / np.sqrt(before**2 + after**2 + (before + after) ** 2)
    solution, covariance = _solve(design * scale[:, :, None], target * scale, t1)
    down = solution[:3] / np.linalg.norm(solution[:3])
    sideways = covariance[:3, :3] - np.outer(down, down) @ covariance[:3, :3]
    return InertialFit(
        solution[:3],
        # Rounding makes it negative where the reference is no motion of the log's, and nothing is certain.
        float(np.sqrt(max(0.0, float(np.trace(sideways))) / 2) / np.linalg.norm(solution[:3])),
        solution[3:6],
        np.sqrt(np.diag(covariance)[3:6]),
        solution[6:],
    )


def _triples(seconds: FloatArray, segment: IntArray, attitude: GyroAttitude) -> tuple[IntArray, ...]:
    """Indices of first, middle and last poses."""
    usual = float(np.median(np.diff(seconds)))
    steps = max(1, round(_HALF / usual))
    middle = np.arange(steps, seconds.size - steps, max(1, steps // 4))
    start, end = middle - steps, middle + steps
    whole = (segment[start] == segment[end]) & (segment[start] == segment[middle]) & (segment[middle] >= 0)
    whole &= attitude.knows(seconds[start], seconds[end])
    whole &= seconds[end] - seconds[start] < 3 * steps * usual
    return start[whole], middle[whole], end[whole]


def _solve(design: FloatArray, target: FloatArray, at: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Least squares with priors, large residuals left out; covariance with the overlap of the triples in mind."""
    prior = np.diag(np.concatenate((np.zeros(3), np.full(3, _LEVER_PRIOR**-2.0), np.full(3, _BIAS_PRIOR**-2.0))))
    kept = np.ones(len(target), dtype=bool)
    variance, down = 0.01**2, np.zeros(3)
    for _ in range(_ROUNDS):
        rows, values = design[kept].reshape(-1, 9), target[kept].reshape(-1)
        normal, known = rows.T @ rows / variance + prior, rows.T @ values / variance
        # The magnitude of gravity is known, its direction is that of the last round.
        normal[:3, :3] += np.outer(down, down) / _GRAVITY_PRIOR**2
        known[:3] += GRAVITY * down / _GRAVITY_PRIOR**2
        solution = np.linalg.solve(normal, known)
        down = solution[:3] / np.linalg.norm(solution[:3])
        residual = target - design @ solution
        size = np.linalg.norm(residual, axis=1)
        kept = size < 5 * np.median(size) + 1e-6
        # Residuals that are no motion of a robot must not make its rows vanish beside the priors, which leave the
        # horizontal parts of gravity open.
        found = float((residual[kept] ** 2).mean())
        variance = min(found, _LARGEST_RESIDUAL**2) + 1e-12
    # Triples overlap, and up to three share a pose.
    shared = np.clip(kept.sum() * 2 * _HALF / max(float(at[-1] - at[0]), 2 * _HALF), 1.0, _MOST_SHARED)
    # What the residuals are beyond that is doubt, and none of it may be lost: nobody shall believe such a fit.
    doubt = shared * max(1.0, found / variance)
    return np.asarray(solution, dtype=float), np.asarray(np.linalg.inv(normal / doubt), dtype=float)
