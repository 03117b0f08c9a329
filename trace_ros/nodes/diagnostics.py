"""What the estimator node tells of itself on /diagnostics: rates, ages, faults by kind, step times, latency."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue

from trace_ros.checks.timing_watch import ASIDE_S
from trace_ros.logs import FloatArray
from trace_ros.streams import KINDS

OK, WARN, ERROR, STALE = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR, DiagnosticStatus.STALE

_SEVERITY = {OK: 0, WARN: 1, STALE: 2, ERROR: 3}

_HISTORY = 2000
"""Steps over which step time and latency are told (4 s at 500 Hz)."""

_INTERVALS = 200
"""Intervals between stamps from which the usual one is told."""

_FEW_INTERVALS, _LONG_NS = 5, 4_000_000_000
"""So few will do, of a stream so slow that they take so long."""

DOUBTFUL = (
    "no foot bears out the estimated velocity: the robot slides on all feet, or the estimate has run away "
    "(covariances are widened; ~/reset starts anew)"
)

_SLOW = 100
"""Steps after which it is judged whether the estimator keeps up."""


@dataclass
class InputStatistics:
    """Arrivals of one topic.

    Attributes:
        topic: resolved name.
        messages: arrived since activation.
        last_arrival_s: by the steady clock; None before the first message.
        last_stamp_ns: of the last message; None before the first.
    """

    topic: str
    messages: int = 0
    last_arrival_s: float | None = None
    last_stamp_ns: int | None = None
    intervals_ns: deque[int] = field(default_factory=lambda: deque(maxlen=_INTERVALS))
    """Between the stamps of the last messages."""
    _reported: int = 0
    _reported_stamp_ns: int | None = None

    def arrived(self, now_s: float, stamp_ns: int | None = None) -> None:
        """Count one message."""
        self.messages += 1
        self.last_arrival_s = now_s
        if stamp_ns is not None and self.last_stamp_ns is not None:
            self.intervals_ns.append(stamp_ns - self.last_stamp_ns)
        self.last_stamp_ns = stamp_ns

    def usual_rate_hz(self) -> float | None:
        """Rate by the median interval of stamps, which lost messages hardly change; None before there are enough."""
        few = len(self.intervals_ns) < _INTERVALS
        if few and (len(self.intervals_ns) < _FEW_INTERVALS or sum(self.intervals_ns) < _LONG_NS):
            return None
        usual_ns = float(np.median(np.fromiter(self.intervals_ns, dtype=float)))
        return 1e9 / usual_ns if usual_ns > 0 else None

    def since_last_report(self) -> tuple[int, float | None]:
        """Messages since this was last asked, and their rate by stamps (Hz), None where stamps do not tell."""
        count = self.messages - self._reported
        before, self._reported_stamp_ns = self._reported_stamp_ns, self.last_stamp_ns
        self._reported = self.messages
        if not count or before is None or self.last_stamp_ns is None or self.last_stamp_ns <= before:
            return count, None
        return count, count / ((self.last_stamp_ns - before) * 1e-9)

    def age_s(self, now_s: float) -> float | None:
        """Seconds since the last message, None before the first."""
        return None if self.last_arrival_s is None else now_s - self.last_arrival_s


@dataclass
class EstimatorStatistics:
    """Everything that the estimator node counts between activation and deactivation."""

    imu: InputStatistics
    joints: InputStatistics
    drops: Counter[str] = field(default_factory=Counter)
    """What went wrong after pairing, by kind."""
    odometry_messages: int = 0
    step_time_s: deque[float] = field(default_factory=lambda: deque(maxlen=_HISTORY))
    latency_s: deque[float] = field(default_factory=lambda: deque(maxlen=_HISTORY))
    time_jumps: int = 0
    stationary: bool = False
    gyro_bias: FloatArray | None = None
    """(3,) rad/s, of an estimator that tells it."""
    agreement: float = 1.0
    """Share of the last second or so in which a foot bore out the velocity (`trace_ros.checks.footing`)."""
    doubtful: bool = False
    """Whether there is too little of that."""
    timing: str = ""
    """What `trace_ros.checks.timing_watch` has found."""
    timing_shares: FloatArray | None = None
    """(3,) by which it found it."""
    fault: str = ""
    """What keeps the node from estimating at present; empty when nothing does."""
    _reported_drops: Counter[str] = field(default_factory=Counter)
    _reported_odometry: int = 0
    _reported_jumps: int = 0

    def new_faults(self, streams: Mapping[str, int]) -> Counter[str]:
        """Faults by kind since this was last asked, with those of the streams."""
        total = self.all_faults(streams)
        fresh = total - self._reported_drops
        self._reported_drops = total
        return fresh

    def all_faults(self, streams: Mapping[str, int]) -> Counter[str]:
        """Faults by kind since activation, with those of the streams."""
        return self.drops + Counter(streams)

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
        stream_counts: faults by kind that the streams counted.
        publishers: what is known of the publishers of each topic, in words.
        facts: further keys and values.
        now_ns: the node's clock, to which stamps are compared; None for no ages by stamp.
        faults: what makes odometry nonsense or keeps it from being published.
        warnings: what makes it worse, or may.
    """

    now_s: float
    period_s: float
    sensor_timeout_s: float
    stream_counts: Mapping[str, int]
    publishers: Mapping[str, str]
    facts: Mapping[str, str]
    now_ns: int | None = None
    faults: Sequence[str] = ()
    warnings: Sequence[str] = ()


def report(statistics: EstimatorStatistics, situation: Situation) -> tuple[bytes, str, dict[str, str]]:
    """Level, message, and values of one diagnostic status."""
    fresh = Counter(
        {kind: n for kind, n in statistics.new_faults(situation.stream_counts).items() if _worth_a_warning(kind)}
    )
    odometry, jumps = statistics.new_odometry(), statistics.new_jumps()
    values = dict(situation.facts)
    silent: list[str] = []
    warnings: list[str] = []
    interval_s = None
    for name, stream in (("imu", statistics.imu), ("joint_states", statistics.joints)):
        age = stream.age_s(situation.now_s)
        count, rate = stream.since_last_report()
        values[f"{name} messages"] = str(stream.messages)
        values[f"{name} rate (Hz)"] = f"{count / situation.period_s:.1f}"
        values[f"{name} rate by stamp (Hz)"] = "unknown" if rate is None else f"{rate:.1f}"
        values[f"{name} age (s)"] = "never received" if age is None else f"{age:.3f}"
        if situation.now_ns is not None and stream.last_stamp_ns is not None:
            values[f"{name} age by stamp (s)"] = f"{(situation.now_ns - stream.last_stamp_ns) * 1e-9:.3f}"
        if name == "imu" and rate:
            interval_s = 1.0 / rate
        if age is None or age > situation.sensor_timeout_s:
            since = "yet" if age is None else f"for {age:.1f} s"
            silent.append(f"no message on {stream.topic} {since} ({situation.publishers.get(stream.topic, 'unknown')})")
    values["time jumps"] = str(statistics.time_jumps)
    values["odometry rate (Hz)"] = f"{odometry / situation.period_s:.1f}"
    values["odometry messages"] = str(statistics.odometry_messages)
    values.setdefault("stationary", str(statistics.stationary).lower())
    if statistics.gyro_bias is not None:
        values["gyro bias (rad/s)"] = " ".join(f"{axis:.5f}" for axis in statistics.gyro_bias)
    values["a foot bears out the velocity (share of time)"] = f"{statistics.agreement:.2f}"
    if statistics.timing_shares is not None:
        shares = " ".join(f"{share:.2f}" for share in statistics.timing_shares)
        values[f"feet agree as paired, with joints {ASIDE_S * 1e3:g} ms later, earlier (share of time)"] = shares
    values["step time (ms)"] = percentiles(statistics.step_time_s)
    values["latency, stamp to published (ms)"] = percentiles(statistics.latency_s)
    for kind, count in sorted(statistics.all_faults(situation.stream_counts).items()):
        values[f"{_action(kind)}: {kind}"] = str(count)
    warnings += situation.warnings
    by_action: dict[str, list[str]] = {}
    for kind, count in sorted(fresh.items()):
        by_action.setdefault(_action(kind), []).append(f"{count} {kind}")
    warnings += [f"{action} {', '.join(kinds)}" for action, kinds in by_action.items()]
    if statistics.doubtful:
        warnings.append(DOUBTFUL)
    if statistics.timing:
        warnings.append(statistics.timing)
    if jumps:
        warnings.append("time jumped back: the estimator started anew")
    if interval_s is not None and len(statistics.step_time_s) >= _SLOW:
        typical = float(np.median(np.fromiter(statistics.step_time_s, dtype=float)))
        if typical > interval_s:
            warnings.append(f"a step takes {typical * 1e3:.2f} ms, longer than the IMU's {interval_s * 1e3:.2f} ms")
    if not odometry and not silent and not statistics.fault and not situation.faults:
        warnings.append("the inputs arrive but gave no odometry yet")
    faults = [*([statistics.fault] if statistics.fault else []), *situation.faults]
    if faults:
        return ERROR, "; ".join(faults), values
    if silent:
        return STALE, "; ".join((*silent, *situation.warnings)), values
    if warnings:
        return WARN, "; ".join(warnings), values
    return OK, "estimating", values


class LevelHold:
    """Hysteresis: a status gets worse at once, and better only when it has been better for a while."""

    def __init__(self) -> None:
        self._level: bytes | None = None
        self._message = ""
        self._better_since_s: float | None = None
        self._was_ok = False

    def update(self, now_s: float, level: bytes, message: str, hold_s: float) -> tuple[bytes, str]:
        """The level and the message to tell.

        Args:
            now_s: steady clock.
            level, message: as found now.
            hold_s: how long it must have been better. The first OK is told at once: before it, nothing had worked that
                could come and go.
        """
        held = self._level
        better = held is not None and _SEVERITY[level] < _SEVERITY[held]
        if better and (self._was_ok or level != OK):
            if self._better_since_s is None:
                self._better_since_s = now_s
            if now_s - self._better_since_s < hold_s:
                assert held is not None
                return held, f"{self._message} (over since {now_s - self._better_since_s:.1f} s)"
        self._level, self._message, self._better_since_s = level, message, None
        self._was_ok = self._was_ok or level == OK
        return level, message


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


def percentiles(series: Sequence[float] | deque[float]) -> str:
    """p50, p99 and largest of times (s), in ms, in words."""
    if not series:
        return "none yet"
    p50, p99, largest = np.percentile(np.fromiter(series, dtype=float), (50, 99, 100)) * 1e3
    return f"p50 {p50:.2f}, p99 {p99:.2f}, max {largest:.2f}"


def _action(kind: str) -> str:
    return KINDS[kind].action if kind in KINDS else "dropped"


def _worth_a_warning(kind: str) -> bool:
    return KINDS[kind].warns if kind in KINDS else True
