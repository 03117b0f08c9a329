"""A bag with any of the faults gives the poses that the node gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from bagmaking import TYPES, make_bag
from faulty import CASES, Case, Clean, check_counts, estimate, walk_log
from wire import stamp_of

from trace_ros.bags import read_bag_with_report
from trace_ros.estimator.estimator import TraceEstimator
from trace_ros.estimator.run import run_estimator
from trace_ros.logs import SensorLog
from trace_ros.resources import models_directory
from trace_ros.robot import RobotDescription
from trace_ros.streams import SensorStreams

ROBOT = RobotDescription.load("go2")


@pytest.fixture(scope="module")
def walk() -> SensorLog:
    return walk_log(ROBOT)


@pytest.fixture(scope="module")
def estimator() -> TraceEstimator:
    return TraceEstimator.load(models_directory() / "go2" / "trace.pt", ROBOT)


def to_bag(path: Path, messages: list) -> Path:
    """As recorded: one message every 10 us, whatever their stamps."""

    def typed(stream: str, message):
        header = TYPES["std_msgs/msg/Header"](
            TYPES["builtin_interfaces/msg/Time"](message.header.stamp.sec, message.header.stamp.nanosec),
            message.header.frame_id,
        )
        if stream == "joints":
            kind = "sensor_msgs/msg/JointState"
            arrays = [np.asarray(v, dtype=float) for v in (message.position, message.velocity, message.effort)]
            return kind, TYPES[kind](header, message.name, *arrays)
        kind, vector = "sensor_msgs/msg/Imu", TYPES["geometry_msgs/msg/Vector3"]
        w, a = message.angular_velocity, message.linear_acceleration
        return kind, TYPES[kind](
            header,
            TYPES["geometry_msgs/msg/Quaternion"](0.0, 0.0, 0.0, 1.0),
            np.zeros(9),
            vector(w.x, w.y, w.z),
            np.array(message.angular_velocity_covariance),
            vector(a.x, a.y, a.z),
            np.array(message.linear_acceleration_covariance),
        )

    topics = {"imu": "/imu/data", "joints": "/joint_states"}
    return make_bag(
        path,
        ((topics[stream], 10**18 + 10_000 * n, typed(stream, message)) for n, (stream, message) in enumerate(messages)),
    )


@pytest.mark.parametrize("case", [c for c in CASES if not c.by_arrival and c.lines == 1], ids=lambda case: case.name)
def test_a_bag_of_it_gives_the_same_poses(
    case: Case, walk: SensorLog, estimator: TraceEstimator, tmp_path: Path
) -> None:
    messages = case.spoil(Clean.of(walk, ROBOT))
    (live,) = estimate(estimator, SensorStreams(ROBOT), messages)
    log, report = read_bag_with_report(to_bag(tmp_path / "bag", messages), ROBOT)
    check_counts(case, report.faults)
    offline = run_estimator(estimator, log).trajectory
    # The node goes on waiting for joints where the bag has ended.
    assert len(live) <= len(offline) <= len(live) + 25
    count = len(live)
    np.testing.assert_array_equal(offline.stamp_ns[:count], [item.stamp_ns for item in live])
    np.testing.assert_allclose(offline.position[:count], [item.position for item in live], atol=1e-9)
    np.testing.assert_allclose(offline.orientation[:count], [item.orientation for item in live], atol=1e-9)
    assert stamp_of(messages[0][1]) <= log.stamp_ns[0]
