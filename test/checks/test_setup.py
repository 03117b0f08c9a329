"""A robot set up wrongly is told so, with the cause; one that is set up well hears nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from trace_ros.checks.findings import CheckSettings, Finding
from trace_ros.checks.setup import check_feet, check_gravity, check_joint_ranges, check_rate
from trace_ros.checks.startup import StartupCheck
from trace_ros.logs import Sample
from trace_ros.robot import RobotDescription

UP = np.array([0.0, 0.0, 9.81])
LIMITS = CheckSettings()


@pytest.fixture(scope="module", params=["go2", "a1"])
def robot(request: pytest.FixtureRequest) -> RobotDescription:
    return RobotDescription.load(request.param)


def gravity(robot: RobotDescription, force: np.ndarray, position: np.ndarray | None = None) -> list[Finding]:
    position = robot.nominal_joint_positions if position is None else position
    return list(check_gravity(robot, np.asarray(force, dtype=float), position, LIMITS))


def test_a_robot_that_stands_is_well(robot: RobotDescription) -> None:
    assert not gravity(robot, UP)
    assert not list(check_feet(robot, UP, robot.nominal_joint_positions, LIMITS))
    assert not list(check_joint_ranges(robot, robot.nominal_joint_positions, LIMITS))
    assert not list(check_rate(480.0, 500.0, LIMITS))


@pytest.mark.parametrize(
    ("force", "level", "words"),
    [
        ([0, 0, -9.81], "fault", "the accelerometer's sign is reversed"),
        ([0.1, -0.1, -9.7], "fault", "the accelerometer's sign is reversed"),
        ([0, 0, 1.0], "fault", "in units of g"),
        ([0, 0, 1000.0], "fault", "in thousandths of g"),
        ([0.02, 0, 0.1], "fault", "gravity has been taken out"),
        ([0, 0, 0], "fault", "gravity has been taken out"),
        ([0, 0, 32.2], "fault", "expected 9.81 m/s^2: wrong units"),
        ([0, 0, 9.1], "warning", "wants calibration"),
        ([9.81, 0, 0], "fault", "along the body's +x and not +z (90 degrees off)"),
        ([0, -9.81, 0.3], "fault", "along the body's -y"),
        ([9.81 * np.sin(0.6), 0, 9.81 * np.cos(0.6)], "warning", "34 degrees off the normal"),
    ],
)
def test_gravity(robot: RobotDescription, force: list[float], level: str, words: str) -> None:
    (finding,) = gravity(robot, np.array(force))
    assert (finding.level, finding.subject) == (level, "gravity")
    assert words in finding.text
    assert "\n" not in str(finding)


@pytest.mark.parametrize("roll", [0.6, 1.57, 3.14])
def test_an_imu_mounted_otherwise_is_for_imu_mounting(robot: RobotDescription, roll: float) -> None:
    """The robot file's imu.rpy is part of what a model was trained for: the remedy must leave the model usable."""
    (finding,) = gravity(robot, 9.81 * np.array([0.0, np.sin(roll), np.cos(roll)]))
    assert "imu_mounting" in finding.text


def test_both_unit_and_sign_are_told(robot: RobotDescription) -> None:
    texts = [finding.text for finding in gravity(robot, np.array([0.0, 0.0, -1.0]))]
    assert len(texts) == 2
    assert "units of g" in texts[0]
    assert "sign is reversed" in texts[1]


def test_a_body_that_is_pitched_by_its_legs_is_no_fault(robot: RobotDescription) -> None:
    """Front legs bent more than rear ones: gravity tilts in the body exactly as the feet's plane does."""
    position = robot.nominal_joint_positions.reshape(4, 3).copy()
    position[:2, 1:] += [0.45, -0.9]
    feet = robot.kinematics.forward(position.ravel())[0]
    normal = np.linalg.svd(feet - feet.mean(axis=0))[2][2]
    normal *= np.sign(normal[2])
    assert np.degrees(np.arccos(normal[2])) > 8
    assert not gravity(robot, 9.81 * normal, position.ravel())
    assert not list(check_feet(robot, normal, position.ravel(), LIMITS))


@settings(max_examples=50, deadline=None)
@given(st.floats(0, 0.3), st.floats(0, 2 * np.pi), st.floats(9.4, 10.2))
def test_slopes_and_small_biases_pass(slope: float, heading: float, magnitude: float) -> None:
    robot = RobotDescription.load("go2")
    up = Rotation.from_rotvec(slope * np.array([np.cos(heading), np.sin(heading), 0.0])).apply([0.0, 0.0, magnitude])
    assert not gravity(robot, up)


def ranges(robot: RobotDescription, position: np.ndarray) -> list[Finding]:
    return list(check_joint_ranges(robot, position, LIMITS))


def test_degrees_are_told_from_radians(robot: RobotDescription) -> None:
    (finding,) = ranges(robot, np.degrees(robot.nominal_joint_positions))
    assert finding.level == "fault"
    assert "degrees, not radians" in finding.text


def test_joints_outside_their_limits_are_named_with_the_cause(robot: RobotDescription) -> None:
    position = robot.nominal_joint_positions.copy()
    position[2] *= -1
    (finding,) = ranges(robot, position)
    assert finding.level == "fault"
    assert robot.joint_names[2] in finding.text
    assert "the sign is reversed (joint_messages.sign" in finding.text
    position = robot.nominal_joint_positions.copy()
    position[5] += 2 * np.pi
    assert "a whole turn" in ranges(robot, position)[0].text
    position = robot.nominal_joint_positions.copy()
    position[8] = robot.kinematics.lower_limit[8] - 0.3
    (finding,) = ranges(robot, position)
    assert finding.level == "warning"
    assert "zeros are off" in finding.text
    (finding,) = ranges(robot, np.full(12, 5.0))
    assert "more" in finding.text


def test_feet_off_one_plane_are_told_and_slopes_are_not(robot: RobotDescription) -> None:
    position = robot.nominal_joint_positions.copy()
    position[1:3] += [0.35, -0.7]  # one leg drawn in
    (finding,) = check_feet(robot, UP, position, LIMITS)
    assert (finding.level, finding.subject) == ("warning", "feet")
    assert "m off one plane in standing" in finding.text
    assert not list(
        check_feet(robot, Rotation.from_euler("xy", [0.2, 0.2]).apply(UP), robot.nominal_joint_positions, LIMITS)
    )
    (finding,) = check_feet(robot, -UP, robot.nominal_joint_positions, LIMITS)
    assert finding.level == "fault"
    assert "above the body" in finding.text


def test_rate() -> None:
    (finding,) = check_rate(200.0, 500.0, LIMITS)
    assert finding.level == "warning"
    assert "comes at 200 Hz, the model was trained at 500 Hz" in finding.text


def samples(
    robot: RobotDescription, seconds: float, start_s: float = 0.0, still: bool = True, **changes
) -> list[Sample]:
    rng = np.random.default_rng(1)
    result = []
    for k in range(round(seconds * 500)):
        t = start_s + k * 0.002
        motion = 0.0 if still else 0.3 * np.sin(2 * np.pi * 2 * t)
        result.append(
            Sample(
                round(t * 1e9),
                rng.normal(0, 0.01, 3) + (0.0 if still else 0.4 * np.cos(9 * t)),
                UP + rng.normal(0, 0.05, 3),
                robot.nominal_joint_positions + motion,
                np.zeros(12),
                None,
            )
        )
    return [
        replace(sample, **{name: change(getattr(sample, name)) for name, change in changes.items()})
        for sample in result
    ]


def test_the_start_ends_when_the_robot_has_stood_well(robot: RobotDescription) -> None:
    check = StartupCheck(robot)
    judged = [check.add(sample) for sample in samples(robot, 1.0, still=False)]
    assert sum(judged) == 1
    assert not check.finished
    for sample in samples(robot, 1.2, 1.0):
        check.add(sample)
    assert check.finished
    assert check.findings == ()
    assert not check.add(samples(robot, 0.1, 9.0)[0])


def test_a_fault_stays_in_motion_and_goes_when_mended(robot: RobotDescription) -> None:
    check = StartupCheck(robot)
    for sample in samples(robot, 0.6, linear_acceleration=lambda a: -a):
        check.add(sample)
    assert "sign is reversed" in check.faults[0]
    assert not check.warnings
    for sample in samples(robot, 1.0, 0.6, still=False, linear_acceleration=lambda a: -a):
        check.add(sample)
    assert len(check.faults) == 1
    assert not check.finished
    for sample in samples(robot, 1.2, 2.0):
        check.add(sample)
    assert check.finished
    assert not check.faults


def test_joint_ranges_are_judged_in_motion(robot: RobotDescription) -> None:
    check = StartupCheck(robot)
    for sample in samples(robot, 0.6, still=False, joint_position=np.degrees):
        check.add(sample)
    assert "degrees" in check.faults[0]
    assert check.faults[0].startswith("joints: ")


def test_a_warning_does_not_keep_the_start_open(robot: RobotDescription) -> None:
    check = StartupCheck(robot)
    for sample in samples(robot, 0.6, linear_acceleration=lambda a: 0.93 * a):
        check.add(sample)
    assert check.finished
    assert "calibration" in check.warnings[0]


def test_windows_do_not_span_gaps_or_jumps(robot: RobotDescription) -> None:
    check = StartupCheck(robot)
    pieces = [*samples(robot, 0.3), *samples(robot, 0.3, 5.0), *samples(robot, 0.3, 2.0)]
    assert not any([check.add(sample) for sample in pieces])


def test_stamps_that_hardly_move_on_fill_no_memory_and_are_judged_all_the_same(robot: RobotDescription) -> None:
    check = StartupCheck(robot)
    standing = samples(robot, 0.02)
    judged = [check.add(replace(standing[number % 10], stamp_ns=1_000 + number)) for number in range(5_000)]
    assert sum(judged) == 1
    assert check.finished
    assert not check._samples
