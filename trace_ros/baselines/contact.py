"""Which feet stand: from the ground reaction force that the joint torques tell, or from kinematics without torque."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trace_ros.baselines.config import ContactConfig
from trace_ros.geometry import GRAVITY
from trace_ros.leg_model import LegModel, LegPosture
from trace_ros.logs import LEGS
from trace_ros.robot import RobotDescription

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

_DAMPING = 1e-4
"""m^2: a lever arm of 1 cm, below which a joint no longer tells a force (a leg that is nearly stretched)."""

_ROUNDING_S = 1e-6
"""By which stamps jitter."""


class Reading(NamedTuple):
    """A sample as the model-based estimators see it.

    Attributes:
        stamp_ns: ns.
        gyro: (3,) rad/s.
        accel: (3,) m/s^2, specific force where the IMU is.
        joint_velocity: (12,) rad/s, measured or differentiated.
        joint_torque: (12,) N m, or None.
        posture: of the legs, body frame.
        foot_velocity: (4, 3) m/s relative to the body, body frame.
        shank_rate: (4, 3) rad/s relative to the body, body frame.
    """

    stamp_ns: int
    gyro: FloatArray
    accel: FloatArray
    joint_velocity: FloatArray
    joint_torque: FloatArray | None
    posture: LegPosture
    foot_velocity: FloatArray
    shank_rate: FloatArray


def ground_force(posture: LegPosture, torque: FloatArray) -> FloatArray:
    """(..., 4, 3) N, ground on feet, body frame, from joint torques (..., 4, 3) N m without those that move the legs.

    The foot pushes the ground by f where ``J' f = torque``: damped least squares, for legs nearly stretched.
    """
    jacobian = posture.jacobian
    square = jacobian @ jacobian.swapaxes(-1, -2) + _DAMPING * np.eye(3)
    return np.asarray(-np.linalg.solve(square, jacobian @ torque[..., None])[..., 0])


class ContactDetector:
    """Tells standing feet from others, sample by sample.

    A Schmitt trigger on the vertical ground reaction force of each foot: what is left of the joint torques without
    those that the legs' own weight and motion take. A smaller force counts where it lasts. Without torque: on height
    and vertical speed, relative to the lowest foot, which supposes level ground under the feet.
    """

    def __init__(self, robot: RobotDescription, legs: LegModel, config: ContactConfig) -> None:
        self._legs = legs
        self._config = config
        self._imu = np.asarray(robot.imu.position)
        # A URDF without masses: its torques tell no force, its kinematics still tell contact.
        self._weight = robot.mass * GRAVITY or math.inf
        self.reset()

    def reset(self) -> None:
        """Forget the past: no foot stands."""
        self.contact: BoolArray = np.zeros(LEGS, dtype=np.bool_)
        """(4,) which feet stand; replaced, never written into."""
        self.force: FloatArray | None = None
        """(4, 3) N, ground on foot, body frame, low-passed; None without torque."""
        self.load: FloatArray = np.zeros(LEGS)
        """(4,) vertical force on each foot as part of the body's weight, not negative; without torque, all standing
        feet share alike."""
        self._joint_velocity: FloatArray | None = None
        self._pending = np.zeros(LEGS)
        self._resting = np.zeros(LEGS)

    def update(self, reading: Reading, up: FloatArray, dt: float) -> BoolArray:
        """Take in a reading.

        Args:
            reading: of the sensors.
            up: (3,) unit vector against gravity, body frame.
            dt: s since the previous one.

        Returns:
            (4,) which feet stand.
        """
        if reading.joint_torque is None or not math.isfinite(self._weight):
            self.force = None
            enters, leaves = self._by_kinematics(reading, up)
        else:
            self.force = self._smooth(self._ground_force(reading, reading.joint_torque, dt), dt)
            load = self.force @ up / self._weight
            enters, leaves = load > self._config.enter, load < self._config.leave
            # A foot that lands is loaded at once; one that stands lightly is so for long, one that swings never.
            self._resting = np.where(load > self._config.rest, self._resting + dt, 0.0)
            enters |= self._resting - dt >= self._config.rest_dwell - _ROUNDING_S
            self.load = np.maximum(load, 0.0)
        self._joint_velocity = reading.joint_velocity
        changing = np.where(self.contact, leaves, enters)
        self._pending = np.where(changing, self._pending + dt, 0.0)
        # The first sample of a change counts as no time; a dwell of zero is over at once.
        dwell = np.where(self.contact, self._config.liftoff_dwell, self._config.touchdown_dwell) - _ROUNDING_S
        changes = changing & (self._pending - dt >= dwell)
        self._pending[changes] = 0.0
        self.contact = self.contact ^ changes
        if self.force is None:
            self.load = self.contact / max(int(self.contact.sum()), 1)
        return self.contact

    def _ground_force(self, reading: Reading, torque: FloatArray, dt: float) -> FloatArray:
        """(4, 3) N, body frame."""
        velocity = reading.joint_velocity
        before = velocity if self._joint_velocity is None else self._joint_velocity
        acceleration = (velocity - before) / dt
        own = self._legs.torque(reading.posture, velocity, acceleration, reading.gyro, reading.accel, self._imu)
        own += self._config.rotor_inertia * acceleration.reshape(LEGS, 3)
        return ground_force(reading.posture, torque.reshape(LEGS, 3) - own)

    def _smooth(self, force: FloatArray, dt: float) -> FloatArray:
        if self.force is None or self._config.smoothing == 0:
            return force
        weight = 1.0 - math.exp(-dt / self._config.smoothing)
        return self.force + weight * (force - self.force)

    def _by_kinematics(self, reading: Reading, up: FloatArray) -> tuple[BoolArray, BoolArray]:
        limits = self._config.without_torque
        height = reading.posture.foot @ up
        height = height - height.min()
        # The body's own rise and fall is that of the lowest foot, which is taken to stand.
        turning = np.cross(reading.gyro, reading.posture.foot)
        speed = (reading.foot_velocity + turning) @ up
        speed = np.abs(speed - speed[np.argmin(height)])
        enters = (height < limits.height) & (speed < limits.vertical_speed)
        leaves = (height > limits.leave_height) | (speed > limits.leave_vertical_speed)
        return enters, leaves
