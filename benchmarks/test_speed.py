"""How long the parts take that everything else waits for, to be compared from commit to commit.

``pytest benchmarks/test_speed.py --benchmark-only --benchmark-save=before`` keeps the figures of this machine in
``.benchmarks``, and ``--benchmark-compare --benchmark-compare-fail=median:20%`` instead of the last option holds later
ones to them. Two runs must have the same neighbours on the machine: compare medians or minima, not means.
Without ``--benchmark-only`` it is a quick test that all of them still run (``--benchmark-disable``).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trace_ros.bags import read_bag, write_bag
from trace_ros.estimator.estimator import TraceEstimator
from trace_ros.evaluation.latency import ROWS, steps_to_time, walking_samples
from trace_ros.evaluation.runner import evaluate_runs
from trace_ros.logs import SensorLog, Trajectory
from trace_ros.resources import models_directory
from trace_ros.robot import RobotDescription

SECONDS, RATE_HZ = 4, 500
TOGETHER = 8
"""Logs that one thread steps side by side: half of sixteen."""


@dataclass(frozen=True)
class Subject:
    """The shipped model, what steps it once by name, and a log."""

    estimator: TraceEstimator
    steps: dict[str, Any]
    log: SensorLog


@pytest.fixture(scope="module")
def subject() -> Subject:
    """All made once."""
    torch.set_num_threads(1)
    robot = RobotDescription.load("go2")
    estimator = TraceEstimator.load(models_directory() / robot.name / "trace.pt", robot)
    return Subject(estimator, steps_to_time(estimator.model, robot, ["onnxruntime"]), log_of(SECONDS * RATE_HZ, robot))


def log_of(count: int, robot: RobotDescription) -> SensorLog:
    """Readings like walking, and a reference that does not move: its errors take as long to work out as any."""
    samples = walking_samples(count)
    stamp_ns = np.array([sample.stamp_ns for sample in samples]) + 10**18
    reference = Trajectory(
        stamp_ns, np.zeros((count, 3)), np.tile((0.0, 0.0, 0.0, 1.0), (count, 1)), np.zeros((count, 3))
    )
    names = ("angular_velocity", "linear_acceleration", "joint_position", "joint_velocity", "joint_torque")
    columns = (np.array([getattr(sample, name) for sample in samples]) for name in names)
    return SensorLog(stamp_ns, *columns, torque_source="pd_target", robot=robot.name, reference=reference)


@pytest.mark.benchmark(group="one step")
@pytest.mark.parametrize("row", ROWS)
def test_step(benchmark: Any, subject: Subject, row: str) -> None:
    """Rows of `trace latency`, one after another instead of in turns."""
    with torch.inference_mode():
        benchmark.pedantic(subject.steps[row], rounds=2000, warmup_rounds=200)


@pytest.mark.benchmark(group="whole logs")
@pytest.mark.parametrize("count", [1, TOGETHER])
def test_evaluation(benchmark: Any, subject: Subject, count: int) -> None:
    """One log, and several by one thread, with their errors."""
    names, logs = [f"log {index}" for index in range(count)], [subject.log] * count
    found = benchmark.pedantic(evaluate_runs, (names, logs, subject.estimator), rounds=5, warmup_rounds=1)
    assert all(evaluation.metrics is not None for evaluation in found)
    if benchmark.enabled:
        benchmark.extra_info["times real time"] = count * SECONDS / benchmark.stats.stats.min


@pytest.mark.benchmark(group="bags")
@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_reading(benchmark: Any, subject: Subject, tmp_path: Path, storage: str) -> None:
    """A bag of a log with its reference."""
    bag = tmp_path / "bag"
    write_bag(bag, subject.log, subject.estimator.robot, storage=storage)
    log = benchmark.pedantic(read_bag, (bag, subject.estimator.robot), rounds=5, warmup_rounds=1)
    assert len(log) == len(subject.log)
    if benchmark.enabled:
        benchmark.extra_info["messages/s"] = 2 * len(log) / benchmark.stats.stats.min
