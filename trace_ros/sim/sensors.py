"""The sensor model: what real sensors make of what perfect ones would say.

Everything is drawn anew for each call, so training can use one simulated rollout many times with different noise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, field_validator
from scipy.spatial.transform import Rotation

from trace_ros.logs import JOINTS, SensorLog
from trace_ros.sim.ranges import STRICT, Range, draw
from trace_ros.sim.signals import Signals

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
NotNegative = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, le=1)]

LARGEST_DELAY_S = 0.05
SLOWEST_UPDATE_HZ = 50.0


class SensorConfig(BaseModel):
    """Standard deviations unless said otherwise; zero switches a term off. Defaults: a MEMS IMU of a Go2's class after
    calibration at rest, read without delay.

    All of a log's own is drawn once for it: factors, delays, clocks, biases, offsets, misalignment, absent channels.
    A ``[low, high]`` is a uniform distribution.

    Attributes:
        noise_scale: [low, high] factor on all of the IMU's noise, biases, walks and scale errors, and another one from
            the same range on all noise and offsets of the joints: good and bad sensors. [1, 1]: off.
        gyro_noise: rad/s, white, each reading.
        gyro_bias: rad/s, constant over a log.
        gyro_walk: rad/s per square root of a second, random walk of the bias.
        gyro_scale: error of each axis's scale factor, as a part of one.
        accel_noise, accel_bias, accel_walk: m/s^2, likewise; accel_scale: a part of one.
        misalignment: rad, of the IMU about each body axis, constant over a log.
        encoder_noise: rad, white; encoder_offset: rad, constant over a log.
        joint_velocity_noise: rad/s, white.
        joint_velocity_lag: s, time constant of the low-pass that derives the joint velocity, [low, high].
        torque_noise: N m, white.
        imu_delay, joint_delay: s, how much older than its stamp a reading is, [low, high]; at most 0.05.
        imu_held, joint_held: probability that these sensors update by a clock of their own; in between, the log
            repeats their last reading.
        imu_update_rate, joint_update_rate: Hz, rate of that clock, [low, high]; at least 50. An IMU then averages over
            its own interval.
        joint_velocity_absent, joint_torque_absent: probability that a log is without that channel.
    """

    model_config = STRICT
    noise_scale: Range = (1.0, 1.0)
    gyro_noise: NotNegative = 0.015
    gyro_bias: NotNegative = 0.002
    gyro_walk: NotNegative = 1e-4
    gyro_scale: NotNegative = 0.0
    accel_noise: NotNegative = 0.15
    accel_bias: NotNegative = 0.05
    accel_walk: NotNegative = 2e-3
    accel_scale: NotNegative = 0.0
    misalignment: NotNegative = 0.005
    encoder_noise: NotNegative = 0.002
    encoder_offset: NotNegative = 0.005
    joint_velocity_noise: NotNegative = 0.1
    joint_velocity_lag: Range = (0.0, 0.003)
    torque_noise: NotNegative = 0.3
    imu_delay: Range = (0.0, 0.0)
    joint_delay: Range = (0.0, 0.0)
    imu_held: Probability = 0.0
    imu_update_rate: Range = (200.0, 400.0)
    joint_held: Probability = 0.0
    joint_update_rate: Range = (200.0, 400.0)
    joint_velocity_absent: Probability = 0.0
    joint_torque_absent: Probability = 0.0

    @field_validator("noise_scale", "joint_velocity_lag", "imu_delay", "joint_delay")
    @classmethod
    def _not_negative(cls, value: tuple[float, float]) -> tuple[float, float]:
        if value[0] < 0:
            raise ValueError(f"expected no negative numbers, got {list(value)}")
        return value

    @field_validator("imu_delay", "joint_delay")
    @classmethod
    def _short(cls, value: tuple[float, float]) -> tuple[float, float]:
        if value[1] > LARGEST_DELAY_S:
            raise ValueError(f"expected seconds, at most {LARGEST_DELAY_S}, got {list(value)}")
        return value

    @field_validator("imu_update_rate", "joint_update_rate")
    @classmethod
    def _fast(cls, value: tuple[float, float]) -> tuple[float, float]:
        if value[0] < SLOWEST_UPDATE_HZ:
            raise ValueError(f"expected Hz, at least {SLOWEST_UPDATE_HZ:g}, got {list(value)}")
        return value


@dataclass(frozen=True)
class Readings:
    """When a sensor made the readings that a log of N samples holds.

    Attributes:
        begin, end: (K,) s, the interval of each reading; a sensor that does not average reads at its end.
        index: (N,) the reading that each sample holds.
    """

    begin: FloatArray
    end: FloatArray
    index: IntArray


@dataclass(frozen=True)
class SensorClock:
    """How a sensor's readings lie in time against the samples' stamps.

    Attributes:
        delay: s, age of a reading when it becomes known.
        period: s between its own updates, or None: it is read for each sample.
        phase: part of a period, where its updates lie.
    """

    delay: float = 0.0
    period: float | None = None
    phase: float = 0.0

    @classmethod
    def draw(
        cls,
        delay: tuple[float, float],
        held: float,
        update_rate: tuple[float, float],
        rng: np.random.Generator,
    ) -> SensorClock:
        """One sensor's: delay (s, [low, high]), probability of a clock of its own, and that clock's rate (Hz)."""
        own = rng.random() < held
        rate, phase = draw(rng, update_rate), float(rng.random())
        return cls(draw(rng, delay), 1.0 / rate if own else None, phase)

    def readings(self, time: FloatArray) -> Readings:
        """The readings that are known at the instants (N,) of the samples, N > 0."""
        newest = time - self.delay
        if self.period is None:
            usual = float(np.median(np.diff(newest))) if len(newest) > 1 else 1e-3
            begin = np.concatenate((newest[:1] - usual, newest[:-1]))
            return Readings(begin, newest, np.arange(len(newest)))
        number = np.floor(newest / self.period - self.phase).astype(np.int64)
        end = (np.arange(number[0], number[-1] + 1) + self.phase) * self.period
        return Readings(end - self.period, end, number - number[0])


@dataclass(frozen=True)
class SensorSet:
    """The sensors of one log: what is drawn once for it, but for biases and offsets.

    Attributes:
        config: what they are drawn from.
        imu_scale, joint_scale: factors on the configured noise.
        imu, joints: their clocks.
        velocity_lag: s.
        has_velocity, has_torque: whether the channel is there.
    """

    config: SensorConfig
    imu_scale: float
    joint_scale: float
    imu: SensorClock
    joints: SensorClock
    velocity_lag: float
    has_velocity: bool
    has_torque: bool

    @classmethod
    def draw(cls, config: SensorConfig, rng: np.random.Generator) -> SensorSet:
        """The sensors of one log."""
        return cls(
            config,
            draw(rng, config.noise_scale),
            draw(rng, config.noise_scale),
            SensorClock.draw(config.imu_delay, config.imu_held, config.imu_update_rate, rng),
            SensorClock.draw(config.joint_delay, config.joint_held, config.joint_update_rate, rng),
            draw(rng, config.joint_velocity_lag),
            rng.random() >= config.joint_velocity_absent,
            rng.random() >= config.joint_torque_absent,
        )

    def read(self, clean: SensorLog, signals: Signals, rng: np.random.Generator) -> SensorLog:
        """What these sensors say at the stamps of a log.

        Args:
            clean: the stamps, and what is kept: reference and labels.
            signals: what there is to measure.
            rng: of noise, biases and offsets.
        """
        if not len(clean):
            return clean
        time: FloatArray = np.asarray(clean.stamp_ns - signals.epoch_ns, dtype=np.float64) * 1e-9
        gyro, accel = self._read_imu(signals, self.imu.readings(time), rng)
        readings = self.joints.readings(time)
        joints = signals.with_velocity_lag(self.velocity_lag).joints(readings.end)
        shape, scale, config = (len(readings.end), JOINTS), self.joint_scale, self.config
        offset = rng.normal(0.0, 1.0, JOINTS) * scale * config.encoder_offset
        position = joints.position + offset + rng.normal(0.0, 1.0, shape) * scale * config.encoder_noise
        velocity, torque = joints.velocity, joints.torque
        if velocity is not None:
            velocity = velocity + rng.normal(0.0, 1.0, shape) * scale * config.joint_velocity_noise
        if torque is not None:
            torque = torque + rng.normal(0.0, 1.0, shape) * scale * config.torque_noise
        has_torque = torque is not None and self.has_torque
        return replace(
            clean,
            angular_velocity=gyro,
            linear_acceleration=accel,
            joint_position=position[readings.index],
            joint_velocity=velocity[readings.index] if velocity is not None and self.has_velocity else None,
            joint_torque=torque[readings.index] if torque is not None and self.has_torque else None,
            torque_source=clean.torque_source if has_torque else "none",
        )

    def _read_imu(
        self, signals: Signals, readings: Readings, rng: np.random.Generator
    ) -> tuple[FloatArray, FloatArray]:
        mounting = Rotation.from_rotvec(rng.normal(0.0, 1.0, 3) * self.config.misalignment)
        period = np.diff(readings.end, prepend=readings.end[0])

        def measure(true: FloatArray, noise: float, bias: float, walk: float, scale: float) -> FloatArray:
            drift = np.cumsum(rng.normal(0.0, 1.0, true.shape) * (walk * np.sqrt(period))[:, None], axis=0)
            wrong = rng.normal(0.0, 1.0, 3) * bias + drift + rng.normal(0.0, 1.0, true.shape) * noise
            factor = 1 + rng.normal(0.0, 1.0, 3) * scale * self.imu_scale
            return np.asarray((mounting.apply(true) * factor + self.imu_scale * wrong)[readings.index])

        config = self.config
        gyro, accel = signals.imu(readings.begin, readings.end)
        return (
            measure(gyro, config.gyro_noise, config.gyro_bias, config.gyro_walk, config.gyro_scale),
            measure(accel, config.accel_noise, config.accel_bias, config.accel_walk, config.accel_scale),
        )

    def describe(self) -> dict[str, float]:
        """What was drawn, by name, for a rollout's record."""
        return {
            "imu_noise_scale": self.imu_scale,
            "joint_noise_scale": self.joint_scale,
            "imu_delay": self.imu.delay,
            "joint_delay": self.joints.delay,
            "imu_update_hz": 1.0 / self.imu.period if self.imu.period else 0.0,
            "joint_update_hz": 1.0 / self.joints.period if self.joints.period else 0.0,
            "joint_velocity_absent": float(not self.has_velocity),
            "joint_torque_absent": float(not self.has_torque),
        }


def apply_sensor_model(clean: SensorLog, config: SensorConfig, rng: np.random.Generator) -> SensorLog:
    """What real sensors make of a noise-free log; reference and labels stay as they are.

    Readings between the samples (delays, clocks of their own) are interpolated; with the physics at hand use
    `trace_ros.sim.recording.record`, which reads them from there.
    """
    return SensorSet.draw(config, rng).read(clean, Signals.of_log(clean), rng) if len(clean) else clean
