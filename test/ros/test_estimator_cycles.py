"""The estimator node through its transitions again and again, in this process: nothing is left behind."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from rclpy.lifecycle import TransitionCallbackReturn
from rclpy.parameter import Parameter

from trace_ros.nodes.estimator_node import EstimatorNode

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
