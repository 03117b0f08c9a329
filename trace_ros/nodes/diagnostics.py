"""What the estimator node tells of itself on /diagnostics: rates, ages, drops, step times, latency."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue

OK, WARN, ERROR, STALE = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR, DiagnosticStatus.STALE

_HISTORY = 2000
"""Steps over which step time and latency are told (4 s at 500 Hz)."""


@dataclass
class InputStatistics:
    """Arrivals of one topic.

    Attributes:
        topic: resolved name.
        messages: arrived since activation.
        last_arrival_s: by the steady clock; None before the first message.
    """

    topic: str
    messages: int = 0
    last_arrival_s: float | None = None
    _reported: int = 0

    def arrived(self, now_s: float) -> None:
        """Count one message."""
        self.messages += 1
        self.last_arrival_s = now_s

    def since_last_report(self) -> int:
        """Messages since this was last asked."""
        count = self.messages - self._reported
        self._reported = self.messages
        return count

    def age_s(self, now_s: float) -> float | None:
        """Seconds since the last message, None before the first."""
        return None if self.last_arrival_s is None else now_s - self.last_arrival_s


@dataclass
class EstimatorStatistics:
    """Everything that the estimator node counts between activation and deactivation."""

    imu: InputStatistics
    joints: InputStatistics
    drops: Counter[str] = field(default_factory=Counter)
    odometry_messages: int = 0
    step_time_s: deque[float] = field(default_factory=lambda: deque(maxlen=_HISTORY))
    latency_s: deque[float] = field(default_factory=lambda: deque(maxlen=_HISTORY))
    time_jumps: int = 0
    stationary: bool = False
    fault: str = ""
    """What keeps the node from estimating at present; empty when nothing does."""
    _reported_drops: Counter[str] = field(default_factory=Counter)
    _reported_odometry: int = 0
    _reported_jumps: int = 0

    def new_drops(self, pairing: Mapping[str, int]) -> Counter[str]:
        """Drops by kind since this was last asked, with those of the pairer."""
        total = self.all_drops(pairing)
        fresh = total - self._reported_drops
        self._reported_drops = total
        return fresh

    def all_drops(self, pairing: Mapping[str, int]) -> Counter[str]:
        """Drops by kind since activation, with those of the pairer."""
        return self.drops + Counter(pairing)

    def new_jumps(self) -> int:
        """Time jumps since this was last asked."""
        count = self.time_jumps - self._reported_jumps
        self._reported_jumps = self.time_jumps
        return count

    def new_odometry(self) -> int:
        """Odometry messages since this was last asked."""
        count = self.odometry_messages - self._reported_odometry
        self._reported_odometry = self.odometry_messages
        return count


@dataclass(frozen=True)
class Situation:
    """What a report needs beside the statistics.

    Attributes:
        now_s: steady clock.
        period_s: time since the last report.
        sensor_timeout_s: an input older than this is missing.
        pairing_drops: drops by kind that the pairer counted.
        publishers: publishers by topic.
        facts: further keys and values.
    """

    now_s: float
    period_s: float
    sensor_timeout_s: float
    pairing_drops: Mapping[str, int]
    publishers: Mapping[str, int]
    facts: Mapping[str, str]


def report(statistics: EstimatorStatistics, situation: Situation) -> tuple[bytes, str, dict[str, str]]:
    """Level, message, and values of one diagnostic status."""
    fresh = statistics.new_drops(situation.pairing_drops)
    odometry = statistics.new_odometry()
    values = dict(situation.facts)
    silent = []
    for name, stream in (("imu", statistics.imu), ("joint_states", statistics.joints)):
        age = stream.age_s(situation.now_s)
        values[f"{name} rate (Hz)"] = f"{stream.since_last_report() / situation.period_s:.1f}"
        values[f"{name} age (s)"] = "never received" if age is None else f"{age:.3f}"
        if age is None or age > situation.sensor_timeout_s:
            publishers = situation.publishers.get(stream.topic, 0)
            since = "yet" if age is None else f"for {age:.1f} s"
            silent.append(f"no message on {stream.topic} {since} ({publishers} publisher{'s' * (publishers != 1)})")
    values["time jumps"] = str(statistics.time_jumps)
    values["odometry rate (Hz)"] = f"{odometry / situation.period_s:.1f}"
    values["odometry messages"] = str(statistics.odometry_messages)
    values["stationary"] = str(statistics.stationary).lower()
    values["step time (ms)"] = _percentiles(statistics.step_time_s)
    values["latency, stamp to published (ms)"] = _percentiles(statistics.latency_s)
    for kind, count in sorted(statistics.all_drops(situation.pairing_drops).items()):
        values[f"dropped: {kind}"] = str(count)
    if statistics.fault:
        return ERROR, statistics.fault, values
    if silent:
        return STALE, "; ".join(silent), values
    if fresh:
        return WARN, "dropped " + ", ".join(f"{count} {kind}" for kind, count in sorted(fresh.items())), values
    if statistics.new_jumps():
        return WARN, "time jumped back: the estimator started anew", values
    if not odometry:
        return WARN, "the inputs arrive but gave no odometry yet", values
    return OK, "estimating", values


def diagnostic_array(
    stamp: Any, name: str, hardware_id: str, level: bytes, message: str, values: Mapping[str, str]
) -> Any:
    """One status as diagnostic_msgs/DiagnosticArray."""
    array = DiagnosticArray()
    array.header.stamp = stamp
    array.status = [
        DiagnosticStatus(
            level=level,
            name=name,
            message=message,
            hardware_id=hardware_id,
            values=[KeyValue(key=key, value=value) for key, value in values.items()],
        )
    ]
    return array


def _percentiles(series: deque[float]) -> str:
    if not series:
        return "none yet"
    p50, p99, largest = np.percentile(np.fromiter(series, dtype=float), (50, 99, 100)) * 1e3
    return f"p50 {p50:.2f}, p99 {p99:.2f}, max {largest:.2f}"
