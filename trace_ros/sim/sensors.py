"""The sensor model: what real sensors make of what perfect ones would say.

Everything is drawn anew for each call, so training can use one simulated rollout many times with different noise.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field
from scipy.signal import lfilter
from scipy.spatial.transform import Rotation

from trace_ros.logs import JOINTS, SensorLog
from trace_ros.sim.ranges import STRICT, Range, draw

FloatArray = NDArray[np.float64]
NotNegative = Annotated[float, Field(ge=0)]


class SensorConfig(BaseModel):
    """Standard deviations unless said otherwise; zero switches a term off. Defaults: a MEMS IMU of a Go2's class after
    calibration at rest.

    Attributes:
        gyro_noise: rad/s, white, each sample.
        gyro_bias: rad/s, constant over a log.
        gyro_walk: rad/s per square root of a second, random walk of the bias.
        accel_noise, accel_bias, accel_walk: m/s^2, likewise.
        misalignment: rad, of the IMU about each body axis, constant over a log.
        encoder_noise: rad, white; encoder_offset: rad, constant over a log.
        joint_velocity_noise: rad/s, white.
        joint_velocity_lag: s, time constant of the low-pass that derives the joint velocity, [low, high].
        torque_noise: N m, white.
    """

    model_config = STRICT
    gyro_noise: NotNegative = 0.015
    gyro_bias: NotNegative = 0.002
    gyro_walk: NotNegative = 1e-4
    accel_noise: NotNegative = 0.15
    accel_bias: NotNegative = 0.05
    accel_walk: NotNegative = 2e-3
    misalignment: NotNegative = 0.005
    encoder_noise: NotNegative = 0.002
    encoder_offset: NotNegative = 0.005
    joint_velocity_noise: NotNegative = 0.1
    joint_velocity_lag: Range = (0.0, 0.003)
    torque_noise: NotNegative = 0.3


def apply_sensor_model(clean: SensorLog, config: SensorConfig, rng: np.random.Generator) -> SensorLog:
    """Add noise, biases, misalignment, offsets and lag to a noise-free log; reference and labels stay as they are."""
    n = len(clean)
    if not n:
        return clean
    period = np.diff(clean.stamp_ns, prepend=clean.stamp_ns[0]) * 1e-9
    mounting = Rotation.from_rotvec(rng.normal(0.0, 1.0, 3) * config.misalignment)

    def imu(values: FloatArray, noise: float, bias: float, walk: float) -> FloatArray:
        drift = np.cumsum(rng.normal(0.0, 1.0, (n, 3)) * (walk * np.sqrt(period))[:, None], axis=0)
        return mounting.apply(values) + rng.normal(0.0, 1.0, 3) * bias + drift + rng.normal(0.0, 1.0, (n, 3)) * noise

    gyro = imu(clean.angular_velocity, config.gyro_noise, config.gyro_bias, config.gyro_walk)
    accel = imu(clean.linear_acceleration, config.accel_noise, config.accel_bias, config.accel_walk)
    position = (
        clean.joint_position
        + rng.normal(0.0, 1.0, JOINTS) * config.encoder_offset
        + rng.normal(0.0, 1.0, (n, JOINTS)) * config.encoder_noise
    )
    lag = draw(rng, config.joint_velocity_lag)
    velocity = clean.joint_velocity
    if velocity is not None:
        velocity = _low_pass(velocity, lag, float(np.median(period[1:])) if n > 1 else 0.0)
        velocity = velocity + rng.normal(0.0, 1.0, (n, JOINTS)) * config.joint_velocity_noise
    torque = clean.joint_torque
    if torque is not None:
        torque = torque + rng.normal(0.0, 1.0, (n, JOINTS)) * config.torque_noise
    return replace(
        clean,
        angular_velocity=gyro,
        linear_acceleration=accel,
        joint_position=position,
        joint_velocity=velocity,
        joint_torque=torque,
    )


def _low_pass(values: FloatArray, time_constant: float, period: float) -> FloatArray:
    """First-order low-pass that starts at the first value."""
    if time_constant <= 0 or period <= 0:
        return values
    keep = np.exp(-period / time_constant)
    filtered, _ = lfilter([1 - keep], [1, -keep], values, axis=0, zi=keep * values[:1])
    return filtered
