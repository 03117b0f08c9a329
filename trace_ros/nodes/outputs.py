"""What leaves the estimator node: odometry, TF, reliability of the feet, markers; how often, and in which form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from nav_msgs.msg import Odometry
from numpy.typing import NDArray
from rclpy.clock import Clock, ClockType
from rclpy.lifecycle import LifecycleNode
from std_msgs.msg import Float32MultiArray

from trace_ros.estimator.estimator import Estimate
from trace_ros.estimator.planar import planar
from trace_ros.nodes import markers
from trace_ros.nodes.channels import Channel
from trace_ros.nodes.messages import OutputMessages, reliability_of_feet
from trace_ros.nodes.parameters import Parameters
from trace_ros.nodes.transforms import TransformPublisher
from trace_ros.robot import RobotDescription

FloatArray = NDArray[np.float64]


class OutputSchedule:
    """Which estimates are published: stamps strictly increase, no more often than asked for."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget the stamps: a new time line begins."""
        self._last_ns: int | None = None
        self._due_ns: int | None = None

    def admits(self, stamp_ns: int, max_rate: float) -> bool:
        """Whether to publish an estimate with this stamp (ns); ``max_rate`` in Hz, 0 for all.

        Due times lie on a grid of their own, so that 200 Hz out of 500 Hz are 200 Hz on average.
        """
        if self._last_ns is not None and stamp_ns <= self._last_ns:
            return False
        if max_rate > 0:
            period_ns = round(1e9 / max_rate)
            if self._due_ns is not None and stamp_ns < self._due_ns:
                return False
            if self._due_ns is None or stamp_ns - self._due_ns >= period_ns:
                self._due_ns = stamp_ns
            self._due_ns += period_ns
        self._last_ns = stamp_ns
        return True


class Outputs:
    """The node's publishers of estimates, from configure to cleanup."""

    def __init__(
        self,
        node: LifecycleNode,
        parameters: Parameters,
        robot: RobotDescription,
        tell: Callable[[str], None],
        feet: bool = True,
    ) -> None:
        """Create the publishers.

        Args:
            node: owner of the publishers, which are silent unless it is active.
            parameters: frames, ``queue_depth`` and ``markers_rate`` now, the live ones at every estimate.
            robot: whose legs the markers show; its base link is the child frame where the parameters name none.
            tell: takes one line for the log when a publisher fails, and when it works again.
            feet: whether the estimates tell anything of the feet; else there is no ``estimator/foot_reliability``.
        """
        self._node = node
        self._parameters = parameters
        base_link_frame = parameters.text("base_link_frame") or robot.base_link
        self.messages = OutputMessages(parameters.text("odom_frame"), base_link_frame)
        self.schedule = OutputSchedule()
        self.published = 0
        """Odometry messages since the start of this activation."""
        self._active = False
        depth = parameters.integer("queue_depth")
        messages = self.messages
        self._odometry = self._managed("odom", Odometry, depth, lambda p: p.publish(messages.odometry), tell)
        self._reliability: Channel | None = None
        if feet:
            self._reliability = self._managed(
                "estimator/foot_reliability",
                Float32MultiArray,
                depth,
                lambda p: p.publish(messages.foot_reliability),
                tell,
            )
        self._transforms = Channel(
            "/tf",
            lambda: TransformPublisher(node, messages.transform),
            lambda p: p.publish(),
            lambda p: p.destroy(),
            tell,
        )
        self.channels = [self._odometry, *([self._reliability] if self._reliability else []), self._transforms]
        self._shown: tuple[int, FloatArray, list[float]] | None = None
        """Stamp, joint positions and reliability of the feet of the last estimate."""
        self._markers: Channel | None = None
        self._timer: Any = None
        if parameters.number("markers_rate") > 0 and markers.available():
            self._create_markers(robot, base_link_frame, tell)

    def _create_markers(self, robot: RobotDescription, frame: str, tell: Callable[[str], None]) -> None:
        legs = markers.LegMarkers(robot, frame)
        odometry = self.messages.odometry
        place = markers.CovarianceMarker(odometry.header.frame_id)
        legs.message.markers.append(place.marker)
        self._markers = self._managed(
            "estimator/markers", type(legs.message), 1, lambda p: p.publish(legs.message), tell
        )
        self.channels.append(self._markers)

        def show() -> None:
            channel, shown = self._markers, self._shown
            # Kinematics take longer than a step: only where somebody looks.
            if channel is None or shown is None or not channel.heard:
                return
            self._shown = None
            stamp_ns, joints, reliability = shown
            legs.fill(stamp_ns, joints, np.array(reliability))
            place.fill(stamp_ns, odometry.pose)
            channel.send()

        period = 1.0 / self._parameters.number("markers_rate")
        self._timer = self._node.create_timer(period, show, clock=Clock(clock_type=ClockType.STEADY_TIME))

    def _managed(
        self, topic: str, kind: Any, depth: int, send: Callable[[Any], None], tell: Callable[[str], None]
    ) -> Channel:
        def make() -> Any:
            publisher = self._node.create_lifecycle_publisher(kind, topic, depth)
            if self._active:  # made anew in the middle of the work
                publisher.on_activate(None)
            return publisher

        return Channel(topic, make, send, self._node.destroy_lifecycle_publisher, tell)

    def start(self) -> None:
        """The node becomes active: counts and stamps begin anew."""
        self._active = True
        self.published = 0
        self.schedule.clear()

    def stop(self) -> None:
        """The node is not active any more."""
        self._active = False
        self._shown = None

    @property
    def faults(self) -> dict[str, str]:
        """What cannot be published at present, by topic, and why."""
        return {channel.name: channel.fault for channel in self.channels if channel.fault}

    @property
    def failures(self) -> dict[str, int]:
        """Messages that could not be sent, by topic."""
        return {channel.name: channel.failures for channel in self.channels if channel.failures}

    def publish(self, estimate: Estimate, joint_position: FloatArray) -> bool:
        """Publish an estimate, with the joints (12,), rad, where it is due; whether it was."""
        parameters = self._parameters
        if not self.schedule.admits(estimate.stamp_ns, parameters.number("max_rate")):
            return False
        reliability = reliability_of_feet(estimate)
        self._shown = estimate.stamp_ns, joint_position, reliability
        self.messages.fill(self.shaped(estimate))
        self.send(estimate.stamp_ns, reliability)
        return True

    def send(self, stamp_ns: int, reliability: list[float]) -> None:
        """Publish odometry and transform as they are filled, and the reliability of the feet where somebody listens."""
        if self._odometry.send():
            self.published += 1
        if self._parameters.flag("publish_tf"):
            self._transforms.send()
        # To ask takes a seventh of the time of sending.
        if self._reliability is not None and self._reliability.heard:
            self.messages.fill_feet(stamp_ns, reliability)
            self._reliability.send()

    def shaped(self, estimate: Estimate) -> Estimate:
        """The estimate with ``two_d_mode`` and the covariances of the parameters applied."""
        parameters = self._parameters
        if parameters.flag("two_d_mode"):
            estimate = planar(estimate)
        if pose := parameters.numbers("pose_covariance_diagonal"):
            estimate = replace(estimate, pose_covariance=np.diag(pose))
        if twist := parameters.numbers("twist_covariance_diagonal"):
            estimate = replace(estimate, twist_covariance=np.diag(twist))
        return estimate

    def destroy(self) -> None:
        """Give all publishers back."""
        if self._timer is not None:
            self._node.destroy_timer(self._timer)
        self._timer = None
        for channel in self.channels:
            channel.destroy()
