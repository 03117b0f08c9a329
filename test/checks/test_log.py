"""A good log hears nothing; each fault that is planted into it is found, and called by its name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from planted import copy_bag_without, flipped, slow_reference, swapped, turned_imu, with_legs, with_reference
from scipy.spatial.transform import Rotation

from trace_ros.bags import write_bag
from trace_ros.checks.log import check_log, check_log_file
from trace_ros.checks.log_findings import FindingName, LogCheckSettings, LogReport
from trace_ros.checks.log_joints import check_joint_velocity, check_torque
from trace_ros.checks.log_legs import check_legs
from trace_ros.checks.log_reference import check_reference
from trace_ros.checks.log_rest import check_motion, check_rest
from trace_ros.errors import TraceError
from trace_ros.logs import SensorLog
from trace_ros.robot import RobotDescription

LIMITS = LogCheckSettings()
LEGS = ("FL", "FR", "RL", "RR")
few = settings(  # an example takes a second or two: no shrinking
    max_examples=3,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def only(check, log: SensorLog, go2: RobotDescription) -> LogReport:
    report = LogReport("", go2.name)
    if check is check_motion:
        check(log, report, LIMITS)
    else:
        check(log, go2, report, LIMITS)
    return report


def names(report: LogReport) -> list[str]:
    return [finding.name for finding in report.findings]


def the_finding(report: LogReport, name: str):
    found = [finding for finding in report.findings if finding.name == name]
    assert len(found) == 1, report.findings
    assert "\n" not in found[0].text + found[0].remedy
    assert found[0].remedy
    return found[0]


# -- a good log --


def test_a_good_bag_is_fit_and_hears_nothing(walk_bag: Path, go2: RobotDescription) -> None:
    report = check_log_file(walk_bag, go2)
    assert report.findings == []
    assert report.verdict == "fit"
    subjects = {fact.subject for fact in report.facts}
    assert {"/imu/data", "motion", "gravity", "legs", "joint torque", "reference clock"} <= subjects
    assert report.values["/imu/data"]["lost"] == 0
    assert report.values["motion"]["walking_s"] > 5
    assert report.to_dict()["verdict"] == "fit"


def test_a_good_log_with_a_lidars_reference_or_none_hears_nothing(walk: SensorLog, go2: RobotDescription) -> None:
    assert names(check_log(slow_reference(walk), go2)) == []
    assert names(check_log(with_reference(walk, None), go2)) == []


# -- legs --


@pytest.mark.parametrize("pair", list(combinations(range(4), 2)), ids=lambda pair: f"{LEGS[pair[0]]}_{LEGS[pair[1]]}")
def test_swapped_legs_are_named(walk: SensorLog, go2: RobotDescription, pair: tuple[int, int]) -> None:
    finding = the_finding(only(check_legs, swapped(walk, *pair), go2), "legs_swapped")
    assert finding.level == "fault"
    assert f"legs {LEGS[pair[0]]} and {LEGS[pair[1]]} are swapped" in finding.text


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ([1, 0, 3, 2], "left and right legs are swapped"),
        ([2, 3, 0, 1], "front and rear legs are swapped"),
        ([3, 2, 1, 0], "legs are swapped across"),
    ],
)
def test_swapped_sides_are_named(walk: SensorLog, go2: RobotDescription, order: list[int], words: str) -> None:
    assert words in the_finding(only(check_legs, with_legs(walk, order), go2), "legs_swapped").text


@pytest.mark.parametrize("joint", range(12))
def test_a_joint_that_counts_the_other_way_is_named(walk: SensorLog, go2: RobotDescription, joint: int) -> None:
    finding = the_finding(only(check_legs, flipped(walk, joint), go2), "joint_sign")
    assert finding.level == "fault"
    assert go2.joint_names[joint] in finding.text
    assert f"{go2.joint_names[joint]}: -1" in finding.remedy


@pytest.mark.parametrize("angle", [90, -90, 180])
def test_an_imu_turned_about_z_is_named_though_gravity_does_not_show_it(
    walk: SensorLog, go2: RobotDescription, angle: int
) -> None:
    turned = turned_imu(walk, Rotation.from_euler("z", angle, degrees=True).inv())
    assert names(only(check_rest, turned, go2)) == []
    finding = the_finding(only(check_legs, turned, go2), "imu_turned")
    assert "imu_mounting" in finding.remedy
    assert f"{angle} degrees about z" in finding.text or (angle == 180 and "180 degrees" in finding.text)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_an_axis_of_the_gyro_that_counts_the_other_way_is_named(
    walk: SensorLog, go2: RobotDescription, axis: int
) -> None:
    sign = np.where(np.arange(3) == axis, -1.0, 1.0)
    spoiled = replace(walk, angular_velocity=walk.angular_velocity * sign)
    assert f"the gyro's {'xyz'[axis]}" in the_finding(only(check_legs, spoiled, go2), "gyro_sign").text


def test_legs_are_judged_without_velocities(walk: SensorLog, go2: RobotDescription) -> None:
    bare = replace(walk, joint_velocity=None)
    assert names(only(check_legs, bare, go2)) == []
    slots = np.arange(12).reshape(4, 3)[[2, 1, 0, 3]].ravel()
    spoiled = replace(bare, joint_position=bare.joint_position[:, slots])
    assert "FL and RL" in the_finding(only(check_legs, spoiled, go2), "legs_swapped").text


def test_legs_that_stand_are_not_judged(walk: SensorLog, go2: RobotDescription) -> None:
    standing = walk.select(slice(0, 700))
    assert names(only(check_legs, swapped(standing, 0, 1), go2)) == []
    assert the_finding(only(check_motion, standing, go2), "little_motion").level == "remark"


def test_what_follows_from_a_fault_is_not_told_again(walk: SensorLog, go2: RobotDescription) -> None:
    report = check_log(flipped(walk, 4), go2)
    assert [finding.name for finding in report.findings if finding.level == "fault"][-1] == "joint_sign"
    assert not {"gravity", "feet", "torque_sign"} & set(names(report))


# -- gravity and gyro --


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: -a, "the accelerometer's sign is reversed"),
        (lambda a: a / 9.81, "in units of g"),
        (lambda a: a * 1000 / 9.81, "in thousandths of g"),
        (lambda a: a - [0, 0, 9.81], "gravity has been taken out"),
    ],
)
def test_wrong_gravity_is_named(walk: SensorLog, go2: RobotDescription, change, words: str) -> None:
    report = check_log(replace(walk, linear_acceleration=change(walk.linear_acceleration)), go2)
    assert report.verdict == "not fit"
    assert words in the_finding(report, "gravity").text
    assert names(report) == ["gravity"]


@pytest.mark.parametrize(("axis", "angle"), [("x", 90), ("x", -90), ("y", 90), ("y", -90)])
def test_a_rotated_imu_is_named(walk: SensorLog, go2: RobotDescription, axis: str, angle: int) -> None:
    report = check_log(turned_imu(walk, Rotation.from_euler(axis, angle, degrees=True)), go2)
    assert "the IMU is rotated in another way" in the_finding(report, "gravity").text
    assert names(report) == ["gravity"]


def test_gravity_is_judged_in_a_log_that_never_stands(walk: SensorLog, go2: RobotDescription) -> None:
    walking = walk.select(slice(1000, 4500))
    assert names(only(check_rest, walking, go2)) == []
    spoiled = replace(walking, linear_acceleration=-walking.linear_acceleration)
    assert "reversed" in the_finding(only(check_rest, spoiled, go2), "gravity").text


def test_a_gyro_in_degrees_is_named(walk: SensorLog, go2: RobotDescription) -> None:
    report = check_log(replace(walk, angular_velocity=np.degrees(walk.angular_velocity)), go2)
    assert "degrees per second" in the_finding(report, "gyro_units").text
    assert "legs_swapped" not in names(report)


# -- joints --


def test_velocities_that_are_no_derivatives_are_named(walk: SensorLog, go2: RobotDescription) -> None:
    def found(velocity: np.ndarray) -> str:
        report = only(check_joint_velocity, replace(walk, joint_velocity=velocity), go2)
        return the_finding(report, report.findings[0].name).text

    velocity = walk.joint_velocity
    assert velocity is not None
    assert names(only(check_joint_velocity, walk, go2)) == []
    flipped_one = flipped(walk, 7, "joint_velocity").joint_velocity
    assert flipped_one is not None
    text = found(flipped_one)
    assert go2.joint_names[7] in text
    assert "sign is not that of the position" in text
    assert go2.joint_names[6] not in text
    assert "degrees per second" in found(np.degrees(velocity))
    assert "another order" in found(np.roll(velocity, 3, axis=1))
    assert "exactly zero" in found(np.zeros_like(velocity))
    assert "another unit" in found(velocity * 2)
    spiked = velocity.copy()
    spiked[100:103] = 400.0
    assert "up to 400" in found(spiked)
    assert names(only(check_joint_velocity, replace(walk, joint_velocity=None), go2)) == ["velocity_missing"]


def test_a_dead_encoder_is_named(walk: SensorLog, go2: RobotDescription) -> None:
    position = walk.joint_position.copy()
    position[:, 4] = 0.8
    report = only(check_joint_velocity, replace(walk, joint_position=position), go2)
    assert go2.joint_names[4] in the_finding(report, "joint_stuck").text


def test_torques_are_judged(walk: SensorLog, go2: RobotDescription) -> None:
    torque = walk.joint_torque
    assert torque is not None

    def found(log: SensorLog) -> list[str]:
        return names(only(check_torque, log, go2))

    assert found(walk) == []
    assert found(replace(walk, joint_torque=None, torque_source="none")) == ["torque_missing"]
    assert found(replace(walk, joint_torque=np.zeros_like(torque))) == ["torque_zero"]
    assert found(replace(walk, joint_torque=-torque)) == ["torque_sign"]
    assert found(replace(walk, joint_torque=torque * 0.2)) == ["torque_implausible"]
    assert "torque_units" in found(replace(walk, joint_torque=torque * 30))
    partly = torque.copy()
    partly[::3] = np.nan
    assert found(replace(walk, joint_torque=partly)) == ["torque_missing"]


def test_missing_torque_in_a_bag_is_a_remark(walk: SensorLog, go2: RobotDescription, tmp_path: Path) -> None:
    write_bag(tmp_path / "bag", replace(walk, joint_torque=None, torque_source="none").select(slice(0, 5000)), go2)
    report = check_log_file(tmp_path / "bag", go2)
    assert report.verdict == "fit with remarks"
    assert names(report) == ["torque_missing"]


# -- reference --


@few
@given(late=st.floats(0.06, 1.2), early=st.booleans(), rate=st.sampled_from([10.0, 100.0]))
def test_a_shifted_clock_is_named_with_its_size(
    walk: SensorLog, go2: RobotDescription, late: float, early: bool, rate: float
) -> None:
    late = -late if early else late
    report = only(check_reference, slow_reference(walk, late, rate), go2)
    finding = the_finding(report, "reference_clock")
    assert ("early" if early else "late") in finding.text
    assert abs(report.values["reference"]["clock_offset_s"] + late) < 0.02
    assert report.verdict == "fit with remarks"


def test_another_frame_is_named(walk: SensorLog, go2: RobotDescription) -> None:
    reference = walk.reference
    assert reference is not None
    turn = Rotation.from_euler("z", 0.5)
    sensor = replace(
        reference,
        position=reference.position + reference.rotation_world_body.apply((0.25, 0.0, 0.1)),
        orientation=(reference.rotation_world_body * turn).as_quat(),
    )
    text = the_finding(only(check_reference, with_reference(walk, sensor), go2), "reference_frame").text
    assert "yaw 28." in text
    assert "off by +0.2" in text
    tilted = Rotation.from_euler("x", 0.2)
    world = replace(
        reference,
        position=tilted.apply(reference.position),
        orientation=(tilted * reference.rotation_world_body).as_quat(),
    )
    assert (
        "tilted by 11." in the_finding(only(check_reference, with_reference(walk, world), go2), "reference_tilted").text
    )


def test_gaps_jumps_and_the_reference_of_another_body_are_named(walk: SensorLog, go2: RobotDescription) -> None:
    reference = walk.reference
    assert reference is not None
    position = reference.position.copy()
    position[3000:] += [0.4, 0.0, 0.0]
    torn = replace(reference, position=position).select(np.r_[0:5000, 5500:7000])
    found = names(only(check_reference, with_reference(walk, torn), go2))
    assert {"reference_jump", "reference_gap"} <= set(found)
    seconds = (reference.stamp_ns - reference.stamp_ns[0]) * 1e-9
    yaw = 0.4 * np.sin(2.0 * seconds**1.2)
    other = replace(reference, orientation=Rotation.from_rotvec(yaw[:, None] * [0.0, 0.0, 1.0]).as_quat())
    assert "reference_disagrees" in names(only(check_reference, with_reference(walk, other), go2))


def test_a_twist_in_the_world_frame_is_named(walk: SensorLog, go2: RobotDescription) -> None:
    reference = walk.reference
    assert reference is not None
    twist = reference.rotation_world_body.apply(reference.velocity)
    quarter = Rotation.from_euler("z", 90, degrees=True)
    world = replace(
        reference,
        velocity=quarter.apply(twist),
        position=quarter.apply(reference.position),
        orientation=(quarter * reference.rotation_world_body).as_quat(),
    )
    report = only(check_reference, with_reference(walk, world), go2)
    assert "it is in the world frame" in the_finding(report, "reference_twist").text


# -- bags --


@pytest.mark.parametrize(
    ("plant", "name", "words"),
    [
        (lambda log: swapped(log, 1, 3), "legs_swapped", "FR and RR are swapped"),
        (lambda log: flipped(log, 3), "joint_sign", "FR_hip_joint counts the other way"),
        (lambda log: flipped(log, 2, "joint_position"), "velocity_wrong", "FL_calf_joint"),
        (lambda log: slow_reference(log, 0.33), "reference_clock", "s late"),
        (lambda log: replace(log, linear_acceleration=log.linear_acceleration / 9.81), "gravity", "units of g"),
        (lambda log: turned_imu(log, Rotation.from_euler("x", 90, degrees=True)), "gravity", "IMU is rotated"),
        (lambda log: replace(log, joint_torque=None, torque_source="none"), "torque_missing", "not reported"),
    ],
    ids=["legs", "sign", "position", "clock", "g", "imu", "torque"],
)
def test_faults_planted_into_a_bag_are_named(
    walk: SensorLog, go2: RobotDescription, tmp_path: Path, plant, name: str, words: str
) -> None:
    write_bag(tmp_path / "bag", plant(walk), go2)
    report = check_log_file(tmp_path / "bag", go2)
    assert words in the_finding(report, name).text
    assert report.verdict == ("fit with remarks" if name in ("reference_clock", "torque_missing") else "not fit")
    assert len(report.findings) <= 2 + (name == "velocity_wrong")


def odd_logs(walk: SensorLog) -> Iterator[SensorLog]:
    """What no robot sends, and what some do."""
    n, reference = len(walk), walk.reference
    assert reference is not None
    velocity = walk.joint_velocity
    yield replace(
        walk,
        **{name: 0 * getattr(walk, name) for name in ("angular_velocity", "linear_acceleration", "joint_position")},
    )
    yield replace(walk, joint_velocity=np.full((n, 12), np.nan))
    yield replace(walk, joint_velocity=np.where((np.arange(n) % 5 == 0)[:, None], np.nan, velocity))
    yield replace(walk, angular_velocity=1e5 * walk.angular_velocity, joint_position=1e5 * walk.joint_position)
    yield walk.select(np.flatnonzero(np.arange(n) % 60 < 40))
    yield walk.select(slice(0, None, 50))
    seldom = walk.stamp_ns[0] + 2_000_000_000 * np.arange(200)
    yield replace(walk.select(slice(0, 200)), stamp_ns=seldom, reference=None)
    yield walk.select(slice(0, 100))
    yield with_reference(walk, reference.select(slice(0, 3)))
    yield with_reference(walk, reference.select(slice(0, None, 250)))
    still = replace(reference, position=0 * reference.position, orientation=0 * reference.orientation + [0, 0, 0, 1])
    yield with_reference(walk, replace(still, velocity=0 * reference.velocity))


@pytest.mark.filterwarnings("error")
def test_odd_logs_are_judged_and_never_end_in_an_exception(walk: SensorLog, go2: RobotDescription) -> None:
    for log in odd_logs(walk):
        report = check_log(log, go2)
        assert report.verdict != "fit"
        json.dumps(report.to_dict(), allow_nan=False)


def test_every_finding_is_in_the_docs() -> None:
    table = (Path(__file__).parents[2] / "docs" / "logs.md").read_text()
    told = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert sorted(told) == sorted((*get_args(FindingName), "fit"))


# -- messages --


@few
@given(lost=st.floats(0.015, 0.1), topic=st.sampled_from(["/imu/data", "/joint_states"]))
def test_lost_messages_are_counted(walk_bag, go2, tmp_path_factory, lost: float, topic: str) -> None:
    target = tmp_path_factory.mktemp("lost") / "bag"
    report = check_log_file(copy_bag_without(walk_bag, target, lost, topic), go2)
    finding = the_finding(report, "messages_lost")
    assert finding.subject == topic
    assert abs(report.values[topic]["lost_part"] - lost) < 0.01
    assert report.verdict == "fit with remarks"


def test_two_percent_lost_on_all_topics(walk_bag: Path, go2: RobotDescription, tmp_path: Path) -> None:
    report = check_log_file(copy_bag_without(walk_bag, tmp_path / "bag", 0.02), go2)
    assert set(names(report)) == {"messages_lost"}
    assert {"/imu/data", "/joint_states"} <= {finding.subject for finding in report.findings}
    assert all("% of the messages are lost" in finding.text for finding in report.findings)


def test_a_log_that_is_too_short_is_not_fit(walk: SensorLog, go2: RobotDescription) -> None:
    report = check_log(walk.select(slice(0, 50)), go2)
    assert (report.verdict, names(report)) == ("not fit", ["short"])


def test_files_without_messages_are_checked_too(walk: SensorLog, go2: RobotDescription, tmp_path: Path) -> None:
    swapped(walk, 0, 2).save(tmp_path / "log.npz")
    assert "legs_swapped" in names(check_log_file(tmp_path / "log.npz", go2))
    with pytest.raises(TraceError, match="no such file"):
        check_log_file(tmp_path / "none.npz", go2)
