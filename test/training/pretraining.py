"""Small runs for tests."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from trace_ros.robot import RobotDescription
from trace_ros.training.config import OptimiserConfig, ReplayConfig, TrainingConfig, ValidationConfig
from trace_ros.training.monitor import SilentMonitor
from trace_ros.training.pretrain import Budget, RunDescription

# Sums over another number of threads differ in their last bits, and runs in several processes are compared here.
torch.set_num_threads(1)


def describe(steps: int | None = None, hours: float | None = None, **changes: object) -> RunDescription:
    """A run that takes seconds and, being synchronous, depends on its seed alone."""
    values = {
        "batch": 4,
        "segment": 20,
        "rollout_samples": 60,
        "replay": ReplayConfig(capacity=8, minimum=4, chunk=4, visits_per_sample=4.0, synchronous=True),
        "validation": ValidationConfig(rollouts=2, interval=1e6),
        "optimiser": OptimiserConfig(warmup_steps=5),
        "checkpoint_interval": 1e-3,
    }
    config = TrainingConfig(**{**values, **changes})
    budget = Budget(steps=steps, hours=hours)
    return RunDescription(RobotDescription.load("go2"), config, {"made": "up"}, 7, budget, "trace train (test)")


class Recorder(SilentMonitor):
    """Keeps what a run tells."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.rates: list[float] = []
        self.figures: list[Mapping[str, float]] = []

    def step(self, _step: int, _samples: int, _progress: float, scalars: Mapping[str, float]) -> None:
        self.losses.append(scalars["total"])
        self.rates.append(scalars["learning_rate"])

    def validated(self, _step: int, figures: Mapping[str, float]) -> None:
        self.figures.append(figures)
