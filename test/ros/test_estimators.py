"""What the node says of an estimator: what it has, what it lacks, at which rate it works."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trace_ros.baselines.registry import ESTIMATORS, load_estimator
from trace_ros.errors import TraceError
from trace_ros.nodes import estimators
from trace_ros.nodes.estimator_parameters import PARAMETERS


class Bare:
    """The least that the interface asks for."""

    name, source = "bare", "nowhere"
    outputs: frozenset[Any] = frozenset()

    def reset(self) -> None: ...

    def set_pose(self, position: Any, orientation: Any) -> None: ...

    def step(self, sample: Any) -> None: ...


def given(**values: Any) -> Any:
    """Parameters of the node with these values, and the defaults of the others."""
    all_values = {parameter.name: parameter.default for parameter in PARAMETERS} | values
    return SimpleNamespace(**dict.fromkeys(("text", "number", "numbers", "integer"), all_values.__getitem__))


def test_what_is_lacking_is_told_and_not_promised() -> None:
    bare: Any = Bare()
    parameters = given(initial_pose=[1.0, 0.0, 0.0, 0.0], max_gap=0.5)
    assert estimators.rate_hz(bare) is None
    assert estimators.feet_are_told_by(bare) == ""
    told = estimators.facts(bare, parameters)
    assert told["foot reliability"] == "not published: bare tells nothing of the feet"
    assert told["stationary"] == "not told by bare"
    assert told["velocity"] == "displacement over time: bare tells no other"
    assert "engine" not in told
    assert estimators.max_gap_s(bare) == 0.1
    lines = estimators.shortcomings(bare, parameters)
    assert [line.split(":")[0] for line in lines] == [
        "bare tells nothing of the feet",
        "max_gap is not for bare",
        "initial_pose is not for bare",
    ]


def test_a_network_bridges_what_it_is_told_to(robot, model) -> None:
    made = estimators.make_estimator(given(model=str(model), max_gap=0.3), robot)
    assert estimators.max_gap_s(made) == 0.3
    assert estimators.rate_hz(made) == 500.0
    assert estimators.shortcomings(made, given(max_gap=0.3)) == []
    told = estimators.facts(made, given())
    assert (told["engine"], told["foot reliability"]) == ("torchscript", "attention")
    assert told["model fits"].startswith("yes: trained for go2, fingerprint ")


def test_a_filter_works_at_any_rate_and_begins_anywhere(robot) -> None:
    estimator = load_estimator("iekf", robot)
    assert estimators.rate_hz(estimator) is None
    assert estimators.feet_are_told_by(estimator) == "contact"
    assert estimators.shortcomings(estimator, given(initial_pose=[1.0, 0.0, 0.0, 0.0])) == []


def test_an_estimator_is_made_fresh_and_refusals_name_the_cause(robot, tmp_path) -> None:
    made = estimators.make_estimator(given(estimator="leg_odometry"), robot)
    sample = next(iter(_standing(robot)))
    assert made.step(sample) is None  # warmed up, and reset
    with pytest.raises(TraceError, match=r"no\.yaml"):
        estimators.make_estimator(given(estimator="iekf", model=str(tmp_path / "no.yaml")), robot)


def test_the_parameter_knows_every_estimator_of_the_registry() -> None:
    parameter = next(parameter for parameter in PARAMETERS if parameter.name == "estimator")
    assert parameter.choices == ESTIMATORS
    assert parameter.fault("ekf") == f"is 'ekf', expected one of {', '.join(ESTIMATORS)}"


def _standing(robot: Any) -> Any:
    from trace_ros.logs import Sample

    yield Sample(1, np.zeros(3), np.array([0.0, 0.0, 9.81]), robot.nominal_joint_positions, np.zeros(12), np.zeros(12))
