"""Every model that ships: for its robot, and fit to walk it with and without joint torque."""

import dataclasses

import numpy as np
import pytest
import torch

from trace_ros.estimator.batch import run_logs
from trace_ros.estimator.checkpoint import load_model
from trace_ros.estimator.estimator import TraceEstimator
from trace_ros.resources import models_directory
from trace_ros.robot import RobotDescription
from trace_ros.sim.course import Course, simulate_course

MODELS = sorted(models_directory().glob("*/trace*.pt"))

every_model = pytest.mark.parametrize("path", MODELS, ids=lambda path: f"{path.parent.name}-{path.stem}")


@every_model
def test_it_is_small_and_its_card_names_the_robot_beside_which_it_stands(path):
    name = path.parent.name
    model = load_model(path)
    model.check_robot(RobotDescription.load(name))
    assert path.stat().st_size < 4e6
    assert path.with_suffix(".yaml").is_file()
    # Of another file where it had further policies walk its rollouts.
    assert model.card.command.startswith(("trace train --robot mine.yaml", f"trace train --robot {name}"))
    assert model.card.robot == name


@every_model
def test_it_walks_its_robot_with_and_without_torque(path):
    torch.set_num_threads(1)
    robot = RobotDescription.load(path.parent.name)
    course = Course.load("demo").model_copy(update={"duration": 12.0, "patches": ()})
    log = simulate_course(course, robot, 4).measured
    silent = dataclasses.replace(log, joint_torque=None, torque_source="none")
    estimator = TraceEstimator.load(path, robot)
    way = log.reference.path_length_m
    assert way > 3.0
    for run in run_logs(estimator, [log, silent], ["torque", "no torque"]):
        done = run.trajectory.position[-1] - run.trajectory.position[0]
        true = log.reference.position[-1] - log.reference.position[0]
        assert np.linalg.norm(done) == pytest.approx(np.linalg.norm(true), abs=0.08 * way)
