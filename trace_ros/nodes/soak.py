"""A long run of the real estimator node at full rate: memory, step times and losses over time."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tempfile
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
from rclpy.serialization import serialize_message
from sensor_msgs.msg import Imu, JointState

from trace_ros.errors import TraceError
from trace_ros.estimator.observation import WINDOW
from trace_ros.geometry import GRAVITY
from trace_ros.nodes.lifecycle import change_states
from trace_ros.nodes.spin import make_executor
from trace_ros.robot import RobotDescription

_PERIOD_S = 2.0
"""The motion repeats after this time; its messages are serialised once."""

_SETTLE_S, _DRAIN_S = 1.0, 3.0
_START_LIMIT_S = 60.0


@dataclass(frozen=True)
class SoakSample:
    """One look at the running node.

    Attributes:
        time_s: s since the first message.
        memory_mb: MB (1e6 bytes) of resident memory of the node's process.
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
    """

    rate_hz: float
    sent: int
    arrived: tuple[int, int]
    estimated: int
    received: int
    faults: dict[str, int]
    samples: list[SoakSample] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

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
    if not Path("/proc/self/statm").is_file():
        raise TraceError("soak: memory is read from /proc, which this system does not have")
    # On its own: nothing else on this machine or the network hears or feeds this node.
    os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    namespace = f"/trace_soak_{os.getpid()}"
    arguments = ["-r", f"__ns:={namespace}", "-r", "/tf:=tf", "-r", "/diagnostics:=diagnostics"]
    arguments += ["-p", f"robot:={robot_argument}"]
    if model is not None:
        arguments += ["-p", f"model:={model}"]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "estimator.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "trace_ros.nodes.estimator_node", "--ros-args", *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        begun = not rclpy.ok()
        if begun:
            rclpy.init(args=[])
        try:
            return _Soak(process, namespace, rate_hz, robot, log, on_sample).run(seconds)
        finally:
            _end(process)
            if begun:
                rclpy.try_shutdown()


class _Soak:
    def __init__(
        self,
        process: subprocess.Popen[bytes],
        namespace: str,
        rate_hz: float,
        robot: RobotDescription,
        log: Path,
        on_sample: Callable[[SoakSample], None],
    ) -> None:
        self._process, self._log, self._on_sample = process, log, on_sample
        self._rate_hz = rate_hz
        self._messages = _serialised(robot, rate_hz)
        self._node = Node("soak", namespace=namespace, use_global_arguments=False)
        self._managed = f"{namespace}/estimator"
        self._sent = self._received = 0
        self._values: dict[str, str] = {}
        self._ending = threading.Event()
        self._fault: Exception | None = None

    def run(self, seconds: float) -> SoakResult:
        node = self._node
        try:
            try:
                change_states(node, self._managed, ["configure", "activate"], _START_LIMIT_S)
            except TraceError as error:
                raise TraceError(f"soak: {error}; its log ends with: {' | '.join(self._last_lines(2))}") from error
            node.create_subscription(Odometry, "odom", self._on_odometry, QoSProfile(depth=2000), raw=True)
            node.create_subscription(DiagnosticArray, "diagnostics", self._on_diagnostics, 10)
            self._imu = node.create_publisher(Imu, "imu/data", 1000)
            self._joints = node.create_publisher(JointState, "joint_states", 1000)
            return self._watch(seconds)
        finally:
            self._ending.set()
            node.destroy_node()

    def _watch(self, seconds: float) -> SoakResult:
        executor = make_executor()
        executor.add_node(self._node)
        self._wait_for_connections(executor)
        sender = threading.Thread(target=self._send, args=(seconds,), name="soak-sender", daemon=True)
        switch_interval = sys.getswitchinterval()
        sys.setswitchinterval(0.0005)  # sender and reader share the interpreter
        samples: list[SoakSample] = []
        begin = time.monotonic()
        cpu, looked = self._cpu_s(), begin
        sender.start()
        try:
            while sender.is_alive():
                self._spin(executor, 1.0)
                if self._process.poll() is not None:
                    raise TraceError(f"soak: the node ended: {' | '.join(self._last_lines(3))}")
                now, spent = time.monotonic(), self._cpu_s()
                p50, p99 = _step_times(self._values.get("step time (ms)", ""))
                samples.append(SoakSample(now - begin, self._memory_mb(), (spent - cpu) / (now - looked), p50, p99))
                cpu, looked = spent, now
                self._on_sample(samples[-1])
            if self._fault is not None:
                raise self._fault
            self._spin(executor, _DRAIN_S)
        finally:
            self._ending.set()
            sender.join(timeout=2.0)
            sys.setswitchinterval(switch_interval)
            executor.remove_node(self._node)
            executor.shutdown()
        faults = {
            key.split(": ", 1)[1]: int(value)
            for key, value in self._values.items()
            if key.split(": ", 1)[0] in ("dropped", "repaired", "kept")
        }
        imu, joints, estimated = (
            int(self._values.get(f"{name} messages", "0")) for name in ("imu", "joint_states", "odometry")
        )
        return SoakResult(
            self._rate_hz, self._sent, (imu, joints), estimated, self._received, faults, samples, self._last_lines(20)
        )

    def _wait_for_connections(self, executor: Any) -> None:
        deadline = time.monotonic() + _START_LIMIT_S
        while not (
            self._imu.get_subscription_count()
            and self._joints.get_subscription_count()
            and self._node.count_publishers("odom")
        ):
            if time.monotonic() > deadline:
                raise TraceError(f"soak: the node's topics were not found within {_START_LIMIT_S:g} s")
            self._spin(executor, 0.1)
        self._spin(executor, _SETTLE_S)

    @staticmethod
    def _spin(executor: Any, seconds: float) -> None:
        executor.spin_until_future_complete(rclpy.task.Future(), timeout_sec=seconds)

    # -- the sender's thread --

    def _send(self, seconds: float) -> None:
        try:
            total = round(seconds * self._rate_hz)
            start_stamp_ns = self._node.get_clock().now().nanoseconds
            begin_ns = time.monotonic_ns()
            while self._sent < total and not self._ending.is_set():
                since_ns = round(self._sent * 1e9 / self._rate_hz)
                wait_ns = begin_ns + since_ns - time.monotonic_ns()
                if wait_ns > 0:
                    time.sleep(wait_ns * 1e-9)
                seconds_part, nanoseconds = divmod(start_stamp_ns + since_ns, 1_000_000_000)
                imu, joints = self._messages[self._sent % len(self._messages)]
                for publisher, message in ((self._joints, joints), (self._imu, imu)):
                    struct.pack_into("<iI", message, 4, seconds_part, nanoseconds)
                    publisher.publish(bytes(message))
                self._sent += 1
        except Exception as error:  # told by the thread that watches
            if not self._ending.is_set():
                self._fault = error

    # -- what comes back --

    def _on_odometry(self, _message: bytes) -> None:
        self._received += 1

    def _on_diagnostics(self, message: Any) -> None:
        self._values = {item.key: item.value for item in message.status[0].values}

    def _memory_mb(self) -> float:
        with suppress(OSError, IndexError, ValueError):
            pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
            return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
        return 0.0

    def _cpu_s(self) -> float:
        with suppress(OSError, IndexError, ValueError):
            # After the name in brackets: user and system time are the 12th and 13th fields.
            parts = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")
        return 0.0

    def _last_lines(self, count: int) -> list[str]:
        return self._log.read_text(errors="replace").splitlines()[-count:]


def _serialised(robot: RobotDescription, rate_hz: float) -> list[tuple[bytearray, bytearray]]:
    """IMU and joint state of every instant of one period, serialised, little-endian."""
    count = round(_PERIOD_S * rate_hz)
    phase = 2 * np.pi * np.arange(count) / count
    offset = np.tile([0.0, 0.3, 0.6], 4) + np.repeat([0.0, np.pi, np.pi, 0.0], 3)
    amplitude = np.tile([0.05, 0.2, 0.25], 4)
    turns = 3.0  # steps in a period
    angle = turns * phase[:, None] + offset
    position = robot.nominal_joint_positions + amplitude * np.sin(angle)
    velocity = amplitude * turns * 2 * np.pi / _PERIOD_S * np.cos(angle)
    messages = []
    for k in range(count):
        imu, joints = Imu(), JointState(name=list(robot.joint_names))
        w, a = imu.angular_velocity, imu.linear_acceleration
        w.x, w.y, w.z = (0.3 * np.sin(turns * phase[k] + shift) for shift in (0.0, 1.0, 2.0))
        a.x, a.y, a.z = 0.5 * np.sin(turns * phase[k]), 0.0, GRAVITY + np.cos(2 * turns * phase[k])
        joints.position, joints.velocity = position[k].tolist(), velocity[k].tolist()
        joints.effort = [0.0] * 12
        messages.append((bytearray(serialize_message(imu)), bytearray(serialize_message(joints))))
    if any(part[1] != 1 for pair in messages[:1] for part in pair):
        raise TraceError("soak: this middleware does not serialise as little-endian CDR")
    return messages


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


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the node to end, and make it."""
    process.terminate()
    try:
        process.wait(5.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
