"""Checks of a robot's readings against its description: units and signs of gravity, joints and feet, and the rate.

Each takes means over a short time and says what it found in one line with the likely cause.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trace_ros.checks.findings import CheckSettings, Finding
from trace_ros.geometry import GRAVITY
from trace_ros.robot import LEG_NAMES, RobotDescription

FloatArray = NDArray[np.float64]

_UPSIDE_DOWN = np.radians(150.0)
# The feet's plane tells what is level as long as it is something like level in the body.
_STANCE_TILT = np.radians(30.0)
# Magnitudes (m/s^2 where they should be) that tell the unit.
_FREE, _IN_G, _IN_MILLI_G = 0.05 * GRAVITY, (0.9, 1.1), (900.0, 1100.0)
_TURN = 2 * np.pi
_MOST_NAMES = 4


def check_gravity(
    robot: RobotDescription, specific_force: FloatArray, joint_position: FloatArray, settings: CheckSettings
) -> Iterator[Finding]:
    """Magnitude and direction of the specific force of a robot that stands still.

    Args:
        robot: its description.
        specific_force: (3,) m/s^2, mean, body frame.
        joint_position: (12,) rad, mean.
        settings: limits.
    """
    magnitude = float(np.linalg.norm(specific_force))
    where = f"the accelerometer reads {magnitude:.3g} at rest"
    if magnitude < _FREE:
        cause = "gravity has been taken out; have the driver publish specific force (REP-145: +9.81 on z at rest)"
        yield Finding("fault", "gravity", f"{where}: {cause}")
        return
    if _IN_G[0] <= magnitude <= _IN_G[1]:
        yield Finding("fault", "gravity", f"{where}: it is in units of g; multiply by 9.81 in the driver (REP-145)")
    elif _IN_MILLI_G[0] <= magnitude <= _IN_MILLI_G[1]:
        yield Finding("fault", "gravity", f"{where}: it is in thousandths of g; the driver must give m/s^2 (REP-145)")
    elif abs(magnitude - GRAVITY) > settings.gravity_fault * GRAVITY:
        yield Finding("fault", "gravity", f"{where}, expected 9.81 m/s^2: wrong units, or a broken sensor")
    elif abs(magnitude - GRAVITY) > settings.gravity * GRAVITY:
        yield Finding("warning", "gravity", f"{where}, expected 9.81 m/s^2: the accelerometer wants calibration")
    yield from _direction(robot, specific_force / magnitude, joint_position, settings)


def _direction(
    robot: RobotDescription, up: FloatArray, joint_position: FloatArray, settings: CheckSettings
) -> Iterator[Finding]:
    level = _up_by_the_feet(robot, joint_position)
    angle = float(np.arccos(np.clip(up @ level, -1.0, 1.0)))
    degrees = np.degrees(angle)
    if angle > _UPSIDE_DOWN:
        yield Finding(
            "fault",
            "gravity",
            "it points down where +9.81 on z is expected at rest (REP-145): the accelerometer's sign is reversed, or "
            "the IMU is mounted upside down (set imu_mounting to tf or urdf)",
        )
    elif angle > settings.tilt_fault:
        axis = int(np.argmax(np.abs(up)))
        name = f"{'+' if up[axis] > 0 else '-'}{'xyz'[axis]}"
        yield Finding(
            "fault",
            "gravity",
            f"it is felt along the body's {name} and not +z ({degrees:.0f} degrees off): the IMU is rotated in another "
            "way than imu.rpy of the robot file says (set imu_mounting to tf or urdf), or the robot lies on its side",
        )
    elif angle > settings.tilt:
        yield Finding(
            "warning",
            "gravity",
            f"it is {degrees:.0f} degrees off the normal of the plane through the feet: the IMU is mounted in another "
            "way than imu.rpy of the robot file says (set imu_mounting to tf or urdf), or the ground slopes as much",
        )


def _up_by_the_feet(robot: RobotDescription, joint_position: FloatArray) -> FloatArray:
    """(3,) unit normal of the plane through the feet in the body frame; the body's z where that is no stance."""
    feet = robot.kinematics.forward(joint_position)[0]
    normal = np.linalg.svd(feet - feet.mean(axis=0))[2][2]
    normal = normal * np.sign(normal[2]) if normal[2] else normal
    return normal if normal[2] > np.cos(_STANCE_TILT) else np.array((0.0, 0.0, 1.0))


def check_joint_ranges(
    robot: RobotDescription, joint_position: FloatArray, settings: CheckSettings
) -> Iterator[Finding]:
    """Joint positions (12,), rad, against the URDF's limits."""
    lower, upper = robot.kinematics.lower_limit, robot.kinematics.upper_limit
    beyond = np.maximum(lower - joint_position, joint_position - upper)
    if not (beyond > settings.joint_range).any():
        return
    if (largest := float(np.abs(joint_position).max())) > _TURN + settings.joint_range_fault:
        yield Finding("fault", "joints", f"positions of up to {largest:.4g}: these are degrees, not radians")
        return
    outside = np.flatnonzero(beyond > settings.joint_range)
    listed = [
        f"{robot.joint_names[slot]} at {joint_position[slot]:.2f} (limits {lower[slot]:.2f} to {upper[slot]:.2f})"
        for slot in outside[:_MOST_NAMES]
    ]
    more = f" and {outside.size - _MOST_NAMES} more" if outside.size > _MOST_NAMES else ""
    level: Literal["fault", "warning"] = "fault" if beyond.max() > settings.joint_range_fault else "warning"
    cause = _cause_of_range(joint_position[outside], lower[outside], upper[outside])
    yield Finding(level, "joints", f"outside the URDF's limits: {', '.join(listed)}{more}: {cause}")


def _cause_of_range(position: FloatArray, lower: FloatArray, upper: FloatArray) -> str:
    def inside(moved: FloatArray) -> bool:
        return bool(((lower <= moved) & (moved <= upper)).all())

    if inside(-position):
        return "the sign is reversed (joint_messages.sign in the robot file)"
    if inside(position - np.sign(position) * _TURN):
        return "the zero is off by a whole turn (joint_messages.offset in the robot file)"
    return "zeros are off (joint_messages.offset in the robot file), joints are swapped, or it is another robot"


def check_feet(
    robot: RobotDescription, specific_force: FloatArray, joint_position: FloatArray, settings: CheckSettings
) -> Iterator[Finding]:
    """Heights of the feet of a robot that stands still: four feet on the ground lie in one plane, below the body.

    Args:
        robot: its description.
        specific_force: (3,), mean, body frame; its direction is up.
        joint_position: (12,) rad, mean.
        settings: limits.
    """
    feet = robot.kinematics.forward(joint_position)[0]
    height = dict(zip(LEG_NAMES, feet @ (specific_force / np.linalg.norm(specific_force)), strict=True))
    if (above := [leg for leg in LEG_NAMES if height[leg] > 0]) and np.mean(list(height.values())) > 0:
        yield Finding(
            "fault",
            "feet",
            f"{', '.join(above)} above the body in standing: signs of thigh and calf joints, or of the accelerometer",
        )
        return
    # Ground may slope either way; what no plane explains is how far the diagonals are apart.
    apart = abs(height["FL"] + height["RR"] - height["FR"] - height["RL"])
    if apart > settings.foot_height:
        listed = ", ".join(f"{leg} {value:+.3f}" for leg, value in height.items())
        yield Finding(
            "warning",
            "feet",
            f"{apart:.3f} m off one plane in standing (heights {listed} m): a joint's sign, zero or order is wrong, or "
            "the ground is uneven",
        )


def check_rate(rate_hz: float, trained_hz: float, settings: CheckSettings) -> Iterator[Finding]:
    """Rate of the IMU by its stamps (Hz) against the one that the model was trained at (Hz)."""
    if abs(rate_hz - trained_hz) > settings.rate * trained_hz:
        yield Finding(
            "warning",
            "rate",
            f"the IMU comes at {rate_hz:.0f} Hz, the model was trained at {trained_hz:.0f} Hz: expect larger errors; "
            "set the driver's rate, or train for this one",
        )
