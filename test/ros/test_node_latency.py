"""What `trace latency --node` measures, on a short and slow run of the real processes; and its traffic by itself."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import START_LIMIT_S, wait_until
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import Imu, JointState

from trace_ros.errors import TraceError
from trace_ros.nodes import traffic
from trace_ros.nodes.estimator_process import faults_of
from trace_ros.nodes.node_latency import measure_node
from trace_ros.nodes.stages import STAGES, measure_stages
from trace_ros.nodes.traffic import WalkTraffic, serialised_walk
from trace_ros.robot import JointMessages, RobotDescription
from trace_ros.streams import SensorStreams


class Recorder:
    """Stands for a node: keeps what its publishers are given."""

    def __init__(self) -> None:
        self.sent: dict[str, list[bytes]] = {}

    def create_publisher(self, _kind: Any, topic: str, _depth: int) -> Any:
        messages = self.sent.setdefault(topic, [])
        return SimpleNamespace(publish=messages.append, get_subscription_count=lambda: 1)

    def get_clock(self) -> Any:
        return SimpleNamespace(now=lambda: SimpleNamespace(nanoseconds=3_999_000_000))


def stamps_of(messages: list[bytes]) -> list[int]:
    return [s * 1_000_000_000 + n for s, n in (struct.unpack_from("<iI", message, 4) for message in messages)]


def test_the_walk_is_one_of_the_robots_own(robot: RobotDescription) -> None:
    walk = serialised_walk(robot, 50.0)
    assert len(walk) == 100
    joints = [deserialize_message(bytes(message), JointState) for _, message in walk]
    assert list(joints[0].name) == list(robot.joint_names)
    position = np.array([message.position for message in joints])
    velocity = np.array([message.velocity for message in joints])
    differences = (np.roll(position, -1, axis=0) - np.roll(position, 1, axis=0)) * 25.0
    np.testing.assert_allclose(velocity, differences, atol=0.05)
    imu = deserialize_message(bytes(walk[0][0]), Imu)
    assert imu.linear_acceleration.z == pytest.approx(10.8, abs=0.1)


def test_the_walk_is_told_in_the_robots_own_names_signs_and_frames(robot: RobotDescription) -> None:
    first, second = robot.joint_names[:2]
    told = JointMessages(names={first: "abad"}, sign={second: -1}, offset={first: 0.3, second: -0.2})
    turned = robot.imu.model_copy(update={"rpy": (np.pi, 0.0, 0.5)})
    other = robot.model_copy(update={"joint_messages": told, "imu": turned})
    samples = []
    for each in (robot, other):
        streams, (imu, joints) = SensorStreams(each), serialised_walk(each, 50.0)[7]
        for message in (imu, joints):
            struct.pack_into("<iI", message, 4, 7, 0)
        streams.add_joints(deserialize_message(bytes(joints), JointState), 1)
        samples += streams.add_imu(deserialize_message(bytes(imu), Imu), 1)
    mine, theirs = samples
    for name in ("angular_velocity", "linear_acceleration", "joint_position", "joint_velocity"):
        np.testing.assert_allclose(getattr(theirs, name), getattr(mine, name), atol=1e-12, err_msg=name)


def test_stamps_by_the_schedule_and_when_sending(robot: RobotDescription, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    monkeypatch.setattr(traffic.time, "monotonic_ns", lambda: now[0])
    monkeypatch.setattr(traffic.time, "time_ns", lambda: 7_000_000_000 + now[0])

    def wait(seconds: float) -> None:
        # The third message is held up for 100 ms.
        now[0] += round(seconds * 1e9) + (100_000_000 if 20_000_000 <= now[0] < 40_000_000 else 0)

    monkeypatch.setattr(traffic.time, "sleep", wait)
    recorder: Any = Recorder()
    sent = WalkTraffic(recorder, robot, 50.0).send(0.2, threading.Event())
    assert (sent.pairs, sent.late > 0) == (10, True)
    assert stamps_of(recorder.sent["imu/data"]) == [3_999_000_000 + k * 20_000_000 for k in range(10)]
    assert stamps_of(recorder.sent["joint_states"]) == stamps_of(recorder.sent["imu/data"])

    now[0] = 0
    recorder = Recorder()
    sent = WalkTraffic(recorder, robot, 50.0).send(0.2, threading.Event(), "sending")
    stamps = np.array(stamps_of(recorder.sent["imu/data"])) - 7_000_000_000
    assert sent.pairs == 10
    assert (np.diff(stamps) >= 20_000_000).all()  # no burst after the pause
    assert stamps[-1] > 9 * 20_000_000 + 90_000_000

    ended = threading.Event()
    ended.set()
    assert WalkTraffic(recorder, robot, 50.0).send(1.0, ended).pairs == 0


def test_faults_are_read_from_diagnostics() -> None:
    values = {
        "dropped: imu_gap": "3",
        "repaired: joints_velocity_missing": "1",
        "step time (ms)": "p50 0.1",
        "imu: x": "9",
    }
    assert faults_of(values) == {"imu_gap": 3, "joints_velocity_missing": 1}


def test_the_sender_says_what_it_sent_and_stays(client: Any) -> None:
    imu, joints = client.listen(Imu, "/there/imu/data"), client.listen(JointState, "/there/joint_states")
    command = [sys.executable, "-m", "trace_ros.nodes.traffic", "--namespace", "/there", "--rate", "100"]
    process = subprocess.Popen(
        [*command, "--seconds", "0.5", "--linger", "600"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["pairs"] == 50
        assert process.poll() is None
        wait_until(lambda: len(imu) == len(joints) == 50, START_LIMIT_S, lambda: f"50 of each: {len(imu)}")
        assert process.poll() is None
        process.terminate()
        assert process.communicate(timeout=START_LIMIT_S) == ("", "")
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()


def test_a_sender_that_nobody_hears_says_so() -> None:
    command = (
        "import trace_ros.nodes.traffic as traffic\n"
        "traffic._CONNECT_LIMIT_S = 0.1\n"
        "raise SystemExit(traffic.main(['--namespace', '/nowhere']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, timeout=START_LIMIT_S, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "traffic: nobody subscribes to imu/data and joint_states in /nowhere\n"
    assert done.stdout == ""


def test_three_processes_over_dds() -> None:
    # Reliable: a machine that stalls must not lose messages here.
    parameters = {"estimator": "leg_odometry", "model": None, "input_reliability": "reliable"}
    for _ in range(3):  # which of three processes gets to know the other two in time is the machine's affair
        progress: list[float] = []
        found = measure_node(2.0, 50.0, "go2", parameters, progress.append)
        if not found.lost:
            break
    assert found.estimator == "leg_odometry"
    assert found.sent == 100
    assert found.imu_lost == found.joints_lost == found.odometry_lost == 0
    assert 0 < found.p50_ms <= found.p99_ms <= found.max_ms
    assert 0 < found.mean_ms <= found.max_ms
    assert found.cpu > 0
    assert found.cpu_per_sample_us > 0
    assert found.step.startswith("p50 ")
    assert progress == sorted(progress)
    assert found.to_dict()["sent"] == 100


def test_a_node_that_refuses_is_told(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"refused to configure .* its log ends with: .*no\.yaml"):
        measure_node(1.0, 50.0, "go2", {"estimator": "iekf", "model": tmp_path / "no.yaml"})


def test_stages_are_timed_apart(robot: RobotDescription) -> None:
    done: list[int] = []
    stages = measure_stages(
        robot, {"robot": "go2", "estimator": "leg_odometry", "model": None}, 500, 500.0, done.append
    )
    assert list(stages) == list(STAGES)
    assert all(0 < p50 <= p99 for p50, p99 in stages.values())
    assert done == [500]
    with pytest.raises(TraceError, match="unknown parameter 'estimater': did you mean 'estimator'"):
        measure_stages(robot, {"estimater": "iekf"}, 10)
