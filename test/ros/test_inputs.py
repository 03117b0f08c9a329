"""What a message leads to ends no process: not the message's fault, and not ours."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from rclpy.clock import ROSClock
from rclpy.node import Node
from sensor_msgs.msg import Imu, JointState

from trace_ros.nodes.input_parameters import INPUT_PARAMETERS
from trace_ros.nodes.inputs import Inputs
from trace_ros.nodes.parameters import Parameter, Parameters
from trace_ros.robot import RobotDescription

TABLE = (
    *INPUT_PARAMETERS,
    Parameter("input_reliability", "best_effort", ""),
    Parameter("queue_depth", 5, "", "", 1, 10),
)


class Subscriptions:
    """Stands for a node: keeps the callbacks."""

    def __init__(self) -> None:
        self.callbacks: dict[str, Any] = {}
        self.lines: list[str] = []

    def create_subscription(self, _kind: Any, topic: str, callback: Any, _qos: Any) -> str:
        self.callbacks[topic] = callback
        return topic

    def resolve_topic_name(self, topic: str) -> str:
        return f"/{topic}"

    def get_clock(self) -> ROSClock:
        return ROSClock()

    def get_logger(self) -> Any:
        return SimpleNamespace(**dict.fromkeys(("info", "warning", "error"), self.lines.append))


@pytest.fixture
def parameters() -> Any:
    node = Node("inputs", use_global_arguments=False)
    yield Parameters(node, TABLE)
    node.destroy_node()


@pytest.mark.parametrize("told", [True, False])
def test_a_fault_of_ours_is_told_with_its_place(parameters: Parameters, told: bool) -> None:
    node, errors = Subscriptions(), []

    def broken(_events: Any) -> None:
        raise RuntimeError("no such\nlayer")

    inputs = Inputs(node, RobotDescription.load("go2"), parameters, broken, on_error=errors.append if told else None)
    inputs.subscribe()
    joints = JointState(name=list(inputs.streams._finder.reported_names), position=[0.0] * 12)
    for message in (joints, Imu()):
        message.header.stamp.sec = 5
    node.callbacks["joint_states"](joints)
    if told:
        node.callbacks["imu/data"](Imu(header=joints.header))
        assert len(errors) == 1
        assert errors[0].startswith("RuntimeError: no such layer (test_inputs.py:")
    else:
        with pytest.raises(RuntimeError):
            node.callbacks["imu/data"](Imu(header=joints.header))
