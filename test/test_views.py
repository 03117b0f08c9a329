"""The RViz and Foxglove configurations, by what their files say; in neither program has a test opened them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
SHOWN = {"/odom", "/path", "/reference_path", "/estimator/markers", "/robot_description"}

DISPLAYS = {
    "Grid": set(),
    "RobotModel": {"Description Topic"},
    "Path": {"Topic"},
    "Odometry": {"Topic"},
    "MarkerArray": {"Topic"},
    "TF": set(),
}
"""Those of rviz_default_plugins that are used, and under which key each has its topic."""

TOOLS = {"MoveCamera", "Select", "FocusCamera", "Measure", "Interact", "SetInitialPose", "SetGoal", "PublishPoint"}

POLICIES = {
    "Durability Policy": {"System Default", "Volatile", "Transient Local"},
    "History Policy": {"System Default", "Keep Last", "Keep All"},
    "Reliability Policy": {"System Default", "Best Effort", "Reliable"},
}
"""Choices of RViz' own, by property of a topic."""

PANELS = {"3D", "Plot", "DiagnosticSummary"}


def rviz() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "config" / "rviz" / "estimator.rviz").read_text())


def foxglove() -> dict[str, Any]:
    return json.loads((ROOT / "config" / "foxglove" / "estimator.json").read_text())


def shown_topics() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each display of RViz that has a topic: its class, and the topic with its QoS."""
    for display in rviz()["Visualization Manager"]["Displays"]:
        for key in ("Topic", "Description Topic"):
            if key in display:
                yield display["Class"], display[key]


def test_rviz_has_classes_of_its_default_plugins_only() -> None:
    config = rviz()
    manager = config["Visualization Manager"]
    assert {panel["Class"] for panel in config["Panels"]} <= {
        f"rviz_common/{name}" for name in ("Displays", "Views", "Time", "Selection", "Tool Properties")
    }
    for display in manager["Displays"]:
        package, name = display["Class"].split("/")
        assert package == "rviz_default_plugins"
        assert {key for key in display if key.endswith("Topic")} == DISPLAYS[name], display["Name"]
        assert isinstance(display["Enabled"], bool)
        assert display["Value"] == display["Enabled"]
    names = [display["Name"] for display in manager["Displays"]]
    assert len(set(names)) == len(names)
    assert {tool["Class"] for tool in manager["Tools"]} <= {f"rviz_default_plugins/{name}" for name in TOOLS}
    assert manager["Views"]["Current"]["Class"] == "rviz_default_plugins/Orbit"
    assert manager["Transformation"]["Current"]["Class"] == "rviz_default_plugins/TF"


def test_topics_in_rviz_have_the_keys_and_choices_of_rviz() -> None:
    topics = list(shown_topics())
    assert {topic["Value"] for _, topic in topics} == SHOWN
    assert rviz()["Visualization Manager"]["Global Options"]["Fixed Frame"] == "odom"
    for name, topic in topics:
        assert set(topic) - {"Filter size"} == {"Depth", "Value", *POLICIES}, name
        assert topic["Depth"] >= 1
        for policy, choices in POLICIES.items():
            assert topic[policy] in choices, (name, policy)


def numbers(node: Any) -> Iterator[float]:
    if isinstance(node, dict | list):
        for item in node.values() if isinstance(node, dict) else node:
            yield from numbers(item)
    elif isinstance(node, int | float) and not isinstance(node, bool):
        yield node


def test_the_foxglove_layout_is_whole() -> None:
    layout = foxglove()
    assert set(layout) == {"configById", "globalVariables", "userNodes", "playbackConfig", "layout"}

    def leaves(node: Any) -> list[str]:
        if isinstance(node, str):
            return [node]
        assert set(node) == {"first", "second", "direction", "splitPercentage"}
        assert node["direction"] in ("row", "column")
        assert 0 < node["splitPercentage"] < 100
        return [*leaves(node["first"]), *leaves(node["second"])]

    panels = leaves(layout["layout"])
    assert sorted(panels) == sorted(layout["configById"])
    assert {panel.split("!")[0] for panel in panels} == PANELS
    assert all(re.fullmatch(r"[A-Za-z0-9]+![A-Za-z0-9]+", panel) for panel in panels)
    assert all(abs(number) < 1e6 for number in numbers(layout))


def test_the_foxglove_layout_shows_what_the_nodes_publish() -> None:
    configs = foxglove()["configById"]
    scene = configs["3D!scene"]
    assert set(scene["topics"]) == SHOWN
    assert all(isinstance(topic["visible"], bool) for topic in scene["topics"].values())
    assert scene["followTf"] == "base_link"
    assert all(layer["frameId"] == "odom" for layer in scene["layers"].values())
    assert configs["DiagnosticSummary!summary"]["topicToRender"] == "/diagnostics"
    assert scene["publish"]["poseEstimateTopic"] == "/estimator/set_pose"


@pytest.mark.ros
def test_what_foxglove_plots_are_fields_of_the_messages() -> None:
    pytest.importorskip("rclpy")
    from nav_msgs.msg import Odometry
    from std_msgs.msg import Float32MultiArray

    messages = {"/odom": Odometry(), "/estimator/foot_reliability": Float32MultiArray(data=[0.25] * 4)}
    plotted = []
    for panel in foxglove()["configById"].values():
        for path in panel.get("paths", []):
            topic, *fields = path["value"].split(".")
            value: Any = messages[topic]
            for field in fields:
                name, _, index = field.partition("[")
                value = getattr(value, name)
                value = value[int(index.rstrip("]"))] if index else value
            assert isinstance(float(value), float)
            # Only what has a header has a stamp of its own.
            assert path["timestampMethod"] == ("headerStamp" if topic == "/odom" else "receiveTime")
            plotted.append(topic)
    assert set(plotted) == set(messages)
