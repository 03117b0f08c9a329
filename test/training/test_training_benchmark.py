"""The benchmark measures what it says, on a small scale."""

from __future__ import annotations

import time

import pytest
import torch

from trace_ros.errors import TraceError
from trace_ros.robot import RobotDescription
from trace_ros.sim.rollout import SimulationConfig
from trace_ros.training import benchmark
from trace_ros.training.benchmark import BenchmarkPlan, Rate, measure_training_rate, on_one_ground, run_benchmark
from trace_ros.training.config import TrainingConfig


@pytest.fixture(scope="module")
def quick(tmp_path_factory) -> TrainingConfig:
    folder = tmp_path_factory.mktemp("quick")
    (folder / "simulation.yaml").write_text("{duration: 0.6, settle: 0.2, minimum_duration: 0.3}")
    (folder / "quick.yaml").write_text("{batch: 2, segment: 10, rollout_samples: 300}")
    return TrainingConfig.load(folder / "quick.yaml")


def test_everything_is_measured(quick):
    torch.set_num_threads(1)
    told: list[str] = []
    plan = BenchmarkPlan(
        training_s=0.2, robots=2, terrains=("flat", "stairs"), physics_hz=(1000, 2000), shared_rollouts=2
    )
    measured = run_benchmark(quick, RobotDescription.load("go2"), plan, told.append)
    assert set(measured.simulation) == {(kind, rate) for kind in ("flat", "stairs") for rate in (1000, 2000)}
    rates = [measured.training, measured.training_beside, measured.simulation_alone, measured.simulation_beside]
    assert all(rate.per_s > 0 and rate.per_cpu_s > 0 for rate in [*rates, *measured.simulation.values()])
    assert len(told) == 1 + 4 + 2


def test_a_rate_by_processor_time_leaves_out_the_waiting(monkeypatch):
    """Steps that only sleep cost wall time and no processor time."""
    monkeypatch.setattr(benchmark.TrainingLoad, "step", lambda _: time.sleep(0.02))
    rate = measure_training_rate(TrainingConfig(batch=2, segment=10), seconds=0.3)
    assert 300 < rate.per_s < 1000.1  # 20 samples in at least 20 ms
    assert rate.per_cpu_s > 5 * rate.per_s


def test_one_ground_at_one_rate():
    whole = SimulationConfig.load()
    ground = on_one_ground(whole, "stairs", 1000, 7)
    assert {kind for kind, weight in ground.terrain.weights.items() if weight} == {"stairs"}
    assert (ground.physics.rate_hz, ground.batch, ground.physics.threads) == (1000, 7, 1)
    assert ground.randomization == whole.randomization and ground.sensors == whole.sensors


def test_a_rate_that_does_not_fit_is_told():
    with pytest.raises(TraceError, match="multiple"):
        on_one_ground(SimulationConfig.load(), "flat", 1250, 2)


def test_a_simulation_that_fails_tells_why(quick):
    robot = RobotDescription.load("go2").model_copy(update={"policy": None})
    plan = BenchmarkPlan(training_s=0.05, robots=1, terrains=(), shared_rollouts=1)
    with pytest.raises(TraceError, match="policy"):
        run_benchmark(quick, robot, plan)
    with pytest.raises(TraceError, match="ended"):
        _closed()


def _closed() -> Rate:
    here, there = benchmark.multiprocessing.get_context("spawn").Pipe()
    there.close()
    return benchmark._receive(here)
