"""IEKF and IEKF-SR: the invariant filter on IMU, contact from ground reaction force, and slip rejection."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trace_ros.baselines.config import BaselineConfig
from trace_ros.baselines.contact import Reading
from trace_ros.baselines.front_end import ModelBasedEstimator
from trace_ros.baselines.invariant_filter import InvariantFilter, quaternion
from trace_ros.estimator.estimator import Estimate
from trace_ros.leg_model import cross
from trace_ros.logs import LEGS
from trace_ros.robot import RobotDescription

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


class Iekf(ModelBasedEstimator):
    """The right-invariant contact-aided filter. Every standing foot is believed to stand still."""

    name = "iekf"
    rejects_slip = False

    def __init__(self, robot: RobotDescription, config: BaselineConfig | None = None, source: str = "") -> None:
        """See `ModelBasedEstimator`."""
        loaded = config or BaselineConfig.load()
        self._filter = InvariantFilter(loaded.noise, loaded.prior)
        # Where only sliding counts as slip, the ground still holds the foot's height.
        self._slip_axes = slice(2) if loaded.slip_direction == "horizontal" else slice(3)
        self._contact_noise = np.array([loaded.noise.contact] * 2 + [loaded.noise.contact_vertical])
        self._slip_noise = self._contact_noise.copy()
        self._slip_noise[self._slip_axes] = loaded.noise.slip
        super().__init__(robot, loaded, source)

    @property
    def slipping(self) -> BoolArray:
        """(4,) the standing feet that were found slipping at the last sample; none without slip rejection."""
        return self._slipping

    def _forget(self) -> None:
        self._filter = InvariantFilter(self.config.noise, self.config.prior)
        self._slipping = np.zeros(LEGS, dtype=np.bool_)
        self._without_hold = 0.0

    def _begin(
        self, rotation: FloatArray, position: FloatArray, position_sigma: float, reading: Reading, contact: BoolArray
    ) -> None:
        state = self._filter
        state.begin(rotation, position + rotation @ self._imu, position_sigma)
        state.add(contact, reading.posture.foot - self._imu, reading.posture.jacobian)
        self._settle(reading, 0.0)

    def _place(
        self, rotation: FloatArray, position: FloatArray, position_sigma: float = 0.0, heading_sigma: float = 0.0
    ) -> None:
        state = self._filter
        velocity = rotation @ state.rotation.T @ state.velocity
        state.begin(rotation, position + rotation @ self._imu, position_sigma, heading_sigma)
        state.points[:, 0] = velocity

    def _advance(self, reading: Reading, contact: BoolArray, dt: float) -> None:
        state, previous = self._filter, self._previous
        foot_noise = np.where(self._slipping[:, None], self._slip_noise, self._contact_noise)
        state.propagate(previous.gyro, previous.accel, dt, foot_noise, self._rolling_world)
        foot, jacobian = reading.posture.foot - self._imu, reading.posture.jacobian
        state.drop(~contact)
        state.correct_feet(foot, jacobian, (self.config.noise.sinking * self._detector.load) ** 2)
        state.add(contact, foot, jacobian)
        self._settle(reading, dt)

    def _settle(self, reading: Reading, dt: float) -> None:
        """Look at the feet with the corrected state; decides on the noise until the next reading."""
        state = self._filter
        self._previous = reading
        self._rolling_world = self._rolling(reading, state.rotation)
        if not self.rejects_slip:
            return
        rate = reading.gyro - state.gyro_bias
        relative = reading.foot_velocity + cross(rate, reading.posture.foot - self._imu)
        over_ground = state.velocity + relative @ state.rotation.T - self._rolling_world
        over_ground = over_ground[:, self._slip_axes]
        fast = (over_ground * over_ground).sum(axis=1) > self.config.slip_speed**2
        # That every foot slips says as much of the velocity they are measured by. Rejected for ever, nothing would mend
        # it: after a while all are believed again, until one of them is found standing still.
        if (state.standing & ~fast).any():
            self._without_hold = 0.0
        elif state.standing.any():
            self._without_hold += dt
        believed = self._without_hold > self.config.slip_patience
        self._slipping = state.standing & fast & (not believed)

    def _attitude(self) -> FloatArray:
        return self._filter.rotation

    def _estimate(self, reading: Reading, contact: BoolArray) -> Estimate:
        state = self._filter
        rate = reading.gyro - state.gyro_bias
        position = state.position - state.rotation @ self._imu
        return Estimate(
            reading.stamp_ns,
            position,
            quaternion(state.rotation),
            state.rotation.T @ state.velocity - cross(rate, self._imu),
            rate,
            None,
            False,
            state.pose_covariance(position),
            state.twist_covariance(),
            contact,
        )


class IekfSlipRejection(Iekf):
    """The same, but a standing foot that moves over the ground faster than a threshold may slip: it is kept and still
    corrects, with more noise, unless all feet that stand have seemed to slip for a while."""

    name = "iekf_sr"
    rejects_slip = True
