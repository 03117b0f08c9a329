"""The node never goes silent without saying why, and says what is wrong with the set-up and with its surroundings."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import PATIENT, START_LIMIT_S, wait_until
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from geometry_msgs.msg import PoseWithCovarianceStamped, TransformStamped
from lifecycle_msgs.msg import Transition
from nav_msgs.msg import Odometry
from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Imu, JointState
from std_msgs.msg import String
from std_srvs.srv import Trigger
from tf2_msgs.msg import TFMessage
from untrained import export_untrained

from trace_ros.estimator.joint_delay import with_joints_at_their_time
from trace_ros.logs import SensorLog
from trace_ros.nodes.conversions import set_stamp, stamp_to_ns
from trace_ros.robot import RobotDescription
from trace_ros.sim.course import Course, Phase, simulate_course

QUICK = {"diagnostics_rate": 10.0, "silence_timeout": 0.3, "diagnostics_hold": 0.0, **PATIENT}


def standing(robot: RobotDescription, seconds: float, start_s: float = 100.0) -> SensorLog:
    count = round(seconds * 500)
    rng = np.random.default_rng(2)
    return SensorLog(
        round(start_s * 1e9) + 2_000_000 * np.arange(count),
        rng.normal(0, 0.005, (count, 3)),
        [0, 0, 9.81] + rng.normal(0, 0.03, (count, 3)),
        np.tile(robot.nominal_joint_positions, (count, 1)),
        np.zeros((count, 12)),
        np.zeros((count, 12)),
        "pd_target",
        robot.name,
    )


def walking(robot: RobotDescription, seconds: float, start_s: float = 100.0) -> SensorLog:
    log = standing(robot, seconds, start_s)
    t = (log.stamp_ns * 1e-9)[:, None]
    return replace(log, angular_velocity=log.angular_velocity + 0.3 * np.sin(2 * np.pi * 1.5 * t))


class Feed:
    """Sends a log to a node."""

    def __init__(self, client: Any, robot: RobotDescription, namespace: str = "") -> None:
        self.robot = robot
        self.imu = client.publisher(Imu, f"{namespace}/imu/data")
        self.joints = client.publisher(JointState, f"{namespace}/joint_states")
        wait_until(lambda: self.imu.get_subscription_count() > 0, START_LIMIT_S, "a subscriber to the IMU")
        wait_until(lambda: self.joints.get_subscription_count() > 0, START_LIMIT_S, "a subscriber to the joints")
        time.sleep(0.5)

    def send(self, log: SensorLog) -> None:
        for sample in log:
            imu, joints = Imu(), JointState(name=list(self.robot.joint_names))
            for message in (imu, joints):
                set_stamp(message.header.stamp, sample.stamp_ns)
            w, a = imu.angular_velocity, imu.linear_acceleration
            w.x, w.y, w.z = sample.angular_velocity.tolist()
            a.x, a.y, a.z = sample.linear_acceleration.tolist()
            joints.position = sample.joint_position.tolist()
            joints.velocity = sample.joint_velocity.tolist()
            joints.effort = sample.joint_torque.tolist()
            self.joints.publish(joints)
            self.imu.publish(imu)
            time.sleep(0.0007)


@pytest.fixture
def activate(start_node: Callable, client, model: Path) -> Callable[..., Any]:
    def start(*extra: str, path: str = "/estimator", **parameters: Any) -> Any:
        node = start_node("estimator_node", *extra, **({"model": model} | QUICK | parameters))
        assert client.change_state(Transition.TRANSITION_CONFIGURE, path)
        assert client.change_state(Transition.TRANSITION_ACTIVATE, path)
        return node

    return start


class Diagnostics:
    def __init__(self, client: Any) -> None:
        self.received: list[DiagnosticArray] = client.listen(DiagnosticArray, "/diagnostics")

    def wait_for(
        self, condition: Callable[[DiagnosticStatus], bool], limit_s: float = START_LIMIT_S
    ) -> DiagnosticStatus:
        """The first status from now on that fulfils a condition."""
        start, found = len(self.received), []

        def look() -> bool:
            found[:] = [item.status[0] for item in self.received[start:] if condition(item.status[0])]
            return bool(found)

        wait_until(look, limit_s, lambda: str(self.received[-1].status[0]) if self.received else "no diagnostics")
        return found[0]


def test_silence_is_told_with_its_reason(activate: Callable, client) -> None:
    client.publisher(String, "/imu/data")
    silent = client.publisher(JointState, "/joint_states")
    diagnostics = Diagnostics(client)
    node = activate()
    node.wait_for("/imu/data: nothing received yet for")
    node.wait_for("of type std_msgs/msg/String and not sensor_msgs/msg/Imu; remap the topic")
    node.wait_for("/joint_states: nothing received yet for")
    node.wait_for("1 publisher: /test_client, of fitting type and QoS; it sends nothing")
    client.node.destroy_publisher(silent)
    node.wait_for("no publisher; start the driver, or remap the topic")
    status = diagnostics.wait_for(lambda s: "(no publisher)" in s.message)
    assert status.level == DiagnosticStatus.STALE
    assert "no message on /imu/data yet (1 publisher: /test_client, of type std_msgs/msg/String" in status.message
    # One line a reason and not one a second; the first may be from before the publisher was discovered.
    assert 2 <= len(node.lines("/joint_states: nothing received")) <= 3
    joints = client.publisher(JointState, "/joint_states")
    deadline = time.monotonic() + START_LIMIT_S
    while not node.lines("/joint_states: messages come") and time.monotonic() < deadline:
        joints.publish(JointState())
        time.sleep(0.05)
    assert node.lines("/joint_states: messages come")
    node.wait_for("/joint_states: nothing received for")


def test_an_incompatible_qos_is_named(activate: Callable, client) -> None:
    client.node.create_publisher(Imu, "/imu/data", QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT))
    node = activate(input_reliability="reliable")
    node.wait_for("/test_client, whose QoS is incompatible (")
    line = node.lines("whose QoS is incompatible (")[0]
    assert "eliab" in line
    assert "set input_reliability to best_effort" in line


def test_two_nodes_of_one_name_are_told(activate: Callable, start_node: Callable, client, model: Path) -> None:
    diagnostics = Diagnostics(client)
    node = activate()
    other = start_node("estimator_node", model=model)
    node.wait_for("2 nodes are named /estimator: end the others, or give each a namespace")
    other.end()
    diagnostics.wait_for(lambda s: "nodes are named" not in s.message)


def test_another_source_of_odometry_and_of_the_transform(activate: Callable, client, robot: RobotDescription) -> None:
    diagnostics = Diagnostics(client)
    node = activate()
    odom = client.publisher(Odometry, "/odom")
    tf = client.publisher(TFMessage, "/tf")
    node.wait_for("/odom is published by /test_client too")
    other = TransformStamped()
    other.header.frame_id, other.child_frame_id = "map", robot.base_link
    foreign = TransformStamped()
    foreign.header.frame_id, foreign.child_frame_id = "base_link", "arm"
    deadline = time.monotonic() + START_LIMIT_S
    while not node.lines("another node publishes the transform") and time.monotonic() < deadline:
        other.header.stamp.nanosec += 1
        tf.publish(TFMessage(transforms=[foreign, other]))
        time.sleep(0.02)
    assert node.lines(f"another node publishes the transform map -> {robot.base_link} too")
    assert client.set_parameter("publish_tf", False).successful
    client.node.destroy_publisher(odom)
    diagnostics.wait_for(lambda s: "publishe" not in s.message.replace("no publisher", ""))


def test_transforms_of_others_and_its_own_raise_no_alarm(activate: Callable, client, robot: RobotDescription) -> None:
    tf = client.publisher(TFMessage, "/tf")
    node = activate()
    heard = client.listen(TFMessage, "/tf")
    feed = Feed(client, robot)
    foreign = TransformStamped()
    foreign.header.frame_id, foreign.child_frame_id = "base_link", "arm"
    tf.publish(TFMessage(transforms=[foreign]))
    feed.send(walking(robot, 3.0))
    wait_until(lambda: len(heard) > 1000, START_LIMIT_S, "transforms")
    time.sleep(2.0)
    assert not node.lines("another node publishes")


def test_a_wrong_set_up_is_refused_until_it_is_mended(activate: Callable, client, robot: RobotDescription) -> None:
    diagnostics = Diagnostics(client)
    odometry = client.listen(Odometry, "/odom")
    node = activate()
    feed = Feed(client, robot)
    log = standing(robot, 0.8)
    feed.send(replace(log, linear_acceleration=-log.linear_acceleration))
    node.wait_for("gravity: it points down where +9.81 on z is expected at rest")
    assert len(node.lines("no odometry until that is mended")) == 1
    status = diagnostics.wait_for(lambda s: s.level == DiagnosticStatus.ERROR)
    assert "the accelerometer's sign is reversed" in status.message
    told = len(odometry)
    assert told <= 251 - 29  # what came before half a second of standing had been seen
    feed.send(standing(robot, 0.1, 100.8))
    time.sleep(0.3)
    assert len(odometry) == told
    feed.send(standing(robot, 1.6, 100.9))
    node.wait_for("start-up checks: what was wrong is mended")
    diagnostics.wait_for(lambda s: s.level != DiagnosticStatus.ERROR)
    wait_until(lambda: len(odometry) > told + 100, START_LIMIT_S, "odometry")


def test_the_same_set_up_is_only_warned_about_where_that_is_asked_for(
    activate: Callable, client, robot: RobotDescription
) -> None:
    diagnostics = Diagnostics(client)
    odometry = client.listen(Odometry, "/odom")
    node = activate(startup_checks="warn")
    feed = Feed(client, robot)
    log = standing(robot, 1.6)
    feed.send(replace(log, linear_acceleration=log.linear_acceleration / 9.81))
    node.wait_for("it is in units of g; multiply by 9.81 in the driver")
    wait_until(lambda: len(odometry) == len(log) - 29, START_LIMIT_S, "all odometry")
    assert not node.lines("no odometry until that is mended")
    diagnostics.wait_for(lambda s: any(v.key == "setup" and "units of g" in v.value for v in s.values))


def test_a_slow_imu_is_told(activate: Callable, client, robot: RobotDescription) -> None:
    node = activate()
    feed = Feed(client, robot)
    log = walking(robot, 15.0)
    feed.send(log.select(slice(None, None, 5)))
    node.wait_for("rate: the IMU comes at 100 Hz, the model was trained at 500 Hz")


def test_the_rate_of_the_output_changes_at_run_time(activate: Callable, client, robot: RobotDescription) -> None:
    odometry = client.listen(Odometry, "/odom")
    transforms = client.listen(TFMessage, "/tf")
    activate(max_rate=100.0, two_d_mode=True)
    feed = Feed(client, robot)
    feed.send(walking(robot, 1.0))
    wait_until(lambda: len(odometry) >= 94, START_LIMIT_S, "odometry")
    time.sleep(0.3)
    assert len(odometry) == pytest.approx((500 - 29) / 5, abs=1)
    assert len(transforms) == len(odometry)
    assert all(message.pose.pose.position.z == 0.0 for message in odometry)
    assert np.diff([stamp_to_ns(message.header.stamp) for message in odometry]).min() == 10_000_000
    assert client.set_parameter("max_rate", 0.0).successful
    assert client.set_parameter("two_d_mode", False).successful
    assert client.set_parameter("pose_covariance_diagonal", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).successful
    refused = client.set_parameter("twist_covariance_diagonal", [1.0, 2.0])
    assert not refused.successful
    assert "has 2 numbers, expected 0 or 6" in refused.reason
    before = len(odometry)
    feed.send(walking(robot, 0.4, 101.0))
    wait_until(lambda: len(odometry) >= before + 200, START_LIMIT_S, "odometry")
    np.testing.assert_array_equal(odometry[-1].pose.covariance[::7], [1, 2, 3, 4, 5, 6])


def test_a_model_deleted_after_configure_is_no_matter_and_before_it_one_line(
    start_node: Callable, client, model: Path, robot: RobotDescription, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.pt"
    copy.write_bytes(model.read_bytes())
    odometry = client.listen(Odometry, "/odom")
    node = start_node("estimator_node", model=copy, **QUICK)
    assert client.change_state(Transition.TRANSITION_CONFIGURE)
    copy.unlink()
    assert client.change_state(Transition.TRANSITION_ACTIVATE)
    Feed(client, robot).send(walking(robot, 0.2))
    wait_until(lambda: len(odometry) > 60, START_LIMIT_S, "odometry")
    assert client.change_state(Transition.TRANSITION_DEACTIVATE)
    assert client.change_state(Transition.TRANSITION_CLEANUP)
    assert not client.change_state(Transition.TRANSITION_CONFIGURE)
    assert client.state() == "unconfigured"
    assert "copy.pt: no such model file" in node.lines("not configured: ")[0]
    copy.write_bytes(model.read_bytes())
    assert client.change_state(Transition.TRANSITION_CONFIGURE)
    assert client.change_state(Transition.TRANSITION_ACTIVATE)
    assert "Traceback" not in node.log()


def test_two_robots_on_one_graph_do_not_hear_each_other(
    start_node: Callable, client, robot: RobotDescription, model: Path
) -> None:
    names = ("alpha", "beta")
    arguments = {name: ["-r", f"__ns:=/{name}", "-r", "/tf:=tf"] for name in names}
    nodes = [start_node("estimator_node", *arguments[name], model=model, **QUICK) for name in names]
    for node in nodes:
        node.wait_for("unconfigured: waiting", 120.0)
    for name in names:
        assert client.change_state(Transition.TRANSITION_CONFIGURE, f"/{name}/estimator")
        assert client.change_state(Transition.TRANSITION_ACTIVATE, f"/{name}/estimator")
    odometry = {name: client.listen(Odometry, f"/{name}/odom") for name in names}
    transforms = {name: client.listen(TFMessage, f"/{name}/tf") for name in names}
    diagnostics = Diagnostics(client)
    Feed(client, robot, "/alpha").send(walking(robot, 0.3))
    wait_until(lambda: len(odometry["alpha"]) == 150 - 29, START_LIMIT_S, "alpha's odometry")
    assert len(transforms["alpha"]) == len(odometry["alpha"])
    assert odometry["beta"] == transforms["beta"] == []
    status = diagnostics.wait_for(lambda s: s.name == "beta/estimator: estimator")
    assert "no message on /beta/imu/data yet (no publisher)" in status.message
    assert "nodes are named" not in status.message


def test_after_a_reset_earlier_stamps_are_taken_and_the_run_is_a_fresh_one(
    activate: Callable, client, robot: RobotDescription
) -> None:
    odometry = client.listen(Odometry, "/odom")
    activate(initial_pose=[3.0, 2.0, 0.0, 0.5])
    feed = Feed(client, robot)
    log = walking(robot, 0.4)
    feed.send(log)
    wait_until(lambda: len(odometry) == len(log) - 29, START_LIMIT_S, "odometry")
    assert odometry[0].pose.pose.position.x == 3.0
    assert client.call(Trigger, "/estimator/reset", Trigger.Request()).success
    first = list(odometry)
    feed.send(log)
    wait_until(lambda: len(odometry) == 2 * len(first), START_LIMIT_S, "odometry")
    assert odometry[len(first) :] == first  # every field of every message


@pytest.fixture(scope="module")
def late_walk(robot: RobotDescription) -> SensorLog:
    """25 s of walking at 100 Hz, with joints that are 15 ms late: told after 20."""
    phases = (Phase(stand=0.5), Phase(walk_to=(5.0, 0.0)), Phase(walk_to=(5.0, 5.0)), Phase(walk_to=(-5.0, 5.0)))
    course = Course.load("demo").model_copy(update={"duration": 25.0, "patches": (), "phases": phases})
    walk = simulate_course(course, robot, 0).measured
    return with_joints_at_their_time(walk, -0.015).select(slice(None, None, 5))


def test_joints_that_are_late_are_told(
    activate: Callable, client, robot: RobotDescription, late_walk: SensorLog
) -> None:
    diagnostics = Diagnostics(client)
    node = activate()
    feed = Feed(client, robot)
    feed.send(late_walk)
    told = "joint readings seem to be more than 6 ms older than the IMU's that they are paired with"
    status = diagnostics.wait_for(lambda s: told in s.message)
    assert status.level == DiagnosticStatus.WARN
    key = "feet agree as paired, with joints 12 ms later, earlier (share of time)"
    stamped, later, earlier = map(float, {pair.key: pair.value for pair in status.values}[key].split())
    assert later > stamped > earlier
    node.wait_for(told)
    assert len(node.lines("for the parameter joint_delay")) == 1
    # Who does not want to hear of it says so.
    request = SetParameters.Request(parameters=[Parameter("timing_watch", value=False).to_parameter_msg()])
    assert client.call(SetParameters, "/estimator/set_parameters", request).results[0].successful
    feed.send(standing(robot, 0.3, 200.0))
    status = diagnostics.wait_for(lambda s: told not in s.message)
    assert key not in {pair.key for pair in status.values}


def test_a_velocity_that_no_foot_bears_out_is_told_and_widens_the_covariance(
    activate: Callable, client, robot: RobotDescription, tmp_path: Path
) -> None:
    """A network that believes 3 m/s of a robot whose feet stay where they are."""
    export_untrained(tmp_path / "runs_away.pt", robot, speed=3.0)
    diagnostics, odometry = Diagnostics(client), client.listen(Odometry, "/odom")
    node = activate(model=tmp_path / "runs_away.pt", startup_checks="off")
    feed = Feed(client, robot)
    feed.send(walking(robot, 4.0))
    status = diagnostics.wait_for(lambda s: "no foot bears out the estimated velocity" in s.message)
    assert status.level == DiagnosticStatus.WARN
    share = {pair.key: pair.value for pair in status.values}["a foot bears out the velocity (share of time)"]
    assert float(share) < 0.1
    node.wait_for("no foot bears out the estimated velocity")
    assert len(node.lines("no foot bears out the estimated velocity")) == 1
    wait_until(lambda: len(odometry) > 1500, START_LIMIT_S, lambda: f"{len(odometry)} odometry messages")
    first, last = odometry[100], odometry[-1]
    assert last.twist.covariance[0] > 5.0 > 1.0 > first.twist.covariance[0]
    assert last.pose.covariance[0] > 6.0**2 > 1.0 > first.pose.covariance[0]
    # A pose that is set makes the position known, not the velocity; a reset forgets both.
    poses = client.publisher(PoseWithCovarianceStamped, "/estimator/set_pose")
    wait_until(lambda: poses.get_subscription_count() > 0, START_LIMIT_S, "a subscriber to poses")
    pose = PoseWithCovarianceStamped()
    pose.header.frame_id, pose.pose.pose.orientation.w = "odom", 1.0
    poses.publish(pose)
    node.wait_for("pose set to")
    count = len(odometry)
    feed.send(walking(robot, 0.3, start_s=104.0))
    wait_until(lambda: len(odometry) > count + 50, START_LIMIT_S, "odometry after the pose")
    assert odometry[-1].pose.covariance[0] < 2.0
    assert odometry[-1].twist.covariance[0] > 5.0
    assert client.call(Trigger, "/estimator/reset", Trigger.Request()).success
    count = len(odometry)
    feed.send(walking(robot, 0.5, start_s=105.0))
    wait_until(lambda: len(odometry) > count + 100, START_LIMIT_S, "odometry after the reset")
    assert odometry[-1].twist.covariance[0] < 1.0
    diagnostics.wait_for(lambda s: "bears out" not in s.message)
