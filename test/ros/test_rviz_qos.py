"""What RViz asks for is what the nodes offer: QoS of its configuration against that of the real publishers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from rclpy.lifecycle import LifecycleNode
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSCompatibility, QoSProfile, ReliabilityPolicy
from rclpy.qos import qos_check_compatible as check

from trace_ros.nodes.estimator_parameters import PARAMETERS
from trace_ros.nodes.outputs import Outputs
from trace_ros.nodes.parameters import Parameters
from trace_ros.nodes.path_node import PathNode

ROOT = Path(__file__).resolve().parents[2]
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL, reliability=ReliabilityPolicy.RELIABLE)
"""As robot_state_publisher publishes the robot's description."""


@pytest.fixture
def offered(robot: Any) -> Iterator[dict[str, QoSProfile]]:
    """By topic, as RViz names it."""
    path = PathNode()
    node = LifecycleNode("views", use_global_arguments=False)
    outputs = Outputs(node, Parameters(node, PARAMETERS), robot, lambda _line: None)
    publishers = [*path.publishers, *node.publishers]
    yield {publisher.topic_name: publisher.qos_profile for publisher in publishers} | {"/robot_description": LATCHED}
    outputs.destroy()
    node.destroy_node()
    path.destroy_node()


def wanted(topic: dict[str, Any]) -> QoSProfile:
    return QoSProfile(
        depth=topic["Depth"],
        history=HistoryPolicy[topic["History Policy"].upper().replace(" ", "_")],
        durability=DurabilityPolicy[topic["Durability Policy"].upper().replace(" ", "_")],
        reliability=ReliabilityPolicy[topic["Reliability Policy"].upper().replace(" ", "_")],
    )


def test_rviz_hears_every_topic_that_it_shows(offered: dict[str, QoSProfile]) -> None:
    config = yaml.safe_load((ROOT / "config" / "rviz" / "estimator.rviz").read_text())
    heard = set()
    for display in config["Visualization Manager"]["Displays"]:
        for topic in (display[key] for key in ("Topic", "Description Topic") if key in display):
            if topic["Value"] not in offered:
                # Where visualization_msgs is not installed there are no markers.
                assert topic["Value"] == "/estimator/markers"
                continue
            assert check(offered[topic["Value"]], wanted(topic)) == (QoSCompatibility.OK, ""), topic
            heard.add(topic["Value"])
    assert heard >= {"/odom", "/path", "/reference_path", "/robot_description"}
    # And what would not be heard is told.
    strict = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
    assert check(offered["/odom"], strict)[0] == QoSCompatibility.ERROR
