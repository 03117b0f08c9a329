"""The recorder: nothing is lost on Ctrl-C, half a second at most on a kill."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from conftest import START_LIMIT_S, STAYING
from nav_msgs.msg import Odometry
from rclpy.duration import Duration
from sensor_msgs.msg import Imu, JointState

from trace_ros.bags import bag_info, read_bag, recover_bag
from trace_ros.bags.storage import open_bag
from trace_ros.logs import SensorLog
from trace_ros.nodes.conversions import set_stamp
from trace_ros.robot import RobotDescription


def imu_message(stamp_ns: int) -> Imu:
    message = Imu()
    set_stamp(message.header.stamp, stamp_ns)
    message.angular_velocity.x = stamp_ns * 1e-9
    return message


class Talker:
    """Publishes IMU messages at 500 Hz from a thread, and remembers when each was sent."""

    def __init__(self, client) -> None:
        self.sent: list[tuple[int, float]] = []
        self._publisher = client.publisher(Imu, "imu/data")
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._talk)
        self._thread.start()

    def _talk(self) -> None:
        due = time.monotonic()
        while not self._ending.is_set():
            stamp = len(self.sent) + 1
            self._publisher.publish(imu_message(stamp))
            self.sent.append((stamp, time.monotonic()))
            due += 0.002
            time.sleep(max(0.0, due - time.monotonic()))

    def end(self) -> None:
        self._ending.set()
        self._thread.join()


def recorded_stamps(path: Path) -> list[int]:
    with open_bag(path) as bag:
        assert bag.types == {"/imu/data": "sensor_msgs/msg/Imu"}
        return [int.from_bytes(data[8:12], "little") for _, _, data in bag.messages("/imu/data")]


def test_ctrl_c_loses_nothing(start_node: Callable, client, tmp_path: Path) -> None:
    node = start_node("recorder_node", output=tmp_path / "bag", topics="[imu/data]")
    publisher = client.publisher(Imu, "imu/data")  # after the recorder: a late topic
    node.wait_for("recording /imu/data [sensor_msgs/msg/Imu]")
    while not publisher.get_subscription_count():
        time.sleep(0.01)
    time.sleep(0.5)
    for stamp in range(1, 1001):
        publisher.publish(imu_message(stamp))
        time.sleep(0.0005)
    # All has arrived; what the recorder has not taken yet it takes after the signal.
    assert publisher.wait_for_all_acked(Duration(seconds=START_LIMIT_S))
    time.sleep(0.3)
    assert node.interrupt() == 0
    assert recorded_stamps(tmp_path / "bag") == list(range(1, 1001))
    assert bag_info(tmp_path / "bag").messages == 1000
    assert node.lines("1000 on /imu/data")


def test_a_kill_loses_half_a_second_at_most(start_node: Callable, client, tmp_path: Path) -> None:
    node = start_node("recorder_node", output=tmp_path / "bag", topics="[imu/data]")
    talker = Talker(client)
    try:
        node.wait_for("recording /imu/data")
        time.sleep(2.0)
        node.process.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        node.wait()
    finally:
        talker.end()
    assert not (tmp_path / "bag" / "metadata.yaml").exists()
    report = recover_bag(tmp_path / "bag", tmp_path / "rescued")
    stamps = recorded_stamps(tmp_path / "rescued")
    assert report.messages == {"/imu/data": len(stamps)}
    assert stamps == list(range(stamps[0], stamps[-1] + 1))
    last_needed = max(stamp for stamp, sent in talker.sent if sent < killed - 0.5)
    assert stamps[-1] >= last_needed
    assert len(stamps) > 500


def test_records_a_replay_so_that_it_reads_back_equal(
    start_node: Callable, bag: Path, log: SensorLog, robot: RobotDescription, tmp_path: Path
) -> None:
    recorder = start_node(
        "recorder_node", output=tmp_path / "copy", topics="[imu/data, joint_states, reference/odom, never]"
    )
    recorder.wait_for("recording to")
    replay = start_node("replay_node", bag=bag, start_delay=2.0, **STAYING)
    replay.wait_for("played ")
    time.sleep(1.0)  # through shared memory, on a machine that is busy
    assert recorder.interrupt() == 0
    assert replay.interrupt() == 0
    assert recorder.lines("never seen: /never")
    copy = read_bag(tmp_path / "copy", robot)
    np.testing.assert_array_equal(copy.stamp_ns, log.stamp_ns)
    for name in ("angular_velocity", "linear_acceleration", "joint_position", "joint_velocity", "joint_torque"):
        np.testing.assert_array_equal(getattr(copy, name), getattr(log, name))
    assert copy.reference is not None
    np.testing.assert_array_equal(copy.reference.position, log.reference.position)


def test_a_given_type_is_subscribed_before_anybody_publishes(start_node: Callable, client, tmp_path: Path) -> None:
    topics = "['joint_states:sensor_msgs/msg/JointState', 'odom:nav_msgs/Odometry']"
    node = start_node("recorder_node", output=tmp_path / "bag", topics=topics)
    node.wait_for("recording /odom [nav_msgs/msg/Odometry]")
    publishers = client.publisher(JointState, "joint_states"), client.publisher(Odometry, "odom")
    while not all(publisher.get_subscription_count() for publisher in publishers):
        time.sleep(0.01)
    assert node.interrupt() == 0


def test_refuses_in_one_line(start_node: Callable, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    cases = {
        "there: exists already; choose another name or delete it": {"output": tmp_path / "there"},
        "parameter 'flush_period' is 2.0, expected 0.01 to 0.5 s": {"output": tmp_path / "a", "flush_period": 2.0},
        "parameter 'compression' is 'zip', expected one of zstd, lz4, none": {
            "output": tmp_path / "b",
            "compression": "zip",
        },
        "'a b' is not the name of a topic": {"output": tmp_path / "c", "topics": "['a b']"},
    }
    nodes = {text: start_node("recorder_node", **parameters) for text, parameters in cases.items()}
    for text, node in nodes.items():
        assert node.wait() == 2
        assert len(node.lines("FATAL")) == 1
        assert text in node.lines("FATAL")[0]
        assert "Traceback" not in node.log()
    wrong_type = start_node(
        "recorder_node", output=tmp_path / "d", topics="['x:no_msgs/msg/Such', 'y:std_msgs/msg/String']"
    )
    wrong_type.wait_for("not recorded: /x: the message type no_msgs/msg/Such is not installed")
    wrong_type.wait_for("recording /y")
    assert wrong_type.interrupt() == 0
