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
from trace_ros.training.finetuning_data import ReferencedLog
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


@pytest.fixture
def short(monkeypatch):
    """Enough motions in 40 s, over which heights are known the better."""
    monkeypatch.setattr(level_fit, "HORIZON_S", 5.0)
    monkeypatch.setattr(level_fit, "_LEAST_SCALE_M", 0.005)


def whole(log):
    """With all of its reference in one piece."""
    return ReferencedLog(log, np.zeros(len(log.reference), dtype=np.int64), ())


def fitted(model, *logs):
    fit = fit_level(model, ROBOT, [whole(log) for log in logs])
    assert fit is not None
    return fit


def errors(model, log, *levels):
    return [climb_error(model, ROBOT, [whole(log)], level) for level in levels]


@pytest.fixture(scope="module")
def straight(model, walk):
    """What the walk as it is tells."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(level_fit, "HORIZON_S", 5.0)
        patch.setattr(level_fit, "_LEAST_SCALE_M", 0.005)
        return fitted(model, walk)


def tilted(log, roll, pitch):
    """With an IMU that is turned in the body: what the network takes for the body is turned against the legs."""
    turn = Rotation.from_euler("xyz", (roll, pitch, 0.0))
    gyro, force = (turn.inv().apply(values) for values in (log.angular_velocity, log.linear_acceleration))
    return replace(log, angular_velocity=gyro, linear_acceleration=force)


@pytest.mark.parametrize("pitch", [PITCHED, 0.08])
@pytest.mark.usefixtures("short")
def test_a_turned_imu_is_found_and_no_longer_tilts_the_ground(model, walk, straight, pitch):
    assert abs(straight.level[1]) < 0.006
    log = tilted(walk, 0.0, pitch)
    turned = fitted(model, log)
    # The feet have to be turned the way in which the body seems to be.
    assert turned.level[1] - straight.level[1] == pytest.approx(-pitch, abs=0.006 + 0.1 * pitch)
    assert 0 < turned.sigma[1] < 0.01
    before, after = errors(model, log, (0.0, 0.0), turned.level)
    assert before > 0.05 and after < before / 2


@pytest.mark.usefixtures("short")
def test_zeros_of_the_encoders_do_the_same(model, walk, straight):
    """Front calves that seem bent further: the front feet seem higher, level ground rises."""
    off = np.zeros(12)
    off[[2, 5]] = -0.08
    log = replace(walk, joint_position=walk.joint_position + off)
    foot = ROBOT.kinematics.forward(walk.joint_position.mean(axis=0)[None])[0]
    moved = ROBOT.kinematics.forward((walk.joint_position.mean(axis=0) + off)[None])[0]
    raised = (moved - foot)[:2, 2].mean() - (moved - foot)[2:, 2].mean()
    expected = raised / (foot[:2, 0].mean() - foot[2:, 0].mean())
    found = fitted(model, log)
    assert found.level[1] - straight.level[1] == pytest.approx(expected, abs=0.4 * abs(expected) + 0.004)
    before, after = errors(model, log, (0.0, 0.0), found.level)
    assert after < 0.7 * before


@pytest.mark.usefixtures("short")
def test_what_was_levelled_before_is_gone_on_from(model, walk):
    """Fitted twice it stays, also where the first is at the end of its range."""
    log = tilted(walk, 0.0, PITCHED)
    once = fitted(model, log)
    again = fitted(replace(model, card=with_level(model.card, once.level)), log)
    assert np.abs(np.subtract(again.level, once.level)).max() < 0.003
    edge = fitted(replace(model, card=with_level(model.card, (0.0, -LARGEST_LEVEL))), log)
    assert edge.level[1] == pytest.approx(once.level[1], abs=0.02)


@pytest.mark.usefixtures("short")
def test_nothing_is_told_without_such_a_height_or_by_few_motions(model, walk, monkeypatch):
    own = replace(model, card=model.card.model_copy(update={"height": None}))
    assert fit_level(own, ROBOT, [whole(walk)]) is None
    monkeypatch.setattr(level_fit, "HORIZON_S", 30.0)
    assert fit_level(model, ROBOT, [whole(walk)]) is None
    monkeypatch.setattr(level_fit, "HORIZON_S", 60.0)
    assert np.isnan(errors(model, walk, (0.0, 0.0))[0])


@pytest.mark.usefixtures("short")
def test_nothing_is_compared_across_cuts_of_the_reference(model, walk, straight):
    """A jump that the cut hides would be taken for a climb."""
    time = (walk.reference.stamp_ns - walk.stamp_ns[0]) * 1e-9
    jumped = walk.reference.position + np.array([0.0, 0.0, 0.5]) * (time > 20.0)[:, None]
    log = replace(walk, reference=replace(walk.reference, position=jumped))
    cut = fit_level(model, ROBOT, [ReferencedLog(log, (time > 20.0).astype(np.int64), ())])
    assert cut is not None and cut.windows == straight.windows - 2
    assert cut.level == pytest.approx(straight.level, abs=0.005)
    # No two poses about a horizon apart: nothing is told, instead of comparing what is further apart.
    kept = (time % 7.0) < 1.0
    assert fit_level(model, ROBOT, [whole(replace(walk, reference=walk.reference.select(kept)))]) is None


def climbs(count, tilt, noise, seed):
    rng = np.random.default_rng(seed)
    by_angle = np.column_stack((rng.normal(0, 1, count), rng.uniform(5, 20, count)))
    return level_fit._Climbs(by_angle @ (0.0, tilt) + rng.normal(0, noise, count), by_angle)


def significant(made):
    found, covariance = level_fit._solve(made, np.ones(2, dtype=bool))
    return np.abs(found) >= level_fit.SIGNIFICANT * np.sqrt(np.diag(covariance))


@pytest.mark.parametrize("count", [6, 8, 16, 48])
def test_of_level_feet_hardly_anything_is_significant(count):
    assert np.mean([significant(climbs(count, 0.0, 0.05, seed)).any() for seed in range(300)]) < 0.02


@pytest.mark.parametrize("count", [6, 16, 48])
@pytest.mark.parametrize("tilt", [0.02, 0.1, -0.18])
def test_tilts_of_any_size_are_found(count, tilt):
    """Also those beside which every height looks wrong at first, with a motion in ten that is."""
    made = climbs(count, tilt, 0.03, 1)
    made.missing[::10] += 0.4
    found, _ = level_fit._solve(made, np.ones(2, dtype=bool))
    assert found[1] == pytest.approx(tilt, abs=0.012)
    assert significant(made)[1]
