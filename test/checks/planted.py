"""Faults planted into a good log, as robots and drivers have them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from rosbags.rosbag2 import Reader, StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore
from scipy.spatial.transform import Rotation

from trace_ros.logs import SensorLog, Trajectory

_JOINTS = ("joint_position", "joint_velocity", "joint_torque")


def with_legs(log: SensorLog, order: list[int]) -> SensorLog:
    """The legs' readings in another order."""
    slots = np.arange(12).reshape(4, 3)[order].ravel()
    return replace(log, **{name: getattr(log, name)[:, slots] for name in _JOINTS})


def swapped(log: SensorLog, first: int, second: int) -> SensorLog:
    order = list(range(4))
    order[first], order[second] = second, first
    return with_legs(log, order)


def flipped(log: SensorLog, joint: int, *names: str) -> SensorLog:
    """A joint that counts the other way: position, velocity and torque, or only what is named."""
    sign = np.ones(12)
    sign[joint] = -1
    return replace(log, **{name: getattr(log, name) * sign for name in names or _JOINTS})


def turned_imu(log: SensorLog, turn: Rotation) -> SensorLog:
    """An IMU that is mounted otherwise: ``turn`` takes vectors of the body to it."""
    return replace(
        log,
        linear_acceleration=turn.apply(log.linear_acceleration),
        angular_velocity=turn.apply(log.angular_velocity),
    )


def slow_reference(
    log: SensorLog, late: float = 0.0, rate: float = 10.0, noise: float = 0.02, seed: int = 0
) -> SensorLog:
    """The reference of a LiDAR: at 10 Hz, with noise, and late."""
    truth = log.reference
    assert truth is not None
    stamps = np.arange(truth.stamp_ns[0] + 7_000_000, truth.stamp_ns[-1], round(1e9 / rate))
    seen, _ = truth.resample(stamps)
    rng = np.random.default_rng(seed)
    turn = seen.rotation_world_body * Rotation.from_rotvec(rng.normal(0, 0.005, (len(seen), 3)))
    return with_reference(
        log,
        replace(
            seen,
            stamp_ns=seen.stamp_ns + round(late * 1e9),
            position=seen.position + rng.normal(0, noise, seen.position.shape),
            orientation=turn.as_quat(),
            angular_velocity=None,
        ),
    )


def with_reference(log: SensorLog, reference: Trajectory | None) -> SensorLog:
    return replace(log, reference=reference)


def copy_bag_without(source: Path, target: Path, lost: float, topic: str | None = None, seed: int = 0) -> Path:
    """A bag with a part of its messages lost, of all sensors or of one topic."""
    rng = np.random.default_rng(seed)
    store = get_typestore(Stores.ROS2_JAZZY)
    with Reader(source) as reader, Writer(target, version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        made = {
            connection.id: writer.add_connection(connection.topic, connection.msgtype, typestore=store)
            for connection in reader.connections
        }
        for connection, recorded, data in reader.messages():
            if topic in (None, connection.topic) and rng.random() < lost:
                continue
            writer.write(made[connection.id], recorded, data)
    return target
