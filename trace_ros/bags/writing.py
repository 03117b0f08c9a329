"""`SensorLog` and `Trajectory` -> rosbag2."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from trace_ros.bags.layout import write_alike
from trace_ros.bags.reading import ROBOT_KEY, TORQUE_SOURCE_KEY
from trace_ros.bags.storage import Storage, create_bag, typestore
from trace_ros.bags.topics import IMU_TYPE, JOINT_STATE_TYPE, ODOMETRY_TYPE, Topics
from trace_ros.errors import TraceError
from trace_ros.logs import FloatArray, IntArray, SensorLog, Trajectory
from trace_ros.robot import RobotDescription

IMU_FRAME = "imu_link"
ODOMETRY_FRAME = "odom"

_BLOCK = 4096
"""Messages that are serialised at a time."""

_STAMP_LIMIT_NS = 2**31 * 1_000_000_000
"""builtin_interfaces/Time has 32 bits for the seconds."""

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
        TraceError: the path exists or cannot be written, the log belongs to another robot, or a stamp does not fit into
            a message.
    """
    topics = topics or Topics()
    if log.robot and log.robot != robot.name:
        raise TraceError(f"{path}: the log belongs to robot {log.robot!r}, not {robot.name!r}")
    trajectories = dict(odometry or {})
    if log.reference is not None and topics.reference is not None:
        trajectories = {topics.reference: log.reference} | trajectories
    for stamp_ns in (log.stamp_ns, *(trajectory.stamp_ns for trajectory in trajectories.values())):
        if stamp_ns.size and not -_STAMP_LIMIT_NS <= stamp_ns[0] <= stamp_ns[-1] < _STAMP_LIMIT_NS:
            last_s = stamp_ns[-1] * 1e-9
            raise TraceError(f"{path}: stamps up to {last_s:.0f} s do not fit into messages, whose time ends in 2038")
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
    angular, linear = log.angular_velocity, log.linear_acceleration
    if any(robot.imu.rpy):
        to_imu = robot.rotation_body_imu.inv()
        angular, linear = to_imu.apply(angular), to_imu.apply(linear)
    unknown, zero = np.zeros(9), vector(0.0, 0.0, 0.0)
    template = types[IMU_TYPE](
        _header(0, IMU_FRAME), quaternion(0.0, 0.0, 0.0, 1.0), unknown, zero, unknown, zero, unknown
    )
    for part in _blocks(len(log)):
        rows = len(log.stamp_ns[part])
        not_reported = (0.0, 0.0, 0.0, 1.0, -1.0, *unknown[1:])  # orientation, and its covariance: REP-145
        parts = [
            np.tile(not_reported, (rows, 1)),
            angular[part],
            np.zeros((rows, 9)),
            linear[part],
            np.zeros((rows, 9)),
        ]
        yield from _alike(template, IMU_TYPE, log.stamp_ns[part], {"all": np.concatenate(parts, axis=1)}, rank)


def _joint_messages(log: SensorLog, robot: RobotDescription, rank: int) -> _Serialised:
    if not len(log):
        return
    names = list(robot.reported_joint_names)
    sign, offset = robot.joint_signs, robot.joint_offsets
    tables = {"position": sign * (log.joint_position - offset)}
    # Whether a sample has a velocity, and a torque; without, the array of the message is empty.
    has = np.zeros((len(log), 2), dtype=bool)
    for column, (name, values) in enumerate((("velocity", log.joint_velocity), ("effort", log.joint_torque))):
        if values is not None:
            tables[name], has[:, column] = sign * values, ~np.isnan(values[:, 0])
    changes = np.flatnonzero((has[1:] != has[:-1]).any(axis=1)) + 1
    for start, stop in pairwise((0, *changes.tolist(), len(log))):
        arrays = [np.zeros(len(names)) if there else np.empty(0) for there in (True, *has[start])]
        template = typestore().types[JOINT_STATE_TYPE](_header(0, ""), names, *arrays)
        for block in _blocks(stop - start):
            part = slice(start + block.start, min(start + block.stop, stop))
            numbers = {name: table[part] for name, table in tables.items()}
            yield from _alike(template, JOINT_STATE_TYPE, log.stamp_ns[part], numbers, rank)


def _odometry_messages(trajectory: Trajectory, robot: RobotDescription, rank: int) -> _Serialised:
    types = typestore().types
    vector, quaternion = types["geometry_msgs/msg/Vector3"], types["geometry_msgs/msg/Quaternion"]
    point, pose, twist = (types[f"geometry_msgs/msg/{name}"] for name in ("Point", "Pose", "Twist"))
    with_covariance = types["geometry_msgs/msg/PoseWithCovariance"], types["geometry_msgs/msg/TwistWithCovariance"]
    zero = vector(0.0, 0.0, 0.0)
    template = types[ODOMETRY_TYPE](
        _header(0, ODOMETRY_FRAME),
        robot.base_link,
        with_covariance[0](pose(point(0.0, 0.0, 0.0), quaternion(0.0, 0.0, 0.0, 1.0)), np.zeros(36)),
        with_covariance[1](twist(zero, zero), np.zeros(36)),
    )
    count = len(trajectory)
    covariance = np.zeros((count, 36)) if trajectory.covariance is None else trajectory.covariance.reshape(count, 36)
    twist_covariance = np.zeros(36)
    angular = trajectory.angular_velocity
    if angular is None:
        angular = np.zeros((count, 3))
        twist_covariance[[21, 28, 35]] = -1.0  # not reported, in the manner of REP-145
    for part in _blocks(count):
        stamp_ns = trajectory.stamp_ns[part]
        pose_parts = trajectory.position[part], trajectory.orientation[part], covariance[part]
        twist_parts = trajectory.velocity[part], angular[part], np.tile(twist_covariance, (len(stamp_ns), 1))
        values = {"all": np.concatenate((*pose_parts, *twist_parts), axis=1)}
        yield from _alike(template, ODOMETRY_TYPE, stamp_ns, values, rank)


def _blocks(count: int) -> Iterator[slice]:
    """Parts of a topic that are serialised at a time."""
    return (slice(start, start + _BLOCK) for start in range(0, count, _BLOCK))


def _alike(
    template: Any, message_type: str, stamp_ns: IntArray, values: Mapping[str, FloatArray], rank: int
) -> _Serialised:
    """Messages that differ from a template in stamps and numbers only."""
    raw = bytes(typestore().serialize_cdr(template, message_type, little_endian=True))
    for stamp, data in zip(stamp_ns.tolist(), write_alike(raw, message_type, stamp_ns, values), strict=True):
        yield stamp, rank, data


def _header(stamp_ns: int, frame: str) -> Any:
    types = typestore().types
    seconds, nanoseconds = divmod(stamp_ns, 1_000_000_000)
    return types["std_msgs/msg/Header"](types["builtin_interfaces/msg/Time"](seconds, nanoseconds), frame)
