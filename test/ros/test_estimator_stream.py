"""Samples in, odometry out: the live node gives what the offline estimator gives, whatever the wire does."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import STAYING
from diagnostic_msgs.msg import DiagnosticStatus
from feeding import assert_same, orientations, positions, stamps
from geometry_msgs.msg import PoseWithCovarianceStamped
from lifecycle_msgs.msg import Transition
from sensor_msgs.msg import Imu, JointState
from std_msgs.msg import Float32MultiArray
from std_srvs.srv import Trigger
from tf2_msgs.msg import TFMessage
from untrained import export_untrained

from trace_ros.bags import write_bag
from trace_ros.estimator.checkpoint import load_model, write_card
from trace_ros.estimator.estimator import TraceEstimator
from trace_ros.estimator.joint_delay import with_joints_at_their_time
from trace_ros.estimator.run import EstimatedRun, run_estimator
from trace_ros.logs import SensorLog
from trace_ros.nodes.conversions import set_stamp
from trace_ros.resources import config_directory
from trace_ros.robot import RobotDescription

N = 400
SHIFT_NS = 100_000_000_000


@pytest.fixture(scope="module")
def short(log: SensorLog) -> SensorLog:
    return log.select(slice(0, N))


@pytest.fixture(scope="module")
def offline(model: Path, robot: RobotDescription, short: SensorLog) -> EstimatedRun:
    return run_estimator(TraceEstimator.load(model, robot), short)


def test_a_replayed_bag_gives_the_offline_poses(
    start_node: Callable, activate: Callable, client, bag: Path, log: SensorLog, robot: RobotDescription, model: Path
) -> None:
    wire = activate(odom_frame="world", base_link_frame="trunk", torque_source="pd_target")
    transforms = client.listen(TFMessage, "/tf")
    feet = client.listen(Float32MultiArray, "estimator/foot_reliability")
    replay = start_node("replay_node", bag=bag, **STAYING)
    status = wire.status(lambda s: s.level == DiagnosticStatus.OK)
    odometry = wire.wait(len(log) - 29)
    assert replay.interrupt() == 0
    run = run_estimator(TraceEstimator.load(model, robot), log)
    assert_same(odometry, run)
    assert (np.diff(stamps(odometry)) > 0).all()
    first, last = odometry[0], odometry[-1]
    assert (first.header.frame_id, first.child_frame_id) == ("world", "trunk")
    assert run.trajectory.covariance is not None
    np.testing.assert_allclose(np.reshape(last.pose.covariance, (6, 6)), run.trajectory.covariance[-1])
    assert (np.linalg.eigvalsh(np.reshape(last.twist.covariance, (6, 6))) > 0).all()

    assert len(transforms) == len(odometry)
    transform = transforms[-1].transforms[0]
    assert (transform.header.frame_id, transform.child_frame_id) == ("world", "trunk")
    assert transform.header.stamp == last.header.stamp
    assert transform.transform.translation.x == last.pose.pose.position.x
    assert transform.transform.rotation == last.pose.pose.orientation

    assert len(feet) == len(odometry)
    assert feet[-1].layout.dim[0].label == "FL,FR,RL,RR"
    np.testing.assert_allclose(feet[-1].data, run.attention[-1, 2:], rtol=1e-6)

    values = {item.key: item.value for item in status.values}
    assert status.name == "estimator: estimator"
    assert status.hardware_id == "go2"
    assert values["torque source"] == "pd_target"
    assert values["stationary"] in ("true", "false")
    assert len([float(axis) for axis in values["gyro bias (rad/s)"].split()]) == 3
    assert float(values["imu rate (Hz)"]) > 100
    assert float(values["joint_states age (s)"]) < 0.2
    for name in ("step time (ms)", "latency, stamp to published (ms)"):
        assert values[name].startswith("p50 ")
    silent = wire.status(lambda s: s.level == DiagnosticStatus.STALE)
    assert "no message on /imu/data for" in silent.message
    assert "no message on /joint_states for" in silent.message


def test_a_robot_of_ones_own_names_its_body_itself(
    start_node: Callable, activate: Callable, log: SensorLog, tmp_path: Path
) -> None:
    for name in ("a1.yaml", "a1.urdf", "a1_policy.yaml"):
        text = (config_directory() / "robots" / name).read_text()
        (tmp_path / name.replace("a1.", "mine.")).write_text(text.replace("FL_", "LF_").replace("a1.urdf", "mine.urdf"))
    mine = RobotDescription.load(tmp_path / "mine.yaml")
    assert mine.joint_names[0] == "LF_hip_joint"
    log = replace(log.select(slice(0, N)), robot="mine")
    write_bag(tmp_path / "walk", log, mine)
    model = export_untrained(tmp_path / "trace.pt", mine)
    wire = activate(robot=tmp_path / "mine.yaml", model=model, torque_source="pd_target")
    replay = start_node("replay_node", bag=tmp_path / "walk", **STAYING)
    odometry = wire.wait(len(log) - 29)
    assert replay.interrupt() == 0
    assert_same(odometry, run_estimator(TraceEstimator.load(model, mine), log))
    assert odometry[0].child_frame_id == "trunk"


@pytest.mark.parametrize("given", [{}, {"joint_delay": "[0.005]"}, {"joint_delay": 0.0}])
def test_late_joints_are_waited_for_as_the_model_or_the_parameter_says(
    activate: Callable, short: SensorLog, robot: RobotDescription, model: Path, tmp_path: Path, given: dict
) -> None:
    """Odometry bears the stamp of its IMU reading, has the joints that came so much later, and comes no sooner."""
    own = tmp_path / "own.pt"
    shutil.copy(model, own)
    write_card(own, load_model(own).card.model_copy(update={"joint_delay": 0.012}))
    wire = activate(model=own, **given)
    delay = {"[0.005]": 0.005, 0.0: 0.0}.get(given.get("joint_delay"), 0.012)
    expected = run_estimator(TraceEstimator.load(model, robot), with_joints_at_their_time(short, delay))
    wire.send(short)
    odometry = wire.wait(len(expected.trajectory.stamp_ns))
    assert_same(odometry, expected)
    status = wire.status(lambda s: "joint delay" in {item.key for item in s.values})
    told = {item.key: item.value for item in status.values}["joint delay"]
    assert told == f"{1e3 * delay:g} ms, by which joint states are put back"
    if not given:
        assert_same(odometry, run_estimator(TraceEstimator.load(own, robot), short))
    plain = run_estimator(TraceEstimator.load(model, robot), short)
    count = len(expected.trajectory.position)
    same = np.array_equal(plain.trajectory.position[:count], expected.trajectory.position)
    assert same == (delay == 0.0)


def test_a_reset_run_equals_a_fresh_one_and_a_set_pose_is_where_it_goes_on(
    activate: Callable, client, short: SensorLog, offline: EstimatedRun
) -> None:
    wire = activate()
    wire.send(short)
    wire.wait(N - 29)
    answer = client.call(Trigger, "/estimator/reset", Trigger.Request())
    assert answer.success
    wire.send(short, SHIFT_NS)
    assert_same(wire.wait(2 * (N - 29))[N - 29 :], offline, SHIFT_NS)

    poses = client.publisher(PoseWithCovarianceStamped, "/estimator/set_pose")
    while not poses.get_subscription_count():
        time.sleep(0.02)
    time.sleep(0.3)
    wrong, nonsense, right = (PoseWithCovarianceStamped() for _ in range(3))
    wrong.header.frame_id = "map"
    right.header.frame_id = "odom"
    right.pose.pose.position.x, right.pose.pose.position.y = 10.0, -4.0
    right.pose.pose.orientation.z = right.pose.pose.orientation.w = np.sqrt(0.5)
    nonsense.pose.pose.position.x = float("nan")
    for message in (right, wrong, nonsense):
        poses.publish(message)
    wire.node.wait_for("ignored: set_pose: the pose is in frame 'map', expected 'odom'")
    wire.node.wait_for("ignored: set_pose: position (nan, 0.0, 0.0) is none")
    wire.node.wait_for("pose set to [10.0, -4.0, 0.0]")
    before = len(wire.odometry)
    wire.send(short.select(slice(0, 10)), 2 * SHIFT_NS)  # a gap: the window fills anew
    wire.send(short.select(slice(10, 60)), 2 * SHIFT_NS)
    first = wire.wait(before + 60 - 29)[before]
    assert positions([first])[0] == pytest.approx([10.0, -4.0, 0.0], abs=0.05)
    assert orientations([first])[0] == pytest.approx([0, 0, np.sqrt(0.5), np.sqrt(0.5)], abs=0.05)


def test_joint_names_in_any_order_with_others_between(
    activate: Callable, short: SensorLog, offline: EstimatedRun
) -> None:
    wire = activate()
    order = np.random.default_rng(3).permutation(12).tolist()
    wire.send(short, order=order, extra=("arm_joint", "gripper_joint"))
    assert_same(wire.wait(N - 29), offline)
    assert wire.node.lines("2 others ignored")


def test_missing_joints_are_named_and_estimation_begins_when_they_come(
    activate: Callable, short: SensorLog, offline: EstimatedRun
) -> None:
    wire = activate()

    def without_calf(_k: int, _imu: Imu, joints: JointState) -> None:
        at = joints.name.index("RL_calf_joint")
        joints.name = [name for name in joints.name if name != "RL_calf_joint"]
        for values in (joints.position, joints.velocity, joints.effort):
            del values[at]

    wire.send(short.select(slice(0, 50)), -SHIFT_NS, spoil=without_calf)
    status = wire.status(lambda s: s.level == DiagnosticStatus.ERROR)
    for text in (status.message, wire.node.lines("ERROR")[-1]):
        assert "joint names missing from the joint states: RL_calf_joint; they have: FL_hip_joint, FL_thigh_j" in text
    assert len(wire.node.lines("joint names missing")) == 1
    assert not wire.odometry
    wire.send(short)
    assert_same(wire.wait(N - 29), offline)
    values = {item.key: item.value for item in wire.status(lambda _: True).values}
    assert values["dropped: imu_before_joints"] == "50"


def test_spoilt_messages_are_dropped_counted_and_told_once(activate: Callable, short: SensorLog) -> None:
    wire = activate()

    def spoil(k: int, imu: Imu, joints: JointState) -> None:
        if k % 50 == 10:
            imu.angular_velocity.y = float("nan")
        if k % 50 == 20:
            imu.linear_acceleration.z = float("inf")
        if k % 50 == 30:
            joints.position[4] = float("nan")
        if k % 50 == 40:
            joints.velocity = joints.velocity[:-1]
        if k == 5:
            set_stamp(imu.header.stamp, int(short.stamp_ns[4]))
        if k == 105:
            set_stamp(joints.header.stamp, int(short.stamp_ns[100]))

    wire.send(short, spoil=spoil)
    # 8 + 8 spoilt IMU messages and one repeated give no estimate, but three of them fell into the first window, which
    # is bridged; where a joint state is missing it is interpolated.
    odometry = wire.wait(N - 29 - 17 + 3)
    assert np.isfinite(positions(odometry)).all()
    assert (np.diff(stamps(odometry)) > 0).all()
    values = {item.key: item.value for item in wire.status(lambda _: True).values}
    assert values["dropped: imu_not_finite"] == "16"
    assert values["dropped: joints_not_finite"] == "8"
    assert values["repaired: joints_velocity_missing"] == "8"
    assert values["dropped: imu_repeated"] == "1"
    assert values["dropped: joints_disordered"] == "1"
    assert len(wire.node.lines("NaN or infinity in the IMU message")) == 1
    assert len(wire.node.lines("NaN or infinity in the position of FR_thigh_joint")) == 1
    assert len(wire.node.lines("12 names but 11 values of velocity")) == 1


def test_joints_without_velocity_and_effort(activate: Callable, short: SensorLog, robot, model: Path) -> None:
    bare = SensorLog(short.stamp_ns, short.angular_velocity, short.linear_acceleration, short.joint_position)
    wire = activate()
    wire.send(bare)
    assert_same(wire.wait(N - 29), run_estimator(TraceEstimator.load(model, robot), bare))
    assert len(wire.node.lines("has no effort: estimating without joint torque")) == 1


def test_a_time_jump_starts_anew(activate: Callable, short: SensorLog, offline: EstimatedRun) -> None:
    wire = activate()
    wire.send(short)
    wire.wait(N - 29)
    wire.send(short, -SHIFT_NS)
    assert_same(wire.wait(2 * (N - 29))[N - 29 :], offline, -SHIFT_NS)
    assert len(wire.node.lines("time jumped by -")) == 1


def test_namespace_without_tf_and_activation_starts_anew(
    activate: Callable, client, short: SensorLog, offline: EstimatedRun
) -> None:
    remap = ["-r", "__ns:=/dog", "-r", "/tf:=tf"]
    wire = activate(*remap, namespace="/dog", publish_tf=False)
    transforms = client.listen(TFMessage, "/dog/tf")
    wire.send(short)
    wire.wait(N - 29)
    assert not transforms
    assert client.set_parameter("publish_tf", True, "/dog/estimator").successful
    assert client.change_state(Transition.TRANSITION_DEACTIVATE, "/dog/estimator")
    wire.send(short, SHIFT_NS)
    assert client.change_state(Transition.TRANSITION_ACTIVATE, "/dog/estimator")
    while not (wire.imu.get_subscription_count() and wire.joints.get_subscription_count()):
        time.sleep(0.02)
    time.sleep(0.5)
    wire.send(short)
    assert_same(wire.wait(2 * (N - 29))[N - 29 :], offline)
    assert len(transforms) == N - 29
