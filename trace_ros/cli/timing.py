"""How late a robot's joint readings are, found in logs and told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trace_ros.checks.joint_timing import joint_timing
from trace_ros.cli.common import progress_bar, say
from trace_ros.logs import SensorLog
from trace_ros.robot import RobotDescription


def find_and_tell(
    logs: Sequence[SensorLog], robot: RobotDescription, believed_s: float, what: str
) -> tuple[float, dict[str, Any] | None]:
    """How much older the joint readings of logs are than their IMU's, and what was found, for a report.

    Args:
        logs: as they are stamped.
        robot: that walked.
        believed_s: what the model takes for true, s; where nothing else is significant, it stays.
        what: they are, for the line that is printed.
    """
    with progress_bar() as progress:
        task = progress.add_task("timing of the joints", total=1.0)
        found = joint_timing(logs, robot, believed_s, lambda share: progress.update(task, completed=share))
    if found is None:
        say(f"how late the joint readings are cannot be told from {what}: too little walking, or clocks that differ")
        return believed_s, None
    delay = round(found.delay_s, 4) if found.significant else believed_s
    feet = f"feet agree for {found.agreement[0]:.3f} -> {found.agreement[1]:.3f} of the time"
    verdict = f"put right; {feet}" if found.significant else f"left at {believed_s * 1e3:g} ms, nothing significant"
    say(f"timing of the joints: {found.text} ({found.windows} pieces of {what}): {verdict}")
    return delay, {**found._asdict(), "delay_s": delay, "found_s": found.delay_s}
