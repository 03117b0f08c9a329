"""A long run of the real estimator node at full rate: memory, step times and losses over time."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from nav_msgs.msg import Odometry
from rclpy.node import Node
from rclpy.qos import QoSProfile

from trace_ros.errors import TraceError
from trace_ros.estimator.observation import WINDOW
from trace_ros.nodes.estimator_process import START_LIMIT_S, EstimatorProcess, estimator_process, faults_of
from trace_ros.nodes.spin import make_executor
from trace_ros.nodes.traffic import WalkTraffic
from trace_ros.robot import RobotDescription

_SETTLE_S = 1.0

_DRAIN_S, _DRAIN_LIMIT_S = 3.0, 30.0
"""After the last message: how long to wait for the next sign of those under way, and how long in all."""


@dataclass(frozen=True)
class SoakSample:
    """One look at the running node.

    Attributes:
        time_s: s since the first message.
        memory_mb: MB (1e6 bytes) of the node's own memory, mapped files left out.
        cpu: part of one core since the look before.
        step_p50_ms, step_p99_ms: ms, over the last 4 s of steps; NaN before the first report.
    """

    time_s: float
    memory_mb: float
    cpu: float
    step_p50_ms: float
    step_p99_ms: float


@dataclass(frozen=True)
class SoakResult:
    """What a run showed.

    Attributes:
        rate_hz: of both inputs.
        sent: pairs of messages.
        arrived: messages of IMU and joint states that the node counted.
        estimated: odometry messages that the node counted.
        received: odometry messages that came back.
        faults: what the node counted, by kind.
        samples: over time.
        log: last lines of the node's log.
        late: pairs that were sent more than half an interval after their time; a burst of them can overflow a queue.
    """

    rate_hz: float
    sent: int
    arrived: tuple[int, int]
    estimated: int
    received: int
    faults: dict[str, int]
    samples: list[SoakSample] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    late: int = 0

    @property
    def lost(self) -> int:
        """Messages of both topics that did not reach the node."""
        return 2 * self.sent - sum(self.arrived)

    @property
    def without_odometry(self) -> int:
        """Pairs that gave no odometry, beyond the 29 that fill the window; meaningful at the model's own rate."""
        return max(self.sent - (WINDOW - 1), 0) - self.estimated

    @property
    def lost_on_return(self) -> int:
        """Odometry that was published and did not come back."""
        return self.estimated - self.received

    @property
    def memory_growth_mb(self) -> float:
        """MB from the end of the first minute (or the first fifth of a shorter run) to the end."""
        if len(self.samples) < 2:
            return 0.0
        begin = min(60.0, 0.2 * self.samples[-1].time_s)
        after = [sample for sample in self.samples if sample.time_s >= begin]
        few = max(len(after) // 20, 1)
        return float(np.median([s.memory_mb for s in after[-few:]]) - np.median([s.memory_mb for s in after[:few]]))

    @property
    def p99_ratio(self) -> float:
        """p99 of the step time in the last third against the first third of the run; 1 is flat, NaN unknown."""
        p99 = [sample.step_p99_ms for sample in self.samples if np.isfinite(sample.step_p99_ms)]
        third = len(p99) // 3
        return float(np.median(p99[-third:]) / np.median(p99[:third])) if third else float("nan")

    def to_dict(self) -> dict[str, Any]:
        """For JSON: fields and derived figures, unknown ones as None."""
        data = asdict(self) | {
            "lost": self.lost,
            "without_odometry": self.without_odometry,
            "lost_on_return": self.lost_on_return,
            "memory_growth_mb": self.memory_growth_mb,
            "p99_ratio": self.p99_ratio,
        }
        return _without_nan(data)


def soak(
    seconds: float,
    rate_hz: float,
    robot: RobotDescription,
    robot_argument: str,
    model: Path | None = None,
    on_sample: Callable[[SoakSample], None] = lambda _sample: None,
) -> SoakResult:
    """Start the estimator node as a process, feed it a walk-like motion, and watch it.

    Args:
        seconds: s, how long to send.
        rate_hz: of both inputs.
        robot: whose joints move.
        robot_argument: the node's parameter ``robot``.
        model: the node's parameter ``model``; None: the one that ships.
        on_sample: called about once a second.

    Raises:
        TraceError: no /proc, or the node does not start (with what it said).
    """
    with estimator_process("soak", {"robot": robot_argument, "model": model}) as process:
        return _Soak(process, rate_hz, robot, on_sample).run(seconds)


class _Soak:
    def __init__(
        self,
        process: EstimatorProcess,
        rate_hz: float,
        robot: RobotDescription,
        on_sample: Callable[[SoakSample], None],
    ) -> None:
        self._process, self._on_sample = process, on_sample
        self._rate_hz, self._robot = rate_hz, robot
        self._node = Node("soak", namespace=process.namespace, use_global_arguments=False)
        self._received = 0
        self._values: dict[str, str] = {}
        self._ending = threading.Event()
        self._fault: Exception | None = None

    def run(self, seconds: float) -> SoakResult:
        node = self._node
        try:
            self._process.activate(node)
            node.create_subscription(Odometry, "odom", self._on_odometry, QoSProfile(depth=2000), raw=True)
            node.create_subscription(DiagnosticArray, "diagnostics", self._on_diagnostics, 10)
            return self._watch(seconds, WalkTraffic(node, self._robot, self._rate_hz))
        finally:
            self._ending.set()
            node.destroy_node()

    def _watch(self, seconds: float, traffic: WalkTraffic) -> SoakResult:
        executor = make_executor()
        executor.add_node(self._node)
        self._wait_for_connections(executor, traffic)
        sender = threading.Thread(target=self._send, args=(traffic, seconds), name="soak-sender", daemon=True)
        switch_interval = sys.getswitchinterval()
        sys.setswitchinterval(0.0005)  # sender and reader share the interpreter
        samples: list[SoakSample] = []
        begin = time.monotonic()
        process = self._process
        cpu, looked = process.cpu_s(), begin
        sender.start()
        try:
            while sender.is_alive():
                self._spin(executor, 1.0)
                process.check()
                now, spent = time.monotonic(), process.cpu_s()
                p50, p99 = _step_times(self._values.get("step time (ms)", ""))
                samples.append(SoakSample(now - begin, process.memory_mb(), (spent - cpu) / (now - looked), p50, p99))
                cpu, looked = spent, now
                self._on_sample(samples[-1])
            if self._fault is not None:
                raise self._fault
            self._drain(executor, traffic.pairs)
        finally:
            self._ending.set()
            sender.join(timeout=2.0)
            sys.setswitchinterval(switch_interval)
            executor.remove_node(self._node)
            executor.shutdown()
        imu, joints, estimated = self._counts()
        faults, log = faults_of(self._values), process.last_lines(20)
        return SoakResult(
            self._rate_hz, traffic.pairs, (imu, joints), estimated, self._received, faults, samples, log, traffic.late
        )

    def _counts(self) -> tuple[int, int, int]:
        """IMU messages, joint states and odometry messages that the node has counted."""
        imu, joints, odometry = (
            int(self._values.get(f"{name} messages", "0")) for name in ("imu", "joint_states", "odometry")
        )
        return imu, joints, odometry

    def _drain(self, executor: Any, pairs: int) -> None:
        """Until all that was sent has been told of, or nothing more is: a busy machine takes its time."""
        deadline, last, before = time.monotonic() + _DRAIN_LIMIT_S, time.monotonic(), (-1, -1, -1, -1)
        while (now := time.monotonic()) < deadline and now - last < _DRAIN_S:
            imu, joints, odometry = self._counts()
            if min(imu, joints) >= pairs and self._received >= odometry >= pairs - (WINDOW - 1):
                return
            if (found := (imu, joints, odometry, self._received)) != before:
                before, last = found, now
            self._spin(executor, 0.2)

    def _wait_for_connections(self, executor: Any, traffic: WalkTraffic) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while not (traffic.connected and self._node.count_publishers("odom")):
            if time.monotonic() > deadline:
                raise TraceError(f"soak: the node's topics were not found within {START_LIMIT_S:g} s")
            self._spin(executor, 0.1)
        self._spin(executor, _SETTLE_S)

    @staticmethod
    def _spin(executor: Any, seconds: float) -> None:
        executor.spin_until_future_complete(rclpy.task.Future(), timeout_sec=seconds)

    def _send(self, traffic: WalkTraffic, seconds: float) -> None:
        try:
            traffic.send(seconds, self._ending)
        except Exception as error:  # told by the thread that watches
            if not self._ending.is_set():
                self._fault = error

    def _on_odometry(self, _message: bytes) -> None:
        self._received += 1

    def _on_diagnostics(self, message: Any) -> None:
        self._values = {item.key: item.value for item in message.status[0].values}


def _step_times(text: str) -> tuple[float, float]:
    """p50 and p99 (ms) out of a diagnostic value."""
    values = dict(part.split(" ", 1) for part in text.split(", ") if part.startswith("p"))
    with suppress(KeyError, ValueError):
        return float(values["p50"]), float(values["p99"])
    return float("nan"), float("nan")


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
