"""Verdicts on robots: the shipped ones are well, and each mistake is named."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from trace_ros.resources import config_directory
from trace_ros.robot import LEG_NAMES, RobotDescription, available_robots
from trace_ros.robot_check import check_robot

ROBOTS = config_directory() / "robots"
AT_ORIGIN = '<origin xyz="0 0 0" rpy="0 0 0"/>'


@pytest.mark.parametrize("name", available_robots())
def test_the_shipped_robots_are_well(name):
    verdicts = check_robot(RobotDescription.load(name))
    assert {verdict.level for verdict in verdicts} == {"ok"}, verdicts
    assert [verdict.subject for verdict in verdicts] == [
        *("joint axes", "joint states", "joint limits", "torque limits", "feet", "stance", "balance", "symmetry"),
        *("mass", "inertia", "links", "shapes", "IMU"),
    ]
    assert not any("\n" in verdict.text for verdict in verdicts)


def changed(tmp_path: Path, urdf: dict[str, str], **keys: object) -> RobotDescription:
    """The A1 with parts of its URDF replaced everywhere, and keys of its YAML changed."""
    text = (ROBOTS / "a1.urdf").read_text()
    for old, new in urdf.items():
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "a1.urdf").write_text(text)
    shutil.copy(ROBOTS / "a1_policy.yaml", tmp_path)
    data = yaml.safe_load((ROBOTS / "a1.yaml").read_text()) | keys
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(data))
    return RobotDescription.load(tmp_path / "mine.yaml")


def swapped(first: str, second: str) -> dict[str, object]:
    """The legs of the robot file with two of them exchanged."""
    legs = yaml.safe_load((ROBOTS / "a1.yaml").read_text())["legs"]
    legs[first], legs[second] = legs[second], legs[first]
    return {"legs": legs}


@pytest.mark.parametrize(
    ("urdf", "keys", "level", "subject", "said"),
    [
        (
            {'<axis xyz="1 0 0"/>\n    <limit lower="-0.80285"': '<axis xyz="0 0 1"/>\n    <limit lower="-0.80285"'},
            {},
            "warning",
            "joint axes",
            "FL_hip_joint turns about",
        ),
        (
            {'"-0.1805 -0.047 0"/><axis xyz="1 0 0"/>': '"-0.1805 -0.047 0"/><axis xyz="-1 0 0"/>'},
            {},
            "warning",
            "joint axes",
            "hip turns about +x on FL FR RL, -x on RR",
        ),
        (
            {},
            {"nominal_joint_position": [0.0, 0.8, -0.5]},
            "fault",
            "joint limits",
            "nominal_joint_position lies outside",
        ),
        ({'lower="-1.0472" upper="4.1888"': ""}, {}, "warning", "joint limits", "has none for FL_thigh_joint"),
        ({'lower="-1.0472" upper="4.1888"': 'lower="4" upper="-1"'}, {}, "fault", "joint limits", "not below upper"),
        (
            {'effort="33.5"': 'effort="20"'},
            {},
            "warning",
            "torque limits",
            "33.5 N m in the robot file, 20 in the URDF",
        ),
        (
            {},
            {"control": {"kp": 20.0, "kd": 0.5, "torque_limit": [33.5, 33.5, 2.0]}},
            "fault",
            "torque limits",
            "too low to stand in the nominal position: FL_calf_joint",
        ),
        ({}, {"foot_radius": 0.03}, "fault", "feet", "FL_foot is a sphere of 0.02 m, foot_radius says 0.03"),
        ({'<sphere radius="0.02"/>': '<box size="0.04 0.04 0.04"/>'}, {}, "warning", "feet", "FL_foot is a box"),
        (
            {f'<collision>{AT_ORIGIN}<geometry><sphere radius="0.02"/></geometry></collision>': ""},
            {},
            "fault",
            "feet",
            "FL_foot has no collision shape",
        ),
        (
            {f"{AT_ORIGIN}<geometry><sphere": '<origin xyz="0 0 0.02"/><geometry><sphere'},
            {},
            "fault",
            "feet",
            "0.020 m off the link's origin",
        ),
        ({}, swapped("FL", "RL"), "fault", "stance", "foot FL is not ahead of foot RL"),
        ({}, swapped("FL", "FR"), "fault", "stance", "foot FL is not left of foot FR"),
        ({}, {"nominal_joint_position": [0.0, 3.5, -1.0]}, "fault", "stance", "feet above the body"),
        (
            {},
            {"nominal_joint_position": {leg: [0.0, 0.8, -1.5 if leg[0] == "F" else -1.6] for leg in LEG_NAMES}},
            "warning",
            "stance",
            "feet are not level",
        ),
        (
            {'upper="-0.9163"': 'upper="0"'},
            {"nominal_joint_position": [0, 0.1, -0.2]},
            "warning",
            "stance",
            "stretched",
        ),
        ({'<origin xyz="0 0.0041 -0.0005"/>': '<origin xyz="0.6 0 0"/>'}, {}, "fault", "balance", "outside the feet"),
        (
            {'<origin xyz="0.1805 0.047 0"/>': '<origin xyz="0.1805 0.057 0"/>'},
            {},
            "warning",
            "symmetry",
            "10 mm apart",
        ),
        ({'<mass value="6.0"/>': '<mass value="6000"/>'}, {}, "warning", "mass", "are these kilograms"),
        ({"<inertial>": "<gone>", "</inertial>": "</gone>"}, {}, "fault", "mass", "no link has an <inertial>"),
        ({'<mass value="1.013"/>': '<mass value="0"/>'}, {}, "fault", "mass", "FL_thigh moves but has no mass"),
        ({'izz="0.0456542"': 'izz="0.09"'}, {}, "fault", "inertia", "trunk: no body has moments of"),
        ({'izz="0.0456542"': 'izz="-0.04"'}, {}, "fault", "inertia", "trunk: not positive"),
        (
            {
                '<link name="imu_link"/>': '<link name="imu_link"/><link name="base"/><joint name="b" type="fixed">'
                '<parent link="base"/><child link="trunk"/></joint>'
            },
            {},
            "warning",
            "links",
            "trunk hangs on base",
        ),
        (
            {
                '<link name="imu_link"/>': '<link name="imu_link"/><link name="arm"/>'
                '<joint name="shoulder" type="revolute"><parent link="trunk"/><child link="arm"/></joint>'
            },
            {},
            "fault",
            "links",
            "other moving joints: shoulder",
        ),
        ({'<box size="0.267 0.194 0.114"/>': '<mesh filename="trunk.stl"/>'}, {}, "fault", "shapes", "meshes on trunk"),
        ({}, {"imu": {"position": [0.0, 0.0, 0.05]}}, "warning", "IMU", "the URDF's imu_link is at"),
        ({}, {"imu": {"rpy": [0.0, 0.0, 1.57]}}, "warning", "IMU", "turned by 1.57 rad"),
        ({"imu_link": "gauge"}, {}, "ok", "IMU", "no link named imu"),
        ({}, {}, "ok", "joint states", "named and counted as in the URDF"),
        ({}, {"joint_messages": {"sign": {"FL_calf_joint": -1}}}, "ok", "joint states", "other sign: FL_calf_joint"),
    ],
)
def test_each_mistake_is_named(tmp_path, urdf, keys, level, subject, said):
    verdicts = check_robot(changed(tmp_path, urdf, **keys))
    matching = [verdict for verdict in verdicts if verdict.subject == subject and said in verdict.text]
    assert [verdict.level for verdict in matching] == [level], verdicts


def test_legs_may_stand_in_ways_of_their_own(tmp_path):
    hips = {leg: [0.1 if leg[1] == "L" else -0.1, 0.8, -1.5] for leg in LEG_NAMES}
    robot = changed(tmp_path, {}, nominal_joint_position=hips)
    np.testing.assert_allclose(robot.nominal_joint_positions[::3], [0.1, -0.1, 0.1, -0.1])
    assert {verdict.level for verdict in check_robot(robot)} == {"ok"}
