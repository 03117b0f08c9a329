"""Models of one unit are told from those of every unit."""

from __future__ import annotations

import shutil

import pytest

from trace_ros.baselines.one_unit import joint_delay_of_model, of_one_unit
from trace_ros.baselines.registry import default_model
from trace_ros.estimator.checkpoint import load_model, write_card
from trace_ros.robot import RobotDescription

GO2 = RobotDescription.load("go2")


@pytest.fixture
def model(tmp_path):
    copy = tmp_path / "own.pt"
    shutil.copy(default_model("trace", GO2), copy)
    return copy


def write(model, **changed):
    write_card(model, load_model(model).card.model_copy(update=changed))


@pytest.mark.parametrize(("late", "said"), [(0.012, "joints 12 ms late"), (-0.005, "IMU 5 ms late")])
def test_a_model_that_expects_late_readings_is_one_units(model, late, said):
    for estimator in ("trace", "trace_network"):
        assert of_one_unit(estimator, model, GO2) is None
    write(model, joint_delay=late)
    for estimator in ("trace", "trace_network"):
        assert (
            of_one_unit(estimator, model, GO2)
            == f"{model} is one unit's ({said}); the robots of these walks are others"
        )
        assert joint_delay_of_model(estimator, model, GO2) == late


def test_so_is_one_whose_feet_are_turned_where_they_tell_the_height(model):
    write(model, height=load_model(model).card.height.model_copy(update={"level": (0.0, -0.0123)}))
    said = of_one_unit("trace", model, GO2)
    assert said is not None and "(feet turned by +0.0000 rad in roll, -0.0123 in pitch)" in said
    assert of_one_unit("trace_network", model, GO2) is None


def test_a_filter_is_for_every_unit():
    assert of_one_unit("iekf", default_model("iekf", GO2), GO2) is None
