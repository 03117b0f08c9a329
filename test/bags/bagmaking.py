"""Bags made message by message, so that tests can put in what a robot would not."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore

STORE = get_typestore(Stores.ROS2_JAZZY)
TYPES = STORE.types

IMU = "sensor_msgs/msg/Imu"
JOINTS = "sensor_msgs/msg/JointState"
ODOMETRY = "nav_msgs/msg/Odometry"
STRING = "std_msgs/msg/String"

MS = 1_000_000
START = 1_700_000_000_000_000_000


def header(stamp_ns: int) -> Any:
    time = TYPES["builtin_interfaces/msg/Time"](*divmod(stamp_ns, 10**9))
    return TYPES["std_msgs/msg/Header"](time, "frame")


def imu(stamp_ns: int, gyro=(0.1, 0.2, 0.3), accel=(0.0, 0.0, 9.81), covariance=None) -> tuple[str, Any]:
    vector = TYPES["geometry_msgs/msg/Vector3"]
    zero = np.zeros(9)
    return IMU, TYPES[IMU](
        header(stamp_ns),
        TYPES["geometry_msgs/msg/Quaternion"](0.0, 0.0, 0.0, 1.0),
        zero,
        vector(*gyro),
        zero if covariance is None else np.asarray(covariance, dtype=float),
        vector(*accel),
        zero,
    )


def joints(stamp_ns: int, names, position=None, velocity=(), effort=()) -> tuple[str, Any]:
    position = np.arange(len(names)) * 0.1 if position is None else position
    arrays = [np.asarray(values, dtype=float) for values in (position, velocity, effort)]
    return JOINTS, TYPES[JOINTS](header(stamp_ns), list(names), *arrays)


def odometry(stamp_ns: int, position=(0.0, 0.0, 0.3), velocity=(0.0, 0.0, 0.0), yaw=0.0) -> tuple[str, Any]:
    geometry = "geometry_msgs/msg/"
    quaternion = TYPES[geometry + "Quaternion"](0.0, 0.0, float(np.sin(yaw / 2)), float(np.cos(yaw / 2)))
    pose = TYPES[geometry + "Pose"](TYPES[geometry + "Point"](*map(float, position)), quaternion)
    vector = TYPES[geometry + "Vector3"]
    twist = TYPES[geometry + "Twist"](vector(*map(float, velocity)), vector(0.0, 0.0, 0.0))
    return ODOMETRY, TYPES[ODOMETRY](
        header(stamp_ns),
        "base_link",
        TYPES[geometry + "PoseWithCovariance"](pose, np.zeros(36)),
        TYPES[geometry + "TwistWithCovariance"](twist, np.zeros(36)),
    )


def text(value: str) -> tuple[str, Any]:
    return STRING, TYPES[STRING](value)


def make_bag(
    path: Path,
    messages: Iterable[tuple[str, int, tuple[str, Any]]],
    storage: StoragePlugin = StoragePlugin.MCAP,
    declare: dict[str, str] | None = None,
) -> Path:
    """Write (topic, time of recording, (type, message)) triples; ``declare`` adds topics without messages."""
    with Writer(path, version=9, storage_plugin=storage) as writer:
        connections: dict[str, Any] = {}

        def connect(topic: str, kind: str) -> Any:
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, kind, typestore=STORE)
            return connections[topic]

        for topic, kind in (declare or {}).items():
            connect(topic, kind)
        for topic, recorded, (kind, message) in messages:
            writer.write(connect(topic, kind), recorded, STORE.serialize_cdr(message, kind))
    return path


def normal(names, count: int = 20, step_ms: float = 2.0):
    """A clean robot: IMU and joints with equal stamps."""
    for index in range(count):
        stamp = START + round(index * step_ms * MS)
        yield "/imu/data", stamp, imu(stamp, gyro=(0.001 * index, 0.0, 0.0))
        yield (
            "/joint_states",
            stamp,
            joints(stamp, names, velocity=np.ones(len(names)), effort=np.full(len(names), 2.0)),
        )
