"""Configurations made to fit another robot."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from trace_ros.errors import TraceError
from trace_ros.robot import RobotDescription
from trace_ros.sim.course import Course
from trace_ros.sim.rollout import SimulationConfig
from trace_ros.sim.scaling import SCALED, RobotSize, fit_to_robot

HALF = {"mass": 2 * 13.74, "standing_height": 0.31231 / 1.5}
"""The A1 weighs half as much and is half as tall again as the robot of these numbers."""


@pytest.fixture(scope="module")
def a1() -> RobotDescription:
    return RobotDescription.load("a1")


@pytest.fixture(scope="module")
def config() -> SimulationConfig:
    return SimulationConfig.load()


def test_the_shipped_config_is_for_the_go2_and_leaves_it_alone(config, go2):
    fitted = fit_to_robot(config, go2)
    assert fitted.sized_for is None
    assert fitted.model_copy(update={"sized_for": config.sized_for}) == config


def test_forces_lengths_and_torques_follow_the_robot(config, a1):
    config = config.model_copy(update={"sized_for": RobotSize(**HALF)})
    fitted = fit_to_robot(config, a1)
    assert fitted.contact_labels.on_force == pytest.approx(0.5 * config.contact_labels.on_force)
    assert fitted.randomization.push.force == pytest.approx([0.5 * f for f in config.randomization.push.force])
    assert fitted.terrain.stairs.rise == pytest.approx([1.5 * rise for rise in config.terrain.stairs.rise])
    assert fitted.sensors.torque_noise == pytest.approx(0.75 * config.sensors.torque_noise)
    before, after = config.randomization.dynamics, fitted.randomization.dynamics
    assert after.armature == pytest.approx([0.5 * 1.5**2 * value for value in before.armature])
    for one, other in zip(config.randomization.push.longer, fitted.randomization.push.longer, strict=True):
        assert other.force == pytest.approx([0.5 * force for force in one.force])
        assert (other.share, other.duration) == (one.share, one.duration)
    assert after.kp_scale == before.kp_scale
    assert fitted.randomization.contact == config.randomization.contact
    assert fitted.commands == config.commands
    assert fit_to_robot(fitted, a1) == fitted


def test_without_a_size_numbers_are_taken_as_they_are(config, a1):
    config = config.model_copy(update={"sized_for": None})
    assert fit_to_robot(config, a1) is config


def test_each_key_that_is_scaled_exists(config):
    for key in SCALED:
        at: object = config
        for part in key.split("."):
            if part == "*":
                assert isinstance(at, tuple) and at, key
                at = at[0]
            else:
                assert isinstance(at, BaseModel) and part in type(at).model_fields, key
                at = getattr(at, part)


def test_a_course_keeps_its_way_and_fits_its_labels(a1):
    course = Course.load("demo").model_copy(update={"sized_for": RobotSize(**HALF)})
    fitted = fit_to_robot(course, a1)
    assert fitted.contact_labels.on_force == pytest.approx(0.5 * course.contact_labels.on_force)
    assert (fitted.phases, fitted.patches, fitted.duration) == (course.phases, course.patches, course.duration)


def test_a_robot_without_masses_is_told(config, a1, tmp_path):
    urdf = tmp_path / "a1.urdf"
    urdf.write_text(a1.urdf.read_text().replace("inertial>", "gone>"))
    with pytest.raises(TraceError, match="no link has a mass"):
        fit_to_robot(config, RobotDescription(**{**a1.model_dump(), "urdf": urdf}))
