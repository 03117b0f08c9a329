"""Publishing to /tf: with tf2_ros where there is one, else by the package's own publisher."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
from geometry_msgs.msg import TransformStamped
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, ReliabilityPolicy
from tf2_msgs.msg import TFMessage

from trace_ros.nodes.transforms import TransformPublisher


@pytest.fixture
def node() -> Iterator[Node]:
    node = Node("transforms", use_global_arguments=False)
    yield node
    node.destroy_node()


def test_without_tf2_ros(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tf2_ros", None)
    publisher = TransformPublisher(node, TransformStamped())
    (offered,) = node.get_publishers_info_by_topic("/tf")
    assert offered.topic_type == "tf2_msgs/msg/TFMessage"
    # Those of tf2_ros; a listener asks for them.
    assert offered.qos_profile.reliability == ReliabilityPolicy.RELIABLE
    assert offered.qos_profile.durability == DurabilityPolicy.VOLATILE
    publisher.publish()
    publisher.destroy()
    assert not node.get_publishers_info_by_topic("/tf")


def test_with_tf2_ros(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the interface of tf2_ros.TransformBroadcaster: made from a node, ``sendTransform``, ``pub_tf``."""
    sent: list[TransformStamped] = []

    class TransformBroadcaster:
        def __init__(self, owner: Node) -> None:
            self.pub_tf = owner.create_publisher(TFMessage, "/tf", 100)

        def sendTransform(self, transform: TransformStamped) -> None:  # noqa: N802
            sent.append(transform)

    module = ModuleType("tf2_ros")
    module.TransformBroadcaster = TransformBroadcaster  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tf2_ros", module)
    transform = TransformStamped()
    publisher = TransformPublisher(node, transform)
    transform.child_frame_id = "base_link"
    publisher.publish()
    assert [item.child_frame_id for item in sent] == ["base_link"]
    publisher.destroy()
    assert not node.get_publishers_info_by_topic("/tf")
