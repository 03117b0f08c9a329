"""The ablation "without foot-aware attention" as an estimator: TRACE's, with an MLP for a network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trace_ros.baselines.learned import LearnedModel, load_learned
from trace_ros.baselines.mlp_network import MlpCard
from trace_ros.estimator.checkpoint import LoadedModel
from trace_ros.estimator.estimator import Estimate, TraceEstimator
from trace_ros.estimator.interface import Output
from trace_ros.logs import Sample
from trace_ros.robot import RobotDescription
from trace_ros.streams.intervals import GapSettings


class MlpEstimator:
    """`TraceEstimator` around another network: the same start, gaps, feedback, clamp and integration; no attention."""

    name = "mlp"
    outputs: frozenset[Output] = frozenset({"velocity", "stationary"})

    def __init__(self, model: LearnedModel[MlpCard], robot: RobotDescription, gaps: GapSettings | None = None) -> None:
        """Use a model on a robot; see `TraceEstimator`.

        Raises:
            TraceError: it was trained for another one.
        """
        self.model = model
        self._trace = TraceEstimator(LoadedModel(model.module, model.card, model.path, model.weights), robot, gaps)

    @classmethod
    def load(cls, path: Path, robot: RobotDescription, gaps: GapSettings | None = None) -> MlpEstimator:
        """Load a model for a robot.

        Raises:
            TraceError: see `load_learned`; or it was trained for another robot.
        """
        return cls(load_learned(path, MlpCard), robot, gaps)

    @property
    def source(self) -> str:
        """The model's file."""
        return str(self.model.path)

    @property
    def rate_hz(self) -> float:
        """Of the samples that the model was trained with, Hz."""
        return self.model.card.rate_hz

    @property
    def joint_delay_s(self) -> float:
        """How much older joint readings are than IMU readings of the same stamp, s; whoever pairs them sees to it."""
        return self.model.card.joint_delay

    @property
    def max_gap_s(self) -> float:
        """The longest pause that is bridged, s."""
        return self._trace.max_gap_s

    def reset(self) -> None:
        """Forget everything. A reset run equals a fresh one."""
        self._trace.reset()

    def set_initial_pose(self, position: NDArray[np.float64], heading: float) -> None:
        """See `TraceEstimator.set_initial_pose`."""
        self._trace.set_initial_pose(position, heading)

    def set_pose(
        self,
        position: NDArray[np.float64],
        orientation: NDArray[np.float64],
        position_sigma: float = 0.0,
        heading_sigma: float = 0.0,
    ) -> None:
        """See `TraceEstimator.set_pose`."""
        self._trace.set_pose(position, orientation, position_sigma, heading_sigma)

    def step(self, sample: Sample) -> Estimate | None:
        """See `TraceEstimator.step`."""
        estimate = self._trace.step(sample)
        return None if estimate is None else replace(estimate, attention=None)
