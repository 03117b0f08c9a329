"""NMN-IEKF: the invariant filter with a network's contacts, and its body velocity as a measurement."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trace_ros.baselines.cards import NmnCard
from trace_ros.baselines.config import BaselineConfig
from trace_ros.baselines.contact import ContactDetector, Reading
from trace_ros.baselines.iekf import Iekf
from trace_ros.baselines.invariant_filter import SIZE, VELOCITY
from trace_ros.baselines.learned import FrameBuffer, LearnedModel, load_learned
from trace_ros.baselines.nmn_network import FRAME_SIZE
from trace_ros.errors import TraceError
from trace_ros.leg_model import LegModel
from trace_ros.logs import Sample
from trace_ros.resources import config_directory, read_yaml
from trace_ros.robot import RobotDescription, describe_validation_error

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

_GYRO, _ACCEL = slice(0, 3), slice(3, 6)
_POSITION, _JOINT_VELOCITY, _TORQUE = slice(6, 18), slice(18, 30), slice(30, 42)
_DT = 42


class NmnFilterConfig(BaseModel):
    """How the filter takes the network's measurements (``config/baselines/nmn.yaml``).

    Attributes:
        standing_probability: above which a foot stands (paper: 0.5).
        cutoff: Hz, of a first-order low-pass on the network's outputs (the paper has one on the robot); 0 without.
        velocity_lasts: s, for which errors of the velocity hang together. The filter takes measurements to be
            independent, so each counts as its sampling interval's share of this.
        velocity_scale: factor on the standard deviation of the velocity.
        still_speed: m/s; below it the velocity is not taken as a measurement while the joints are still (the paper
            suppresses it at very low speed).
        still_joints: rad/s, of the fastest joint.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    standing_probability: Annotated[float, Field(gt=0, lt=1)] = 0.5
    cutoff: Annotated[float, Field(ge=0)] = 50.0
    velocity_lasts: Annotated[float, Field(ge=0)] = 0.3
    velocity_scale: Annotated[float, Field(gt=0)] = 1.0
    still_speed: Annotated[float, Field(ge=0)] = 0.05
    still_joints: Annotated[float, Field(ge=0)] = 0.3

    @classmethod
    def load(cls, path: Path | None = None) -> NmnFilterConfig:
        """Read a file, by default the package's own.

        Raises:
            TraceError: unreadable, not YAML, or an unknown or bad key.
        """
        path = path or config_directory() / "baselines" / "nmn.yaml"
        try:
            return cls.model_validate(read_yaml(path) or {})
        except ValidationError as error:
            raise TraceError(f"{path}: {describe_validation_error(error)}") from error


class NmnContact(ContactDetector):
    """Runs the network, and tells the feet that stand by its probabilities instead of the ground reaction force."""

    def __init__(
        self,
        robot: RobotDescription,
        legs: LegModel,
        config: BaselineConfig,
        model: LearnedModel[NmnCard],
        numbers: NmnFilterConfig,
    ) -> None:
        self._module = model.module
        self._numbers = numbers
        self._nominal_dt = 1.0 / model.card.rate_hz
        self._intervals = model.card.trained_intervals_s
        self._frame = FrameBuffer(FRAME_SIZE)
        super().__init__(robot, legs, config.contact)

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self._state: Any = None
        self.probability = np.zeros(4)
        """(4,) that each foot stands."""
        self.velocity = np.zeros(3)
        """(3,) m/s, of the base link, body frame."""
        self.variance = np.ones(3)
        """(3,) m^2/s^2, of the velocity."""

    def see(self, sample: Sample) -> None:
        """Take in what a reading does not hold."""
        self._frame.values[_POSITION] = sample.joint_position

    def update(self, reading: Reading, up: FloatArray, dt: float) -> BoolArray:
        """See `ContactDetector.update`; the ground reaction force still tells the load of each foot."""
        super().update(reading, up, dt)
        shortest, longest = self._intervals
        frame = self._frame.values
        frame[_GYRO] = reading.gyro
        frame[_ACCEL] = reading.accel
        frame[_JOINT_VELOCITY] = reading.joint_velocity
        frame[_TORQUE] = np.nan if reading.joint_torque is None else reading.joint_torque
        frame[_DT] = dt if shortest <= dt <= longest else self._nominal_dt
        first = self._state is None
        with torch.inference_mode():
            if first:
                self._state = self._module.prime(self._frame.tensor)
            probability, velocity, variance, self._state = self._module.step(self._frame.tensor, self._state)
        cutoff = self._numbers.cutoff
        weight = 1.0 if first or not cutoff else 1.0 - math.exp(-2.0 * math.pi * cutoff * dt)
        self.probability = self.probability + weight * (probability.numpy() - self.probability)
        self.velocity = self.velocity + weight * (velocity.numpy() - self.velocity)
        self.variance = variance.numpy().astype(float)
        return np.asarray(self.probability > self._numbers.standing_probability)


class NmnIekf(Iekf):
    """The filter of `Iekf` without slip rejection, fed by the network."""

    name = "nmn_iekf"

    def __init__(
        self,
        model: LearnedModel[NmnCard],
        robot: RobotDescription,
        config: BaselineConfig | None = None,
        numbers: NmnFilterConfig | None = None,
    ) -> None:
        """Use a model on a robot.

        Args:
            model: of the network.
            robot: that it was trained for.
            config: of the filter, by default the package's own.
            numbers: of the measurements, by default the package's own.

        Raises:
            TraceError: the model was trained for another robot.
        """
        model.card.check_robot(robot, model.path)
        self.model = model
        self.numbers = numbers or NmnFilterConfig.load()
        super().__init__(robot, config, str(model.path))
        self._network = NmnContact(robot, self._legs, self.config, model, self.numbers)
        self._detector = self._network
        self.reset()

    @classmethod
    def load(cls, path: Path, robot: RobotDescription) -> NmnIekf:
        """Load a model for a robot.

        Raises:
            TraceError: see `load_learned`; or it was trained for another robot.
        """
        return cls(load_learned(path, NmnCard), robot)

    @property
    def rate_hz(self) -> float:
        """Of the samples that the model was trained with, Hz."""
        return self.model.card.rate_hz

    @property
    def joint_delay_s(self) -> float:
        """How much older joint readings are than IMU readings of the same stamp, s; whoever pairs them sees to it."""
        return self.model.card.joint_delay

    @property
    def probability(self) -> FloatArray:
        """(4,) that each foot stands, by the network, at the last sample."""
        return self._network.probability

    def _read(self, sample: Sample, dt: float) -> Reading:
        self._network.see(sample)
        return super()._read(sample, dt)

    def _advance(self, reading: Reading, contact: BoolArray, dt: float) -> None:
        super()._advance(reading, contact, dt)
        if self._correct_velocity(reading, dt):
            self._settle(reading, 0.0)  # its time has been counted

    def _correct_velocity(self, reading: Reading, dt: float) -> bool:
        """The network's velocity as a right-invariant measurement, ``R v_network - v``: its row is the velocity's.

        The network's is the base link's, the state's the IMU's.
        """
        numbers, state, velocity = self.numbers, self._filter, self._network.velocity
        slow = float(np.linalg.norm(velocity)) < numbers.still_speed
        if slow and np.abs(reading.joint_velocity).max() < numbers.still_joints:
            return False
        at_imu = velocity + np.cross(reading.gyro - state.gyro_bias, self._imu)
        rows = np.zeros((3, SIZE))
        rows[:, VELOCITY] = np.eye(3)
        share = numbers.velocity_scale**2 * max(1.0, numbers.velocity_lasts / dt)
        noise = (state.rotation * (share * self._network.variance)) @ state.rotation.T
        state.correct(state.rotation @ at_imu - state.velocity, rows, noise)
        return True
