"""Records topics into an MCAP rosbag2 that survives Ctrl-C whole, and a kill but for the last half second."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from rclpy.clock import Clock, ClockType
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.task import Future

from trace_ros.errors import TraceError
from trace_ros.nodes.bag_writer import Compression, LiveBagWriter, TopicQos
from trace_ros.nodes.parameters import Parameter, Parameters
from trace_ros.nodes.spin import RCLError, run

PARAMETERS = (
    Parameter("output", "", "directory of the new bag; empty: trace_<date>_<time> in the current directory"),
    Parameter(
        "topics",
        ["imu/data", "joint_states", "reference/odom", "odom", "/tf", "/tf_static", "estimator/foot_reliability"],
        "what to record: topic, or topic:package/msg/Type to subscribe before anybody publishes it",
    ),
    Parameter("flush_period", 0.25, "what a kill may lose", "s", 0.01, 0.5),
    Parameter("compression", "zstd", "of the file's chunks", choices=("zstd", "lz4", "none")),
    Parameter("queue_depth", 1000, "depth of the input queues", "messages", 1, 100000),
    Parameter("discovery_period", 0.2, "how often to look for topics that are not there yet", "s", 0.01, 60.0),
)

_LINGER_S = 0.3
"""On Ctrl-C: time to take the messages that have arrived but were not handed over yet."""


class RecorderNode(Node):
    """Writes serialised messages as they come; looks for missing topics until it has them."""

    def __init__(self, stop: Future) -> None:
        """Create the bag and start to look for the topics.

        Raises:
            TraceError: a bad parameter, or a bag that cannot be created.
        """
        super().__init__("recorder")
        self._params = Parameters(self, PARAMETERS)
        self._params.check()
        self._params.locked = True
        self._stop = stop
        self._wanted = self._wanted_topics()
        output = self._params.text("output") or datetime.now().strftime("trace_%Y%m%d_%H%M%S")
        compression = cast(Compression, self._params.text("compression"))
        self._bag = LiveBagWriter(Path(output).expanduser(), compression)
        self._closed = False
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(self._params.number("flush_period"), self._guarded(self._bag.flush), clock=steady)
        self._discovery = self.create_timer(self._params.number("discovery_period"), self._discover, clock=steady)
        self.get_logger().info(f"recording to {self._bag.path}: {', '.join(self._wanted)}")
        self._discover()

    def close(self) -> None:
        """Complete the bag."""
        if self._closed:
            return
        self._closed = True
        self._bag.close()
        counts = ", ".join(f"{count} on {topic}" for topic, count in self._bag.messages.items()) or "no messages"
        self.get_logger().info(f"recorded {self._bag.path}: {counts}")
        if self._wanted:
            self.get_logger().warning(f"never seen: {', '.join(self._wanted)}")

    def _wanted_topics(self) -> dict[str, str]:
        """Message type by resolved topic name; empty where the graph is to tell."""
        wanted = {}
        for item in self._params.texts("topics"):
            topic, _, message_type = item.partition(":")
            try:
                name = self.resolve_topic_name(topic)
            except (ValueError, RCLError) as error:
                raise TraceError(f"parameter 'topics': {topic!r} is not the name of a topic") from error
            wanted[name] = _full_type(name, message_type) if message_type else ""
        if not wanted:
            raise TraceError("parameter 'topics' is empty: nothing to record")
        return wanted

    def _discover(self) -> None:
        graph = dict(self.get_topic_names_and_types())
        for topic, given in list(self._wanted.items()):
            types = [given] if given else graph.get(topic, [])
            if not types:
                continue
            del self._wanted[topic]
            if len(types) > 1:
                self.get_logger().error(f"{topic} has several types ({', '.join(types)}): not recorded")
                continue
            try:
                self._subscribe(topic, types[0])
            except TraceError as error:
                self.get_logger().error(f"not recorded: {error}")
        if not self._wanted:
            self._discovery.cancel()

    def _subscribe(self, topic: str, message_type: str) -> None:
        kind = message_class(topic, message_type)
        offered = [_topic_qos(info.qos_profile) for info in self.get_publishers_info_by_topic(topic)]
        self._bag.add_topic(topic, message_type, offered)
        # What all publishers offer may be asked for; best effort and volatile receive from any.
        qos = QoSProfile(
            history=HistoryPolicy.KEEP_LAST,
            depth=self._params.integer("queue_depth"),
            reliability=ReliabilityPolicy.RELIABLE
            if offered and all(item.reliable for item in offered)
            else ReliabilityPolicy.BEST_EFFORT,
            durability=DurabilityPolicy.TRANSIENT_LOCAL
            if offered and all(item.transient_local for item in offered)
            else DurabilityPolicy.VOLATILE,
        )

        def write(data: bytes) -> None:
            self._bag.write(topic, self.get_clock().now().nanoseconds, data)

        self.create_subscription(kind, topic, self._guarded(write), qos, raw=True)
        self.get_logger().info(f"recording {topic} [{message_type}]")

    def _guarded(self, action: Callable[..., None]) -> Callable[..., None]:
        """An action after whose failure recording makes no sense: the run ends with its one line."""

        def guarded(*arguments: Any) -> None:
            try:
                action(*arguments)
            except TraceError as error:
                if not self._stop.done():
                    self._stop.set_exception(error)

        return guarded


def message_class(topic: str, message_type: str) -> Any:
    """The Python class of a message type such as ``sensor_msgs/msg/Imu``.

    Raises:
        TraceError: its package is not installed.
    """
    package, _, name = message_type.split("/")
    try:
        return getattr(importlib.import_module(f"{package}.msg"), name)
    except (ImportError, AttributeError) as error:
        raise TraceError(f"{topic}: the message type {message_type} is not installed") from error


def _full_type(topic: str, message_type: str) -> str:
    """``sensor_msgs/Imu`` and ``sensor_msgs/msg/Imu`` mean the same; the second is the type's name."""
    parts = message_type.split("/")
    if len(parts) == 2:
        parts.insert(1, "msg")
    if len(parts) != 3 or parts[1] != "msg" or not all(part.isidentifier() for part in parts):
        raise TraceError(f"{topic}: {message_type!r} is not a message type such as sensor_msgs/msg/Imu")
    return "/".join(parts)


def _topic_qos(profile: QoSProfile) -> TopicQos:
    return TopicQos(
        profile.reliability == ReliabilityPolicy.RELIABLE,
        profile.durability == DurabilityPolicy.TRANSIENT_LOCAL,
        int(profile.depth),
    )


def main(args: Sequence[str] | None = None) -> int:
    """Entry point of ``ros2 run trace_ros recorder``."""
    return run("recorder", RecorderNode, args, PARAMETERS, linger_s=_LINGER_S)


if __name__ == "__main__":
    raise SystemExit(main())
