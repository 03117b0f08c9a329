"""Which estimator the node runs, and in which engine: chosen by parameters, refused with a reason, equal to offline."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import PATIENT
from feeding import Wire, assert_same, orientations, positions, velocities
from geometry_msgs.msg import PoseWithCovarianceStamped
from lifecycle_msgs.msg import Transition
from nav_msgs.msg import Odometry
from std_msgs.msg import Float32MultiArray
from std_srvs.srv import Trigger

from trace_ros.baselines.registry import ESTIMATORS, load_estimator
from trace_ros.estimator.estimator import TraceEstimator
from trace_ros.estimator.run import run_estimator
from trace_ros.logs import SensorLog
from trace_ros.nodes.conversions import stamp_to_ns
from trace_ros.robot import RobotDescription

N = 200
SHIFT_NS = 100_000_000_000


@pytest.fixture(scope="module")
def short(log: SensorLog) -> SensorLog:
    return log.select(slice(0, N))


def test_a_filter_is_chosen_runs_as_offline_and_tells_what_it_has(
    start_node: Callable, client, model: Path, robot: RobotDescription, short: SensorLog
) -> None:
    node = start_node("estimator_node", estimator="iekf_sr", engine="onnxruntime", diagnostics_rate=10.0, **PATIENT)
    assert not client.change_state(Transition.TRANSITION_CONFIGURE)
    node.wait_for(
        "not configured: engine onnxruntime: the estimator iekf_sr does not run in it; only trace and trace_network do"
    )
    assert client.set_parameter("engine", "torchscript").successful
    unknown = client.set_parameter("estimator", "ekf")
    assert not unknown.successful
    assert f"estimator is 'ekf', expected one of {', '.join(ESTIMATORS)}" in unknown.reason
    assert client.set_parameter("model", str(model)).successful
    assert not client.change_state(Transition.TRANSITION_CONFIGURE)
    node.wait_for("the estimator iekf_sr takes its numbers from a YAML file")
    assert client.set_parameter("model", "").successful
    assert client.change_state(Transition.TRANSITION_CONFIGURE)
    fixed = client.set_parameter("estimator", "trace")
    assert not fixed.successful
    assert "estimator is fixed while the node is at work" in fixed.reason
    assert client.change_state(Transition.TRANSITION_ACTIVATE)
    assert node.lines("estimator iekf_sr, robot go2, model")

    wire = Wire(client, node, robot)
    feet = client.listen(Float32MultiArray, "estimator/foot_reliability")
    estimator = load_estimator("iekf_sr", robot)
    run = run_estimator(estimator, short)
    wire.send(short)
    odometry = wire.wait(N - 29)
    assert_same(odometry, run)
    assert run.trajectory.covariance is not None
    np.testing.assert_allclose(
        [np.reshape(message.pose.covariance, (6, 6)) for message in odometry], run.trajectory.covariance, rtol=1e-6
    )
    estimator.reset()
    stands = [estimate.contact for sample in short if (estimate := estimator.step(sample)) is not None]
    np.testing.assert_array_equal([message.data for message in feet], np.array(stands, dtype=float))

    values = {item.key: item.value for item in wire.status(lambda _: True).values}
    assert values["estimator"] == "iekf_sr"
    assert values["model"].endswith("iekf.yaml")
    assert values["foot reliability"] == "contact"
    assert values["stationary"] == "not told by iekf_sr"
    assert "engine" not in values

    # A new run begins where it is told to, with the heading that it is told.
    assert client.set_parameter("initial_pose", [2.0, 3.0, 0.5, np.pi / 2]).successful
    assert client.call(Trigger, "/estimator/reset", Trigger.Request()).success
    wire.send(short, SHIFT_NS)
    again = wire.wait(2 * (N - 29))[N - 29 :]
    turned = np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    np.testing.assert_allclose(positions(again), run.trajectory.position @ turned.T + [2.0, 3.0, 0.5], atol=1e-6)
    np.testing.assert_allclose(velocities(again), run.trajectory.velocity, atol=1e-6)

    poses = client.publisher(PoseWithCovarianceStamped, "/estimator/set_pose")
    while not poses.get_subscription_count():
        time.sleep(0.02)
    time.sleep(0.3)
    pose = PoseWithCovarianceStamped()
    pose.header.frame_id = "odom"
    pose.pose.pose.position.x, pose.pose.pose.orientation.w = 10.0, 1.0
    pose.pose.covariance[0] = 0.25
    poses.publish(pose)
    node.wait_for("pose set to [10.0, 0.0, 0.0]")
    before = len(wire.odometry)
    wire.send(short.select(slice(0, 10)), 2 * SHIFT_NS)  # a gap: the estimator starts anew from that pose
    wire.send(short.select(slice(10, 60)), 2 * SHIFT_NS)
    first: Odometry = wire.wait(before + 60 - 29)[before]
    assert stamp_to_ns(first.header.stamp) == int(short.stamp_ns[29]) + 2 * SHIFT_NS
    assert positions([first])[0] == pytest.approx([10.0, 0.0, 0.0], abs=0.05)
    assert "Traceback" not in node.log()


def test_the_network_in_onnx_runtime(
    start_node: Callable, client, model: Path, robot: RobotDescription, short: SensorLog
) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    node = start_node("estimator_node", model=model, engine="onnxruntime", diagnostics_rate=10.0, **PATIENT)
    assert client.change_state(Transition.TRANSITION_CONFIGURE)
    assert client.change_state(Transition.TRANSITION_ACTIVATE)
    wire = Wire(client, node, robot)
    wire.send(short)
    odometry = wire.wait(N - 29)
    assert_same(odometry, run_estimator(TraceEstimator.load(model, robot, engine="onnxruntime"), short))
    torchscript = run_estimator(TraceEstimator.load(model, robot), short).trajectory
    np.testing.assert_allclose(positions(odometry), torchscript.position, atol=1e-3)
    np.testing.assert_allclose(orientations(odometry), torchscript.orientation, atol=1e-3)
    values = {item.key: item.value for item in wire.status(lambda _: True).values}
    assert (values["estimator"], values["engine"]) == ("trace", "onnxruntime")
