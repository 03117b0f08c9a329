"""The replay node: what goes out is what the bag holds, when it should."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import START_LIMIT_S, STAYING, NodeProcess, wait_until
from nav_msgs.msg import Odometry
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import Imu, JointState

from trace_ros.bags import write_bag
from trace_ros.logs import SensorLog
from trace_ros.nodes.conversions import stamp_to_ns
from trace_ros.robot import RobotDescription


def stamps(messages: list) -> np.ndarray:
    return np.array([stamp_to_ns(message.header.stamp) for message in messages])


def played(node: NodeProcess, count: int, *received: list) -> None:
    """Wait until a node that stays after its last message has been heard to the end, and end it."""
    node.wait_for("played ")
    wait_until(lambda: all(len(messages) >= count for messages in received), START_LIMIT_S, "all of the bag")
    assert node.interrupt() == 0


def took_s(node: NodeProcess) -> float:
    """From the first message to the last, by the node's own log: a listener on a busy machine hears them later."""
    begin, end = (float(re.search(r"\[(\d+\.\d+)]", node.lines(text)[0])[1]) for text in ("playing ", "played "))
    return end - begin


def test_plays_every_message_on_time(start_node: Callable, client, bag: Path, log: SensorLog) -> None:
    imu, joints = client.listen(Imu, "imu/data"), client.listen(JointState, "joint_states")
    reference, clock = client.listen(Odometry, "reference/odom"), client.listen(Clock, "clock")
    for _ in range(3):  # what is late on a machine without time is not late by the node's doing
        for messages in (imu, joints, reference, clock):
            messages.clear()
        node = start_node("replay_node", bag=bag, start_delay=1.0, **STAYING)
        played(node, len(log), imu, joints, reference)
        latest_ms = float(re.search(r"the latest was ([\d.]+) ms late", node.log())[1])
        if latest_ms < 100 and abs(took_s(node) - log.duration_s) < 0.1:
            break
    for messages in (imu, joints, reference):
        np.testing.assert_array_equal(stamps(messages), log.stamp_ns)
    np.testing.assert_array_equal([m.angular_velocity.x for m in imu], log.angular_velocity[:, 0])
    np.testing.assert_array_equal([list(m.effort) for m in joints], log.joint_torque)
    assert latest_ms < 100
    assert took_s(node) == pytest.approx(log.duration_s, abs=0.1)
    ticks = np.array([stamp_to_ns(m.clock) for m in clock])
    assert abs(len(ticks) - 300) <= 2
    assert (np.diff(ticks) == 10_000_000).all()
    assert log.stamp_ns[0] <= ticks[0] <= log.stamp_ns[0] + 20_000_000


def test_rate_and_an_end_of_its_own(start_node: Callable, client, bag: Path, log: SensorLog) -> None:
    imu = client.listen(Imu, "imu/data")
    client.listen(JointState, "joint_states")
    for _ in range(3):
        imu.clear()
        node = start_node("replay_node", bag=bag, rate=3, end_delay=3.0, queue_depth=5000)
        assert node.wait() == 0
        if took_s(node) < log.duration_s / 2 and len(imu) == len(log):
            break
    assert log.duration_s / 3 - 0.1 < took_s(node) < log.duration_s / 2
    np.testing.assert_array_equal(stamps(imu), log.stamp_ns)


def test_restamping_shifts_all_stamps_to_now_by_one_constant(
    start_node: Callable, client, bag: Path, log: SensorLog
) -> None:
    imu, clock = client.listen(Imu, "imu/data"), client.listen(Clock, "clock")
    joints = client.listen(JointState, "joint_states")
    before = time.time_ns()
    node = start_node("replay_node", bag=bag, restamp=True, **STAYING)
    played(node, len(log), imu, joints)
    sent = stamps(imu)
    assert before < sent[0] < sent[-1] < time.time_ns()
    np.testing.assert_array_equal(np.diff(sent), np.diff(log.stamp_ns))
    np.testing.assert_array_equal(stamps(joints), sent)
    assert not clock
    np.testing.assert_array_equal([m.linear_acceleration.z for m in imu], log.linear_acceleration[:, 2])


def test_loops_until_interrupted_with_the_clock_going_back(start_node: Callable, client, robot, log, tmp_path) -> None:
    short = log.select(slice(0, 100))
    write_bag(tmp_path / "short", short, robot, storage="sqlite3")
    imu, clock = client.listen(Imu, "imu/data"), client.listen(Clock, "clock")
    client.listen(JointState, "joint_states")
    node = start_node("replay_node", bag=tmp_path / "short", loop=True)
    node.wait_for("playing", count=4)
    assert node.interrupt() == 0
    sent = stamps(imu)
    assert (np.diff(sent) < 0).sum() >= 2
    assert (np.diff([stamp_to_ns(m.clock) for m in clock]) < 0).sum() >= 2
    np.testing.assert_array_equal(sent[:100], short.stamp_ns)
    np.testing.assert_array_equal(sent[100:200], short.stamp_ns)


def test_waits_for_subscribers(start_node: Callable, client, bag: Path) -> None:
    node = start_node("replay_node", bag=bag, wait_for_subscribers=60.0)
    node.wait_for("waiting up to 60 s for subscribers to /imu/data, /joint_states")
    time.sleep(1.0)
    assert not node.lines("playing")
    client.listen(Imu, "imu/data")
    client.listen(JointState, "joint_states")
    node.wait_for("playing")
    assert node.interrupt() == 0


def test_waits_for_as_many_subscribers_as_wanted(start_node: Callable, client, bag: Path) -> None:
    node = start_node("replay_node", bag=bag, wait_for_subscribers=60.0, subscribers=2)
    node.wait_for("waiting up to 60 s for 2 subscribers each to /imu/data, /joint_states")
    client.listen(Imu, "imu/data")
    client.listen(JointState, "joint_states")
    time.sleep(2.0)
    assert not node.lines("playing")
    client.listen(Imu, "imu/data")
    client.listen(JointState, "joint_states")
    node.wait_for("playing")
    assert node.interrupt() == 0


def test_refuses_in_one_line(start_node: Callable, robot: RobotDescription, bag: Path, log, tmp_path: Path) -> None:
    write_bag(tmp_path / "odometry_only", log.select(slice(0, 0)), robot)
    cases = {
        "parameter 'bag' is empty": {},
        f"{tmp_path}/none: no such file or directory": {"bag": tmp_path / "none"},
        "parameter 'rate' is 0.0, expected 0.01 to 100": {"bag": bag, "rate": 0.0},
        "unknown parameter 'bagg': did you mean 'bag'?": {"bagg": bag},
        "no topic 'imu/raw' [sensor_msgs/msg/Imu]; the bag has: /imu/data": {"bag": bag, "imu_topic": "imu/raw"},
        "the bag is empty": {"bag": tmp_path / "odometry_only"},
    }
    nodes = {text: start_node("replay_node", **parameters) for text, parameters in cases.items()}
    for text, node in nodes.items():
        assert node.wait() == 2
        assert len(node.lines("FATAL")) == 1
        assert text in node.lines("FATAL")[0]
        assert "Traceback" not in node.log()
