"""Publishing to /tf: through tf2_ros where it is installed, else with the same topic and QoS."""

from __future__ import annotations

from typing import Any

from geometry_msgs.msg import TransformStamped
from rclpy.node import Node
from rclpy.qos import HistoryPolicy, QoSProfile, ReliabilityPolicy

QOS = QoSProfile(history=HistoryPolicy.KEEP_LAST, depth=100, reliability=ReliabilityPolicy.RELIABLE)
"""As tf2_ros publishes dynamic transforms."""


class TransformPublisher:
    """Sends one transform again and again; its owner changes it in place."""

    def __init__(self, node: Node, transform: TransformStamped) -> None:
        self._node = node
        self._transform = transform
        self._broadcaster: Any = None
        self._publisher: Any = None
        try:
            from tf2_ros import TransformBroadcaster
        except ImportError:
            from tf2_msgs.msg import TFMessage

            self._message = TFMessage(transforms=[transform])
            self._publisher = node.create_publisher(TFMessage, "/tf", QOS)
        else:
            self._broadcaster = TransformBroadcaster(node)

    def publish(self) -> None:
        """Send the transform as it is now."""
        if self._broadcaster is not None:
            self._broadcaster.sendTransform(self._transform)
        else:
            self._publisher.publish(self._message)

    def destroy(self) -> None:
        """Give the publisher back to the node."""
        publisher = self._publisher
        if self._broadcaster is not None:
            publisher = getattr(self._broadcaster, "pub_tf", None)
        if publisher is not None:
            self._node.destroy_publisher(publisher)
        self._broadcaster = self._publisher = None
