"""The messages of a recording by their stamps alone: rates, losses, pauses, overlap, and the clocks of the topics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trace_ros.bags.info import stamp_in
from trace_ros.bags.storage import open_bag
from trace_ros.checks.log_findings import LogCheckSettings, LogReport
from trace_ros.logs import IntArray

_PAUSE = 1.0
"""s; a longer interval is a pause of the recording and no loss."""
_HOLE = 1.5
"""Usual intervals beyond which messages are missing."""


@dataclass(frozen=True)
class TopicStamps:
    """Stamps of one topic's messages, in order of recording.

    Attributes:
        name: of the topic.
        header_ns: (N,) as the sender has them; zeros where it gives none.
        recorded_ns: (N,) as the recorder has them.
    """

    name: str
    header_ns: IntArray
    recorded_ns: IntArray

    @property
    def stamps(self) -> IntArray:
        """(M,) those that count, in order, without repetitions."""
        return np.unique(self.header_ns if self.header_ns.any() else self.recorded_ns)

    @property
    def rate_hz(self) -> float:
        """By the median interval; 0 with fewer than two messages."""
        stamps = self.stamps
        return float(1e9 / np.median(np.diff(stamps))) if stamps.size > 1 else 0.0

    @property
    def lost(self) -> int:
        """How many messages are missing within pauses of up to a second.

        Stamps that were given on arrival come in packets with holes between; what came too soon makes up for those.
        """
        stamps = self.stamps
        if stamps.size < 3:
            return 0
        interval = np.diff(stamps) * 1e-9
        interval = interval[interval < _PAUSE]
        if not interval.size:
            return 0
        usual = float(np.median(interval))
        holes = int((np.round(interval[interval > _HOLE * usual] / usual) - 1).sum())
        return max(0, min(holes, round(float(interval.sum()) / usual) - interval.size))


def read_stamps(path: Path, topics: tuple[str, ...]) -> list[TopicStamps]:
    """Stamps of some topics of a bag whose messages begin with a header.

    Raises:
        TraceError: the bag cannot be read.
    """
    header: dict[str, list[int]] = {topic: [] for topic in topics}
    recorded: dict[str, list[int]] = {topic: [] for topic in topics}
    with open_bag(path) as bag:
        for connection, time, data in bag.messages(*topics):
            header[connection.topic].append(stamp_in(data))
            recorded[connection.topic].append(time)
    return [
        TopicStamps(topic, np.array(header[topic], dtype=np.int64), np.array(recorded[topic], dtype=np.int64))
        for topic in topics
    ]


def check_topics(topics: list[TopicStamps], reference: str | None, report: LogReport, limits: LogCheckSettings) -> None:
    """Each topic by itself."""
    for topic in topics:
        stamps = topic.stamps
        if stamps.size < 2:
            report.fact(topic.name, f"{topic.header_ns.size} messages")
            continue
        interval = np.diff(stamps) * 1e-9
        longest, lost = float(interval.max()), topic.lost
        part = lost / (lost + stamps.size)
        seconds = (stamps[-1] - stamps[0]) * 1e-9
        report.values[topic.name] = {
            "messages": int(topic.header_ns.size),
            "rate_hz": topic.rate_hz,
            "duration_s": float(seconds),
            "lost": lost,
            "lost_part": part,
            "longest_pause_s": longest,
        }
        report.fact(
            topic.name,
            f"{topic.header_ns.size} messages in {seconds:.2f} s, {topic.rate_hz:.1f} Hz, {lost} lost, longest pause "
            f"{longest:.3f} s",
        )
        if part > limits.lost:
            report.find(
                "fault" if part > limits.lost_fault else "remark",
                "messages_lost",
                topic.name,
                f"{100 * part:.1f} % of the messages are lost ({lost} of {lost + stamps.size}): a full queue of the "
                "recorder, a slow disk, or best-effort transport over a radio",
                "record on the robot, to a fast disk, with a larger --max-cache-size and a deeper queue",
            )
        if topic.name != reference:
            _check_pace(topic, longest, report, limits)


def check_samples(stamp_ns: IntArray, report: LogReport, limits: LogCheckSettings) -> None:
    """A log without messages, by the stamps (N,) ns of its samples."""
    check_topics([TopicStamps("samples", stamp_ns, stamp_ns)], None, report, limits)


def _check_pace(topic: TopicStamps, longest: float, report: LogReport, limits: LogCheckSettings) -> None:
    """Pauses and rate of IMU and joint states; those of the reference are judged with the reference."""
    if longest > max(limits.longest_pause, 5 / topic.rate_hz):
        report.find(
            "remark",
            "pause",
            topic.name,
            f"nothing for {longest:.2f} s: the driver stalled, or the recording was paused",
            "odometry begins anew after it; cut the log there where it is to be trained on",
        )
    if topic.rate_hz < limits.slowest:
        report.find(
            "remark",
            "slow",
            topic.name,
            f"comes at {topic.rate_hz:.0f} Hz: odometry from fewer than {limits.slowest:.0f} Hz is much worse",
            "raise the driver's rate: 200 to 500 Hz",
        )


def check_overlap(topics: list[TopicStamps], report: LogReport, limits: LogCheckSettings) -> None:
    """Whether joint states and reference span the time of the IMU, which is the first topic."""
    if any(topic.stamps.size < 2 for topic in topics):
        return
    imu = topics[0].stamps
    for topic in topics[1:]:
        stamps = topic.stamps
        shared = (min(imu[-1], stamps[-1]) - max(imu[0], stamps[0])) / (imu[-1] - imu[0])
        if shared < limits.overlap:
            where = "they do not meet at all" if shared <= 0 else f"{100 * shared:.0f} % of it"
            report.find(
                "fault" if shared <= 0 and topic is topics[1] else "remark",
                "overlap",
                topic.name,
                f"spans little of the IMU's time: {where}: started late or ended early, or stamped by another clock",
                "start all drivers before the recording, and let all stamp by the same clock",
            )


def check_clocks(topics: list[TopicStamps], report: LogReport, limits: LogCheckSettings) -> None:
    """Time from stamp to recording, which is transport and nothing else where all topics have the same clock.

    IMU (first) and joint states (second) must have the same; what differs for a reference is told by its motion.
    """
    delays = []
    for topic in topics:
        stamped = topic.header_ns > 0
        if not stamped.any():
            report.find(
                "remark",
                "no_stamps",
                topic.name,
                "its header stamps are all zero: a driver without a clock",
                "let the driver stamp its messages; until then the time of recording is used, with its jitter",
            )
            return
        delay = (topic.recorded_ns[stamped] - topic.header_ns[stamped]) * 1e-9
        delays.append(float(np.median(delay)))
        report.values.setdefault(topic.name, {})["stamp_to_recording_s"] = delays[-1]
    told = ", ".join(f"{topic.name} {delay:+.4f} s" for topic, delay in zip(topics, delays, strict=True))
    report.fact("stamp to recording", told)
    if len(delays) > 1 and abs(delays[0] - delays[1]) > limits.topic_clocks:
        report.find(
            "remark",
            "topic_clocks",
            "clocks",
            f"{topics[0].name} and {topics[1].name} differ by {abs(delays[0] - delays[1]):.3f} s in the time from "
            "stamp to recording: two clocks, or one driver that holds its messages back",
            "stamp both by the same clock, when they are measured",
        )
