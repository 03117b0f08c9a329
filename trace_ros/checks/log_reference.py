"""A log's reference: clock, frame, gaps and jumps, and whether its twist is that of the body."""

from __future__ import annotations

import numpy as np

from trace_ros.checks.log_findings import FindingName, LogCheckSettings, LogReport
from trace_ros.errors import TraceError
from trace_ros.logs import FloatArray, SensorLog, Trajectory
from trace_ros.references import CleanReference, ReferenceSettings, clean_reference
from trace_ros.robot import RobotDescription

_TWIST_SPEED = 0.1
"""m/s; a reference that moves less shows no frame of its twist."""
_TWIST_TIME = 1.0
"""s over which twist and steps of the position are compared: noise of positions hardly matters then."""
_TWIST_FITS = 0.5
"""Part of the motion that a twist may leave unexplained."""


def check_reference(log: SensorLog, robot: RobotDescription, report: LogReport, limits: LogCheckSettings) -> None:
    """Everything about the reference; nothing where there is none."""
    reference = log.reference
    if reference is None:
        report.fact("reference", "none: clock, frame and gyro are not compared with one")
        return
    if len(reference) < 4:
        poses = f"{len(reference)} pose{'s' * (len(reference) != 1)}"
        report.find("remark", "reference_short", "reference", f"has {poses} only", "record it throughout")
        return
    rate = 1e9 / float(np.median(np.diff(reference.stamp_ns)))
    try:
        clean = clean_reference(reference, log, robot.imu.position, ReferenceSettings())
    except TraceError as error:
        text = str(error).removeprefix("reference: ")
        remedy = "record it at 10 Hz or more, in metres, with the other topics"
        report.find("remark", "reference_unusable", "reference", text, remedy)
        return
    report.values["reference"] = clean.to_dict() | {"rate_hz": rate, "path_m": reference.path_length_m}
    report.fact("reference", f"{len(reference)} poses at {rate:.1f} Hz, {reference.path_length_m:.1f} m of way")
    _check_clock(clean, report, limits)
    # An IMU that is turned, or an accelerometer that is wrong, would be blamed on the reference.
    if not report.is_fault("gravity", "gyro_units", "imu_turned", "gyro_sign"):
        _check_frame(clean, report, limits)
    _check_pieces(clean, report, limits)
    _check_twist(reference, report)


def _check_clock(clean: CleanReference, report: LogReport, limits: LogCheckSettings) -> None:
    clock = clean.clock
    if clock is None:
        cause = next((note for note in clean.notes if "stamps are taken" in note), "")
        report.fact("reference clock", cause)
        if "cannot be told" in cause:
            report.find(
                "remark",
                "reference_disagrees",
                "reference",
                "its rotations are not those of the gyro at any time offset: another robot's or body's pose, mirrored "
                f"axes, or much noise ({cause})",
                "look at the yaw of both in a plot; REP-103: x forward, y left, z up",
            )
        return
    report.fact(
        "reference clock",
        f"{clock.latency:+.4f} +- {clock.sigma:.4f} s late by angular motion (correlation {clock.correlation:.2f})",
    )
    if abs(clock.seconds) > max(limits.clock, 3 * clock.sigma):
        late = "late" if clock.latency > 0 else "early"
        report.find(
            "remark",
            "reference_clock",
            "reference",
            f"its stamps are {abs(clock.seconds):.3f} s {late} (+- {clock.sigma:.3f} s) against the IMU's: another "
            "clock, or stamps of when the pose was ready instead of when it was measured",
            "stamp it when it is measured, by the IMU's clock; `trace finetune` takes the offset out by itself",
        )


def _check_frame(clean: CleanReference, report: LogReport, limits: LogCheckSettings) -> None:
    rpy, place = np.asarray(clean.offset.rpy), np.asarray(clean.offset.position)
    clock = clean.clock
    angle = float(np.linalg.norm(clock.rotation.as_rotvec())) if clock is not None else 0.0
    degrees = np.degrees(rpy)
    inertial = clean.inertial
    tilt = "" if inertial is None else f"; its world is tilted by {np.degrees(inertial.tilt):.1f} degrees"
    report.fact(
        "reference frame",
        f"body turned by {degrees[0]:.1f} {degrees[1]:.1f} {degrees[2]:.1f} degrees, off by {place[0]:.3f} "
        f"{place[1]:.3f} {place[2]:.3f} m{tilt}",
    )
    turned = angle > limits.frame and bool(rpy.any())
    off = bool(np.linalg.norm(place) > limits.place)
    if turned or off:
        parts = [
            *([f"turned by roll {degrees[0]:.1f}, pitch {degrees[1]:.1f}, yaw {degrees[2]:.1f} degrees"] * turned),
            *([f"off by {place[0]:+.2f}, {place[1]:+.2f}, {place[2]:+.2f} m"] * off),
        ]
        report.find(
            "remark",
            "reference_frame",
            "reference",
            f"its body is {' and '.join(parts)} in the base: it is the pose of a sensor or of markers (or the IMU is "
            "turned against the body)",
            "publish the pose of the base; `trace finetune` takes the offset out by itself, or by what it is given",
        )
    if clean.levelled > limits.frame:
        report.find(
            "remark",
            "reference_tilted",
            "reference",
            f"its world is tilted by {np.degrees(clean.levelled):.1f} degrees against gravity: it began on a slope, or "
            "markers were defined askew",
            "level its world; `trace finetune` does so by itself",
        )


_CUTS: tuple[tuple[str, FindingName, str], ...] = (
    ("gap", "reference_gap", "it was lost, or markers were hidden"),
    ("jump", "reference_jump", "a loop closure, a swapped marker, or a lost match"),
    ("stuck", "reference_stuck", "it repeats its last pose where it has none"),
)


def _check_pieces(clean: CleanReference, report: LogReport, limits: LogCheckSettings) -> None:
    covered = float(clean.valid.mean())
    report.fact("reference pieces", f"{clean.segments.count}; they cover {100 * covered:.1f} % of the log")
    for kind, name, cause in _CUTS:
        cuts = [cut for cut in clean.segments.cuts if cut.kind == kind]
        if cuts:
            worst = max(cuts, key=lambda cut: (cut.size, cut.angle))
            unit = "m" if kind == "jump" else "s"
            angle = f" and {np.degrees(worst.angle):.0f} degrees" if worst.angle > limits.frame else ""
            report.find(
                "remark",
                name,
                "reference",
                f"{_counted(kind, len(cuts))}, the worst "
                f"{worst.size:.2f} {unit}{angle} at {worst.start:.2f} s: {cause}",
                "nothing is compared or trained across it",
            )
    if covered < limits.covered:
        report.find(
            "remark",
            "reference_coverage",
            "reference",
            f"covers {100 * covered:.0f} % of the log",
            "what it does not cover is neither compared nor trained on",
        )


def _counted(kind: str, count: int) -> str:
    if kind == "stuck":
        return "stuck once" if count == 1 else f"stuck {count} times"
    return f"one {kind}" if count == 1 else f"{count} {kind}s"


def _check_twist(reference: Trajectory, report: LogReport) -> None:
    """The twist is the body's velocity in the body frame (nav_msgs/Odometry), and not in the world."""
    if not reference.velocity.any():
        return
    seconds = (reference.stamp_ns - reference.stamp_ns[0]) * 1e-9
    interval = np.diff(seconds)
    reach = max(1, round(_TWIST_TIME / float(np.median(interval))))
    if len(reference) < 4 * reach:
        return
    step = reference.position[reach:] - reference.position[:-reach]
    duration = (seconds[reach:] - seconds[:-reach])[:, None]
    usual = (duration[:, 0] < 1.5 * _TWIST_TIME) & (np.linalg.norm(step, axis=1) < 5 * duration[:, 0])
    moved = step / duration

    def mean(velocity: FloatArray) -> FloatArray:
        parts = (velocity[1:] + velocity[:-1]) / 2 * interval[:, None]
        running = np.vstack((np.zeros(3), np.cumsum(parts, axis=0)))
        return np.asarray((running[reach:] - running[:-reach]) / duration)

    def unexplained(velocity: FloatArray) -> float:
        return float(np.sqrt(((mean(velocity) - moved)[usual] ** 2).mean()) / size)

    size = float(np.sqrt((moved[usual] ** 2).mean())) if usual.any() else 0.0
    if size * np.sqrt(3) < _TWIST_SPEED:
        return
    body = unexplained(reference.rotation_world_body.apply(reference.velocity))
    world = unexplained(reference.velocity)
    if body < _TWIST_FITS:
        return
    cause = "it is in the world frame" if world < _TWIST_FITS else "another unit or frame, or much noise in either"
    report.find(
        "remark",
        "reference_twist",
        "reference",
        f"its twist is not the derivative of its position in its child frame: {cause}",
        "nav_msgs/Odometry wants the twist in child_frame_id; leave it zero where there is none",
    )
