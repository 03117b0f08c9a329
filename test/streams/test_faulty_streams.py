"""Every case of `faulty.py` through the streams and the estimator."""

from __future__ import annotations

import pytest
from faulty import CASES, Case, Clean, check_counts, compare, estimate, walk_log

from trace_ros.estimator.estimator import Estimate, TraceEstimator
from trace_ros.logs import SensorLog
from trace_ros.resources import models_directory
from trace_ros.robot import RobotDescription
from trace_ros.streams import SensorStreams

ROBOT = RobotDescription.load("go2")


@pytest.fixture(scope="module")
def walk() -> SensorLog:
    return walk_log(ROBOT)


@pytest.fixture(scope="module")
def estimator() -> TraceEstimator:
    return TraceEstimator.load(models_directory() / "go2" / "trace.pt", ROBOT)


@pytest.fixture(scope="module")
def clean(walk: SensorLog, estimator: TraceEstimator) -> list[Estimate]:
    lines = estimate(estimator, SensorStreams(ROBOT), Clean.of(walk, ROBOT).messages())
    assert len(lines[0]) == 600 - 29
    return lines[0]


def test_there_are_many() -> None:
    assert len(CASES) >= 40
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case: Case, walk: SensorLog, estimator: TraceEstimator, clean: list[Estimate]) -> None:
    streams = SensorStreams(ROBOT)
    lines = estimate(estimator, streams, case.spoil(Clean.of(walk, ROBOT)))
    check_counts(case, dict(streams.tally.counts))
    compare(case, clean, lines)
