"""How level a robot's feet are: planted tilts are found, and taken out of the height."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from trace_ros.estimator.checkpoint import load_model
from trace_ros.estimator.height import LARGEST_LEVEL
from trace_ros.resources import models_directory
from trace_ros.robot import RobotDescription
from trace_ros.sim.course import Course, Phase, simulate_course
from trace_ros.training import level_fit
from trace_ros.training.level_fit import climb_error, fit_level, with_level

ROBOT = RobotDescription.load("go2")
PITCHED = 0.03


@pytest.fixture(scope="module")
def model():
    torch.set_num_threads(1)
    return load_model(models_directory() / "go2" / "trace.pt")


@pytest.fixture(scope="module")
def walk():
    """40 s back and forth on level ground."""
    corners = ((2.0, 0.0), (2.0, 2.0), (0.0, 2.0), (0.0, 0.0))
    phases = tuple(Phase(walk_to=corner) for corner in corners)
    course = Course.load("demo").model_copy(update={"duration": 40.0, "phases": phases, "repeat": True, "patches": ()})
    return simulate_course(course, ROBOT, 0).measured


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Enough motions in 40 s."""
    monkeypatch.setattr(level_fit, "HORIZON_S", 5.0)


def tilted(log, roll, pitch):
    """With an IMU that is turned in the body: what the network takes for the body is turned against the legs."""
    turn = Rotation.from_euler("xyz", (roll, pitch, 0.0))
    gyro, force = (turn.inv().apply(values) for values in (log.angular_velocity, log.linear_acceleration))
    return replace(log, angular_velocity=gyro, linear_acceleration=force)


def test_a_turned_imu_is_found_and_no_longer_tilts_the_ground(model, walk):
    straight, turned = (fit_level(model, ROBOT, [log]) for log in (walk, tilted(walk, 0.0, PITCHED)))
    assert straight is not None and turned is not None
    assert abs(straight.level[1]) < 0.006
    # The feet have to be turned the way in which the body seems to be.
    assert turned.level[1] - straight.level[1] == pytest.approx(-PITCHED, abs=0.006)
    assert 0 < turned.sigma[1] < 0.01
    log = tilted(walk, 0.0, PITCHED)
    before, after = (climb_error(model, ROBOT, [log], level) for level in ((0.0, 0.0), turned.level))
    assert before > 0.05 and after < before / 2


def test_zeros_of_the_encoders_do_the_same(model, walk):
    """Front calves that seem bent further: the front feet seem higher, level ground rises."""
    off = np.zeros(12)
    off[[2, 5]] = -0.05
    log = replace(walk, joint_position=walk.joint_position + off)
    foot = ROBOT.kinematics.forward(walk.joint_position.mean(axis=0)[None])[0]
    moved = ROBOT.kinematics.forward((walk.joint_position.mean(axis=0) + off)[None])[0]
    raised = (moved - foot)[:2, 2].mean() - (moved - foot)[2:, 2].mean()
    expected = raised / (foot[:2, 0].mean() - foot[2:, 0].mean())
    straight, found = (fit_level(model, ROBOT, [one]) for one in (walk, log))
    assert straight is not None and found is not None
    assert found.level[1] - straight.level[1] == pytest.approx(expected, abs=0.4 * abs(expected) + 0.004)
    before, after = (climb_error(model, ROBOT, [log], level) for level in ((0.0, 0.0), found.level))
    assert after < 0.7 * before


def test_few_motions_that_agree_by_chance_are_not_significant(model, walk, monkeypatch):
    """One motion can be explained to the last micrometre; a height is not known as well as that."""
    monkeypatch.setattr(level_fit, "HORIZON_S", 30.0)
    fit = fit_level(model, ROBOT, [tilted(walk, 0.0, 0.002)])
    assert fit is not None and fit.windows <= 2
    assert fit.level == (0.0, 0.0)
    assert fit.sigma[1] > 0.0008


def test_what_was_levelled_before_is_gone_on_from(model, walk):
    """Fitted twice it stays, also where the first is at the end of its range."""
    log = tilted(walk, 0.0, PITCHED)
    once = fit_level(model, ROBOT, [log])
    assert once is not None
    again = fit_level(replace(model, card=with_level(model.card, once.level)), ROBOT, [log])
    assert again is not None
    assert np.abs(np.subtract(again.level, once.level)).max() < 0.003
    edge = fit_level(replace(model, card=with_level(model.card, (0.0, LARGEST_LEVEL))), ROBOT, [log])
    assert edge is not None and abs(edge.level[1]) <= LARGEST_LEVEL


def test_nothing_is_told_without_such_a_height_or_a_long_reference(model, walk, monkeypatch):
    own = replace(model, card=model.card.model_copy(update={"height": None}))
    assert fit_level(own, ROBOT, [walk]) is None
    monkeypatch.setattr(level_fit, "HORIZON_S", 60.0)
    assert fit_level(model, ROBOT, [walk]) is None
    assert np.isnan(climb_error(model, ROBOT, [walk], (0.0, 0.0)))


def test_gaps_of_the_reference_are_not_bridged(model, walk):
    """No two poses are about a horizon apart, so nothing is told, instead of comparing what is further apart."""
    time = (walk.reference.stamp_ns - walk.stamp_ns[0]) * 1e-9
    kept = (time % 7.0) < 1.0
    assert fit_level(model, ROBOT, [replace(walk, reference=walk.reference.select(kept))]) is None
