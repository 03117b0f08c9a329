"""A log while the robot stands: gravity, joints and feet by the checks of a start; and how much it stands and turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from trace_ros.checks.findings import Finding
from trace_ros.checks.log_findings import FindingName, LogCheckSettings, LogReport
from trace_ros.checks.setup import check_feet, check_gravity, check_joint_ranges
from trace_ros.checks.startup import stands_still
from trace_ros.logs import FloatArray, SensorLog
from trace_ros.robot import RobotDescription

_MOVING = 0.5
"""rad/s; the robot moves where the mean of its joints' speeds is above."""
_MOST_WINDOWS = 60


def windows(log: SensorLog, seconds: float) -> list[slice]:
    """Pieces of the log of this length without pauses."""
    interval = np.diff(log.stamp_ns)
    usual = float(np.median(interval)) * 1e-9
    count = max(2, round(seconds / usual))
    breaks = np.concatenate(([0], np.flatnonzero(interval > 5e9 * usual) + 1, [len(log)]))
    return [
        slice(start, start + count)
        for first, last in pairwise(breaks.tolist())
        for start in range(first, last - count + 1, count)
    ]


def moving_mask(log: SensorLog) -> FloatArray:
    """1 where the robot moves, else 0, over a quarter of a second. ``(N,)``"""
    reach = max(1, round(0.25 * log.rate_hz))
    # Net movement over the window, so that noise of encoders does not count.
    later = np.minimum(np.arange(len(log)) + reach, len(log) - 1)
    earlier = np.maximum(np.arange(len(log)) - reach, 0)
    middle = log.joint_position
    moved = np.abs(middle[later] - middle).max(axis=1) + np.abs(middle - middle[earlier]).max(axis=1)
    seconds = (log.stamp_ns[later] - log.stamp_ns[earlier]) * 1e-9
    return np.asarray(moved / np.maximum(seconds, 1e-3) > _MOVING, dtype=float)


def check_motion(log: SensorLog, report: LogReport, limits: LogCheckSettings) -> None:
    """How much the log shows, and whether the gyro can be in rad/s."""
    moving = moving_mask(log)
    interval = np.diff(log.stamp_ns) * 1e-9
    interval = np.where(interval < 1.0, interval, 0.0)
    walking = float((moving[1:] * interval).sum())
    turning = float((np.abs(_slow_yaw_rate(log))[1:] * interval).sum())
    report.values["motion"] = {"duration_s": log.duration_s, "walking_s": walking, "turning_rad": turning}
    report.fact(
        "motion",
        f"{log.duration_s:.1f} s, of which the legs move for {walking:.1f} s; turns of {np.degrees(turning):.0f} "
        "degrees in all",
    )
    if log.rate_hz < limits.slowest and not any(finding.name == "slow" for finding in report.findings):
        report.find(
            "remark",
            "slow",
            "log",
            f"has {log.rate_hz:.0f} samples a second: odometry from fewer than {limits.slowest:.0f} is much worse",
            "raise the drivers' rate: 200 to 500 Hz",
        )
    if walking < limits.walking:
        report.find(
            "remark",
            "little_motion",
            "motion",
            f"the legs move for {walking:.1f} s only: order and signs of the legs can hardly be told from that",
            "record half a minute or more of walking, with turns and sideways steps",
        )
    elif turning < limits.turning and not report.is_fault("gravity"):
        report.find(
            "remark",
            "little_turning",
            "motion",
            f"it turns by {np.degrees(turning):.0f} degrees in all: clocks, frames and swapped legs show in turns",
            "record a walk with turns to both sides",
        )
    if float(np.quantile(np.abs(log.angular_velocity).max(axis=1), 0.95)) > limits.fastest_turn:
        report.find(
            "fault",
            "gyro_units",
            "gyro",
            f"it often reads more than {limits.fastest_turn:.0f} rad/s: these are degrees per second",
            "multiply by pi / 180 in the driver (REP-103: rad/s)",
        )


def _slow_yaw_rate(log: SensorLog) -> FloatArray:
    """Turn rate about the body's z, mean over a second, so that the rocking of a gait does not count. ``(N,)``"""
    count = max(1, round(log.rate_hz))
    rate = log.angular_velocity[:, 2]
    if rate.size <= count:
        return np.full(rate.size, float(rate.mean()))
    return np.asarray(np.convolve(rate, np.full(count, 1 / count), mode="same"))


def check_rest(log: SensorLog, robot: RobotDescription, report: LogReport, limits: LogCheckSettings) -> None:
    """Gravity and feet of the windows in which the robot stands, else the mean gravity of all motion; joint ranges."""
    pieces = windows(log, limits.window)
    still = [
        piece
        for piece in pieces
        if stands_still(
            robot,
            log.joint_position[piece],
            log.linear_acceleration[piece],
            log.angular_velocity[piece],
            limits,
        )
    ]
    judged = [still[k] for k in np.unique(np.linspace(0, len(still) - 1, _MOST_WINDOWS).astype(int))] if still else []
    found = [
        _judge(log.linear_acceleration[piece].mean(axis=0), np.median(log.joint_position[piece], axis=0), robot, limits)
        for piece in judged
    ]
    whole = log.linear_acceleration.mean(axis=0)
    if judged:
        force = np.median([log.linear_acceleration[piece].mean(axis=0) for piece in judged], axis=0)
        report.fact("gravity", f"standing for {len(still) * limits.window:.1f} s: {_vector(force)} m/s^2")
    else:
        force = whole
        report.fact("gravity", f"never stands; mean over the log: {_vector(force)} m/s^2")
        found = [list(check_gravity(robot, force, np.median(log.joint_position, axis=0), limits))]
    report.values["gravity_mps2"] = [float(value) for value in force]
    _add(_common(found), report)
    in_motion = [check_joint_ranges(robot, np.median(log.joint_position[piece], axis=0), limits) for piece in pieces]
    _add(_common([list(findings) for findings in in_motion]), report)


def _judge(force: FloatArray, position: FloatArray, robot: RobotDescription, limits: LogCheckSettings) -> list[Finding]:
    gravity = list(check_gravity(robot, force, position, limits))
    # Feet are judged by what is up; joints that cannot be true are told by themselves.
    if gravity or list(check_joint_ranges(robot, position, limits)):
        return gravity
    return list(check_feet(robot, force, position, limits))


def _common(found: Iterable[list[Finding]]) -> list[Finding]:
    """Findings of a subject that most windows have, in the words of the middle one."""
    found = list(found)
    counts = Counter((finding.level, finding.subject) for findings in found for finding in findings)
    common = []
    for (level, subject), count in counts.items():
        if count > len(found) / 2:
            same = [f for findings in found for f in findings if (f.level, f.subject) == (level, subject)]
            kinds = Counter(_kind(f.text) for f in same)
            # Two things can be wrong with one subject; where each window words it otherwise, one stands for all.
            often = [kind for kind, times in kinds.items() if times > len(found) / 2] or [kinds.most_common(1)[0][0]]
            for kind in often:
                alike = [f for f in same if _kind(f.text) == kind]
                common.append(alike[len(alike) // 2])
    return common


def _kind(text: str) -> str:
    """What is said, without the numbers."""
    return "".join(letter for letter in text if letter.isalpha() or letter == " ")


def _add(findings: list[Finding], report: LogReport) -> None:
    for finding in findings:
        name, remedy = _REMEDIES[finding.subject]
        report.find("fault" if finding.level == "fault" else "remark", name, finding.subject, finding.text, remedy)


_COMPARE = "compare with `trace robot check`, and say what differs under joint_messages in the robot file"
_REMEDIES: dict[str, tuple[FindingName, str]] = {
    "gravity": (
        "gravity",
        "the driver must give specific force in m/s^2, +9.81 on z at rest (REP-145), in axes as imu.rpy of the robot "
        "file has them; the node turns those of an IMU that is mounted otherwise (imu_mounting)",
    ),
    "joints": ("joints", _COMPARE),
    "feet": ("feet", _COMPARE),
}


def _vector(values: FloatArray) -> str:
    return " ".join(f"{value:+.2f}" for value in values)
