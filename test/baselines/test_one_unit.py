"""Models of one unit are told from those of every unit."""

from __future__ import annotations

import shutil

import pytest

from trace_ros.baselines.one_unit import of_one_unit
from trace_ros.baselines.registry import default_model
from trace_ros.estimator.checkpoint import load_model, write_card
from trace_ros.robot import RobotDescription

GO2 = RobotDescription.load("go2")


@pytest.mark.parametrize("estimator", ["trace", "trace_network"])
def test_a_model_that_expects_late_joints_is_one_units(tmp_path, estimator):
    model = tmp_path / "own.pt"
    shutil.copy(default_model("trace", GO2), model)
    assert of_one_unit(estimator, model, GO2) is None
    write_card(model, load_model(model).card.model_copy(update={"joint_delay": 0.012}))
    assert of_one_unit(estimator, model, GO2) == (
        f"{model} is one unit's, whose joints are 12 ms late; those of these walks are not"
    )


def test_a_filter_is_for_every_unit():
    assert of_one_unit("iekf", default_model("iekf", GO2), GO2) is None
