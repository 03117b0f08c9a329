"""Is a log good? Everything that can be told of it before anything is trained or run, on one page with one verdict."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trace_ros.bags import BagReport, ReadSettings, Topics, read_log
from trace_ros.checks.joint_timing import check_joint_timing, tell_joint_timing
from trace_ros.checks.log_findings import Level, LogCheckSettings, LogFinding, LogReport
from trace_ros.checks.log_joints import check_joint_velocity, check_torque
from trace_ros.checks.log_legs import check_legs
from trace_ros.checks.log_messages import check_clocks, check_overlap, check_samples, check_topics, read_stamps
from trace_ros.checks.log_reference import check_reference
from trace_ros.checks.log_rest import check_motion, check_rest
from trace_ros.logs import SensorLog
from trace_ros.robot import RobotDescription
from trace_ros.streams import KINDS

_BY_STAMPS = ("imu_gap", "joints_gap", "imu_before_joints")
"""Kinds of faults that the stamps have told already, or that every recording has."""
_FEWEST = 100
"""Samples; a shorter log shows nothing."""


def check_log_file(
    path: Path,
    robot: RobotDescription,
    topics: Topics | None = None,
    limits: LogCheckSettings | None = None,
    settings: ReadSettings | None = None,
    tell: Callable[[str], None] = lambda _text: None,
) -> LogReport:
    """Look at a bag, or at a ``.npz`` or ``.csv`` log, whose samples stand for the messages, which are not known.

    Args:
        path: of the log.
        robot: whose it is.
        topics: names, where not the usual ones.
        limits: of the checks.
        settings: of the reading.
        tell: called with what is being done.

    Raises:
        TraceError: the log cannot be read at all.
    """
    limits = limits or LogCheckSettings()
    tell(f"reading {path}")
    log, read = read_log(path, robot, topics, settings)
    report = LogReport(str(path), robot.name)
    if read is not None:
        names = (read.imu_topic, read.joint_topic, *((read.reference_topic,) if read.reference_topic else ()))
        stamps = read_stamps(path, names)
        check_topics(stamps, read.reference_topic, report, limits)
        check_overlap(stamps, report, limits)
        check_clocks(stamps[:2], report, limits)
        _add_reading(read, report)
    else:
        check_samples(log.stamp_ns, report, limits)
    check_log(log, robot, report, limits, tell)
    return report


def check_log(
    log: SensorLog,
    robot: RobotDescription,
    report: LogReport | None = None,
    limits: LogCheckSettings | None = None,
    tell: Callable[[str], None] = lambda _text: None,
) -> LogReport:
    """The same of a log in memory. Findings are added to the report, which is returned.

    With a report, the messages have been looked at already; without one, the samples' stamps stand for theirs.
    """
    limits = limits or LogCheckSettings()
    if report is None:
        report = LogReport("", robot.name)
        check_samples(log.stamp_ns, report, limits)
    if len(log) < _FEWEST:
        report.find("fault", "short", "log", f"has {len(log)} samples only", "record half a minute or more of walking")
        return report
    tell("motion and gravity")
    check_rest(log, robot, report, limits)
    check_motion(log, report, limits)
    tell("joints and legs")
    check_joint_velocity(log, robot, report, limits)
    timing = check_joint_timing(log, robot, report)
    # Late joints fit other arrangements better than their own.
    check_legs(log, robot, report, limits, timing.delay_s if timing is not None and timing.significant else 0.0)
    tell_joint_timing(timing, report, limits)
    check_torque(log, robot, report, limits)
    tell("reference")
    check_reference(log, robot, report, limits)
    report.findings.sort(key=lambda finding: finding.level != "fault")
    return report


def _add_reading(read: BagReport, report: LogReport) -> None:
    """What the reader had to drop or repair."""
    for name, count in sorted(read.faults.items()):
        kind = KINDS[name]
        if name in _BY_STAMPS or not kind.warns:
            continue
        topic, messages = (
            (read.joint_topic, read.joint_messages)
            if name.startswith("joints_")
            else (read.imu_topic, read.imu_messages)
        )
        level: Level = "fault" if kind.action == "dropped" and count > messages / 2 else "remark"
        text = f"{count} of {messages} messages {kind.action}: {kind.text}: {kind.cause}"
        report.findings.append(LogFinding(level, name, topic, text, "see the kinds in docs/troubleshooting.md"))
    if read.time_lines > 1:
        report.find(
            "remark",
            "time_jumps",
            "clocks",
            f"stamps jumped back {read.time_lines - 1} times: a clock that was set, a simulation that was reset, or "
            "two recordings in one; the longest part was looked at",
            "cut the recording there",
        )
