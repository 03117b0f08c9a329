"""ROS messages to arrays and back; everything that a message can have wrong is found here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from geometry_msgs.msg import TransformStamped
from nav_msgs.msg import Odometry
from numpy.typing import NDArray
from std_msgs.msg import Float32MultiArray, MultiArrayDimension, MultiArrayLayout

from trace_ros.errors import TraceError
from trace_ros.logs import LARGEST_READING, is_reading
from trace_ros.nodes.pairing import JointSample
from trace_ros.robot import LEG_NAMES

if TYPE_CHECKING:  # the estimator brings torch, which replay and path can do without
    from trace_ros.estimator.estimator import Estimate

FloatArray = NDArray[np.float64]

_LEG_ATTENTION = slice(2, 6)
"""The tokens of the four legs among accel, gyro, FL, FR, RL, RR."""


class BadMessageError(Exception):
    """A message that cannot be used.

    Attributes:
        kind: short name for counting.
        text: one line for the log.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text


def stamp_to_ns(stamp: Any) -> int:
    """builtin_interfaces/Time to nanoseconds."""
    return int(stamp.sec) * 1_000_000_000 + int(stamp.nanosec)


def set_stamp(stamp: Any, stamp_ns: int) -> None:
    """Nanoseconds into a builtin_interfaces/Time."""
    stamp.sec, stamp.nanosec = divmod(stamp_ns, 1_000_000_000)


def imu_vectors(message: Any) -> tuple[int, FloatArray, FloatArray]:
    """Stamp (ns), angular velocity (3,) rad/s and specific force (3,) m/s^2 of a sensor_msgs/Imu, in the IMU's frame.

    Raises:
        BadMessageError: NaN, infinity or an absurd number, or a vector marked as not reported (REP-145).
    """
    if message.angular_velocity_covariance[0] == -1.0 or message.linear_acceleration_covariance[0] == -1.0:
        raise BadMessageError(
            "not_reported", "the IMU marks its angular velocity or linear acceleration as not reported (covariance -1)"
        )
    w, a = message.angular_velocity, message.linear_acceleration
    angular_velocity = np.array((w.x, w.y, w.z))
    linear_acceleration = np.array((a.x, a.y, a.z))
    for vector in (angular_velocity, linear_acceleration):
        if not is_reading(vector).all():
            raise _no_reading(vector, "the IMU message")
    return stamp_to_ns(message.header.stamp), angular_velocity, linear_acceleration


class JointMapper:
    """Picks the robot's 12 joints out of joint states by name; the order of names is looked up only when it changes."""

    def __init__(self, joint_names: Sequence[str]) -> None:
        self.joint_names = tuple(joint_names)
        self._names: list[str] | None = None
        self._index: NDArray[np.intp] = np.zeros(0, dtype=np.intp)

    def describe(self) -> str:
        """Where in the message the joints were found: one line, empty before the first message."""
        if self._names is None:
            return ""
        extra = len(self._names) - len(self.joint_names)
        order = ", ".join(map(str, self._index))
        return f"the robot's 12 joints are at [{order}] of the message" + (f"; {extra} others ignored" if extra else "")

    def convert(self, message: Any, use_effort: bool = True) -> JointSample:
        """The joints of a sensor_msgs/JointState in package order; effort becomes torque.

        Raises:
            BadMessageError: joints missing or named twice, arrays that do not fit the names, NaN, infinity
                or an absurd number.
        """
        if message.name != self._names:
            self._look_up(list(message.name))
        position = self._pick("position", message.position)
        if position is None:
            raise BadMessageError("wrong_length", "the joint state has names but no positions")
        velocity = self._pick("velocity", message.velocity)
        torque = self._pick("effort", message.effort) if use_effort else None
        return JointSample(stamp_to_ns(message.header.stamp), position, velocity, torque)

    def _look_up(self, names: list[str]) -> None:
        self._names = None
        if missing := [name for name in self.joint_names if name not in names]:
            raise BadMessageError(
                "missing_joints",
                f"joint names missing from the joint state: {', '.join(missing)}; it has: {', '.join(names) or 'none'}",
            )
        if repeated := sorted({name for name in self.joint_names if names.count(name) > 1}):
            raise BadMessageError(
                "repeated_joints", f"joint names more than once in the joint state: {', '.join(repeated)}"
            )
        self._index = np.array([names.index(name) for name in self.joint_names], dtype=np.intp)
        self._names = names

    def _pick(self, field: str, values: Any) -> FloatArray | None:
        if not len(values):
            return None
        assert self._names is not None
        if len(values) != len(self._names):
            raise BadMessageError(
                "wrong_length", f"the joint state has {len(self._names)} names but {len(values)} values of {field}"
            )
        picked = np.asarray(values, dtype=float)[self._index]
        if not (usable := is_reading(picked)).all():
            names = [name for name, good in zip(self.joint_names, usable, strict=True) if not good]
            raise _no_reading(picked, f"the {field} of {', '.join(names)}")
        return picked


def _no_reading(values: FloatArray, where: str) -> BadMessageError:
    """The fault of numbers that no sensor says."""
    if np.isfinite(values).all():
        return BadMessageError("absurd", f"a number beyond {LARGEST_READING:g} in {where}")
    return BadMessageError("not_finite", f"NaN or infinity in {where}")


class OutputMessages:
    """The messages that leave the estimator, built once and refilled: building them costs more than sending them."""

    def __init__(self, odom_frame: str, base_link_frame: str) -> None:
        self.odometry = Odometry()
        self.odometry.header.frame_id = odom_frame
        self.odometry.child_frame_id = base_link_frame
        self.transform = TransformStamped()
        self.transform.header.frame_id = odom_frame
        self.transform.child_frame_id = base_link_frame
        self.foot_reliability = Float32MultiArray(
            layout=MultiArrayLayout(dim=[MultiArrayDimension(label=",".join(LEG_NAMES), size=4, stride=4)]),
            data=[0.0] * 4,
        )

    def fill(self, estimate: Estimate) -> None:
        """Write an estimate into all three messages. Pose in the odometry frame, twist in the child frame."""
        x, y, z = estimate.position.tolist()
        qx, qy, qz, qw = estimate.orientation.tolist()
        odometry = self.odometry
        set_stamp(odometry.header.stamp, estimate.stamp_ns)
        point, quaternion = odometry.pose.pose.position, odometry.pose.pose.orientation
        point.x, point.y, point.z = x, y, z
        quaternion.x, quaternion.y, quaternion.z, quaternion.w = qx, qy, qz, qw
        linear, angular = odometry.twist.twist.linear, odometry.twist.twist.angular
        linear.x, linear.y, linear.z = estimate.velocity.tolist()
        angular.x, angular.y, angular.z = estimate.angular_velocity.tolist()
        odometry.pose.covariance[:] = estimate.pose_covariance.ravel()
        odometry.twist.covariance[:] = estimate.twist_covariance.ravel()
        self.transform.header.stamp = odometry.header.stamp
        translation, rotation = self.transform.transform.translation, self.transform.transform.rotation
        translation.x, translation.y, translation.z = x, y, z
        rotation.x, rotation.y, rotation.z, rotation.w = qx, qy, qz, qw
        self.foot_reliability.data = estimate.attention[_LEG_ATTENTION].tolist()


def pose_arrays(message: Any, odom_frame: str) -> tuple[FloatArray, FloatArray]:
    """Position (3,) and orientation (4,) x, y, z, w of a geometry_msgs/PoseWithCovarianceStamped.

    Raises:
        TraceError: it is in another frame than the odometry's.
    """
    frame = message.header.frame_id
    if frame not in ("", odom_frame):
        raise TraceError(f"set_pose: the pose is in frame {frame!r}, expected {odom_frame!r}")
    p, q = message.pose.pose.position, message.pose.pose.orientation
    return np.array((p.x, p.y, p.z)), np.array((q.x, q.y, q.z, q.w))
