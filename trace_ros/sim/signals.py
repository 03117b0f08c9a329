"""What there is to measure on one robot, as functions of time: the input of every sensor.

A sensor reads its quantity at an instant of its own (late, or by its own clock), which need not be a sample's; hence
signals can be read at any instant, between the rows that they are made of.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter
from scipy.spatial.transform import Rotation

from trace_ros.geometry import GRAVITY
from trace_ros.logs import SensorLog
from trace_ros.robot import RobotDescription
from trace_ros.sim.backend import PhysicsConfig, PhysicsTrace

FloatArray = NDArray[np.float64]
AnyFloatArray = NDArray[np.float64] | NDArray[np.float32]


@dataclass(frozen=True)
class JointReading:
    """Joints at K instants: position (K, 12) rad; velocity (K, 12) rad/s and torque (K, 12) N m, or None."""

    position: FloatArray
    velocity: FloatArray | None
    torque: FloatArray | None


@dataclass(frozen=True)
class Signals:
    """Rotation, specific force and joints of one robot over time.

    Before the first row everything is as in it; no instant after the last can be read.

    Attributes:
        epoch_ns: stamp (ns) from which the times count.
        time: (S,) s, strictly increasing.
        imu_integral: (S, 6) rad and m/s: integrals of angular velocity and specific force (body axes) up to each row.
        joint_position: (S, 12) rad.
        joint_velocity: (S, 12) rad/s, or None: there is none.
        joint_torque: (S, 12) N m, or None: there is none.
    """

    epoch_ns: int
    time: FloatArray
    imu_integral: FloatArray
    joint_position: AnyFloatArray
    joint_velocity: AnyFloatArray | None
    joint_torque: AnyFloatArray | None

    @classmethod
    def of_log(cls, log: SensorLog) -> Signals:
        """The signals of which a log holds perfect readings: straight between the samples for the joints, and for
        the IMU, whose readings are means over an interval, constant within each. At least one sample."""
        time = (log.stamp_ns - log.stamp_ns[0]) * 1e-9
        imu = np.hstack((log.angular_velocity, log.linear_acceleration))
        integral = np.cumsum(imu * np.diff(time, prepend=-1.0)[:, None], axis=0)
        return cls._begun(
            int(log.stamp_ns[0]), time, integral, imu[0], log.joint_position, log.joint_velocity, log.joint_torque
        )

    @classmethod
    def of_trace(
        cls,
        trace: PhysicsTrace,
        robot_index: int,
        window: slice,
        joint_target: FloatArray,
        gains: tuple[float, float],
        robot: RobotDescription,
        physics: PhysicsConfig,
        start_ns: int = 0,
    ) -> Signals:
        """The signals of one robot at the physics rate.

        The specific force is that of the IMU's place. The torque is the target ``kp (q_des - q) - kd dq`` with the
        controller's nominal gains, clipped to the robot's torque limits: what a robot's controller would report as its
        command.

        Args:
            trace: the physics.
            robot_index: which robot of the batch.
            window: the physics steps to take, at least two.
            joint_target: (T, 12) rad, targets of each control step.
            gains: kp (N m/rad) and kd (N m s/rad) of the joint controllers.
            robot: torque limits, IMU mounting.
            physics: rates.
            start_ns: stamp of the trace's beginning (ns).
        """
        b = robot_index
        rate = trace.angular_velocity[b, window]
        force = _specific_force(trace.velocity[b, window], trace.orientation[b, window], rate, robot, physics)
        imu = np.hstack((rate, force))
        steps = np.arange(window.start, window.stop)
        q, dq = trace.joint_position[b, window], trace.joint_velocity[b, window]
        # Targets of the control step in which a physics step lies.
        target = joint_target[steps // physics.steps_per_control]
        kp, kd = gains
        torque = np.clip(kp * (target - q) - kd * dq, -robot.torque_limits, robot.torque_limits)
        # The state after step i is that of the instant i + 1 steps after the start.
        time = (steps + 1) / physics.rate_hz
        return cls._begun(start_ns, time, np.cumsum(imu, axis=0) / physics.rate_hz, imu[0], q, dq, torque)

    @classmethod
    def _begun(
        cls,
        epoch_ns: int,
        time: FloatArray,
        integral: FloatArray,
        first: FloatArray,
        position: AnyFloatArray,
        velocity: AnyFloatArray | None,
        torque: AnyFloatArray | None,
    ) -> Signals:
        """With a row one second before the first, so that early instants read what the first does."""

        def begin(values: AnyFloatArray) -> AnyFloatArray:
            return cast(AnyFloatArray, np.concatenate((values[:1], values)))

        return cls(
            epoch_ns,
            np.concatenate((time[:1] - 1.0, time)),
            np.concatenate((integral[:1] - first, integral)),
            begin(position),
            None if velocity is None else begin(velocity),
            None if torque is None else begin(torque),
        )

    def imu(self, begin: FloatArray, end: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean angular velocity (rad/s) and specific force (m/s^2) over intervals, body axes.

        Args:
            begin, end: (K,) s, ``begin < end``.

        Returns:
            (K, 3) each.
        """
        change = self._at(self.imu_integral, end) - self._at(self.imu_integral, begin)
        mean = change / (end - begin)[:, None]
        return mean[:, :3], mean[:, 3:]

    def joints(self, at: FloatArray) -> JointReading:
        """The joints at instants (K,) s."""
        return JointReading(
            self._at(self.joint_position, at),
            None if self.joint_velocity is None else self._at(self.joint_velocity, at),
            None if self.joint_torque is None else self._at(self.joint_torque, at),
        )

    def with_velocity_lag(self, time_constant: float) -> Signals:
        """With the joint velocity behind a first-order low-pass (s) that starts at the first value; 0: none."""
        if self.joint_velocity is None or time_constant <= 0 or len(self.time) < 3:
            return self
        period = float(np.median(np.diff(self.time[1:])))
        keep = np.exp(-period / time_constant)
        values = self.joint_velocity
        coefficients = np.array([1 - keep]), np.array([1, -keep])
        first = keep * values[:1].astype(np.float64)
        filtered, _ = lfilter(*coefficients, values, axis=0, zi=first)
        return replace(self, joint_velocity=filtered)

    def _at(self, values: AnyFloatArray, at: FloatArray) -> FloatArray:
        """Rows at instants, straight in between: (S, D), (K,) -> (K, D)."""
        right = np.clip(np.searchsorted(self.time, at), 1, len(self.time) - 1)
        left = right - 1
        weight = (at - self.time[left]) / (self.time[right] - self.time[left])
        weight = np.clip(weight, 0.0, 1.0)[:, None]
        return np.asarray(values[left] * (1 - weight) + values[right] * weight)


def _specific_force(
    velocity: FloatArray, orientation: FloatArray, rate: FloatArray, robot: RobotDescription, physics: PhysicsConfig
) -> FloatArray:
    """Specific force at the IMU during each physics step, body axes: (S, 3) m/s^2; the first row repeats the second.

    Taken from the increments of the IMU's velocity, not from an engine's accelerometer: implicit integrators move the
    body by other accelerations than those they report, and an estimator would see the difference as a bias.
    """
    at_imu = velocity + Rotation.from_quat(orientation).apply(np.cross(rate, robot.imu.position))
    acceleration = np.diff(at_imu, axis=0) * physics.rate_hz
    acceleration[:, 2] += GRAVITY
    # Half-way orientation of each step; neighbouring quaternions are on the same side for any step of a simulation.
    sign = np.sign(np.sum(orientation[1:] * orientation[:-1], axis=1, keepdims=True))
    middle = Rotation.from_quat(orientation[1:] + np.where(sign < 0, -1.0, 1.0) * orientation[:-1])
    result = np.empty_like(velocity)
    result[1:] = middle.inv().apply(acceleration)
    result[0] = result[1]
    return result
