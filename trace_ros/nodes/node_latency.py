"""From the IMU's stamp to the odometry's arrival: sensors, estimator node and listener as three processes over DDS."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from nav_msgs.msg import Odometry
from rclpy.node import Node
from rclpy.qos import QoSProfile

from trace_ros.errors import TraceError
from trace_ros.estimator.observation import WINDOW
from trace_ros.nodes.estimator_process import EstimatorProcess, end, estimator_process, faults_of
from trace_ros.nodes.spin import make_executor
from trace_ros.robot import RobotDescription

_DRAIN_S, _DRAIN_LIMIT_S = 3.0, 30.0
"""After the last message: how long to wait for the next sign of those under way, and how long in all."""

_GRACE_S = 60.0
"""How much longer than told the sensors' process may take: it has to start and to find its listeners."""

_LINGER_S = 2 * _DRAIN_LIMIT_S
"""How long the sensors' process stays if nobody ends it: its publishers must outlive what is under way."""


@dataclass(frozen=True)
class NodeLatency:
    """What a run showed.

    Attributes:
        estimator: that ran.
        rate_hz: of both inputs.
        seconds: for which was sent.
        sent: pairs of messages.
        sent_late: pairs that were sent more than half an interval after their time.
        imu_lost, joints_lost: messages that the node did not count.
        without_odometry: pairs that gave no odometry, beyond the 29 that fill the window.
        odometry_lost: messages that were published and did not arrive.
        p50_ms, p99_ms, max_ms, mean_ms: ms, from the stamp of an IMU message, which is the time just before it and its
            joint state are sent, to the arrival of its odometry in the listener.
        cpu: part of one core that the node's process took while messages came.
        cpu_per_sample_us: processor time a sample, us.
        step: p50, p99 and max of the estimator's step, in the node's words.
        faults: what the node counted, by kind.
    """

    estimator: str
    rate_hz: float
    seconds: float
    sent: int
    sent_late: int
    imu_lost: int
    joints_lost: int
    without_odometry: int
    odometry_lost: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    mean_ms: float
    cpu: float
    cpu_per_sample_us: float
    step: str
    faults: dict[str, int]

    @property
    def lost(self) -> int:
        """Messages on all topics."""
        return self.imu_lost + self.joints_lost + self.odometry_lost

    def to_dict(self) -> dict[str, Any]:
        """By name."""
        return asdict(self)


def measure_node(
    seconds: float,
    rate_hz: float,
    robot_argument: str,
    parameters: dict[str, object],
    on_progress: Callable[[float], None] = lambda _seconds: None,
) -> NodeLatency:
    """Start the estimator node and a process that sends, and listen in this one.

    Args:
        seconds: s, how long to send.
        rate_hz: of both inputs.
        robot_argument: name or file of the robot.
        parameters: of the node, beside ``robot``; those that are None are left out.
        on_progress: called about twice a second with the seconds since the first odometry.

    Raises:
        TraceError: no /proc, a process does not start or ends (with what it said), or nothing comes back.
    """
    RobotDescription.load(robot_argument)
    with estimator_process("latency", {"robot": robot_argument, **parameters}) as process:
        listener = _Listener(process)
        try:
            return listener.run(
                seconds, rate_hz, robot_argument, str(parameters.get("estimator") or "trace"), on_progress
            )
        finally:
            listener.node.destroy_node()


class _Sensors:
    """The process that sends. It lingers after its last message, until it is ended."""

    def __init__(self, estimator: EstimatorProcess, seconds: float, rate_hz: float, robot: str) -> None:
        command = [sys.executable, "-m", "trace_ros.nodes.traffic", "--namespace", estimator.namespace]
        command += ["--robot", robot, "--rate", str(rate_hz), "--seconds", str(seconds), "--linger", str(_LINGER_S)]
        self._estimator = estimator
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.sent = ""
        """What it says of what it sent; empty while it sends, and where it ended before."""
        self.done = 0.0, 0.0
        """Clock and processor time of the estimator's node when it said so, s."""
        # In a thread, because the moment counts: what the node takes from then on is not for these messages.
        self._reader = threading.Thread(target=self._read, name="latency-sensors", daemon=True)
        self._reader.start()

    @property
    def sending(self) -> bool:
        """Whether it has neither said what it sent nor ended."""
        return self._reader.is_alive()

    def end(self) -> str:
        """End it; returns its complaints."""
        end(self._process)
        self._reader.join()
        assert self._process.stderr is not None
        return self._process.stderr.read()

    def _read(self) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        self.done = time.monotonic(), self._estimator.cpu_s()
        self.sent = line


class _Listener:
    """Takes the odometry's stamps out of the serialised messages: as little work as can be between the two clocks."""

    def __init__(self, process: EstimatorProcess) -> None:
        self._process = process
        self.node = Node("latency", namespace=process.namespace, use_global_arguments=False)
        self._latency_ns = array("q")
        self._values: dict[str, str] = {}
        self._begun: tuple[float, float] | None = None
        """Clock and processor time of the node at the first odometry, s."""

    def run(
        self, seconds: float, rate_hz: float, robot: str, estimator: str, on_progress: Callable[[float], None]
    ) -> NodeLatency:
        node, process = self.node, self._process
        process.activate(node)
        node.create_subscription(Odometry, "odom", self._on_odometry, QoSProfile(depth=2000), raw=True)
        node.create_subscription(DiagnosticArray, "diagnostics", self._on_diagnostics, 10)
        executor = make_executor()
        executor.add_node(node)
        sensors = _Sensors(process, seconds, rate_hz, robot)
        try:
            deadline = time.monotonic() + seconds + _GRACE_S
            while sensors.sending:
                self._spin(executor, 0.5)
                process.check()
                if self._begun is not None:
                    on_progress(time.monotonic() - self._begun[0])
                if time.monotonic() > deadline:
                    raise TraceError(f"latency: the sensors' process did not end within {seconds + _GRACE_S:g} s")
            if sensors.sent:
                self._drain(executor)
        finally:
            complaints = sensors.end()
            executor.remove_node(node)
            executor.shutdown()
        if not sensors.sent:
            raise TraceError(f"latency: the sensors' process ended: {' | '.join(complaints.splitlines()[-2:])}")
        if self._begun is None or not self._latency_ns:
            raise TraceError(f"latency: no odometry came; the node's log: {' | '.join(process.last_lines(3))}")
        return self._result(seconds, rate_hz, estimator, json.loads(sensors.sent), sensors.done)

    def _result(
        self, seconds: float, rate_hz: float, estimator: str, sent: dict[str, int], ended: tuple[float, float]
    ) -> NodeLatency:
        assert self._begun is not None
        pairs, arrived = sent["pairs"], len(self._latency_ns)
        imu, joints, estimated = self._counts()
        ms = np.array(self._latency_ns, dtype=float) * 1e-6
        p50, p99, longest = np.percentile(ms, (50, 99, 100)).tolist()
        spent = ended[1] - self._begun[1]
        return NodeLatency(
            estimator,
            rate_hz,
            seconds,
            pairs,
            sent["late"],
            pairs - imu,
            pairs - joints,
            # Where samples were lost while the window filled, those that bridge them fill it too.
            max(pairs - (WINDOW - 1) - estimated, 0),
            estimated - arrived,
            p50,
            p99,
            longest,
            float(ms.mean()),
            spent / max(ended[0] - self._begun[0], 1e-9),
            spent / arrived * 1e6,
            self._values.get("step time (ms)", "unknown"),
            faults_of(self._values),
        )

    def _counts(self) -> tuple[int, int, int]:
        """IMU messages, joint states and odometry messages that the node has told of."""
        imu, joints, odometry = (
            int(self._values.get(f"{name} messages", "0")) for name in ("imu", "joint_states", "odometry")
        )
        return imu, joints, odometry

    def _drain(self, executor: Any) -> None:
        """Until nothing more is told of or comes: the node tells its counts once a second."""
        deadline = time.monotonic() + _DRAIN_LIMIT_S
        before: tuple[int, ...] = ()
        while before != (found := (*self._counts(), len(self._latency_ns))) and time.monotonic() < deadline:
            before = found
            self._spin(executor, _DRAIN_S)

    @staticmethod
    def _spin(executor: Any, seconds: float) -> None:
        executor.spin_until_future_complete(rclpy.task.Future(), timeout_sec=seconds)

    def _on_odometry(self, message: bytes) -> None:
        now_ns = time.time_ns()
        seconds, nanoseconds = struct.unpack_from("<iI", message, 4)
        self._latency_ns.append(now_ns - (seconds * 1_000_000_000 + nanoseconds))
        if self._begun is None:
            self._begun = time.monotonic(), self._process.cpu_s()

    def _on_diagnostics(self, message: Any) -> None:
        self._values = {item.key: item.value for item in message.status[0].values}
