"""The second model that ships for the Go2: its attention is on the feet that stand."""

import numpy as np
import pytest
import torch

from trace_ros.estimator.batch import run_logs
from trace_ros.estimator.estimator import TraceEstimator
from trace_ros.estimator.network import LEG_TOKENS
from trace_ros.evaluation.attention import area_under_curve
from trace_ros.evaluation.metrics import evaluate
from trace_ros.resources import models_directory
from trace_ros.robot import RobotDescription
from trace_ros.sim.course import Course, simulate_course

ROBOT = RobotDescription.load("go2")


@pytest.fixture(scope="module")
def figures():
    """AUC, top-1, mean attention in swing and position error of both models on one walk that neither was trained on."""
    torch.set_num_threads(1)
    log = simulate_course(Course.load("demo").model_copy(update={"duration": 20.0}), ROBOT, 8).measured
    found = {}
    for name in ("trace", "trace_attention"):
        (run,) = run_logs(TraceEstimator.load(models_directory() / "go2" / f"{name}.pt", ROBOT), [log])
        legs = run.attention[:, LEG_TOKENS]
        contact = log.contact[np.isin(log.stamp_ns, run.trajectory.stamp_ns)]
        some = contact.any(axis=1)
        highest = legs[some].argmax(axis=1)
        found[name] = (
            area_under_curve(contact.ravel(), legs.ravel()),
            contact[some][np.arange(some.sum()), highest].mean(),
            legs[~contact].mean(),
            evaluate(run.trajectory, log.reference).ate_position_m,
        )
    return found


def test_feet_that_stand_are_told_from_those_that_do_not(figures):
    auc, top1, swing, _ = figures["trace_attention"]
    assert auc > 0.975 and top1 > 0.975 and swing < 0.006


def test_it_tells_them_better_than_the_default_model_at_about_its_error(figures):
    ours, default = figures["trace_attention"], figures["trace"]
    assert ours[0] > default[0] + 0.005 and ours[2] < 0.7 * default[2]
    assert ours[3] < default[3] + 0.03
