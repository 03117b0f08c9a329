"""How late a robot's joint readings are, found in logs and told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from trace_ros.checks.joint_timing import JointTiming, joint_timing
from trace_ros.checks.log_findings import LogCheckSettings, LogReport
from trace_ros.checks.log_legs import check_legs
from trace_ros.cli.common import progress_bar, say
from trace_ros.logs import SensorLog
from trace_ros.robot import RobotDescription


class Timing(NamedTuple):
    """How late joint readings are, by what logs tell.

    Attributes:
        delay_s: what is to be taken for true, s.
        found: what was found, for a report; None where nothing can be told.
        text: both in words.
    """

    delay_s: float
    found: dict[str, Any] | None
    text: str


def find_and_tell(
    logs: Sequence[SensorLog], names: Sequence[str], robot: RobotDescription, believed_s: float
) -> tuple[float, dict[str, Any] | None]:
    """As `find_timing`, for one fit to all of the logs; says what came of it."""
    delay, found, text = find_timing(logs, names, robot, believed_s, "fit logs of one unit as it is now")
    say(text)
    return delay, found


def find_timing(
    logs: Sequence[SensorLog], names: Sequence[str], robot: RobotDescription, believed_s: float, advice: str
) -> Timing:
    """How much older the joint readings of logs are than their IMU's, in all of them alike.

    Args:
        logs: as they are stamped.
        names: of them.
        robot: that walked.
        believed_s: what the model takes for true, s; it stays where nothing else is significant, where the logs do not
            agree, or where their legs are not what they are taken for.
        advice: what to do about logs that do not agree.
    """
    what = names[0] if len(names) == 1 else f"{len(names)} logs"
    with progress_bar() as progress:
        task = progress.add_task("timing of the joints", total=1.0)
        found = joint_timing(logs, robot, believed_s, lambda share: progress.update(task, completed=share))
    left = f"left at {believed_s * 1e3:g} ms"
    if found is None:
        return Timing(
            believed_s,
            None,
            f"timing of the joints: not to be told from {what}: too little walking, or two clocks; {left}",
        )
    told = f"timing of the joints: {found.text} ({found.windows} pieces of {what})"
    delay = round(found.delay_s, 4)
    if not found.alike:
        told, delay = f"{told}, but the logs differ: {_each(found, names)}; {left}: {advice}", believed_s
    elif not found.significant:
        told, delay = f"{told}: nothing significant, {left}", believed_s
    elif faulty := _faulty(logs, names, robot, found.delay_s):
        told, delay = f"{told}, but {faulty}: {left}; see trace bag check", believed_s
    else:
        before, after = found.agreement
        told = f"{told}: feet agree for {before:.3f} -> {after:.3f} of the time with that put right"
    return Timing(delay, {**found._asdict(), "taken_s": delay}, told)


def tell_others(logs: Sequence[SensorLog], names: Sequence[str], robot: RobotDescription, delay: float) -> None:
    """Say so where logs that nothing was found in are late by something else (s)."""
    for log, name in zip(logs, names, strict=True):
        found = joint_timing([log], robot, delay)
        if found is not None and found.significant and abs(found.delay_s - delay) > LogCheckSettings().joint_delay:
            say(f"note: {name}: {found.text}, and taken to be {delay * 1e3:g} ms: another unit, or another driver?")


def _each(found: JointTiming, names: Sequence[str]) -> str:
    pairs = zip(names, found.by_log, strict=True)
    return ", ".join(f"{name} {delay * 1e3:.1f} ms" for name, delay in pairs if delay is not None)


def _faulty(logs: Sequence[SensorLog], names: Sequence[str], robot: RobotDescription, delay: float) -> str:
    """What is wrong with the legs of the first log that has such a fault, else nothing."""
    for log, name in zip(logs, names, strict=True):
        report = LogReport(name, robot.name)
        check_legs(log, robot, report, LogCheckSettings(), delay)
        if report.findings:
            return f"of {name}, {report.findings[0].text}"
    return ""
