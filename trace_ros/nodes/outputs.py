"""What leaves the estimator node: odometry, TF, reliability of the feet; how often, and in which form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from nav_msgs.msg import Odometry
from rclpy.lifecycle import LifecycleNode
from std_msgs.msg import Float32MultiArray

from trace_ros.estimator.estimator import Estimate
from trace_ros.estimator.planar import planar
from trace_ros.nodes.channels import Channel
from trace_ros.nodes.messages import OutputMessages
from trace_ros.nodes.parameters import Parameters
from trace_ros.nodes.transforms import TransformPublisher


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
        self, node: LifecycleNode, parameters: Parameters, base_link_frame: str, tell: Callable[[str], None]
    ) -> None:
        """Create the publishers.

        Args:
            node: owner of the publishers; those of odometry and reliability are silent unless it is active.
            parameters: ``odom_frame`` and ``queue_depth`` now, the live ones at every estimate.
            base_link_frame: child frame.
            tell: takes one line for the log when a publisher fails, and when it works again.
        """
        self._node = node
        self._parameters = parameters
        self.messages = OutputMessages(parameters.text("odom_frame"), base_link_frame)
        self.schedule = OutputSchedule()
        self.published = 0
        """Odometry messages since the start of this activation."""
        self._active = False
        depth = parameters.integer("queue_depth")
        messages = self.messages
        self._odometry = self._managed("odom", Odometry, depth, lambda p: p.publish(messages.odometry), tell)
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
        self.channels = (self._odometry, self._reliability, self._transforms)

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

    @property
    def faults(self) -> dict[str, str]:
        """What cannot be published at present, by topic, and why."""
        return {channel.name: channel.fault for channel in self.channels if channel.fault}

    @property
    def failures(self) -> dict[str, int]:
        """Messages that could not be sent, by topic."""
        return {channel.name: channel.failures for channel in self.channels if channel.failures}

    def publish(self, estimate: Estimate) -> bool:
        """Publish an estimate where it is due; whether it was."""
        parameters = self._parameters
        if not self.schedule.admits(estimate.stamp_ns, parameters.number("max_rate")):
            return False
        self.messages.fill(self.shaped(estimate))
        self._reliability.send()
        if self._odometry.send():
            self.published += 1
        if parameters.flag("publish_tf"):
            self._transforms.send()
        return True

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
        for channel in self.channels:
            channel.destroy()
