"""What the ROS graph tells: who publishes an input and why nothing comes of it, and who else does the node's work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rclpy.node import Node
from rclpy.qos import QoSCompatibility, QoSProfile, qos_check_compatible


@dataclass(frozen=True)
class Wanted:
    """A topic that the node subscribes to: its type (``sensor_msgs/msg/Imu``) and the QoS that is asked for."""

    message_type: str
    qos: QoSProfile


class GraphWatch:
    """Answers questions about publishers."""

    def __init__(self, node: Node, inputs: Mapping[str, Wanted], outputs: Sequence[str]) -> None:
        """Look at nothing yet.

        Args:
            node: whose graph.
            inputs: by resolved name.
            outputs: resolved names of topics that nobody else should publish.
        """
        self._node, self._inputs, self._outputs = node, inputs, outputs

    def publishers(self, topic: str) -> str:
        """The publishers of an input in words, with what keeps each from being heard.

        ``no publisher``, ``1 publisher: /driver``, ``1 publisher: /driver, whose QoS is incompatible (...)``.
        """
        wanted = self._inputs[topic]
        found = []
        for endpoint in self._node.get_publishers_info_by_topic(topic):
            name = _name(endpoint)
            if endpoint.topic_type and endpoint.topic_type != wanted.message_type:
                found.append(f"{name}, of type {endpoint.topic_type} and not {wanted.message_type}")
                continue
            compatible, reason = qos_check_compatible(endpoint.qos_profile, wanted.qos)
            if compatible == QoSCompatibility.ERROR:
                found.append(f"{name}, whose QoS is incompatible ({' '.join(reason.split()).rstrip(';')})")
            else:
                found.append(name)
        if not found:
            return "no publisher"
        return f"{len(found)} publisher{'s' * (len(found) > 1)}: {', '.join(found)}"

    def why_silent(self, topic: str) -> str:
        """The same, with what can be done about it."""
        text = self.publishers(topic)
        if text == "no publisher":
            return f"{text}; start the driver, or remap the topic to the name under which it publishes"
        if "incompatible" in text:
            return f"{text}; set input_reliability to best_effort, or the publisher's QoS"
        if "of type" in text:
            return f"{text}; remap the topic"
        return f"{text}, of fitting type and QoS; it sends nothing, or the network does not let it through"

    def rivals(self) -> list[str]:
        """Others that do the node's own work, a line each: nodes of its name, publishers of its topics."""
        node = self._node
        own = (node.get_name(), node.get_namespace())
        same = sum(1 for found in node.get_node_names_and_namespaces() if found == own)
        lines = []
        if same > 1:
            name = node.get_fully_qualified_name()
            lines.append(f"{same} nodes are named {name}: end the others, or give each a namespace")
        for topic in self._outputs:
            names = Counter(_name(endpoint) for endpoint in node.get_publishers_info_by_topic(topic))
            names[node.get_fully_qualified_name()] -= 1
            others = sorted((+names).elements())
            if others:
                lines.append(f"{topic} is published by {', '.join(others)} too")
        return lines


class TransformWatch:
    """Finds others that publish the node's own transform.

    Listening to /tf all the time would cost as much as publishing it, so this looks for a short while now and then, and
    only while there are other publishers at all.
    """

    _LOOK_S = 1.5
    _REST_S = 20.0
    _LEAST = 2
    """Transforms that the node did not send, from which on they are another's."""

    def __init__(self, node: Node, child: str) -> None:
        self._node, self._child = node, child
        self._subscription: Any = None
        self._until_s = self._next_s = 0.0
        self._others = 0
        self._own: Counter[tuple[str, int, int]] = Counter()
        self._seen: Counter[tuple[str, int, int]] = Counter()
        self.rival = ""
        """What the last look found, one line; empty when there was nothing."""

    def sent(self, transform: Any) -> None:
        """Remember a transform that the node itself has sent."""
        if self._subscription is not None:
            self._own[_key(transform)] += 1

    def update(self, now_s: float) -> None:
        """Begin or end a look; called about once a second with the steady clock."""
        if self._subscription is not None:
            if now_s >= self._until_s:
                self._end()
            return
        others = self._node.count_publishers("/tf") - 1
        if others <= 0:
            self._others, self.rival = 0, ""
            return
        if others == self._others and now_s < self._next_s:
            return
        from tf2_msgs.msg import TFMessage

        self._others = others
        self._own.clear()
        self._seen.clear()
        self._until_s, self._next_s = now_s + self._LOOK_S, now_s + self._REST_S
        self._subscription = self._node.create_subscription(TFMessage, "/tf", self._take, 1000)

    def close(self) -> None:
        """Give the subscription back."""
        if self._subscription is not None:
            self._node.destroy_subscription(self._subscription)
        self._subscription = None

    def _take(self, message: Any) -> None:
        for transform in message.transforms:
            if transform.child_frame_id.lstrip("/") == self._child:
                self._seen[_key(transform)] += 1

    def _end(self) -> None:
        self.close()
        foreign = self._seen - self._own
        self.rival = ""
        if foreign.total() >= self._LEAST:
            parents = ", ".join(sorted({parent for parent, _, _ in foreign}))
            self.rival = (
                f"another node publishes the transform {parents} -> {self._child} too: "
                "end it, or set publish_tf to false"
            )


def _key(transform: Any) -> tuple[str, int, int]:
    header = transform.header
    return header.frame_id, header.stamp.sec, header.stamp.nanosec


def _name(endpoint: Any) -> str:
    if not endpoint.node_name or endpoint.node_name.startswith("_"):
        return "a node without a name"
    return f"{endpoint.node_namespace.rstrip('/')}/{endpoint.node_name}"
