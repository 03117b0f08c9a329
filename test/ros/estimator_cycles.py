"""The estimator node through its transitions again and again, in this process: nothing is left behind.

Run by `test_estimator_cycles.py`, in a process of its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from rclpy.lifecycle import TransitionCallbackReturn
from rclpy.parameter import Parameter
from sensor_msgs.msg import Imu, JointState

from trace_ros.nodes.estimator_node import EstimatorNode
from trace_ros.robot import RobotDescription

SUCCESS = TransitionCallbackReturn.SUCCESS


@pytest.fixture
def node(model: Path) -> Iterator[EstimatorNode]:
    made = EstimatorNode()
    made.set_parameters([Parameter("model", value=str(model))])
    yield made
    made.close()
    made.destroy_node()


def entities(node: EstimatorNode) -> dict[str, int]:
    kinds = ("publishers", "subscriptions", "timers", "services", "clients", "guards")
    return {kind: len(list(getattr(node, kind))) for kind in kinds} | {
        "managed": len(node._managed_entities),
        "callbacks": len(node._on_set_parameters_callbacks),
    }


def parts(node: EstimatorNode) -> list[weakref.ref]:
    return [weakref.ref(part) for part in (node._estimator, node._inputs, node._outputs, node._monitor)]


def test_transitions_leave_nothing_behind(node: EstimatorNode) -> None:
    unconfigured, earlier = entities(node), []
    inactive = active = None
    for _ in range(4):
        assert node.trigger_configure() == SUCCESS
        inactive = inactive or entities(node)
        assert entities(node) == inactive
        for _ in range(13):
            assert node.trigger_activate() == SUCCESS
            active = active or entities(node)
            assert entities(node) == active
            assert node.trigger_deactivate() == SUCCESS
            assert entities(node) == inactive
        earlier.append(parts(node))
        assert node.trigger_cleanup() == SUCCESS
        assert entities(node) == unconfigured
    # The last of them too, where the next configure collects.
    assert node.trigger_configure() == SUCCESS
    assert all(part() is None for generation in earlier for part in generation)
    assert inactive != unconfigured
    assert active["subscriptions"] == inactive["subscriptions"] + 3


def test_a_configure_that_fails_leaves_nothing_behind(node: EstimatorNode) -> None:
    unconfigured = entities(node)
    good = node.get_parameter("model")
    for number in range(20):
        node.set_parameters([Parameter("model", value=f"/nowhere/{number}.pt")])
        assert node.trigger_configure() == TransitionCallbackReturn.FAILURE
        assert entities(node) == unconfigured
    node.set_parameters([good])
    assert node.trigger_configure() == SUCCESS
    assert node.trigger_activate() == SUCCESS


def test_an_unforeseen_exception_is_counted_and_the_run_begins_anew(
    node: EstimatorNode, robot: RobotDescription, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert node.trigger_configure() == SUCCESS
    assert node.trigger_activate() == SUCCESS
    take = {subscription.topic_name: subscription.callback for subscription in node.subscriptions}
    resets: list[int] = []
    estimator, monitor = node._estimator, node._monitor
    reset = estimator.reset
    monkeypatch.setattr(estimator, "reset", lambda: (resets.append(1), reset()))

    def step(_sample: object) -> None:
        raise RuntimeError("shapes do not match")

    def send(first: int, count: int) -> None:
        for number in range(first, first + count):
            joints = JointState(name=list(robot.joint_names), position=robot.nominal_joint_positions.tolist())
            joints.header.stamp.sec, joints.header.stamp.nanosec = 5, 2_000_000 * number
            imu = Imu(header=joints.header)
            imu.linear_acceleration.z = 9.81
            take["/joint_states"](joints)
            take["/imu/data"](imu)

    with monkeypatch.context() as broken:
        broken.setattr(estimator, "step", step)
        send(0, 3)
    assert monitor.statistics.drops == {"unexpected_error": 3}
    assert len(resets) == 3
    assert node._outputs.published == 0
    send(3, 40)
    assert node._outputs.published == 40 - 29
