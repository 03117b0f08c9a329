"""What comes into the estimator node: IMU, joint states and static transforms, through `SensorStreams`, as samples."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Imu, JointState

from trace_ros.nodes.conversions import now_ns
from trace_ros.nodes.graph import Wanted
from trace_ros.nodes.input_parameters import stream_settings
from trace_ros.nodes.managed import described
from trace_ros.nodes.parameters import Parameters
from trace_ros.robot import RobotDescription
from trace_ros.streams import Event, Kind, SensorStreams
from trace_ros.streams.readings import header_stamp_ns

_REPEAT_FAULT_S = 10.0
"""How often a fault that keeps the node from working is told again."""


class Inputs:
    """The node's subscriptions to its sensors, from activate to deactivate.

    Of each kind of fault the log has one line: what was done, and the likely cause. ``streams.tally`` has the counts.
    """

    def __init__(
        self,
        node: Node,
        robot: RobotDescription,
        parameters: Parameters,
        on_events: Callable[[list[Event]], None],
        on_arrival: Callable[[str, int], None] = lambda _stream, _stamp_ns: None,
        on_error: Callable[[str], None] | None = None,
        joint_delay: float = 0.0,
    ) -> None:
        """Subscribe to nothing yet.

        Args:
            node: owner of the subscriptions.
            robot: its joints and its IMU.
            parameters: those of `INPUT_PARAMETERS`, and ``queue_depth`` and ``input_reliability``.
            on_events: takes the samples and time jumps that a message completes.
            on_arrival: called with "imu" or "joints" and the stamp (ns) when a message arrives, before anything else.
            on_error: called with one line when anything that a message led to has raised; None: let it be raised, which
                ends the process.
            joint_delay: s; how much older joint states are than IMU messages of the same stamp.

        Raises:
            TraceError: the URDF has no link for the IMU where ``imu_mounting`` asks for one.
        """
        self._node, self._parameters = node, parameters
        self._on_events, self._on_arrival, self._on_error = on_events, on_arrival, on_error
        self.streams = SensorStreams(robot, stream_settings(parameters, joint_delay), self._tell)
        self.imu_topic = node.resolve_topic_name("imu/data")
        self.joints_topic = node.resolve_topic_name("joint_states")
        # Best effort receives from reliable and best-effort publishers alike.
        reliable = parameters.text("input_reliability") == "reliable"
        self._qos = QoSProfile(
            history=HistoryPolicy.KEEP_LAST,
            depth=parameters.integer("queue_depth"),
            reliability=ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
        )
        self.wanted = {
            self.imu_topic: Wanted("sensor_msgs/msg/Imu", self._qos),
            self.joints_topic: Wanted("sensor_msgs/msg/JointState", self._qos),
        }
        """Type and QoS of the subscriptions by topic."""
        self._clock = node.get_clock()
        self._subscriptions: list[Any] = []
        self._described = False
        self._fault_told, self._fault_told_s = "", 0.0

    @property
    def subscribed(self) -> bool:
        """Whether messages come in at present."""
        return bool(self._subscriptions)

    def subscribe(self) -> None:
        """Start to take messages."""
        node, qos = self._node, self._qos
        self._subscriptions = [
            node.create_subscription(Imu, "imu/data", self._guarded(self._take_imu), qos),
            node.create_subscription(JointState, "joint_states", self._guarded(self._take_joints), qos),
        ]
        if self._parameters.text("imu_mounting") == "tf":
            from tf2_msgs.msg import TFMessage

            latched = QoSProfile(
                history=HistoryPolicy.KEEP_LAST,
                depth=100,
                reliability=ReliabilityPolicy.RELIABLE,
                durability=DurabilityPolicy.TRANSIENT_LOCAL,
            )
            self._subscriptions.append(
                node.create_subscription(TFMessage, "/tf_static", self._guarded(self._take_transforms), latched)
            )

    def unsubscribe(self) -> None:
        """Take no more messages."""
        for subscription in self._subscriptions:
            self._node.destroy_subscription(subscription)
        self._subscriptions = []

    def reset(self) -> None:
        """Forget all messages; counts and transforms stay."""
        self.streams.clear()

    def repeat_fault(self) -> str:
        """What keeps samples from being made, and a line in the log now and then while it does."""
        fault = self.streams.fault()
        now = time.monotonic()
        if fault and (fault != self._fault_told or now - self._fault_told_s >= _REPEAT_FAULT_S):
            self._fault_told, self._fault_told_s = fault, now
            self._node.get_logger().error(fault)
        if not fault:
            self._fault_told = ""
        return fault

    def _guarded(self, take: Callable[[Any], None]) -> Callable[[Any], None]:
        """A callback whose fault, which is ours and not the message's, does not end the process."""

        def guarded(message: Any) -> None:
            try:
                take(message)
            except Exception as error:
                if self._on_error is None:
                    raise
                self._on_error(described(error))

        return guarded

    def _take_imu(self, message: Any) -> None:
        self._on_arrival("imu", header_stamp_ns(message))
        if events := self.streams.add_imu(message, now_ns(self._clock)):
            self._on_events(events)

    def _take_joints(self, message: Any) -> None:
        self._on_arrival("joints", header_stamp_ns(message))
        events = self.streams.add_joints(message, now_ns(self._clock))
        if not self._described and (found := self.streams.found()):
            self._described = True
            self._describe(found)
        if events:
            self._on_events(events)

    def _take_transforms(self, message: Any) -> None:
        self.streams.add_transforms(message.transforms)

    def _describe(self, found: str) -> None:
        log = self._node.get_logger()
        log.info(f"{self.joints_topic}: {found}")
        if not self.streams.reports_effort and self._parameters.text("torque_source") != "none":
            log.warning(f"{self.joints_topic} has no effort: estimating without joint torque")
        if not self.streams.reports_velocity:
            log.warning(f"{self.joints_topic} has no velocity: differentiating positions")

    def _tell(self, kind: Kind, text: str) -> None:
        topic = self.imu_topic if kind.name.startswith("imu_") else self.joints_topic
        line = f"{topic}: {text} [{kind.name}; later ones are counted in /diagnostics]"
        if kind.warns:
            self._node.get_logger().warning(line)
        else:
            self._node.get_logger().info(line)
