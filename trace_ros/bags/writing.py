"""`SensorLog` and `Trajectory` -> rosbag2."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from trace_ros.bags.reading import ROBOT_KEY, TORQUE_SOURCE_KEY
from trace_ros.bags.storage import Storage, create_bag, typestore
from trace_ros.bags.topics import IMU_TYPE, JOINT_STATE_TYPE, ODOMETRY_TYPE, Topics
from trace_ros.errors import TraceError
from trace_ros.logs import SensorLog, Trajectory
from trace_ros.robot import RobotDescription

IMU_FRAME = "imu_link"
ODOMETRY_FRAME = "odom"

_Serialised = Iterator[tuple[int, int, bytes]]
"""Time (ns), rank of the topic among equal times, CDR bytes."""


def write_bag(
    path: Path,
    log: SensorLog,
    robot: RobotDescription,
    storage: Storage = "mcap",
    topics: Topics | None = None,
    odometry: Mapping[str, Trajectory] | None = None,
) -> None:
    """Write a log as a rosbag2 directory that ``ros2 bag`` and `read_bag` understand.

    Per sample one sensor_msgs/Imu (vectors in the IMU's frame) and one sensor_msgs/JointState (effort is the log's
    torque) with the same stamp, in the robot's own names, signs and offsets; per reference pose one
    nav_msgs/Odometry. Contacts and foot forces have no standard
    message and are left out. Absent joint velocity or torque is an empty array.

    Args:
        path: directory to create.
        log: what to write.
        robot: gives joint names, frame names and the IMU mounting.
        storage: "mcap" or "sqlite3".
        topics: names to write under.
        odometry: further trajectories by topic.

    Raises:
        TraceError: the path exists or cannot be written, or the log belongs to another robot.
    """
    topics = topics or Topics()
    if log.robot and log.robot != robot.name:
        raise TraceError(f"{path}: the log belongs to robot {log.robot!r}, not {robot.name!r}")
    trajectories = dict(odometry or {})
    if log.reference is not None and topics.reference is not None:
        trajectories = {topics.reference: log.reference} | trajectories
    with create_bag(path, storage) as writer:
        writer.set_custom_data(ROBOT_KEY, robot.name)
        writer.set_custom_data(TORQUE_SOURCE_KEY, log.torque_source)

        def connect(topic: str, message_type: str) -> Any:
            return writer.add_connection(f"/{topic.lstrip('/')}", message_type, typestore=typestore())

        connections = [connect(topics.imu, IMU_TYPE), connect(topics.joint_states, JOINT_STATE_TYPE)]
        streams = [_imu_messages(log, robot, 0), _joint_messages(log, robot, 1)]
        for topic, trajectory in trajectories.items():
            connections.append(connect(topic, ODOMETRY_TYPE))
            streams.append(_odometry_messages(trajectory, robot, len(streams)))
        for stamp, rank, data in heapq.merge(*streams, key=itemgetter(0, 1)):
            writer.write(connections[rank], stamp, data)


def _imu_messages(log: SensorLog, robot: RobotDescription, rank: int) -> _Serialised:
    types = typestore().types
    vector, quaternion = types["geometry_msgs/msg/Vector3"], types["geometry_msgs/msg/Quaternion"]
    imu = types[IMU_TYPE]
    angular, linear = log.angular_velocity, log.linear_acceleration
    if any(robot.imu.rpy):
        to_imu = robot.rotation_body_imu.inv()
        angular, linear = to_imu.apply(angular), to_imu.apply(linear)
    unknown = np.zeros(9)
    not_reported = np.array([-1.0, *np.zeros(8)])  # REP-145
    upright = quaternion(0.0, 0.0, 0.0, 1.0)
    for stamp, w, a in zip(log.stamp_ns.tolist(), angular.tolist(), linear.tolist(), strict=True):
        message = imu(_header(stamp, IMU_FRAME), upright, not_reported, vector(*w), unknown, vector(*a), unknown)
        yield stamp, rank, bytes(typestore().serialize_cdr(message, IMU_TYPE))


def _joint_messages(log: SensorLog, robot: RobotDescription, rank: int) -> _Serialised:
    joint_state = typestore().types[JOINT_STATE_TYPE]
    names, empty = list(robot.reported_joint_names), np.empty(0)
    sign, offset = robot.joint_signs, robot.joint_offsets
    for sample in log:
        stamp = sample.stamp_ns
        message = joint_state(
            _header(stamp, ""),
            names,
            sign * (sample.joint_position - offset),
            empty if sample.joint_velocity is None else sign * sample.joint_velocity,
            empty if sample.joint_torque is None else sign * sample.joint_torque,
        )
        yield stamp, rank, bytes(typestore().serialize_cdr(message, JOINT_STATE_TYPE))


def _odometry_messages(trajectory: Trajectory, robot: RobotDescription, rank: int) -> _Serialised:
    types = typestore().types
    vector, quaternion = types["geometry_msgs/msg/Vector3"], types["geometry_msgs/msg/Quaternion"]
    point, pose, twist = (types[f"geometry_msgs/msg/{name}"] for name in ("Point", "Pose", "Twist"))
    with_covariance = types["geometry_msgs/msg/PoseWithCovariance"], types["geometry_msgs/msg/TwistWithCovariance"]
    odometry = types[ODOMETRY_TYPE]
    count = len(trajectory)
    covariance = np.zeros((count, 36)) if trajectory.covariance is None else trajectory.covariance.reshape(count, 36)
    twist_covariance = np.zeros(36)
    angular = trajectory.angular_velocity
    if angular is None:
        angular = np.zeros((count, 3))
        twist_covariance[[21, 28, 35]] = -1.0  # not reported, in the manner of REP-145
    for index, stamp in enumerate(trajectory.stamp_ns.tolist()):
        message = odometry(
            _header(stamp, ODOMETRY_FRAME),
            robot.base_link,
            with_covariance[0](
                pose(point(*trajectory.position[index]), quaternion(*trajectory.orientation[index])), covariance[index]
            ),
            with_covariance[1](twist(vector(*trajectory.velocity[index]), vector(*angular[index])), twist_covariance),
        )
        yield stamp, rank, bytes(typestore().serialize_cdr(message, ODOMETRY_TYPE))


def _header(stamp_ns: int, frame: str) -> Any:
    types = typestore().types
    seconds, nanoseconds = divmod(stamp_ns, 1_000_000_000)
    return types["std_msgs/msg/Header"](types["builtin_interfaces/msg/Time"](seconds, nanoseconds), frame)
