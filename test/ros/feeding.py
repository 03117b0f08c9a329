"""Feeds a log to the estimator node over DDS, message by message, and looks at what comes back."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from nav_msgs.msg import Odometry
from sensor_msgs.msg import Imu, JointState

from trace_ros.estimator.run import EstimatedRun
from trace_ros.logs import SensorLog
from trace_ros.nodes.conversions import set_stamp, stamp_to_ns
from trace_ros.robot import RobotDescription


@dataclass
class Wire:
    """Feeds a log to the node message by message, and keeps what comes back."""

    client: Any
    node: Any
    robot: RobotDescription
    namespace: str = ""
    odometry: list[Odometry] = field(default_factory=list)
    diagnostics: list[DiagnosticArray] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.odometry = self.client.listen(Odometry, f"{self.namespace}odom")
        self.diagnostics = self.client.listen(DiagnosticArray, "/diagnostics")
        self.imu = self.client.publisher(Imu, f"{self.namespace}imu/data")
        self.joints = self.client.publisher(JointState, f"{self.namespace}joint_states")
        deadline = time.monotonic() + 120
        while not (
            self.imu.get_subscription_count()
            and self.joints.get_subscription_count()
            and self.client.node.count_publishers(f"{self.namespace}odom")
        ):
            assert time.monotonic() < deadline, self.node.log()
            time.sleep(0.02)
        time.sleep(0.5)

    def send(
        self,
        log: SensorLog,
        shift_ns: int = 0,
        order: list[int] | None = None,
        extra: tuple[str, ...] = (),
        spoil: Callable[[int, Imu, JointState], None] = lambda _k, _imu, _joints: None,
    ) -> None:
        names = list(self.robot.joint_names)
        order = list(range(12)) if order is None else order
        for k, sample in enumerate(log):
            imu, joints = Imu(), JointState()
            for message in (imu, joints):
                set_stamp(message.header.stamp, sample.stamp_ns + shift_ns)
            w, a = imu.angular_velocity, imu.linear_acceleration
            w.x, w.y, w.z = sample.angular_velocity.tolist()
            a.x, a.y, a.z = sample.linear_acceleration.tolist()
            joints.name = [*extra, *(names[i] for i in order)]
            padding = [0.5] * len(extra)
            joints.position = padding + sample.joint_position[order].tolist()
            if sample.joint_velocity is not None:
                joints.velocity = padding + sample.joint_velocity[order].tolist()
            if sample.joint_torque is not None:
                joints.effort = padding + sample.joint_torque[order].tolist()
            spoil(k, imu, joints)
            self.imu.publish(imu)
            self.joints.publish(joints)
            time.sleep(0.001)

    def wait(self, count: int, limit_s: float = 120.0) -> list[Odometry]:
        """The odometry once that many messages have come, or none come any more."""
        deadline = time.monotonic() + limit_s
        while len(self.odometry) < count and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.2)
        assert len(self.odometry) == count, self.node.log()
        return self.odometry

    def status(self, condition: Callable[[DiagnosticStatus], bool], limit_s: float = 120.0) -> DiagnosticStatus:
        """The first diagnostic status, from now on, that fulfils a condition."""
        start = len(self.diagnostics)
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            for array in self.diagnostics[start:]:
                if condition(array.status[0]):
                    return array.status[0]
            time.sleep(0.05)
        pytest.fail(f"no such status; the last: {self.diagnostics[-1].status[0] if self.diagnostics else None}")


def positions(odometry: list[Odometry]) -> np.ndarray:
    return np.array([[getattr(m.pose.pose.position, axis) for axis in "xyz"] for m in odometry])


def orientations(odometry: list[Odometry]) -> np.ndarray:
    return np.array([[getattr(m.pose.pose.orientation, axis) for axis in "xyzw"] for m in odometry])


def velocities(odometry: list[Odometry]) -> np.ndarray:
    return np.array([[getattr(m.twist.twist.linear, axis) for axis in "xyz"] for m in odometry])


def stamps(odometry: list[Odometry]) -> np.ndarray:
    return np.array([stamp_to_ns(m.header.stamp) for m in odometry])


def assert_same(odometry: list[Odometry], run: EstimatedRun, shift_ns: int = 0) -> None:
    np.testing.assert_array_equal(stamps(odometry), run.trajectory.stamp_ns + shift_ns)
    np.testing.assert_array_equal(positions(odometry), run.trajectory.position)
    np.testing.assert_array_equal(velocities(odometry), run.trajectory.velocity)
    np.testing.assert_allclose(orientations(odometry), run.trajectory.orientation, atol=1e-15)
