"""Real nodes over DDS: a domain of our own, nodes as processes, and a client node in the test's process."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# Fields of messages are checked only on demand in ROS 2 Jazzy; elsewhere a wrong type is sent as garbage.
os.environ.setdefault("ROS_PYTHON_CHECK_FIELDS", "1")

pytest.importorskip("rclpy", reason="needs a ROS 2 Python environment")

import rclpy
from feeding import Wire
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rcl_interfaces.srv import SetParameters
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile, ReliabilityPolicy

from trace_ros.bags import write_bag
from trace_ros.logs import SensorLog, Trajectory
from trace_ros.robot import RobotDescription

DOMAINS = range(40, 60)
START_LIMIT_S = 120.0
"""A node starts in two seconds where it has a core, and in two minutes where it has next to nothing of one."""

PATIENT = {"input_reliability": "reliable", "queue_depth": 5000}
"""Parameters of the estimator: a machine that stalls must not lose messages, where what is tested is what becomes of
those that come."""

STAYING = {"end_delay": 600.0, "queue_depth": 5000}
"""Parameters of the replay, for the same reason: until it is interrupted, nothing that it sent is gone."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.ros)


def _is_empty(domain: int) -> bool:
    """Whether nobody is there: nodes outlive a test process that was killed, and would answer in place of ours."""
    context = rclpy.Context()
    rclpy.init(context=context, domain_id=domain)
    try:
        node = Node("test_scout", context=context, use_global_arguments=False)
        time.sleep(1.0)
        names = set(node.get_node_names()) - {"test_scout"}
        node.destroy_node()
    finally:
        context.shutdown()
    return not names


def _claim_domain() -> tuple[int, Any]:
    """A domain that nobody else on this machine uses; the lock goes with the process."""
    for domain in DOMAINS:
        lock = (Path(tempfile.gettempdir()) / f"trace_ros_test_domain_{domain}.lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
        else:
            if _is_empty(domain):
                return domain, lock
            lock.close()
    raise RuntimeError("no free ROS domain for this test process")


@pytest.fixture(scope="session", autouse=True)
def ros_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    changed = {
        "ROS_DOMAIN_ID": "",
        "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
        "ROS_LOG_DIR": str(tmp_path_factory.mktemp("ros_log")),
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    domain, lock = _claim_domain()
    os.environ["ROS_DOMAIN_ID"] = str(domain)
    rclpy.init()
    yield
    rclpy.try_shutdown()
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    lock.close()


class NodeProcess:
    """One of the package's nodes as a process of its own."""

    def __init__(self, module: str, arguments: list[str], log: Path) -> None:
        self._log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"trace_ros.nodes.{module}", "--ros-args", *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=log.parent,
            )

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def lines(self, text: str) -> list[str]:
        """Lines of the log that contain a text."""
        return [line for line in self.log().splitlines() if text in line]

    def wait_for(self, text: str, limit_s: float = START_LIMIT_S, count: int = 1) -> None:
        wait_until(
            lambda: len(self.lines(text)) >= count or self.process.poll() is not None,
            limit_s,
            lambda: f"{text!r} in:\n{self.log()}",
        )
        assert len(self.lines(text)) >= count, f"ended without {text!r}:\n{self.log()}"

    def wait(self, limit_s: float = START_LIMIT_S) -> int:
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {limit_s} s:\n{self.log()}")

    def interrupt(self, limit_s: float = 30.0) -> int:
        """Ctrl-C; returns the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.wait(limit_s)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(5.0)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def wait_until(condition: Callable[[], bool], limit_s: float, what: Callable[[], str] | str) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {limit_s} s: {what() if callable(what) else what}")
        time.sleep(0.02)


@pytest.fixture
def start_node(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., NodeProcess]]:
    """Starts ``trace_ros.nodes.<module>`` with parameters and remappings; ends it after the test."""
    started: list[NodeProcess] = []

    def start(module: str, *extra: str, **parameters: Any) -> NodeProcess:
        arguments = list(extra)
        for name, value in parameters.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            arguments += ["-p", f"{name}:={text}"]
        process = NodeProcess(module, arguments, tmp_path / f"{module}_{len(started)}.log")
        started.append(process)
        return process

    yield start
    for process in started:
        process.end()
    # What the nodes said helps to understand a failure.
    for process in started:
        sys.stdout.write(f"--- {request.node.name}: {process.process.args[2]}\n{process.log()}\n")


class Client:
    """A node in the test's process that listens, talks and calls."""

    def __init__(self) -> None:
        self.node = Node("test_client", use_global_arguments=False)
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self.node)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._spin, daemon=True)
        self._thread.start()

    def _spin(self) -> None:
        while not self._ending.is_set():
            self._executor.spin_once(timeout_sec=0.05)

    def listen(self, kind: Any, topic: str, reliable: bool = True, qos: QoSProfile | None = None) -> list[Any]:
        """The list into which messages of a topic go as they come."""
        received: list[Any] = []
        reliability = ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT
        self.node.create_subscription(
            kind, topic, received.append, qos or QoSProfile(depth=5000, reliability=reliability)
        )
        return received

    def publisher(self, kind: Any, topic: str, depth: int = 5000) -> Any:
        return self.node.create_publisher(kind, topic, depth)

    def call(self, kind: Any, name: str, request: Any, limit_s: float = START_LIMIT_S) -> Any:
        client = self.node.create_client(kind, name)
        assert client.wait_for_service(limit_s), f"no service {name}"
        future = client.call_async(request)
        wait_until(future.done, limit_s, f"an answer of {name}")
        self.node.destroy_client(client)
        return future.result()

    def change_state(self, transition: int, node: str = "/estimator") -> bool:
        request = ChangeState.Request(transition=Transition(id=transition))
        return self.call(ChangeState, f"{node}/change_state", request).success

    def state(self, node: str = "/estimator") -> str:
        return self.call(GetState, f"{node}/get_state", GetState.Request()).current_state.label

    def set_parameter(self, name: str, value: Any, node: str = "/estimator") -> Any:
        request = SetParameters.Request(parameters=[Parameter(name, value=value).to_parameter_msg()])
        return self.call(SetParameters, f"{node}/set_parameters", request).results[0]

    def close(self) -> None:
        self._ending.set()
        self._thread.join()
        self._executor.shutdown()
        self.node.destroy_node()


@pytest.fixture
def client() -> Iterator[Client]:
    client = Client()
    yield client
    client.close()


@pytest.fixture(scope="session")
def robot() -> RobotDescription:
    return RobotDescription.load("go2")


def make_log(robot: RobotDescription, seconds: float, rate_hz: float = 500.0, seed: int = 0) -> SensorLog:
    """Something like walking, with a reference; enough for what the nodes do with it."""
    rng = np.random.default_rng(seed)
    count = round(seconds * rate_hz)
    t = np.arange(count) / rate_hz
    stamp_ns = 1_000_000_000_000 + np.round(t * 1e9).astype(np.int64)
    phase = 2 * np.pi * (1.5 * t[:, None] + np.tile([0.0, 0.3, 0.6], 4) + np.repeat([0.0, 0.5, 0.5, 0.0], 3))
    amplitude = np.tile([0.05, 0.25, 0.3], 4)
    position = robot.nominal_joint_positions + amplitude * np.sin(phase)
    velocity = amplitude * 2 * np.pi * 1.5 * np.cos(phase)
    gyro = 0.3 * np.sin(2 * np.pi * t[:, None] * [1.0, 1.3, 0.4]) + rng.normal(0, 0.02, (count, 3))
    accel = np.array([0.0, 0.0, 9.81]) + rng.normal(0, 0.3, (count, 3))
    yaw = 0.2 * t
    reference = Trajectory(
        stamp_ns,
        np.stack([2 * np.sin(yaw) + 5, 2 - 2 * np.cos(yaw), np.full(count, 0.3)], axis=1),
        np.stack([np.zeros(count), np.zeros(count), np.sin(yaw / 2), np.cos(yaw / 2)], axis=1),
        np.tile([0.4, 0.0, 0.0], (count, 1)),
        np.tile([0.0, 0.0, 0.2], (count, 1)),
    )
    torque = rng.normal(0, 5, (count, 12))
    return SensorLog(stamp_ns, gyro, accel, position, velocity, torque, "pd_target", robot.name, reference)


@pytest.fixture(scope="session")
def log(robot: RobotDescription) -> SensorLog:
    return make_log(robot, 3.0)


@pytest.fixture(scope="session")
def bag(robot: RobotDescription, log: SensorLog, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bag") / "walk"
    write_bag(path, log, robot)
    return path


@pytest.fixture(scope="session")
def model(robot: RobotDescription, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained network through the real export: it moves, and that is all that the nodes need."""
    import torch

    from trace_ros.estimator.checkpoint import ModelCard, export_model
    from trace_ros.estimator.network import TraceNetwork

    torch.manual_seed(0)
    network = TraceNetwork()
    scale = torch.ones(47)
    scale[3:6], scale[18:30], scale[30:42] = 5.0, 5.0, 10.0
    network.set_normalisation(torch.zeros(47), scale, torch.ones(9))
    path = tmp_path_factory.mktemp("model") / "trace.pt"
    export_model(network, ModelCard(robot=robot.name, robot_fingerprint=robot.fingerprint, rate_hz=500.0), path)
    return path


@pytest.fixture
def activate(start_node: Callable, client, model: Path, robot: RobotDescription) -> Iterator[Callable[..., Wire]]:
    defaults = {"model": model, "diagnostics_rate": 10.0} | PATIENT

    def start(*extra: str, namespace: str = "", **parameters: Any) -> Wire:
        node = start_node("estimator_node", *extra, **(defaults | parameters))
        path = f"{namespace}/estimator" if namespace else "/estimator"
        assert client.change_state(Transition.TRANSITION_CONFIGURE, path)
        assert client.change_state(Transition.TRANSITION_ACTIVATE, path)
        return Wire(client, node, robot, f"{namespace}/" if namespace else "")

    return start
