"""A robot that walks, as far as the topics show it: IMU and joint states at a steady rate, in this process or its own.

python -m trace_ros.nodes.traffic --namespace /there --robot go2 --rate 500 --seconds 60
"""

from __future__ import annotations

import argparse
import json
import signal
import struct
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import rclpy
from rclpy.node import Node
from rclpy.serialization import serialize_message
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import Imu, JointState

from trace_ros.errors import TraceError
from trace_ros.geometry import GRAVITY
from trace_ros.robot import RobotDescription

Stamping = Literal["schedule", "sending"]
"""Stamps on an even grid from the first message on, or each the time at which its message is sent."""

_PERIOD_S = 2.0
"""The motion repeats after this time; its messages are serialised once."""

_CONNECT_LIMIT_S, _SETTLE_S = 30.0, 1.0


@dataclass(frozen=True)
class Sent:
    """What was sent.

    Attributes:
        pairs: of an IMU message and a joint state.
        late: pairs sent more than half an interval after their time.
    """

    pairs: int
    late: int


class WalkTraffic:
    """Publishes joint states and IMU messages of one motion over and over, each pair with one stamp."""

    def __init__(self, node: Node, robot: RobotDescription, rate_hz: float) -> None:
        """Create the publishers ``imu/data`` and ``joint_states``.

        Raises:
            TraceError: the middleware serialises in a way that stamps cannot be written into.
        """
        self._node, self._rate_hz = node, rate_hz
        self._messages = serialised_walk(robot, rate_hz)
        self._imu = node.create_publisher(Imu, "imu/data", 1000)
        self._joints = node.create_publisher(JointState, "joint_states", 1000)
        self.pairs = 0
        """Sent so far."""
        self.late = 0
        """Of them, those that were sent more than half an interval after their time."""

    @property
    def connected(self) -> bool:
        """Whether somebody subscribes to both topics."""
        return bool(self._imu.get_subscription_count() and self._joints.get_subscription_count())

    def send(self, seconds: float, ending: threading.Event, stamping: Stamping = "schedule") -> Sent:
        """Send at the rate, until the time (s) is over or ``ending`` is set.

        Stamped by the ``schedule``, what is late is sent in a burst, so that none is missing. Stamped when ``sending``,
        the schedule moves on instead, as a driver's does that reads a sensor.
        """
        total, step_ns = round(seconds * self._rate_hz), 1e9 / self._rate_hz
        start_stamp_ns = self._node.get_clock().now().nanoseconds
        begin_ns = time.monotonic_ns()
        while self.pairs < total and not ending.is_set():
            since_ns = round(self.pairs * step_ns)
            due_ns = begin_ns + since_ns
            if (wait_ns := due_ns - time.monotonic_ns()) > 0:
                time.sleep(wait_ns * 1e-9)
            if (late_ns := time.monotonic_ns() - due_ns) > step_ns / 2:
                self.late += 1
                if stamping == "sending":
                    begin_ns += late_ns
            imu, joints = self._messages[self.pairs % len(self._messages)]
            stamp = divmod(time.time_ns() if stamping == "sending" else start_stamp_ns + since_ns, 1_000_000_000)
            for publisher, message in ((self._joints, joints), (self._imu, imu)):
                struct.pack_into("<iI", message, 4, *stamp)
                publisher.publish(bytes(message))
            self.pairs += 1
        return Sent(self.pairs, self.late)


def serialised_walk(robot: RobotDescription, rate_hz: float) -> list[tuple[bytearray, bytearray]]:
    """IMU and joint state of every instant of one period, serialised, little-endian, stamped zero.

    Raises:
        TraceError: the middleware serialises otherwise.
    """
    count = round(_PERIOD_S * rate_hz)
    phase = 2 * np.pi * np.arange(count) / count
    offset = np.tile([0.0, 0.3, 0.6], 4) + np.repeat([0.0, np.pi, np.pi, 0.0], 3)
    amplitude = np.tile([0.05, 0.2, 0.25], 4)
    turns = 3.0  # steps in a period
    angle = turns * phase[:, None] + offset
    position = robot.nominal_joint_positions + amplitude * np.sin(angle)
    velocity = amplitude * turns * 2 * np.pi / _PERIOD_S * np.cos(angle)
    # As the robot itself says it: its names, signs and zeros, and the IMU's own frame.
    position, velocity = robot.joint_signs * (position - robot.joint_offsets), robot.joint_signs * velocity
    gyro = 0.3 * np.sin(turns * phase[:, None] + (0.0, 1.0, 2.0))
    accel = np.stack((0.5 * np.sin(turns * phase), np.zeros(count), GRAVITY + np.cos(2 * turns * phase)), axis=1)
    to_imu = robot.rotation_body_imu.inv()
    gyro, accel = to_imu.apply(gyro), to_imu.apply(accel)
    messages = []
    for k in range(count):
        imu, joints = Imu(), JointState(name=list(robot.reported_joint_names))
        w, a = imu.angular_velocity, imu.linear_acceleration
        w.x, w.y, w.z = gyro[k].tolist()
        a.x, a.y, a.z = accel[k].tolist()
        joints.position, joints.velocity = position[k].tolist(), velocity[k].tolist()
        joints.effort = [0.0] * 12
        messages.append((bytearray(serialize_message(imu)), bytearray(serialize_message(joints))))
    if any(part[1] != 1 for pair in messages[:1] for part in pair):
        raise TraceError("this middleware does not serialise as little-endian CDR: stamps cannot be written")
    return messages


def main(args: Sequence[str] | None = None) -> int:
    """Send, stamped when sending, and print what was sent as one line of JSON; 2 when nobody listens.

    Then it lingers: the middleware takes what a listener has not read yet away with its publisher.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namespace", default="")
    parser.add_argument("--robot", default="go2")
    parser.add_argument("--rate", type=float, default=500.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--linger", type=float, default=3.0, help="s to stay after the last message; a signal ends it")
    given = parser.parse_args(args)
    # A signal that took the context away would take messages under way with it.
    rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    node = Node("traffic", namespace=given.namespace, use_global_arguments=False)
    # Only waits for its next turn and for the middleware's threads: they need not wait for it.
    sys.setswitchinterval(0.0005)
    try:
        traffic: Any = WalkTraffic(node, RobotDescription.load(given.robot), given.rate)
        deadline = time.monotonic() + _CONNECT_LIMIT_S
        while not traffic.connected:
            if time.monotonic() > deadline:
                raise TraceError(f"nobody subscribes to imu/data and joint_states in {given.namespace or '/'}")
            time.sleep(0.05)
        time.sleep(_SETTLE_S)
        print(json.dumps(asdict(traffic.send(given.seconds, threading.Event(), "sending"))), flush=True)
        with suppress(KeyboardInterrupt):
            time.sleep(given.linger)
    except TraceError as error:
        print(f"traffic: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    finally:
        node.destroy_node()
        rclpy.try_shutdown()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
