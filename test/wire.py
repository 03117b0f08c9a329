"""Messages of a log as plain objects with the fields of sensor_msgs, for what takes them without ROS."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from trace_ros.logs import Sample, SensorLog
from trace_ros.robot import RobotDescription
from trace_ros.streams import Event, SensorStreams, TimeJump


def header(stamp_ns: int, frame: str = "imu_link") -> Any:
    seconds, nanoseconds = divmod(stamp_ns, 1_000_000_000)
    return SimpleNamespace(stamp=SimpleNamespace(sec=seconds, nanosec=nanoseconds), frame_id=frame)


def imu_message(
    stamp_ns: int, gyro: Sequence[float] = (0.0, 0.0, 0.0), accel: Sequence[float] = (0.0, 0.0, 9.81)
) -> Any:
    return SimpleNamespace(
        header=header(stamp_ns),
        angular_velocity=SimpleNamespace(**dict(zip("xyz", map(float, gyro), strict=True))),
        linear_acceleration=SimpleNamespace(**dict(zip("xyz", map(float, accel), strict=True))),
        angular_velocity_covariance=[0.0] * 9,
        linear_acceleration_covariance=[0.0] * 9,
    )


def joint_message(
    stamp_ns: int,
    names: Sequence[str],
    position: Sequence[float] | None = None,
    velocity: Sequence[float] = (),
    effort: Sequence[float] = (),
) -> Any:
    return SimpleNamespace(
        header=header(stamp_ns, ""),
        name=list(names),
        position=[0.0] * len(names) if position is None else list(position),
        velocity=list(velocity),
        effort=list(effort),
    )


def messages_of(log: SensorLog, robot: RobotDescription) -> tuple[list[Any], list[Any]]:
    """The IMU messages and the joint states of a log."""
    imu, joints = [], []
    for sample in log:
        imu.append(imu_message(sample.stamp_ns, sample.angular_velocity, sample.linear_acceleration))
        velocity = () if sample.joint_velocity is None else sample.joint_velocity.tolist()
        effort = () if sample.joint_torque is None else sample.joint_torque.tolist()
        joints.append(
            joint_message(sample.stamp_ns, robot.reported_joint_names, sample.joint_position.tolist(), velocity, effort)
        )
    return imu, joints


def stamp_of(message: Any) -> int:
    return message.header.stamp.sec * 1_000_000_000 + message.header.stamp.nanosec


def in_order(imu: Iterable[Any], joints: Iterable[Any]) -> list[tuple[str, Any]]:
    """Both streams as one, by their stamps; at equal ones the IMU first."""
    both = [("imu", message) for message in imu] + [("joints", message) for message in joints]
    return sorted(both, key=lambda item: stamp_of(item[1]))


def feed(streams: SensorStreams, messages: Iterable[tuple[str, Any]], finish: bool = True) -> list[Event]:
    """Messages through the streams, as they come."""
    events: list[Event] = []
    for arrival, (stream, message) in enumerate(messages):
        add = streams.add_imu if stream == "imu" else streams.add_joints
        events += add(message, 1_700_000_000_000_000_000 + 1_000_000 * arrival)
    return events + (streams.finish() if finish else [])


def samples_of(events: Iterable[Event]) -> list[Sample]:
    return [event for event in events if not isinstance(event, TimeJump)]


def log_of(samples: Sequence[Sample], like: SensorLog) -> SensorLog:
    """Samples as a log, with the reference of another."""

    def stack(values: list[Any]) -> Any:
        return None if any(value is None for value in values) else np.array(values)

    torque = stack([sample.joint_torque for sample in samples])
    return SensorLog(
        np.array([sample.stamp_ns for sample in samples], dtype=np.int64),
        np.array([sample.angular_velocity for sample in samples]),
        np.array([sample.linear_acceleration for sample in samples]),
        np.array([sample.joint_position for sample in samples]),
        stack([sample.joint_velocity for sample in samples]),
        torque,
        "none" if torque is None else like.torque_source,
        like.robot,
        like.reference,
    )
