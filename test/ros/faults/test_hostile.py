"""What clumsy users and broken systems do to a live node, beyond the messages of `faulty.py`."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import NodeProcess, make_log, wait_until
from diagnostic_msgs.msg import DiagnosticStatus
from feeding import Wire, assert_same, positions, stamps
from geometry_msgs.msg import PoseWithCovarianceStamped, TransformStamped
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rclpy.qos import DurabilityPolicy, QoSProfile
from rosgraph_msgs.msg import Clock
from tf2_msgs.msg import TFMessage

from trace_ros.estimator.estimator import TraceEstimator
from trace_ros.estimator.run import run_estimator
from trace_ros.logs import SensorLog
from trace_ros.resources import config_directory
from trace_ros.robot import RobotDescription

_LIMIT_S = 120.0


@pytest.fixture(scope="module")
def walk(robot: RobotDescription) -> SensorLog:
    return make_log(robot, 0.6)


def values(status: DiagnosticStatus) -> dict[str, str]:
    return {item.key: item.value for item in status.values}


def bad_poses() -> Iterator[tuple[str, PoseWithCovarianceStamped]]:
    """Each with a part of the line that refuses it."""

    def pose(frame: str = "odom", variance: float = 0.0, **parts: float) -> PoseWithCovarianceStamped:
        message = PoseWithCovarianceStamped()
        message.header.frame_id = frame
        position, orientation = message.pose.pose.position, message.pose.pose.orientation
        position.x, orientation.w = 7.0, 1.0
        for name, value in parts.items():
            setattr(position if name in "xyz" else orientation, name.removeprefix("q"), value)
        message.pose.covariance[35] = variance
        return message

    yield "the pose is in frame 'map', expected 'odom'", pose("map")
    yield "position (nan,", pose(x=math.nan)
    yield "position (7.0, inf,", pose(y=math.inf)
    yield "position (7.0, 0.0, 1e+300)", pose(z=1e300)
    yield "orientation (0.0, 0.0, 0.0, 0.0) is none", pose(qw=0.0)
    yield "orientation (0.0, 0.0, nan, 1.0) is none", pose(qz=math.nan)
    yield "the variances of x, y, z and heading are 0, 0, 0, nan", pose(variance=math.nan)
    yield "the variances of x, y, z and heading are 0, 0, 0, inf", pose(variance=math.inf)
    yield "the variances of x, y, z and heading are 0, 0, 0, -1", pose(variance=-1.0)


def test_a_pose_that_is_none_moves_nothing(
    activate: Callable[..., Wire], client: Any, walk: SensorLog, robot: RobotDescription, model: Path
) -> None:
    wire = activate()
    setting = client.publisher(PoseWithCovarianceStamped, "/estimator/set_pose")
    wait_until(lambda: setting.get_subscription_count() > 0, _LIMIT_S, wire.node.log)
    wire.send(walk.select(slice(0, 150)))
    wire.wait(150 - 29)
    for count, (complaint, message) in enumerate(bad_poses(), start=1):
        setting.publish(message)
        wire.node.wait_for("ignored: set_pose: ", _LIMIT_S, count)
        assert complaint in wire.node.lines("ignored: ")[-1]
    wire.send(walk.select(slice(150, None)))
    odometry = wire.wait(len(walk) - 29)
    assert_same(odometry, run_estimator(TraceEstimator.load(model, robot), walk))
    # One of another length than 1 is a pose all the same.
    message = PoseWithCovarianceStamped()
    message.pose.pose.position.x, message.pose.pose.orientation.w = 5.0, 2.0
    setting.publish(message)
    wire.node.wait_for("pose set to [5.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]", _LIMIT_S)
    assert "Traceback" not in wire.node.log()


def test_transforms_that_are_none_late_or_corrected(
    activate: Callable[..., Wire], client: Any, walk: SensorLog, robot: RobotDescription
) -> None:
    def transform(parent: str, child: str, w: float = 1.0) -> TransformStamped:
        message = TransformStamped(child_frame_id=child)
        message.header.frame_id, message.transform.rotation.w = parent, w
        place = message.transform.translation
        place.x, place.y, place.z = robot.imu.position
        return message

    wire = activate(imu_mounting="tf", imu_frame="imu_link")
    latched = QoSProfile(depth=100, durability=DurabilityPolicy.TRANSIENT_LOCAL)
    tf = client.node.create_publisher(TFMessage, "/tf_static", latched)
    piece = walk.select(slice(0, 60))
    wire.send(piece)
    status = wire.status(lambda s: s.level == DiagnosticStatus.ERROR)
    assert "no static transform from 'base_link' to the IMU's frame 'imu_link'" in status.message
    assert wire.node.lines("[imu_no_transform;")
    for number, (messages, complaint) in enumerate(
        [
            ([transform("base_link", "imu_link", math.nan)], "the one to 'imu_link' is none (NaN"),
            ([transform("imu_link", "mount"), transform("mount", "imu_link")], "run in a circle"),
        ],
        start=1,
    ):
        tf.publish(TFMessage(transforms=messages))
        time.sleep(0.5)
        wire.send(piece, shift_ns=number * 1_000_000_000)
        status = wire.status(lambda s, part=complaint: part in s.message)
        assert status.level == DiagnosticStatus.ERROR
    assert not wire.odometry
    tf.publish(TFMessage(transforms=[transform("base_link", "imu_link")]))
    time.sleep(0.5)
    wire.send(piece, shift_ns=4_000_000_000)
    wait_until(lambda: len(wire.odometry) > 0, _LIMIT_S, wire.node.log)
    assert np.isfinite(positions(wire.odometry)).all()
    wire.status(lambda s: s.level != DiagnosticStatus.ERROR)
    assert "Traceback" not in wire.node.log()


def test_a_simulations_time_that_is_missing_or_goes_back(
    activate: Callable[..., Wire], client: Any, walk: SensorLog
) -> None:
    wire = activate(use_sim_time=True, silence_timeout=0.3, diagnostics_hold=0.0)
    missing = "use_sim_time is true, but nothing has come on /clock"
    wire.node.wait_for(f"{missing} (no publisher)", _LIMIT_S)
    wire.send(walk.select(slice(0, 100)))
    wire.wait(100 - 29)
    status = wire.status(lambda s: missing in s.message)
    assert values(status)["latency, stamp to published (ms)"] == "none yet"
    assert "imu age by stamp (s)" not in values(status)
    clock = client.publisher(Clock, "/clock")
    wait_until(lambda: clock.get_subscription_count() > 0, _LIMIT_S, wire.node.log)
    for seconds in (1000, 1001, 3, 4):  # back, as where a simulation is reset: the messages' own stamps go on
        message = Clock()
        message.clock.sec = seconds
        clock.publish(message)
        time.sleep(0.1)
    wire.send(walk.select(slice(100, None)))
    odometry = wire.wait(len(walk) - 29)
    assert (np.diff(stamps(odometry)) > 0).all()
    status = wire.status(lambda s: missing not in s.message)
    assert values(status)["time jumps"] == "0"
    assert values(status)["latency, stamp to published (ms)"] != "none yet"
    assert "Traceback" not in wire.node.log()


@pytest.mark.parametrize(
    ("parameters", "gap"),
    [
        ({"max_gap": 0.2}, "0.2"),
        # A filter has a gap of its own: what the parameter says of others must not hide that there is no odometry.
        ({"estimator": "leg_odometry", "model": config_directory() / "baselines" / "iekf.yaml", "max_gap": 5.0}, "0.1"),
    ],
    ids=["network", "filter"],
)
def test_an_imu_slower_than_any_gap_is_told(
    parameters: dict[str, Any], gap: str, activate: Callable[..., Wire], robot: RobotDescription
) -> None:
    wire = activate(**parameters)
    wire.send(make_log(robot, 8.0, rate_hz=1.0))
    told = f"the IMU's messages are 1 s apart, more than the {gap} s after which the estimator starts anew"
    wire.node.wait_for(told, _LIMIT_S)
    wire.status(lambda s: told in s.message)
    assert not wire.odometry


STAGES = ("waiting", "configuring", "active")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_signal_at_any_stage_ends_cleanly(
    stage: str, number: signal.Signals, start_node: Callable[..., NodeProcess], client: Any, model: Path
) -> None:
    node = start_node("estimator_node", model=model, autostart=stage == "active")
    node.wait_for("active: waiting" if stage == "active" else "unconfigured: waiting", _LIMIT_S)
    if stage == "configuring":
        request = ChangeState.Request(transition=Transition(id=Transition.TRANSITION_CONFIGURE))
        service = client.node.create_client(ChangeState, "/estimator/change_state")
        assert service.wait_for_service(_LIMIT_S)
        service.call_async(request)
        time.sleep(0.05)
    node.process.send_signal(number)
    assert node.wait(_LIMIT_S) == 0
    assert "Traceback" not in node.log()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_while_libraries_load_ends_cleanly(number: signal.Signals) -> None:
    """The entry point of ``ros2 run``, with an import that takes for ever in place of torch's."""
    code = (
        "import importlib, time, trace_ros.nodes.entry as entry\n"
        "def load(name): print('loading', flush=True); time.sleep(600)\n"
        "importlib.import_module = load\n"
        "raise SystemExit(entry.estimator())"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "loading\n"
    process.send_signal(number)
    assert process.wait(_LIMIT_S) == 0
    assert process.stdout.read() == ""
