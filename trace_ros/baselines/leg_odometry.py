"""Plain leg odometry: attitude from the gyro, levelled by gravity; velocity from the feet that have landed."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from trace_ros.baselines.contact import Reading
from trace_ros.baselines.front_end import ModelBasedEstimator
from trace_ros.baselines.invariant_filter import quaternion, rotation_integrals
from trace_ros.estimator.estimator import Estimate
from trace_ros.geometry import GRAVITY
from trace_ros.leg_model import cross
from trace_ros.logs import LEGS

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


class LegOdometry(ModelBasedEstimator):
    """Dead reckoning. The body moves as the mean of the feet says that have stood for a while; without one, as it did
    last."""

    name = "leg_odometry"

    def _forget(self) -> None:
        self._rotation = np.eye(3)
        self._position = np.zeros(3)
        self._velocity = np.zeros(3)
        self._stood = np.zeros(LEGS)
        self._covariance = np.zeros((6, 6))

    def _begin(
        self, rotation: FloatArray, position: FloatArray, position_sigma: float, reading: Reading, contact: BoolArray
    ) -> None:
        self._place(rotation, position)
        self._covariance[range(3), range(3)] += position_sigma**2
        self._stood = np.zeros(LEGS)
        self._settle(reading, contact, 0.0)

    def _place(
        self, rotation: FloatArray, position: FloatArray, position_sigma: float = 0.0, heading_sigma: float = 0.0
    ) -> None:
        self._rotation, self._position = np.array(rotation), np.array(position)
        tilt, prior = self.config.leg_odometry.tilt, self.config.prior
        place, heading = prior.position**2 + position_sigma**2, prior.yaw**2 + heading_sigma**2
        self._covariance = np.diag([place] * 3 + [tilt**2, tilt**2, heading])

    def _advance(self, reading: Reading, contact: BoolArray, dt: float) -> None:
        config, previous = self.config.leg_odometry, self._previous
        force = previous.accel
        norm = float(np.linalg.norm(force))
        excess = (norm - GRAVITY) / config.steady_force
        # Turns the estimated vertical towards the felt one; the less, the further that is from gravity alone.
        gain = 1.0 / (config.tilt_time_constant * (1.0 + excess * excess))
        tilt = cross(force / norm, self._rotation[2]) if norm > 0 else np.zeros(3)
        turn = (previous.gyro + gain * tilt) * dt
        moved = self._rotation @ (self._velocity * dt)
        self._position = self._position + moved
        rotation = self._rotation @ rotation_integrals(turn)[0]
        self._rotation = rotation @ (1.5 * np.eye(3) - 0.5 * rotation.T @ rotation)
        self._widen(moved, dt)
        self._settle(reading, contact, dt)

    def _settle(self, reading: Reading, contact: BoolArray, dt: float) -> None:
        self._previous = reading
        # Stamps jitter by rounding.
        landed = contact & (self._stood >= self.config.leg_odometry.landing - 1e-6)
        self._stood = np.where(contact, self._stood + dt, 0.0)
        if landed.any():
            relative = reading.foot_velocity + cross(reading.gyro, reading.posture.foot)
            rolling = self._rolling(reading, self._rotation) @ self._rotation
            self._velocity = (rolling - relative)[landed].mean(axis=0)

    def _widen(self, moved: FloatArray, dt: float) -> None:
        """A heading error turns all later motion; position grows with distance, heading with time."""
        config, covariance = self.config.leg_odometry, self._covariance
        x, y, z = moved.tolist()
        transition = np.eye(6)
        transition[:3, 3:] = ((0.0, z, -y), (-z, 0.0, x), (y, -x, 0.0))
        # Roll and pitch are held by gravity: their errors are bounded and forgotten, not carried on.
        keep = math.exp(-dt / config.tilt_time_constant)
        transition[3, 3] = transition[4, 4] = keep
        covariance = transition @ covariance @ transition.T
        position = config.position_per_sqrt_metre**2 * math.sqrt(x * x + y * y + z * z)
        tilt = config.tilt**2 * (1.0 - keep * keep)
        covariance[range(6), range(6)] += [position] * 3 + [tilt, tilt, config.yaw_per_sqrt_second**2 * dt]
        self._covariance = (covariance + covariance.T) / 2

    def _attitude(self) -> FloatArray:
        return self._rotation

    def _estimate(self, reading: Reading, contact: BoolArray) -> Estimate:
        config, noise = self.config.leg_odometry, self.config.prior.gyro_bias
        return Estimate(
            reading.stamp_ns,
            self._position.copy(),
            quaternion(self._rotation),
            self._velocity.copy(),
            reading.gyro.copy(),
            None,
            False,
            self._covariance.copy(),
            np.diag([config.velocity**2] * 3 + [noise**2] * 3),
            contact,
        )
