"""The model that ships with the package, on logs that it was not trained on: the floors that it must hold."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from trace_ros.estimator.batch import run_logs
from trace_ros.estimator.checkpoint import load_model
from trace_ros.estimator.estimator import TraceEstimator
from trace_ros.evaluation.metrics import evaluate
from trace_ros.logs import SensorLog
from trace_ros.resources import models_directory
from trace_ros.robot import RobotDescription
from trace_ros.sim.course import Course, simulate_course
from trace_ros.sim.sensors import SensorConfig

ROBOT = RobotDescription.load("go2")
MODEL = models_directory() / "go2" / "trace.pt"


@pytest.fixture(scope="module")
def estimator() -> TraceEstimator:
    torch.set_num_threads(1)
    return TraceEstimator.load(MODEL, ROBOT)


@pytest.fixture(scope="module")
def demo_log() -> SensorLog:
    return simulate_course(Course.load("demo").model_copy(update={"duration": 30.0}), ROBOT, 5).measured


def test_its_card_stands_beside_it_and_tells_how_it_was_made():
    card = load_model(MODEL).card
    assert card.robot == "go2"
    assert card.rate_hz == 500.0
    assert card.command.startswith("trace train")
    assert card.training_hours >= 1.0
    assert card.seeds
    assert card.simulation
    assert card.figures["held_out"]["position_percent"] > 0
    assert MODEL.with_suffix(".yaml").read_text().startswith("format: 1")


@pytest.mark.parametrize(("sensors", "duration"), [("demo", 10.0), ("training", 30.0)])
def test_standing_moves_the_pose_less_than_a_millimetre(estimator, sensors, duration):
    course = Course.load("demo").standing(duration)
    if sensors == "training":
        course = course.model_copy(update={"sensors": SensorConfig()})
    position = run_logs(estimator, [simulate_course(course, ROBOT, 3).measured])[0].trajectory.position
    assert np.linalg.norm(position - position[0], axis=1).max() < 1e-3


def test_the_demo_course_with_another_seed(estimator, demo_log):
    metrics = evaluate(run_logs(estimator, [demo_log])[0].trajectory, demo_log.reference)
    assert metrics.path_length_m > 10.0
    assert metrics.re_position_m is not None
    assert metrics.ate_position_m < 0.02 * metrics.path_length_m
    assert metrics.re_position_m.mean < 0.35


def test_a_gyros_bias_that_standing_shows_does_no_harm(estimator, demo_log):
    """The walk begins with a stand, which tells 0.01 rad/s: 0.6 rad of heading in a minute, were it left."""
    clean, biased = run_logs(estimator, [demo_log, with_bias(demo_log, (0.006, -0.004, 0.007))], ["clean", "biased"])
    ends = [run.trajectory.orientation[-1] for run in (clean, biased)]
    turned = (Rotation.from_quat(ends[0]).inv() * Rotation.from_quat(ends[1])).magnitude()
    assert turned < 5e-3  # two seconds of standing tell 99 % of it
    np.testing.assert_allclose(biased.trajectory.position, clean.trajectory.position, atol=0.02)


def with_bias(log: SensorLog, bias: tuple[float, float, float]) -> SensorLog:
    return dataclasses.replace(log, angular_velocity=log.angular_velocity + np.array(bias))
