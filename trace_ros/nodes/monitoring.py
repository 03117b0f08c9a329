"""Watches the estimator node at work: counts, the graph, and what of it goes to the log and to /diagnostics."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from rclpy.clock import Clock, ClockType
from rclpy.node import Node

from trace_ros.checks.findings import CheckSettings
from trace_ros.checks.setup import check_rate
from trace_ros.nodes import diagnostics
from trace_ros.nodes.channels import Channel
from trace_ros.nodes.conversions import now_ns
from trace_ros.nodes.diagnostics import EstimatorStatistics, InputStatistics
from trace_ros.nodes.graph import GraphWatch, TransformWatch
from trace_ros.nodes.inputs import Inputs
from trace_ros.nodes.outputs import Outputs
from trace_ros.nodes.parameters import Parameters

_WATCH_S, _GRAPH_S = 0.5, 2.0
"""How often the inputs and the graph are looked at; asking for the graph takes longer than a step."""

_ODOMETRY_TOPICS = ("odom", "estimator/foot_reliability")


class Monitor:
    """From configure to cleanup; counts anew with every activation."""

    def __init__(
        self,
        node: Node,
        parameters: Parameters,
        inputs: Inputs,
        outputs: Outputs,
        robot: str,
        rate_hz: float | None,
        max_gap_s: float,
        facts: Mapping[str, str],
    ) -> None:
        """Begin to publish diagnostics.

        Args:
            node: owner of publisher and timers.
            parameters: of the estimator node.
            inputs, outputs: to be watched.
            robot: its name, the hardware of the diagnostics.
            rate_hz: that the model was trained at; None where it works at any.
            max_gap_s: the longest pause in its samples that the estimator bridges.
            facts: keys and values that do not change; they go before what is measured.
        """
        self._node, self._parameters = node, parameters
        self._inputs, self._outputs = inputs, outputs
        self._robot, self._rate_hz, self._max_gap_s, self._facts = robot, rate_hz, max_gap_s, dict(facts)
        self.setup_faults: list[str] = []
        """What the start-up checks found that makes odometry nonsense."""
        self.setup_warnings: list[str] = []
        """What else they found."""
        self.graph = GraphWatch(node, inputs.wanted, [node.resolve_topic_name(topic) for topic in _ODOMETRY_TOPICS])
        self.transforms = TransformWatch(node, outputs.messages.transform.child_frame_id)
        self._steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.start()
        self._array: Any = None
        self._channel = Channel(
            "/diagnostics",
            lambda: node.create_publisher(DiagnosticArray, "/diagnostics", 10),
            lambda publisher: publisher.publish(self._array),
            node.destroy_publisher,
            node.get_logger().error,
        )
        self._timers = [
            node.create_timer(1.0 / parameters.number("diagnostics_rate"), self._publish, clock=self._steady),
            node.create_timer(_WATCH_S, self._watch, clock=self._steady),
        ]

    def start(self) -> None:
        """The node becomes active: count from zero."""
        inputs = self._inputs
        self.statistics = EstimatorStatistics(InputStatistics(inputs.imu_topic), InputStatistics(inputs.joints_topic))
        self._level = diagnostics.LevelHold()
        self._told: dict[str, str] = {}
        self._rivals: list[str] = []
        self._rate_warning = ""
        self.setup_faults, self.setup_warnings = [], []
        self._started_s = self._last_report_s = time.monotonic()
        self._graph_due_s = 0.0

    def close(self) -> None:
        """Give publisher and timers back."""
        for timer in self._timers:
            self._node.destroy_timer(timer)
        self._timers = []
        self.transforms.close()
        self._channel.destroy()

    def arrived(self, stream: str, stamp_ns: int) -> None:
        """A message of ``imu`` or ``joints`` has come."""
        statistics = self.statistics.imu if stream == "imu" else self.statistics.joints
        statistics.arrived(time.monotonic(), stamp_ns)

    def warn_once(self, kind: str, text: str) -> None:
        """Count something that went wrong in a step or an output; the first of a kind goes to the log."""
        self.statistics.drops[kind] += 1
        if self._told.setdefault(kind, text) is text:
            self._node.get_logger().warning(f"{text} [{kind}; later ones are counted in /diagnostics]")

    # -- twice a second --

    def _watch(self) -> None:
        if not self._inputs.subscribed:
            return
        now = time.monotonic()
        self._report_silence(now)
        self._judge_rate()
        if self._parameters.flag("publish_tf"):
            self.transforms.update(now)
        else:
            self.transforms.close()
            self.transforms.rival = ""
        if now < self._graph_due_s:
            return
        self._graph_due_s = now + _GRAPH_S
        rivals = self.graph.rivals()
        rivals += [line for line in (self.transforms.rival, self._missing_clock(now)) if line]
        for line in rivals:
            if line not in self._rivals:
                self._node.get_logger().warning(line)
        self._rivals = rivals

    def _missing_clock(self, now: float) -> str:
        """One line while the node waits for a simulation's time; empty when it does not."""
        patience_s = self._parameters.number("silence_timeout")
        clock = self._node.get_clock()
        if not clock.ros_time_is_active or clock.now().nanoseconds or now - self._started_s < patience_s:
            return ""
        count = self._node.count_publishers("/clock")
        publishers = "no publisher" if not count else f"{count} publisher{'s' * (count > 1)}, none of which sends"
        return (
            f"use_sim_time is true, but nothing has come on /clock ({publishers}): ages and latency are unknown; "
            "publish it, or set use_sim_time to false"
        )

    def _report_silence(self, now: float) -> None:
        """A line in the log for an input that is silent, another when the reason changes, one when it comes."""
        limit = self._parameters.number("silence_timeout")
        for stream in (self.statistics.imu, self.statistics.joints):
            silent_s = now - (self._started_s if stream.last_arrival_s is None else stream.last_arrival_s)
            told = self._told.get(stream.topic)
            if silent_s >= limit:
                why = self.graph.why_silent(stream.topic)
                if why != told:
                    self._told[stream.topic] = why
                    received = "nothing received yet" if stream.last_arrival_s is None else "nothing received"
                    self._node.get_logger().warning(f"{stream.topic}: {received} for {silent_s:.1f} s: {why}")
            elif told is not None:
                del self._told[stream.topic]
                self._node.get_logger().info(f"{stream.topic}: messages come")

    def _judge_rate(self) -> None:
        """Compare the IMU's rate by stamp with the model's, and its intervals with the longest that are no gaps."""
        if (rate_hz := self.statistics.imu.usual_rate_hz()) is None:
            return
        found: list[str] = []
        if rate_hz * self._max_gap_s < 1.0:
            found = [
                f"rate: the IMU's messages are {1.0 / rate_hz:.3g} s apart, more than the {self._max_gap_s:g} s after "
                "which the estimator starts anew: there is no odometry; set the driver's rate"
            ]
        elif self._rate_hz is not None:
            found = [str(finding) for finding in check_rate(rate_hz, self._rate_hz, CheckSettings())]
        if found and not self._rate_warning:
            self._node.get_logger().warning(found[0])
        self._rate_warning = found[0] if found else ""

    # -- diagnostics --

    def _publish(self) -> None:
        inputs, parameters = self._inputs, self._parameters
        self.statistics.fault = inputs.repeat_fault() if inputs.subscribed else ""
        if not parameters.flag("publish_diagnostics"):
            return
        now = time.monotonic()
        refuse = parameters.text("startup_checks") == "refuse"
        self.statistics.odometry_messages = self._outputs.published
        situation = diagnostics.Situation(
            now,
            max(now - self._last_report_s, 1e-3),
            parameters.number("sensor_timeout"),
            inputs.streams.tally.counts,
            self._publishers_of_silent_inputs(now),
            self._facts | self._changing_facts(),
            now_ns(self._node.get_clock()) or None,
            [
                *(self.setup_faults if refuse else ()),
                *(f"{topic} cannot be published: {why}" for topic, why in self._outputs.faults.items()),
            ],
            [
                *(() if refuse else self.setup_faults),
                *self.setup_warnings,
                *([self._rate_warning] if self._rate_warning else ()),
                *self._rivals,
            ],
        )
        self._last_report_s = now
        level, message, values = diagnostics.report(self.statistics, situation)
        if inputs.subscribed:
            level, message = self._level.update(now, level, message, parameters.number("diagnostics_hold"))
        else:
            level, message = diagnostics.OK, "configured, not active"
        name = f"{self._node.get_fully_qualified_name().lstrip('/')}: estimator"
        stamp = self._node.get_clock().now().to_msg()
        self._array = diagnostics.diagnostic_array(stamp, name, self._robot, level, message, values)
        self._channel.send()

    def _publishers_of_silent_inputs(self, now: float) -> dict[str, str]:
        limit = self._parameters.number("sensor_timeout")
        streams = (self.statistics.imu, self.statistics.joints)
        silent = [stream.topic for stream in streams if (age := stream.age_s(now)) is None or age > limit]
        return {topic: self.graph.publishers(topic) for topic in silent}

    def _changing_facts(self) -> dict[str, str]:
        streams = self._inputs.streams
        source = self._parameters.text("torque_source")
        facts = {
            "torque source": "none in joint_states" if streams.reports_effort is False and source != "none" else source,
            "joint velocity": "differentiated" if streams.reports_velocity is False else "reported",
            "setup": "; ".join((*self.setup_faults, *self.setup_warnings)) or "nothing found",
            "paired exactly": str(streams.pairer.exact),
            "paired by interpolating": str(streams.pairer.interpolated),
            "paired by holding": str(streams.pairer.held),
        }
        for topic, count in self._outputs.failures.items():
            facts[f"not sent: {topic}"] = str(count)
        return facts
