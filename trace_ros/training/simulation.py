"""The simulator as a source of rollouts for training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from trace_ros.errors import TraceError
from trace_ros.robot import RobotDescription, describe_validation_error
from trace_ros.sim.rollout import Rollout, SimulationConfig, simulate_rollouts
from trace_ros.sim.walkers import walked_by


@dataclass(frozen=True)
class SimulationSource:
    """A `RolloutSource` that simulates with one config."""

    config: SimulationConfig

    def __call__(self, robot: RobotDescription, seed: int, count: int) -> Iterator[Rollout]:
        """See `trace_ros.sim.rollout.simulate_rollouts`."""
        return simulate_rollouts(self.config, robot, seed, count)

    def describe(self, robot: RobotDescription) -> dict[str, Any]:
        """The config as plain data, and which of the robot's policies walk (``walked_by``).

        Raises:
            TraceError: no policy, or it cannot be read.
        """
        return {**self.config.model_dump(mode="json"), "walked_by": walked_by(robot)}

    @classmethod
    def of(cls, described: dict[str, Any], source: str) -> SimulationSource:
        """The source that `describe` described.

        Raises:
            TraceError: a config of another version; ``source`` says where it was found.
        """
        own = {key: value for key, value in described.items() if key != "walked_by"}
        try:
            return cls(SimulationConfig.model_validate(own))
        except ValidationError as error:
            text = describe_validation_error(error)
            raise TraceError(f"{source}: simulation config of another version: {text}") from error
