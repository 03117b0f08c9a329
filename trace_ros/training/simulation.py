"""The simulator as a source of rollouts for training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trace_ros.robot import RobotDescription
from trace_ros.sim.rollout import Rollout, SimulationConfig, simulate_rollouts


@dataclass(frozen=True)
class SimulationSource:
    """A `RolloutSource` that simulates with one config."""

    config: SimulationConfig

    def __call__(self, robot: RobotDescription, seed: int, count: int) -> Iterator[Rollout]:
        """See `trace_ros.sim.rollout.simulate_rollouts`."""
        return simulate_rollouts(self.config, robot, seed, count)
