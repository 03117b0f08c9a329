"""What the model-based estimators have in common: from samples to readings, start and gaps, a pose that is set."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from trace_ros.baselines.config import BaselineConfig, default_config
from trace_ros.baselines.contact import ContactDetector, Reading
from trace_ros.estimator.differentiation import JointDifferentiator
from trace_ros.estimator.estimator import Estimate, initial_tilt
from trace_ros.estimator.interface import Output, checked_initial_pose, checked_pose
from trace_ros.estimator.observation import MAX_GAP_S, WINDOW
from trace_ros.leg_model import LegModel, cross
from trace_ros.logs import Sample
from trace_ros.robot import RobotDescription

FloatArray = NDArray[np.float64]

_UP = np.array([0.0, 0.0, 1.0])
_NOMINAL_DT_S = 0.002
"""Of the first sample, which has none before it."""


class ModelBasedEstimator(ABC):
    """Starts, stops and feeds an estimator that works by the robot's model.

    As with TRACE, the first 29 samples give no estimate, the 30th gives the initial pose: the one that was set, else
    position zero, heading zero, and roll and pitch from the specific force. After a gap the same again, from the last
    pose.
    """

    name: str
    outputs: frozenset[Output] = frozenset({"velocity", "contact"})

    def __init__(self, robot: RobotDescription, config: BaselineConfig | None = None, source: str = "") -> None:
        """Estimate a robot's motion.

        Args:
            robot: whose. Without masses in its URDF, contact is told by kinematics, as without torque.
            config: by default the package's own, from ``config/baselines/iekf.yaml``.
            source: what ``config`` was read from.
        """
        self.robot = robot
        self.source = source or (str(default_config()) if config is None else self.name)
        self.config = config or BaselineConfig.load()
        self._imu = np.asarray(robot.imu.position)
        self._legs = LegModel(robot)
        self._detector = ContactDetector(robot, self._legs, self.config.contact)
        self._differentiator = JointDifferentiator()
        self._roll_radius = robot.foot_radius if self.config.rolling_feet else 0.0
        self._initial_position, self._initial_heading = np.zeros(3), 0.0
        self.reset()

    def reset(self) -> None:
        """Forget everything. A reset run equals a fresh one."""
        self._last_stamp_ns: int | None = None
        self._pose: tuple[FloatArray, FloatArray] | None = None
        self._set_sigmas = 0.0, 0.0
        self._differentiator.reset()
        self._unobserved_s = 0.0
        self._speed = 0.0
        self._forget()
        self._restart()

    def _restart(self) -> None:
        self._window: list[FloatArray] = []
        self._running = False
        self._detector.reset()

    def set_initial_pose(self, position: FloatArray, heading: float) -> None:
        """Where runs begin, this one (where it has not begun) and those after a `reset`.

        Args:
            position: (3,) m.
            heading: rad. Roll and pitch are gravity's to say.

        Raises:
            TraceError: not finite, or wrong length.
        """
        self._initial_position, self._initial_heading = checked_initial_pose(position, heading)

    def set_pose(
        self, position: FloatArray, orientation: FloatArray, position_sigma: float = 0.0, heading_sigma: float = 0.0
    ) -> None:
        """Put the body elsewhere; velocity and biases are kept.

        Args:
            position: (3,) m.
            orientation: (4,) quaternion x, y, z, w.
            position_sigma: m; how uncertain each axis of the position is, beyond the prior.
            heading_sigma: rad; the same for the heading.

        Raises:
            TraceError: not finite, wrong length, or a zero quaternion.
        """
        place, rotation = self._pose = checked_pose(position, orientation, position_sigma, heading_sigma)
        if self._running:
            self._place(rotation, place, position_sigma, heading_sigma)
        else:
            self._set_sigmas = position_sigma, heading_sigma
            self._speed = 0.0

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
        if not self._running:
            self._unobserved_s += dt
        reading = self._read(sample, dt)
        contact = self._detector.update(reading, self._up(), dt)
        if self._running:
            self._advance(reading, contact, dt)
        else:
            self._window.append(reading.accel)
            if len(self._window) < WINDOW:
                return None
            self._start(reading, contact)
        estimate = self._estimate(reading, contact)
        self._pose = estimate.position, self._attitude()
        self._speed = float(np.linalg.norm(estimate.velocity))
        return estimate

    def _elapsed(self, stamp_ns: int) -> float:
        if self._last_stamp_ns is None:
            self._last_stamp_ns = stamp_ns
            return _NOMINAL_DT_S
        if stamp_ns <= self._last_stamp_ns:
            raise ValueError(f"stamp {stamp_ns} ns does not come after {self._last_stamp_ns} ns")
        dt = (stamp_ns - self._last_stamp_ns) * 1e-9
        self._last_stamp_ns = stamp_ns
        return dt

    def _read(self, sample: Sample, dt: float) -> Reading:
        velocity = sample.joint_velocity
        if velocity is None:
            velocity = self._differentiator.update(sample.joint_position, dt)
        else:
            self._differentiator.reset()
        posture = self._legs.at(sample.joint_position)
        return Reading(
            sample.stamp_ns,
            sample.angular_velocity,
            sample.linear_acceleration,
            velocity,
            sample.joint_torque,
            posture,
            posture.foot_velocity(velocity),
            posture.shank_rate(velocity),
        )

    def _start(self, reading: Reading, contact: NDArray[np.bool_]) -> None:
        if self._pose is None:
            roll, pitch = initial_tilt(np.array(self._window)).tolist()
            level = Rotation.from_euler("xyz", (roll, pitch, self._initial_heading))
            self._pose = self._initial_position, level.as_matrix()
        self._running = True
        position, rotation = self._pose
        # Nothing was seen since the last estimate: at the last speed, this is how far the body may have gone.
        self._begin(rotation, position, self._speed * self._unobserved_s, reading, contact)
        if any(self._set_sigmas):
            self._place(rotation, position, *self._set_sigmas)
            self._set_sigmas = 0.0, 0.0
        self._unobserved_s = 0.0

    def _rolling(self, reading: Reading, rotation: FloatArray) -> FloatArray:
        """(4, 3) m/s, world frame: velocity of a round foot's centre while it rolls on level ground."""
        return cross((reading.gyro + reading.shank_rate) @ rotation.T, self._roll_radius * _UP)

    def _up(self) -> FloatArray:
        """(3,) unit vector against gravity, body frame: of the last pose."""
        return _UP if self._pose is None else self._pose[1][2]

    @abstractmethod
    def _forget(self) -> None:
        """Forget what the estimator keeps over gaps."""

    @abstractmethod
    def _begin(
        self,
        rotation: FloatArray,
        position: FloatArray,
        position_sigma: float,
        reading: Reading,
        contact: NDArray[np.bool_],
    ) -> None:
        """Start with the body at a rotation (3, 3) and position (3,) m that is off by ``position_sigma`` m more."""

    @abstractmethod
    def _place(
        self, rotation: FloatArray, position: FloatArray, position_sigma: float = 0.0, heading_sigma: float = 0.0
    ) -> None:
        """Put the body elsewhere: off by ``position_sigma`` m and ``heading_sigma`` rad more than by the prior."""

    @abstractmethod
    def _advance(self, reading: Reading, contact: NDArray[np.bool_], dt: float) -> None:
        """Take in a reading, ``dt`` (s) after the one before."""

    @abstractmethod
    def _attitude(self) -> FloatArray:
        """(3, 3), body to world: that of the last estimate."""

    @abstractmethod
    def _estimate(self, reading: Reading, contact: NDArray[np.bool_]) -> Estimate:
        """Where the body is at the reading."""
