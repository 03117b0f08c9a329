"""What RViz asks for is what the nodes offer: QoS of its configuration against that of the real publishers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import START_LIMIT_S, wait_until
from rclpy.lifecycle import LifecycleNode
from rclpy.qos import (
    DurabilityPolicy,
    HistoryPolicy,
    LivelinessPolicy,
    QoSCompatibility,
    QoSProfile,
    ReliabilityPolicy,
)
from rclpy.qos import qos_check_compatible as check

from trace_ros.nodes.estimator_parameters import PARAMETERS
from trace_ros.nodes.outputs import Outputs
from trace_ros.nodes.parameters import Parameters
from trace_ros.nodes.path_node import PathNode

ROOT = Path(__file__).resolve().parents[2]
AUTOMATIC = LivelinessPolicy.AUTOMATIC
"""What the default comes to, which the comparison does not take for known."""

LATCHED = QoSProfile(
    depth=1,
    durability=DurabilityPolicy.TRANSIENT_LOCAL,
    reliability=ReliabilityPolicy.RELIABLE,
    liveliness=AUTOMATIC,
)
"""As robot_state_publisher publishes the robot's description."""


@pytest.fixture
def offered(robot: Any) -> Iterator[dict[str, QoSProfile]]:
    """By topic, as RViz names it."""
    path = PathNode()
    node = LifecycleNode("views", use_global_arguments=False)
    outputs = Outputs(node, Parameters(node, PARAMETERS), robot, lambda _line: None)
    names = [publisher.topic_name for publisher in (*path.publishers, *node.publishers)]
    # As the middleware tells it, which knows what a default comes to.
    wait_until(lambda: all(map(node.get_publishers_info_by_topic, names)), START_LIMIT_S, "publishers in the graph")
    yield {name: node.get_publishers_info_by_topic(name)[0].qos_profile for name in names} | {
        "/robot_description": LATCHED
    }
    outputs.destroy()
    node.destroy_node()
    path.destroy_node()


def wanted(topic: dict[str, Any]) -> QoSProfile:
    return QoSProfile(
        depth=topic["Depth"],
        history=HistoryPolicy[topic["History Policy"].upper().replace(" ", "_")],
        durability=DurabilityPolicy[topic["Durability Policy"].upper().replace(" ", "_")],
        reliability=ReliabilityPolicy[topic["Reliability Policy"].upper().replace(" ", "_")],
        liveliness=AUTOMATIC,
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
    assert check(offered["/odom"], LATCHED)[0] == QoSCompatibility.ERROR
