"""Every case of `faulty.py` with a real node over DDS: the odometry, the diagnostics and the log.

One node takes all cases, with a reset between them, and faster than the robot would walk: stamps are the messages' own.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import PATIENT, Client, NodeProcess, wait_until
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from faulty import CASES, Case, Clean, check_counts, compare, estimate, walk_log
from lifecycle_msgs.msg import Transition
from nav_msgs.msg import Odometry
from sensor_msgs.msg import Imu, JointState
from std_srvs.srv import Trigger

from trace_ros.estimator.estimator import Estimate, TraceEstimator
from trace_ros.logs import SensorLog
from trace_ros.nodes.conversions import stamp_to_ns
from trace_ros.resources import models_directory
from trace_ros.robot import RobotDescription
from trace_ros.streams import KINDS, SensorStreams, StreamSettings

_CHUNK = 200
"""Messages sent before the node is given time to take them."""

_LIMIT_S = 120.0

_WAIT_S = 1.0
"""By stamp, for the joints: two topics that run many times faster than the robot are that much further apart."""


def to_ros(stream: str, message: Any) -> Any:
    if stream == "joints":
        made: Any = JointState(
            name=message.name, position=message.position, velocity=message.velocity, effort=message.effort
        )
    else:
        made = Imu()
        for name in ("angular_velocity", "linear_acceleration"):
            for axis in "xyz":
                setattr(getattr(made, name), axis, float(getattr(getattr(message, name), axis)))
            getattr(made, f"{name}_covariance")[:] = getattr(message, f"{name}_covariance")
    made.header.stamp.sec, made.header.stamp.nanosec = message.header.stamp.sec, message.header.stamp.nanosec
    made.header.frame_id = message.header.frame_id
    return made


class LiveNode:
    """The node that takes all cases, and what it says."""

    def __init__(self, client: Client, process: NodeProcess) -> None:
        self.client, self.process = client, process
        process.wait_for("unconfigured: waiting", _LIMIT_S)
        assert client.change_state(Transition.TRANSITION_CONFIGURE)
        assert client.change_state(Transition.TRANSITION_ACTIVATE)
        self.odometry: list[Odometry] = client.listen(Odometry, "odom")
        self.arrays: list[DiagnosticArray] = client.listen(DiagnosticArray, "/diagnostics")
        self._publishers = {
            "imu": client.publisher(Imu, "imu/data"),
            "joints": client.publisher(JointState, "joint_states"),
        }
        wait_until(
            lambda: (
                all(p.get_subscription_count() for p in self._publishers.values())
                and client.node.count_publishers("odom") > 0
            ),
            _LIMIT_S,
            process.log,
        )
        time.sleep(0.5)
        self._sent: Counter[str] = Counter()
        self.well = True
        """False during a case, and after one that failed: what comes then begins with another node."""

    def close(self) -> None:
        self.client.close()
        self.process.end()

    def reset(self) -> None:
        assert self.client.call(Trigger, "/estimator/reset", Trigger.Request()).success

    def status(self) -> tuple[DiagnosticStatus, dict[str, str]]:
        """The next status from now on."""
        seen = len(self.arrays)
        wait_until(lambda: len(self.arrays) > seen, _LIMIT_S, self.process.log)
        status = self.arrays[-1].status[0]
        return status, {item.key: item.value for item in status.values}

    def send(self, messages: list[tuple[str, Any]], as_they_came: bool = False) -> None:
        """In portions, each when the node has taken the one before; or at the pace of the robot, 2 ms apart."""
        for begin in range(0, len(messages), _CHUNK):
            for stream, message in messages[begin : begin + _CHUNK]:
                self._publishers[stream].publish(to_ros(stream, message))
                self._sent[stream] += 1
                if as_they_came and stream == "joints":
                    time.sleep(0.002)
            wait_until(self._taken, _LIMIT_S, self.process.log)

    def _taken(self) -> bool:
        _, values = self.status()
        return (
            int(values["imu messages"]) >= self._sent["imu"]
            and int(values["joint_states messages"]) >= self._sent["joints"]
        )

    def faults(self) -> Counter[str]:
        """The counts by kind, as the diagnostics have them; each under what was done about it."""
        counts: Counter[str] = Counter()
        for key, value in self.status()[1].items():
            action, _, kind = key.partition(": ")
            if kind in KINDS:
                assert action == KINDS[kind].action
                counts[kind] = int(value)
        return counts


@pytest.fixture(scope="module")
def robot() -> RobotDescription:
    return RobotDescription.load("go2")


@pytest.fixture(scope="module")
def walk(robot: RobotDescription) -> SensorLog:
    return walk_log(robot)


@pytest.fixture(scope="module")
def estimator(robot: RobotDescription) -> TraceEstimator:
    return TraceEstimator.load(models_directory() / "go2" / "trace.pt", robot)


@pytest.fixture(scope="module")
def clean(walk: SensorLog, estimator: TraceEstimator, robot: RobotDescription) -> list[Estimate]:
    return estimate(estimator, SensorStreams(robot), Clean.of(walk, robot).messages())[0]


class Stage:
    """Where the live node stands; there is another after a case that failed, which must not fail those after it."""

    def __init__(self, logs: Path) -> None:
        self._logs, self._count = logs, 0
        self._node: LiveNode | None = None

    def live(self) -> LiveNode:
        if self._node is not None and not self._node.well:
            self.close()
        if self._node is None:
            self._count += 1
            process = NodeProcess("estimator_node", node_arguments(), self._logs / f"estimator_{self._count}.log")
            client = Client()
            try:
                self._node = LiveNode(client, process)
            except BaseException:
                client.close()
                process.end()
                raise
        return self._node

    def close(self) -> None:
        node, self._node = self._node, None
        if node is not None:
            node.close()


def node_arguments() -> list[str]:
    parameters = {
        "joint_wait": _WAIT_S,
        **PATIENT,
        "diagnostics_rate": 50.0,
        "diagnostics_hold": 0.0,
        "sensor_timeout": 3600.0,
        "silence_timeout": 3600.0,
        "publish_tf": "false",
        "max_rate": 0.0,
    }
    return [text for name, value in parameters.items() for text in ("-p", f"{name}:={value}")]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(tmp_path_factory.mktemp("faults"))
    yield made
    made.close()


@pytest.fixture
def live(stage: Stage) -> LiveNode:
    node = stage.live()
    node.well = False
    return node


def vectors(message: Odometry) -> tuple[list[float], list[float]]:
    p, q = message.pose.pose.position, message.pose.pose.orientation
    return [p.x, p.y, p.z], [q.x, q.y, q.z, q.w]


def as_estimates(odometry: list[Odometry]) -> list[list[Estimate]]:
    """What was published, as estimates; a stamp that goes back begins a time line."""
    lines: list[list[Estimate]] = [[]]
    for message in odometry:
        stamp_ns = stamp_to_ns(message.header.stamp)
        if lines[-1] and stamp_ns <= lines[-1][-1].stamp_ns:
            lines.append([])
        position, orientation = (np.array(values) for values in vectors(message))
        covariance = np.reshape(message.pose.covariance, (6, 6))
        zero = np.zeros(3)
        lines[-1].append(
            Estimate(
                stamp_ns, position, orientation, zero, zero, np.zeros(6, np.float32), False, covariance, covariance
            )
        )
    return lines


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_live(
    case: Case,
    live: LiveNode,
    walk: SensorLog,
    robot: RobotDescription,
    estimator: TraceEstimator,
    clean: list[Estimate],
) -> None:
    live.reset()
    before, first, reports = live.faults(), len(live.odometry), len(live.arrays)
    messages = case.spoil(Clean.of(walk, robot))
    expected = estimate(estimator, SensorStreams(robot, StreamSettings(joint_wait=_WAIT_S)), messages)
    expected = [line for line in expected if line]
    live.send(messages, as_they_came=case.by_arrival)
    count = round(sum(map(len, expected)) * (case.odometry if case.by_arrival else 1))
    wait_until(lambda: len(live.odometry) >= first + count, _LIMIT_S, live.process.log)
    counts = live.faults() - before
    if case.by_arrival:  # on a busy machine they come with pauses and in bursts
        counts = Counter({kind: count for kind, count in counts.items() if kind in case.kinds})

    # The diagnostics: so many of each kind, and a warning that names it.
    check_counts(case, dict(counts))
    told = [array.status[0] for array in live.arrays[reports:]]
    for kind in case.kinds:
        if KINDS[kind].warns:
            # Where the pose stands still for it, an error says so instead of the count.
            naming = [s for s in told if f" {kind}" in s.message or (case.error and case.error in s.message)]
            assert naming, f"{kind} in none of {len(told)} messages"
            assert all(status.level in (DiagnosticStatus.WARN, DiagnosticStatus.ERROR) for status in naming)

    # The log: once for all cases, with the kind and its cause.
    for kind in case.kinds:
        lines = live.process.lines(f"[{kind};")
        assert len(lines) == 1
        assert KINDS[kind].cause in lines[0]

    # The odometry: that of the same messages offline, and near to the clean run's.
    odometry = live.odometry[first:]
    if not case.by_arrival:
        assert len(odometry) == count
        offline = [item for line in expected for item in line]
        assert [stamp_to_ns(message.header.stamp) for message in odometry] == [item.stamp_ns for item in offline]
        got = [vectors(message) for message in odometry]
        np.testing.assert_allclose([p for p, _ in got], [item.position for item in offline], atol=1e-6)
        np.testing.assert_allclose([q for _, q in got], [item.orientation for item in offline], atol=1e-6)
    lines_out = as_estimates(odometry)
    compare(case, clean, lines_out if len(lines_out) == case.lines else [[], *lines_out])
    live.well = True


def test_the_node_is_well_after_all_of_it(
    live: LiveNode, walk: SensorLog, robot: RobotDescription, clean: list[Estimate]
) -> None:
    live.reset()
    first = len(live.odometry)
    live.send(Clean.of(walk, robot).messages())
    wait_until(lambda: len(live.odometry) >= first + len(clean), _LIMIT_S, live.process.log)
    got = [vectors(message)[0] for message in live.odometry[first:]]
    np.testing.assert_array_equal(got, [item.position for item in clean])
    assert "Traceback" not in live.process.log()
    live.well = True
