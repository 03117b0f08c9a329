"""The path node: bounded, decimated paths, with the reference where the estimate started."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import START_LIMIT_S
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nav_msgs.msg import Odometry, Path
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

from trace_ros.nodes.conversions import set_stamp
from trace_ros.nodes.path_node import PathNode

LATCHED = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL)


def odometry(stamp_ns: int, x: float, y: float, yaw: float = 0.0, frame: str = "odom") -> Odometry:
    message = Odometry()
    set_stamp(message.header.stamp, stamp_ns)
    message.header.frame_id = frame
    message.pose.pose.position.x, message.pose.pose.position.y = x, y
    message.pose.pose.orientation.z, message.pose.pose.orientation.w = math.sin(yaw / 2), math.cos(yaw / 2)
    return message


def points(path: Path) -> list[tuple[float, float]]:
    return [(pose.pose.position.x, pose.pose.position.y) for pose in path.poses]


def wait_for_path(received: list, condition: Callable[[Path], bool]) -> Path:
    deadline = time.monotonic() + START_LIMIT_S
    while not (received and condition(received[-1])):
        assert time.monotonic() < deadline, f"last of {len(received)}: {points(received[-1]) if received else None}"
        time.sleep(0.02)
    return received[-1]


def test_paths_are_decimated_bounded_aligned_and_start_anew_after_a_jump(start_node: Callable, client) -> None:
    node = start_node("path_node", min_distance=0.0999, max_poses=20, publish_rate=20.0)
    estimate, reference = client.publisher(Odometry, "odom"), client.publisher(Odometry, "reference/odom")
    while not (estimate.get_subscription_count() and reference.get_subscription_count()):
        time.sleep(0.02)
    time.sleep(0.5)
    path = client.listen(Path, "path", qos=LATCHED)
    reference_path = client.listen(Path, "reference_path", qos=LATCHED)
    # The reference starts at (5, 1), turned by 90 degrees, and walks as the estimate does: 1 cm a message.
    for k in range(101):
        stamp = 1_000_000_000 + 20_000_000 * k
        estimate.publish(odometry(stamp, 0.01 * k, 0.0))
        reference.publish(odometry(stamp, 5.0, 1.0 + 0.01 * k, math.pi / 2, "map"))
        time.sleep(0.002)
    latest = wait_for_path(path, lambda p: len(p.poses) >= 11 and p.poses[-1].pose.position.x > 0.95)
    assert latest.header.frame_id == "odom"
    assert len(latest.poses) == 11
    aligned = wait_for_path(reference_path, lambda p: len(p.poses) >= 10 and p.poses[-1].pose.position.x > 0.9)
    assert aligned.header.frame_id == "odom"
    for (x, y), pose in zip(points(aligned), aligned.poses, strict=True):
        assert abs(y) < 1e-9
        assert -1e-9 < x < 1.001
        assert abs(pose.pose.orientation.z) < 1e-9
    # Many more poses: the oldest go.
    for k in range(60):
        estimate.publish(odometry(4_000_000_000 + 20_000_000 * k, 2.0 + 0.2 * k, 0.0))
        time.sleep(0.002)
    latest = wait_for_path(path, lambda p: p.poses[-1].pose.position.x > 13.7)
    assert len(latest.poses) == 20
    assert latest.poses[0].pose.position.x > 9.9
    # The bag loops.
    estimate.publish(odometry(1_000_000_000, 0.0, 7.0))
    estimate.publish(odometry(1_020_000_000, 0.5, 7.0))
    latest = wait_for_path(path, lambda p: len(p.poses) < 3)
    assert all(y == 7.0 for _, y in points(latest))
    # One that comes later still gets the last path.
    late = client.listen(Path, "path", qos=LATCHED)
    assert len(wait_for_path(late, lambda _: True).poses) < 3
    assert node.interrupt() == 0


@pytest.fixture
def path_node() -> Iterator[PathNode]:
    node = PathNode()
    yield node
    node.destroy_node()


ANY = st.one_of(st.floats(width=64), st.sampled_from([0.0, 1.0, 1e-200, 1e154, math.nan]))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.booleans(), st.tuples(*[ANY] * 7), st.integers(-5, 5), st.integers(0, 2**32 - 1)), max_size=30
    )
)
def test_nothing_that_odometry_holds_is_an_exception(path_node: PathNode, messages: list) -> None:
    sent: list[Path] = []
    path_node._path_publisher = path_node._reference_publisher = SimpleNamespace(publish=sent.append)
    path_node._restart()
    for is_estimate, numbers, seconds, nanoseconds in messages:
        message = Odometry()
        message.header.frame_id = "odom"
        message.header.stamp.sec, message.header.stamp.nanosec = seconds, nanoseconds
        p, q = message.pose.pose.position, message.pose.pose.orientation
        p.x, p.y, p.z, q.x, q.y, q.z, q.w = numbers
        (path_node._on_estimate if is_estimate else path_node._on_reference)(message)
        path_node._publish()
    for pose in (pose.pose for path in sent for pose in path.poses):
        assert np.isfinite([pose.position.x, pose.position.y, pose.position.z, pose.orientation.w]).all()
