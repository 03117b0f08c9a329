"""TraceEstimator: the only code that turns samples into poses; the node, the evaluator and the demo all call it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from trace_ros.errors import TraceError
from trace_ros.estimator import observation as obs
from trace_ros.estimator.checkpoint import LoadedModel, load_model
from trace_ros.estimator.differentiation import JointDifferentiator
from trace_ros.estimator.observation import MAX_GAP_S
from trace_ros.estimator.interface import Output
from trace_ros.estimator.odometry import PoseIntegrator
from trace_ros.estimator.stationary import StationaryDetector
from trace_ros.geometry import GRAVITY, tilt_from_gravity
from trace_ros.logs import Sample
from trace_ros.robot import RobotDescription

FloatArray = NDArray[np.float64]

_STEADY_FORCE = 1.0
"""Change of the specific force (m/s^2) within a window at which it is worth no more than the guess of a level body."""

_NO_MOTION = ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), (0.0, 0.0, 0.0))


@dataclass(frozen=True)
class Estimate:
    """Where the body is after one sample.

    Attributes:
        stamp_ns: the sample's stamp, ns.
        position: (3,) m, odometry frame.
        orientation: (4,) quaternion x, y, z, w, body to odometry frame.
        velocity: (3,) m/s, body frame.
        angular_velocity: (3,) rad/s, body frame.
        attention: (6,) head-mean attention over the tokens accel, gyro, FL, FR, RL, RR; sums to 1. None from an
            estimator without attention.
        stationary: whether the stationary clamp holds the pose.
        pose_covariance: (6, 6), x, y, z, rotation about X, Y, Z, fixed axes of the odometry frame.
        twist_covariance: (6, 6), linear x, y, z, angular x, y, z, body frame.
        contact: (4,) which feet the estimator takes to stand (FL, FR, RL, RR), or None.
    """

    stamp_ns: int
    position: FloatArray
    orientation: FloatArray
    velocity: FloatArray
    angular_velocity: FloatArray
    attention: NDArray[np.float32] | None
    stationary: bool
    pose_covariance: FloatArray
    twist_covariance: FloatArray
    contact: NDArray[np.bool_] | None = None


class TraceEstimator:
    """Feeds samples to the network, feeds its output back, and integrates the pose.

    The first 29 samples fill the window and give no estimate. The 30th gives the first one, at the initial pose: the
    one that was set, else position zero, heading zero, and roll and pitch from the specific force of the window, as far
    as that is steady (see `initial_tilt`).
    """

    name = "trace"
    outputs: frozenset[Output] = frozenset({"velocity", "attention", "stationary"})

    def __init__(self, model: LoadedModel, robot: RobotDescription) -> None:
        """Use a loaded model on a robot.

        Raises:
            TraceError: the model was trained for another robot.
        """
        model.check_robot(robot)
        self.model = model
        self.robot = robot
        self._network = model.module
        self._nominal_dt = 1.0 / model.card.rate_hz
        self._trained_intervals = model.card.trained_intervals_s
        self._window = obs.ObservationWindow()
        self._stationary = StationaryDetector(robot.stationary)
        self._pose = PoseIntegrator(model.card.error_model)
        self._absent_torque = model.absent_torque
        self._differentiator = JointDifferentiator()
        # The network reads the observation through this tensor; both share one buffer, so a step copies nothing.
        self._observation = np.zeros(obs.OBSERVATION_SIZE, dtype=np.float32)
        self._observation_tensor = torch.from_numpy(self._observation)
        self.reset()

    @property
    def source(self) -> str:
        """The model's file."""
        return str(self.model.path)

    @classmethod
    def load(cls, model: Path, robot: RobotDescription) -> TraceEstimator:
        """Load a TorchScript checkpoint for a robot.

        Raises:
            TraceError: no such file, not a checkpoint of this package, or trained for another robot.
        """
        return cls(load_model(model), robot)

    def reset(self) -> None:
        """Forget everything: window, network state, pose, covariance. A reset run equals a fresh one."""
        self._pose.set_pose((0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0))
        self._pose_is_set = False
        self._last_stamp_ns: int | None = None
        self._differentiator.reset()
        self._velocity = (0.0, 0.0, 0.0)
        self._restart()

    def _restart(self) -> None:
        self._window.clear()
        self._stationary.reset()
        self._state: tuple[torch.Tensor, ...] | None = None
        self._unobserved_s = 0.0

    def set_pose(self, position: FloatArray, orientation: FloatArray) -> None:
        """Put the body elsewhere; the network's state is kept.

        Args:
            position: (3,) m.
            orientation: (4,) quaternion x, y, z, w.

        Raises:
            TraceError: not finite, wrong length, or a zero quaternion.
        """
        try:
            x, y, z = (float(value) for value in position)
            qx, qy, qz, qw = (float(value) for value in orientation)
            self._pose.set_pose((x, y, z), (qx, qy, qz, qw))
        except ValueError as error:
            raise TraceError(f"set_pose: {error}") from error
        self._pose_is_set = True

    def step(self, sample: Sample) -> Estimate | None:
        """Take in one sample.

        Returns:
            The estimate at the sample's stamp, or None while the window fills (after a start, a reset or a gap).

        Raises:
            ValueError: the stamp does not come after the previous one.
        """
        dt = self._elapsed(sample.stamp_ns)
        if dt > MAX_GAP_S:
            self._restart()
        if self._state is None:
            self._unobserved_s += dt
        joint_velocity = self._joint_velocity(sample, dt)
        # An interval unknown to training (samples were lost, or stamped in bursts) is not told to the network: its
        # motion, a rate times dt, is stretched to the true one instead.
        shortest, longest = self._trained_intervals
        told_dt = dt if shortest <= dt <= longest else self._nominal_dt
        self._observe(sample, joint_velocity, told_dt)
        still = self._stationary.update(
            sample.stamp_ns, sample.angular_velocity, sample.linear_acceleration, joint_velocity
        )
        if not self._window.full:
            return None
        starting = self._state is None
        if self._state is None:
            self._state = self._start()
        with torch.inference_mode():
            output, attention, self._state = self._network.step(self._observation_tensor, self._state)
        dx, dy, dz, rx, ry, rz, vx, vy, vz = output.tolist()
        stretch = dt / told_dt
        displacement = (stretch * dx, stretch * dy, stretch * dz)
        rotation = (stretch * rx, stretch * ry, stretch * rz)
        self._velocity = (vx, vy, vz)
        attended = attention.numpy()
        if still:
            displacement, rotation, self._velocity = _NO_MOTION
            self._pose.hold()
        else:
            doubt = float(attended[0]) + float(attended[1])
            follow = self._pose.stay if starting else self._pose.advance
            follow(displacement, rotation, dt, doubt)
        return Estimate(
            sample.stamp_ns,
            np.array(self._pose.position),
            np.array(self._pose.orientation),
            np.array(self._velocity),
            np.zeros(3) if still else np.array(rotation) / dt,
            attended,
            still,
            self._pose.covariance,
            self._pose.twist_covariance,
        )

    def _elapsed(self, stamp_ns: int) -> float:
        """Seconds since the previous sample; the trained interval for the first."""
        if self._last_stamp_ns is None:
            self._last_stamp_ns = stamp_ns
            return self._nominal_dt
        if stamp_ns <= self._last_stamp_ns:
            raise ValueError(f"stamp {stamp_ns} ns does not come after {self._last_stamp_ns} ns")
        dt = (stamp_ns - self._last_stamp_ns) * 1e-9
        self._last_stamp_ns = stamp_ns
        return dt

    def _joint_velocity(self, sample: Sample, dt: float) -> FloatArray:
        """The reported joint velocity, else positions differentiated and low-passed. (12,) rad/s."""
        if sample.joint_velocity is not None:
            # Positions that are not followed sample by sample are too old to be differentiated later.
            self._differentiator.reset()
            return sample.joint_velocity
        return self._differentiator.update(sample.joint_position, dt)

    def _observe(self, sample: Sample, joint_velocity: FloatArray, dt: float) -> None:
        observation = self._observation
        observation[obs.GYRO] = sample.angular_velocity
        observation[obs.ACCEL] = sample.linear_acceleration
        observation[obs.JOINT_POSITION] = sample.joint_position
        observation[obs.JOINT_VELOCITY] = joint_velocity
        observation[obs.JOINT_TORQUE] = self._absent_torque if sample.joint_torque is None else sample.joint_torque
        observation[obs.ROLL_PITCH] = self._pose.roll_pitch
        observation[obs.VELOCITY_XY] = self._velocity[:2]
        observation[obs.DT] = dt
        self._window.append(observation)

    def _start(self) -> tuple[torch.Tensor, ...]:
        """The network's state before the sample that filled the window; settles the initial roll and pitch."""
        window = self._window.view().copy()
        if not self._pose_is_set:
            roll, pitch = initial_tilt(window[:, obs.ACCEL].astype(np.float64)).tolist()
            self._pose.set_pose((0.0, 0.0, 0.0), _level(roll, pitch))
            self._pose_is_set = True
        else:
            # Nothing was seen since the last estimate: at the last speed, this is how far the body may have gone.
            speed = float(np.linalg.norm(self._velocity))
            self._pose.widen(speed * self._unobserved_s)
        # Gravity just told the attitude, or a pose was set while the window filled.
        window[:, obs.ROLL_PITCH] = self._pose.roll_pitch
        self._observation[obs.ROLL_PITCH] = self._pose.roll_pitch
        with torch.inference_mode():
            state: tuple[torch.Tensor, ...] = self._network.prime(torch.from_numpy(window[:-1]))
        return state


def initial_tilt(specific_force: FloatArray) -> FloatArray:
    """Roll and pitch (rad) to start with, from the specific force of a window (N, 3), m/s^2. ``-> (2,)``.

    A body at rest reads gravity. In a trot the mean over 60 ms is off by the body's own acceleration, a tilt of 0.15
    rad and more, while robots seldom lean by so much: the less steady the force, the nearer to level.
    """
    half = len(specific_force) // 2
    change = np.linalg.norm(specific_force[half:].mean(axis=0) - specific_force[:half].mean(axis=0))
    mean = specific_force.mean(axis=0)
    excess = np.linalg.norm(mean) - GRAVITY
    trust = 1.0 / (1.0 + (change**2 + excess**2) / _STEADY_FORCE**2)
    return np.asarray(trust * tilt_from_gravity(mean))


def _level(roll: float, pitch: float) -> tuple[float, float, float, float]:
    """Quaternion x, y, z, w of roll and pitch with heading zero."""
    cr, sr = np.cos(roll / 2), np.sin(roll / 2)
    cp, sp = np.cos(pitch / 2), np.sin(pitch / 2)
    return float(sr * cp), float(cr * sp), float(-sr * sp), float(cr * cp)
