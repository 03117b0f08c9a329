"""Legolas as an estimator: its increments add up to a pose, with the variances that it states itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from trace_ros.baselines.attitude import GravityTilt
from trace_ros.baselines.cards import LegolasCard
from trace_ros.baselines.config import FilterPrior
from trace_ros.baselines.learned import FrameBuffer, LearnedModel, load_learned
from trace_ros.baselines.legolas_network import FRAME_SIZE
from trace_ros.estimator.differentiation import JointDifferentiator
from trace_ros.estimator.estimator import Estimate, initial_tilt
from trace_ros.estimator.interface import Output, checked_initial_pose, checked_pose
from trace_ros.estimator.observation import MAX_GAP_S, WINDOW
from trace_ros.geometry import skew
from trace_ros.logs import Sample
from trace_ros.robot import RobotDescription

FloatArray = NDArray[np.float64]

_GYRO, _TILT = slice(0, 3), slice(3, 5)
_POSITION, _VELOCITY, _TORQUE = slice(5, 17), slice(17, 29), slice(29, 41)
_DT = 41
_MOVING = 0.5
"""Probability above which the body moves."""


class LegolasEstimator:
    """Adds up the network's increments while it says that the body moves.

    As with the others, the first 29 samples give no estimate, the 30th gives the initial pose: the one that was set,
    else the initial position and heading, and roll and pitch from the specific force. After a gap the same again, from
    the last pose. The network sees each sample from the first on; before that stands the first one again, as in
    training. It gives no velocity: estimates hold displacement over time instead, which ``outputs`` leaves out.
    """

    name = "legolas"
    outputs: frozenset[Output] = frozenset({"stationary"})

    def __init__(self, model: LearnedModel[LegolasCard], robot: RobotDescription) -> None:
        """Use a model on a robot.

        Raises:
            TraceError: it was trained for another one.
        """
        model.card.check_robot(robot, model.path)
        self.model = model
        self.robot = robot
        self._nominal_dt = 1.0 / model.card.rate_hz
        self._intervals = model.card.trained_intervals_s
        self._frame = FrameBuffer(FRAME_SIZE)
        self._prior = FilterPrior()
        self._tilt = GravityTilt()
        self._differentiator = JointDifferentiator()
        self._initial_position, self._initial_heading = np.zeros(3), 0.0
        self.reset()

    @classmethod
    def load(cls, path: Path, robot: RobotDescription) -> LegolasEstimator:
        """Load a model for a robot.

        Raises:
            TraceError: see `load_learned`; or it was trained for another robot.
        """
        return cls(load_learned(path, LegolasCard), robot)

    @property
    def source(self) -> str:
        """The model's file."""
        return str(self.model.path)

    @property
    def rate_hz(self) -> float:
        """Of the samples that the model was trained with, Hz."""
        return self.model.card.rate_hz

    @property
    def joint_delay_s(self) -> float:
        """How much older joint readings are than IMU readings of the same stamp, s; whoever pairs them sees to it."""
        return self.model.card.joint_delay

    def reset(self) -> None:
        """Forget everything. A reset run equals a fresh one."""
        self._last_stamp_ns: int | None = None
        self._pose: tuple[FloatArray, FloatArray] | None = None
        self._covariance = np.zeros((6, 6))
        self._speed = 0.0
        self._unobserved_s = 0.0
        self._sigmas = 0.0, 0.0
        self._is_placed = False
        """Whether the covariance is that of the pose: not where the pose was set, or was never known."""
        self._differentiator.reset()
        self._restart()

    def _restart(self) -> None:
        self._window: list[FloatArray] = []
        self._running = False
        self._state: Any = None
        self._tilt.reset()

    def set_initial_pose(self, position: FloatArray, heading: float) -> None:
        """Where runs begin, this one (where it has not begun) and those after a `reset`: m, and rad.

        Raises:
            TraceError: not finite, or wrong length.
        """
        self._initial_position, self._initial_heading = checked_initial_pose(position, heading)

    def set_pose(
        self, position: FloatArray, orientation: FloatArray, position_sigma: float = 0.0, heading_sigma: float = 0.0
    ) -> None:
        """Put the body elsewhere.

        Args:
            position: (3,) m.
            orientation: (4,) quaternion x, y, z, w.
            position_sigma: m; how uncertain each axis of the position is, beyond the least that is assumed.
            heading_sigma: rad; the same for the heading.

        Raises:
            TraceError: not finite, wrong length, or a zero quaternion.
        """
        self._pose = checked_pose(position, orientation, position_sigma, heading_sigma)
        self._sigmas = position_sigma, heading_sigma
        self._speed = 0.0
        self._is_placed = False
        if self._running:
            self._begin()

    def step(self, sample: Sample) -> Estimate | None:
        """Take in one sample.

        Returns:
            The estimate at the sample's stamp, or None while there is none yet (after a start, a reset or a gap).

        Raises:
            ValueError: the stamp does not come after the previous one.
        """
        dt = self._elapsed(sample.stamp_ns)
        if dt > MAX_GAP_S:
            self._restart()
        starting = not self._running
        if starting:
            self._unobserved_s += dt
        motion, variance, moving = self._run(sample, dt)
        if starting:
            self._window.append(np.array(sample.linear_acceleration))
            if len(self._window) < WINDOW:
                return None
            self._start()
        still = moving <= _MOVING
        if not (starting or still):
            self._advance(motion, variance)
        velocity = np.zeros(3) if still else motion[:3] / dt
        self._speed = float(np.linalg.norm(velocity))
        assert self._pose is not None
        position, rotation = self._pose
        return Estimate(
            sample.stamp_ns,
            position.copy(),
            Rotation.from_matrix(rotation).as_quat(),
            velocity,
            np.zeros(3) if still else motion[3:] / dt,
            None,
            still,
            self._covariance.copy(),
            np.diag(variance / (dt * dt)),
        )

    def _elapsed(self, stamp_ns: int) -> float:
        if self._last_stamp_ns is None:
            self._last_stamp_ns = stamp_ns
            return self._nominal_dt
        if stamp_ns <= self._last_stamp_ns:
            raise ValueError(f"stamp {stamp_ns} ns does not come after {self._last_stamp_ns} ns")
        dt = (stamp_ns - self._last_stamp_ns) * 1e-9
        self._last_stamp_ns = stamp_ns
        return dt

    def _run(self, sample: Sample, dt: float) -> tuple[FloatArray, FloatArray, float]:
        """Step the network: motion (6,) m and rad over ``dt``, its variance (6,), and how probably the body moves."""
        # An interval unknown to training is not told to the network: its motion is stretched to the true one instead.
        shortest, longest = self._intervals
        told_dt = dt if shortest <= dt <= longest else self._nominal_dt
        velocity = sample.joint_velocity
        if velocity is None:
            velocity = self._differentiator.update(sample.joint_position, dt)
        else:
            self._differentiator.reset()
        gyro, accel = sample.angular_velocity, sample.linear_acceleration
        frame = self._frame.values
        frame[_GYRO] = gyro
        # Before the first sample of a start nothing is known of the time that has passed.
        known_dt = self._nominal_dt if self._state is None else dt
        frame[_TILT] = self._tilt.update(gyro.tolist(), accel.tolist(), known_dt)
        frame[_POSITION] = sample.joint_position
        frame[_VELOCITY] = velocity
        frame[_TORQUE] = np.nan if sample.joint_torque is None else sample.joint_torque
        frame[_DT] = told_dt
        with torch.inference_mode():
            if self._state is None:
                self._state = self.model.module.prime(self._frame.tensor)
            motion, variance, moving, self._state = self.model.module.step(self._frame.tensor, self._state)
        stretch = dt / told_dt
        return stretch * motion.numpy().astype(float), stretch**2 * variance.numpy().astype(float), float(moving)

    def _start(self) -> None:
        if self._pose is None:
            roll, pitch = initial_tilt(np.array(self._window)).tolist()
            level = Rotation.from_euler("xyz", (roll, pitch, self._initial_heading))
            self._pose = self._initial_position.copy(), level.as_matrix()
        if not self._is_placed:
            self._begin()
        # Nothing was seen since the last estimate: at the last speed, this is how far the body may have gone.
        self._covariance[range(3), range(3)] += (self._speed * self._unobserved_s) ** 2
        self._running = True
        self._unobserved_s = 0.0

    def _begin(self) -> None:
        """The covariance of a pose that was just set."""
        prior, (position, heading) = self._prior, self._sigmas
        self._covariance = np.diag(
            [prior.position**2 + position**2] * 3 + [prior.tilt**2] * 2 + [prior.yaw**2 + heading**2]
        )
        self._sigmas = 0.0, 0.0
        self._is_placed = True

    def _advance(self, motion: FloatArray, variance: FloatArray) -> None:
        assert self._pose is not None
        position, rotation = self._pose
        moved = rotation @ motion[:3]
        transition = np.eye(6)
        transition[:3, 3:] = -skew(moved)
        covariance = transition @ self._covariance @ transition.T
        covariance[:3, :3] += (rotation * variance[:3]) @ rotation.T
        turned = rotation @ Rotation.from_rotvec(motion[3:]).as_matrix()
        # One Newton step towards the nearest rotation: rounding would add up.
        turned = turned @ (1.5 * np.eye(3) - 0.5 * turned.T @ turned)
        covariance[3:, 3:] += (turned * variance[3:]) @ turned.T
        self._covariance = (covariance + covariance.T) / 2
        self._pose = position + moved, turned
