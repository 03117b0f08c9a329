"""A small world for the simulation tests: one robot, one policy, one batch of rollouts on all kinds of ground."""

import pytest
import torch

from trace_ros.robot import RobotDescription
from trace_ros.sim.policy import WalkingPolicy
from trace_ros.sim.rollout import Rollout, RolloutStatistics, SimulationConfig, simulate_rollouts

# All samples arrive, at one rate: what is recorded must then be consistent from sample to sample.
SHORT = {"duration": 2.0, "settle": 0.5, "batch": 16, "sampling": {"jitter_probability": 0.1}}


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def go2() -> RobotDescription:
    return RobotDescription.load("go2")


@pytest.fixture(scope="session")
def policy(go2) -> WalkingPolicy:
    return WalkingPolicy.load(go2)


@pytest.fixture(scope="session")
def short_config() -> SimulationConfig:
    return SimulationConfig.model_validate(SimulationConfig.load().model_dump() | SHORT)


@pytest.fixture(scope="session")
def batch(short_config, go2) -> tuple[list[Rollout], RolloutStatistics]:
    """Thirty rollouts of the training distribution, two seconds each, but at one rate and without losses."""
    statistics = RolloutStatistics()
    return list(simulate_rollouts(short_config, go2, 1, 30, statistics)), statistics
