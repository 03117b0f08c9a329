"""Joint velocity against the derivative of position, and joint torque against the robot's weight."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trace_ros.checks.log_findings import LogCheckSettings, LogReport
from trace_ros.checks.log_rest import moving_mask
from trace_ros.geometry import GRAVITY
from trace_ros.logs import JOINTS, LEGS, FloatArray, IntArray, SensorLog
from trace_ros.robot import RobotDescription

_SMOOTHING = 0.02
"""s; both are compared as means over it, which takes the noise of encoders away and leaves what legs do."""
_LEAST_MOVED = 0.02
"""rad; a joint that moves less while others walk is stuck."""
_CORRELATED = 0.8
_SLOWEST = 40.0
"""Hz; of fewer samples no derivative can be taken of a walking leg."""
_MOST_SAMPLES = 20_000
_DEGREES = 180 / np.pi
_BEYOND = 1.5
"""Torque limits that a plausible torque does not exceed."""


def check_joint_velocity(log: SensorLog, robot: RobotDescription, report: LogReport, limits: LogCheckSettings) -> None:
    """Sign, unit, order and presence of the joint velocities; joints that never move."""
    names = robot.reported_joint_names
    moving = moving_mask(log) > 0
    span = np.ptp(log.joint_position[moving], axis=0) if moving.any() else np.zeros(JOINTS)
    stuck = [names[joint] for joint in np.flatnonzero(span < _LEAST_MOVED)]
    if stuck and np.median(span) > 5 * _LEAST_MOVED:
        report.find(
            "fault",
            "joint_stuck",
            "joints",
            f"{', '.join(stuck)} never move while the others do: a dead encoder, or a driver that fills them in",
            "mend the encoder or the driver",
        )
    velocity = log.joint_velocity
    absent = 1.0 if velocity is None else float(np.isnan(velocity).any(axis=1).mean())
    if velocity is None or absent == 1:
        report.fact("joint velocity", "not reported; positions are differentiated instead")
        report.find(
            "remark",
            "velocity_missing",
            "joint velocity",
            "is not reported: positions are differentiated instead, which is noisier",
            "let the driver fill velocity",
        )
        return
    if absent > limits.lost:
        report.find(
            "remark",
            "velocity_missing",
            "joint velocity",
            f"is missing from {100 * absent:.1f} % of the samples",
            "let the driver fill velocity in every message",
        )
    fast = np.any(np.abs(velocity) > limits.fastest_joint, axis=1)
    if fast.any() and fast.mean() < 0.5:
        where = np.flatnonzero(fast)
        report.find(
            "remark",
            "velocity_spikes",
            "joint velocity",
            f"is beyond {limits.fastest_joint:.0f} rad/s in {where.size} samples, up to "
            f"{np.nanmax(np.abs(velocity)):.0f}, the first "
            f"{(log.stamp_ns[where[0]] - log.stamp_ns[0]) * 1e-9:.3f} s after the start: a driver that starts up, or "
            "that differentiates over a pause",
            "cut the log there",
        )
        log = replace(log, joint_velocity=np.where(fast[:, None], np.nan, velocity))
    if log.rate_hz < _SLOWEST:
        return
    derivative, smooth = _both(log)
    use = moving[: len(derivative)] & np.isfinite(smooth).all(axis=1) & np.isfinite(derivative).all(axis=1)
    if use.sum() < 50 or not derivative[use].any(axis=0).all():
        return
    derivative, smooth = derivative[use], smooth[use]
    if not smooth.any():
        report.find(
            "fault",
            "velocity_zero",
            "joint velocity",
            "is exactly zero while the positions change: the driver does not measure it",
            "leave the array empty in the driver where there is no velocity",
        )
        return
    together = np.corrcoef(derivative.T, smooth.T)[:JOINTS, JOINTS:]
    slope = (derivative * smooth).sum(axis=0) / (derivative**2).sum(axis=0)
    own = np.diag(together)
    report.values["velocity_slope"] = slope.tolist()
    report.fact("joint velocity", f"{slope.min():.2f} to {slope.max():.2f} times the derivative of position")
    bad = np.flatnonzero(~(np.abs(slope - 1) < limits.velocity_slope) | (own < _CORRELATED))
    if not bad.size:
        return
    listed = ", ".join(names[joint] for joint in bad)
    if (np.abs(slope / _DEGREES - 1) < limits.velocity_slope).all():
        cause, remedy = "it is in degrees per second", "multiply by pi / 180 in the driver"
    elif (own[bad] < -_CORRELATED).all():
        cause, remedy = "its sign is not that of the position", "give position, velocity and effort the same sign"
    elif (np.argmax(np.abs(together), axis=0)[bad] != bad).all():
        cause, remedy = "it is in another order than the positions", "fill all arrays in the order of the names"
    else:
        cause, remedy = (
            "another unit, a strong low-pass, or a late reading",
            "compare both in a plot; empty velocity is better than a wrong one",
        )
    report.find(
        "fault",
        "velocity_wrong",
        "joint velocity",
        f"of {listed} is no derivative of the position (ratio {slope[bad].min():.2f} to {slope[bad].max():.2f}): "
        f"{cause}",
        remedy,
    )


def _both(log: SensorLog) -> tuple[FloatArray, FloatArray]:
    """Derivative of position and velocity, each as its mean over `_SMOOTHING`, at the log's rate. ``(M, 12)`` each"""
    assert log.joint_velocity is not None
    count = max(1, round(_SMOOTHING * log.rate_hz))
    limited = slice(0, min(len(log) - count, _MOST_SAMPLES * max(1, len(log) // _MOST_SAMPLES)))
    stride = max(1, len(log) // _MOST_SAMPLES)
    start = np.arange(len(log))[limited][::stride]
    seconds = (log.stamp_ns[start + count] - log.stamp_ns[start]) * 1e-9
    derivative = (log.joint_position[start + count] - log.joint_position[start]) / seconds[:, None]
    # The trapezium between the two positions, so that both are of the same time.
    absent = np.asarray(np.isnan(log.joint_velocity).any(axis=1))
    velocity = np.where(absent[:, None], 0.0, log.joint_velocity)
    running = np.vstack((np.zeros(JOINTS), np.cumsum((velocity[1:] + velocity[:-1]) / 2, axis=0)))
    smooth = (running[start + count] - running[start]) / count
    gone = np.concatenate(([0], np.cumsum(absent)))
    whole = (seconds < 2 * count / log.rate_hz) & (gone[start + count + 1] == gone[start])
    derivative[np.flatnonzero(~whole)] = np.nan
    return derivative, smooth


def check_torque(log: SensorLog, robot: RobotDescription, report: LogReport, limits: LogCheckSettings) -> None:
    """Whether joint torques are there, within the motors' limits, and carry the robot."""
    torque = log.joint_torque
    if torque is None or np.isnan(torque).all():
        report.fact("joint torque", "not reported")
        report.find(
            "remark",
            "torque_missing",
            "joint torque",
            "is not reported (effort is empty): the network is told that there is none, and feels the ground less",
            "let the driver fill effort: the commanded torque, or kp (q_des - q) - kd dq, or what is measured",
        )
        return
    known = ~np.isnan(torque).any(axis=1)
    if not known.all():
        report.find(
            "remark",
            "torque_missing",
            "joint torque",
            f"is missing from {100 * (1 - known.mean()):.1f} % of the samples",
            "let the driver fill effort in every message",
        )
    index = np.flatnonzero(known)[:: max(1, len(log) // 4000)]
    values = torque[index]
    if not values.any():
        report.fact("joint torque", "exactly zero throughout")
        report.find(
            "fault",
            "torque_zero",
            "joint torque",
            "is exactly zero throughout: the driver does not measure it, and the network would take it for true",
            "leave effort empty in the driver where there is none",
        )
        return
    largest = np.quantile(np.abs(values), 0.99, axis=0)
    carried = _carried(values, log, index, robot) / (robot.mass * GRAVITY)
    source = log.torque_source.replace("_", " ")
    report.values["torque_carries"] = carried
    report.fact("joint torque", f"{source}; on average it carries {carried:.2f} times the robot's weight")
    beyond = np.flatnonzero(largest > _BEYOND * robot.torque_limits)
    if beyond.size:
        report.find(
            "remark",
            "torque_units",
            "joint torque",
            f"of {', '.join(robot.reported_joint_names[joint] for joint in beyond)} is often beyond the motors' "
            "limits: another unit (current, raw counts), or limits in the robot file that are too low",
            "the driver must give N m at the joint, behind the gear",
        )
    if report.is_fault("legs_swapped", "joint_sign", "joints", "gravity"):
        return
    low, high = limits.weight
    if -high < carried < -low:
        report.find(
            "fault",
            "torque_sign",
            "joint torque",
            f"carries {carried:.2f} times the robot's weight: its sign is not that of the joint positions",
            "turn the sign in the driver: positive effort moves the joint in its positive direction",
        )
    elif not low < carried < high:
        report.find(
            "remark",
            "torque_implausible",
            "joint torque",
            f"carries {carried:.2f} times the robot's weight on average where 1 is expected: another unit, or no "
            "torque at the joint, or a load on the robot",
            "the driver must give N m at the joint, behind the gear",
        )


def _carried(torque: FloatArray, log: SensorLog, index: IntArray, robot: RobotDescription) -> float:
    """Mean vertical force of the ground on the feet by the torques (statics: torque = -J^T force), N."""
    _, jacobian, _ = robot.kinematics.forward_and_jacobians(log.joint_position[index])
    matrix = np.swapaxes(jacobian, 2, 3)
    usable = np.abs(np.linalg.det(matrix)).min(axis=1) > 1e-4
    force = -np.linalg.solve(matrix[usable], torque[usable].reshape(-1, LEGS, 3)[..., None])[..., 0]
    up = log.linear_acceleration.mean(axis=0)
    up = up / max(float(np.linalg.norm(up)), 1e-9)
    return float((force @ up).sum(axis=1).mean()) if usable.any() else float("nan")
